"""Training of a round's cohort, and averaging of its updates."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from lightning_fl.core.cohort import Cohort, Participant
from lightning_fl.core.errors import ConfigurationError, TrainingError
from lightning_fl.engine.client import ClientReport, ClientTurn, ClientUpdate, packed
from lightning_fl.engine.federation import OF_MODEL, PERSONAL_LAYERS, STRATEGY
from lightning_fl.engine.hooks import Hook
from lightning_fl.engine.learner import Contribution, Learner
from lightning_fl.engine.round.failures import failure_report, raise_or_warn
from lightning_fl.engine.round.personal import assign_own_models, finish_personal_round, store_own_model
from lightning_fl.engine.round.reports import combine_reports
from lightning_fl.engine.round.server import next_model
from lightning_fl.engine.stacked.loop import StackedLoop
from lightning_fl.engine.stacked.turns import StackedTurns
from lightning_fl.engine.turn.loop import LocalLoop
from lightning_fl.engine.weights.flat import Weights, linear_combination
from lightning_fl.engine.weights.weighted_sum import SoleContribution, WeightedSum, check_addable

__all__ = ["train_round"]


def train_round(loop: LocalLoop, cohort: Cohort, stacked: StackedLoop | None = None) -> None:
    """Train a cohort and update the shared models of the loop's federation; an empty cohort changes nothing.

    Args:
        loop: takes the clients' turns.
        cohort: who trains which model, with which weight.
        stacked: takes turns of several clients at once instead.

    Raises:
        TrainingError: on every rank, if a client's turn fails and ``on_client_error`` is "fail", or all fail.
    """
    federation = loop.federation
    if not cohort.participants:
        loop.round.reports, loop.round.survivors = {}, set()
        return
    if loop.own_steps:
        federation.forget_changed(loop.learner.kept_for_model)
        loop.round.trained = {one: loop.identity_of(loop.model_of(one)) for one in cohort.participants}
    choosers = loop.hooks.of("select_collaboration")
    if personal := loop.hooks.of("select_collaborators"):
        _train_own_models(loop, cohort, stacked, personal[0])
        return
    if choosers or "weigh_cohort" in loop.own_steps:
        _train_then_choose(loop, cohort, stacked, choosers[0] if choosers else None)
        return
    parts = _parts(loop, cohort)
    planned, contributors = _planned_totals(parts), _contributors(parts)
    sums = {model: _Sums(loop, model, contributors[model], planned[model]) for model in sorted(planned)}

    def add(participant: Participant, update: ClientUpdate) -> None:
        own = _own_weights(loop, participant, parts[participant], update.weight)
        if len(own) > 1:
            for model, weight in own.items():
                sums[model].check(update, weight)
        for model, weight in own.items():
            sums[model].add_all_([(update, weight)])

    arrived = _train_cohort(loop, cohort, stacked, add)
    parts |= {one: _own_weights(loop, one, parts[one], report.weight) for one, report in arrived.items()}
    starts, models = federation.models, list(federation.models)
    for model, total in sums.items():
        models[model] = total.average(parts, arrived)
    federation.models = models
    federation.communication.end_turns(list(arrived), models, federation.collaboration)
    _after_average(loop, parts, arrived, starts)


def _train_own_models(loop: LocalLoop, cohort: Cohort, stacked: StackedLoop | None, chooser: Hook) -> None:
    """Train a model of its own for every client; each then chooses which others to average it with."""
    _refuse_given_models(cohort, chooser)
    if loop.learner.extra_vectors:
        raise ConfigurationError(
            f"the strategy {type(loop.learner).__name__} averages further vectors"
            f" ({', '.join(loop.learner.extra_vectors)}), which is impossible with the models of single clients that"
            f" {chooser.owner} creates. Keep one of the two."
        )
    federation = loop.federation
    assign_own_models(federation, [participant.client for participant in cohort.participants])
    starts = list(federation.models) if "aggregate" in loop.own_steps else None

    def keep(participant: Participant, update: ClientUpdate) -> None:
        store_own_model(federation.models, participant.client, update.weights, keep_start=starts is not None)

    arrived = _train_cohort(loop, cohort, stacked, keep)
    reports = {participant.client: report for participant, report in arrived.items()}
    finish_personal_round(loop, chooser, starts, reports)


def _refuse_given_models(cohort: Cohort, chooser: Hook) -> None:
    if any(participant.model is not None for participant in cohort.participants):
        raise ConfigurationError(
            f"{chooser.owner} needs what clients learn from their own models, and the callback that selects clients"
            " assigns models to them. Keep one of the two in trainer.callbacks."
        )


def _train_then_choose(loop: LocalLoop, cohort: Cohort, stacked: StackedLoop | None, chooser: Hook | None) -> None:
    """Train all clients first, then choose which of their weights are averaged, and how they are weighed."""
    federation = loop.federation
    if chooser is not None:
        _refuse_given_models(cohort, chooser)
    kept: dict[Participant, ClientUpdate] = {}

    def keep(participant: Participant, update: ClientUpdate) -> None:
        given = participant.model
        start = federation.shared_model(participant.client) if given is None else federation.models[given]
        check_addable(update.weights, start, update.scale)
        for vector in update.vectors.values():
            check_addable(vector, _zeros(loop, start), update.scale)
        kept[participant] = replace(update, weights=update.weights.clone())

    arrived = _train_cohort(loop, cohort, stacked, keep)
    learned = {participant.client: update.weights for participant, update in kept.items()}
    collaboration = None if chooser is None else chooser(learned)
    if collaboration is not None:
        federation.regroup(collaboration)
        federation.forget_changed(loop.learner.kept_for_model)
    parts = _parts(loop, cohort)
    parts |= {one: _own_weights(loop, one, parts[one], report.weight) for one, report in arrived.items()}
    if "weigh_cohort" in loop.own_steps:
        _weigh_cohort(loop, parts, arrived)
    planned, contributors = _planned_totals(parts), _contributors(parts)
    starts, models = federation.models, list(federation.models)
    for model in sorted(planned):  # one sum at a time: its memory is several times a model's
        total = _Sums(loop, model, contributors[model], planned[model])
        total.add_all_(
            [
                (kept[participant], part[model])
                for participant, part in parts.items()
                if participant in kept and model in part
            ]
        )
        models[model] = total.average(parts, arrived)
    federation.models = models
    kept.clear()
    learned.clear()
    federation.communication.end_turns(
        list(arrived), models, federation.collaboration, chosen_from_updates=collaboration is not None
    )
    _after_average(loop, parts, arrived, starts)


#: Participants in the cohort's order -> model that they contribute to -> weight.
_Parts = dict[Participant, dict[int, float]]


def _parts(loop: LocalLoop, cohort: Cohort) -> _Parts:
    clients = [participant.client for participant in cohort.participants]
    columns = loop.federation.collaboration.aggregation[:, clients].T.tolist()  # of the whole cohort at once
    return {
        participant: _models_of(participant, column)
        for participant, column in zip(cohort.participants, columns, strict=True)
    }


def _models_of(participant: Participant, column: list[float]) -> dict[int, float]:
    """The models a participant contributes to, with its weight in each, from its client's column of A."""
    if participant.model is not None:
        weight = column[participant.model] if participant.weight is None else participant.weight
        return {participant.model: weight} if weight > 0 else {}
    if participant.feeds is not None:
        weights = {k: column[k] if participant.weight is None else participant.weight for k in participant.feeds}
        return {k: weight for k, weight in weights.items() if weight > 0}
    return {k: a if participant.weight is None else participant.weight for k, a in enumerate(column) if a > 0}


