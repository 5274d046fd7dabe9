"""Bringing a batch to the device and precision that the module trains in."""

from typing import Any

import torch
from lightning.fabric.plugins.precision import MixedPrecision, Precision
from lightning.fabric.utilities.apply_func import move_data_to_device
from lightning.pytorch import LightningModule
from lightning_utilities.core.apply_func import apply_to_collection
from torch import Tensor

from lightning_fl.engine.batches.packs import channels_last
from lightning_fl.lightning_types import is_overridden

__all__ = ["BatchTransfer"]


class BatchTransfer:
    """Brings a batch to the device and precision, through the user's transfer hooks where there are any.

    Args:
        module: the user's module.
        datamodule: the user's data.
        device: where batches go.
        precision: Fabric's.
        channels_last: whether images get the channels-last memory format.
    """

    def __init__(
        self,
        module: LightningModule,
        datamodule: Any,
        device: torch.device,
        precision: Precision,
        *,
        channels_last: bool = False,
    ) -> None:
        self._device = device
        self._channels_last = channels_last
        self._convert = None if isinstance(precision, MixedPrecision) or type(precision) is Precision else precision
        names = ("on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer")
        self.hooks: dict[str, Any] = {}
        for name in names:
            # As in Lightning, the data module's hook comes before the module's.
            owner = next((part for part in (datamodule, module) if is_overridden(name, part)), None)
            if owner is not None:
                self.hooks[name] = getattr(owner, name)

    def __call__(self, batch: Any, on_device: bool) -> Any:
        """The batch as the step gets it; ``on_device`` says that it lies there already."""
        hooks = self.hooks
        if "on_before_batch_transfer" in hooks:
            batch = hooks["on_before_batch_transfer"](batch, 0)
        if "transfer_batch_to_device" in hooks:
            batch = hooks["transfer_batch_to_device"](batch, self._device, 0)
        elif not on_device:
            batch = move_data_to_device(batch, self._device)
        if "on_after_batch_transfer" in hooks:
            batch = hooks["on_after_batch_transfer"](batch, 0)
        if self._convert is not None:
            batch = self._to_precision(batch)
        if self._channels_last:
            batch = apply_to_collection(batch, Tensor, channels_last)
        return batch

    def _to_precision(self, batch: Any) -> Any:
        assert self._convert is not None
        if hasattr(batch, "stores"):  # a PyG batch: its own way to visit tensors
            return batch.clone().apply(self._convert.convert_input)
        return self._convert.convert_input(batch)
