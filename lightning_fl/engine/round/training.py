"""Training a round's cohort and averaging what it hands over."""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from lightning.fabric.utilities.rank_zero import rank_zero_warn
from torch import Tensor

from lightning_fl.cohort import Cohort, Participant
from lightning_fl.collaboration import Collaboration
from lightning_fl.engine.round.personal import finish_personal_round, keep_own_model
from lightning_fl.engine.round.turns import begin_turn, combine_reports
from lightning_fl.engine.stacked.turns import StackedTurns
from lightning_fl.engine.turn.loop import ClientReport
from lightning_fl.engine.weights.flat import SoleContribution, Weights, check_finite
from lightning_fl.engine.weights.weighted_sum import WeightedSum
from lightning_fl.errors import ConfigurationError, TrainingError
from lightning_fl.strategies.federated import FederatedStrategy

if TYPE_CHECKING:
    from lightning_fl.callbacks.callback import Callback
    from lightning_fl.trainer import FederatedTrainer

__all__ = ["mixture", "train_round"]


def mixture(weights: Sequence[float] | Tensor, models: Sequence[Weights]) -> Weights:
    """``sum_k p_k w_k / sum_k p_k`` of shared models; where all that count are one object, that object."""
    terms = [(model, float(weight)) for weight, model in zip(weights, models, strict=True) if weight > 0]
    first = terms[0][0]
    if all(model is first for model, _ in terms):
        return first
    total = WeightedSum(first)
    total.add_all_(terms)
    return total.value(sum(weight for _, weight in terms))


def train_round(trainer: "FederatedTrainer", cohort: Cohort) -> None:
    """Train a cohort and build the next shared models, in ``trainer.models``."""
    choosers = trainer.callbacks_with("select_collaboration")
    if choosers:
        _train_then_choose(trainer, cohort, choosers[0])
        return
    choosers = trainer.callbacks_with("select_collaborators")
    if choosers:
        _train_own_models(trainer, cohort, choosers[0])
        return
    parts = _parts(trainer, cohort)
    planned, contributors = _planned_totals(parts), _contributors(parts)
    sums = {model: _empty_sum(trainer, model, contributors[model]) for model in sorted(planned)}

    def add(participant: Participant, weights: Weights) -> None:
        for model, weight in parts[participant].items():
            sums[model].add_(weights, weight / planned[model])

    arrived = _train_cohort(trainer, cohort, add)
    starts, models = trainer.models, list(trainer.models)
    for model, total in sums.items():
        models[model] = _average(trainer, parts, arrived, model, planned[model], total)
    trainer.models = models
    trainer.communication.end_turns(arrived)
    _after_average(trainer, parts, arrived, starts)


def _train_own_models(trainer: "FederatedTrainer", cohort: Cohort, chooser: "Callback") -> None:
    """Every client trains a model of its own, then chooses whose to average it with."""
    _refuse_given_models(cohort, chooser)
    changes_average = type(trainer.strategy).aggregate is not FederatedStrategy.aggregate
    starts = list(trainer.models) if changes_average else None

    def keep(participant: Participant, weights: Weights) -> None:
        keep_own_model(trainer, participant, weights, keep_start=starts is not None)

    _train_cohort(trainer, cohort, keep)
    finish_personal_round(trainer, chooser, starts)


def _refuse_given_models(cohort: Cohort, chooser: "Callback") -> None:
    if any(participant.model is not None for participant in cohort.participants):
        raise ConfigurationError(
            f"{type(chooser).__name__} goes by what clients learn from their own models; the callback that selects"
            " clients names a model for them. Keep one of the two in trainer.callbacks."
        )


def _train_then_choose(trainer: "FederatedTrainer", cohort: Cohort, chooser: "Callback") -> None:
    """Keep what the clients learned until it is known whose weights are averaged with whose."""
    _refuse_given_models(cohort, chooser)
    kept: dict[int, Weights] = {}

    def keep(participant: Participant, weights: Weights) -> None:
        check_finite(weights, trainer.shared_model(participant.client))
        kept[participant.client] = weights.clone()

    arrived = _train_cohort(trainer, cohort, keep)
    collaboration = chooser.select_collaboration(trainer, kept)
    if collaboration is not None:
        regroup(trainer, collaboration)
    parts = _parts(trainer, cohort)
    planned, contributors = _planned_totals(parts), _contributors(parts)
    starts, models = trainer.models, list(trainer.models)
    for model in sorted(planned):  # one sum at a time: its memory is several times a model's
        total = _empty_sum(trainer, model, contributors[model])
        total.add_all_(
            [
                (kept[participant.client], part[model] / planned[model])
                for participant, part in parts.items()
                if participant.client in kept and model in part
            ]
        )
        models[model] = _average(trainer, parts, arrived, model, planned[model], total)
    trainer.models = models
    kept.clear()
    trainer.communication.end_turns(arrived, judged=collaboration is not None)
    _after_average(trainer, parts, arrived, starts)


