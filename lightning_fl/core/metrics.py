"""Metrics over clients: the mean, the worst, the spread, every client's own, and what each gains over a reference.

The gains are those by which Bao et al., "Optimizing the Collaboration Structure in Cross-Silo Federated Learning"
(FedCollab, ICML 2023, https://arxiv.org/abs/2306.06508), compare federated with local training: section 5.1,
equations 11 and 12.
"""

import math
import re
import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from lightning_fl.core.errors import ConfigurationError, listed

if TYPE_CHECKING:
    from pandas import DataFrame

__all__ = [
    "ClientMetrics",
    "GainSummary",
    "LoggedValue",
    "MetricSummary",
    "curve_name",
    "default_metric",
    "direction_is_known",
    "gains",
    "higher_is_better",
    "incentivized_participation_rate",
    "lightning_names",
    "metric_name",
    "monitored_metric",
    "reward_standard_deviation",
    "share_harmed",
    "summarize",
    "summarize_gains",
]

#: Of a table in a notebook; of more, the first and the last are shown.
_MOST_ROWS = 60

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
class LoggedValue:
    """One name's value for one client. ``weight`` is the number of samples behind it.

    A value that was logged with ``on_step=True, on_epoch=True`` is ``forked``: Lightning has it as ``NAME_epoch`` and,
    of the ``last`` batch, as ``NAME_step`` too.
    """

    value: float
    weight: float
    higher_is_better: bool | None = None
    to_logger: bool = True
    prog_bar: bool = False
    steps: tuple[tuple[int, float], ...] = ()
    forked: bool = False
    last: float | None = None

    def to_plain(self) -> list[Any]:
        """For a message."""
        steps = [list(pair) for pair in self.steps] if self.steps else None
        return [
            self.value,
            self.weight,
            self.higher_is_better,
            self.to_logger,
            self.prog_bar,
            steps,
            self.forked,
            self.last,
        ]

    @classmethod
    def from_plain(cls, content: list[Any]) -> "LoggedValue":
        """Out of a message."""
        value, weight, higher_is_better, to_logger, prog_bar, steps, forked, last = content
        logged = object.__new__(cls)  # past the assignments of a frozen class, which take longer than all the rest
        logged.__dict__.update(
            value=value,
            weight=weight,
            higher_is_better=higher_is_better,
            to_logger=to_logger,
            prog_bar=prog_bar,
            steps=() if steps is None else tuple((step, at) for step, at in steps),
            forked=forked,
            last=last,
        )
        return logged


class ClientValues(dict[int, float]):
    """Client -> value; ``values["north"]`` finds a client by its name, and names are shown.

    Args:
        values: client, counted from 0 -> value.
        names: the clients' names.
    """

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
        mean: the unweighted mean over clients.
        worst: the value of the client that is worst off (the largest where lower is better).
        std: the population standard deviation over clients.
        clients: client, by its number or (in a run) its name -> value.
        higher_is_better: the direction that ``worst`` assumes.
        to_logger: whether it is shown as a curve (``self.log(logger=False)`` is not).
        prog_bar: whether it is shown in the progress display.
        forked: whether Lightning has it as ``NAME_step`` and ``NAME_epoch``, too.
        last: the mean over clients of their last batches' values, where it is forked and they have one.
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
    def of(cls, clients: dict[int, float], *, higher_is_better: bool, to_logger: bool = True) -> "MetricSummary":
        """The summary of one value per client; a NaN (nothing to measure) counts for nobody, NaN for all stays NaN."""
        present = _present(clients)
        return cls(
            mean=_mean(present),
            worst=(min if higher_is_better else max)(present) if present else math.nan,
            std=_std(present),
            clients=clients,
            higher_is_better=higher_is_better,
            to_logger=to_logger,
        )

    def named(self, names: Sequence[str]) -> "MetricSummary":
        """The same, whose ``clients`` also go by their names."""
        return replace(self, clients=ClientValues(self.clients, names)) if names else self

    def state_dict(self) -> dict[str, Any]:
        """The arguments that make it again, without names."""
        return {**vars(self), "clients": dict(self.clients)}

    @property
    def worst_client(self) -> int:
        """The client whose value is the worst."""
        return next((client for client, value in self.clients.items() if value == self.worst), next(iter(self.clients)))

    @property
    def best(self) -> float:
        """The value of the client that is best off; NaN where none has a value."""
        present = _present(self.clients)
        return (max if self.higher_is_better else min)(present) if present else math.nan

    @property
    def best_client(self) -> int:
        """The client whose value is the best."""
        return next((client for client, value in self.clients.items() if value == self.best), next(iter(self.clients)))


