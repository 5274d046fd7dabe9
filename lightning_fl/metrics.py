"""Metrics over clients: the mean, the worst, the spread, and every client's own."""

import math
import re
import statistics
from collections.abc import Mapping
from dataclasses import dataclass

from lightning_fl.engine.results import LoggedValue

__all__ = ["ClientMetrics", "MetricSummary", "higher_is_better", "summarize"]

# Names whose direction the field agrees on. A torchmetrics object states its own.
_LOWER = ("loss", "error", "err", "rmse", "mse", "mae", "mape", "perplexity", "nll", "brier", "ece", "distance")
_HIGHER = (
    "acc",
    "auc",
    "auroc",
    "f1",
    "precision",
    "recall",
    "r2",
    "dice",
    "iou",
    "score",
    "pearson",
    "spearman",
    "map",
    "aupr",
    "mcc",
    "kappa",
    "sensitivity",
    "specificity",
    "ndcg",
)


@dataclass(frozen=True)
class MetricSummary:
    """One metric over clients.

    Args:
        mean: the unweighted mean over clients.
        worst: the value of the client that is worst off (the largest where lower is better).
        std: the population standard deviation over clients.
        clients: client -> value.
        higher_is_better: the direction that ``worst`` assumes.
        to_logger: whether it is shown as a curve (``self.log(logger=False)`` is not).
        prog_bar: whether it is shown in the progress display.
    """

    mean: float
    worst: float
    std: float
    clients: dict[int, float]
    higher_is_better: bool
    to_logger: bool = True
    prog_bar: bool = False

    @property
    def worst_client(self) -> int:
        """The client whose value is the worst."""
        return next((client for client, value in self.clients.items() if value == self.worst), next(iter(self.clients)))


ClientMetrics = dict[str, MetricSummary]


def higher_is_better(name: str, stated: bool | None = None) -> bool:
    """Whether a larger value of a metric is better, from what the metric states or else from its name.

    A name that says nothing counts as lower-is-better, like a loss.
    """
    if stated is not None:
        return stated
    words = re.split(r"[^a-z0-9]+", name.lower())
    if any(word.startswith(_LOWER) or word.endswith(("loss", "error")) for word in words):
        return False
    return any(word.startswith(_HIGHER) for word in words)


def summarize(reports: Mapping[int, Mapping[str, LoggedValue]]) -> ClientMetrics:
    """What clients logged -> one :class:`MetricSummary` per name.

    A metric that is NaN for some client (nothing to measure) leaves that client out; NaN for all stays NaN.
    """
    names = list(dict.fromkeys(name for values in reports.values() for name in values))
    summaries = {}
    for name in names:
        logged = {client: values[name] for client, values in reports.items() if name in values}
        clients = {client: value.value for client, value in logged.items()}
        stated = next((value.higher_is_better for value in logged.values() if value.higher_is_better is not None), None)
        better = higher_is_better(name, stated)
        present = [value for value in clients.values() if not math.isnan(value)]
        summaries[name] = MetricSummary(
            mean=_mean(present),
            worst=(min if better else max)(present) if present else math.nan,
            std=statistics.pstdev(present) if present and all(map(math.isfinite, present)) else math.nan,
            clients=clients,
            higher_is_better=better,
            to_logger=any(value.to_logger for value in logged.values()),
            prog_bar=any(value.prog_bar for value in logged.values()),
        )
    return summaries


def _mean(values: list[float]) -> float:
    if values and all(map(math.isfinite, values)):
        return statistics.fmean(values)
    return sum(values) / len(values) if values else math.nan  # fmean refuses inf - inf
