import pytest
import torch
from torchmetrics import (
    Accuracy,
    MeanMetric,
    MeanSquaredError,
    SumMetric,
)

from lightning_fl.core.errors import ConfigurationError
from lightning_fl.engine.turn.results import LogCollector

VALUES, SIZES = [3.0, 1.0, 2.0], [4, 4, 1]


def log(collector, name, value, hook="training_step", **arguments):
    """As ``LightningModule.log`` calls it."""
    defaults = {
        "prog_bar": False, "logger": True, "on_step": False, "on_epoch": True, "reduce_fx": "mean",
        "enable_graph": False, "add_dataloader_idx": True, "batch_size": None, "sync_dist": False,
        "sync_dist_fn": None, "sync_dist_group": None, "metric_attribute": None, "rank_zero_only": False,
    }  # fmt: skip
    collector.log(hook, name, value, **{**defaults, **arguments})


def logged(values=VALUES, sizes=SIZES, **arguments):
    collector = LogCollector()
    collector.begin()
    for step, (value, size) in enumerate(zip(values, sizes, strict=True)):
        collector.batch, collector.batch_size, collector.step = [torch.zeros(size, 2)], size, step
        log(collector, "value", torch.tensor(value), **arguments)
    return collector.reduce(sum(sizes))[0]["value"]


@pytest.mark.parametrize(
    ("reduce_fx", "expected"),
    [
        ("mean", (3 * 4 + 1 * 4 + 2 * 1) / 9),
        ("avg", 2.0),
        ("MEAN", 2.0),
        (torch.mean, 2.0),
        ("sum", 6.0),
        (torch.sum, 6.0),
        ("min", 1.0),
        (torch.amin, 1.0),
        (torch.min, 1.0),
        ("max", 3.0),
        (torch.amax, 3.0),
        (lambda values: values[-1] - values[0], -1.0),
    ],
)
def test_every_reduction(reduce_fx, expected):
    value = logged(reduce_fx=reduce_fx)
    assert value.value == pytest.approx(expected, rel=1e-15)
    assert value.weight == 9
    assert value.higher_is_better is None


def test_an_unknown_reduction_is_refused():
    with pytest.raises(ConfigurationError, match="reduce_fx='first'"):
        logged(reduce_fx="first")
    with pytest.raises(ConfigurationError, match=r"'value'\).*shape \(2,\)"):
        logged(reduce_fx=lambda values: values[:2])


def test_the_weight_is_the_batch_s_size_from_wherever_it_is_known():
    collector = LogCollector()
    collector.begin()
    collector.batch_size = 5
    log(collector, "given", torch.tensor(1.0), batch_size=2)
    log(collector, "held", torch.tensor(1.0))
    collector.batch, collector.batch_size = {"x": torch.zeros(7, 3), "y": torch.zeros(7)}, None
    log(collector, "read from the batch", torch.tensor(1.0))
    assert collector.batch_size == 7
    collector.batch = collector.batch_size = None
    log(collector, "outside a step", torch.tensor(1.0))
    weights = {name: value.weight for name, value in collector.reduce(100)[0].items()}
    assert weights == {"given": 2, "held": 5, "read from the batch": 7, "outside a step": 1}


def test_a_mean_in_double_precision():
    """2^24 + 1 is no float32: a sum in single precision would lose the ones."""
    assert logged([2.0**24, 1.0, 1.0], [1, 1, 1], reduce_fx="sum").value == 2**24 + 2


def test_a_metric_s_values_of_single_steps():
    metric, collector = MeanSquaredError(), LogCollector(2)
    collector.begin()
    for step in range(4):
        collector.step = step
        metric(torch.tensor([float(step)]), torch.tensor([0.0]))
        log(collector, "mse", metric, on_step=True)
    value = collector.reduce(4)[0]["mse"]
    assert value.steps == ((0, 0.0), (2, 4.0))
    assert value.value == (0 + 1 + 4 + 9) / 4
    assert value.higher_is_better is False


def test_a_later_hook_s_steps_leave_the_epoch_s_value_and_replace_the_steps():
    collector = LogCollector(1)
    collector.begin()
    for step, value in enumerate(VALUES):
        collector.begin_step([torch.zeros(4, 2)], 4, step)
        log(collector, "value", torch.tensor(value), on_step=True, on_epoch=True)
        log(collector, "value", torch.tensor(-value), hook="on_train_batch_end", on_step=True, on_epoch=False)
    value = collector.reduce(12)[0]["value"]
    assert value.value == pytest.approx(sum(VALUES) / len(VALUES))
    assert value.steps == tuple(enumerate(-value for value in VALUES))