@dataclass(frozen=True)
class GainSummary:
    """What clients gain over a reference, such as their local training.

    Args:
        ipr: :func:`incentivized_participation_rate`.
        rsd: :func:`reward_standard_deviation`.
        harmed: :func:`share_harmed`.
        mean: the unweighted mean gain over clients.
        worst: the least gain of a client.
        clients: client -> gain, those without one left out.
    """

    ipr: float
    rsd: float
    harmed: float
    mean: float
    worst: float
    clients: dict[int, float]


class ClientMetrics(dict[str, MetricSummary]):
    """Metric -> its summary over clients; a table in a notebook.

    Args:
        summaries: metric -> summary.
        names: client -> its name, where clients have some.
    """

    def __init__(self, summaries: Mapping[str, MetricSummary] | None = None, names: Sequence[str] = ()) -> None:
        super().__init__(summaries or {})
        self.names = names

    def to_frame(self) -> "DataFrame":
        """A row per client, then the mean, the worst, the best and the standard deviation; a column per metric."""
        from pandas import DataFrame  # a second to import

        clients = sorted({client for metric in self.values() for client in metric.clients})
        labels = [self.names[client] if client < len(self.names) else client for client in clients]
        columns = {
            name: [
                *(metric.clients.get(client, math.nan) for client in clients),
                *(metric.mean, metric.worst, metric.best, metric.std),
            ]
            for name, metric in self.items()
        }
        frame = DataFrame(columns, index=[*labels, "average", "worst", "best", "standard deviation"])
        return frame.rename_axis("client")

    def _repr_html_(self) -> str:
        return self.to_frame().to_html(float_format="{:.4g}".format, na_rep="-", max_rows=_MOST_ROWS)


def metric_name(name: str, split: str) -> str:
    """A metric's name without its split: "acc" for "val/acc" and "val_acc"."""
    for prefix in (f"{split}/", f"{split}_"):
        if name.startswith(prefix):
            return name.removeprefix(prefix)
    return name


def default_metric(names: Iterable[str]) -> str | None:
    """The metric to go by where none is named: the first one with "loss" in its name, else the first, if any."""
    logged = list(names)
    return next((name for name in logged if "loss" in name), logged[0] if logged else None)


def curve_name(logged: Collection[str], name: str) -> str:
    """The name that a metric goes by in a run: NAME for Lightning's ``NAME_epoch``, which is the same value."""
    stem = name.removesuffix("_epoch")
    return stem if name not in logged and stem in logged else name


