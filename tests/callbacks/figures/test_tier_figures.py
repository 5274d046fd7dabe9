import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from corners import SIZES, fit
from drawn import legend_of, names_of, texts_of
from matplotlib.colors import same_color

from lightning_fl.callbacks import Callback, ShapleyRewards, TierBidding, TierFigures, Tokens
from lightning_fl.callbacks.figures.plots.canvas import palette
from lightning_fl.callbacks.figures.plots.tiers import (
    draw_balances,
    draw_cdf,
    draw_payments,
    draw_tier_contributions,
    draw_tier_membership,
)
from lightning_fl.functional.tokens import UNITS_PER_TOKEN, Transaction, to_units

WORDS = {"title": "title"}
BLUE, ORANGE = palette(2)


class TestBalances:
    def test_lines_mean_and_sum(self):
        balances = [{0: 10.0, 1: 10.0}, {0: 12.0, 1: 8.0}, {0: 12.0, 1: 8.0, 2: 5.0}]  # 2 comes
        lines, total = draw_balances([1, 2, 3], balances, names_of(3), **WORDS).axes
        drawn = {line.get_label(): line.get_ydata() for line in lines.lines}
        np.testing.assert_array_equal(drawn["silo 1"], [10, 8, 8])
        np.testing.assert_array_equal(drawn["silo 2"], [math.nan, math.nan, 5])
        np.testing.assert_allclose(drawn["mean"], [10, 10, 25 / 3])
        assert legend_of(lines) == ["silo 0", "silo 1", "silo 2", "mean"]  # who has most at the end comes first
        np.testing.assert_allclose(total.lines[0].get_ydata(), [20, 20, 25])
        assert total.get_ylim()[0] == 0

    def test_of_many_the_first_and_the_last_are_named(self):
        balances = [{client: float(client) for client in range(100)}] * 4
        lines, _ = draw_balances(range(4), balances, names_of(100), **WORDS).axes
        richest, poorest = ([f"silo {i}" for i in range(start, start - 6, -1)] for start in (99, 5))
        assert legend_of(lines) == [*richest, *poorest, "88 more", "mean"]

    def test_one_round_is_seen_by_marks_and_a_client_without_an_account_has_no_line(self):
        lines, _ = draw_balances([1], [{0: 1.0}], names_of(2), **WORDS).axes
        assert legend_of(lines) == ["silo 0", "mean"]
        assert all(line.get_marker() in {".", "o"} for line in lines.lines)


class TestPayments:
    paid = (
        Transaction(1, "bid", 0, 0, "pool", to_units(6)),
        Transaction(1, "bid", 0, 1, "pool", to_units(4)),
        Transaction(1, "reimbursement", 0, "pool", 0, to_units(1)),
        Transaction(1, "reimbursement", 0, "pool", 1, to_units(1)),
        Transaction(1, "reward", 0, "pool", 2, to_units(8)),
        Transaction(3, "bid", 2, 2, "pool", to_units(5)),
        Transaction(3, "refund", 2, "pool", 2, to_units(5)),
    )

    def bars(self, axes):
        return [
            (patch.get_x() + patch.get_width() / 2, patch.get_y(), patch.get_height())
            for patch in axes.patches
            if patch.get_height()
        ]

    def test_in_above_and_out_below(self):
        first, second = draw_payments(self.paid, **WORDS).axes
        assert (first.get_ylabel(), second.get_ylabel()) == ("tier 0", "tier 2")
        # ten in; eight are rewards and two go back, one bar on the other
        np.testing.assert_allclose(self.bars(first), [(1, 0, 10), (1, 0, -8), (1, -8, -2)])
        np.testing.assert_allclose(self.bars(second), [(3, 0, 5), (3, 0, -5)])
        assert legend_of(first) == ["bids", "rewards", "reimbursements", "refunds"]

    def test_of_many_tiers_those_with_the_largest_payments(self):
        paid = [Transaction(1, "bid", tier, 0, "pool", to_units(tier + 1)) for tier in range(15)]
        axes = draw_payments(paid, **WORDS).axes
        assert [one.get_ylabel() for one in axes] == [f"tier {tier}" for tier in range(3, 15)]
        assert legend_of(axes[0])[-1] == "3 tiers more"


class TestContributions:
    def test_clients_by_the_tier_they_gave_most_to(self):
        values = torch.tensor([[0.1, 0.5], [math.nan, math.nan], [0.9, -0.2], [0.3, math.nan]])
        axes, bar = draw_tier_contributions(values, names_of(4), label="psi", **WORDS).axes
        order = [2, 3, 0, 1]
        np.testing.assert_allclose(axes.images[0].get_array().filled(math.nan), values[order], rtol=1e-6)
        assert texts_of(axes.get_yticklabels()) == [f"silo {i}" for i in order]
        assert axes.images[0].get_clim() == pytest.approx((-0.9, 0.9))
        assert {text.get_text() for text in axes.texts} == {"0.9", "-0.2", "0.3", "0.1", "0.5"}
        assert (axes.get_xlabel(), bar.get_ylabel()) == ("tier (grey: never trained it)", "psi")
        zeros = draw_tier_contributions(torch.zeros(2, 1), names_of(2), label="psi", **WORDS).axes[0]
        assert (zeros.images[0].get_clim(), zeros.get_xlabel()) == ((-1, 1), "tier")


