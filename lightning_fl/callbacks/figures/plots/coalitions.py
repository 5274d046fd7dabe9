"""Figures of coalitions: distances, merges, partitions and gains; see ``run.py`` for common arguments.

A coalition of several clients has the same colour in every figure of a partition; clients alone are grey.
"""

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap, to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import MaxNLocator
from matplotlib.typing import ColorType
from numpy.typing import ArrayLike

from lightning_fl.callbacks.figures.plots import canvas
from lightning_fl.core.errors import ConfigurationError
from lightning_fl.core.metrics import summarize_gains
from lightning_fl.runtime.drawing import BAD, GOOD

#: A merge as (clients of the one group, clients of the other, gain in total utility).
MergeStep = tuple[Sequence[int], Sequence[int], float]

_MOST_NAMED = 20
_ALONE = "0.72"


def draw_distances(distances: ArrayLike, labels: Sequence[int], names: Sequence[str], title: str) -> Figure:
    """Draw distances [N, N] between clients as a heat map, ordered and framed by coalition, length N."""
    count = len(names)
    order = sorted(range(count), key=lambda client: (labels[client], client))
    values = np.asarray(distances, dtype=float)[np.ix_(order, order)]
    side = min(4.0 + 0.2 * count, 11.0)
    highest = max([1.0, *values[np.isfinite(values)].tolist()])  # distances of distributions are in [0, 1]
    figure, axes = canvas.heat_map(values, title, (side + 1.2, side), "distance", cmap="Blues", vmin=0.0, vmax=highest)
    axes.set_ylabel(canvas.name_clients(axes, "y", order, names, _text_colors(labels)))
    canvas.name_clients(axes, "x", order, names, _text_colors(labels))
    colors, start = coalition_colors(labels), 0
    several: dict[int, float] = {}
    for label, size in sorted(Counter(labels).items()):
        frame = Rectangle((start - 0.5, start - 0.5), size, size, fill=False, color=colors[label], linewidth=2.0)
        axes.add_patch(frame).set_clip_on(False)
        if size > 1:
            several[label] = start + (size - 1) / 2
        start += size
    if several and len(several) <= _MOST_NAMED:
        top = axes.secondary_xaxis("top")
        top.set_xticks(list(several.values()), list(map(str, several)))
        top.tick_params(length=0)
        for text, label in zip(top.get_xticklabels(), several, strict=True):
            text.set_color(colors[label])
            text.set_fontweight("bold")
        top.set_xlabel("coalition")
    canvas.write_values(axes, values, values > 0.6 * highest, ".2f")
    return figure


def draw_merge_tree(merges: Sequence[MergeStep], labels: Sequence[int], names: Sequence[str], title: str) -> Figure:
    """Draw a tree of merges per coalition (``labels`` [N] after the last one), and the gain of each merge.

    A joint's height is the number of its merge. Leaves are ordered so that branches do not cross.
    """
    count = len(names)
    order, joints = _place_merges(merges, labels)
    width = min(4.5 + 0.22 * count, 16.0)
    figure = canvas.make_figure(title, (width, 5.2))
    tree, bars = figure.subplots(1, 2, sharey=True, width_ratios=[width - 3.2, 1.1])
    colors = coalition_colors(labels)
    for step, ((first_x, first_step), (second_x, second_step), client) in enumerate(joints, start=1):
        color = colors[labels[client]]
        x, y = [first_x, first_x, second_x, second_x], [first_step, step, step, second_step]
        tree.plot(x, y, color=color, linewidth=1.6)
        bars.barh(step, merges[step - 1][2], height=min(0.8, 0.2 + 0.1 * len(merges)), color=color)
    leaves = [colors[labels[client]] for client in order]
    tree.scatter(range(count), [0] * count, s=min(30, 1500 / count), c=leaves, zorder=3, clip_on=False)
    tree.set_xlabel(canvas.name_clients(tree, "x", order, names, _text_colors(labels)))
    tree.set(xlim=(-0.8, count - 0.2), ylim=(0, max(len(merges), 1) + 0.6), ylabel="merge, in their order")
    tree.yaxis.set_major_locator(MaxNLocator(integer=True))
    canvas.hide_spines(tree, sides=("top", "right", "bottom"))
    tree.tick_params(axis="x", length=0, pad=6)
    bars.set_xlabel("gain in\ntotal utility")
    bars.tick_params(axis="y", left=False)
    bars.xaxis.set_major_locator(MaxNLocator(3))
    canvas.hide_spines(bars)
    if not merges:
        text = "no merge gained:\nevery client is alone"
        tree.text(0.5, 0.5, text, transform=tree.transAxes, ha="center", color="0.4")
    several = coalitions(labels)
    handles = [Patch(color=colors[label], label=f"coalition {label}") for label in several]
    _legend(bars, handles, len(set(labels)) > len(several))
    return figure


