import math
import statistics

import pytest

from lightning_fl.engine.results import LoggedValue
from lightning_fl.metrics import higher_is_better, summarize


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


def test_what_a_metric_states_comes_before_its_name():
    assert higher_is_better("loss", True) is True
    assert higher_is_better("accuracy", False) is False
    logged = {0: {"loss": LoggedValue(1.0, 1.0)}, 1: {"loss": LoggedValue(5.0, 1.0, higher_is_better=True)}}
    assert summarize(logged)["loss"].worst == 1.0


@pytest.mark.parametrize(("name", "worst", "client"), [("val/loss", 4.0, 7), ("val/acc", 0.5, 2)])
def test_a_summary(name, worst, client):
    values = {0: 1.5, 2: 0.5, 7: 4.0}
    summary = summarize(reports(name, values))[name]
    assert summary.mean == pytest.approx(2.0, rel=1e-15)
    assert summary.worst == worst
    assert summary.worst_client == client
    assert summary.std == pytest.approx(statistics.pstdev(values.values()), rel=1e-15)
    assert summary.clients == values


def test_the_mean_is_over_clients_not_samples():
    logged = {0: {"loss": LoggedValue(1.0, 1000.0)}, 1: {"loss": LoggedValue(3.0, 1.0)}}
    assert summarize(logged)["loss"].mean == 2.0


def test_nan_leaves_a_client_out():
    summary = summarize(reports("loss", {0: math.nan, 1: 1.0, 2: 3.0}))["loss"]
    assert (summary.mean, summary.worst, summary.std, summary.worst_client) == (2.0, 3.0, 1.0, 2)
    assert math.isnan(summary.clients[0])
    nothing = summarize(reports("loss", {3: math.nan, 4: math.nan}))["loss"]
    assert math.isnan(nothing.mean)
    assert math.isnan(nothing.worst)
    assert math.isnan(nothing.std)
    assert nothing.worst_client == 3


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
