"""Figure of the collaboration matrix."""

import torch
from lightning.fabric.utilities.rank_zero import rank_zero_info

from lightning_fl.callbacks.figures.plots.run import draw_matrix
from lightning_fl.callbacks.figures.round_figure import RoundFigure
from lightning_fl.runtime.drawing import drawing
from lightning_fl.runtime.surface import TrainerSurface

__all__ = ["CollaborationFigure"]


class CollaborationFigure(RoundFigure):
    """Draws ``P A`` [N, N] as a heat map at the end of the fit, in TensorBoard and as ``figures/collaboration.png``.

    Row i shows the share of each client's update in client i's model. Not drawn if all clients use the same average.

    Args:
        every_n_rounds: also draw every n rounds; 0 for the end only.
    """

    def draw(self, trainer: TrainerSurface) -> None:
        """Draw the current collaboration."""
        if not trainer.is_global_zero:
            return
        matrix = trainer.federation.collaboration.matrix
        if torch.allclose(matrix, matrix[:1].expand_as(matrix)):
            rank_zero_info("CollaborationFigure draws nothing: all clients use the same average")
            return
        with drawing("collaboration"):
            figure = draw_matrix(
                matrix,
                trainer.datamodule.client_names(),
                f"Collaboration after round {trainer.federation.current_round}",
                trainer.datamodule.source,
            )
            trainer.run_log.log_figure("collaboration", figure, trainer.federation.current_round)
