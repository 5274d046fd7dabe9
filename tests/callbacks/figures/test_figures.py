import math

import numpy as np
import pytest
import torch
from drawn import legend_of, names_of, texts_of
from matplotlib.colors import same_color
from small_models import collate, molecule_model, molecules
from torch import nn
from torch.utils.data import TensorDataset

from lightning_fl.callbacks import (
    HCCT,
    Callback,
    CoalitionFigure,
    CollaborationFigure,
    ContributionFigure,
    Figures,
    GainFigure,
    GraphFigure,
    LearningCurves,
    LocalReference,
    ParityFigure,
    SamplingWeightsFigure,
    ShapleyRewards,
    TierFigures,
    UniformSampling,
)
from lightning_fl.callbacks.figures.held_out import present
from lightning_fl.callbacks.figures.plots.run import (
    draw_client_curves,
    draw_contributions,
    draw_learning_curves,
    draw_matrix,
    draw_parity,
)
from lightning_fl.callbacks.predictions import pair_outputs
from lightning_fl.core.cohort import Cohort
from lightning_fl.core.collaboration import Collaboration
from lightning_fl.core.errors import ConfigurationError

INPUTS = torch.tensor([1.0, -2.0, 3.0, -4.0])  # as in conftest
BOUNDS = [0.0, 1.0, 0.0, -1.0]  # of four molecules' targets


@pytest.fixture
def shown(monkeypatch):
    """The figures (name, figure, step) that runs log."""
    figures = []
    monkeypatch.setattr(
        "lightning_fl.runtime.run_log.RunLog.log_figure",
        lambda self, name, figure, step: figures.append((name, figure, step)),
    )
    return figures


class TestDrawing:
    matrix = torch.tensor([[0.5, 0.5, 0.0], [0.25, 0.25, 0.5], [0.0, 0.0, 1.0]], dtype=torch.float64)

    def test_matrix(self):
        axes, bar = draw_matrix(self.matrix, ["a", "b", "c"], "after round 4").axes
        np.testing.assert_array_equal(axes.images[0].get_array(), self.matrix.numpy())
        assert texts_of(axes.get_yticklabels()) == ["a", "b", "c"]
        assert bar.get_ylabel() == "weight"
        # A text's column is its x, its row its y.
        written = {text.get_position()[::-1]: text.get_text() for text in axes.texts}
        assert written == {(i, j): f"{self.matrix[i, j]:.2f}" for i in range(3) for j in range(3)}

    @pytest.mark.slow
    @pytest.mark.parametrize(("count", "values"), [(12, 144), (13, 0)])
    def test_values_are_written_into_small_matrices_only(self, count, values):
        axes = draw_matrix(torch.eye(count), names_of(count), "").axes[0]
        assert len(axes.texts) == values

    def test_curves(self):
        values = torch.rand(4, 3, dtype=torch.float64)
        figure = draw_client_curves(
            [0, 1, 2, 5], values, names_of(3), title="t", ylabel="y", reference=("third", 1 / 3)
        )
        axes = figure.axes[0]
        for client in range(3):
            np.testing.assert_array_equal(axes.lines[client].get_xdata(), [0, 1, 2, 5])
            np.testing.assert_array_equal(axes.lines[client].get_ydata(), values[:, client].numpy())
        assert legend_of(axes) == [*names_of(3), "third"]
        assert axes.lines[3].get_ydata() == [1 / 3, 1 / 3]

    def test_of_many_clients_the_highest_are_named(self):
        heights = torch.arange(30.0)[torch.randperm(30, generator=torch.Generator().manual_seed(0))]
        figure = draw_client_curves([0, 1], heights.expand(2, 30), names_of(30), title="t", ylabel="y")
        axes = figure.axes[0]
        highest = [client for client in range(30) if heights[client] >= 18]
        assert legend_of(axes) == [f"silo {client}" for client in highest] + ["18 more"]
        colors = [line.get_color() for line in axes.lines[:12]]
        assert not any(same_color(a, b) for i, a in enumerate(colors) for b in colors[:i])

    def test_parity(self):
        points = {
            0: (torch.tensor([1.0, 2.0]), torch.tensor([1.0, 5.0])),
            3: (torch.tensor([-1.0]), torch.tensor([1.0])),
        }
        figure = draw_parity(points, names_of(4), quantity="depth", unit="m")
        axes = figure.axes[0]
        assert figure.get_suptitle() == f"depth: RMSE {math.sqrt((0 + 9 + 4) / 3):.3g} m over all 3 samples"
        np.testing.assert_array_equal(axes.collections[0].get_offsets(), [[1, 1], [5, 2]])  # x measured, y predicted
        np.testing.assert_array_equal(axes.collections[1].get_offsets(), [[1, -1]])
        assert (axes.get_xlabel(), axes.get_ylabel()) == ("measured / m", "predicted / m")
        assert legend_of(axes) == [
            f"silo 0 (RMSE {math.sqrt(4.5):.3g})",
            "silo 3 (RMSE 2)",
            "predicted = measured",
        ]
        line = axes.lines[0]
        np.testing.assert_array_equal(line.get_xdata(), line.get_ydata())
        assert axes.get_xlim() == axes.get_ylim()

    def test_of_many_clients_the_worst_are_named(self):
        points = {client: (torch.tensor([float(client)]), torch.tensor([0.0])) for client in range(14)}
        axes = draw_parity(points, names_of(14), quantity="q", unit="").axes[0]
        expected = [f"silo {client} (RMSE {client})" for client in range(2, 14)]
        assert legend_of(axes) == [*expected, "2 more", "predicted = measured"]
        assert axes.get_xlabel() == "measured"

    def test_learning_curves(self):
        rounds = {
            1: {"mean": 3.0, "worst": 3.0, "clients": {0: 3.0}},
            2: {"mean": 3.0, "worst": 4.0, "clients": {0: 2.0, 1: 4.0}},
        }
        figure = draw_learning_curves({"loss": rounds})
        lines = {line.get_label(): line for line in figure.axes[0].lines}
        np.testing.assert_array_equal(figure.axes[0].lines[4].get_ydata(), [3, 4])
        np.testing.assert_array_equal(lines["mean over clients"].get_ydata(), [3, 3])
        np.testing.assert_array_equal(figure.axes[0].lines[1].get_xdata(), [2])
        assert figure.axes[0].get_ylabel() == "loss"


