from datetime import timedelta

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from lightning.fabric import Fabric
from lightning.fabric.strategies import STRATEGY_REGISTRY, DDPStrategy
from torch import nn

import lightning_fl
from lightning_fl.engine.learner import ModelUpdate
from lightning_fl.engine.weights.flat import Weights
from lightning_fl.strategies import FedAvg, FederatedStrategy


def on_processes(count: int) -> FedAvg:
    return type("OnProcesses", (FedAvg,), {"world_size": count})()


@pytest.mark.parametrize(("suffix", "start_method"), [("", "popen"), ("_spawn", "spawn"), ("_fork", "fork")])
@pytest.mark.parametrize("kind", [FedAvg])
def test_names_are_registered(kind, suffix, start_method):
    entry = STRATEGY_REGISTRY[kind.name + suffix]
    assert entry["strategy"] is kind
    assert entry["init_params"] == {"start_method": start_method}
    assert STRATEGY_REGISTRY.get(kind.name + suffix)._start_method == start_method


def test_every_strategy_of_the_package_is_registered_under_its_lower_case_name():
    kinds = [
        kind
        for kind in vars(lightning_fl.strategies).values()
        if isinstance(kind, type) and issubclass(kind, FederatedStrategy) and kind is not FederatedStrategy
    ]
    assert FedAvg in kinds
    for kind in kinds:
        assert kind.name == kind.__name__.lower()
        assert STRATEGY_REGISTRY[kind.name]["strategy"] is kind


def test_a_strategy_is_fabric_s_own_except_for_what_it_synchronises():
    strategy = FedAvg()
    assert isinstance(strategy, DDPStrategy)
    assert strategy.distributed_sampler_kwargs is None
    module = nn.Linear(1, 1)
    assert strategy.setup_module(module) is module
    loss = torch.ones(())
    assert strategy.client_loss(loss, module) is loss
    update = ModelUpdate(0, Weights({}), Weights({}))
    assert strategy.aggregate(update) is update.average


@pytest.mark.parametrize("given", [90, 90.0, timedelta(seconds=90)])
def test_the_time_limit_is_seconds_or_a_difference_of_times(given):
    assert FedAvg(timeout=given).timeout == timedelta(seconds=90)


# -- placing clients -------------------------------------------------------------------------------------------------


@settings(max_examples=80, deadline=None)
@given(st.lists(st.integers(0, 1000), min_size=1, max_size=30), st.integers(1, 6))
def test_ranks_are_balanced_within_the_largest_client(sizes, count):
    ranks = on_processes(count).place_clients(len(sizes), sizes)
    assert len(ranks) == len(sizes)
    assert set(ranks) <= set(range(count))
    loads = [sum(size for size, rank in zip(sizes, ranks, strict=True) if rank == r) for r in range(count)]
    assert sum(loads) == sum(sizes)
    assert max(loads) - min(loads) <= max(sizes)
    assert on_processes(count).place_clients(len(sizes), sizes) == ranks


def test_the_largest_come_first_to_the_emptiest_rank():
    # 9 -> 0, 7 -> 1, 6 -> 1 (7 < 9), 5 -> 0 (9 < 13), 2 -> 1 (13 < 14)
    assert on_processes(2).place_clients(5, [5, 9, 6, 2, 7]) == [0, 0, 1, 1, 1]
    assert on_processes(3).place_clients(3, [4, 4, 4]) == [0, 1, 2]
    assert on_processes(1).place_clients(3, [1, 2, 3]) == [0, 0, 0]


def test_pinned_clients_and_those_of_unknown_size_are_dealt_out_in_turn():
    assert on_processes(2).place_clients(5, [100, 1, 1, 1, 1], pinned=True) == [0, 1, 0, 1, 0]
    assert on_processes(3).place_clients(5) == [0, 1, 2, 0, 1]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 1000), min_size=1, max_size=30), st.integers(1, 6), st.integers(1, 8))
def test_blocks_stay_together_and_are_balanced_as_their_sums_are(sizes, count, block):
    ranks = on_processes(count).place_clients(len(sizes), sizes, block=block)
    sums = [sum(sizes[begin : begin + block]) for begin in range(0, len(sizes), block)]
    of_blocks = on_processes(count).place_clients(len(sums), sums)
    assert ranks == [of_blocks[client // block] for client in range(len(sizes))]
    dealt_out = on_processes(count).place_clients(len(sizes), block=block)
    assert dealt_out == [client // block % count for client in range(len(sizes))]


# -- in a loop of one's own, on one process ----------------------------------------------------------------------------


def fabric() -> Fabric:
    fabric = Fabric(strategy="fedavg", accelerator="cpu", devices=1)
    fabric.launch()
    return fabric


def test_one_process_needs_no_process_group():
    one = fabric()
    assert one.strategy.name == "fedavg"
    assert not torch.distributed.is_initialized()
    assert one.strategy.exchange({3: "c", 1: "a"}) == {1: "a", 3: "c"}
    one.barrier()
    assert one.broadcast(5) == 5


def test_the_average_of_one_is_itself():
    """Bit-equal from 2^-23 on; what is smaller is off by half the sum's grid at most."""
    torch.manual_seed(0)
    one = fabric()
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = one.setup(model, optimizer)
    one.backward(model(torch.randn(8, 3)).square().sum())
    optimizer.step()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    one.strategy.average(model, num_samples=17)
    for name, value in model.state_dict().items():
        large = before[name].abs() >= 2.0**-23
        assert large.any() or name == "1.bias"
        assert torch.equal(value[large], before[name][large]), name
        assert (value - before[name]).abs().max() <= 2.0**-47


class TwiceTheAverage(FedAvg):
    """A server step, to see that ``average`` takes it."""

    def aggregate(self, update):
        return Weights({dtype: 2 * vector for dtype, vector in update.average.vectors.items()})


def test_the_server_s_step_is_taken():
    one = Fabric(strategy=TwiceTheAverage(), accelerator="cpu", devices=1)
    one.launch()
    model = one.setup(nn.Linear(2, 1, bias=False))
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[1.0, -3.0]]))
    one.strategy.average(model)
    assert model.weight.tolist() == [[2.0, -6.0]]
