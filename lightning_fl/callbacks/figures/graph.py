"""Figure of the collaborators that clients choose over the rounds."""

from functools import partial

from lightning_fl.callbacks.collaboration.collaboration_graph import CollaborationGraph
from lightning_fl.callbacks.figures.figure import Drawings, FigureCallback
from lightning_fl.callbacks.figures.plots.graph import draw_graph
from lightning_fl.core.validation import Count, checked
from lightning_fl.runtime.surface import TrainerSurface

__all__ = ["GraphFigure"]


class GraphFigure(FigureCallback):
    """Draws the choices of ``CollaborationGraph`` at the end of the fit, in TensorBoard and as ``figures/graph.png``.

    Args:
        panels: number of rounds shown, from the first to the last.

    Raises:
        ConfigurationError: at the start of a run, ``CollaborationGraph`` does not precede this callback.
    """

    needs = (CollaborationGraph,)

    @checked
    def __init__(self, *, panels: Count = 6) -> None:
        super().__init__()
        self.panels = panels

    def figures(self, trainer: TrainerSurface) -> Drawings:
        """The choices of all rounds."""
        graph = trainer.callback(CollaborationGraph)
        if graph is not None and graph.chosen:
            data = (graph.rounds, graph.chosen, graph.candidates, trainer.client_names)
            yield "graph", partial(draw_graph, *data, panels=self.panels)
