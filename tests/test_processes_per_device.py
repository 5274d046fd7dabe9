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


@pytest.mark.parametrize("backend", ["nccl", "cpu:gloo,cuda:nccl"])
def test_nccl_is_refused_before_anything_is_started(backend: str) -> None:
    with pytest.raises(
        ConfigurationError,
        match=rf"processes_per_device=2 with process_group_backend='{backend}': NCCL",
    ):
        FederatedTrainer(accelerator="cuda", processes_per_device=2, strategy=FedAvg(process_group_backend=backend))


@pytest.mark.skipif(torch.cuda.is_available(), reason="auto is a GPU here")
@pytest.mark.parametrize("accelerator", ["cpu", "auto"])
def test_on_a_cpu_devices_is_the_number_of_processes(accelerator: str) -> None:
    with pytest.raises(ConfigurationError, match="processes_per_device=2 .*cpu.*trainer.devices"):
        FederatedTrainer(accelerator=accelerator, processes_per_device=2)


@pytest.mark.parametrize(("devices", "number", "count"), [([0, 0], 0, 2), ("1, 0,1,1", 1, 3), ([2, 0, 2], 2, 2)])
def test_a_gpu_that_is_named_twice_is_refused_with_the_mend(devices: Any, number: int, count: int) -> None:
    with pytest.raises(
        ConfigurationError, match=rf"names GPU {number} more than once: .*set trainer.processes_per_device={count} for"
    ):
        FederatedTrainer(accelerator="cuda", devices=devices)


@pytest.mark.parametrize("value", [0, -1, 1.5, True, "2"])
def test_it_is_a_number_of_processes(value: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"trainer.processes_per_device="):
        FederatedTrainer(accelerator="cpu", processes_per_device=value)


def test_far_more_processes_than_cores_are_refused(gpus: None) -> None:
    assert FederatedTrainer(processes_per_device=8).strategy.num_processes == 16
    with pytest.raises(ConfigurationError, match="processes_per_device make 18 processes.* 4 CPU cores"):
        FederatedTrainer(processes_per_device=9)


def test_a_gpu_that_is_not_there_is_said(gpus: None) -> None:
    with pytest.raises(ConfigurationError, match=r"trainer.devices=\[5\]: .*gpu: \[5\] But .* This machine has"):
        FederatedTrainer(accelerator="cuda", devices=[5], processes_per_device=2)


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