class Coalitions(Callback):
    """Sets the coalitions of the run."""

    def __init__(self, labels, sizes):
        self.collaboration = Collaboration.coalitions(labels, sizes)

    def on_fit_start(self, trainer):
        trainer.collaboration = self.collaboration


class TestCollaborationFigure:
    def test_draws_the_matrix_of_the_run(self, make_trainer, line_clients, line_module, shown):
        trainer = make_trainer(Coalitions([0, 1, 0], [1, 1, 3]), CollaborationFigure(), max_rounds=4)
        trainer.fit(line_module(), line_clients([1.0, 2.0, 3.0]))
        assert [(name, step) for name, _, step in shown] == [("collaboration", 4)]
        expected = [[0.25, 0, 0.75], [0, 1, 0], [0.25, 0, 0.75]]
        np.testing.assert_allclose(shown[-1][1].axes[0].images[0].get_array(), expected)
        assert shown[0][1].get_suptitle() == "Collaboration after round 4"

    def test_one_average_for_all_is_not_drawn(self, make_trainer, line_clients, line_module, shown):
        trainer = make_trainer(CollaborationFigure(), max_rounds=1)
        trainer.fit(line_module(), line_clients([1.0, 2.0]))
        assert shown == []
        assert not (trainer.run_log.directory / "figures").exists()

    @pytest.mark.parametrize(
        ("figure", "labels", "times"),
        [(CollaborationFigure, [0, 1], 1), (Figures, [0, 0], 0), (LearningCurves, [0, 1], 0)],
    )
    def test_the_matrix_is_computed_where_it_is_drawn_only(
        self, make_trainer, line_clients, line_module, shown, monkeypatch, figure, labels, times
    ):
        computed, matrix = [], Collaboration.matrix.fget
        monkeypatch.setattr(Collaboration, "matrix", property(lambda self: computed.append(1) or matrix(self)))
        make_trainer(Coalitions(labels, [1, 1]), figure(), max_rounds=1).fit(line_module(), line_clients([1.0, 2.0]))
        assert len(computed) == times


