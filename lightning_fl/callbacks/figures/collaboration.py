"""Figure of the collaboration matrix."""

from functools import partial

import torch
from lightning.fabric.utilities.rank_zero import rank_zero_info

from lightning_fl.callbacks.figures.figure import Drawings, FigureCallback
from lightning_fl.callbacks.figures.plots.run import draw_matrix
from lightning_fl.runtime.surface import TrainerSurface

__all__ = ["CollaborationFigure"]


class CollaborationFigure(FigureCallback):
    """Draws ``P A`` [N, N] as a heat map at the end of the fit, in TensorBoard and as ``figures/collaboration.png``.

    Row i shows the share of each client's update in client i's model. Not drawn if all clients use the same average.

    Args:
        every_n_rounds: also draw every n rounds; 0 for the end only.
    """

    def figures(self, trainer: TrainerSurface) -> Drawings:
        """The current collaboration."""
        matrix = trainer.federation.collaboration.matrix
        if torch.allclose(matrix, matrix[:1].expand_as(matrix)):
            rank_zero_info("CollaborationFigure draws nothing: all clients use the same average")
            return
        title = f"Collaboration after round {trainer.federation.current_round}"
        yield "collaboration", partial(draw_matrix, matrix, trainer.client_names, title)
