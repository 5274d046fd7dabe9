"""Metrics over clients: mean, worst, spread, every client's value, and gains over a reference.

Gains are those of Bao et al., "Optimizing the Collaboration Structure in Cross-Silo Federated Learning" (FedCollab,
ICML 2023, https://arxiv.org/abs/2306.06508), section 5.1, equations 11 and 12.
"""

import math
import re
import statistics
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from lightning_fl.core.errors import ConfigurationError, listed

if TYPE_CHECKING:
    from pandas import DataFrame

#: Rows of a table in a notebook; a longer one shows its first and last rows.
_MOST_ROWS = 60

# Beginnings of names with a known direction. A torchmetrics object states its own.
_LOWER = ("loss", "error", "err", "rmse", "mse", "mae", "mape", "perplexity", "nll", "brier", "ece", "distance")
_HIGHER = (
    *("acc", "auc", "auroc", "f1", "precision", "recall", "r2", "dice", "iou", "score", "pearson", "spearman", "map"),
    *("aupr", "mcc", "kappa", "sensitivity", "specificity", "ndcg", "jaccard", "matthews", "explained"),
)

K = TypeVar("K")


@dataclass(frozen=True)
class LoggedValue:
    """Value of one metric of one client.

    Args:
        value: mean over the samples, or the last value.
        weight: number of samples behind it.
        higher_is_better: direction that the metric states.
        to_logger: show it as a curve.
        prog_bar: show it in the progress display.
        steps: (step, value) of single steps.
        forked: logged with ``on_step=True, on_epoch=True``: Lightning's ``NAME_epoch`` and ``NAME_step``.
        last: value of the last batch.
    """

    value: float
    weight: float
    higher_is_better: bool | None = None
    to_logger: bool = True
    prog_bar: bool = False
    steps: tuple[tuple[int, float], ...] = ()
    forked: bool = False
    last: float | None = None


class ClientValues(dict[int, float]):
    """Client, counted from 0 -> value; also by name: ``values["north"]``."""

    def __init__(self, values: Mapping[int, float], names: Sequence[str]) -> None:
        super().__init__(values)
        self.names = names

    def __missing__(self, name: Any) -> float:
        if name in self.names and (client := list(self.names).index(name)) in self:
            return self[client]
        raise KeyError(name)

    def __repr__(self) -> str:
        return repr({self.names[client]: value for client, value in self.items()})


@dataclass(frozen=True)
class MetricSummary:
    """One metric over clients.

    Args:
        mean: unweighted mean over clients.
        worst: value of the worst client (the largest if lower is better).
        std: population standard deviation over clients.
        clients: client, by number or (in a run) by name -> value.
        higher_is_better: direction that ``worst`` assumes.
        to_logger: show it as a curve; false for ``self.log(logger=False)``.
        prog_bar: show it in the progress display.
        forked: as in :class:`LoggedValue`.
        last: mean over clients of the values of their last batches, if it is forked.
    """

    mean: float
    worst: float
    std: float
    clients: dict[int, float]
    higher_is_better: bool = field(repr=False)
    to_logger: bool = field(default=True, repr=False)
    prog_bar: bool = field(default=False, repr=False)
    forked: bool = field(default=False, repr=False)
    last: float | None = field(default=None, repr=False)

    @classmethod
    def of(cls, clients: dict[int, float], *, higher_is_better: bool, **others: Any) -> "MetricSummary":
        """Summarise one value per client. NaN (nothing to measure) leaves a client out; all NaN gives NaN."""
        present = _present(clients)
        return cls(
            mean=_mean(present),
            worst=(min if higher_is_better else max)(present) if present else math.nan,
            std=_std(present),
            clients=clients,
            higher_is_better=higher_is_better,
            **others,
        )

    def named(self, names: Sequence[str]) -> "MetricSummary":
        """Copy with clients that can also be looked up by name."""
        return replace(self, clients=ClientValues(self.clients, names)) if names else self

    def state_dict(self) -> dict[str, Any]:
        """Constructor arguments, without names."""
        return {**vars(self), "clients": dict(self.clients)}

    @property
    def worst_client(self) -> int:
        """Client with the worst value."""
        return self._client_with(self.worst)

    @property
    def best(self) -> float:
        """Value of the best client; NaN if no client has one."""
        present = _present(self.clients)
        return (max if self.higher_is_better else min)(present) if present else math.nan

    @property
    def best_client(self) -> int:
        """Client with the best value."""
        return self._client_with(self.best)

    def _client_with(self, wanted: float) -> int:
        """First client with a value, or the first of all if no value equals it (NaN)."""
        return next((client for client, value in self.clients.items() if value == wanted), next(iter(self.clients)))


