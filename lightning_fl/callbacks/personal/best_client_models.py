"""Best model of each client by its own validation, as in DPFL (Kharrat et al. 2025, section 4)."""

import math
from collections.abc import Callable, Mapping
from typing import Any, Literal

from lightning_fl.callbacks.callback import Callback
from lightning_fl.callbacks.model_checkpoint import ModelCheckpoint
from lightning_fl.callbacks.progress import displayed_metric
from lightning_fl.core.errors import ConfigurationError
from lightning_fl.core.metrics import ClientMetrics, default_metric, higher_is_better, monitored_metric
from lightning_fl.core.validation import checked_fields
from lightning_fl.data.module import Split
from lightning_fl.engine.federation import FINAL_MODELS
from lightning_fl.engine.probes.on_hosts import check_validation_data
from lightning_fl.engine.weights.flat import Weights
from lightning_fl.runtime.surface import TrainerSurface


@checked_fields
class BestClientModels(Callback):
    """Keeps each client's model of its own best round, in contrast to ``ModelCheckpoint`` with one best round for all.

    The kept models are tested after fit and written to ``models/``; ``FineTuning`` starts from them. Takes the memory
    of one more model per client. A resumed run continues with the models of the last round.

    Args:
        monitor: validation metric; default the first with "loss" in its name, else the first.
        mode: "min", "max", or "auto" for the metric's own direction.
        before_averaging: also evaluate models after local training, before they are averaged, which takes one more
            evaluation per client and round. For algorithms with a model per client (DPFL); with FedAvg the results
            would be fine-tuned models.

    Raises:
        ConfigurationError: validation is off or no client has data for it; in a run, the metric is not logged.
    """

    role = "best models"

    monitor: str | None = None
    mode: Literal["auto", "min", "max"] = "auto"
    before_averaging: bool = False

    def on_fit_start(self, trainer: TrainerSurface) -> None:
        if not trainer.check_val_every_n_rounds or not trainer.loop.evaluator.evaluates("val"):
            needed = "trainer.check_val_every_n_rounds of at least 1, and a validation_step"
            raise ConfigurationError(f"BestClientModels needs {needed}.")
        check_validation_data(trainer.loop, "BestClientModels")

    def on_client_end(self, trainer: TrainerSurface, client: int) -> None:
        due = trainer.federation.current_round + 1
        if not self.before_averaging or not trainer.evaluates_after(due):
            return
        weights = trainer.client_weights()
        found = validate_client(trainer, client, weights, self._metric)
        keep_better(trainer.client_store("best_models"), client, *found, weights, due)

    def on_evaluate_end(self, trainer: TrainerSurface, split: Split, metrics: ClientMetrics) -> None:
        if split != "val" or not trainer.round.fitting or not metrics:
            return
        name, higher = self._metric(metrics)
        best, done = trainer.client_store("best_models"), trainer.federation.current_round
        for client in trainer.hosted_clients:
            value = metrics[name].clients.get(client, math.nan)
            keep_better(best, client, value, higher, trainer.client_model(client), done)

    def _metric(self, metrics: Mapping[str, Any]) -> tuple[str, bool]:
        name = monitored_metric(metrics, self.monitor, default_metric(metrics), "BestClientModels")
        return name, _direction(metrics, name, self.mode)

    def evaluated(self, trainer: TrainerSurface, model: str) -> str:
        return f"{model}, of its best round" if trainer.federation.models_are_final else model

    def on_fit_end(self, trainer: TrainerSurface) -> None:
        if trainer.federation.interrupted_by:  # a resumed run will get here
            return
        for client, best in trainer.client_store("best_models").items():
            trainer.client_store(FINAL_MODELS).setdefault(client, best["weights"])  # fine-tuned ones stay
        trainer.federation.models_are_final = True


def validate_client(
    trainer: TrainerSurface, client: int, weights: Weights, choose: Callable[[Mapping[str, Any]], tuple[str, bool]]
) -> tuple[float, bool]:
    """The chosen metric of weights on a client's validation data (NaN without), and whether higher is better."""
    with trainer.around_evaluation(client, weights):
        report = trainer.loop.evaluator.evaluate(client, weights, "val")
    if report is None or not report.metrics:
        return math.nan, False
    name, higher = choose(report.metrics)
    return report.metrics[name].value, higher


def keep_better(kept: dict[int, Any], client: int, value: float, higher: bool, weights: Weights, turn: int) -> None:
    """Keep a client's weights of a round or epoch if its metric is better than that of those kept; NaN never is."""
    best, sign = kept.get(client), 1 if higher else -1
    if not math.isnan(value) and (best is None or sign * value > sign * best["value"]):
        kept[client] = {"value": value, "round": turn, "weights": weights.clone().state_dict()}


def deciding_metric(trainer: TrainerSurface, metrics: Mapping[str, Any]) -> tuple[str, bool]:
    """The metric that decides on the run's best round (where not logged, the default one); is higher better?"""
    checkpoint = trainer.callback(ModelCheckpoint)
    monitor, mode = (None, "auto") if checkpoint is None else (checkpoint.monitor, checkpoint.mode)
    name = str(displayed_metric(metrics, monitor))
    is_monitored = f"{monitor or name}/".startswith((f"{name}/", f"{name}_epoch/"))
    return name, _direction(metrics, name, mode if is_monitored else "auto")


def _direction(metrics: Mapping[str, Any], name: str, mode: str) -> bool:
    return higher_is_better(name, metrics[name].higher_is_better) if mode == "auto" else mode == "max"
