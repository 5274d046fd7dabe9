"""Combination of a client's reports of several turns."""

import math
from collections.abc import Sequence
from dataclasses import replace

from lightning_fl.core.metrics import LoggedValue
from lightning_fl.engine.client import ClientReport

__all__ = ["combine_reports"]


def combine_reports(turns: Sequence[ClientReport]) -> ClientReport:
    """Combine a client's reports of a round in which it trained one or several models.

    Failed turns are left out; the client failed if all its turns did. Samples count once, steps are summed, and logged
    values are averaged by the samples of each turn.
    """
    done = [turn for turn in turns if turn.error is None]
    if len(turns) == 1 or not done:
        return turns[0]
    names = dict.fromkeys(name for turn in done for name in turn.metrics)
    metrics = {name: _mean([turn.metrics[name] for turn in done if name in turn.metrics]) for name in names}
    return ClientReport(max(turn.num_samples for turn in done), sum(turn.num_steps for turn in done), metrics)


def _mean(values: Sequence[LoggedValue]) -> LoggedValue:
    if len(values) == 1:
        return values[0]
    total = math.fsum(value.weight for value in values)
    weights = [value.weight / total if total else 1 / len(values) for value in values]
    mean = sum(value.value * weight for value, weight in zip(values, weights, strict=True))
    return replace(values[0], value=mean, weight=total, steps=tuple(step for value in values for step in value.steps))
