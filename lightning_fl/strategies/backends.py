"""Which backend of torch.distributed carries what: weights go between GPUs by NCCL, and what ranks tell each other by
Gloo, beside the GPUs' queues."""

from collections.abc import Sequence

import torch
import torch.distributed
from lightning.fabric.utilities.distributed import _get_default_process_group_backend_for_device
from torch.distributed.distributed_c10d import BackendConfig

__all__ = ["BOTH", "backends_of", "default_backend", "shared_device"]

#: A group with a backend for each kind of device.
BOTH = "cpu:gloo,cuda:nccl"


def default_backend(devices: Sequence[torch.device]) -> str:
    """The backend of ranks on these devices.

    Args:
        devices: of the ranks of this machine.
    """
    first = devices[0]
    if first.type != "cuda" or not torch.distributed.is_gloo_available():
        return _get_default_process_group_backend_for_device(first)
    if shared_device(devices) is not None:
        return "gloo"
    return BOTH if torch.distributed.is_nccl_available() else "gloo"


def backends_of(group: torch.distributed.ProcessGroup | str | None = None) -> dict[str, str]:
    """Kind of device -> what carries its tensors.

    Args:
        group: of ranks, ``None`` for all; or the name of a backend, such as ``"cpu:gloo,cuda:nccl"``.
    """
    name = group if isinstance(group, str) else torch.distributed.get_backend_config(group)
    return BackendConfig(name).get_device_backend_map()


def shared_device(devices: Sequence[torch.device]) -> torch.device | None:
    """The first GPU that several ranks compute on, if there is one."""
    gpus = [device for device in devices if device.type != "cpu"]
    return next((device for place, device in enumerate(gpus) if device in gpus[:place]), None)
