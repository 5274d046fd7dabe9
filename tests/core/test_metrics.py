import math
import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_fl.core.metrics import (
    LoggedValue,
    default_metric,
    higher_is_better,
    left_out,
    metric_name,
    monitored_metric,
    summarize,
    summarize_gains,
)


def reports(name, values, **flags):
    return {client: {name: LoggedValue(value, 1.0, **flags)} for client, value in values.items()}


@pytest.mark.parametrize(
    ("name", "higher"),
    [
        ("train/loss", False), ("val/rmse", False), ("test/MAE", False), ("valloss", False), ("loss", False),
        ("mean_squared_error", False), ("MeanAbsoluteError", False), ("brier_score", False), ("val-mape", False),
        ("log_loss_score", False), ("perplexity", False), ("something", False), ("focal-loss", False),
        ("val/acc", True), ("val.accuracy", True), ("acc@1", True), ("test_auroc", True), ("roc_auc", True),
        ("macro-f1", True), ("F1Score", True), ("r2", True), ("val/map", True), ("pearson", True),
        ("average_precision", True), ("val/auprc", True), ("mcc", True), ("balanced accuracy", True),
    ],
)  # fmt: skip
def test_the_direction_of_a_name(name, higher):
    assert higher_is_better(name) is higher


def test_clients_that_statistics_leave_out_are_named_once_for_all_their_metrics():
    nan = math.nan
    assert left_out({"loss": {"a": 1.0, "b": math.inf}}) == []
    (line,) = left_out({"loss": {"a": nan, "b": 1.0, "c": nan}, "acc": {"a": nan, "b": 0.5, "c": nan}})
    assert line.startswith("loss, acc are NaN for a, c:")
    assert len(left_out({"loss": {"a": nan, "b": 1.0}, "acc": {"a": 0.5, "b": nan}})) == 2


def test_what_a_metric_states_comes_before_its_name():
    assert higher_is_better("loss", True) is True
    assert higher_is_better("accuracy", False) is False
    logged = {0: {"loss": LoggedValue(1.0, 1.0)}, 1: {"loss": LoggedValue(5.0, 1.0, higher_is_better=True)}}
    assert summarize(logged)["loss"].worst == 1.0


@pytest.mark.parametrize(
    ("name", "worst", "client", "best", "best_client"), [("val/loss", 4.0, 7, 0.5, 2), ("val/acc", 0.5, 2, 4.0, 7)]
)
def test_a_summary(name, worst, client, best, best_client):
    values = {0: 1.5, 2: 0.5, 7: 4.0}
    summary = summarize(reports(name, values))[name]
    assert summary.mean == pytest.approx(2.0, rel=1e-15)
    assert summary.worst == worst
    assert summary.worst_client == client
    assert summary.best == best
    assert summary.best_client == best_client
    assert summary.std == pytest.approx(statistics.pstdev(values.values()), rel=1e-15)
    assert summary.clients == values


def test_clients_go_by_number_and_by_name():
    reports = {client: {"loss": LoggedValue(value, 1)} for client, value in ((0, 0.5), (2, 0.25))}
    found = summarize(reports, ["north", "west", "south"])["loss"]
    assert found.clients["south"] == found.clients[2] == 0.25
    assert list(found.clients) == [0, 2]
    for absent in ("west", "east", 1):
        with pytest.raises(KeyError):
            found.clients[absent]
    assert repr(found) == "MetricSummary(mean=0.375, worst=0.5, std=0.125, clients={'north': 0.5, 'south': 0.25})"


def test_the_mean_is_over_clients_not_samples():
    logged = {0: {"loss": LoggedValue(1.0, 1000.0)}, 1: {"loss": LoggedValue(3.0, 1.0)}}
    assert summarize(logged)["loss"].mean == 2.0


def test_nan_leaves_a_client_out():
    summary = summarize(reports("loss", {0: math.nan, 1: 1.0, 2: 3.0}))["loss"]
    assert (summary.mean, summary.worst, summary.std, summary.worst_client) == (2.0, 3.0, 1.0, 2)
    assert (summary.best, summary.best_client) == (1.0, 1)
    assert math.isnan(summary.clients[0])
    nothing = summarize(reports("loss", {3: math.nan, 4: math.nan}))["loss"]
    assert math.isnan(nothing.mean)
    assert math.isnan(nothing.worst)
    assert math.isnan(nothing.std)
    assert math.isnan(nothing.best)
    assert (nothing.worst_client, nothing.best_client) == (3, 3)


def test_infinite_values():
    summary = summarize(reports("loss", {0: math.inf, 1: 1.0}))["loss"]
    assert (summary.mean, summary.worst, summary.worst_client) == (math.inf, math.inf, 0)
    assert math.isnan(summary.std)
    assert math.isnan(summarize(reports("loss", {0: math.inf, 1: -math.inf}))["loss"].mean)


def test_names_that_only_some_clients_log():
    logged = {0: {"a": LoggedValue(1.0, 1.0)}, 1: {"b": LoggedValue(2.0, 1.0), "a": LoggedValue(3.0, 1.0)}}
    summaries = summarize(logged)
    assert list(summaries) == ["a", "b"]
    assert summaries["a"].clients == {0: 1.0, 1: 3.0}
    assert summaries["b"].clients == {1: 2.0}
    assert summarize({}) == {}


def test_flags_are_any_client_s():
    quiet = summarize(reports("loss", {0: 1.0}, to_logger=False))["loss"]
    assert not quiet.to_logger
    assert not quiet.prog_bar
    logged = {0: {"loss": LoggedValue(1.0, 1.0, prog_bar=True)}, 1: {"loss": LoggedValue(1.0, 1.0, to_logger=False)}}
    assert summarize(logged)["loss"].prog_bar
    assert summarize(logged)["loss"].to_logger