class TestFigures:
    def test_one_that_fails_is_a_warning_and_the_run_ends_as_usual(
        self, make_trainer, line_clients, line_module, shown
    ):
        class Offers(Callback):
            def figures(self, trainer, stage):
                yield "first", lambda: draw_matrix(torch.eye(2), ["a", "b"], "")
                raise ValueError("no such luck")

        class FailsAtOnce(Callback):
            def figures(self, trainer, stage):
                raise KeyError("missing")

        trainer = make_trainer(Figures(), Offers(), FailsAtOnce(), max_rounds=1)
        with (
            pytest.warns(UserWarning, match="of Offers .*no such luck"),
            pytest.warns(UserWarning, match="of FailsAtOnce .*missing"),
        ):
            trainer.fit(line_module(), line_clients([1.0, 2.0]))
        assert [name for name, _, _ in shown] == ["learning_curves", "first"]
        assert (trainer.run_log.directory / "checkpoints" / "last.ckpt").is_file()
        assert (trainer.run_log.directory / "summary.json").is_file()

    def test_some_of_the_figures_are_those_with_their_names(self, make_trainer, line_clients, line_module, shown):
        class Offers(Callback):
            def figures(self, trainer, stage):
                for name in ("graph", "graphs", "gain", "gain_val"):
                    yield name, lambda: draw_matrix(torch.eye(2), ["a", "b"], "")

        class Two(Figures):
            only = ("graph", "gain_")

        make_trainer(Two(), Offers(), max_rounds=1).fit(line_module(), line_clients([1.0, 2.0]))
        assert [name for name, _, _ in shown] == ["graph", "gain_val"]


class Scripted(Callback):
    """Everybody takes part; after r rounds the weights are [1 + r, 1, 1] / (3 + r)."""

    role = "participation"

    def __init__(self):
        self.weights = torch.empty(0)

    @staticmethod
    def after(rounds: int) -> torch.Tensor:
        return torch.tensor([1.0 + rounds, 1.0, 1.0], dtype=torch.float64) / (3 + rounds)

    def on_round_start(self, trainer):
        self.weights = self.after(trainer.current_round)

    def select_clients(self, trainer):
        return Cohort.of(range(3))

    def on_aggregate_end(self, trainer):
        self.weights.copy_(self.after(trainer.current_round + 1))  # in place: a history must hold copies


class TestSamplingWeightsFigure:
    def test_history_is_what_was_sampled_with(self, make_trainer, line_clients, line_module, shown):
        figure = SamplingWeightsFigure()
        make_trainer(Scripted(), figure, max_rounds=4).fit(line_module(), line_clients([1.0, 2.0, 3.0]))
        assert figure.rounds == [0, 1, 2, 3, 4]
        assert torch.equal(figure.weights, torch.stack([Scripted.after(done) for done in range(5)]))
        assert [(name, step) for name, _, step in shown] == [("sampling_weights", 4)]
        lines = shown[-1][1].axes[0].lines
        np.testing.assert_array_equal(lines[0].get_ydata(), [Scripted.after(done)[0] for done in range(5)])
        assert lines[3].get_ydata() == [1 / 3, 1 / 3]

    def test_a_new_fit_forgets_the_last_one(self, make_trainer, line_clients, line_module, shown):
        figure = SamplingWeightsFigure()
        trainer = make_trainer(Scripted(), figure, max_rounds=2)
        for _ in range(2):
            trainer.fit(line_module(), line_clients([1.0, 2.0, 3.0]))
        assert figure.rounds == [0, 1, 2]

    def test_weights_of_others_than_all_clients_are_not_drawn(self, make_trainer, line_clients, line_module, shown):
        class OfCohort(Scripted):
            def on_aggregate_end(self, trainer):
                self.weights = torch.ones(trainer.current_round + 2)

        make_trainer(OfCohort(), Figures(), max_rounds=3).fit(line_module(), line_clients([1.0, 2.0, 3.0]))
        assert [name for name, _, _ in shown] == ["learning_curves"]


