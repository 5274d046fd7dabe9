"""Refusals of the trainer and of ``federate``: the exception and the name of what is at fault."""

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import BatchSizeFinder
from test_federate import Whole, _stacked
from test_trainer import trainer
from tiny import TinyClients, TinyModule, regression_set, same_bits, weights_of
from torch import nn
from torch.utils.data import DataLoader

from lightning_fl import ConfigurationError, FederatedTrainer, federate
from lightning_fl.callbacks import Callback, DROClientSampling, Figures, LearningCurves
from lightning_fl.core.cohort import Cohort
from lightning_fl.core.errors import FederatedError


class Everybody(Callback):
    def select_clients(self, trainer: FederatedTrainer) -> Cohort:
        return Cohort.of(range(trainer.num_clients))


def empty_client() -> TinyClients:
    data = TinyClients((8, 4))
    data.sets[1, "train"] = torch.utils.data.Subset(data.sets[1, "train"], [])
    return data


TRAINERS: list[tuple[dict[str, Any], str]] = [
    ({"max_rounds": 0}, "trainer.max_rounds=0"),
    ({"local_steps": 5, "local_epochs": 1}, "local_epochs and trainer.local_steps are both set"),
    ({"gradient_clip_val": -1.0, "optimizer_state": "warm"}, "gradient_clip_val=-1.0.*optimizer_state='warm'.*keep"),
    ({"precision": "16-mixed"}, "trainer.precision='16-mixed': choose one of 32, .*bf16-mixed"),
    ({"deterministic": "warn"}, "trainer.deterministic='warn'"),
    ({"profile": "simple"}, "trainer.profile='simple'"),
    ({"strategy": "ddp"}, "trainer.strategy='ddp' .*fedavg"),
    ({"strategy": 3}, "trainer.strategy=3 "),
    ({"strategy": "nowhere.Mine"}, "trainer.strategy='nowhere.Mine' cannot be imported"),
    ({"accelerator": "cpu", "devices": 0}, "trainer.devices=0: .*CPU cores"),
    ({"accelerator": "cpu", "devices": "two"}, "trainer.devices=two: .*CPU cores"),
    ({"callbacks": [DROClientSampling(), DROClientSampling(cohort_size=2)]}, "both decide the participation"),
    ({"callbacks": [Everybody(), DROClientSampling()]}, "Everybody and DROClientSampling both select the clients"),
    ({"callbacks": [Figures(), LearningCurves()]}, "Figures and LearningCurves: .*twice"),
    ({"callbacks": [BatchSizeFinder()]}, "trainer.callbacks has BatchSizeFinder"),
]
ROWS = list(regression_set(30, seed=1))
LISTS = [list(row) for row in ROWS]
SET = regression_set(5, seed=1)
FEDERATIONS: list[tuple[Any, dict[str, Any], str]] = [
    (Whole(), {}, "num_clients .* partitioner"),
    (TinyClients(), {"num_clients": 2}, "num_clients"),
    (TinyClients(), {"batch_size": 3, "num_samples": [1, 2, 3]}, "TinyClients: give batch_size, num_samples"),
    (3, {"num_clients": 2}, "data is a int"),
    (ROWS, {}, "cut into clients"),
    (ROWS, {"num_clients": 2, "num_samples": [1, 2]}, "num_samples"),
    (LISTS, {}, "data is a list of lists"),
    ([SET, ROWS[0]], {}, "data is a list of TensorDataset, tuple"),
    ([SET, SET], {"num_clients": 2}, "num_clients"),
    ({"train": ROWS, "val": ROWS}, {}, "data is a dict of train, val"),
    (DataLoader(ROWS), {}, "data is a DataLoader"),  # type: ignore[arg-type]
    (Whole(), {"num_clients": 2, "collate_fn": _stacked}, "collate_fn.*Whole"),
    ([Whole, Whole], {}, "the class Whole"),
    ("data/", {}, "data is a str"),
    ([], {}, "data is a list: "),
    ([SET, SET], {"max_epochs": 3}, "'max_epochs' .*'max_rounds'"),
]


@pytest.mark.parametrize(("settings", "name"), TRAINERS, ids=[name for _, name in TRAINERS])
def test_settings(settings: dict[str, Any], name: str) -> None:
    with pytest.raises(ConfigurationError, match=name):
        FederatedTrainer(**settings)


def test_a_strategy_of_another_trainer() -> None:
    first = FederatedTrainer()
    with pytest.raises(ConfigurationError, match="trainer.strategy: this FedAvg"):
        FederatedTrainer(strategy=first.strategy)


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_a_device_that_is_missing() -> None:
    with pytest.raises(ConfigurationError, match="trainer.accelerator=cuda.* no CUDA device"):
        FederatedTrainer(accelerator="cuda")


@pytest.mark.parametrize(("data", "options", "name"), FEDERATIONS, ids=[row[2] for row in FEDERATIONS])
def test_data_of_federate(data: Any, options: dict[str, Any], name: str) -> None:
    with pytest.raises(ConfigurationError, match=name):
        federate(TinyModule(), data, max_rounds=2, enable_progress_bar=False, logger=False, **options)


@pytest.mark.parametrize(
    ("module", "data", "name"),
    [
        (nn.Linear(1, 1), TinyClients(), "Linear"),
        (TinyModule(), [], "list"),
        (TinyModule(), empty_client(), r"client 1 \(client_1\)"),
    ],
)
def test_module_and_data(module: Any, data: Any, name: str) -> None:
    with pytest.raises(FederatedError, match=name):
        trainer().fit(module, data)


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    module = TinyModule()
    before = weights_of(module)
    run = FederatedTrainer(max_rounds=1, enable_progress_bar=False, default_root_dir=blocked / "runs")
    with pytest.raises(ConfigurationError, match=r"trainer.default_root_dir='.*file/runs'"):
        run.fit(module, TinyClients())
    assert same_bits(before, weights_of(module))
