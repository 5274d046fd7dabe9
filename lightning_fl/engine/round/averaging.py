"""Averages of a cohort's updates: the next shared models, or the next model of each client."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from lightning_fl.core.cohort import Cohort, Participant
from lightning_fl.core.collaboration import Collaboration
from lightning_fl.core.errors import ConfigurationError, TrainingError
from lightning_fl.engine.client import ClientReport, ClientUpdate, packed
from lightning_fl.engine.federation import IDENTITY, Federation
from lightning_fl.engine.hooks import Hook
from lightning_fl.engine.learner import Contribution, ModelUpdate
from lightning_fl.engine.turn.averaged_states import num_vectors
from lightning_fl.engine.turn.loop import LocalLoop
from lightning_fl.engine.weights import weighted_sum
from lightning_fl.engine.weights.flat import Weights, linear_combination
from lightning_fl.engine.weights.weighted_sum import SoleContribution, WeightedSum, check_addable, check_finite

_Sum = WeightedSum | SoleContribution
#: Weights, and their own weight in a sum.
_Term = tuple[Weights, float]
#: Entries of all clients' models that are copied at a time.
_COLUMNS = 1 << 14


class SharedModels:
    """Averages updates into the shared models, as they arrive or, if their weights depend on them, at the end."""

    def __init__(self, loop: LocalLoop, cohort: Cohort, chooser: Hook | None) -> None:
        self._loop = loop
        self._cohort = cohort
        self._chooser = chooser
        self._waits = chooser is not None or "weigh_cohort" in loop.own_steps
        self._kept: dict[Participant, ClientUpdate] = {}
        self._vectors: set[str] = set()  # names of those in updates of this rank
        #: Participant, in the cohort's order -> model that it contributes to -> weight.
        self._parts: dict[Participant, dict[int, float]] = {}
        self._sums: dict[int, _Sums] = {}
        if not self._waits:
            self._parts = self._planned_parts()
            self._sums = {model: _Sums(loop, model, *members) for model, members in self._plan().items()}

    def receive(self, participant: Participant, update: ClientUpdate) -> None:
        """Add or keep a participant's update; a ``TrainingError`` if it is not finite, or too large."""
        self._vectors |= update.vectors.keys()
        if self._waits:
            loop, start = self._loop, self._loop.start_of(participant)
            check_addable(update.weights, start, update.scale)
            for name, vector in update.vectors.items():
                check_addable(vector, _reference(loop, start, name), update.scale)
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
                total.subtract_(terms)
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
        of_ranks = loop.processes.of_ranks(sorted(self._vectors)) if loop.optimizer_state == "average" else []
        vectors = {name for of_rank in of_ranks for name in of_rank}
        starts, models = federation.models, list(federation.models)
        if self._waits:
            for model, members in self._plan().items():  # one sum at a time: its memory is several times a model's
                sums, kept = _Sums(loop, model, *members), [(one, self._parts[one]) for one in self._kept]
                for total, terms in sums.terms([(self._kept[one], part[model]) for one, part in kept if model in part]):
                    total.add_all_(terms)
                models[model] = sums.average(self._parts, arrived, vectors)
        for model, sums in self._sums.items():
            models[model] = sums.average(self._parts, arrived, vectors)
        federation.models = models
        self._kept.clear()
        identities = federation.identities() if federation.optimizer_states else []
        for model, state in federation.optimizer_states.items():
            state[IDENTITY] = identities[model]
        count_vectors(loop)
        federation.communication.end_turns(list(arrived), models, federation.collaboration, all_send=chosen)
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
        # Positive, because the weights of a model are divided by their sum.
        return {model: weight if participant.assigned else weight * max(float(shares[model]), 1e-6) for model in part}

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
    if not participant.assigned:
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
        self._clients = clients
        self._weights = self._empty(self._start)
        self._vectors: dict[str, _Sum] = {}
        self._add_vectors(loop.learner.extra_vectors)

    def _empty(self, reference: Weights) -> _Sum:
        if len(self._clients) == 1:
            return SoleContribution(self._loop.processes.client_ranks[self._clients[0]], reference)
        return WeightedSum(reference)

    def _add_vectors(self, names: Iterable[str]) -> None:
        for name in names:
            if name not in self._vectors:
                self._vectors[name] = self._empty(_reference(self._loop, self._start, name))

    def terms(self, updates: Sequence[tuple[ClientUpdate, float]]) -> Iterator[tuple[_Sum, list[_Term]]]:
        """Each sum with its terms, from clients' updates and their weights before scaling."""
        scaled = [(update, update.scale * (weight / self._planned)) for update, weight in updates if update.scale]
        for update, _ in scaled:
            self._add_vectors(update.vectors)
        for name, total in self._vectors.items():
            yield total, [(update.vectors[name], weight) for update, weight in scaled if name in update.vectors]
        yield self._weights, [(update.weights, weight) for update, weight in scaled]

    def average(
        self,
        parts: Mapping[Participant, Mapping[int, float]],
        arrived: Mapping[Participant, ClientReport],
        vectors: Iterable[str],
    ) -> Weights:
        """The next shared model, unchanged if all participants failed or weigh 0; averages further ``vectors``, too."""
        loop, model = self._loop, self._model
        survived = sum(parts[one].get(model, 0.0) / self._planned * report.scale for one, report in arrived.items())
        if not survived:
            return self._start
        self._add_vectors(vectors)
        names = sorted(self._vectors)
        totals = [self._weights, *(self._vectors[name] for name in names)]
        if loop.processes.several:
            for total in totals:
                total.reduce_(loop.processes.transport)
        average, *others = [total.value(survived) for total in totals]
        averages = dict(zip(names, others, strict=True))
        extra = {name: averages.pop(name) for name in loop.learner.extra_vectors}
        if averages:
            loop.federation.optimizer_states[model] = averages
        if "aggregate" not in loop.own_steps:
            return average
        trained, identity = loop.round.trained, loop.identity_of(model)
        contributions = [
            Contribution(one.client, parts[one][model], report, trained[one] == identity)
            for one, report in arrived.items()
            if parts[one].get(model)
        ]
        return next_model(loop, model, self._start, average, contributions, extra)


