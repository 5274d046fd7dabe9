"""Several processes on one GPU: what is refused before anything is started, and the bits of one process."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.fabric.accelerators import CUDAAccelerator
from processes import SUPPORT, Process, reserved_port, succeed

from lightning_fl import ConfigurationError, FederatedTrainer
from lightning_fl.strategies import FedAvg


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two, as far as Fabric looks before a run begins."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for module in ("lightning.fabric.accelerators.cuda", "lightning.fabric.utilities.device_parser"):
        monkeypatch.setattr(f"{module}.num_cuda_devices", lambda: 2, raising=False)
    monkeypatch.setattr(CUDAAccelerator, "is_available", staticmethod(lambda: True))
    monkeypatch.setattr(
        "lightning.fabric.utilities.device_parser._get_all_available_gpus", lambda *_, **__: [0, 1], raising=False
    )
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1, 2, 3})


def devices_of(**arguments: Any) -> list[str]:
    strategy = FederatedTrainer(**arguments).strategy
    assert strategy.parallel_devices is not None
    assert strategy.launcher is not None
    assert strategy.launcher.num_processes == strategy.num_processes == len(strategy.parallel_devices)  # type: ignore[attr-defined]
    return [str(device) for device in strategy.parallel_devices]


@pytest.mark.parametrize("accelerator", ["auto", "cuda", "gpu"])
def test_every_gpu_has_so_many_processes(accelerator: str, gpus: None) -> None:
    of_two = ["cuda:0", "cuda:1", "cuda:0", "cuda:1"]
    assert devices_of(accelerator=accelerator, processes_per_device=2) == of_two
    assert devices_of(accelerator=accelerator, devices=1, processes_per_device=3) == ["cuda:0"] * 3
    assert devices_of(accelerator=accelerator, devices=[1], processes_per_device=2) == ["cuda:1"] * 2
    assert devices_of(accelerator=accelerator, devices="0,1", processes_per_device=2) == of_two
    assert devices_of(accelerator=accelerator) == ["cuda:0", "cuda:1"]


def test_their_backend_is_gloo(gpus: None) -> None:
    trainer = FederatedTrainer(processes_per_device=2)
    assert trainer.strategy._get_process_group_backend() == "gloo"
    given = FederatedTrainer(processes_per_device=2, strategy=FedAvg(process_group_backend="gloo"))
    assert given.strategy.num_processes == 4


def test_no_more_than_clients_and_one_for_each_gpu_first(gpus: None) -> None:
    strategy = FederatedTrainer(processes_per_device=2).strategy
    with pytest.warns(UserWarning, match="4 processes, several to a GPU, are lowered to 3: there are 3 clients"):
        strategy.limit_processes(3, "there are 3 clients")
    assert [str(device) for device in strategy.parallel_devices or ()] == ["cuda:0", "cuda:1", "cuda:0"]
    with pytest.warns(UserWarning, match="lowered to 2"):
        strategy.limit_processes(2, "there are 2 clients")
    assert strategy._get_process_group_backend() == "cpu:gloo,cuda:nccl"  # nothing is shared any more


REFUSED = [
    # NCCL connects no two processes on one GPU
    *[
        ({"accelerator": "cuda", "processes_per_device": 2, "strategy": backend}, "processes_per_device=2.*NCCL")
        for backend in ("nccl", "cpu:gloo,cuda:nccl")
    ],
    # a GPU that is named twice
    ({"accelerator": "cuda", "devices": [0, 0]}, "GPU 0 .*processes_per_device=2"),
    ({"accelerator": "cuda", "devices": "1, 0,1,1"}, "GPU 1 .*processes_per_device=3"),
    ({"accelerator": "cuda", "devices": [2, 0, 2]}, "GPU 2 .*processes_per_device=2"),
    *[
        ({"accelerator": "cpu", "processes_per_device": value}, "processes_per_device=")
        for value in (0, -1, 1.5, True, "2")
    ],
    ({"accelerator": "cpu", "processes_per_device": 2}, "processes_per_device=2 .*cpu.*trainer.devices"),
    # more than four times the cores
    ({"processes_per_device": 9}, "processes_per_device: 18 .*4 CPU cores"),
    ({"accelerator": "cuda", "devices": [5], "processes_per_device": 2}, r"trainer.devices=\[5\]"),
]


@pytest.mark.parametrize(("arguments", "named"), REFUSED)
def test_refused_before_anything_is_started(arguments: dict[str, Any], named: str, gpus: None) -> None:
    if "strategy" in arguments:
        arguments = {**arguments, "strategy": FedAvg(process_group_backend=arguments["strategy"])}
    with pytest.raises(ConfigurationError, match=named):
        FederatedTrainer(**arguments)


@pytest.mark.skipif(torch.cuda.is_available(), reason="auto is a GPU here")
def test_without_a_gpu_auto_is_the_cpu() -> None:
    with pytest.raises(ConfigurationError, match="processes_per_device=2 .*cpu.*trainer.devices"):
        FederatedTrainer(processes_per_device=2)


def test_four_processes_on_each_core_are_allowed(gpus: None) -> None:
    assert FederatedTrainer(processes_per_device=8).strategy.num_processes == 16


@pytest.mark.processes
@pytest.mark.slow
def test_two_processes_that_share_a_device_give_the_bits_of_one(
    tmp_path: Path, start_warm: Callable[..., Process]
) -> None:
    script = SUPPORT / "shared_device.py"
    with reserved_port() as port:
        shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "NODE_RANK": "0", "WORLD_SIZE": "2"}
        alone = start_warm(script, 1, tmp_path / "one", environment={"OMP_NUM_THREADS": "1"})
        ranks = [
            start_warm(script, 2, tmp_path / "two", environment={"OMP_NUM_THREADS": "1", **shared, "LOCAL_RANK": rank})
            for rank in ("0", "1")
        ]
        succeed(alone, *ranks)
    bits = alone.out.split("rank 0 of 1 ")[1]
    assert [process.out for process in ranks] == [f"rank {rank} of 2 {bits}" for rank in range(2)]
