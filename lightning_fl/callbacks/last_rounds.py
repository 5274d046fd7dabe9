"""Test metrics averaged over the last rounds, which do not depend on the choice of a best round."""

import math
from collections.abc import Sequence
from typing import Any

from lightning_fl.callbacks.callback import Callback
from lightning_fl.core.metrics import MetricSummary, metric_name, summarize
from lightning_fl.core.validation import Count, checked_fields
from lightning_fl.data.module import Split
from lightning_fl.runtime.surface import TrainerSurface

_SPLIT: Split = "test"


@checked_fields
class LastRounds(Callback):
    """Evaluates clients on their test data after each of the last rounds and averages over these rounds.

    In contrast to the best round, the result is free of validation noise, as in papers that report their last model.
    ``summary.json`` has for every metric, under ``last_rounds``, the average of the mean over clients, of each round's
    worst client and of each client; a study has them as ``last_mean`` and ``last_worst``. Runs ending sooner have none.

    Args:
        num: number of rounds.
    """

    only_shows = True
    saved = ("_rounds", "_higher_is_better")

    num: Count = 10

    def on_fit_start(self, trainer: TrainerSurface) -> None:
        #: Round -> metric -> client -> value.
        self._rounds: dict[int, dict[str, dict[int, float]]] = {}
        self._higher_is_better: dict[str, bool] = {}

    def on_round_end(self, trainer: TrainerSurface) -> None:
        evaluator = trainer.loop.evaluator
        if trainer.federation.current_round <= trainer.max_rounds - self.num or not evaluator.evaluates(_SPLIT):
            return
        reports = {}
        with evaluator.evaluations(_SPLIT):
            for client in trainer.hosted_clients:
                if client in trainer.federation.absent_clients:
                    continue
                weights = trainer.client_model(client)
                with trainer.around_evaluation(client, weights):
                    report = evaluator.evaluate(client, weights, _SPLIT)
                if report is not None:
                    reports[client] = report.metrics
        found = summarize(trainer.strategy.exchange(reports), trainer.datamodule.client_names())
        named = {metric_name(name, _SPLIT): metric for name, metric in found.items()}
        self._higher_is_better |= {name: metric.higher_is_better for name, metric in named.items()}
        self._rounds[trainer.federation.current_round] = {name: dict(metric.clients) for name, metric in named.items()}

    def on_fit_end(self, trainer: TrainerSurface) -> None:
        names, before = trainer.datamodule.client_names(), trainer.max_rounds - self.num
        self._rounds = {number: of for number, of in self._rounds.items() if number > before}  # of an earlier end
        trainer.run_log.summary.pop("last_rounds", None)
        if self._rounds:
            found = {name: self._record(name, names) for name in sorted(self._higher_is_better)}
            trainer.run_log.summary["last_rounds"] = {_SPLIT: found}

    def _record(self, name: str, names: Sequence[str]) -> dict[str, Any]:
        higher = self._higher_is_better[name]
        rounds = {number: of[name] for number, of in sorted(self._rounds.items()) if name in of}
        of_rounds = [MetricSummary.of(clients, higher_is_better=higher) for clients in rounds.values()]
        means = {part: _mean([getattr(one, part) for one in of_rounds]) for part in ("mean", "worst", "best", "std")}
        present = sorted({client for clients in rounds.values() for client in clients})
        clients = {names[client]: _mean([of[client] for of in rounds.values() if client in of]) for client in present}
        return {**means, "higher_is_better": higher, "clients": clients, "rounds": list(rounds)}


def _mean(values: Sequence[float]) -> float | None:
    """The mean, ``None`` if not finite."""
    mean = math.fsum(values) / len(values) if all(map(math.isfinite, values)) else math.nan
    return mean if math.isfinite(mean) else None