def _own_weights(
    loop: LocalLoop, participant: Participant, part: dict[int, float], weight: float | None
) -> dict[int, float]:
    """A participant's weight in each model, overridden by that of its update (:class:`ClientUpdate`) if given."""
    if weight is None:
        return part
    shares = loop.federation.collaboration.personalisation[participant.client]
    alone = participant.model is not None
    return {model: weight if alone else weight * (float(shares[model]) or 1.0) for model in part}


def _weigh_cohort(loop: LocalLoop, parts: _Parts, arrived: Mapping[Participant, ClientReport]) -> None:
    """Replace the weights of the finished participants by those that the strategy computes."""
    for model in _planned_totals(parts):
        those = [one for one in arrived if model in parts[one]]
        contributions = [Contribution(one.client, parts[one][model], arrived[one]) for one in those]
        weights = loop.learner.weigh_cohort(contributions, loop.federation.model_states.get(model, {}))
        for one, weight in zip(those, weights, strict=True):
            parts[one] |= _own_weights(loop, one, {model: 0.0}, weight)


def _planned_totals(parts: _Parts) -> dict[int, float]:
    """Each model's sum of weights over the whole cohort, which scales the terms so that sums use their full range."""
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


class _Sums:
    """The weighted sums for one shared model: of weights, and of the strategy's further vectors.

    Args:
        loop: of the run.
        model: number of the model.
        clients: its contributors.
        planned: sum of their weights, which scales the terms.
    """

    def __init__(self, loop: LocalLoop, model: int, clients: Sequence[int], planned: float) -> None:
        self._loop = loop
        self._model = model
        self._planned = planned
        self._start = loop.federation.models[model]
        self._weights = self._empty(clients, self._start)
        vectors = loop.learner.extra_vectors
        self._vectors = {name: self._empty(clients, _zeros(loop, self._start)) for name in vectors}

    def _empty(self, clients: Sequence[int], reference: Weights) -> WeightedSum | SoleContribution:
        if len(clients) == 1:
            return SoleContribution(self._loop.processes.client_ranks[clients[0]], reference)
        return WeightedSum(reference)

    def check(self, update: ClientUpdate, weight: float) -> None:
        """Raise what :meth:`add_all_` would raise, before anything is added to any sum."""
        self._weights.check(update.weights, update.scale * (weight / self._planned))
        for name, total in self._vectors.items():
            total.check(update.vectors[name], update.scale * (weight / self._planned))

    def add_all_(self, updates: Sequence[tuple[ClientUpdate, float]]) -> None:
        """Add clients' updates, each with its weight before scaling.

        Raises:
            TrainingError: weights or vectors are not finite, or too large. Nothing is added.
        """
        terms = [(update, update.scale * (weight / self._planned)) for update, weight in updates if update.scale]
        vectors = [
            (total, [(update.vectors[name], weight) for update, weight in terms])
            for name, total in self._vectors.items()
        ]
        added: list[tuple[WeightedSum | SoleContribution, list[tuple[Weights, float]]]] = []
        try:  # cheaper than checking all before, which would wait for a GPU
            for total, of_total in [*vectors, (self._weights, [(update.weights, weight) for update, weight in terms])]:
                total.add_all_(of_total)
                added.append((total, of_total))
        except TrainingError:
            for total, of_total in added:
                total.take_back_(of_total)
            raise

    def average(self, parts: _Parts, arrived: Mapping[Participant, ClientReport]) -> Weights:
        """The next shared model; unchanged if all its participants failed or have weight 0."""
        loop, model = self._loop, self._model
        scaled = [parts[one].get(model, 0.0) / self._planned * report.scale for one, report in arrived.items()]
        survived = sum(scaled)
        if not survived:
            return self._start
        totals = [self._weights, *self._vectors.values()]
        if loop.processes.several:
            for total in totals:
                total.reduce_(loop.processes.transport)
        average, *vectors = [total.value(survived) for total in totals]
        if "aggregate" not in loop.own_steps:
            return average
        trained, identity = loop.round.trained, loop.identity_of(model)
        contributions = [
            Contribution(one.client, parts[one][model], report, trained[one] == identity)
            for one, report in arrived.items()
            if parts[one].get(model)
        ]
        return next_model(
            loop, model, self._start, average, contributions, dict(zip(self._vectors, vectors, strict=True))
        )


