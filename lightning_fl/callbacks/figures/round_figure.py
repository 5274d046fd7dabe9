"""Base class of figures that are drawn at the end of a run and every few rounds."""

from lightning_fl.callbacks.callback import Callback
from lightning_fl.core.validation import Size, checked
from lightning_fl.runtime.surface import TrainerSurface

__all__ = ["RoundFigure"]


class RoundFigure(Callback):
    """Base of callbacks that draw the history of a run.

    Args:
        every_n_rounds: also draw every n rounds; 0 for the end of the fit only.
    """

    only_shows = True

    @checked
    def __init__(self, *, every_n_rounds: Size = 0) -> None:
        self.every_n_rounds = every_n_rounds

    def on_round_end(self, trainer: TrainerSurface) -> None:
        """Draw if due; :meth:`on_fit_end` draws the last round."""
        done = trainer.federation.current_round
        if self.every_n_rounds and done % self.every_n_rounds == 0 and done < trainer.max_rounds:
            self.draw(trainer)

    def on_fit_end(self, trainer: TrainerSurface) -> None:
        """Draw the whole run."""
        self.draw(trainer)

    def draw(self, trainer: TrainerSurface) -> None:
        """Draw and log the figures, on rank zero; called on every rank."""
        raise NotImplementedError
