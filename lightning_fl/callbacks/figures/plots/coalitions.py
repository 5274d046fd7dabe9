"""Figures of coalitions: distances, merges, partitions and gains; see ``run.py`` for common arguments.

A coalition of several clients has the same colour in every figure of a partition; clients alone are grey.
"""

import colorsys
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap, to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import MaxNLocator
from matplotlib.typing import ColorType
from torch import Tensor

from lightning_fl.callbacks.collaboration.coalition_tracking import coalitions, track_coalitions
from lightning_fl.callbacks.figures.plots.run import MOST_VALUES, hide_spines, make_figure
from lightning_fl.core.errors import ConfigurationError
from lightning_fl.core.metrics import summarize_gains
from lightning_fl.runtime.drawing import BAD, GOOD, PALETTE

__all__ = ["coalition_colors", "draw_distances", "draw_gains", "draw_merge_tree", "draw_partition"]

#: A merge as (clients of the one group, clients of the other, gain in total utility).
MergeStep = tuple[Sequence[int], Sequence[int], float]

_MOST_TICKS = 60
_MOST_NAMED = 20
_ALONE = "0.72"
_BETTER, _HARMED = GOOD, BAD
#: Without grey, which is for clients alone.
_COLORS = tuple(color for color in PALETTE if color not in (BAD, "#000000"))


def draw_distances(distances: Tensor, labels: Sequence[int], names: Sequence[str], title: str, source: str) -> Figure:
    """Draw distances [N, N] between clients as a heat map, ordered and framed by coalition, length N."""
    count = len(names)
    if tuple(distances.shape) != (count, count) or len(labels) != count:
        raise ConfigurationError(
            f"distances of shape {list(distances.shape)}, {len(labels)} labels, {count} names: needs a square matrix"
            " with a label and a name for each row."
        )
    order = sorted(range(count), key=lambda client: (labels[client], client))
    values = distances.detach().cpu().double().numpy()[np.ix_(order, order)]
    side = min(4.0 + 0.2 * count, 11.0)
    figure = make_figure(title, source, (side + 1.2, side))
    axes = figure.add_subplot()
    finite = values[np.isfinite(values)]
    highest = float(finite.max()) if len(finite) else 1.0
    highest = max(highest, 1.0)  # distances of distributions are in [0, 1]
    image = axes.imshow(values, cmap="Blues", vmin=0.0, vmax=highest)
    figure.colorbar(image, ax=axes, label="distance", shrink=0.8)
    client_label = _name_clients(axes, "y", order, names, labels)
    _name_clients(axes, "x", order, names, labels)
    blocks = _blocks([labels[client] for client in order])
    colors = coalition_colors(labels)
    for label, start, stop in blocks:
        frame = Rectangle(
            (start - 0.5, start - 0.5), stop - start, stop - start, fill=False, color=colors[label], linewidth=2.0
        )
        axes.add_patch(frame).set_clip_on(False)
    several = [block for block in blocks if block[2] - block[1] > 1]
    if several and len(several) <= _MOST_NAMED:
        top = axes.secondary_xaxis("top")
        top.set_xticks([(start + stop - 1) / 2 for _, start, stop in several], [str(label) for label, _, _ in several])
        top.tick_params(length=0)
        for text, (label, _, _) in zip(top.get_xticklabels(), several, strict=True):
            text.set_color(colors[label])
            text.set_fontweight("bold")
        top.set_xlabel("coalition")
    if count <= MOST_VALUES:
        for row in range(count):
            for column in range(count):
                color = "white" if values[row, column] > 0.6 * highest else "black"
                value = f"{values[row, column]:.2f}"
                axes.text(column, row, value, ha="center", va="center", color=color, fontsize=8)
    axes.set_ylabel(client_label)
    return figure