class TestContributionFigure:
    def test_lines_are_cumulated_and_bars_sorted(self, make_trainer, line_clients, line_module, shown):
        rewards, figure = ShapleyRewards(), ContributionFigure()
        make_trainer(figure, rewards, max_rounds=3).fit(line_module(), line_clients([1.0, 1.5, -1.0]))
        assert [(name, step) for name, _, step in shown] == [("contributions", 3)]
        lines, bars = shown[-1][1].axes
        order = sorted(range(3), key=lambda client: -rewards.cumulated[client])
        assert order[-1] == 2
        for line, client in zip(lines.lines, order, strict=False):
            steps = [values[client] for values in rewards.values]
            np.testing.assert_allclose(line.get_ydata(), np.cumsum(steps))
            np.testing.assert_array_equal(line.get_xdata(), [1, 2, 3])
        np.testing.assert_allclose([bar.get_width() for bar in bars.patches], [rewards.cumulated[i] for i in order])
        assert texts_of(bars.get_yticklabels()) == [f"client_{i}" for i in order]
        assert "first order, normalised" in shown[-1][1].get_suptitle()

    def test_of_many_clients_both_ends_are_named(self):
        totals = torch.arange(30.0)
        totals[7] = math.nan  # never took part
        figure = draw_contributions([2], totals[None], names_of(30), title="t", ylabel="y")
        lines, bars = figure.axes
        shown = [f"silo {i}" for i in (29, 28, 27, 26, 25, 24, 5, 4, 3, 2, 1, 0)]
        assert legend_of(lines) == [*shown, "17 more"]
        assert len(bars.patches) == 29


class TestGainFigure:
    def test_a_test_is_not_said_to_be_of_the_last_round(self, make_trainer, line_clients, line_module, shown):
        module, data = line_module(), line_clients([1.0, 2.0])
        trainer = make_trainer(LocalReference(), GainFigure(), max_rounds=2)
        trainer.fit(module, data)
        trainer.test(module, data)
        titles = {name: figure.get_suptitle().splitlines()[0] for name, figure, _ in shown}
        assert titles["gain_test"] == "Gain over local training, test"  # of the best round or the last
        assert titles.get("gain_val", "round 2").endswith("round 2")


