"""A round in which every client has a model of its own and averages it with models that it chooses."""

from collections.abc import Mapping, Sequence
from math import inf

import torch
from torch import Tensor

from lightning_fl.core.cohort import Cohort, Participant
from lightning_fl.core.collaboration import Collaboration
from lightning_fl.core.errors import ConfigurationError
from lightning_fl.engine.client import ClientReport, ClientUpdate
from lightning_fl.engine.federation import Federation
from lightning_fl.engine.hooks import Hook
from lightning_fl.engine.learner import Contribution
from lightning_fl.engine.round.averaging import next_model
from lightning_fl.engine.turn.loop import LocalLoop
from lightning_fl.engine.weights.flat import Weights
from lightning_fl.engine.weights.weighted_sum import check_finite, largest_magnitude

#: Entries of all models that are copied at a time.
_COLUMNS = 1 << 14


class ClientModels:
    """Keeps what clients learn as their models, which are sent to all ranks and averaged when all have trained."""

    def __init__(self, loop: LocalLoop, cohort: Cohort, chooser: Hook) -> None:
        if loop.learner.extra_vectors:
            raise ConfigurationError(
                f"the strategy {type(loop.learner).__name__} averages further vectors"
                f" ({', '.join(loop.learner.extra_vectors)}), which is impossible with the models of single clients"
                f" that {chooser.owner} creates. Keep one of the two."
            )
        self._loop = loop
        self._chooser = chooser
        _assign_own_models(loop.federation, cohort.clients)
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
            hosted = set(processes.hosted)
            for client in clients:
                if client not in hosted:
                    federation.models[client] = federation.models[client].clone()
                for vector in federation.models[client].vectors.values():
                    processes.transport.broadcast_bytes_(vector, processes.client_ranks[client])
        collaboration = self._chooser({client: federation.models[client] for client in clients})
        if collaboration is None or collaboration.num_models != processes.num_clients:
            raise ConfigurationError(
                f"{self._chooser.owner}.select_collaboration must return a Collaboration with {processes.num_clients}"
                " models, one for each client, because its traits have model_per_client."
            )
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


def _assign_own_models(federation: Federation, clients: Sequence[int]) -> None:
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
            finite, change = largest_magnitude(block) < inf, torch.empty_like(block[0])
            for k in busy:
                own = block[place[k]]
                total = own.clone()
                for i in members[k]:
                    other = block[place[i]]
                    torch.sub(other, own, out=change)
                    if not finite:
                        change.masked_fill_(own.isinf(), 0.0)  # an infinity of the own model stays
                    total.add_(change, alpha=shares[k][i])
                models[k].vectors[dtype][part].copy_(total)
    for dtype, _ in first.discrete():
        copies = {i: models[i].vectors[dtype].clone() for i in needed}
        for k in busy:
            for i in members[k]:
                torch.maximum(models[k].vectors[dtype], copies[i], out=models[k].vectors[dtype])