def draw_partition(
    rounds: Sequence[int], assignments: Sequence[Sequence[int]], names: Sequence[str], title: str
) -> Figure:
    """Draw coalitions [R][N] over rounds: a row per client, a column per round, a colour per coalition.

    A coalition keeps its colour while it keeps most clients (:func:`track_coalitions`). Rows go by the last coalition.
    """
    count = len(names)
    tracked = np.array(track_coalitions(assignments)).T
    order = sorted(range(count), key=lambda client: (tracked[client, -1], client))
    # Clients alone have no colour.
    alone = np.array([[(labels == label).sum() == 1 for label in labels] for labels in tracked.T]).T
    last = list(coalitions(assignments[-1]))  # first, so that they have the colours of coalition_colors
    shown = last + sorted(set(tracked[~alone].tolist()).difference(last))
    shades = canvas.palette(len(shown))
    place = {label: number for number, label in enumerate(shown, start=1)}
    index = np.where(alone, 0, np.vectorize(place.get)(tracked, 0))[order]
    figure = canvas.make_figure(title, (min(3.6 + 0.28 * len(rounds), 13.0), min(2.4 + 0.19 * count, 13.0)))
    axes = figure.add_subplot()
    colors = ListedColormap([to_rgb(_ALONE), *shades])
    axes.imshow(index, cmap=colors, vmin=-0.5, vmax=len(shown) + 0.5, aspect="auto", interpolation="nearest")
    canvas.name_rounds(axes, rounds, order, names)
    handles = [Patch(color=color, label=f"coalition {label}") for label, color in zip(shown, shades, strict=True)]
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
    labels: Sequence[int] | None = None,
) -> Figure:
    """Draw each client's metric, that of its local training, and the gain, with IPR and RSD in the title."""
    summary = summarize_gains(values, reference, higher_is_better)
    gains = summary.clients
    if not gains:
        raise ConfigurationError(f"values and reference of {metric}: no client has both.")
    order = sorted(gains)
    places = np.arange(len(order))
    text = f"IPR {summary.ipr:.0%}, RSD {summary.rsd:.3g}, mean gain {summary.mean:+.3g}, worst {summary.worst:+.3g}"
    figure = canvas.make_figure(f"{title}\n{text}", (min(4.8 + 0.2 * len(order), 15.0), 5.6))
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=[1.3, 1])
    size = max(8.0, min(42.0, 2600 / len(order)))
    handles, alone = [_dot("white", "0.35", "local training")], False
    if labels is None:
        filled: list[ColorType] = [GOOD] * len(order)
        handles.append(_dot(GOOD, GOOD, "federated"))
    else:
        colors = coalition_colors(labels)
        filled = [colors[labels[client]] for client in order]
        used = {labels[client] for client in order}
        several = [label for label in coalitions(labels) if label in used]
        handles += [_dot(colors[label], colors[label], f"coalition {label}") for label in several]
        alone = bool(used.difference(several))
    had, has = (_drawable([side[client] for client in order]) for side in (reference, values))
    upper.vlines(places, had, has, color="0.8", linewidth=1.2, zorder=1)
    upper.scatter(places, had, s=size, facecolors="white", edgecolors="0.35", linewidths=1.1, zorder=2)
    upper.scatter(places, has, s=size, c=filled, linewidths=0, zorder=3)
    upper.set_ylabel(f"{metric} ({'higher' if higher_is_better else 'lower'} is better)")
    upper.grid(axis="y", color="0.92")
    heights = _drawable([gains[client] for client in order])
    lower.bar(places, heights, width=0.75, color=[BAD if gain < 0 else GOOD for gain in heights])
    lower.axhline(0, color="black", linewidth=0.8)
    lower.grid(axis="y", color="0.92")
    lower.set(xlim=(-0.7, len(order) - 0.3), ylabel="gain over\nlocal training", axisbelow=True)
    if not np.nan_to_num(heights).any():
        lower.set_ylim(-1, 1)
    lower.set_xlabel(canvas.name_clients(lower, "x", order, names, None if labels is None else _text_colors(labels)))
    canvas.hide_spines(upper, lower)
    _legend(upper, handles, alone, most=10)
    _legend(lower, [Patch(color=GOOD, label="gains"), Patch(color=BAD, label=f"harmed ({summary.harmed:.0%})")], False)
    return figure


