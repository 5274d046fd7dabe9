"""A picture of who collaborates with whom."""

from typing import TYPE_CHECKING

from lightning_fl.callbacks.callback import Callback
from lightning_fl.callbacks.figures import draw_matrix
from lightning_fl.errors import ConfigurationError

if TYPE_CHECKING:
    from lightning_fl.trainer import FederatedTrainer

__all__ = ["CollaborationFigure"]


class CollaborationFigure(Callback):
    """The collaboration matrix ``P A`` [N, N] as a heat map, in TensorBoard and as ``figures/collaboration.png``.

    Row i shows how much of each client's update is in what client i uses. Drawn at the end of the fit.

    Args:
        every_n_rounds: also draw it every n rounds; 0 for the end only.

    Raises:
        ConfigurationError: ``every_n_rounds`` is negative.
    """

    def __init__(self, *, every_n_rounds: int = 0) -> None:
        if every_n_rounds < 0:
            raise ConfigurationError(
                f"CollaborationFigure.every_n_rounds={every_n_rounds}: give a number of at least 0."
            )
        self.every_n_rounds = every_n_rounds

    def on_round_end(self, trainer: "FederatedTrainer") -> None:
        """Draw what is due; the last round is drawn by :meth:`on_fit_end`."""
        done = trainer.current_round
        if self.every_n_rounds and done % self.every_n_rounds == 0 and done < trainer.max_rounds:
            self._draw(trainer)

    def on_fit_end(self, trainer: "FederatedTrainer") -> None:
        """Draw the last collaboration."""
        self._draw(trainer)

    def _draw(self, trainer: "FederatedTrainer") -> None:
        if not trainer.is_global_zero:
            return
        assert trainer.datamodule is not None
        figure = draw_matrix(
            trainer.collaboration.matrix,
            trainer.datamodule.client_names(),
            f"Collaboration after round {trainer.current_round}",
            trainer.datamodule.source,
        )
        trainer.run_log.log_figure("collaboration", figure, trainer.current_round)
