"""Figure of the collaborators that clients choose over the rounds."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from lightning_fl.callbacks.figures.plots import canvas

__all__ = ["draw_graph"]

_MOST_NAMED = 30
_COLORS = ("white", "#f6d55c", "#20639b", "0.6")
_MEANINGS = ("", "may be chosen", "chosen", "itself")


def draw_graph(
    rounds: Sequence[int],
    chosen: Sequence[Mapping[int, Sequence[int]]],
    candidates: Mapping[int, Sequence[int]],
    names: Sequence[str],
    *,
    panels: int = 6,
) -> Figure:
    """Draw a matrix per round: row k shows the collaborators and candidates of client k.

    Args:
        rounds: R round numbers.
        chosen: for each round, client -> chosen collaborators.
        candidates: client -> candidates.
        names: N client names.
        panels: maximum number of rounds, evenly spread.
    """
    shown = np.unique(np.linspace(0, len(rounds) - 1, min(panels, len(rounds))).round().astype(int)).tolist()
    columns = min(len(shown), 3)
    rows, count = -(-len(shown) // columns), len(names)
    title = "Whose models each client averages its own with"
    figure = canvas.make_figure(title, (3.6 * columns + 1.4, 3.5 * rows + 0.8))
    for position, index in enumerate(shown, start=1):
        image = np.zeros((count, count), dtype=int)
        for value, neighbours in ((1, candidates), (2, chosen[index])):
            for k, others in neighbours.items():
                image[k, list(others)] = value
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