def regroup(trainer: "FederatedTrainer", collaboration: Collaboration) -> None:
    """Change who collaborates; each model starts as the mixture of its clients' models."""
    needed = (collaboration.aggregation > 0).any(0).tolist()
    starts = [trainer.shared_model(client) if use else trainer.models[0] for client, use in enumerate(needed)]
    trainer.models = [mixture(row, starts) for row in collaboration.aggregation.tolist()]
    trainer._collaboration = collaboration


#: What participants, in the cohort's order, contribute to: model -> weight in it.
_Parts = dict[Participant, dict[int, float]]


def _parts(trainer: "FederatedTrainer", cohort: Cohort) -> _Parts:
    clients = [participant.client for participant in cohort.participants]
    columns = trainer.collaboration.aggregation[:, clients].T.tolist()  # of the whole cohort at once
    return {
        participant: _models_of(participant, column)
        for participant, column in zip(cohort.participants, columns, strict=True)
    }


def _models_of(participant: Participant, column: list[float]) -> dict[int, float]:
    """The models a participant contributes to, with its weight in each; ``column`` is its client's of A."""
    if participant.model is not None:
        weight = column[participant.model] if participant.weight is None else participant.weight
        return {participant.model: weight} if weight > 0 else {}
    return {k: a if participant.weight is None else participant.weight for k, a in enumerate(column) if a > 0}


def _planned_totals(parts: _Parts) -> dict[int, float]:
    """Each model's sum of weights over the whole cohort: terms are scaled by it, so that sums use their full range."""
    totals: dict[int, float] = {}
    for part in parts.values():
        for model, weight in part.items():
            totals[model] = totals.get(model, 0.0) + weight
    return totals


def _contributors(parts: _Parts) -> dict[int, list[int]]:
    """The clients that contribute to each model."""
    clients: dict[int, list[int]] = {}
    for participant, part in parts.items():
        for model in part:
            clients.setdefault(model, []).append(participant.client)
    return clients


def _empty_sum(trainer: "FederatedTrainer", model: int, clients: list[int]) -> WeightedSum | SoleContribution:
    if len(clients) == 1:
        return SoleContribution(trainer.client_ranks[clients[0]], trainer.models[model])
    return WeightedSum(trainer.models[model])


def _average(
    trainer: "FederatedTrainer",
    parts: _Parts,
    arrived: Sequence[Participant],
    model: int,
    planned: float,
    total: WeightedSum | SoleContribution,
) -> Weights:
    """The next shared model; one whose participants all failed stays as it is."""
    survived = sum(parts[participant].get(model, 0.0) / planned for participant in arrived)
    if not survived:
        return trainer.models[model]
    if trainer.fabric.world_size > 1:
        total.reduce_(trainer.strategy)
    return trainer.strategy.aggregate(trainer.models[model], total.value(survived))


def _after_average(
    trainer: "FederatedTrainer", parts: _Parts, arrived: Sequence[Participant], starts: Sequence[Weights]
) -> None:
    """Tell callbacks who had which share in the models."""
    callbacks = trainer.callbacks_with("on_average_end")
    if not callbacks:
        return
    weights: dict[int, dict[int, float]] = {}
    for participant in arrived:
        for model, weight in parts[participant].items():
            if not weight:
                continue
            of_model = weights.setdefault(model, {})
            of_model[participant.client] = of_model.get(participant.client, 0.0) + weight
    totals = {model: math.fsum(of_model.values()) for model, of_model in weights.items()}
    shares = {
        model: {client: weight / totals[model] for client, weight in sorted(weights[model].items())}
        for model in sorted(weights)
    }
    for callback in callbacks:
        callback.on_average_end(trainer, starts, shares)