def lightning_names(metrics: Mapping[str, MetricSummary], *, steps: bool, single: bool = False) -> dict[str, float]:
    """Means over clients by the names that Lightning's Trainer has for them.

    Args:
        metrics: name -> summary over clients.
        steps: with ``NAME_step``, which ``callback_metrics`` have of training only.
        single: forked ones are ``NAME_step`` and ``NAME_epoch`` alone, as loggers see them; else NAME as well.
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
    """The metric to go by: the one that was named, else a default.

    Args:
        logged: names of what validation logged.
        monitor: the user's choice.
        default: what to go by without one; ``None`` if there is nothing.
        owner: whose choice it is, for the message.

    Raises:
        ConfigurationError: it is not logged.
    """
    name = curve_name(logged, monitor) if monitor else default
    if name is None or name not in logged:
        raise ConfigurationError(
            f"{owner}.monitor={monitor or default!r} is not logged in validation. Logged are:"
            f" {listed(logged, near=name or '') or 'no metrics'}."
        )
    return name


def higher_is_better(name: str, stated: bool | None = None) -> bool:
    """Whether a larger value of a metric is better, from what the metric states or else from its name.

    A name that says nothing counts as lower-is-better, like a loss.
    """
    if stated is not None:
        return stated
    return _names_lower(name) is False


def direction_is_known(name: str, recorded: bool) -> bool:
    """Whether a direction that a run recorded can be relied on, or is what a name that says nothing counts as.

    Args:
        name: the metric's.
        recorded: :func:`higher_is_better` of the run.
    """
    return recorded or _names_lower(name) is True


def _names_lower(name: str) -> bool | None:
    """Whether lower is better, from the name alone; ``None`` where it says nothing."""
    split, _, rest = name.partition("/")
    of_all, _, target = rest.partition("/")
    if split in ("train", "val", "test") and target and (known := _names_lower(of_all)) is not None:
        return known  # whatever the target of ``val/auroc/TARGET`` is called
    words = re.split(r"[^a-z0-9]+", name.lower())
    if any(word.startswith(_LOWER) or word.endswith(("loss", "error")) for word in words):
        return True
    return False if any(word.startswith(_HIGHER) for word in words) else None


def summarize(reports: Mapping[int, Mapping[str, LoggedValue]], client_names: Sequence[str] = ()) -> ClientMetrics:
    """What clients logged -> one :class:`MetricSummary` per name.

    A metric that is NaN for some client (nothing to measure) leaves that client out; NaN for all stays NaN.

    Args:
        reports: client -> name -> value.
        client_names: client -> its name, for tables.
    """
    names = list(dict.fromkeys(name for values in reports.values() for name in values))
    summaries = ClientMetrics(names=client_names)
    for name in names:
        logged = {client: values[name] for client, values in reports.items() if name in values}
        clients = {client: value.value for client, value in logged.items()}
        stated = next((value.higher_is_better for value in logged.values() if value.higher_is_better is not None), None)
        better = higher_is_better(name, stated)
        summary = MetricSummary.of(
            clients, higher_is_better=better, to_logger=any(value.to_logger for value in logged.values())
        )
        last = [value.last for value in logged.values() if value.last is not None]
        summaries[name] = replace(
            summary,
            prog_bar=any(value.prog_bar for value in logged.values()),
            forked=any(value.forked for value in logged.values()),
            last=_mean(last) if last else None,
        ).named(client_names)
    return summaries


def gains(values: Mapping[int, float], reference: Mapping[int, float], higher_is_better: bool) -> dict[int, float]:
    """How much better each client is than its reference: the bracket of FedCollab's equations 11 and 12.

    Args:
        values: client -> the metric of the model it uses.
        reference: client -> the same metric of what it is compared with, its own local training in the paper.
        higher_is_better: the metric's direction. Where lower is better the sign is turned.

    Returns:
        client -> gain in the metric's unit, positive for better than the reference. A client that has only one of the
        two, or for which one is NaN (nothing to measure) or both are the same infinity, is left out.
    """
    sign = 1.0 if higher_is_better else -1.0
    differences = {
        client: sign * (value - reference[client]) for client, value in values.items() if client in reference
    }
    return {client: gain for client, gain in differences.items() if not math.isnan(gain)}


def incentivized_participation_rate(gains: Mapping[int, float]) -> float:
    """IPR, the share of clients whose gain is strictly above 0 (FedCollab, equation 11, after Cho et al. 2022).

    Clients whose gain is NaN do not count; NaN where none is left.
    """
    return _share([gain > 0 for gain in _present(gains)])


def share_harmed(gains: Mapping[int, float]) -> float:
    """The share of clients whose gain is strictly below 0, which had better not taken part (negative transfer).

    With :func:`incentivized_participation_rate` it sums to 1, less the clients whose gain is exactly 0.
    """
    return _share([gain < 0 for gain in _present(gains)])


def reward_standard_deviation(gains: Mapping[int, float]) -> float:
    """RSD, the standard deviation of the gains over clients (FedCollab, equation 12): small where all gain alike.

    It is the population's (divided by N, as ``numpy.std`` does unless told otherwise): the paper does not say which,
    and the clients are all there are, no sample of more. Clients whose gain is NaN do not count; NaN where none is
    left or a gain is infinite.
    """
    return _std(_present(gains))


def summarize_gains(values: Mapping[int, float], reference: Mapping[int, float], higher_is_better: bool) -> GainSummary:
    """The gains of ``values`` over ``reference``, see :func:`gains`, and what they amount to."""
    found = gains(values, reference, higher_is_better)
    present = list(found.values())
    return GainSummary(
        ipr=incentivized_participation_rate(found),
        rsd=reward_standard_deviation(found),
        harmed=share_harmed(found),
        mean=_mean(present),
        worst=min(present) if present else math.nan,
        clients=found,
    )


def _present(clients: Mapping[int, float]) -> list[float]:
    return [value for value in clients.values() if not math.isnan(value)]


def _share(chosen: list[bool]) -> float:
    return sum(chosen) / len(chosen) if chosen else math.nan


def _std(values: list[float]) -> float:
    return statistics.pstdev(values) if values and all(map(math.isfinite, values)) else math.nan


def _mean(values: list[float]) -> float:
    if values and all(map(math.isfinite, values)):
        return statistics.fmean(values)
    return sum(values) / len(values) if values else math.nan  # fmean refuses inf - inf
