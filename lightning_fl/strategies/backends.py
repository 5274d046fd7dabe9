"""Backends of torch.distributed: NCCL for weights between GPUs, Gloo for messages, outside the GPUs' queues."""

from collections.abc import Sequence

import torch
import torch.distributed
from lightning.fabric.utilities.distributed import _get_default_process_group_backend_for_device
from torch.distributed.distributed_c10d import BackendConfig

from lightning_fl.core.errors import ConfigurationError

#: A group with a backend for each kind of device.
BOTH = "cpu:gloo,cuda:nccl"


def default_backend(devices: Sequence[torch.device]) -> str:
    """The backend of ranks on these devices of this machine."""
    first = devices[0]
    if first.type != "cuda" or not torch.distributed.is_gloo_available():
        return _get_default_process_group_backend_for_device(first)
    if shared_device(devices) is not None:
        return "gloo"
    return BOTH if torch.distributed.is_nccl_available() else "gloo"


def backends_of(group: torch.distributed.ProcessGroup | str | None = None) -> dict[str, str]:
    """The backend of each device type.

    Args:
        group: of ranks, ``None`` for all; or the name of a backend, such as ``"cpu:gloo,cuda:nccl"``.
    """
    name = group if isinstance(group, str) else torch.distributed.get_backend_config(group)
    return BackendConfig(name).get_device_backend_map()


def shared_device(devices: Sequence[torch.device]) -> torch.device | None:
    """The first GPU that several ranks use, if there is one."""
    gpus = [device for device in devices if device.type != "cpu"]
    return next((device for place, device in enumerate(gpus) if device in gpus[:place]), None)


def check_shared_devices(
    backend: str | None, accelerator: str, devices: int | str | list[int], processes_per_device: int
) -> None:
    """Refuse processes that cannot share a GPU, before NCCL fails late with an obscure message.

    ``backend`` is the requested one, if any; the others are arguments of :class:`~lightning_fl.FederatedTrainer`.
    """
    named = devices if isinstance(devices, list | tuple) else str(devices).strip(" ,").split(",")
    numbers = [int(number) for number in named if str(number).strip().isdecimal()]
    twice = next((number for place, number in enumerate(numbers) if number in numbers[:place]), None)
    if twice is not None:
        raise ConfigurationError(
            f"trainer.devices={devices} names GPU {twice} more than once: name every GPU once, and set"
            f" trainer.processes_per_device={numbers.count(twice)} for several processes on each."
        )
    if processes_per_device == 1:
        return
    if accelerator not in ("auto", "cuda", "gpu"):
        raise ConfigurationError(
            f"trainer.processes_per_device={processes_per_device} is for processes that share a GPU, and the"
            f" accelerator is {accelerator}: set trainer.devices to the number of processes."
        )
    if backend is not None and backends_of(backend).get("cuda") == "nccl":
        raise ConfigurationError(
            f"trainer.processes_per_device={processes_per_device} with process_group_backend={backend!r}: NCCL cannot"
            " connect two processes on one GPU. Leave process_group_backend out, which selects Gloo, or set"
            " trainer.processes_per_device=1."
        )