def _zeros(loop: LocalLoop, start: Weights) -> Weights:
    """Reference of further vectors: zero in the averaged parameters."""
    return linear_combination(start, [(0.0, start)], loop.averaged_spans())


def _after_average(
    loop: LocalLoop, parts: _Parts, arrived: Mapping[Participant, ClientReport], starts: Sequence[Weights]
) -> None:
    """Call ``on_average_end`` with the clients' shares in the models."""
    hooks = loop.hooks.of("on_average_end")
    if not hooks:
        return
    weights: dict[int, dict[int, float]] = {}
    for participant, report in arrived.items():
        for model, unscaled in parts[participant].items():
            weight = unscaled * report.scale
            if not weight:
                continue
            of_model = weights.setdefault(model, {})
            of_model[participant.client] = of_model.get(participant.client, 0.0) + weight
    totals = {model: math.fsum(of_model.values()) for model, of_model in weights.items()}
    shares = {
        model: {client: weight / totals[model] for client, weight in sorted(weights[model].items())}
        for model in sorted(weights)
    }
    for hook in hooks:
        hook(starts, shares)


def _train_cohort(
    loop: LocalLoop,
    cohort: Cohort,
    stacked: StackedLoop | None,
    hand_over: Callable[[Participant, ClientUpdate], None],
) -> dict[Participant, ClientReport]:
    """Take every hosted participant's turn and hand over its update; sets the round's reports and survivors.

    A client that trains several models has a turn for each; each may fail on its own.

    Returns:
        Participants on all ranks without failed turns, with their reports.

    Raises:
        TrainingError: on every rank, if a client's turn fails and ``on_client_error`` is "fail", or all fail.
    """
    federation, now = loop.federation, loop.round
    federation.communication.begin_turns(cohort.participants, federation.models, federation.collaboration)
    after = loop.hooks.of("on_client_end")
    take_turn = partial(_take_turn, loop) if stacked is None else StackedTurns(loop, stacked, cohort).take
    reports = _measure(loop, cohort) if "measure_client" in loop.own_steps else {}  # by place in the cohort
    failure: Exception | None = None
    for place, participant in enumerate(cohort.participants):
        client = participant.client
        if not loop.processes.hosts(client) or failure is not None or place in reports:
            continue
        give_back = federation.remember(client) if loop.settings.on_client_error == "skip" else None
        try:
            report, turn = take_turn(place, participant)
            now.participant = participant
            reports[place] = _hand_over(loop, participant, turn, report, hand_over)
        except Exception as error:
            reports[place] = failure_report(loop, cohort, place, error)
            if give_back is not None:
                give_back()
            failure = error if loop.settings.on_client_error == "fail" else None
            if failure is not None and loop.processes.several:  # do not let other ranks finish their turns
                raise_or_warn(loop, cohort, {place: reports[place]}, failure)
            continue
        for hook in after:  # the client is in the sums now, so that errors here must not leave it out
            hook(client)
    reports = loop.processes.exchange(reports)
    raise_or_warn(loop, cohort, reports, failure)
    changed = [report.trainable for report in reports.values() if report.error is None]
    if any(changed):
        federation.freeze(loop.flat, changed)
    of_client: dict[int, list[ClientReport]] = {}
    for place, report in reports.items():
        of_client.setdefault(cohort.participants[place].client, []).append(report)
    now.reports = {client: combine_reports(turns) for client, turns in sorted(of_client.items())}
    now.survivors = {client for client, report in now.reports.items() if report.error is None}
    return {cohort.participants[place]: report for place, report in reports.items() if report.error is None}