def _reference(loop: LocalLoop, start: Weights, name: str) -> Weights:
    """Reference of a further vector: zero in the averaged parameters."""
    if name in loop.learner.extra_vectors:
        return linear_combination(start, [(0.0, start)], loop.averaged_spans())
    return loop.training.optimization.averaged.zeros(name)


def count_vectors(loop: LocalLoop) -> None:
    """Record how many further vectors go with a model."""
    names = {name for state in loop.federation.optimizer_states.values() for name in state}
    loop.federation.communication.extra_vectors = len(loop.learner.extra_vectors) + num_vectors(names)


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
        what = f"{type(loop.learner).__name__}.aggregate returned {type(result).__name__}"
        raise ConfigurationError(f"{what}: return the next shared model, such as update.average.")
    if update.state:
        packed(update.state)  # raises if a checkpoint could not hold it
        federation.model_states[model] = {**update.state, IDENTITY: federation.identities()[model]}
    return result


class ClientModels:
    """Keeps what clients learn as their models, which are sent to all ranks and averaged when all have trained."""

    def __init__(self, loop: LocalLoop, cohort: Cohort, chooser: Hook) -> None:
        if loop.learner.extra_vectors:
            vectors = f"further vectors ({', '.join(loop.learner.extra_vectors)})"
            what = f"the strategy {type(loop.learner).__name__} averages {vectors}, which is impossible with the models"
            raise ConfigurationError(f"{what} of single clients that {chooser.owner} creates. Keep one of the two.")
        if loop.optimizer_state == "average":
            what = "trainer.optimizer_state=average averages over the clients of a model"
            raise ConfigurationError(f"{what}, and {chooser.owner} gives every client its own model: set it to keep.")
        self._loop = loop
        self._chooser = chooser
        _assign_own_models(loop.federation, range(loop.processes.num_clients))
        #: The models before the round, if the strategy has a server step.
        self._starts = list(loop.federation.models) if "aggregate" in loop.own_steps else None

    def receive(self, participant: Participant, update: ClientUpdate) -> None:
        """Overwrite a client's model with what it learned, in its memory, so that N models are held instead of 2N."""
        models, client = self._loop.federation.models, participant.client
        own = models[client]
        check_finite(update.weights, own)
        if self._starts is not None or sum(model is own for model in models) > 1:  # initially all are one object
            models[client] = update.weights.clone()
        else:
            own.copy_(update.weights)

    def finish(self, arrived: Mapping[Participant, ClientReport]) -> None:
        """Send the trained models to all ranks, let every client choose, and average."""
        loop, federation, processes = self._loop, self._loop.federation, self._loop.processes
        clients = sorted(loop.round.survivors)
        reports = {participant.client: report for participant, report in arrived.items()}
        if processes.several:
            for client in clients:
                if not processes.hosts(client):
                    federation.models[client] = federation.models[client].clone()
                for vector in federation.models[client].vectors.values():
                    processes.transport.broadcast_bytes_(vector, processes.client_ranks[client])
        collaboration = self._chooser({client: federation.models[client] for client in clients})
        if collaboration is None or collaboration.num_models != processes.num_clients:
            must = f"must return a Collaboration with {processes.num_clients} models, one for each client"
            raise ConfigurationError(f"{self._chooser.owner}.select_collaboration {must} (model_per_client).")
        average_in_place(federation.models, _scaled(collaboration.aggregation, reports), clients)
        if self._starts is not None:
            for client in clients:
                row = collaboration.aggregation[client].tolist()
                taken = [Contribution(other, row[other], reports[other]) for other in clients if row[other]]
                average = federation.models[client]
                federation.models[client] = next_model(loop, client, self._starts[client], average, taken, {})
        by_server = getattr(self._chooser.listener, "by_server", False)
        federation.communication.end_personal_turns(clients, federation.models, collaboration, by_server=by_server)
        federation.collaboration = collaboration


