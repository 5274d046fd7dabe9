"""Distances between all of some clients, by default in one process and without classes."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import combinations

import torch
from torch import Tensor

from lightning_fl.callbacks.collaboration.discriminators import distances
from lightning_fl.callbacks.collaboration.discriminators.networks import DiscriminatorSettings


def pairwise_distances(
    features: Sequence[Tensor] | Mapping[int, Tensor],
    settings: DiscriminatorSettings | None = None,
    *,
    groups: Sequence[Tensor] | None = None,
    num_clients: int | None = None,
    pairs: Iterable[tuple[int, int]] | None = None,
    seed: int = 0,
    reduce: Callable[[Tensor], Tensor] = lambda tensor: tensor,
) -> distances.PairwiseDistances:
    held = features if isinstance(features, Mapping) else dict(enumerate(features))
    count = len(held) if num_clients is None else num_clients
    return distances.pairwise_distances(
        held,
        settings or DiscriminatorSettings(),
        groups={client: torch.zeros(len(x)) if groups is None else groups[client] for client, x in held.items()},
        num_clients=count,
        pairs=combinations(range(count), 2) if pairs is None else pairs,
        seed=seed,
        reduce=reduce,
    )