def draw_merge_tree(
    merges: Sequence[MergeStep], labels: Sequence[int], names: Sequence[str], title: str, source: str
) -> Figure:
    """Draw a tree of merges per coalition, and the gain in total utility of each merge.

    A joint's height is the number of its merge. Leaves are ordered so that branches do not cross.

    Args:
        merges: in order, each of two existing groups; may be empty.
        labels: every client's coalition after the last merge, length N.

    Raises:
        ConfigurationError: a merge of groups that do not exist, or of clients with different labels.
    """
    count = len(names)
    if len(labels) != count:
        raise ConfigurationError(f"{len(labels)} labels for {count} names: needs one of each per client.")
    order, joints = _place_merges(merges, labels)
    width = min(4.5 + 0.22 * count, 16.0)
    figure = make_figure(title, source, (width, 5.2))
    tree, bars = figure.subplots(1, 2, sharey=True, width_ratios=[width - 3.2, 1.1])
    colors = coalition_colors(labels)
    for step, ((first_x, first_step), (second_x, second_step), client) in enumerate(joints, start=1):
        color = colors[labels[client]]
        tree.plot(
            [first_x, first_x, second_x, second_x], [first_step, step, step, second_step], color=color, linewidth=1.6
        )
        bars.barh(step, merges[step - 1][2], height=min(0.8, 0.2 + 0.1 * len(merges)), color=color)
    leaves = [colors[labels[client]] for client in order]
    tree.scatter(range(count), [0] * count, s=min(30, 1500 / count), c=leaves, zorder=3, clip_on=False)
    tree.set_xlabel(_name_clients(tree, "x", order, names, labels))
    tree.set_xlim(-0.8, count - 0.2)
    tree.set_ylim(0, max(len(merges), 1) + 0.6)
    tree.yaxis.set_major_locator(MaxNLocator(integer=True))
    tree.set_ylabel("merge, in their order")
    hide_spines(tree, sides=("top", "right", "bottom"))
    tree.tick_params(axis="x", length=0, pad=6)
    bars.set_xlabel("gain in\ntotal utility")
    bars.tick_params(axis="y", left=False)
    bars.xaxis.set_major_locator(MaxNLocator(3))
    hide_spines(bars)
    if not merges:
        tree.text(
            0.5, 0.5, "no merge gained:\nevery client is alone", transform=tree.transAxes, ha="center", color="0.4"
        )
    _coalition_legend(bars, labels)
    return figure


def draw_partition(
    rounds: Sequence[int], assignments: Sequence[Sequence[int]], names: Sequence[str], title: str, source: str
) -> Figure:
    """Draw coalitions over rounds: a row per client, a column per round, a colour per coalition.

    A coalition keeps its colour while it keeps most of its clients, see
    :func:`~lightning_fl.callbacks.collaboration.coalition_tracking.track_coalitions`. Rows are ordered by the final
    coalition.

    Args:
        rounds: R round numbers, at least one.
        assignments: every client's coalition in each round, [R][N].
    """
    count = len(names)
    if not rounds or len(assignments) != len(rounds) or any(len(labels) != count for labels in assignments):
        raise ConfigurationError(
            f"{len(rounds)} rounds, assignments of {[len(labels) for labels in assignments]} clients, {count} names:"
            " needs one assignment per round, at least one, with a label per name."
        )
    tracked = np.array(track_coalitions(assignments)).T
    order = sorted(range(count), key=lambda client: (tracked[client, -1], client))
    # Clients alone have no colour.
    alone = np.array([[(now == label).sum() == 1 for label in now] for now in tracked.T]).T
    last = list(
        coalitions(assignments[-1])
    )  # they come first, and so have the colours that coalition_colors gives them
    shown = last + sorted(set(tracked[~alone].tolist()).difference(last))
    palette = _palette(len(shown))
    place = {label: number for number, label in enumerate(shown, start=1)}
    index = np.array(
        [[0 if alone[client, r] else place[tracked[client, r]] for r in range(len(rounds))] for client in order]
    )
    figure = make_figure(title, source, (min(3.6 + 0.28 * len(rounds), 13.0), min(2.4 + 0.19 * count, 13.0)))
    axes = figure.add_subplot()
    axes.imshow(
        index,
        cmap=ListedColormap([to_rgb(_ALONE), *palette]),
        vmin=-0.5,
        vmax=len(shown) + 0.5,
        aspect="auto",
        interpolation="nearest",
    )
    _label_rounds(axes, rounds, order, names)
    handles = [Patch(color=color, label=f"coalition {label}") for label, color in zip(shown, palette, strict=True)]
    _legend(axes, handles, bool(alone.any()))
    return figure


