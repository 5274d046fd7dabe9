"""Figures of tiers and tokens in PI-FL (Khan et al. 2023, https://arxiv.org/abs/2304.07514), a colour per tier."""

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike

from lightning_fl.callbacks.figures.plots import canvas
from lightning_fl.functional.tokens import UNITS_PER_TOKEN, Transaction
from lightning_fl.runtime.drawing import plot_distribution

#: Kind of transaction -> label and colour, none of which is a tier's.
_FLOWS = {
    "bid": ("bids", "#4c5b7a"),
    "reward": ("rewards", "#2a9d8f"),
    "reimbursement": ("reimbursements", "#e9c46a"),
    "refund": ("refunds", "#b58fd0"),
}
#: Height of a cell of the membership figure, divisible among two, three and four tiers.
_LINES = 12
_MOST_TIERS = 12


def draw_balances(
    rounds: Sequence[int], balances: Sequence[Mapping[int, float]], names: Sequence[str], *, title: str
) -> Figure:
    """Draw balances (client -> tokens, in each round): a line per client, their mean, and their sum below.

    Of more than 12 clients the six with the largest and the six with the smallest final balance are coloured and named.
    """
    table = np.array([[of_round.get(client, np.nan) for client in range(len(names))] for of_round in balances])
    known = np.isfinite(table)
    last = [table[known[:, client], client][-1] if known[:, client].any() else np.nan for client in range(len(names))]
    order = sorted(np.flatnonzero(known.any(0)).tolist(), key=lambda client: (-last[client], client))
    named = {client: number for number, client in enumerate(canvas.both_ends(order))}
    figure = canvas.make_figure(title, (8.0, 5.6))
    lines, total = figure.subplots(2, 1, sharex=True, height_ratios=[4, 1])
    canvas.client_lines(lines, rounds, table, order, named, names, 1.1)
    marker = "." if len(rounds) == 1 else ""
    present = known.sum(1)
    means = np.where(present > 0, np.nansum(table, 1) / np.maximum(present, 1), np.nan)
    lines.plot(rounds, means, color="black", linewidth=2.0, linestyle="--", marker=marker, label="mean", zorder=3)
    lines.set_ylabel("balance (tokens)")
    canvas.legend_beside(lines)
    sums = np.nansum(table, 1)
    total.plot(rounds, sums, color="black", linewidth=1.5, marker=marker)
    total.set(ylim=(0, 1.15 * max(float(sums.max()), 1e-9)), ylabel="all clients\n(tokens)")
    canvas.round_axis(total)
    canvas.hide_spines(lines, total)
    return figure


