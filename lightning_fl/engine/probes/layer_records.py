"""Inputs and outputs of a layer for a client's samples."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from lightning_fl.core.errors import ConfigurationError, listed
from lightning_fl.data.module import Split
from lightning_fl.data.targets import batch_targets
from lightning_fl.engine.batches.client import ClientBatches, SizedBatch
from lightning_fl.engine.turn.loop import LocalLoop
from lightning_fl.engine.turn.metric_states import preserve_metrics
from lightning_fl.engine.weights.flat import Weights

__all__ = ["LayerRecords", "exact_targets", "hooked", "layer_records", "named_layer"]


def named_layer(module: nn.Module, name: str, option: str = "layer") -> nn.Module:
    """Look up a submodule by the name that an option gives."""
    layers = {other: part for other, part in module.named_modules(remove_duplicate=False) if other}
    if name not in layers:
        raise ConfigurationError(
            f"{option}={name!r}: {type(module).__name__} has no such submodule; it has {listed([*layers], near=name)}."
        )
    return layers[name]


class LayerRecords(NamedTuple):
    """A layer's inputs [n, d] and outputs [n, ...], and the targets [n, ...], for a client's samples in order."""

    inputs: Tensor
    outputs: Tensor
    targets: Tensor


def layer_records(
    loop: LocalLoop, client: int, weights: Weights, split: Split, name: str, layer: nn.Module
) -> LayerRecords | None:
    """Record a layer while a client's samples are validated, without logging.

    Args:
        weights: of the model, with the client's personal layers.
        layer: runs once per batch, on vectors.

    Returns:
        The records; ``None`` if the client has no samples in the split.

    Raises:
        ConfigurationError: the layer does not run once per batch on one vector per sample.
    """
    seen: list[tuple[Any, Any]] = []
    targets: list[Tensor] = []
    path = loop.path(client, f"records of {name}")

    def read(batches: ClientBatches) -> Iterator[SizedBatch]:
        for batch, size in batches.once(path):
            targets.append(exact_targets(batch))
            yield batch, size

    with hooked(loop, layer, lambda _, given, made: seen.append((given[0] if given else None, made))):
        report = loop.evaluator.evaluate(client, weights, split, read)
    if report is None or not targets:
        return None
    fits = len(seen) == len(targets) and all(
        isinstance(given, Tensor) and given.ndim == 2 and isinstance(made, Tensor) and len(given) == len(of_batch)
        for (given, made), of_batch in zip(seen, targets, strict=False)
    )
    if not fits:
        raise ConfigurationError(
            f"layer={name!r} does not run once per batch on one vector per sample: name the last submodule that maps a"
            " sample's features to its outputs."
        )
    given, made = zip(*seen, strict=True)
    return LayerRecords(torch.cat(given), torch.cat(made), torch.cat(targets).to(given[0].device))


def exact_targets(batch: Any) -> Tensor:
    """A batch's targets, with NaN for those with only a known bound."""
    targets, bound = batch_targets(batch), getattr(batch, "y_bound", None)
    return targets if bound is None else targets.masked_fill(bound.reshape(targets.shape) != 0, torch.nan)


@contextmanager
def hooked(loop: LocalLoop, layer: nn.Module, hook: Callable[..., Any]) -> Iterator[None]:
    """Context with a forward hook on a layer, after which weights and metrics are as before."""
    present, handle = loop.flat.collect().clone(), layer.register_forward_hook(hook)
    try:
        with preserve_metrics(loop.module):
            yield
    finally:
        handle.remove()
        loop.flat.load(present)
