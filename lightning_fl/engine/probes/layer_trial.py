"""Whether a layer's output is what a module's ``validation_step`` takes for its predictions, tried before training."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from lightning_fl.core.metrics import default_metric, higher_is_better
from lightning_fl.data.targets import batch_targets
from lightning_fl.engine.batches.client import ClientBatches, SizedBatch
from lightning_fl.engine.turn.loop import LocalLoop
from lightning_fl.engine.turn.metric_states import preserve_metrics
from lightning_fl.engine.weights.flat import Weights
from lightning_fl.functional.neighbors import Task

__all__ = ["layer_misses_targets"]

#: A logit that leaves no doubt.
_SURE = 10.0
#: Most wrong classes that are tried for each sample.
_TURNS = 9


def layer_misses_targets(
    loop: LocalLoop,
    client: int,
    weights: Weights,
    layer: nn.Module,
    task: Task,
    target_scales: tuple[Tensor, Tensor] | None = None,
) -> str:
    """What is wrong with a layer as the place of predictions; empty where nothing is.

    ``validation_step`` is given, in the place of the layer's output for a client's first training batch, what a layer
    would give that knows the targets. What it logs then (the first loss, else the first metric) must not be worse than
    with no opinion or wrong classes, or with values that are shifted or stretched by a tenth of their deviation.

    Args:
        loop: outside of a turn.
        client: hosted.
        weights: of the model.
        layer: runs once for a batch.
        task: what its output is for.
        target_scales: mean and deviation that bring values to the output's scale.
    """
    targets: list[Tensor] = []
    path = loop.path(client, "trial of a layer")

    def read(batches: ClientBatches) -> Iterator[SizedBatch]:
        batch, size = next(iter(batches.once(path)))
        targets[:] = [batch_targets(batch)]
        yield batch, size

    def logged(given: Tensor | None) -> tuple[str, float] | None:
        """What is logged first, the less the better."""

        def replace(_: nn.Module, inputs: object, output: Tensor) -> Tensor:
            outputs[:] = [output]
            return output if given is None else given.to(output).reshape(output.shape)

        handle = layer.register_forward_hook(replace)
        present = loop.flat.collect().clone()
        try:
            with preserve_metrics(loop.module):
                report = loop.evaluate(client, weights, "train", read)
        finally:
            handle.remove()
            loop.flat.load(present)
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
        f"with the targets in the place of its output (as {task}) {type(loop.module).__name__} logs {best[0]} ="
        f" {abs(best[1]):.4g}, with wrong ones {abs(min(others)):.4g}, which is better: validation_step does not take"
        " this output for its predictions"
    )


def _answers(targets: Tensor, outputs: Tensor, task: Task, target_scales: tuple[Tensor, Tensor] | None) -> list[Tensor]:
    """The right one, then wrong ones."""
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
