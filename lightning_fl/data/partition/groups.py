"""Partitions by key: assays, writers, molecular scaffolds. A group is never divided."""

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from lightning_fl.core.errors import ConfigurationError, DataError
from lightning_fl.core.seeding import generator
from lightning_fl.core.validation import Count, Positive, Size, checked
from lightning_fl.data.partition.sizes import apportion

__all__ = [
    "by_group",
    "check_client_ratios",
    "choose_groups",
    "deal_groups",
    "indices_of_clients",
    "murcko_scaffolds",
    "scaffold",
    "sorted_groups",
]


@checked
def choose_groups(
    sizes: Mapping[Any, int], seed: int, *, num_groups: Count | None = None, min_samples: Size = 0
) -> list[Any]:
    """Choose some of the groups, kept in their order.

    Args:
        sizes: samples of every group.
        seed: seed of the partition.
        num_groups: number of groups to draw, each with the same probability; ``None`` for all.
        min_samples: least number of samples of a group.

    Raises:
        DataError: there are fewer such groups, or none.
    """
    large = [group for group, size in sizes.items() if size >= min_samples]
    if len(large) < (num_groups or 1):
        raise DataError(
            f"{len(large)} of {len(sizes)} groups have min_samples={min_samples} samples for training, but"
            f" {num_groups or 1} are needed: lower num_groups or min_samples."
        )
    if num_groups is None:
        return large
    drawn = torch.randperm(len(large), generator=generator(seed, "partition", "chosen groups"))[:num_groups]
    return [large[index] for index in drawn.sort().values.tolist()]


@checked
def deal_groups(
    groups: Sequence[Hashable],
    num_clients: Count,
    seed: int,
    ratios: Sequence[Positive] | None = None,
    *,
    kind: str = "groups",
) -> dict[Hashable, int]:
    """Deal whole groups to clients so that their numbers of samples come near the ratios.

    The largest group first (ties in random order), each to a client drawn with probability proportional to its room
    among those it fits into. A group that fits nowhere goes to a client with most room; the others' room is then
    scaled to the remaining samples. The small groups at the end even out the sizes.

    Args:
        groups: the group of every sample, length n.
        num_clients: N, at most the number of groups.
        seed: seed of the partition.
        ratios: the clients' shares of the samples, one per client; ``None`` for equal sizes.
        kind: name of the groups in errors.

    Returns:
        The client of every group.
    """
    ratios = [1.0] * num_clients if ratios is None else ratios
    check_client_ratios(ratios, num_clients)
    names = sorted_groups(groups)
    if num_clients > len(names):
        raise DataError(
            f"num_clients={num_clients}, but only {len(names)} {kind}, which are never divided: use at most"
            f" {len(names)} clients."
        )
    rng = generator(seed, "partition", "groups")
    sizes = Counter(groups)
    order = sorted(torch.randperm(len(names), generator=rng).tolist(), key=lambda i: -sizes[names[i]])
    room = torch.tensor(apportion(len(groups), ratios), dtype=torch.float64)
    empty = torch.ones(num_clients, dtype=torch.bool)
    remaining = len(groups)
    dealt: dict[Hashable, int] = {}
    for position, index in enumerate(order):
        size = sizes[names[index]]
        # The last groups are kept for clients that have none yet.
        allowed = empty if len(order) - position <= int(empty.sum()) else torch.ones_like(empty)
        chances = torch.where(allowed & (room >= size - 1e-9), room, 0.0)
        if chances.sum() == 0:
            most = room[allowed].max()
            chances = (allowed & (room == most)).double()
        client = int(torch.multinomial(chances, 1, generator=rng))
        dealt[names[index]] = client
        empty[client] = False
        remaining -= size
        room[client] = max(0.0, float(room[client]) - size)
        if room.sum() > 0:
            room *= remaining / room.sum()
    return dealt


def check_client_ratios(ratios: Sequence[float], num_clients: int | None) -> None:
    """Refuse ratios unless there is one for each of a known number of clients."""
    if len(ratios) != num_clients:
        raise ConfigurationError(
            f"ratios={list(ratios)} with num_clients={num_clients}: give num_clients and one ratio per client."
        )


def by_group(
    groups: Sequence[Hashable], num_clients: int | None, seed: int, ratios: Sequence[float] | None = None
) -> list[Tensor]:
    """Partition by a key such as an assay or a writer; see :class:`~lightning_fl.data.partition.GroupBy`.

    Args:
        groups: the group of every sample, length n.
        num_clients: see :func:`deal_groups`; ``None``: each group is a client, in the order of :func:`sorted_groups`.
        seed: seed of the partition (not used where each group is a client).
        ratios: see :func:`deal_groups`.
    """
    if num_clients is not None:
        client_of = deal_groups(groups, num_clients, seed, ratios)
    else:
        if ratios is not None:
            check_client_ratios(ratios, num_clients)
        client_of = {name: client for client, name in enumerate(sorted_groups(groups))}
        num_clients = len(client_of)
    return indices_of_clients([client_of[group] for group in groups], num_clients)


def scaffold(smiles: Sequence[str], num_clients: int, seed: int, ratios: Sequence[float] | None = None) -> list[Tensor]:
    """Partition molecules by Bemis-Murcko scaffold; see :func:`murcko_scaffolds` and :func:`deal_groups`."""
    scaffolds = murcko_scaffolds(smiles)
    client_of = deal_groups(scaffolds, num_clients, seed, ratios, kind="scaffolds")
    return indices_of_clients([client_of[name] for name in scaffolds], num_clients)


def murcko_scaffolds(smiles: Sequence[str]) -> list[str]:
    """Bemis-Murcko scaffold of every molecule: canonical SMILES without chirality, empty if there is no ring.

    Bemis, Murcko, "The properties of known drugs. 1. Molecular frameworks", J. Med. Chem. 39 (1996) 2887.
    """
    from rdkit.Chem import MolFromSmiles
    from rdkit.Chem.Scaffolds.MurckoScaffold import MurckoScaffoldSmiles
    from rdkit.rdBase import BlockLogs

    scaffold_of: dict[str, str] = {}  # a molecule often occurs several times, measured in several assays
    for position, text in enumerate(smiles):
        if text in scaffold_of:
            continue
        with BlockLogs():  # a line for every hydrogen without a neighbour
            molecule = MolFromSmiles(text)
            if molecule is None:
                raise DataError(f"smiles[{position}]={text!r}: RDKit cannot read it; correct or remove it.")
            scaffold_of[text] = MurckoScaffoldSmiles(mol=molecule, includeChirality=False)
    return [scaffold_of[text] for text in smiles]


def sorted_groups(groups: Sequence[Hashable]) -> list[Any]:
    """The distinct groups in ascending order, numbers before strings.

    Raises:
        DataError: a sample has no group (``None`` or NaN), or there are no samples.
    """
    if len(groups) == 0:
        raise DataError("there are no samples to partition.")
    missing = [position for position, group in enumerate(groups) if group is None or group != group]  # NaN != NaN
    if missing:
        raise DataError(
            f"{len(missing)} samples have no group, the first at position {missing[0]}: fill in the column or leave"
            " these samples out."
        )
    return sorted(set(groups), key=lambda group: (isinstance(group, str), group))


def indices_of_clients(clients: Sequence[int], num_clients: int) -> list[Tensor]:
    """The samples of every client, from the client of every sample; a client may have none."""
    owner = torch.as_tensor(clients, dtype=torch.long)
    sizes = torch.bincount(owner, minlength=num_clients)
    return list(owner.argsort(stable=True).split(sizes.tolist()))
