"""Every drawing function has titles, axes with labels, the source of the data, and draws without a warning."""

import sys
import warnings

import pytest
import torch
from drawn import names_of

from lightning_fl.callbacks.figures.plots.classification import draw_classification
from lightning_fl.callbacks.figures.plots.coalitions import draw_distances, draw_gains, draw_merge_tree, draw_partition
from lightning_fl.callbacks.figures.plots.run import (
    draw_client_curves,
    draw_contributions,
    draw_graph,
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
from lightning_fl.runtime.drawing import show_source


def labels_of(count):
    return [client // 3 for client in range(count)]


def values_of(count):
    return {client: float(client) for client in range(count)}


def points_of(count):
    return {client: (torch.tensor([0.2, 0.9]).double(), torch.tensor([0.0, 1.0]).double()) for client in range(count)}


#: Name -> the figure of some clients, with the words that all take.
FIGURES = {
    "matrix": lambda n, title: draw_matrix(torch.ones(n, n) / n, names_of(n), title),
    "curves": lambda n, **words: draw_client_curves([1, 2], torch.ones(2, n), names_of(n), ylabel="y", **words),
    "contributions": lambda n, **words: draw_contributions([2], torch.ones(1, n), names_of(n), ylabel="y", **words),
    "learning curves": lambda n, title: draw_learning_curves(
        {title: {1: {"mean": 3.0, "worst": 4.0, "clients": values_of(n)}}}
    ),
    "parity": lambda n, title: draw_parity(points_of(n), names_of(n), quantity=title, unit="m"),
    "graph": lambda n, title: draw_graph([1], [{client: [] for client in range(n)}], {}, names_of(n)),
    "classification": lambda n, title: draw_classification("roc", {title: points_of(n)}, names_of(n)),
    "distances": lambda n, title: draw_distances(torch.ones(n, n), labels_of(n), names_of(n), title),
    "merge tree": lambda n, title: draw_merge_tree([], labels_of(n), names_of(n), title),
    "partition": lambda n, title: draw_partition([1], [labels_of(n)], names_of(n), title),
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
@pytest.mark.parametrize("count", [1, 2, 20, 200])
@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_draws_without_a_warning(name, count):
    """Drawn with the longer one of the two notes."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        figure = FIGURES[name](count, title="title")
        for source, note in (("measured", "data: measured"), ("stand-in", STAND_IN_LABEL)):
            show_source(figure, [source])
            assert figure.get_supxlabel() == note
        figure.draw_without_rendering()
    assert name in OWN_TITLES or figure.get_suptitle().startswith("title")
    assert any(axes.get_xlabel() or axes.get_ylabel() for axes in figure.axes)
    if "matplotlib.pyplot" in sys.modules:
        assert sys.modules["matplotlib.pyplot"].get_fignums() == []


def test_clients_without_a_value_and_a_reference():
    with pytest.raises(ConfigurationError, match=r"test/acc"):
        draw_gains({0: 1.0}, {1: 1.0}, names_of(1), metric="test/acc", higher_is_better=True, title="title")