def _train_cohort(
    trainer: "FederatedTrainer", cohort: Cohort, hand_over: Callable[[Participant, Weights], None]
) -> list[Participant]:
    """Every hosted participant's turn, each handed over at once; sets ``client_reports`` and ``survivors``.

    A client that trains several models has a turn for each, and each may fail by itself.

    Returns:
        The participants, on whatever rank, whose turns did not fail.

    Raises:
        TrainingError: on every rank, if a client's turn fails and the run's policy is to fail, or all fail.
    """
    trainer.communication.begin_turns(cohort.participants)
    hosted, after = set(trainer.hosted_clients), trainer.callbacks_with("on_client_end")
    take_turn = partial(_take_turn, trainer) if trainer.stacked is None else StackedTurns(trainer, cohort).take
    reports: dict[int, ClientReport] = {}  # by place in the cohort
    failure: Exception | None = None
    for place, participant in enumerate(cohort.participants):
        client = participant.client
        if client not in hosted or failure is not None:
            continue
        try:
            reports[place], start = take_turn(place, participant)
            trainer.participant = participant
            _hand_over(trainer, participant, start, hand_over)
        except Exception as error:
            reports[place] = ClientReport(error=_in_words(trainer, error))
            failure = error if trainer.on_client_error == "fail" else None
            continue
        for callback in after:  # the client's part in the sums stands: from here on nothing may leave it out
            callback.on_client_end(trainer, client)
    reports = trainer.strategy.exchange(reports)
    _judge_failures(trainer, cohort, reports, failure)
    of_client: dict[int, list[ClientReport]] = {}
    for place, report in reports.items():
        of_client.setdefault(cohort.participants[place].client, []).append(report)
    trainer.client_reports = {client: combine_reports(turns) for client, turns in sorted(of_client.items())}
    trainer.survivors = {client for client, report in trainer.client_reports.items() if report.error is None}
    return [cohort.participants[place] for place, report in reports.items() if report.error is None]


def _in_words(trainer: "FederatedTrainer", error: Exception) -> str:
    text = f"{type(error).__name__}: {error}"
    if trainer.channels_last and "view size is not compatible" in text:
        text += " Images are laid out as trainer.channels_last says; set it to false where the module needs `view`."
    return text


def _take_turn(trainer: "FederatedTrainer", place: int, participant: Participant) -> tuple[ClientReport, Weights]:
    """A participant's turn by itself; leaves its new weights in the module, returns its report and its start."""
    start, state = begin_turn(trainer, participant)
    return trainer.loop.train(participant.client, start, state), start


def _hand_over(
    trainer: "FederatedTrainer",
    participant: Participant,
    start: Weights,
    hand_over: Callable[[Participant, Weights], None],
) -> None:
    """A client's weights without its personal layers, which are put into its own store."""
    weights = trainer.client_weights()
    if trainer.personal is None:
        hand_over(participant, weights)
        return
    own = trainer.personal.extract(weights)
    hand_over(participant, trainer.personal.copy_(weights, start))
    trainer.client_store("personal_layers")[participant.client] = own
    trainer.personal.insert_(weights, own)


def _judge_failures(
    trainer: "FederatedTrainer", cohort: Cohort, reports: dict[int, ClientReport], own: Exception | None
) -> None:
    failed = {place: report.error for place, report in reports.items() if report.error is not None}
    if not failed:
        return
    assert trainer.datamodule is not None
    names = trainer.datamodule.client_names()
    turns = Counter(participant.client for participant in cohort.participants)

    def turn(place: int) -> tuple[str, str]:
        """The client, and which of its turns where it has several."""
        client, model = cohort.participants[place].client, cohort.participants[place].model
        return f"client {client} ({names[client]})", f"model {model} in " if turns[client] > 1 else ""

    done = trainer.current_round + 1
    place, reason = next(iter(failed.items()))
    who, what = turn(place)
    text = f"{who} failed in {what and f'the training of {what}'}round {done}: {reason}"
    if trainer.on_client_error == "fail":
        raise TrainingError(
            f"{text} Nothing is lost: the last checkpoint is untouched. Set trainer.on_client_error=skip to leave"
            " failing clients out of a round."
        ) from own
    if len(failed) == len(reports):
        raise TrainingError(f"every client of the round failed; the first: {text}")
    for place, reason in failed.items():
        who, what = turn(place)
        rank_zero_warn(f"{who} is left out of {what}round {done}: {reason}")