def _measure(loop: LocalLoop, cohort: Cohort) -> dict[int, ClientReport]:
    """Let the cohort measure before it trains; returns reports of failed hosted participants, by place.

    Raises:
        TrainingError: on every rank, if one fails and ``on_client_error`` is "fail".
    """
    loop.measured = {}
    found: dict[int, ClientReport] = {}
    failure: Exception | None = None
    for place, participant in enumerate(cohort.participants):
        if not loop.processes.hosts(participant.client):
            continue
        try:
            found[place] = ClientReport(numbers=loop.measure(participant))
        except Exception as error:
            found[place] = failure_report(loop, cohort, place, error)
            failure = error if loop.settings.on_client_error == "fail" else None
    everyone = loop.processes.exchange(found)
    if loop.settings.on_client_error == "fail":
        raise_or_warn(loop, cohort, everyone, failure)
    for place, report in everyone.items():
        if report.error is None:
            participant = cohort.participants[place]
            loop.measured.setdefault(loop.model_of(participant), {})[participant.client] = report.numbers
    if loop.hooks.of("select_collaboration"):  # the collaboration is not known yet
        whole = {client: numbers for of_model in loop.measured.values() for client, numbers in of_model.items()}
        loop.measured = dict.fromkeys(loop.measured, whole)
    return {place: report for place, report in found.items() if report.error is not None}