def test_the_order_of_clients_does_not_change_the_mean():
    values = {i: 0.1 * (-1) ** i * 10.0 ** (i % 9) for i in range(50)}
    backwards = dict(reversed(values.items()))
    assert summarize(reports("loss", values))["loss"].mean == summarize(reports("loss", backwards))["loss"].mean


@pytest.mark.parametrize(
    ("name", "short"),
    [("val/acc", "acc"), ("val_acc", "acc"), ("test/acc", "test/acc"), ("acc", "acc"), ("valacc", "valacc")],
)
def test_a_name_without_its_split(name, short):
    assert metric_name(name, "val") == short


VALUES = {0: 0.9, 3: 0.5, 4: 0.75, 8: 0.25}
REFERENCE = {0: 0.5, 3: 0.75, 4: 0.75, 8: 0.125}


class TestGains:
    def test_by_hand(self):
        summary = summarize_gains(VALUES, REFERENCE, higher_is_better=True)
        assert summary.clients == {0: pytest.approx(0.4), 3: -0.25, 4: 0.0, 8: 0.125}
        # a gain of 0 is no reason to take part
        assert (summary.ipr, summary.harmed, summary.worst) == (2 / 4, 1 / 4, -0.25)
        assert summary.mean == pytest.approx((0.4 - 0.25 + 0.125) / 4)
        assert summary.rsd == pytest.approx(np.std([0.4, -0.25, 0.0, 0.125]))

    def test_where_lower_is_better_the_sign_turns(self):
        upwards = summarize_gains(VALUES, REFERENCE, higher_is_better=True)
        downwards = summarize_gains(VALUES, REFERENCE, higher_is_better=False)
        assert downwards.clients == {client: -gain for client, gain in upwards.clients.items()}
        assert downwards.harmed == upwards.ipr
        assert downwards.rsd == pytest.approx(upwards.rsd)

    def test_clients_without_two_values_are_left_out(self):
        values = {0: 1.0, 1: math.nan, 2: 2.0, 3: 3.0, 4: math.inf}
        reference = {0: 0.5, 1: 1.0, 2: math.nan, 4: math.inf, 5: 1.0}
        summary = summarize_gains(values, reference, higher_is_better=True)
        assert summary.clients == {0: 0.5}
        assert (summary.ipr, summary.rsd, summary.harmed) == (1.0, 0.0, 0.0)

    def test_nobody(self):
        summary = summarize_gains({}, {}, higher_is_better=True)
        for value in (summary.ipr, summary.rsd, summary.harmed, summary.mean, summary.worst):
            assert math.isnan(value)
        assert summary.clients == {}

    def test_a_client_whose_training_alone_failed(self):
        summary = summarize_gains({0: 1.0, 1: 2.0}, {0: math.inf, 1: 2.5}, higher_is_better=False)
        assert (summary.ipr, summary.mean, summary.worst) == (1.0, math.inf, 0.5)
        assert math.isnan(summary.rsd)

    @pytest.mark.slow
    @given(st.dictionaries(st.integers(0, 50), st.floats(-10, 10), min_size=1), st.floats(-5, 5))
    def test_for_any_gains(self, found, shift):
        zeros = dict.fromkeys(found, 0.0)
        summary = summarize_gains(found, zeros, higher_is_better=True)
        assert 0 <= summary.ipr <= 1
        unmoved = sum(gain == 0 for gain in found.values()) / len(found)
        assert summary.ipr + summary.harmed + unmoved == pytest.approx(1)
        # The same extra gain for everyone is as fair as none.
        shifted = {client: gain + shift for client, gain in found.items()}
        assert summarize_gains(shifted, zeros, higher_is_better=True).rsd == pytest.approx(summary.rsd, abs=1e-9)
        assert summary.rsd == pytest.approx(np.std(list(found.values())), abs=1e-9)


def test_the_first_loss_is_the_metric_to_go_by():
    assert default_metric(["val/acc", "val/loss", "val/other_loss"]) == "val/loss"
    assert default_metric(["val/acc", "val/f1"]) == "val/acc"
    assert default_metric([]) is None


def test_a_metric_to_go_by_is_logged():
    assert monitored_metric(["a", "b"], "b", "a", "Owner") == "b"
    assert monitored_metric(["a", "b"], None, "a", "Owner") == "a"


def test_metrics_are_a_frame_of_clients_and_summaries():
    reports = {
        0: {"loss": LoggedValue(1.0, 1), "acc": LoggedValue(0.25, 1)},
        2: {"loss": LoggedValue(3.0, 1), "acc": LoggedValue(0.75, 1)},
        1: {"loss": LoggedValue(2.0, 1)},
    }
    frame = summarize(reports, ["north", "south", "west <b>"]).to_frame()
    rows = ["north", "south", "west <b>", "average", "worst", "best", "standard deviation"]
    assert frame.index.tolist() == rows
    assert frame["loss"].tolist() == [1, 2, 3, 2, 3, 1, pytest.approx((2 / 3) ** 0.5)]
    assert frame["acc"].fillna(-1).tolist() == [0.25, -1, 0.75, 0.5, 0.25, 0.75, 0.25]
    html = summarize(reports, ["north", "south", "west <b>"])._repr_html_()
    assert "west &lt;b&gt;" in html
    assert "<td>-</td>" in html
    assert summarize(reports).to_frame().index.tolist()[:3] == [0, 1, 2]
    assert summarize({}).to_frame().empty
    with pytest.raises(KeyError, match="no metric 'wrong'; there are none"):
        summarize({})["wrong"]
    assert summarize({}).get("wrong") is None