def _assign_own_models(federation: Federation, clients: Iterable[int]) -> None:
    """Give clients that use a mixture it as their own model, before training overwrites the models one by one."""
    collaboration = federation.collaboration
    mixtures = {k: federation.shared_model(k) for k in clients if collaboration.model_of(k) != k}
    if not mixtures:
        return
    models, personalisation = list(federation.models), collaboration.personalisation.clone()
    for client, mixture in mixtures.items():
        models[client] = mixture
        personalisation[client] = torch.eye(len(models), dtype=personalisation.dtype)[client]
    federation.models = models
    federation.collaboration = Collaboration(collaboration.aggregation, personalisation)


def _scaled(aggregation: Tensor, reports: Mapping[int, ClientReport]) -> Tensor:
    """A with every column scaled by its client's report, and normalised rows; a row of zeros keeps its own model."""
    if all(report.scale == 1 and report.weight is None for report in reports.values()):
        return aggregation
    scaled = aggregation.clone()
    for client, report in reports.items():
        if report.weight is not None:
            scaled[:, client] = (scaled[:, client] > 0) * report.weight
        scaled[:, client] *= report.scale
    totals = scaled.sum(1, keepdim=True)
    alone = torch.eye(len(scaled), dtype=scaled.dtype)
    return torch.where(totals > 0, scaled / totals, alone)


def average_in_place(models: Sequence[Weights], aggregation: Tensor, rows: Sequence[int]) -> None:
    """``w_k <- sum_i A_ki w_i`` for the k in ``rows`` at once, block by block.

    Sums are in float64 and in the clients' order, so that all processes with the models get the same bits. An entry
    that is the same in all models of a sum keeps its bits. Integers and booleans take the largest entry. Models of
    ``rows`` share no memory with others; rows of A [N, N] sum to 1, with a positive A_kk.
    """
    shares = aggregation.tolist()
    members = {k: [i for i, weight in enumerate(shares[k]) if weight > 0 and i != k] for k in rows}
    busy = [k for k in rows if members[k]]
    if not busy:
        return
    needed = sorted({*busy, *(i for k in busy for i in members[k])})
    place = {client: number for number, client in enumerate(needed)}
    first = models[busy[0]]
    for dtype, vector in first.floating():
        for begin in range(0, vector.numel(), _COLUMNS):
            part = slice(begin, begin + _COLUMNS)
            block = torch.stack([models[i].vectors[dtype][part] for i in needed]).double()
            finite, change = weighted_sum.largest_magnitude(block) < math.inf, torch.empty_like(block[0])
            for k in busy:
                own = block[place[k]]
                total = own.clone()
                for i in members[k]:
                    torch.sub(block[place[i]], own, out=change)
                    if not finite:
                        change.masked_fill_(own.isinf(), 0.0)  # an infinity of the own model stays
                    total.add_(change, alpha=shares[k][i])
                models[k].vectors[dtype][part].copy_(total)
    for dtype, _ in first.discrete():
        copies = {i: models[i].vectors[dtype].clone() for i in needed}
        for k in busy:
            for i in members[k]:
                torch.maximum(models[k].vectors[dtype], copies[i], out=models[k].vectors[dtype])
