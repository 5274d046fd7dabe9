"""Transfer of batches to the device and precision of the module."""

from dataclasses import dataclass, field
from typing import Any

import torch
from lightning.fabric.plugins.precision import MixedPrecision, Precision
from lightning.fabric.utilities.apply_func import move_data_to_device
from lightning.pytorch import LightningModule
from lightning_utilities.core.apply_func import apply_to_collection
from torch import Tensor

from lightning_fl.core.lightning_types import is_overridden
from lightning_fl.data.module import BATCH_HOOKS, FederatedDataModule


@dataclass(eq=False, repr=False)
class BatchTransfer:
    """Moves batches to the device and precision, through the user's transfer hooks if defined."""

    module: LightningModule
    data: FederatedDataModule
    device: torch.device
    precision: Precision
    channels_last: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        self._converts = not isinstance(self.precision, MixedPrecision) and type(self.precision) is not Precision
        #: Id of a data module -> that data module, and the hooks of its clients' batches.
        self._hooks_of: dict[int, tuple[Any, dict[str, Any]]] = {}

    def hooks(self, client: int) -> dict[str, Any]:
        """Name -> transfer hook of a hosted client's batches."""
        own = self.data.transfer_hooks(client)
        if id(own) not in self._hooks_of:
            parts = (own, self.module)  # as in Lightning, the data module's hook comes before the module's
            owners = {name: next((part for part in parts if is_overridden(name, part)), None) for name in BATCH_HOOKS}
            found = {name: getattr(owner, name) for name, owner in owners.items() if owner is not None}
            self._hooks_of[id(own)] = own, found
        return self._hooks_of[id(own)][1]

    def __call__(self, batch: Any, on_device: bool, client: int, dataloader_idx: int = 0) -> Any:
        hooks = self.hooks(client)
        if "on_before_batch_transfer" in hooks:
            batch = hooks["on_before_batch_transfer"](batch, dataloader_idx)
        if "transfer_batch_to_device" in hooks:
            batch = hooks["transfer_batch_to_device"](batch, self.device, dataloader_idx)
        elif not on_device:
            batch = move_data_to_device(batch, self.device)
        if "on_after_batch_transfer" in hooks:
            batch = hooks["on_after_batch_transfer"](batch, dataloader_idx)
        if self._converts:
            convert = self.precision.convert_input
            # A PyG batch has its own way to visit tensors.
            batch = batch.clone().apply(convert) if hasattr(batch, "stores") else convert(batch)
        if self.channels_last:
            batch = to_channels_last(batch)
        return batch


def to_channels_last(batch: Any) -> Any:
    """A batch with its images [n, c, h, w] and volumes [n, c, d, h, w] of floats in channels-last memory."""
    return apply_to_collection(batch, Tensor, _converted)


def _converted(tensor: Tensor) -> Tensor:
    if tensor.is_floating_point() and tensor.ndim == 4:
        return channels_last(tensor)
    volumes = tensor.is_floating_point() and tensor.ndim == 5
    return tensor.contiguous(memory_format=torch.channels_last_3d) if volumes else tensor


def channels_last(images: Tensor) -> Tensor:
    """Images [n, c, h, w] with the channels innermost in memory; shape and values are unchanged."""
    _, channels, height, width = images.shape
    # Not contiguous(memory_format=...): it returns images of one channel unchanged, as they are in both formats at
    # once, and the convolutions then assume the other; and torch.func.vmap does not support it.
    strides = (channels * height * width, 1, width * channels, channels)
    return images.permute(0, 2, 3, 1).contiguous().as_strided(images.shape, strides)
