"""What cannot work says so before anything is trained."""

from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import EarlyStopping, LearningRateMonitor
from reference import Clients, Linear, assert_same_weights, federated_trainer, make
from torch import nn

from lightning_fl.core.errors import ConfigurationError


@pytest.mark.parametrize("callback", [EarlyStopping("val_loss"), LearningRateMonitor(), pl.Callback()])
def test_lightnings_callbacks_are_refused(callback: pl.Callback, tmp_path: Path) -> None:
    name = type(callback).__name__
    message = rf"trainer.callbacks: {name} is not a lightning_fl.callbacks.Callback. Callbacks of Lightning"
    with pytest.raises(ConfigurationError, match=message):
        federated_trainer(tmp_path, callbacks=[callback])


def test_configure_sharded_model_is_refused(tmp_path: Path) -> None:
    class Shards(Linear):
        def configure_sharded_model(self) -> None: ...

    with pytest.raises(ConfigurationError, match="Shards.configure_sharded_model"):
        federated_trainer(tmp_path, max_rounds=1).fit(Shards(), Clients())


def test_a_module_that_brings_no_callbacks_trains(tmp_path: Path) -> None:
    class Brings(Linear):
        def configure_callbacks(self) -> Any:
            return []

    module, plain = make(Brings), make(Linear)
    federated_trainer(tmp_path, max_rounds=1).fit(module, Clients())
    federated_trainer(tmp_path, max_rounds=1).fit(plain, Clients())
    assert_same_weights(module, plain)


@pytest.mark.slow
def test_other_compiled_modules_are_refused(tmp_path: Path) -> None:
    compiled: Any = torch.compile(nn.Linear(3, 1), backend="eager")
    with pytest.raises(ConfigurationError, match="the model is a Linear"):
        federated_trainer(tmp_path, max_rounds=1).fit(compiled, Clients())


@pytest.mark.parametrize("model", [nn.Linear(3, 1), Linear, None])
def test_what_is_no_lightning_module_is_refused(model: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=f"the model is a {type(model).__name__}"):
        federated_trainer(tmp_path, max_rounds=1).fit(model, Clients())


@pytest.mark.parametrize("missing", ["training_step", "configure_optimizers"])
def test_a_fit_needs_a_whole_module_and_a_test_does_not(missing: str, tmp_path: Path) -> None:
    incomplete = type("Incomplete", (Linear,), {missing: getattr(pl.LightningModule, missing)})()
    with pytest.raises(ConfigurationError, match=f"Incomplete .*{missing}"):
        federated_trainer(tmp_path).fit(incomplete, Clients())
    federated_trainer(tmp_path).validate(incomplete, Clients())