def _take_turn(loop: LocalLoop, place: int, participant: Participant) -> tuple[ClientReport, ClientTurn]:
    """Take a participant's turn, which leaves its new weights in the module."""
    turn = loop.begin_turn(participant)
    return loop.take_turn(turn), turn


def _hand_over(
    loop: LocalLoop,
    participant: Participant,
    turn: ClientTurn,
    report: ClientReport,
    hand_over: Callable[[Participant, ClientUpdate], None],
) -> ClientReport:
    """Hand over a client's shared weights and store its personal layers and strategy state; returns its report."""
    learner, personal = loop.learner, loop.federation.personal
    turn.report = report
    weights = loop.flat.collect()
    if "end_client" in loop.own_steps:
        learner.end_client(turn, weights)
    own = None if personal is None else personal.extract(weights)
    shared = weights if personal is None else personal.copy_(weights, turn.start)
    update = ClientUpdate(shared)
    if "client_update" in loop.own_steps:
        update = learner.client_update(turn, shared)
    if "client_update" in loop.own_steps or learner.extra_vectors:
        _check_update(learner, update)
    hand_over(participant, update)
    if personal is not None and own is not None:
        loop.federation.client_store(PERSONAL_LAYERS)[participant.client] = own
        personal.insert_(weights, own)
    if turn.kept:
        mark = {OF_MODEL: loop.identity_of(turn.model)} if learner.kept_for_model else {}
        loop.federation.client_store(STRATEGY)[participant.client] = packed(turn.kept) | mark
    if "client_update" not in loop.own_steps:
        return report
    return replace(report, scale=update.scale, numbers=update.numbers, weight=update.weight)


def _check_update(learner: Learner, update: ClientUpdate) -> None:
    name = f"{type(learner).__name__}.client_update"
    if not isinstance(update, ClientUpdate):
        raise ConfigurationError(f"{name} returned {type(update).__name__}: return ClientUpdate(weights).")
    for kind, factor in (("scale", update.scale), ("weight", update.weight)):
        if factor is not None and not (math.isfinite(factor) and factor >= 0):
            raise TrainingError(f"{name} returned {kind}={factor}: must be finite and at least 0.")
    if sorted(update.vectors) != sorted(learner.extra_vectors):
        raise ConfigurationError(
            f"{name} returned the vectors {sorted(update.vectors)}, and extra_vectors names"
            f" {sorted(learner.extra_vectors)}: return exactly these."
        )
