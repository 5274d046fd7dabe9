"""Training a round's cohort and averaging what it hands over."""

from typing import TYPE_CHECKING

from lightning.fabric.utilities.rank_zero import rank_zero_warn

from lightning_fl.cohort import Cohort, Participant
from lightning_fl.engine.local import ClientReport
from lightning_fl.engine.optimization import ClientState
from lightning_fl.engine.weights import WeightedSum, Weights
from lightning_fl.errors import TrainingError

if TYPE_CHECKING:
    from lightning_fl.trainer import FederatedTrainer

__all__ = ["average_models", "model_sums", "train_cohort"]


def models_of(trainer: "FederatedTrainer", participant: Participant) -> dict[int, float]:
    """The models a participant contributes to, with its weight in each."""
    column: list[float] = trainer.collaboration.aggregation[:, participant.client].tolist()
    if participant.model is not None:
        weight = column[participant.model] if participant.weight is None else participant.weight
        return {participant.model: weight} if weight > 0 else {}
    return {k: a if participant.weight is None else participant.weight for k, a in enumerate(column) if a > 0}


def model_sums(trainer: "FederatedTrainer", cohort: Cohort) -> dict[int, WeightedSum]:
    """An empty sum for every model that the cohort contributes to."""
    trained = {model for participant in cohort.participants for model in models_of(trainer, participant)}
    return {model: WeightedSum(trainer.models[model]) for model in sorted(trained)}


def _planned_totals(trainer: "FederatedTrainer", cohort: Cohort) -> dict[int, float]:
    """Each model's sum of weights over the whole cohort: terms are scaled by it, so that sums use their full range."""
    totals: dict[int, float] = {}
    for participant in cohort.participants:
        for model, weight in models_of(trainer, participant).items():
            totals[model] = totals.get(model, 0.0) + weight
    return totals


def train_cohort(trainer: "FederatedTrainer", cohort: Cohort, sums: dict[int, WeightedSum]) -> dict[int, ClientReport]:
    """Every hosted participant's turn; its weights are added to ``sums`` at once. Returns the reports of all clients.

    Raises:
        TrainingError: on every rank, if a client's turn fails and the run's policy is to fail, or all fail.
    """
    hosted = set(trainer.hosted_clients)
    before, after = trainer.callbacks_with("on_client_start"), trainer.callbacks_with("on_client_end")
    planned = _planned_totals(trainer, cohort)
    reports: dict[int, ClientReport] = {}
    failure: Exception | None = None
    for participant in cohort.participants:
        client = participant.client
        if client not in hosted or failure is not None:
            continue
        start = trainer.client_model(client) if participant.model is None else trainer.models[participant.model]
        state = trainer.client_states.setdefault(client, ClientState())
        try:
            for callback in before:
                callback.on_client_start(trainer, client)
            reports[client] = trainer.loop.train(client, start, state)
            weights = trainer.client_weights()
            for model, weight in models_of(trainer, participant).items():
                sums[model].add_(weights, weight / planned[model])
        except Exception as error:
            reports[client] = ClientReport(error=f"{type(error).__name__}: {error}")
            failure = error if trainer.on_client_error == "fail" else None
            continue
        for callback in after:  # the client's part in the sums stands: from here on nothing may leave it out
            callback.on_client_end(trainer, client)
    reports = trainer.strategy.exchange(reports)
    _judge_failures(trainer, reports, failure)
    return reports


def _judge_failures(trainer: "FederatedTrainer", reports: dict[int, ClientReport], own: Exception | None) -> None:
    failed = {client: report.error for client, report in reports.items() if report.error is not None}
    if not failed:
        return
    assert trainer.datamodule is not None
    names = trainer.datamodule.client_names()
    client, reason = next(iter(failed.items()))
    text = f"client {client} ({names[client]}) failed in round {trainer.current_round + 1}: {reason}"
    if trainer.on_client_error == "fail":
        raise TrainingError(
            f"{text} Nothing is lost: the last checkpoint is untouched. Set trainer.on_client_error=skip to leave"
            " failing clients out of a round."
        ) from own
    if len(failed) == len(reports):
        raise TrainingError(f"every client of the round failed; the first: {text}")
    for client, reason in failed.items():
        rank_zero_warn(f"client {client} ({names[client]}) is left out of round {trainer.current_round + 1}: {reason}")


def average_models(trainer: "FederatedTrainer", cohort: Cohort, sums: dict[int, WeightedSum]) -> list[Weights]:
    """The next shared models. A model whose participants all failed, or that had none, stays as it is."""
    planned = _planned_totals(trainer, cohort)
    totals = dict.fromkeys(sums, 0.0)
    for participant in cohort.participants:
        if participant.client in trainer.survivors:
            for model, weight in models_of(trainer, participant).items():
                totals[model] += weight / planned[model]
    models = list(trainer.models)
    for model, total in sums.items():
        if trainer.fabric.world_size > 1:
            total.reduce_(trainer.strategy)
        if totals[model] > 0:
            models[model] = trainer.strategy.aggregate(trainer.models[model], total.value(totals[model]))
    return models
