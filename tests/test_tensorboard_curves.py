"""TensorBoard's file: one for a run, with all curves, and an order of its own."""

import re
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.custom_scalar import layout_pb2
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData
from tiny import TinyClients, TinyModule

from lightning_fl import FederatedTrainer
from lightning_fl.runtime.curve_table import curve_layout


def read(folder: Path) -> tuple[EventAccumulator, layout_pb2.Layout]:
    events = EventAccumulator(str(folder))
    events.Reload()
    (config,) = events.Tensors("custom_scalars__config__")
    layout = layout_pb2.Layout()
    layout.ParseFromString(config.tensor_proto.string_val[0])
    return events, layout


@pytest.mark.slow
def test_a_fit_and_its_test_are_in_one_file_with_one_layout(tmp_path: Path) -> None:
    trainer = FederatedTrainer(max_rounds=3, default_root_dir=tmp_path, check_val_every_n_rounds=2)
    trainer.run_log.hyperparameters = {"learning_rate": 0.05}  # as of a recipe
    trainer.fit(TinyModule(), TinyClients())
    trainer.test(TinyModule(), TinyClients(), ckpt_path="last")
    assert len(list(Path(trainer.log_dir).glob("events.out.tfevents.*"))) == 1
    events, layout = read(Path(trainer.log_dir))
    tags = events.Tags()["scalars"]
    (validated,) = [tag for tag in tags if tag.startswith("val") and f"{tag}/worst" in tags]
    assert [one.step for one in events.Scalars(validated)] == [2, 3]
    (tested,) = [tag for tag in tags if tag.startswith("test") and f"{tag}/worst" in tags]
    assert [one.step for one in events.Scalars(tested)] == [3]
    shown = HParamsPluginData.FromString(events.SummaryMetadata("_hparams_/experiment").plugin_data.content)
    announced = {info.name.tag for info in shown.experiment.metric_infos}
    assert announced == {tag for tag in tags if tag.startswith("final/")}
    assert {"final/val/loss/mean", "final/test/loss/mean"} <= announced
    titles = [category.title for category in layout.category]
    assert titles == ["average and worst client", "every client"]
    assert layout.category[0].chart[0].title == validated
    both = layout.category[0].chart[0].multiline.tag
    assert [[tag for tag in tags if re.match(one, tag)] for one in both] == [[validated], [f"{validated}/worst"]]
    (clients,) = layout.category[1].chart[0].multiline.tag
    assert [tag for tag in tags if re.match(clients, tag)] == [f"{validated}/client_{i}" for i in range(3)]


def test_a_layout_leaves_out_what_is_no_client() -> None:
    names = ["val/acc", "val/acc/worst", "val/acc/std", "val/acc/gain", "val/acc/north", "train/loss", "tier/0/clients"]
    target = ["val/acc/tox", "val/acc/tox/worst", "val/acc/tox/north"]
    names += [*target, "val/acc/toxic", "val/acc/tox/toxic"]  # a client whose name begins like the target's
    layout = curve_layout(names)
    assert list(layout) == ["average and worst client", "every client"]
    assert list(layout["average and worst client"]) == ["val/acc", "val/acc/tox"]
    found = {
        chart: [name for name in names if re.match(expression, name)]
        for chart, (_, (expression,)) in layout["every client"].items()
    }
    assert found == {metric: [f"{metric}/north", f"{metric}/toxic"] for metric in ("val/acc", "val/acc/tox")}


def test_validation_comes_first_and_without_clients_there_is_one_category() -> None:
    names = ["train/a", "train/a/worst", "val/z", "val/z/worst"]
    assert list(curve_layout(names)) == ["average and worst client"]
    assert list(curve_layout(names)["average and worst client"]) == ["val/z", "train/a"]
    assert curve_layout(["train/a"]) == {}
