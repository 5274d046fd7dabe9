"""What goes into a layer and comes out of it for a client's samples."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from lightning_fl.core.errors import ConfigurationError
from lightning_fl.data.module import Split
from lightning_fl.data.targets import batch_targets
from lightning_fl.engine.batches.client import ClientBatches, SizedBatch
from lightning_fl.engine.turn.loop import LocalLoop
from lightning_fl.engine.turn.metric_states import preserve_metrics
from lightning_fl.engine.weights.flat import Weights

__all__ = ["LayerRecords", "exact_targets", "layer_records"]


class LayerRecords(NamedTuple):
    """Of a client's samples in their own order: a layer's inputs [n, d] and outputs [n, ...], and targets [n, ...]."""

    inputs: Tensor
    outputs: Tensor
    targets: Tensor


def layer_records(
    loop: LocalLoop, client: int, weights: Weights, split: Split, name: str, layer: nn.Module
) -> LayerRecords | None:
    """What passes through a layer when a client's samples are validated; nothing is logged or counted.

    Args:
        loop: outside of a turn.
        client: hosted.
        weights: of the model, with the client's personal layers.
        split: whose samples.
        name: of the layer, in messages.
        layer: runs once for a batch, on vectors.

    Returns:
        The records; ``None`` where the client has no samples in the split.

    Raises:
        ConfigurationError: the layer does not run once for every batch, or not on one vector for each sample.
    """
    seen: list[tuple[Any, Any]] = []
    targets: list[Tensor] = []
    path = loop.path(client, f"records of {name}")

    def read(batches: ClientBatches) -> Iterator[SizedBatch]:
        for batch, size in batches.once(path):
            targets.append(exact_targets(batch))
            yield batch, size

    present = loop.flat.collect().clone()
    with _recorded(layer, seen), preserve_metrics(loop.module):
        report = loop.evaluate(client, weights, split, read)
    loop.flat.load(present)
    if report is None or not targets:
        return None
    fits = len(seen) == len(targets) and all(
        isinstance(given, Tensor) and given.ndim == 2 and isinstance(made, Tensor) and len(given) == len(of_batch)
        for (given, made), of_batch in zip(seen, targets, strict=False)
    )
    if not fits:
        raise ConfigurationError(
            f"layer={name!r} does not run once for every batch on one vector for each sample: name another submodule,"
            " the last one that maps a sample's features to its outputs."
        )
    given, made = zip(*seen, strict=True)
    return LayerRecords(torch.cat(given), torch.cat(made), torch.cat(targets).to(given[0].device))


def exact_targets(batch: Any) -> Tensor:
    """A batch's targets, NaN where only a bound is known."""
    targets, bound = batch_targets(batch), getattr(batch, "y_bound", None)
    return targets if bound is None else targets.masked_fill(bound.reshape(targets.shape) != 0, torch.nan)


@contextmanager
def _recorded(layer: nn.Module, seen: list[tuple[Any, Any]]) -> Iterator[None]:
    handle = layer.register_forward_hook(lambda _, given, made: seen.append((given[0] if given else None, made)))
    try:
        yield
    finally:
        handle.remove()