class TestParityFigure:
    slopes = (1.0, 2.0, -3.0)

    def expected_rmse(self, weight: float) -> float:
        return math.sqrt(7.5 * sum((weight - slope) ** 2 for slope in self.slopes) / 3)

    def test_after_test(self, make_trainer, line_clients, line_module, shown):
        module, data = line_module(), line_clients(list(self.slopes))
        trainer = make_trainer(ParityFigure(), max_rounds=2)
        trainer.fit(module, data)
        assert not shown
        trainer.test(module, data)
        (name, figure, step) = shown[0]
        weight = module.weight.item()
        assert (name, step, len(shown)) == ("parity_test", 2, 1)
        assert figure.get_suptitle() == f"height: RMSE {self.expected_rmse(weight):.3g} m over all 12 samples"
        for client, slope in enumerate(self.slopes):
            offsets = figure.axes[0].collections[client].get_offsets()
            np.testing.assert_allclose(offsets[:, 0], slope * INPUTS)
            np.testing.assert_allclose(offsets[:, 1], weight * INPUTS, rtol=1e-6)

    def test_validation_data_once_at_the_end(self, make_trainer, line_clients, line_module, shown):
        module, data = line_module(), line_clients(list(self.slopes))
        trainer = make_trainer(ParityFigure(split="val"), max_rounds=3)
        trainer.fit(module, data)
        assert [(name, step) for name, _, step in shown] == [("parity_val", 3)]
        trainer.validate(module, data)
        assert len(shown) == 2

    def test_validation_data_after_a_fit_are_the_kept_models(self, make_trainer, line_clients, line_module, shown):
        class Diverges(line_module):
            def configure_optimizers(self):
                return torch.optim.SGD(self.parameters(), lr=0.2)  # doubles the distance from the best weight

        module, data = Diverges(), line_clients([1.0, 2.0])
        trainer = make_trainer(ParityFigure(split="val"), max_rounds=3)
        trainer.fit(module, data)
        for path in ("best", "last"):
            trainer.validate(module, data, ckpt_path=path)
        kept, best, last = (figure.get_suptitle() for _, figure, _ in shown)
        assert kept == best != last

    def test_bounds_are_no_measured_values(self, make_trainer, line_clients, shown):
        class Laboratories(line_clients):
            def client_data(self, client, split):
                graphs = molecules(4)
                for graph, bound in zip(graphs, BOUNDS, strict=True):
                    graph.y_bound = torch.tensor([[bound]])
                return graphs

        module = molecule_model(task="regression", num_targets=1, standardize_targets=False)
        make_trainer(ParityFigure()).test(module, Laboratories([1.0]))
        exact = [graph for graph, bound in zip(molecules(4), BOUNDS, strict=True) if not bound]
        with torch.no_grad():
            predicted = module.eval()(collate(exact)).flatten().tolist()
        measured = [graph.y.item() for graph in exact]
        offsets = shown[0][1].axes[0].collections[0].get_offsets()
        np.testing.assert_allclose(offsets, list(zip(measured, predicted, strict=True)), rtol=1e-5)

    def test_pictures_of_each_target_and_of_all_have_names_of_their_own(
        self, make_trainer, line_clients, line_module, shown
    ):
        class Two(line_clients):
            target_names = ("height", "width")

            def client_data(self, client, split):
                x = INPUTS.unsqueeze(1)
                return TensorDataset(x, torch.cat([x, 2 * x], 1))

        class Both(line_module):
            def forward(self, x):
                return super().forward(x).expand(-1, 2)

        figures = [ParityFigure(target=target) for target in (0, "width", None)]
        make_trainer(*figures).test(Both(), Two([1.0]))
        assert [name for name, _, _ in shown] == ["parity_test", "parity_test_1", "parity_test_all"]

    @pytest.mark.parametrize(
        ("prediction", "message"),
        [
            (lambda x: {"mean": x}, "predict_step returned a dict"),
            (
                lambda x: torch.cat([x, x], 1),
                r"predict_step returned shape \(4, 2\), the targets have \(4, 1\)",
            ),
            (lambda x: x / None, "TypeError: unsupported operand"),
        ],
    )
    def test_other_predictions_are_named_and_left(
        self, make_trainer, line_clients, line_module, shown, prediction, message
    ):
        class Other(line_module):
            def predict_step(self, batch):
                return prediction(batch[0])

        module, data = Other(), line_clients(list(self.slopes))
        with pytest.warns(UserWarning, match=message):
            metrics = make_trainer(ParityFigure()).test(module, data)
        assert not shown
        assert set(metrics) == {"test/rmse"}

    def test_no_measured_values(self, make_trainer, line_clients, line_module, shown):
        with pytest.warns(UserWarning, match="no client has test data with a measured value"):
            make_trainer(ParityFigure()).test(line_module(), line_clients([math.nan]))

    def test_pairs_leave_missing_targets_out(self):
        targets = torch.tensor([[1.0, 10.0], [math.nan, 20.0], [3.0, math.nan]])
        outputs = [torch.tensor([[1.5, 11.0], [2.5, 21.0]]), torch.tensor([[3.5, 31.0]])]
        predicted, measured = present({0: pair_outputs(outputs, targets)}, 0)[0]
        assert (predicted.tolist(), measured.tolist()) == ([1.5, 3.5], [1.0, 3.0])
        predicted, measured = present({0: pair_outputs(outputs, targets)}, 1)[0]
        assert (predicted.tolist(), measured.tolist()) == ([11.0, 21.0], [10.0, 20.0])

    def test_a_column_and_a_vector_are_the_same(self):
        predicted, measured = pair_outputs([torch.tensor([1.0, 2.0]), torch.tensor(3.0)], torch.ones(3, 1))
        assert (predicted.tolist(), measured.tolist()) == ([[1.0], [2.0], [3.0]], [[1.0]] * 3)

    def test_a_target_that_is_not_there(self):
        with pytest.raises(ConfigurationError, match="target=3"):
            ParityFigure(target=3)._chosen(["only"])