@dataclass(frozen=True)
class GainSummary:
    """Gains of clients over a reference, such as their local training; NaN where no client has a gain.

    Args:
        ipr: incentivised participation rate, share of clients with a gain strictly above 0 (FedCollab, equation 11,
            after Cho et al. 2022).
        rsd: reward standard deviation of the gains over clients (equation 12). It divides by N, as ``numpy.std``: the
            paper does not say which, and the clients are the population, not a sample. NaN if a gain is infinite.
        harmed: share of clients with a gain strictly below 0 (negative transfer).
        mean: unweighted mean gain over clients.
        worst: smallest gain of a client.
        clients: client -> gain, without clients that have none.
    """

    ipr: float
    rsd: float
    harmed: float
    mean: float
    worst: float
    clients: dict[int, float]


class ClientMetrics(dict[str, MetricSummary]):
    """Metric -> summary over clients, perhaps with names; shown as a table in a notebook."""

    def __init__(self, summaries: Mapping[str, MetricSummary] | None = None, names: Sequence[str] = ()) -> None:
        super().__init__(summaries or {})
        self.names = names

    def __missing__(self, name: str) -> NoReturn:
        raise KeyError(f"no metric {name!r}; there are {', '.join(self) or 'none'}")

    def to_frame(self) -> "DataFrame":
        """Table with a column per metric; rows are clients, then average, worst, best and standard deviation."""
        from pandas import DataFrame  # takes a second to import

        clients = sorted({client for metric in self.values() for client in metric.clients})
        labels = [self.names[client] if client < len(self.names) else client for client in clients]
        columns = {
            name: [metric.clients.get(client, math.nan) for client in clients]
            + [metric.mean, metric.worst, metric.best, metric.std]
            for name, metric in self.items()
        }
        frame = DataFrame(columns, index=[*labels, "average", "worst", "best", "standard deviation"])
        return frame.rename_axis("client")

    def _repr_html_(self) -> str:
        return self.to_frame().to_html(float_format="{:.4g}".format, na_rep="-", max_rows=_MOST_ROWS)


def metric_name(name: str, split: str) -> str:
    """Strip the split from a metric's name: "acc" for "val/acc" and "val_acc"."""
    return name[len(split) + 1 :] if name.startswith((f"{split}/", f"{split}_")) else name


def default_metric(names: Iterable[str]) -> str | None:
    """Choose the default metric: the first with "loss" in its name, or the first."""
    logged = list(names)
    return next((name for name in logged if "loss" in name), logged[0] if logged else None)


def curve_name(logged: Collection[str], name: str) -> str:
    """Return the name of a metric in a run: NAME for Lightning's ``NAME_epoch``, which is the same value."""
    stem = name.removesuffix("_epoch")
    return stem if name not in logged and stem in logged else name


def lightning_names(metrics: Mapping[str, MetricSummary], *, steps: bool, single: bool = False) -> dict[str, float]:
    """Means over clients under the names of Lightning's Trainer.

    ``steps`` includes ``NAME_step``, which ``callback_metrics`` have only in training; ``single`` omits NAME of forked
    metrics, as loggers do.
    """
    found: dict[str, float] = {}
    for name, metric in metrics.items():
        if not (single and metric.forked):
            found[name] = metric.mean
        if metric.forked:
            found[f"{name}_epoch"] = metric.mean
            if steps and metric.last is not None:
                found[f"{name}_step"] = metric.last
    return found


def monitored_metric(logged: Collection[str], monitor: str | None, default: str | None, owner: str) -> str:
    """Return the metric to monitor, one that validation logged: the option ``monitor`` of ``owner``, or the default."""
    name = curve_name(logged, monitor) if monitor else default
    if name is None or name not in logged:
        what = f"{owner}.monitor={monitor or default!r} is not logged in validation"
        raise ConfigurationError(f"{what}. Choose one of: {listed(logged, near=name or '') or 'no metrics'}.")
    return name


