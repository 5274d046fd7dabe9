"""What holds of every drawing function: titles, axes with labels, the source of the data, and what it refuses."""

import math
import sys
import warnings

import pytest
import torch
from drawn import names_of

from lightning_fl.callbacks.figures.graph import draw_graph
from lightning_fl.callbacks.figures.plots.classification import draw_classification
from lightning_fl.callbacks.figures.plots.coalitions import draw_distances, draw_gains, draw_merge_tree, draw_partition
from lightning_fl.callbacks.figures.plots.run import (
    draw_client_curves,
    draw_contributions,
    draw_learning_curves,
    draw_matrix,
    draw_parity,
)
from lightning_fl.callbacks.figures.plots.tiers import (
    draw_balances,
    draw_cdf,
    draw_payments,
    draw_tier_contributions,
    draw_tier_membership,
)
from lightning_fl.core.errors import ConfigurationError
from lightning_fl.data.source import STAND_IN_LABEL
from lightning_fl.functional.tokens import Transaction, to_units


def labels_of(count):
    return [client // 3 for client in range(count)]


def values_of(count):
    return {client: float(client) for client in range(count)}


def points_of(count):
    return {client: (torch.tensor([0.2, 0.9]).double(), torch.tensor([0.0, 1.0]).double()) for client in range(count)}


#: Name -> the figure of some clients, with the words that all take.
FIGURES = {
    "matrix": lambda n, title, source: draw_matrix(torch.ones(n, n) / n, names_of(n), title, source),
    "curves": lambda n, **words: draw_client_curves([1, 2], torch.ones(2, n), names_of(n), ylabel="y", **words),
    "contributions": lambda n, **words: draw_contributions([2], torch.ones(1, n), names_of(n), ylabel="y", **words),
    "learning curves": lambda n, title, source: draw_learning_curves(
        {title: {client: ([1, 2], [3.0, 2.0]) for client in range(n)}},
        {title: ([1, 2], [3.0, 3.0])},
        {title: ([1, 2], [3.0, 4.0])},
        source,
    ),
    "parity": lambda n, title, source: draw_parity(points_of(n), names_of(n), quantity=title, unit="m", source=source),
    "graph": lambda n, title, source: draw_graph([1], [{client: [] for client in range(n)}], {}, names_of(n), source),
    "classification": lambda n, title, source: draw_classification(
        "roc", {title: points_of(n)}, names_of(n), source=source
    ),
    "distances": lambda n, title, source: draw_distances(torch.ones(n, n), labels_of(n), names_of(n), title, source),
    "merge tree": lambda n, title, source: draw_merge_tree([], labels_of(n), names_of(n), title, source),
    "partition": lambda n, title, source: draw_partition([1], [labels_of(n)], names_of(n), title, source),
    "gains": lambda n, **words: draw_gains(
        values_of(n),
        dict.fromkeys(range(n), 3.0),
        names_of(n),
        metric="val/loss",
        higher_is_better=False,
        labels=labels_of(n),
        **words,
    ),
    "balances": lambda n, **words: draw_balances([1, 2], [values_of(n)] * 2, names_of(n), **words),
    "payments": lambda n, **words: draw_payments(
        [Transaction(1, "bid", tier, 0, "pool", to_units(1)) for tier in range(n)], **words
    ),
    "tier contributions": lambda n, **words: draw_tier_contributions(
        torch.ones(n, 2), names_of(n), label="psi", **words
    ),
    "membership": lambda n, **words: draw_tier_membership([1], [{0: {"best": [0]}}], names_of(n), **words),
    "cdf": lambda n, **words: draw_cdf({"personal": list(range(n))}, quantity="accuracy", **words),
}
#: Titles of their own; the others begin with the given one.
OWN_TITLES = {"learning curves", "graph", "classification"}


@pytest.mark.slow
@pytest.mark.parametrize(("source", "note"), [("stand-in", STAND_IN_LABEL), ("measured", "data: measured")])
@pytest.mark.parametrize("count", [1, 2, 20, 200])
@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_draws_without_a_warning(name, count, source, note):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        figure = FIGURES[name](count, title="title", source=source)
        figure.draw_without_rendering()
    assert figure.get_supxlabel() == note
    assert name in OWN_TITLES or figure.get_suptitle().startswith("title")
    assert any(axes.get_xlabel() or axes.get_ylabel() for axes in figure.axes)
    if "matplotlib.pyplot" in sys.modules:
        assert sys.modules["matplotlib.pyplot"].get_fignums() == []


def distances(*shape, labels):
    return lambda: draw_distances(torch.zeros(*shape), [0] * labels, names_of(3), "title", "measured")


def tree(merges, labels=(0, 0, 0)):
    return lambda: draw_merge_tree(merges, labels, names_of(3), "title", "measured")


def partition(rounds, assignments):
    return lambda: draw_partition(rounds, assignments, names_of(3), "title", "measured")


WORDS = {"title": "title", "source": "measured"}


@pytest.mark.parametrize(
    ("draw", "name"),
    [
        (distances(2, 3, labels=3), r"distances of shape \[2, 3\], 3 labels"),
        (distances(3, 3, labels=2), r"distances of shape \[3, 3\], 2 labels"),
        (distances(2, 2, labels=3), r"distances of shape \[2, 2\], 3 labels"),
        (tree([((0, 1), (2,), 1.0)]), r"merge 1 of \[0, 1\] and \[2\]"),
        (tree([((0,), (0,), 1.0)]), r"merge 1 of \[0\] and \[0\]"),
        (tree([((0,), (3,), 1.0)]), r"merge 1 of \[0\] and \[3\]"),
        (tree([((0,), (1,), 1.0), ((1,), (2,), 1.0)]), r"merge 2 of \[1\] and \[2\]"),
        (tree([((0,), (1,), 1.0)], [0, 1, 2]), r"merge 1 of \[0\] and \[1\].*labels"),
        (tree([], [0, 1]), "2 labels for 3 names"),
        (partition([], []), "0 rounds, "),
        (partition([1], []), "1 rounds, "),
        (partition([1, 2], [[0, 0, 0]]), "2 rounds, "),
        (partition([1, 2], [[0, 0, 0], [0, 0]]), "2 rounds, "),
        (
            lambda: draw_gains({0: 1.0}, {1: 1.0}, names_of(1), metric="test/acc", higher_is_better=True, **WORDS),
            "values and reference of test/acc: no client has both",
        ),
        (lambda: draw_balances([], [], names_of(1), **WORDS), "0 rounds, 0 balances"),
        (lambda: draw_balances([1, 2], [{0: 1.0}], names_of(1), **WORDS), "2 rounds, 1 balances"),
        (lambda: draw_payments([], **WORDS), "transactions"),
        *[
            (
                lambda shape=shape: draw_tier_contributions(torch.zeros(shape), names_of(3), label="psi", **WORDS),
                "cumulated of shape",
            )
            for shape in ((3,), (2, 2), (3, 0))
        ],
        (lambda: draw_tier_membership([], [], names_of(2), **WORDS), "0 rounds, 0 cohorts"),
        (lambda: draw_tier_membership([1, 2], [{}], names_of(2), **WORDS), "2 rounds, 1 cohorts"),
        (lambda: draw_cdf({"personal": [math.nan]}, quantity="accuracy", **WORDS), "no client has a value of accuracy"),
    ],
)
def test_what_cannot_be_drawn(draw, name):
    with pytest.raises(ConfigurationError, match=name):
        draw()
