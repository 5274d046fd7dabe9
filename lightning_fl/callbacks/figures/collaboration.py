"""A picture of who collaborates with whom."""

import torch
from lightning.fabric.utilities.rank_zero import rank_zero_info

from lightning_fl.callbacks.figures.plots.run import draw_matrix
from lightning_fl.callbacks.figures.round_figure import RoundFigure
from lightning_fl.runtime.drawing import drawing
from lightning_fl.runtime.surface import TrainerSurface

__all__ = ["CollaborationFigure"]


class CollaborationFigure(RoundFigure):
    """The collaboration matrix ``P A`` [N, N] as a heat map, in TensorBoard and as ``figures/collaboration.png``.

    Row i shows how much of each client's update is in what client i uses. Drawn at the end of the fit. Where all
    clients use the same average there is nothing to see: a line of the log says so, and no picture is made.

    Args:
        every_n_rounds: also draw it every n rounds; 0 for the end only.
    """

    def draw(self, trainer: TrainerSurface) -> None:
        """Draw the collaboration of now."""
        if not trainer.is_global_zero:
            return
        matrix = trainer.federation.collaboration.matrix
        if torch.allclose(matrix, matrix[:1].expand_as(matrix)):
            rank_zero_info("CollaborationFigure: all clients use the same average, of which there is nothing to draw")
            return
        with drawing("collaboration"):
            figure = draw_matrix(
                matrix,
                trainer.datamodule.client_names(),
                f"Collaboration after round {trainer.federation.current_round}",
                trainer.datamodule.source,
            )
            trainer.run_log.log_figure("collaboration", figure, trainer.federation.current_round)
