"""How many processes are chosen; nothing is started here."""

import multiprocessing
import os
import sys
import threading

import pytest
import torch
from lightning.pytorch import LightningModule
from tiny import TinyClients, TinyModule

from lightning_fl import FederatedTrainer
from lightning_fl.core.errors import ConfigurationError
from lightning_fl.recipe.run import choose_processes
from lightning_fl.strategies.fork_launcher import ForkLauncher

WORDS = ["--config", "x.yaml"]


@pytest.fixture
def four_cores(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    monkeypatch.setattr(sys, "argv", ["lightning-fl", "fit", *WORDS])
    monkeypatch.setattr(threading, "active_count", lambda: 1)


class Unknown(TinyClients):
    @property
    def num_clients(self):
        raise RuntimeError("not before setup")


class Empty(LightningModule):
    """Built in configure_model."""


def big() -> LightningModule:
    module = Empty()
    module.weight = torch.nn.Parameter(torch.empty(20_000_001, device="meta"))
    return module


def chosen(tmp_path, module=None, data=None, devices="auto", words=WORDS, **settings):
    trainer = FederatedTrainer(accelerator="cpu", devices=devices, default_root_dir=tmp_path, **settings)
    said = choose_processes(trainer, module or TinyModule(), data or TinyClients((9, 9, 9)), devices, words)
    launcher = trainer.strategy.launcher
    assert launcher is None or isinstance(launcher, ForkLauncher) or said is None
    return trainer.strategy.num_processes, isinstance(launcher, ForkLauncher), said


def test_as_many_as_cores_and_clients_allow(four_cores, tmp_path):
    processes, forks, said = chosen(tmp_path)
    assert (processes, forks) == (3, True)
    assert said.startswith("3 processes of one thread each for 3 clients: there are 4 cores")
    assert chosen(tmp_path, data=TinyClients((9,) * 9))[0] == 4
    processes, _, said = chosen(tmp_path, data=Unknown())
    assert processes == 4
    assert said.startswith("4 processes of one thread each: there are 4 cores")
    assert chosen(tmp_path, data=TinyClients((9,))) == (1, False, None)


def test_no_more_than_blocks_of_clients_that_train_at_once(four_cores, tmp_path):
    assert chosen(tmp_path, stacked_clients=2)[0] == 2
    assert chosen(tmp_path, data=Unknown(), stacked_clients=2)[0] == 4
    assert chosen(tmp_path, stacked_clients=3) == (1, False, None)


def test_what_is_given_is_kept_and_forked_on_one_machine(four_cores, tmp_path):
    assert chosen(tmp_path, devices=2) == (2, True, None)
    assert chosen(tmp_path, devices=2, num_nodes=2) == (2, False, None)
    assert chosen(tmp_path, devices=1) == (1, False, None)


@pytest.mark.parametrize("module", [big, Empty])
def test_one_where_the_model_is_large_or_unknown(four_cores, tmp_path, module):
    assert chosen(tmp_path, module=module()) == (1, False, None)


@pytest.mark.parametrize("devices", ["auto", 2])
@pytest.mark.parametrize(
    ("owner", "name", "value"),
    [
        (sys, "argv", ["pytest"]),
        (threading, "active_count", lambda: 2),
        (multiprocessing, "parent_process", lambda: object()),
        (sys, "platform", "darwin"),
    ],
    ids=["a process that does other things", "other threads", "a worker of a study", "forks are not safe"],
)
def test_nothing_is_forked(four_cores, monkeypatch, tmp_path, devices, owner, name, value):
    monkeypatch.setattr(owner, name, value)
    assert chosen(tmp_path, devices=devices) == (1 if devices == "auto" else 2, False, None)


def test_nothing_is_forked_where_a_launcher_starts_the_processes(four_cores, monkeypatch, tmp_path):
    for name, value in (("LOCAL_RANK", "0"), ("WORLD_SIZE", "1"), ("RANK", "0"), ("NODE_RANK", "0")):
        monkeypatch.setenv(name, value)
    assert chosen(tmp_path) == (1, False, None)


def test_what_cannot_be_forked_is_refused(monkeypatch, tmp_path):
    trainer = FederatedTrainer(accelerator="cpu", devices=1, default_root_dir=tmp_path)
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(ConfigurationError, match="devices=3"):
        trainer.strategy.fork_processes(3)
