"""Data that are too large for a GPU: they stay on the host, and results are the same."""

from functools import partial

import pytest
import torch
from cuda_standin.device import StandIn
from tiny import TinyClients, TinyModule, quiet_trainer

from lightning_fl.engine.batches.factory import BatchFactory
from lightning_fl.engine.batches.packs import MemoryBudget

GPU = torch.device("cuda", 0)


trainer = partial(quiet_trainer, devices=1, max_rounds=2, seed=2)


def test_half_of_what_is_free_is_for_data(monkeypatch):
    free = 1000

    def taken(device: torch.device) -> tuple[int, int]:
        assert device == GPU
        return free, 10_000

    monkeypatch.setattr("torch.cuda.mem_get_info", taken)
    budget = MemoryBudget(GPU)
    assert not budget.reserve(501)
    assert budget.reserve(300)
    free -= 300  # they are there now
    assert not budget.reserve(201)
    assert budget.reserve(200)
    free -= 200
    assert not budget.reserve(1)
    assert all(MemoryBudget(torch.device("cpu")).reserve(10**15) for _ in range(2))


@pytest.mark.parametrize("stacked", [1, 2])
def test_data_that_do_not_fit_give_the_same_results_from_the_host(cuda_standin: StandIn, stacked):
    found = {}
    for free in (2**36, 100):
        cuda_standin.free_memory = free
        run, module, seen = trainer(accelerator="cuda", stacked_clients=stacked), TinyModule(), []
        data = TinyClients((40, 32, 48), batch_size=8)
        module.on_train_batch_start = lambda batch, batch_idx, seen=seen: seen.append(batch[0].device)
        if stacked > 1:
            del module.on_train_batch_start  # which would be called for each client
        run.fit(module, data)
        pack = run.batch_factory.batches(0, "train").pack
        assert (pack.held_on.type, pack.device.type) == (("cuda", "cuda") if free > 100 else ("cpu", "cuda"))
        assert {device.type for device in seen} <= {"cuda"}
        found[free] = run.models[0]
    assert found[100].equal(found[2**36])


def test_it_is_said_once(cuda_standin: StandIn, monkeypatch):
    cuda_standin.free_memory = 10
    said: list[str] = []
    monkeypatch.setattr("lightning_fl.engine.batches.factory.rank_zero_info", said.append)
    trainer(accelerator="cuda").fit(TinyModule(), TinyClients())
    assert len(said) == 1
    assert "cuda:0: they stay on the host" in said[0]


def test_loaders_that_are_made_for_a_gpu_pin_their_batches():
    """A data set that is not packed: its samples are texts beside numbers."""
    samples = [(f"sample {i}", float(i)) for i in range(4)]
    for device, pinned in ((torch.device("cpu"), False), (GPU, True)):
        loader = BatchFactory(TinyClients(), device)._loader_of(samples, "train")
        assert loader.pin_memory == pinned