def draw_gains(
    values: Mapping[int, float],
    reference: Mapping[int, float],
    names: Sequence[str],
    *,
    metric: str,
    higher_is_better: bool,
    title: str,
    source: str,
    labels: Sequence[int] | None = None,
    sort: bool = False,
) -> Figure:
    """Draw each client's metric, that of its local training, and the gain, with IPR and RSD in the title.

    Args:
        values: client -> metric of its model.
        reference: client -> metric of its local training.
        metric: name of the metric.
        higher_is_better: its direction; positive gains are better in either case.
        labels: every client's coalition, for its colour.
        sort: by decreasing gain instead of by client.

    Raises:
        ConfigurationError: no client has both a value and a reference.
    """
    summary = summarize_gains(values, reference, higher_is_better)
    gains = summary.clients
    if not gains:
        raise ConfigurationError(f"values and reference of {metric}: no client has both.")
    order = sorted(gains, key=lambda client: -gains[client]) if sort else sorted(gains)
    places = np.arange(len(order))
    text = (
        f"{title}\nIPR {summary.ipr:.0%}, RSD {summary.rsd:.3g}, mean gain {summary.mean:+.3g},"
        f" worst {summary.worst:+.3g}"
    )
    figure = make_figure(text, source, (min(4.8 + 0.2 * len(order), 15.0), 5.6))
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=[1.3, 1])
    size = max(8.0, min(42.0, 2600 / len(order)))
    had, has = (_drawable([side[client] for client in order]) for side in (reference, values))
    upper.vlines(places, had, has, color="0.8", linewidth=1.2, zorder=1)
    upper.scatter(places, had, s=size, facecolors="white", edgecolors="0.35", linewidths=1.1, zorder=2)
    colors = None if labels is None else coalition_colors(labels)
    filled = [_BETTER if colors is None or labels is None else colors[labels[client]] for client in order]
    upper.scatter(places, has, s=size, c=filled, linewidths=0, zorder=3)
    upper.set_ylabel(f"{metric} ({'higher' if higher_is_better else 'lower'} is better)")
    upper.grid(axis="y", color="0.92")
    heights = _drawable([gains[client] for client in order])
    lower.bar(places, heights, width=0.75, color=[_HARMED if gain < 0 else _BETTER for gain in heights])
    lower.axhline(0, color="black", linewidth=0.8)
    lower.set_ylabel("gain over\nlocal training")
    lower.grid(axis="y", color="0.92")
    lower.set_axisbelow(True)
    lower.set_xlim(-0.7, len(order) - 0.3)
    if not np.nan_to_num(heights).any():
        lower.set_ylim(-1, 1)
    lower.set_xlabel(_name_clients(lower, "x", order, names, labels))
    hide_spines(upper, lower)
    several = [] if labels is None else [label for label in coalitions(labels) if label in {labels[i] for i in order}]
    handles = [_dot("white", "0.35", "local training")]
    if colors is None or labels is None:
        handles.append(_dot(_BETTER, _BETTER, "federated"))
    else:
        handles += [_dot(colors[label], colors[label], f"coalition {label}") for label in several]
    _legend(upper, handles, labels is not None and any(labels[client] not in several for client in order), most=10)
    bars = [Patch(color=_BETTER, label="gains"), Patch(color=_HARMED, label=f"harmed ({summary.harmed:.0%})")]
    _legend(lower, bars, False)
    return figure


def coalition_colors(labels: Sequence[int]) -> dict[int, tuple[float, float, float]]:
    """Coalition -> colour; grey for a single client."""
    several = coalitions(labels)
    return dict.fromkeys(labels, to_rgb(_ALONE)) | dict(zip(several, _palette(len(several)), strict=True))


def _palette(count: int) -> list[tuple[float, float, float]]:
    """Distinct colours; further ones by the golden angle around the hues, in three lightnesses."""
    further = (
        colorsys.hls_to_rgb(0.07 + 0.618034 * i % 1.0, (0.25, 0.36, 0.47)[i % 3], 0.75)
        for i in range(count - len(_COLORS))
    )
    return [*(to_rgb(color) for color in _COLORS[:count]), *further]


def _blocks(labels: Sequence[int]) -> list[tuple[int, int, int]]:
    """Runs of equal labels as (label, start, stop)."""
    starts = [i for i, label in enumerate(labels) if i == 0 or label != labels[i - 1]]
    return [(labels[start], start, stop) for start, stop in zip(starts, [*starts[1:], len(labels)], strict=True)]


