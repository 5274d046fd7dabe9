"""How well any weights do on a client's own samples, as a number from 0 to 1; nothing is trained or logged."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from lightning_fl.core.errors import ConfigurationError
from lightning_fl.core.metrics import ClientMetrics, LoggedValue, default_metric, higher_is_better, monitored_metric
from lightning_fl.data.module import Split
from lightning_fl.engine.turn.loop import LocalLoop
from lightning_fl.engine.turn.metric_states import preserve_metrics
from lightning_fl.engine.weights.flat import Weights
from lightning_fl.functional.pifl import importance_weights, mixture_weights

__all__ = ["ClientScores", "default_score"]

#: More of them is better, but they may be negative: no scores unless asked for.
_SIGNED = ("r2", "pearson", "spearman", "mcc", "matthews", "kappa")


class ClientScores:
    """Scores in [0, 1] by a metric that ``validation_step`` logs: accuracy as it is, a loss x as ``exp(-x)``.

    In eval mode, with the client's personal layers. What the module logs meanwhile is dropped, its torchmetrics keep
    their states. In one round the samples and random draws are the same at all weights.

    Args:
        loop: in a fit.
        owner: whose scores they are: of the random draws, and for messages.
        split: whose samples; training samples are validated too.
        num_samples: of each client, drawn anew in every round; ``None`` for all. Of data that come from a
            ``DataLoader``, its first batches that hold as many.
        monitor: the metric. ``None`` for the first of which more is better and that cannot be negative (by its name:
            R2 and correlations can), else the first with "loss" in its name, else the first.

    Raises:
        ConfigurationError: the module has no ``validation_step``; when a score is asked for, the metric is not logged,
            or is no share between 0 and 1 and no loss of at least 0.
    """

    def __init__(self, loop: LocalLoop, owner: str, split: Split, num_samples: int | None, monitor: str | None) -> None:
        if not loop.evaluates("val"):
            raise ConfigurationError(
                f"models are scored by what validation_step logs: give {type(loop.module).__name__} one."
            )
        self._loop = loop
        self._split = split
        self._num_samples = num_samples
        self._monitor = monitor
        self._owner = owner

    def has_samples(self, client: int) -> bool:
        """Whether a hosted client has samples in the split."""
        return self._loop.factory.batches(client, self._split) is not None

    def weigh(self, client: int, models: Sequence[Weights]) -> tuple[Tensor, Tensor]:
        """The scores of several models on a hosted client's samples, and what it averages them with, each [K]."""
        seen: dict[int, tuple[str, float, bool]] = {}  # models that are one object are evaluated once
        for model in models:
            if id(model) not in seen:
                seen[id(model)] = self._value(client, model)
        values = torch.tensor([seen[id(model)][1] for model in models], dtype=torch.float64)
        name, _, better = seen[id(models[0])]
        return importance_weights(name, values, better), mixture_weights(values, better)

    def _value(self, client: int, model: Weights) -> tuple[str, float, bool]:
        """The metric's name, its value, and whether more of it is better."""
        loop, personal = self._loop, self._loop.federation.personal
        path = loop.path(client, f"{self._owner} by {self._split}")
        batches = loop.batches(client, self._split)
        own = loop.federation.personal_layers.get(client)
        if personal is not None and own is not None:
            model = personal.insert_(model.clone(), own)
        with preserve_metrics(loop.module):
            report = loop.evaluate(
                client,
                model,
                self._split,
                lambda loader: loader.some(path, batches.share(loader, self._num_samples)),
            )
        assert report is not None
        name = monitored_metric(report.metrics, self._monitor, default_score(report.metrics), self._owner)
        logged = report.metrics[name]
        return name, logged.value, higher_is_better(name, logged.higher_is_better)


def default_score(metrics: Mapping[str, LoggedValue] | ClientMetrics) -> str | None:
    """The first metric of which more is better and that cannot be negative, else what stands for all metrics."""
    shares = (
        name
        for name, logged in metrics.items()
        if higher_is_better(name, logged.higher_is_better) and not any(word in name.lower() for word in _SIGNED)
    )
    return next(shares, default_metric(metrics))
