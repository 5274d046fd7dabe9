"""What a run does to the machine's devices and to how torch computes, and what it leaves of it."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from tiny import TinyClients, TinyModule

from lightning_fl import FederatedTrainer
from lightning_fl.core.seeding import isolated_draws
from lightning_fl.engine.client import packed
from lightning_fl.models import MoleculeModel


def fit(module: TinyModule, **arguments: Any) -> FederatedTrainer:
    quiet = {"logger": False, "enable_progress_bar": False, "enable_checkpointing": False}
    trainer = FederatedTrainer(accelerator="cpu", max_rounds=1, **{**quiet, **arguments})
    trainer.fit(module, TinyClients())
    return trainer


def test_a_run_on_the_cpu_never_opens_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def opened(*_: Any) -> None:
        raise AssertionError("a GPU was opened")

    for name in ("_lazy_init", "get_rng_state_all", "set_rng_state_all"):
        monkeypatch.setattr(torch.cuda, name, opened)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    module = TinyModule(dropout=0.5)
    trainer = fit(module, optimizer_state="keep", deterministic=True)
    trainer.validate(module, TinyClients())
    MoleculeModel(descriptor_dim=3)  # draws aside, for layers that come later


def test_draws_aside_leave_the_default_generator_as_it_was() -> None:
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    with isolated_draws():
        torch.rand(7)
    assert torch.equal(torch.rand(2), expected)


@pytest.fixture
def _algorithms_as_before() -> Iterator[None]:
    before = torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.benchmark
    yield
    torch.use_deterministic_algorithms(before[0])
    torch.backends.cudnn.benchmark = before[1]


@pytest.mark.usefixtures("_algorithms_as_before")
@pytest.mark.parametrize("warn_only", [False, True])
def test_deterministic_runs_choose_no_algorithm_by_time_and_leave_torch_as_it_was(warn_only: bool) -> None:
    seen: list[tuple[bool, bool, bool]] = []

    def now() -> tuple[bool, bool, bool]:
        enabled, warns = torch.are_deterministic_algorithms_enabled, torch.is_deterministic_algorithms_warn_only_enabled
        return enabled(), warns(), torch.backends.cudnn.benchmark

    class Looking(TinyModule):
        def on_train_epoch_start(self) -> None:
            seen.append(now())

    torch.use_deterministic_algorithms(True, warn_only=warn_only)
    torch.backends.cudnn.benchmark = True
    fit(Looking(), deterministic=True)
    fit(Looking(), deterministic=False)
    assert seen[:3] == [(True, False, False)] * 3
    assert seen[3:] == [(True, warn_only, True)] * 3
    assert now() == (True, warn_only, True)


def test_what_a_client_keeps_is_moved_to_the_host_at_any_depth() -> None:
    kept = packed({"moments": {"state": [torch.ones(2), 1.5]}, "name": "x"})
    assert kept["moments"]["state"][1] == 1.5
    assert kept["name"] == "x"
    assert kept["moments"]["state"][0].device.type == "cpu"