def _place_merges(
    merges: Sequence[MergeStep], labels: Sequence[int]
) -> tuple[list[int], list[tuple[tuple[float, int], tuple[float, int], int]]]:
    """Order of the leaves; for each merge the (place, height) of both branches and a client below it."""
    # Group -> its leaves from left to right.
    groups: dict[frozenset[int], list[int]] = {frozenset([client]): [client] for client in range(len(labels))}
    for step, (first, second, _) in enumerate(merges, start=1):
        pair = (frozenset(first), frozenset(second))
        if pair[0] == pair[1] or any(members not in groups for members in pair):
            raise ConfigurationError(
                f"merge {step} of {sorted(pair[0])} and {sorted(pair[1])}: these groups do not exist after the merges"
                " before it."
            )
        if len({labels[client] for client in pair[0] | pair[1]}) > 1:
            raise ConfigurationError(
                f"merge {step} of {sorted(pair[0])} and {sorted(pair[1])}: its clients have different labels."
            )
        left, right = sorted((groups.pop(members) for members in pair), key=min)
        groups[pair[0] | pair[1]] = left + right
    order = [client for leaves in sorted(groups.values(), key=lambda leaves: labels[leaves[0]]) for client in leaves]
    places: dict[frozenset[int], tuple[float, int]] = {
        frozenset([client]): (float(place), 0) for place, client in enumerate(order)
    }
    joints = []
    for step, (first, second, _) in enumerate(merges, start=1):
        one, two = sorted((places[frozenset(first)], places[frozenset(second)]))
        joints.append((one, two, first[0]))
        places[frozenset(first) | frozenset(second)] = ((one[0] + two[0]) / 2, step)
    return order, joints


def _label_rounds(axes: Axes, rounds: Sequence[int], order: Sequence[int], names: Sequence[str]) -> None:
    """Label rounds along x and clients along y of an image, with lines between cells if there is room."""
    every = -(-len(rounds) // 25)
    axes.set_xticks(range(0, len(rounds), every), [str(number) for number in rounds[::every]])
    axes.set_xlabel("round")
    axes.set_ylabel(_name_clients(axes, "y", order, names, None))
    for count, set_ticks in ((len(order), axes.set_yticks), (len(rounds), axes.set_xticks)):
        if count <= 60:
            set_ticks(np.arange(count - 1) + 0.5, minor=True)
    axes.grid(which="minor", color="white", linewidth=1.0)
    axes.tick_params(which="minor", length=0)


def _name_clients(
    axes: Axes, along: Literal["x", "y"], order: Sequence[int], names: Sequence[str], labels: Sequence[int] | None
) -> str:
    """Label an axis with as many client names as fit, in their coalition's colour; returns the axis title."""
    every = -(-len(order) // _MOST_TICKS)
    ticks = list(range(0, len(order), every))
    fontsize = 9 if len(ticks) <= 25 else 7 if len(ticks) <= 40 else 6
    shown = [names[order[place]] for place in ticks]
    if along == "x":
        axes.set_xticks(ticks, shown, rotation=90, fontsize=fontsize)
    else:
        axes.set_yticks(ticks, shown, fontsize=fontsize)
    if labels is not None:
        several, colors = coalitions(labels), coalition_colors(labels)
        texts = axes.get_xticklabels() if along == "x" else axes.get_yticklabels()
        for place, text in zip(ticks, texts, strict=True):
            label = labels[order[place]]
            text.set_color(colors[label] if label in several else "0.35")
    return "client" if every == 1 else f"client (1 in {every} is named)"


def _drawable(values: Sequence[float]) -> np.ndarray:
    """The values, with NaN for infinite ones."""
    return np.where(np.isfinite(values), values, np.nan)


def _dot(face: ColorType, edge: ColorType, label: str) -> Line2D:
    """A dot for a legend."""
    return Line2D([], [], ls="", marker="o", ms=6, markerfacecolor=face, markeredgecolor=edge, label=label)


def _coalition_legend(axes: Axes, labels: Sequence[int]) -> None:
    several, colors = coalitions(labels), coalition_colors(labels)
    handles = [Patch(color=colors[label], label=f"coalition {label}") for label in several]
    _legend(axes, handles, len(set(labels)) > len(several))


def _legend(axes: Axes, handles: Iterable[Artist], alone: bool, most: int = _MOST_NAMED) -> None:
    """Add a legend with at most ``most`` entries, and one for clients alone."""
    handles = list(handles)
    shown = handles[:most]
    if len(handles) > len(shown):
        shown.append(Patch(color="none", label=f"{len(handles) - len(shown)} more"))
    if alone:
        shown.append(Patch(color=_ALONE, label="alone"))
    axes.legend(handles=shown, loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False, fontsize=8)
