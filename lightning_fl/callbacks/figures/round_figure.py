"""What pictures of a run have in common: they are drawn at its end, and every few rounds if wanted."""

from lightning_fl.callbacks.callback import Callback
from lightning_fl.core.validation import Size, checked
from lightning_fl.runtime.surface import TrainerSurface

__all__ = ["RoundFigure"]


class RoundFigure(Callback):
    """Base of callbacks that draw what has happened up to a round.

    Args:
        every_n_rounds: also draw every n rounds; 0 for the end of the fit only.
    """

    only_shows = True

    @checked
    def __init__(self, *, every_n_rounds: Size = 0) -> None:
        self.every_n_rounds = every_n_rounds

    def on_round_end(self, trainer: TrainerSurface) -> None:
        """Draw what is due; the last round is drawn by :meth:`on_fit_end`."""
        done = trainer.federation.current_round
        if self.every_n_rounds and done % self.every_n_rounds == 0 and done < trainer.max_rounds:
            self.draw(trainer)

    def on_fit_end(self, trainer: TrainerSurface) -> None:
        """Draw all that happened."""
        self.draw(trainer)

    def draw(self, trainer: TrainerSurface) -> None:
        """Draw and log the figures, on rank zero; called on every rank."""
        raise NotImplementedError
