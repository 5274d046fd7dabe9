"""Inputs and outputs of a layer for a client's samples, and whether its outputs are the module's predictions."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from lightning_fl.core.errors import ConfigurationError, listed
from lightning_fl.core.metrics import default_metric, higher_is_better
from lightning_fl.data.module import Split
from lightning_fl.data.targets import batch_targets
from lightning_fl.engine.batches.client import ClientBatches, SizedBatch
from lightning_fl.engine.turn.loop import LocalLoop
from lightning_fl.engine.turn.metric_states import preserve_metrics
from lightning_fl.engine.weights.flat import Weights
from lightning_fl.functional.neighbors import Task


def named_layer(module: nn.Module, name: str, option: str = "layer") -> nn.Module:
    """Look up a submodule by the name that an option gives."""
    layers = {other: part for other, part in module.named_modules(remove_duplicate=False) if other}
    if name not in layers:
        known = listed([*layers], near=name)
        raise ConfigurationError(f"{option}={name!r}: {type(module).__name__} has no such submodule. It has {known}.")
    return layers[name]


class LayerRecords(NamedTuple):
    """A layer's inputs [n, d] and outputs [n, ...], and the targets [n, ...], for a client's samples in order."""

    inputs: Tensor
    outputs: Tensor
    targets: Tensor


def layer_records(
    loop: LocalLoop, client: int, weights: Weights, split: Split, name: str, layer: nn.Module
) -> LayerRecords | None:
    """Record a layer, which runs once per batch on one vector per sample, while a client's samples are validated."""
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
        raise ConfigurationError(f"layer={name!r} must run once per batch, on a vector per sample: name a later one.")
    given, made = zip(*seen, strict=True)
    return LayerRecords(torch.cat(given), torch.cat(made), torch.cat(targets).to(given[0].device))


def exact_targets(batch: Any) -> Tensor:
    """A batch's targets, with NaN for those with only a known bound."""
    targets, bound = batch_targets(batch), getattr(batch, "y_bound", None)
    return targets if bound is None else targets.masked_fill(bound.reshape(targets.shape) != 0, torch.nan)


@contextmanager
def hooked(loop: LocalLoop, layer: nn.Module, hook: Callable[..., Any]) -> Iterator[None]:
    """Context with a forward hook on a layer, after which weights and metrics are as before."""
    with loop.flat.preserved(), layer.register_forward_hook(hook), preserve_metrics(loop.module):
        yield


#: A logit of near certainty.
_SURE = 10.0
#: Most wrong classes to try for each sample.
_TURNS = 9


def layer_misses_targets(
    loop: LocalLoop, client: int, weights: Weights, layer: nn.Module, task: Task, scales: tuple[Tensor, Tensor] | None
) -> str:
    """The fault of a layer as the source of predictions; empty if there is none.

    For a client's first training batch the layer's output is replaced by the targets. What ``validation_step`` logs
    then (the first loss, else the first metric) must not be worse than with neutral outputs or wrong classes, or with
    values shifted or stretched by a tenth of their deviation.
    """
    targets: list[Tensor] = []
    path = loop.path(client, "trial of a layer")

    def read(batches: ClientBatches) -> Iterator[SizedBatch]:
        batch, size = next(iter(batches.once(path)))
        targets[:] = [batch_targets(batch)]
        yield batch, size

    def logged(given: Tensor | None) -> tuple[str, float] | None:
        """The name and value of the logged metric, where less is better."""

        def replace(_: nn.Module, inputs: object, output: Tensor) -> Tensor:
            outputs[:] = [output]
            return output if given is None else given.to(output).reshape(output.shape)

        with hooked(loop, layer, replace):
            report = loop.evaluator.evaluate(client, weights, "train", read)
        name = None if report is None else default_metric(report.metrics)
        if report is None or name is None:
            return None
        found = report.metrics[name]
        return name, -found.value if higher_is_better(name, found.higher_is_better) else found.value

    outputs: list[Tensor] = []
    logged(None)
    known, *wrong = _answers(targets[0].to(outputs[0].device), outputs[0], task, scales)
    best = logged(known)
    others = [found[1] for answer in wrong if (found := logged(answer)) is not None]
    if best is None or not others or not min(others) < best[1]:  # also where nothing, or NaN, is logged
        return ""
    what = f"with the targets instead of its output (as {task}) {type(loop.module).__name__} logs {best[0]}"
    values = f"{abs(best[1]):.4g}, and with wrong ones {abs(min(others)):.4g}, which is better"
    return f"{what} = {values}: validation_step does not use this output as its predictions"


def _answers(targets: Tensor, outputs: Tensor, task: Task, scales: tuple[Tensor, Tensor] | None) -> list[Tensor]:
    """The right outputs, then wrong ones."""
    rows = targets.reshape(len(targets), -1).double()
    if task == "classes":
        right = _SURE * nn.functional.one_hot(rows[:, 0].long(), outputs.shape[1])
        turns = range(1, min(outputs.shape[1], _TURNS + 1))
        return [right, torch.zeros_like(right), *(right.roll(turn, 1) for turn in turns)]
    known = rows.nan_to_num()
    if task == "binary":
        right = torch.where(known > 0, _SURE, -_SURE)
        return [right, torch.zeros_like(right), -right]
    if scales is not None:
        known = (known - scales[0]) / scales[1]
    middle, deviation = known.mean(0), known.std(0) if len(known) > 1 else torch.ones_like(known[0])
    deviation = torch.where(deviation > 0, deviation, 1.0)
    stretched = [middle + factor * (known - middle) for factor in (1.1, 0.9)]
    return [known, known + 0.1 * deviation, known - 0.1 * deviation, *stretched]
