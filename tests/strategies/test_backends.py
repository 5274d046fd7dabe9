"""Which backend carries what: chosen by device, and what ranks tell each other stays on the host beside GPUs."""

from collections.abc import Callable, Iterator

import pytest
import torch
from processes import Process
from torch import Tensor
from torch.distributed import HashStore
from torch.testing._internal.distributed import fake_pg  # registers the backend "fake", whose collectives do nothing

from lightning_fl.engine.processes import Processes
from lightning_fl.strategies import FedAvg
from lightning_fl.strategies.rank_exchange import BOTH, backends_of, default_backend, shared_device

assert fake_pg
CPU = torch.device("cpu")


def gpus(*numbers: int) -> list[torch.device]:
    return [torch.device("cuda", number) for number in numbers]


@pytest.mark.parametrize(
    ("devices", "backend"),
    [
        ([CPU], "gloo"),
        ([CPU, CPU], "gloo"),
        (gpus(0, 1), "cpu:gloo,cuda:nccl"),
        (gpus(3), "cpu:gloo,cuda:nccl"),  # one of each machine's
        (gpus(0, 0), "gloo"),  # NCCL refuses two ranks on one
        (gpus(0, 0, 1, 1), "gloo"),
    ],
)
def test_the_backend_goes_by_the_devices(devices, backend, monkeypatch):
    monkeypatch.setattr("torch.distributed.is_nccl_available", lambda: True)
    strategy = FedAvg()
    strategy.parallel_devices = devices
    assert default_backend(devices) == strategy._get_process_group_backend() == backend
    chosen = FedAvg(process_group_backend="mpi")
    chosen.parallel_devices = devices
    assert chosen._get_process_group_backend() == "mpi"


def test_a_torch_without_nccl_or_gloo_takes_what_there_is(monkeypatch):
    monkeypatch.setattr("torch.distributed.is_nccl_available", lambda: False)
    assert default_backend(gpus(0, 1)) == "gloo"
    monkeypatch.setattr("torch.distributed.is_gloo_available", lambda: False)
    assert default_backend(gpus(0, 1)) == "nccl"


def test_the_gpu_that_is_shared_is_found():
    assert shared_device(gpus(0, 1, 2)) is None
    assert shared_device([CPU, CPU]) is None
    assert shared_device(gpus(0, 1, 2, 1)) == torch.device("cuda", 1)


def test_a_backend_s_name_says_what_carries_which_device():
    assert backends_of(BOTH) == {"cpu": "gloo", "cuda": "nccl"}
    assert backends_of("nccl") == {"cuda": "nccl"}
    assert backends_of("cpu:gloo") == {"cpu": "gloo"}
    assert backends_of("gloo")["cpu"] == backends_of("gloo")["cuda"] == "gloo"


@pytest.mark.parametrize(
    ("backend", "devices", "connects"),
    [(BOTH, gpus(0, 1), True), ("nccl", gpus(0, 1), True), ("gloo", gpus(0, 0), False), ("gloo", [CPU, CPU], False)],
)
def test_gpus_are_named_to_the_group_that_connects_them(backend, devices, connects, monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "0")
    strategy = type("OnFirst", (FedAvg,), {"root_device": devices[0]})(process_group_backend=backend)
    assert strategy._connects_gpus == connects


@pytest.fixture
def group(request: pytest.FixtureRequest) -> Iterator[str]:
    torch.distributed.init_process_group(request.param, store=HashStore(), rank=0, world_size=1)
    yield request.param
    torch.distributed.destroy_process_group()


class OnTwoGPUs(FedAvg):
    """Rank zero of two, each on a GPU."""

    world_size = 2  # type: ignore[assignment]
    global_rank = 0  # type: ignore[assignment]
    root_device = torch.device("cuda", 0)  # type: ignore[assignment]


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """Tensors that went between the ranks, of which the second says the same as the first."""
    found: list[Tensor] = []

    def all_gather(rows: list[Tensor], own: Tensor, group: object = None) -> None:
        found.append(own)
        for row in rows:
            row.copy_(own)

    def one(tensor: Tensor, **_: object) -> None:
        found.append(tensor)

    monkeypatch.setattr(torch.distributed, "all_gather", all_gather)
    monkeypatch.setattr(torch.distributed, "broadcast", one)
    monkeypatch.setattr(torch.distributed, "all_reduce", one)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda group=None: 2)
    return found


