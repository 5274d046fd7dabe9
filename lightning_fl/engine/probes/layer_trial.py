"""Trial before training whether a module's ``validation_step`` uses a layer's output as its predictions."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from lightning_fl.core.metrics import default_metric, higher_is_better
from lightning_fl.data.targets import batch_targets
from lightning_fl.engine.batches.client import ClientBatches, SizedBatch
from lightning_fl.engine.probes.layer_records import hooked
from lightning_fl.engine.turn.loop import LocalLoop
from lightning_fl.engine.weights.flat import Weights
from lightning_fl.functional.neighbors import Task

__all__ = ["layer_misses_targets"]

#: A logit of near certainty.
_SURE = 10.0
#: Most wrong classes to try for each sample.
_TURNS = 9


def layer_misses_targets(
    loop: LocalLoop,
    client: int,
    weights: Weights,
    layer: nn.Module,
    task: Task,
    target_scales: tuple[Tensor, Tensor] | None = None,
) -> str:
    """The fault of a layer as the source of predictions; empty if there is none.

    For a client's first training batch the layer's output is replaced by the targets. What ``validation_step`` logs
    then (the first loss, else the first metric) must not be worse than with neutral outputs or wrong classes, or with
    values shifted or stretched by a tenth of their deviation.

    Args:
        target_scales: mean and deviation that convert targets to the output's scale.
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
    known, *wrong = _answers(targets[0].to(outputs[0].device), outputs[0], task, target_scales)
    best = logged(known)
    others = [found[1] for answer in wrong if (found := logged(answer)) is not None]
    if best is None or not others or not min(others) < best[1]:  # also where nothing, or NaN, is logged
        return ""
    return (
        f"with the targets instead of its output (as {task}) {type(loop.module).__name__} logs {best[0]} ="
        f" {abs(best[1]):.4g}, and with wrong ones {abs(min(others)):.4g}, which is better: validation_step does not"
        " use this output as its predictions"
    )


def _answers(targets: Tensor, outputs: Tensor, task: Task, target_scales: tuple[Tensor, Tensor] | None) -> list[Tensor]:
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
    if target_scales is not None:
        known = (known - target_scales[0]) / target_scales[1]
    middle, deviation = known.mean(0), known.std(0) if len(known) > 1 else torch.ones_like(known[0])
    deviation = torch.where(deviation > 0, deviation, 1.0)
    stretched = [middle + factor * (known - middle) for factor in (1.1, 0.9)]
    return [known, known + 0.1 * deviation, known - 0.1 * deviation, *stretched]
