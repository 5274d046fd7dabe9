"""Averages of a cohort's updates: the next shared models."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from lightning_fl.core.cohort import Cohort, Participant
from lightning_fl.core.errors import ConfigurationError, TrainingError
from lightning_fl.engine.client import ClientReport, ClientUpdate, packed
from lightning_fl.engine.federation import IDENTITY
from lightning_fl.engine.hooks import Hook
from lightning_fl.engine.learner import Contribution, ModelUpdate
from lightning_fl.engine.turn.loop import LocalLoop
from lightning_fl.engine.weights.flat import Weights, linear_combination
from lightning_fl.engine.weights.weighted_sum import SoleContribution, WeightedSum, check_addable

_Sum = WeightedSum | SoleContribution
#: Weights, and their own weight in a sum.
_Term = tuple[Weights, float]


class SharedModels:
    """Averages updates into the shared models, as they arrive or, if their weights depend on them, at the end."""

    def __init__(self, loop: LocalLoop, cohort: Cohort, chooser: Hook | None) -> None:
        self._loop = loop
        self._cohort = cohort
        self._chooser = chooser
        self._waits = chooser is not None or "weigh_cohort" in loop.own_steps
        self._kept: dict[Participant, ClientUpdate] = {}
        #: Participant, in the cohort's order -> model that it contributes to -> weight.
        self._parts: dict[Participant, dict[int, float]] = {}
        self._sums: dict[int, _Sums] = {}
        if not self._waits:
            self._parts = self._planned_parts()
            self._sums = {model: _Sums(loop, model, *members) for model, members in self._plan().items()}

    def receive(self, participant: Participant, update: ClientUpdate) -> None:
        """Add or keep a participant's update; a ``TrainingError`` if it is not finite, or too large."""
        if self._waits:
            loop, start = self._loop, self._loop.start_of(participant)
            check_addable(update.weights, start, update.scale)
            for vector in update.vectors.values():
                check_addable(vector, _zeros(loop, start), update.scale)
            self._kept[participant] = replace(update, weights=update.weights.clone())
            return
        own = self._own_weights(participant, update.weight).items()
        added: list[tuple[_Sum, list[_Term]]] = []
        try:  # cheaper than checking all before, which would wait for a GPU
            for total, terms in (pair for model, weight in own for pair in self._sums[model].terms([(update, weight)])):
                total.add_all_(terms)
                added.append((total, terms))
        except TrainingError:
            for total, terms in added:
                total.take_back_(terms)
            raise

    def finish(self, arrived: Mapping[Participant, ClientReport]) -> None:
        """Set the next shared models and the round's shares, from participants on all ranks without failed turns."""
        loop, federation = self._loop, self._loop.federation
        chosen = self._chooser is not None and self._choose(self._chooser)
        if self._waits:
            self._parts = self._planned_parts()
        self._parts |= {one: self._own_weights(one, report.weight) for one, report in arrived.items()}
        if "weigh_cohort" in loop.own_steps:
            self._weigh(arrived)
        starts, models = federation.models, list(federation.models)
        if self._waits:
            for model, members in self._plan().items():  # one sum at a time: its memory is several times a model's
                sums, kept = _Sums(loop, model, *members), [(one, self._parts[one]) for one in self._kept]
                for total, terms in sums.terms([(self._kept[one], part[model]) for one, part in kept if model in part]):
                    total.add_all_(terms)
                models[model] = sums.average(self._parts, arrived)
        for model, sums in self._sums.items():
            models[model] = sums.average(self._parts, arrived)
        federation.models = models
        self._kept.clear()
        federation.communication.end_turns(list(arrived), models, federation.collaboration, chosen_from_updates=chosen)
        loop.round.starts, loop.round.shares = starts, self._shares(arrived)

    def _choose(self, chooser: Hook) -> bool:
        """Let the callback choose the collaboration; returns whether it did."""
        loop = self._loop
        collaboration = chooser({participant.client: update.weights for participant, update in self._kept.items()})
        if collaboration is not None:
            loop.federation.regroup(collaboration)
            loop.federation.forget_changed(loop.learner.kept_for_model)
        return collaboration is not None

    def _planned_parts(self) -> dict[Participant, dict[int, float]]:
        cohort = self._cohort.participants
        clients = [participant.client for participant in cohort]
        columns = self._loop.federation.collaboration.aggregation[:, clients].T.tolist()  # of the whole cohort at once
        return {one: _models_of(one, column) for one, column in zip(cohort, columns, strict=True)}

    def _own_weights(self, participant: Participant, weight: float | None) -> dict[int, float]:
        """A participant's weight in each model, overridden by that of its update (:class:`ClientUpdate`) if given."""
        part = self._parts[participant]
        if weight is None:
            return part
        shares = self._loop.federation.collaboration.personalisation[participant.client]
        alone = participant.model is not None
        return {model: weight if alone else weight * (float(shares[model]) or 1.0) for model in part}

    def _weigh(self, arrived: Mapping[Participant, ClientReport]) -> None:
        """Replace the weights of the finished participants by those that the strategy computes."""
        loop = self._loop
        for model in dict.fromkeys(model for part in self._parts.values() for model in part):
            those = [one for one in arrived if model in self._parts[one]]
            contributions = [Contribution(one.client, self._parts[one][model], arrived[one]) for one in those]
            weights = loop.learner.weigh_cohort(contributions, loop.federation.model_states.get(model, {}))
            for one, weight in zip(those, weights, strict=True):
                self._parts[one][model] = self._own_weights(one, weight)[model]

    def _plan(self) -> dict[int, tuple[list[int], float]]:
        """Model -> its contributors and the sum of their weights, of the whole cohort."""
        totals: dict[int, float] = {}
        clients: dict[int, list[int]] = {}
        for participant, part in self._parts.items():
            for model, weight in part.items():
                totals[model] = totals.get(model, 0.0) + weight
                clients.setdefault(model, []).append(participant.client)
        return {model: (clients[model], totals[model]) for model in sorted(totals)}

    def _shares(self, arrived: Mapping[Participant, ClientReport]) -> dict[int, dict[int, float]]:
        weights: dict[int, dict[int, float]] = {}
        for participant, report in arrived.items():
            for model, unscaled in self._parts[participant].items():
                if weight := unscaled * report.scale:
                    of_model = weights.setdefault(model, {})
                    of_model[participant.client] = of_model.get(participant.client, 0.0) + weight
        totals = {model: math.fsum(of_model.values()) for model, of_model in weights.items()}
        return {
            model: {client: weight / totals[model] for client, weight in sorted(weights[model].items())}
            for model in sorted(weights)
        }


