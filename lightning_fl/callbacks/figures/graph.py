"""Figure of the collaborators that clients choose over the rounds."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from lightning_fl.callbacks.callback import Callback
from lightning_fl.callbacks.collaboration.collaboration_graph import CollaborationGraph
from lightning_fl.callbacks.figures.plots.run import make_figure
from lightning_fl.core.errors import ConfigurationError
from lightning_fl.core.validation import Count, checked
from lightning_fl.runtime.drawing import drawing
from lightning_fl.runtime.surface import TrainerSurface

__all__ = ["GraphFigure", "draw_graph"]

_MOST_NAMED = 30
_COLORS = ("white", "#f6d55c", "#20639b", "0.6")
_MEANINGS = ("", "may be chosen", "chosen", "itself")


class GraphFigure(Callback):
    """Draws the choices of ``CollaborationGraph`` at the end of the fit, in TensorBoard and as ``figures/graph.png``.

    Args:
        panels: number of rounds shown, from the first to the last.

    Raises:
        ConfigurationError: at the start of a run, ``CollaborationGraph`` does not precede this callback.
    """

    only_shows = True

    @checked
    def __init__(self, *, panels: Count = 6) -> None:
        self.panels = panels

    def setup(self, trainer: TrainerSurface, stage: str) -> None:
        """Refuse a run without ``CollaborationGraph``."""
        self._graph(trainer)

    def on_fit_end(self, trainer: TrainerSurface) -> None:
        """Draw."""
        graph = self._graph(trainer)
        if not trainer.is_global_zero or not graph.chosen:
            return
        with drawing("graph"):
            figure = draw_graph(
                graph.rounds,
                graph.chosen,
                graph.candidates,
                trainer.datamodule.client_names(),
                trainer.datamodule.source,
                panels=self.panels,
            )
            trainer.run_log.log_figure("graph", figure, trainer.federation.current_round)

    def _graph(self, trainer: TrainerSurface) -> CollaborationGraph:
        before = trainer.callbacks[: trainer.callbacks.index(self)]
        for callback in before:
            if isinstance(callback, CollaborationGraph):
                return callback
        raise ConfigurationError(
            "GraphFigure needs CollaborationGraph: put it before GraphFigure in trainer.callbacks, or remove"
            " GraphFigure."
        )


def draw_graph(
    rounds: Sequence[int],
    chosen: Sequence[Mapping[int, Sequence[int]]],
    candidates: Mapping[int, Sequence[int]],
    names: Sequence[str],
    source: str,
    *,
    panels: int = 6,
) -> Figure:
    """Draw a matrix per round: row k shows the collaborators and candidates of client k.

    Args:
        rounds: R round numbers.
        chosen: for each round, client -> chosen collaborators.
        candidates: client -> candidates.
        names: N client names.
        source: of the data.
        panels: maximum number of rounds, evenly spread.
    """
    shown = np.unique(np.linspace(0, len(rounds) - 1, min(panels, len(rounds))).round().astype(int)).tolist()
    columns = min(len(shown), 3)
    rows = -(-len(shown) // columns)
    figure = make_figure(
        "Whose models each client averages its own with", source, (3.6 * columns + 1.4, 3.5 * rows + 0.8)
    )
    count = len(names)
    for position, index in enumerate(shown, start=1):
        image = np.zeros((count, count), dtype=int)
        for k, others in candidates.items():
            image[k, list(others)] = 1
        for k, others in chosen[index].items():
            image[k, list(others)] = 2
        np.fill_diagonal(image, 3)
        axes = figure.add_subplot(rows, columns, position)
        axes.imshow(image, cmap=ListedColormap(_COLORS), vmin=0, vmax=3, interpolation="nearest")
        edges = sum(len(others) for others in chosen[index].values())
        axes.set_title(f"round {rounds[index]}: {edges} edges", fontsize=9)
        ticks = list(range(count)) if count <= _MOST_NAMED else []
        axes.set_xticks(ticks, [names[i] for i in ticks] if position > len(shown) - columns else [], rotation=90)
        axes.set_yticks(ticks, [names[i] for i in ticks] if position % columns == 1 or columns == 1 else [])
        axes.tick_params(labelsize=6, length=2)
        axes.set_xlabel("client whose model is taken", fontsize=8)
        axes.set_ylabel("client that chooses", fontsize=8)
    handles = [
        Patch(facecolor=color, edgecolor="0.4", label=meaning)
        for color, meaning in zip(_COLORS[1:], _MEANINGS[1:], strict=True)
    ]
    figure.legend(handles=handles, loc="outside right center", frameon=False, fontsize=8)
    return figure