class TestLearningCurves:
    def test_history_is_what_the_trainer_measured(self, make_trainer, line_clients, line_module, shown):
        seen = []

        class Watch(Callback):
            def on_round_end(self, trainer):
                if trainer.evaluated_this_round:
                    seen.append((trainer.current_round, trainer.metrics["val"]["val/rmse"]))

        curves = LearningCurves()
        trainer = make_trainer(curves, Watch(), max_rounds=4, check_val_every_n_rounds=2)
        trainer.fit(line_module(), line_clients([1.0, 5.0]))
        assert list(curves.history["train/loss"]) == [1, 2, 3, 4]
        assert [done for done, _ in seen] == [2, 4]
        mean, worst = shown[0][1].axes[1].lines[-3:-1]  # before the line of the legend
        np.testing.assert_array_equal(mean.get_xdata(), [2, 4])
        np.testing.assert_array_equal(mean.get_ydata(), [metric.mean for _, metric in seen])
        np.testing.assert_array_equal(worst.get_ydata(), [metric.clients[1] for _, metric in seen])
        assert [panel.get_ylabel() for panel in shown[0][1].axes] == ["train/loss", "val/rmse"]


@pytest.mark.parametrize(
    ("callbacks", "name"),
    [
        ([SamplingWeightsFigure()], "SamplingWeightsFigure .*DROClientSampling"),
        ([SamplingWeightsFigure(), UniformSampling(cohort_size=1)], "SamplingWeightsFigure .*DROClientSampling"),
        ([ContributionFigure()], "ContributionFigure .*ShapleyRewards"),
        ([TierFigures()], "TierFigures .*TierBidding"),
        ([TierFigures(), ShapleyRewards()], "TierFigures .*TierBidding"),
        ([GraphFigure()], "GraphFigure .*CollaborationGraph"),
        ([CoalitionFigure()], "CoalitionFigure"),
        ([GainFigure()], "GainFigure .*LocalReference"),
    ],
)
def test_a_run_without_what_is_drawn(make_trainer, line_clients, line_module, callbacks, name):
    with pytest.raises(ConfigurationError, match=name):
        make_trainer(*callbacks, max_rounds=1).fit(line_module(), line_clients([1.0]))


@pytest.mark.parametrize(
    ("make", "history"),
    [
        (lambda: [Scripted(), SamplingWeightsFigure()], lambda figure: [figure.rounds, figure.weights.tolist()]),
        (lambda: [LearningCurves()], lambda figure: figure.history),
        (lambda: [HCCT(), CoalitionFigure()], lambda figure: [figure.rounds, figure.assignments]),
    ],
)
def test_a_resumed_run_has_the_whole_history(make_trainer, line_clients, line_module, shown, make, history):
    data, found = line_clients([1.0, 2.0, 3.0]), []
    for rounds, resumes in ((4, False), (2, False), (4, True)):
        callbacks = make()
        trainer = make_trainer(*callbacks, max_rounds=rounds)
        trainer.fit(line_module(), data, ckpt_path="last" if resumes else None)
        found.append(history(callbacks[-1]))
    assert found[2] == found[0] != found[1]


@pytest.mark.slow
def test_pictures_do_not_change_the_result(make_trainer, line_clients, line_module):
    class Dropping(line_module):  # draws from the default generator, which predictions must not disturb
        def __init__(self):
            super().__init__()
            self.dropout = nn.Dropout(0.5)

        def forward(self, x):
            return self.dropout(self.weight * x + 1)

    results = []
    for pictures in ((), (CollaborationFigure(), SamplingWeightsFigure(), LearningCurves(), ParityFigure(split="val"))):
        module = Dropping()
        make_trainer(Scripted(), *pictures, max_rounds=3).fit(module, line_clients([1.0, 2.0, 3.0]))
        results.append(module.weight.detach().clone())
    assert torch.equal(*results)