@pytest.mark.parametrize("on_epoch", [False, True])
def test_one_name_of_two_hooks_is_two_values_of_which_the_later_hook_s_counts(on_epoch):
    """As in Lightning; the first hook's single steps are kept."""
    collector = LogCollector(1)
    collector.begin()
    for step, value in enumerate(VALUES):
        collector.begin_step([torch.zeros(4, 2)], 4, step)
        log(collector, "value", torch.tensor(value), on_step=True, on_epoch=on_epoch)
    log(collector, "value", torch.tensor(7.0), hook="on_train_epoch_end")
    assert collector.so_far(training=True, ended=True)["value"] == 7
    value = collector.reduce(12)[0]["value"]
    assert value.value == 7
    assert value.steps == tuple(enumerate(VALUES))


def test_a_metric_without_a_single_value_is_refused():
    metric, collector = Accuracy("multiclass", num_classes=3, average="none"), LogCollector()
    collector.begin()
    metric(torch.tensor([0]), torch.tensor([0]))
    log(collector, "per class", metric)
    with pytest.raises(ConfigurationError, match=r"'per class'\).*shape \(3,\)"):
        collector.reduce(1)


def test_a_failed_turn_leaves_nothing_for_the_next_client():
    metric, collector = MeanMetric(), LogCollector()
    collector.begin()
    metric(torch.tensor(1000.0))
    log(collector, "mean", metric)
    log(collector, "other", torch.tensor(1000.0))
    collector.begin()  # the turn failed before reduce
    metric(torch.tensor(2.0))
    log(collector, "mean", metric)
    values, _ = collector.reduce(1)
    assert set(values) == {"mean"}
    assert values["mean"].value == 2


def test_a_turn_is_fetched_in_one_go(monkeypatch):
    """Losses, means, metrics, single steps and last values: one ``tolist``, and no number of its own."""
    collector = LogCollector(every_n_steps=2)
    collector.begin()
    metric = MeanSquaredError()
    losses = [torch.tensor(value) for value in (0.1, 0.2, 0.3)]
    for step, loss in enumerate(losses):
        collector.begin_step([torch.zeros(4, 2)], 4, step)
        log(collector, "loss", loss, on_step=True)
        log(collector, "count", torch.tensor(2**53 - 1 - step), on_step=True, on_epoch=False, reduce_fx="max")
        metric.update(loss, torch.zeros(()))
        log(collector, "mse", metric)
    calls, real = [], torch.Tensor.tolist
    monkeypatch.setattr(torch.Tensor, "tolist", lambda self: calls.append(1) or real(self))
    for name in ("__float__", "__int__", "__bool__", "item"):
        monkeypatch.setattr(torch.Tensor, name, lambda self, name=name: pytest.fail(f"{name}: a wait of its own"))
    metrics, values = collector.reduce(12, losses=losses)
    monkeypatch.undo()
    assert len(calls) == 1
    assert values == [float(loss) for loss in losses]
    assert metrics["loss"].value == pytest.approx(0.2)
    assert metrics["loss"].steps == ((0, values[0]), (2, values[2]))
    assert metrics["loss"].last == values[2]
    assert metrics["count"].value == 2**53 - 1
    assert metrics["count"].steps == ((0, 2**53 - 1), (2, 2**53 - 3))
    assert metrics["mse"].value == pytest.approx((0.01 + 0.04 + 0.09) / 3)


def test_a_loaders_metric_is_what_it_was_when_its_loader_ended():
    """Its value may be the metric's own state, which goes on counting."""
    collector = LogCollector()
    collector.begin()
    total = SumMetric()
    for number in (0, 1):
        collector.begin_loader(number)
        collector.begin_step([torch.zeros(2, 2)], 2, 0)
        total.update(torch.tensor(2.0))
        log(collector, "total", total)
    collector.begin_loader(None)
    metrics, _ = collector.reduce(4, [2, 2])
    assert [metrics[f"total/dataloader_idx_{number}"].value for number in (0, 1)] == [2.0, 4.0]