def _models_of(participant: Participant, column: list[float]) -> dict[int, float]:
    """The models a participant contributes to, with its weight in each, from its client's column of A."""
    given = participant.weight
    if participant.model is None and participant.feeds is None:
        return {k: a if given is None else given for k, a in enumerate(column) if a > 0}
    feeds = participant.feeds if participant.model is None else (participant.model,)
    weights = {k: column[k] if given is None else given for k in feeds or ()}
    return {k: weight for k, weight in weights.items() if weight > 0}


class _Sums:
    def __init__(self, loop: LocalLoop, model: int, clients: Sequence[int], planned: float) -> None:
        self._loop = loop
        self._model = model
        self._planned = planned  # sum of all contributors' weights: scaled by it, sums use their full range
        self._start = loop.federation.models[model]
        self._weights = self._empty(clients, self._start)
        vectors = loop.learner.extra_vectors
        self._vectors = {name: self._empty(clients, _zeros(loop, self._start)) for name in vectors}

    def _empty(self, clients: Sequence[int], reference: Weights) -> _Sum:
        if len(clients) == 1:
            return SoleContribution(self._loop.processes.client_ranks[clients[0]], reference)
        return WeightedSum(reference)

    def terms(self, updates: Sequence[tuple[ClientUpdate, float]]) -> Iterator[tuple[_Sum, list[_Term]]]:
        """Each sum with its terms, from clients' updates and their weights before scaling."""
        scaled = [(update, update.scale * (weight / self._planned)) for update, weight in updates if update.scale]
        for name, total in self._vectors.items():
            yield total, [(update.vectors[name], weight) for update, weight in scaled]
        yield self._weights, [(update.weights, weight) for update, weight in scaled]

    def average(
        self, parts: Mapping[Participant, Mapping[int, float]], arrived: Mapping[Participant, ClientReport]
    ) -> Weights:
        """The next shared model; unchanged if all its participants failed or have weight 0."""
        loop, model = self._loop, self._model
        survived = sum(parts[one].get(model, 0.0) / self._planned * report.scale for one, report in arrived.items())
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


def next_model(
    loop: LocalLoop,
    model: int,
    start: Weights,
    average: Weights,
    contributions: list[Contribution],
    vectors: Mapping[str, Weights],
) -> Weights:
    """Apply the strategy's server step to an average, with the server's state of the model."""
    federation = loop.federation
    state = {name: value for name, value in federation.model_states.get(model, {}).items() if name != IDENTITY}
    spans, shares = loop.averaged_spans(), federation.shares(model)
    update = ModelUpdate(
        model, start, average, vectors, contributions, loop.processes.num_clients, spans, state, shares
    )
    result = loop.learner.aggregate(update)
    if not isinstance(result, Weights):
        raise ConfigurationError(
            f"{type(loop.learner).__name__}.aggregate returned {type(result).__name__}: return the next shared model,"
            " such as update.average."
        )
    if update.state:
        packed(update.state)  # raises if a checkpoint could not hold it
        federation.model_states[model] = {**update.state, IDENTITY: federation.identities()[model]}
    return result