def draw_payments(transactions: Sequence[Transaction], *, title: str) -> Figure:
    """Draw payments into each tier's pool (above zero) and out of it (below) in tokens, of at most 12 tiers."""
    flows: dict[int, dict[str, Counter[int]]] = {}
    for one in transactions:
        if one.tier is None:
            continue
        of_kind = flows.setdefault(one.tier, {}).setdefault(one.kind, Counter())
        of_kind[one.round] += one.amount if one.recipient == "pool" else -one.amount
    kinds = {kind for of_tier in flows.values() for kind in of_tier}
    volumes = {tier: sum(abs(units) for of in kinds.values() for units in of.values()) for tier, kinds in flows.items()}
    tiers = sorted(sorted(flows, key=lambda tier: (-volumes[tier], tier))[:_MOST_TIERS])
    rounds = sorted({number for tier in tiers for of in flows[tier].values() for number in of})
    span = list(range(rounds[0], rounds[-1] + 1))
    figure = canvas.make_figure(title, (min(6.5 + 0.06 * len(span), 12.0), min(1.6 + 1.7 * len(tiers), 16.0)))
    panels = figure.subplots(len(tiers), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
    colors = canvas.palette(max(flows) + 1)
    for axes, tier in zip(panels, tiers, strict=True):
        heights = {True: np.zeros(len(span)), False: np.zeros(len(span))}
        for kind, (_, color) in _FLOWS.items():
            if kind not in flows[tier]:
                continue
            values = np.array([flows[tier][kind][number] / UNITS_PER_TOKEN for number in span])
            above = bool((values >= 0).all())
            axes.bar(span, values, width=0.8 if len(span) <= 60 else 1.0, bottom=heights[above], color=color)
            heights[above] = heights[above] + values
        axes.axhline(0, color="black", linewidth=0.8)
        axes.set_ylabel(f"tier {tier}", color=colors[tier], weight="bold")
        axes.yaxis.set_major_locator(MaxNLocator(4))
    canvas.round_axis(panels[-1])
    canvas.hide_spines(*panels)
    figure.supylabel("tokens into (+) and out of (-) the pool", fontsize=9)
    handles = [Patch(color=color, label=label) for kind, (label, color) in _FLOWS.items() if kind in kinds]
    if len(tiers) < len(flows):
        handles.append(Patch(color="none", label=f"{len(flows) - len(tiers)} tiers more"))
    canvas.legend_beside(panels[0], handles)
    return figure


def draw_tier_contributions(cumulated: ArrayLike, names: Sequence[str], *, title: str, label: str) -> Figure:
    """Draw contributions [N, K] as a heat map, clients by their main tier; NaN if one never trained a tier."""
    values = np.asarray(cumulated, dtype=float)
    count, num_tiers = values.shape
    known = np.nan_to_num(values, nan=-np.inf)
    best = np.where(np.isfinite(known.max(1)), known.argmax(1), num_tiers)  # clients without a tier come last
    order = np.lexsort((-known.max(1), best)).tolist()
    finite = values[np.isfinite(values)]
    highest = float(np.abs(finite).max()) if len(finite) and np.abs(finite).max() > 0 else 1.0
    scale = {"vmin": -highest, "vmax": highest, "aspect": "auto", "interpolation": "nearest"}
    size = (min(4.4 + 0.5 * num_tiers, 12.0), min(2.2 + 0.2 * count, 14.0))
    figure, axes = canvas.heat_map(values[order], title, size, label, shrink=1.0, cmap="RdBu", **scale)
    axes.set_xticks(range(num_tiers), [str(tier) for tier in range(num_tiers)])
    axes.set(facecolor="0.9", ylabel=canvas.name_clients(axes, "y", order, names))
    axes.set_xlabel("tier" if len(finite) == values.size else "tier (grey: never trained it)")
    canvas.write_values(axes, values[order], np.abs(values[order]) > 0.6 * highest, ".2g")
    return figure


def draw_tier_membership(
    rounds: Sequence[int],
    cohorts: Sequence[Mapping[int, Mapping[str, Sequence[int]]]],
    names: Sequence[str],
    *,
    title: str,
) -> Figure:
    """Who trained which tier: a row per client, a column per round, a colour per tier, lighter if drawn at random.

    The cell of a client in several tiers is shared by their colours; it is blank where the client was in none. Clients
    that were mostly in the same tier are side by side.
    """
    count = len(names)
    tiers = sorted({tier for of_round in cohorts for tier in of_round})
    colors = dict(enumerate(canvas.palette(max(tiers, default=-1) + 1)))
    shades = {
        "best": {tier: np.array(colors[tier]) for tier in tiers},
        "random": {tier: 0.4 * np.array(colors[tier]) + 0.6 for tier in tiers},
    }
    turns = np.zeros((count, max(tiers, default=0) + 1), dtype=int)
    cells: dict[tuple[int, int], list[np.ndarray]] = {}
    for column, of_round in enumerate(cohorts):
        for tier in sorted(of_round):
            for how, shade in shades.items():
                for client in of_round[tier].get(how, ()):
                    turns[client, tier] += 1
                    cells.setdefault((client, column), []).append(shade[tier])

    main = np.where(turns.any(1), turns.argmax(1), len(colors))
    order = np.lexsort((-turns.max(1), main)).tolist()  # by main tier, then most turns in it
    row_of = {client: row for row, client in enumerate(order)}
    image = np.ones((count * _LINES, len(rounds), 3))
    for (client, column), of_cell in cells.items():
        for line in range(_LINES):
            image[row_of[client] * _LINES + line, column] = of_cell[line * len(of_cell) // _LINES]
    figure = canvas.make_figure(title, (min(3.6 + 0.28 * len(rounds), 13.0), min(2.2 + 0.19 * count, 13.0)))
    axes = figure.add_subplot()
    axes.imshow(image, aspect="auto", interpolation="nearest", extent=(-0.5, len(rounds) - 0.5, count - 0.5, -0.5))
    canvas.name_rounds(axes, rounds, order, names)
    last = []
    if any(members.get("random") for of_round in cohorts for members in of_round.values()):
        last.append(Patch(color=tuple(0.4 * np.array(to_rgb("0.3")) + 0.6), label="lighter: drawn\nat random"))
    last.append(Patch(facecolor="white", edgecolor="0.6", label="in no tier"))
    canvas.legend_beside(axes, [Patch(color=colors[tier], label=f"tier {tier}") for tier in tiers], _MOST_TIERS, last)
    return figure


def draw_cdf(series: Mapping[str, Sequence[float]], *, quantity: str, title: str) -> Figure:
    """Draw the cumulative distribution of finite values over clients, a line per series, with means in the legend."""
    finite = {name: np.array([v for v in values if np.isfinite(v)], dtype=float) for name, values in series.items()}
    finite = {name: values for name, values in finite.items() if len(values)}
    figure = canvas.make_figure(title, (6.8, 4.4))
    axes = figure.add_subplot()
    shown = list(finite.items())[: len(canvas.PALETTE)]
    for number, ((name, values), color) in enumerate(zip(shown, canvas.PALETTE, strict=False)):
        label = f"{name} (mean {values.mean():.3g})"
        plot_distribution(axes, values, color, label=label, **({} if number else {"linewidth": 2.4, "zorder": 4}))
    if len(shown) < len(finite):
        axes.plot([], [], color="none", label=f"{len(finite) - len(shown)} more")
    axes.grid(color="0.92")
    axes.set(xlabel=quantity, ylabel="share of clients with at most this", axisbelow=True)
    canvas.legend_beside(axes)
    canvas.hide_spines(axes)
    return figure