def coalition_colors(labels: Sequence[int]) -> dict[int, tuple[float, float, float]]:
    """Coalition -> colour; grey for a single client."""
    several = coalitions(labels)
    return dict.fromkeys(labels, to_rgb(_ALONE)) | dict(zip(several, canvas.palette(len(several)), strict=True))


def coalitions(labels: Sequence[int]) -> dict[int, set[int]]:
    """The clients of each coalition of several, by ascending label."""
    several = sorted(label for label, count in Counter(labels).items() if count > 1)
    return {label: {client for client, own in enumerate(labels) if own == label} for label in several}


def track_coalitions(assignments: Sequence[Sequence[int]]) -> list[list[int]]:
    """Renumber coalitions [R][N] so that each keeps its number over rounds.

    The last round keeps its numbers, as in other figures of that round. Going backwards, a round's coalitions are
    matched one to one with those of later rounds, in their nearest form, so that most clients keep their coalition; of
    equal matches the next round's is taken. Coalitions without a match get a new number. Single clients are not
    matched: their numbers differ between rounds.
    """
    if not assignments:
        return []
    from scipy.optimize import linear_sum_assignment

    tracked = [list(assignments[-1])]
    used = set(assignments[-1])
    known = coalitions(assignments[-1])
    for labels in reversed(assignments[:-1]):
        own, near = coalitions(labels), set(tracked[-1])
        # Numbers of common clients; being near decides between equal ones, as it adds less than one client.
        overlap = np.array(
            [
                [len(members & other) * (len(labels) + 1) + (number in near) for number, other in known.items()]
                for members in own.values()
            ]
        ).reshape(len(own), len(known))
        pairs = zip(*linear_sum_assignment(overlap, maximize=True), strict=True)
        matched = {list(own)[i]: list(known)[j] for i, j in pairs if overlap[i, j] > len(labels)}
        free = (number for number in itertools.count() if number not in used)
        matched |= {label: next(free) for label in sorted(own.keys() - matched.keys())}
        known |= {matched[label]: members for label, members in own.items()}
        used.update(matched.values())
        free = (number for number in itertools.count() if number not in used)
        matched |= {label: next(free) for label in sorted(set(labels) - matched.keys())}
        tracked.append([matched[label] for label in labels])
    return tracked[::-1]


def _place_merges(
    merges: Sequence[MergeStep], labels: Sequence[int]
) -> tuple[list[int], list[tuple[tuple[float, int], tuple[float, int], int]]]:
    """Order of the leaves; for each merge the (place, height) of both branches and a client below it."""
    # Group -> its leaves from left to right.
    groups: dict[frozenset[int], list[int]] = {frozenset([client]): [client] for client in range(len(labels))}
    for first, second, _ in merges:
        left, right = sorted((groups.pop(frozenset(first)), groups.pop(frozenset(second))), key=min)
        groups[frozenset(left + right)] = left + right
    order = [client for leaves in sorted(groups.values(), key=lambda leaves: labels[leaves[0]]) for client in leaves]
    places = {frozenset([client]): (float(place), 0) for place, client in enumerate(order)}
    joints = []
    for step, (first, second, _) in enumerate(merges, start=1):
        one, two = sorted((places[frozenset(first)], places[frozenset(second)]))
        joints.append((one, two, first[0]))
        places[frozenset(first) | frozenset(second)] = ((one[0] + two[0]) / 2, step)
    return order, joints


def _text_colors(labels: Sequence[int]) -> list[ColorType]:
    several, colors = coalitions(labels), coalition_colors(labels)
    return [colors[label] if label in several else "0.35" for label in labels]


def _drawable(values: Sequence[float]) -> np.ndarray:
    return np.where(np.isfinite(values), values, np.nan)


def _dot(face: ColorType, edge: ColorType, label: str) -> Line2D:
    return Line2D([], [], ls="", marker="o", ms=6, markerfacecolor=face, markeredgecolor=edge, label=label)


def _legend(axes: Axes, handles: Iterable[Artist], alone: bool, most: int = _MOST_NAMED) -> None:
    canvas.legend_beside(axes, handles, most, [Patch(color=_ALONE, label="alone")] if alone else [])
