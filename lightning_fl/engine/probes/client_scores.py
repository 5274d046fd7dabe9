"""Scores from 0 to 1 of any weights on a client's own samples, without training or logging."""

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

#: Metrics where more is better that may be negative, which are no scores by default.
_SIGNED = ("r2", "pearson", "spearman", "mcc", "matthews", "kappa")


class ClientScores:
    """Scores in [0, 1] by a metric that ``validation_step`` logs: an accuracy itself, a loss x as ``exp(-x)``.

    They are computed in eval mode with the client's personal layers, on ``num_samples`` drawn in every round (``None``
    for all). Logged values are dropped, and torchmetrics keep their states. In one round the samples and random draws
    are the same at all weights. Without ``monitor`` the metric is :func:`default_score`.
    """

    def __init__(self, loop: LocalLoop, owner: str, split: Split, num_samples: int | None, monitor: str | None) -> None:
        if not loop.evaluator.evaluates("val"):
            name = type(loop.module).__name__
            raise ConfigurationError(f"models are scored by what validation_step logs: define it in {name}.")
        self._loop = loop
        self._split = split
        self._num_samples = num_samples
        self._monitor = monitor
        self._owner = owner

    def weigh(self, client: int, models: Sequence[Weights]) -> tuple[Tensor, Tensor]:
        """Scores of several models on a hosted client's samples, and the weights of their average, each [K]."""
        seen: dict[int, tuple[str, float, bool]] = {}  # the same object is evaluated once
        for model in models:
            if id(model) not in seen:
                seen[id(model)] = self._value(client, model)
        values = torch.tensor([seen[id(model)][1] for model in models], dtype=torch.float64)
        name, _, better = seen[id(models[0])]
        return importance_weights(name, values, better), mixture_weights(values, better)

    def _value(self, client: int, model: Weights) -> tuple[str, float, bool]:
        loop, personal = self._loop, self._loop.federation.personal
        path = loop.path(client, f"{self._owner} by {self._split}")
        batches = loop.batches(client, self._split)
        own = loop.federation.personal_layers.get(client)
        if personal is not None and own is not None:
            model = personal.insert_(model.clone(), own)
        with preserve_metrics(loop.module):
            report = loop.evaluator.evaluate(
                client, model, self._split, lambda loader: loader.some(path, batches.share(loader, self._num_samples))
            )
        assert report is not None
        name = monitored_metric(report.metrics, self._monitor, default_score(report.metrics), self._owner)
        logged = report.metrics[name]
        return name, logged.value, higher_is_better(name, logged.higher_is_better)


def default_score(metrics: Mapping[str, LoggedValue] | ClientMetrics) -> str | None:
    """The first metric where more is better and that cannot be negative, else the default metric."""
    shares = (
        name
        for name, logged in metrics.items()
        if higher_is_better(name, logged.higher_is_better) and not any(word in name.lower() for word in _SIGNED)
    )
    return next(shares, default_metric(metrics))