@pytest.mark.parametrize("group", ["cpu:gloo,cuda:fake", "gloo"], indirect=True)
def test_what_ranks_on_gpus_tell_each_other_stays_on_the_host(group, sent):
    strategy = OnTwoGPUs()
    assert strategy.message_device == CPU
    large = torch.arange(8000.0)
    assert torch.equal(strategy.exchange({0: large})[0], large)
    assert strategy.broadcast("words") == "words"
    assert Processes(strategy, strategy.root_device).largest(3, 1) == [3, 1]
    assert len(sent) == 4  # a message's head and its rest; one that fits in its head; the largest
    before = len(sent)
    if group != "gloo":
        strategy.barrier()
        assert len(sent) == before + 1
    assert {tensor.device for tensor in sent} == {CPU}


@pytest.mark.parametrize("group", ["cuda:fake"], indirect=True)
def test_where_nccl_is_all_there_is_messages_go_by_the_gpu(group):
    assert OnTwoGPUs().message_device == torch.device("cuda", 0)


def test_one_process_needs_no_device_for_its_largest_numbers():
    assert Processes(FedAvg(), torch.device("cuda", 0)).largest(2, 0) == [2, 0]


COLLECTIVES = """
import sys
from datetime import timedelta
import torch
from lightning.fabric import Fabric
from torch.testing._internal.distributed import fake_pg
import lightning_fl.strategies.rank_exchange as rank_exchange
from lightning_fl.strategies import FedAvg

def check(fabric):
    strategy, rank = fabric.strategy, fabric.global_rank
    reduce, sign = strategy.all_reduce, 1 if rank else -2
    for count in (3, rank_exchange._GATHERED):
        for dtype in (torch.int64, torch.float64):
            numbers = torch.arange(count).to(dtype)
            assert torch.equal(reduce(sign * numbers, reduce_op="sum"), -numbers)
            assert torch.equal(reduce(sign * numbers, reduce_op="max"), numbers)
    assert reduce(torch.tensor(float(sign)), reduce_op="mean") == -0.5
    assert fabric.all_reduce(torch.tensor([4 * sign]), reduce_op="mean") == -2
    assert fabric.all_gather(torch.tensor(sign)).tolist() == [-2, 1]
    assert strategy.exchange({1 - rank: "x" * (9000 * rank)}) == {0: "x" * 9000, 1: ""}
    assert fabric.broadcast(rank, 1) == 1
    assert strategy.reduce_boolean_decision(rank == 0, all=False)
    for dtype in (torch.float32, torch.bfloat16, torch.bool, torch.int64):
        vector = torch.tensor([rank, 1, 0]).to(dtype)
        strategy.broadcast_bytes_(vector, 1)
        assert torch.equal(vector, torch.tensor([1, 1, 0]).to(dtype))
    fabric.barrier()
    group = torch.distributed.group.WORLD
    for device, backend in rank_exchange.backends_of().items():
        if backend != "fake":
            assert group._get_backend(torch.device(device)).options._timeout == timedelta(seconds=77), device
    # Whole in one write: of two processes that share a pipe.
    print(f"agreed on {len(set(rank_exchange.backends_of().values()))}\\n", end="", flush=True)

backend = None if sys.argv[1] == "default" else sys.argv[1]
strategy = FedAvg(start_method="fork", process_group_backend=backend, timeout=77)
Fabric(strategy=strategy, accelerator="cpu", devices=2).launch(check)
"""


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.parametrize(
    ("backend", "count"), [("default", 1), ("cpu:gloo", 1), ("cpu:gloo,cuda:gloo", 1), ("cpu:gloo,cuda:fake", 2)]
)
def test_all_that_ranks_do_together_by_whichever_backends(
    backend: str, count: int, start_warm: Callable[..., Process]
) -> None:
    ended = start_warm("-c", COLLECTIVES, backend).end()
    assert ended.out.count(f"agreed on {count}") == 2, ended.err
