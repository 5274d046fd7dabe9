"""A run whose processes share a device, which is a CPU that is called a GPU: what starts them, who hosts whom and what
ranks send is that of a GPU. Its words are the number of processes and a folder; every rank prints one line."""

import sys
from typing import Any

import torch
from lightning.fabric.accelerators import CUDAAccelerator
from tiny import TinyClients, TinyModule, digest


def call_the_cpu_a_gpu() -> None:
    """Fabric finds one GPU on this machine, whose tensors are the CPU's."""

    def devices_of(numbers: list[int]) -> list[torch.device]:
        return [torch.device("cpu") for _ in numbers]

    patched: dict[str, Any] = {
        "is_available": lambda: True,
        "auto_device_count": lambda: 1,
        "parse_devices": lambda devices: [0],
        "get_parallel_devices": devices_of,
        "setup_device": lambda device: None,
    }
    for name, function in patched.items():
        setattr(CUDAAccelerator, name, staticmethod(function))


def main(processes: int, folder: str) -> None:
    call_the_cpu_a_gpu()
    from lightning_fl import FederatedTrainer

    trainer = FederatedTrainer(
        accelerator="auto",
        processes_per_device=processes,
        max_rounds=3,
        local_steps=4,
        default_root_dir=folder,
        enable_progress_bar=False,
        logger=False,
    )
    trainer.fit(TinyModule(dropout=0.2, norm=True), TinyClients((64, 40, 30, 20)))
    print("rank", trainer.fabric.global_rank, "of", trainer.fabric.world_size, digest(trainer.models[0]), flush=True)


if __name__ == "__main__":
    torch.cuda.is_available = lambda: True
    main(int(sys.argv[1]), sys.argv[2])
