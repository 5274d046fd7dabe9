"""Parts that figures share: canvas, panels, legends, client names, client lines, written values."""

import colorsys
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator
from matplotlib.typing import ColorType

from lightning_fl.runtime.drawing import BAD, PALETTE, marked

#: Clients with a colour and a legend entry; the others are grey.
MOST_NAMES = 12
#: Panels of a figure.
MOST_PANELS = 30
GREY = "0.75"
#: Largest matrix with written values.
_MOST_VALUES = 12
_MOST_TICKS = 60
#: Colours of groups: without grey and black.
_GROUP_COLORS = tuple(color for color in PALETTE if color not in (BAD, "#000000"))


def make_figure(title: str, size: tuple[float, float]) -> Figure:
    """Create an empty figure, without pyplot and display."""
    figure = Figure(figsize=size, layout="constrained")
    figure.suptitle(title, fontsize=11)
    return figure


def panels_of(count: int, title: str, side: float) -> tuple[Figure, list[Axes]]:
    """A figure with ``count`` panels, ``side`` inches wide, in a nearly square grid."""
    columns = math.ceil(math.sqrt(count))
    rows = math.ceil(count / columns)
    figure = make_figure(title, (side * columns, 2.9 * rows + 0.6))
    return figure, [figure.add_subplot(rows, columns, position) for position in range(1, count + 1)]


def hide_spines(*panels: Axes, sides: Sequence[str] = ("top", "right")) -> None:
    """Hide sides of the frame."""
    for axes in panels:
        axes.spines[list(sides)].set_visible(False)


def legend_beside(
    axes: Axes, handles: Iterable[Artist] | None = None, most: int = 1000, last: Iterable[Artist] = ()
) -> None:
    """Add a legend on the right: at most ``most`` of the handles, how many more there are, and the last ones."""
    shown = list(axes.get_legend_handles_labels()[0] if handles is None else handles)
    if len(shown) > most:
        shown[most:] = [Patch(color="none", label=f"{len(shown) - most} more")]
    axes.legend(handles=[*shown, *last], loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False, fontsize=8)


def palette(count: int) -> list[tuple[float, float, float]]:
    """Distinct colours of groups; further ones by the golden angle around the hues, in three lightnesses."""
    further = (
        colorsys.hls_to_rgb(0.07 + 0.618034 * i % 1.0, (0.25, 0.36, 0.47)[i % 3], 0.75)
        for i in range(count - len(_GROUP_COLORS))
    )
    return [*(to_rgb(color) for color in _GROUP_COLORS[:count]), *further]


def both_ends(order: Sequence[int]) -> list[int]:
    """The clients to name: all, or of more than 12 the first and the last six."""
    half = MOST_NAMES // 2
    return list(order) if len(order) <= MOST_NAMES else [*order[:half], *order[-half:]]


def client_lines(
    axes: Axes,
    rounds: Sequence[int],
    table: np.ndarray,
    order: Sequence[int],
    named: Mapping[int, int],
    names: Sequence[str],
    width: float,
) -> None:
    """Draw a line per client of table [R, N]; ``named`` (client -> number of its colour) are coloured, others grey."""
    for client in order:
        if client in named:
            style = marked(named[client], len(rounds)) | {"linewidth": width, "label": names[client], "zorder": 2}
        else:
            style = {"color": GREY, "linewidth": 0.7, "marker": "." if len(rounds) == 1 else "", "zorder": 1}
        axes.plot(rounds, table[:, client], **style)
    if len(named) < len(order):
        axes.plot([], [], color=GREY, linewidth=0.7, label=f"{len(order) - len(named)} more")


def round_axis(axes: Axes) -> None:
    """Label rounds along x."""
    axes.set_xlabel("round")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def heat_map(
    values: np.ndarray, title: str, size: tuple[float, float], label: str, *, shrink: float = 0.8, **options: Any
) -> tuple[Figure, Axes]:
    """Draw a matrix with a colour bar; options are those of :meth:`matplotlib.axes.Axes.imshow`."""
    figure = make_figure(title, size)
    axes = figure.add_subplot()
    figure.colorbar(axes.imshow(values, **options), ax=axes, label=label, shrink=shrink)
    return figure, axes


def write_values(axes: Axes, values: np.ndarray, dark: np.ndarray, form: str) -> None:
    """Write the finite values into the cells of a small matrix, in white on dark cells."""
    if max(values.shape) > _MOST_VALUES:
        return
    for (row, column), value in np.ndenumerate(values):
        if np.isfinite(value):
            color = "white" if dark[row, column] else "black"
            axes.text(column, row, f"{value:{form}}", ha="center", va="center", color=color, fontsize=8)


def name_clients(
    axes: Axes,
    along: Literal["x", "y"],
    order: Sequence[int],
    names: Sequence[str],
    colors: Sequence[ColorType] | None = None,
) -> str:
    """Label an axis with as many names as fit, of the client at each place; returns the axis title."""
    every = -(-len(order) // _MOST_TICKS) or 1
    axis = axes.xaxis if along == "x" else axes.yaxis
    axis.set_ticks(range(0, len(order), every), [names[client] for client in order[::every]])
    count = len(axis.get_ticklabels())
    axis.set_tick_params(labelsize=9 if count <= 25 else 7 if count <= 40 else 6, labelrotation=90.0 * (along == "x"))
    if colors is not None:
        for client, text in zip(order[::every], axis.get_ticklabels(), strict=True):
            text.set_color(colors[client])
    return "client" if every == 1 else f"client (1 in {every} is named)"


def name_rounds(axes: Axes, rounds: Sequence[int], order: Sequence[int], names: Sequence[str]) -> None:
    """Label rounds along x and clients along y of an image, with lines between cells if there is room."""
    every = -(-len(rounds) // 25)
    axes.set_xticks(range(0, len(rounds), every), [str(number) for number in rounds[::every]])
    axes.set(xlabel="round", ylabel=name_clients(axes, "y", order, names))
    for count, set_ticks in ((len(order), axes.set_yticks), (len(rounds), axes.set_xticks)):
        if count <= 60:
            set_ticks(np.arange(count - 1) + 0.5, minor=True)
    axes.grid(which="minor", color="white", linewidth=1.0)
    axes.tick_params(which="minor", length=0)
