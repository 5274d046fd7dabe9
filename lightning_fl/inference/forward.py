"""Predictions of one model for chunks of new samples."""

from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any, TypeAlias

import torch
from lightning.fabric import Fabric
from lightning.pytorch import LightningModule
from torch import Tensor
from torch.utils.data import DataLoader, default_collate

from lightning_fl.core.errors import ConfigurationError
from lightning_fl.core.lightning_types import is_overridden
from lightning_fl.core.validation import Count, checked
from lightning_fl.data.module import FederatedDataModule
from lightning_fl.data.unlabelled import Unlabelled
from lightning_fl.engine.batches.factory import pack_dataset
from lightning_fl.engine.batches.transfer import BatchTransfer
from lightning_fl.engine.turn.services import takes_batch_index
from lightning_fl.recipe.predictions import check_count, join_outputs

__all__ = ["Outputs", "Predictor", "cut_batches"]

#: Outputs for k samples: name -> values [k, ...] on the CPU; "" is the name of a single tensor.
Outputs: TypeAlias = dict[str, Tensor]

#: Maximum number of units (atoms) of a batch, divided by ``batch_size``.
_UNITS = 64


def cut_batches(count: int, batch_size: int, sizes: Sequence[int] | None = None) -> list[int]:
    """Numbers of samples in consecutive batches, positive with sum ``count``.

    Args:
        sizes: units (atoms) of each sample; a batch has at most ``64 * batch_size`` units or a single sample.
    """
    if sizes is None:
        full, rest = divmod(count, batch_size)
        return [batch_size] * full + ([rest] if rest else [])
    most, batches, units = _UNITS * batch_size, [0], 0
    for size in sizes:
        if batches[-1] and (batches[-1] == batch_size or units + size > most):
            batches.append(0)
            units = 0
        batches[-1] += 1
        units += size
    return [number for number in batches if number]


class Predictor:
    """One model, moved to its device.

    Args:
        data: the run's data module, for its batch hooks.
        precision: Fabric's, such as "32-true".
        batch_size: maximum number of samples; ``None`` for the run's evaluation batch size.

    Raises:
        ConfigurationError: the module defines neither ``predict_step`` nor ``forward``.
    """

    @checked
    def __init__(
        self,
        module: LightningModule,
        data: FederatedDataModule,
        *,
        accelerator: str = "auto",
        precision: Any = None,
        batch_size: Count | None = None,
    ) -> None:
        if not is_overridden("predict_step", module) and not is_overridden("forward", module):
            raise ConfigurationError(f"{type(module).__name__} must define predict_step or forward for predictions.")
        self.batch_size = batch_size or data.loader_options("test")["batch_size"]
        self._takes_index = takes_batch_index(module, "predict_step")
        fabric = Fabric(accelerator=accelerator, devices=1, precision=precision)
        self.device = fabric.device
        self.module = module
        self._transfer = BatchTransfer(module, data, fabric.device, fabric.strategy.precision)
        self._callable = fabric.setup_module(module)
        self._callable.mark_forward_method("predict_step")
        self._callable.eval()

    def __call__(self, chunk: Unlabelled) -> Outputs:
        """Outputs for the k samples of a chunk, k >= 1: tensors with one row per sample."""
        with torch.inference_mode():
            outputs = join_outputs(map(self._predict, count(), self._batches(chunk)))
        check_count(outputs, len(chunk.kept))
        return outputs

    def _predict(self, number: int, batch: Any) -> Any:
        batch = self._transfer(batch, False, 0)
        return self._callable.predict_step(*((batch, number) if self._takes_index else (batch,)))

    def _batches(self, chunk: Unlabelled) -> Iterator[Any]:
        if isinstance(chunk.data, DataLoader):
            yield from chunk.data
            return
        sizes = cut_batches(len(chunk.kept), self.batch_size, chunk.sizes)
        pack = pack_dataset(chunk.data)
        start = 0
        for number in sizes:
            places = torch.arange(start, start + number)
            if pack is not None:
                yield pack.gather(places, [number])[0]
            else:
                yield default_collate([chunk.data[place] for place in places.tolist()])
            start += number