class TestMembership:
    cohorts = (
        {0: {"best": [0], "random": [1]}, 1: {"best": [0, 2], "random": []}},
        {0: {"best": [0], "random": []}, 1: {"best": [2], "random": [1]}},
    )

    def cell(self, axes, row, column):
        lines = axes.images[0].get_array()[row * 12 : (row + 1) * 12, column]
        return [lines[0].tolist(), lines[-1].tolist()]

    def lighter(self, color):
        return pytest.approx([0.4 * part + 0.6 for part in color])

    def test_colours(self):
        axes = draw_tier_membership([1, 2], self.cohorts, names_of(4), **WORDS).axes[0]
        # 0 twice in tier 0; 1 once in each, the first counts; 2 in tier 1; 3 in none
        assert texts_of(axes.get_yticklabels()) == [f"silo {i}" for i in range(4)]
        assert self.cell(axes, 0, 0) == [pytest.approx(BLUE), pytest.approx(ORANGE)]  # shared
        assert self.cell(axes, 0, 1) == [pytest.approx(BLUE)] * 2
        assert self.cell(axes, 1, 0) == [self.lighter(BLUE)] * 2
        assert self.cell(axes, 1, 1) == [self.lighter(ORANGE)] * 2
        assert self.cell(axes, 2, 0) == [pytest.approx(ORANGE)] * 2
        assert self.cell(axes, 3, 0) == [[1, 1, 1]] * 2
        assert legend_of(axes) == ["tier 0", "tier 1", "lighter: drawn\nat random", "in no tier"]

    def test_rows_by_the_tier_and_how_often(self):
        cohorts = [{0: {"best": [3]}, 1: {"best": [0, 1]}}, {0: {"best": [2, 3]}, 1: {"best": [1]}}]
        axes = draw_tier_membership([1, 2], cohorts, names_of(4), **WORDS).axes[0]
        assert texts_of(axes.get_yticklabels()) == ["silo 3", "silo 2", "silo 1", "silo 0"]
        assert legend_of(axes) == ["tier 0", "tier 1", "in no tier"]
        assert same_color(axes.get_legend().legend_handles[0].get_facecolor(), BLUE)

    def test_many_tiers_and_rounds(self):
        cohorts = [{tier: {"best": [tier]} for tier in range(20)}] * 200
        axes = draw_tier_membership(range(1, 201), cohorts, names_of(100), **WORDS).axes[0]
        assert legend_of(axes)[-2:] == ["8 more", "in no tier"]
        assert len(axes.get_xticklabels()) == 25
        assert axes.get_ylabel() == "client (1 in 2 is named)"
        assert legend_of(draw_tier_membership([1], [{}], names_of(2), **WORDS).axes[0]) == ["in no tier"]


class TestCdf:
    def test_steps_and_means(self):
        series = {"personal": [0.5, 1.0, math.nan], "tier 0": [0.25, math.inf], "nobody": [math.nan]}
        axes = draw_cdf(series, quantity="accuracy", **WORDS).axes[0]
        assert legend_of(axes) == ["personal (mean 0.75)", "tier 0 (mean 0.25)"]
        first, second = axes.lines
        assert first.get_xdata()[1:].tolist() == [0.5, 1.0]
        assert first.get_ydata()[-2:].tolist() == [0.5, 1.0]
        assert first.get_linewidth() > second.get_linewidth()
        assert axes.get_xlabel() == "accuracy"

    def test_more_series_than_colours(self):
        axes = draw_cdf({str(i): [i] for i in range(15)}, quantity="accuracy", **WORDS).axes[0]
        assert legend_of(axes)[-1] == "3 more"


class TestCallback:
    @pytest.mark.slow
    def test_draws_what_is_there(self):
        drawn = []

        class Record(Callback):
            def setup(self, trainer, stage):
                trainer.run_log.log_figure = lambda name, figure, step: drawn.append((name, step, figure))

        tiers = TierBidding(num_tiers=2, num_best=1, num_samples=None, tokens=Tokens(initial_balance=5))
        fit(Record(), tiers, ShapleyRewards(), TierFigures())
        names = [
            *("tier_contributions", "tier_membership", "tier_importance", "token_balances", "token_payments"),
            "personal_acc",
        ]
        assert [(name, step) for name, step, _ in drawn] == [(name, 3) for name in names]
        lines, total = drawn[3][2].axes  # the balances at the end
        shown = {line.get_label(): line.get_ydata() for line in lines.lines}
        for client in range(len(SIZES)):
            units = [one.balances[client] for one in tiers.rounds]
            np.testing.assert_allclose(shown[f"client_{client}"], np.array(units) / UNITS_PER_TOKEN)
        np.testing.assert_allclose(total.lines[0].get_ydata(), 5 * len(SIZES))

    def test_contributions_to_all_models_that_were_valued(self):
        rewards = ShapleyRewards()
        rewards.rounds, rewards.by_model = [1, 2], [{0: {0: 1.0}, 2: {1: 2.0}}, {0: {0: 1.0, 1: 3.0}}]
        federation = SimpleNamespace(current_round=2, collaboration=SimpleNamespace(num_models=1))
        run = SimpleNamespace(num_clients=2, client_names=names_of(2), federation=federation)
        axes = dict(rewards.figures(run, "fit"))["tier_contributions"]().axes[0]
        shown = np.ma.filled(axes.images[0].get_array(), math.nan)
        # client 1, whose best tier is 0, comes first
        np.testing.assert_array_equal(shown, [[3.0, math.nan, 2.0], [2.0, math.nan, math.nan]])
