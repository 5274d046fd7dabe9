"""Predictions of one model for chunks of new samples."""

from collections.abc import Iterator, Mapping, Sequence
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
from lightning_fl.engine.turn.module_checks import takes_batch_index

__all__ = ["Outputs", "Predictor", "cut_batches"]

#: Outputs for k samples: name -> values [k, ...] on the CPU; "" is the name of a single tensor.
Outputs: TypeAlias = dict[str, Tensor]

#: Maximum number of units (atoms) of a batch, divided by ``batch_size``.
_UNITS = 64


def cut_batches(count: int, batch_size: int, sizes: Sequence[int] | None = None) -> list[int]:
    """Numbers of samples in consecutive batches, positive with sum n.

    Args:
        count: n samples.
        batch_size: maximum number of samples.
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
    """One model on its device.

    Args:
        module: with its weights; moved to the device.
        data: the run's data module, for its batch hooks.
        accelerator: "cpu", "cuda" or "auto".
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
        self.batch_size = batch_size or data.eval_batch_size
        self._takes_index = takes_batch_index(module, "predict_step")
        fabric = Fabric(accelerator=accelerator, devices=1, precision=precision)
        self.device = fabric.device
        self.module = module
        self._transfer = BatchTransfer(module, data, fabric.device, fabric.strategy.precision)
        self._callable = fabric.setup_module(module)
        self._callable.mark_forward_method("predict_step")
        self._callable.eval()

    def __call__(self, chunk: Unlabelled) -> Outputs:
        """Outputs for the k samples of a chunk, k >= 1.

        Raises:
            ConfigurationError: ``predict_step`` does not return tensors with one row per sample.
        """
        found: list[Outputs] = []
        with torch.inference_mode():
            for number, batch in enumerate(self._batches(chunk)):
                batch = self._transfer(batch, False, 0)
                arguments = (batch, number) if self._takes_index else (batch,)
                found.append(_named(self._callable.predict_step(*arguments)))
        count = len(chunk.kept)
        outputs = {name: torch.cat([part[name] for part in found]) for name in found[0]}
        for values in outputs.values():
            if len(values) != count:
                raise ConfigurationError(
                    f"predict_step returned values of shape {list(values.shape)} for {count} samples: return one row"
                    " per sample."
                )
        return outputs

    def _batches(self, chunk: Unlabelled) -> Iterator[Any]:
        if isinstance(chunk.data, DataLoader):
            yield from chunk.data
            return
        count = len(chunk.kept)
        sizes = cut_batches(count, self.batch_size, chunk.sizes)
        pack = pack_dataset(chunk.data)
        start = 0
        for number in sizes:
            places = torch.arange(start, start + number)
            if pack is not None:
                yield pack.gather(places, [number])[0]
            else:
                yield default_collate([chunk.data[place] for place in places.tolist()])
            start += number


def _named(output: Any) -> Outputs:
    """Outputs of ``predict_step`` for a batch, by name."""
    parts = output if isinstance(output, Mapping) else {"": output}
    if not all(isinstance(value, Tensor) for value in parts.values()):
        raise ConfigurationError(
            f"predict_step returned a {type(output).__name__}: return a tensor with one row per sample, or a dict of"
            " such tensors."
        )
    return {str(name): _to_cpu(value) for name, value in parts.items()}


def _to_cpu(values: Tensor) -> Tensor:
    """On the CPU, at least one-dimensional, in a precision that NumPy knows."""
    values = torch.atleast_1d(values.detach()).cpu()
    return values.float() if values.dtype in (torch.bfloat16, torch.float16) else values