def higher_is_better(name: str, stated: bool | None = None) -> bool:
    """Whether a larger value of a metric is better, as stated or from its name; by default it is not."""
    return _names_lower(name) is False if stated is None else stated


def direction_is_known(name: str, recorded: bool) -> bool:
    """Whether a metric's direction that a run recorded is known, not the default for an unknown name."""
    return recorded or _names_lower(name) is True


def _names_lower(name: str) -> bool | None:
    """Whether lower is better, from the name alone; ``None`` for an unknown name."""
    split, _, rest = name.partition("/")
    of_all, _, target = rest.partition("/")
    if split in ("train", "val", "test") and target and (known := _names_lower(of_all)) is not None:
        return known  # ignores the name of the target in ``val/auroc/TARGET``
    words = re.split(r"[^a-z0-9]+", name.lower())
    if any(word.startswith(_LOWER) or word.endswith(("loss", "error")) for word in words):
        return True
    return False if any(word.startswith(_HIGHER) for word in words) else None


def summarize(reports: Mapping[int, Mapping[str, LoggedValue]], client_names: Sequence[str] = ()) -> ClientMetrics:
    """Summarise what clients logged (client -> name -> value): one :class:`MetricSummary` per name."""
    summaries = ClientMetrics(names=client_names)
    for name in dict.fromkeys(name for values in reports.values() for name in values):
        logged = {client: values[name] for client, values in reports.items() if name in values}
        every = logged.values()
        stated = next((value.higher_is_better for value in every if value.higher_is_better is not None), None)
        last = [value.last for value in every if value.last is not None]
        summaries[name] = MetricSummary.of(
            {client: value.value for client, value in logged.items()},
            higher_is_better=higher_is_better(name, stated),
            last=_mean(last) if last else None,
            **{flag: any(getattr(one, flag) for one in every) for flag in ("to_logger", "prog_bar", "forked")},
        ).named(client_names)
    return summaries


def gains(values: Mapping[K, float], reference: Mapping[K, float], higher_is_better: bool) -> dict[K, float]:
    """Gain of each client over its reference: the bracket of FedCollab's equations 11 and 12.

    Args:
        values: client -> metric of the model it uses.
        reference: client -> the same metric of the reference, local training in the paper.
        higher_is_better: direction of the metric.

    Returns:
        client -> gain in the unit of the metric, positive if better. Clients with a missing or NaN value, or the same
        infinity twice, are left out.
    """
    sign = 1.0 if higher_is_better else -1.0
    found = {client: sign * (value - reference[client]) for client, value in values.items() if client in reference}
    return {client: gain for client, gain in found.items() if not math.isnan(gain)}


def summarize_gains(values: Mapping[int, float], reference: Mapping[int, float], higher_is_better: bool) -> GainSummary:
    """Compute :func:`gains` and their statistics."""
    found = gains(values, reference, higher_is_better)
    present = list(found.values())
    return GainSummary(
        ipr=_mean([float(gain > 0) for gain in present]),
        rsd=_std(present),
        harmed=_mean([float(gain < 0) for gain in present]),
        mean=_mean(present),
        worst=min(present, default=math.nan),
        clients=found,
    )


def left_out(values: Mapping[str, Mapping[str, float]]) -> list[str]:
    """Lines on the clients that statistics leave out; ``values`` are metric -> client's name -> value."""
    found: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for metric, of_clients in values.items():
        found[tuple(client for client, value in of_clients.items() if math.isnan(value))].append(metric)
    return [
        f"{', '.join(metrics)} {'are' if metrics[1:] else 'is'} NaN for {listed(clients)}: left out of mean and worst"
        for clients, metrics in found.items()
        if clients
    ]


def percentiles(values: Any) -> list[float]:
    """The 0th to 100th percentiles of a list or tensor, 101 numbers; none without a value."""
    import numpy as np

    return np.percentile(values, range(101)).tolist() if len(values) else []


def _present(clients: Mapping[int, float]) -> list[float]:
    return [value for value in clients.values() if not math.isnan(value)]


def _std(values: list[float]) -> float:
    return statistics.pstdev(values) if values and all(map(math.isfinite, values)) else math.nan


def _mean(values: list[float]) -> float:
    if values and all(map(math.isfinite, values)):
        return statistics.fmean(values)
    return sum(values) / len(values) if values else math.nan  # fmean raises on inf - inf
