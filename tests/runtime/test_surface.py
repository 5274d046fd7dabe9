"""What callbacks see of a trainer is what its parts hold."""

import inspect
from dataclasses import fields
from pathlib import Path

import pytest
import torch
from tiny import TinyClients, TinyModule

from lightning_fl import FederatedTrainer
from lightning_fl.callbacks import Callback, ModelCheckpoint, UniformSampling
from lightning_fl.engine.federation import Federation, Round
from lightning_fl.engine.settings import Settings

QUIET = {"logger": False, "enable_progress_bar": False, "accelerator": "cpu", "devices": 1}


def test_every_setting_is_an_argument_with_a_meaning_in_the_docstring() -> None:
    parameters = inspect.signature(FederatedTrainer).parameters
    assert {field.name for field in fields(Settings)} < set(parameters)
    described = {
        line.strip().partition(":")[0] for one in (FederatedTrainer, Settings) for line in one.__doc__.split("\n")
    }
    assert set(parameters) <= described
    assert "InitVar" not in str(parameters["strategy"].annotation)


def test_settings_are_read_and_written_on_the_trainer() -> None:
    trainer = FederatedTrainer(max_rounds=3, local_steps=2, seed=9, **QUIET)
    assert (trainer.local_epochs, FederatedTrainer(**QUIET).local_epochs) == (1, 1)
    assert (trainer.max_rounds, trainer.local_steps, trainer.seed) == (3, 2, 9)
    trainer.max_rounds = 5
    assert trainer.settings.max_rounds == 5


def test_the_state_is_read_and_written_on_the_trainer(tmp_path: Path) -> None:
    trainer = FederatedTrainer(max_rounds=1, local_steps=1, default_root_dir=tmp_path, **QUIET)
    trainer.fit(TinyModule(), TinyClients())
    for field in fields(Federation):
        name = field.name.lstrip("_")
        if name not in ("means", "identities"):  # what is computed from the others
            assert getattr(trainer, name) is getattr(trainer.federation, name), name
    assert trainer.current_round == 1
    trainer.resting_clients = {1}
    assert trainer.federation.resting_clients == {1}
    trainer.processes.client_ranks = [0] * 4
    trainer.absent_clients = {3}
    assert (trainer.present_clients, trainer.active_clients) == ([0, 1, 2], [0, 2])
    names = {"logged": "round_metrics", "reports": "client_reports"}
    for field in fields(Round):
        name = names.get(field.name, "evaluated_this_round" if field.name == "evaluated" else field.name)
        assert getattr(trainer, name) is getattr(trainer.round, field.name), name


def test_a_longer_run_goes_on_with_the_same_trainer(tmp_path: Path) -> None:
    trainer = FederatedTrainer(max_rounds=1, local_steps=1, default_root_dir=tmp_path, **QUIET)
    trainer.fit(TinyModule(), TinyClients())
    trainer.max_rounds = 3
    trainer.fit(TinyModule(), TinyClients(), ckpt_path="last")
    assert trainer.current_round == 3
    straight = FederatedTrainer(max_rounds=3, local_steps=1, default_root_dir=tmp_path, **QUIET)
    straight.fit(TinyModule(), TinyClients())
    for vector, other in zip(trainer.models[0].vectors.values(), straight.models[0].vectors.values(), strict=True):
        assert torch.equal(vector, other)


def test_an_evaluation_that_cannot_be_set_up_loses_nothing(tmp_path: Path) -> None:
    class Broken(TinyClients):
        def setup(self, stage: str) -> None:
            raise RuntimeError("no disk")

    trainer, module = FederatedTrainer(max_rounds=1, default_root_dir=tmp_path, **QUIET), TinyModule()
    trainer.fit(module, TinyClients())
    before = trainer.models
    with pytest.raises(RuntimeError, match="no disk"):
        trainer.test(module, Broken())
    assert trainer.models is before


def test_a_callback_is_found_by_its_class() -> None:
    sampling = UniformSampling(cohort_size=2)
    trainer = FederatedTrainer(callbacks=[sampling], **QUIET)
    assert trainer.callback(UniformSampling) is sampling
    assert trainer.callback(Callback) is trainer.callbacks[0]
    assert trainer.checkpoint_callback is trainer.callback(ModelCheckpoint)
    assert FederatedTrainer(enable_checkpointing=False, **QUIET).callback(ModelCheckpoint) is None


def test_a_module_knows_who_federates_it(tmp_path: Path) -> None:
    seen = []

    class Asks(TinyModule):
        def on_train_epoch_start(self) -> None:
            seen.append(self.trainer.federated)

    trainer = FederatedTrainer(max_rounds=1, default_root_dir=tmp_path, **QUIET)
    trainer.fit(Asks(), TinyClients())
    assert seen == [trainer] * 3


def test_what_a_run_makes_is_missed_by_name_before_it() -> None:
    trainer = FederatedTrainer(**QUIET)
    assert not trainer.is_set_up
    for name in ("module", "datamodule", "loop", "batch_factory"):
        with pytest.raises(AttributeError, match=f"trainer.{name} "):
            getattr(trainer, name)
    with pytest.raises(AttributeError, match="no attribute 'modles'"):
        _ = trainer.modles
