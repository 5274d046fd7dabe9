"""Base class of callbacks that draw figures."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, ClassVar

from lightning_fl.callbacks.callback import Callback
from lightning_fl.core.errors import ConfigurationError
from lightning_fl.runtime.drawing import drawing, show_source
from lightning_fl.runtime.surface import TrainerSurface

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Drawings", "FigureCallback"]

#: Names of figures, each with the function that draws it.
Drawings = Iterator[tuple[str, "Callable[[], Figure]"]]


class FigureCallback(Callback):
    """Base of callbacks that draw at the end of the fit, in TensorBoard and as ``figures/NAME.png``.

    A subclass yields its figures from :meth:`figures`: each a name, and a function that draws it from data.
    """

    only_shows = True
    #: The classes of callbacks that provide the data; one must be there, all of them before this one.
    needs: ClassVar[tuple[type[Callback], ...]] = ()
    #: Whether these callbacks may also follow this one.
    in_any_order = False

    def setup(self, trainer: TrainerSurface, stage: str) -> None:
        """Refuse a run without the callbacks that provide the data."""
        found = [callback for callback in trainer.callbacks if isinstance(callback, self.needs)]
        later = trainer.callbacks[trainer.callbacks.index(self) :]
        if self.needs and (not found or (not self.in_any_order and any(callback in later for callback in found))):
            name, needed = type(self).__name__, " or ".join(kind.__name__ for kind in self.needs)
            raise ConfigurationError(
                f"{name} needs {needed}: put it before {name} in trainer.callbacks, or remove {name}."
            )

    def figures(self, trainer: TrainerSurface) -> Drawings:
        """The figures of the run so far. Called on every rank."""
        raise NotImplementedError

    def on_fit_end(self, trainer: TrainerSurface) -> None:
        """Draw the whole run."""
        self.draw(trainer, self.figures(trainer))

    @staticmethod
    def draw(trainer: TrainerSurface, figures: Drawings) -> None:
        """Draw figures on rank zero, and log and save them; one that fails is a warning."""
        for name, make in figures:
            if trainer.is_global_zero:
                with drawing(name):
                    figure = make()
                    show_source(figure, [trainer.datamodule.source])
                    trainer.run_log.log_figure(name, figure, trainer.federation.current_round)
