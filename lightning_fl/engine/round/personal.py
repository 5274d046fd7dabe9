"""A round of clients that each have a model of their own and average it with the models of those they choose."""

from collections.abc import Sequence
from math import inf
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lightning_fl.cohort import Participant
from lightning_fl.engine.weights.flat import Weights, check_finite, largest_magnitude
from lightning_fl.errors import ConfigurationError

if TYPE_CHECKING:
    from lightning_fl.callbacks.callback import Callback
    from lightning_fl.trainer import FederatedTrainer

__all__ = ["average_in_place", "finish_personal_round", "keep_own_model"]

#: Entries of all models that are copied at a time.
_COLUMNS = 1 << 14


def keep_own_model(
    trainer: "FederatedTrainer", participant: Participant, weights: Weights, *, keep_start: bool = False
) -> None:
    """What a client learned takes the place of its model: N models are in memory, not 2N.

    Their memory is used again, round after round; new vectors each time would leave holes between the old ones.

    Args:
        trainer: model i belongs to client i.
        participant: whose turn it was.
        weights: what it learned; copied.
        keep_start: leave the model that it started from as it is, for somebody who still refers to it.
    """
    own = trainer.models[participant.client]
    check_finite(weights, own)
    if keep_start or sum(model is own for model in trainer.models) > 1:  # all start from one
        trainer.models[participant.client] = weights.clone()
    else:
        own.copy_(weights)


def finish_personal_round(trainer: "FederatedTrainer", chooser: "Callback", starts: list[Weights] | None) -> None:
    """Bring the trained models to all ranks, let every client choose, and average.

    Args:
        trainer: after the clients' turns; model i is what client i learned, where this rank hosts it.
        chooser: the callback that defines ``select_collaborators``.
        starts: the models before the round, for strategies whose server changes the average; else ``None``.
    """
    clients = sorted(trainer.survivors)
    if trainer.fabric.world_size > 1:
        hosted = set(trainer.hosted_clients)
        for client in clients:
            if client not in hosted:
                trainer.models[client] = trainer.models[client].clone()
            for vector in trainer.models[client].vectors.values():
                trainer.strategy.broadcast_bytes_(vector, trainer.client_ranks[client])
    collaboration = chooser.select_collaborators(trainer)
    if collaboration.num_models != trainer.num_clients:
        raise ConfigurationError(
            f"{type(chooser).__name__}.select_collaborators gave {collaboration.num_models} models for"
            f" {trainer.num_clients} clients: give every client one of its own."
        )
    average_in_place(trainer.models, collaboration.aggregation, clients)
    if starts is not None:
        for client in clients:
            trainer.models[client] = trainer.strategy.aggregate(starts[client], trainer.models[client])
    trainer.communication.end_personal_turns(clients, collaboration)
    trainer._collaboration = collaboration


def average_in_place(models: Sequence[Weights], aggregation: Tensor, rows: Sequence[int]) -> None:
    """``w_k <- sum_i A_ki w_i`` for some k, all at once, a block of entries at a time.

    Sums are taken in float64 and in the clients' order, so that they have the same bits in every process that holds
    the models. An entry that is the same in all models of a sum keeps its bits. Integers and booleans follow the
    largest.

    Args:
        models: N models; those of ``rows`` share no memory with others, and are overwritten.
        aggregation: A, [N, N], rows sum to 1; row k has a positive entry k.
        rows: the k whose models are averaged; the others stay.
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
                        change.masked_fill_(other == own, 0.0)  # of equal infinities
                    total.add_(change, alpha=shares[k][i])
                models[k].vectors[dtype][part].copy_(total)
    for dtype, _ in first.discrete():
        copies = {i: models[i].vectors[dtype].clone() for i in needed}
        for k in busy:
            for i in members[k]:
                torch.maximum(models[k].vectors[dtype], copies[i], out=models[k].vectors[dtype])
