"""Partitions by a key of the samples, such as a column or the scaffold of a molecule."""

from abc import abstractmethod
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from lightning_fl.core.errors import ConfigurationError, DataError
from lightning_fl.core.seeding import generator
from lightning_fl.core.validation import Count, Positive, Size, checked_fields
from lightning_fl.data.cards.lookup import cache_folder
from lightning_fl.data.module import Split
from lightning_fl.data.partition.partitioner import (
    ClientParts,
    Concentration,
    JointPartitioner,
    draw_until_enough,
    read_column,
    read_smiles,
)
from lightning_fl.data.sizes import apportion
from lightning_fl.files.tensors import load_or_compute
from lightning_fl.functional.drflm import sample_dirichlet


class KeyPartitioner(JointPartitioner):
    """Base class of partitions by a key; samples of one key are a group, which has the same clients in all splits."""

    @abstractmethod
    def keys(self, dataset: Dataset) -> Sequence[Hashable]:
        """The key of every sample."""

    @abstractmethod
    def assign(self, keys: list[Hashable], num_train: int, seed: int) -> tuple[Sequence[int] | Tensor, int]:
        """Assign every sample, by the keys of all splits, to a client, or to N to leave it unused; return that and N.

        The first ``num_train`` samples are for training.
        """

    def partition_splits(self, datasets: Mapping[Split, Dataset], seed: int) -> dict[Split, ClientParts]:
        keys = [list(self.keys(dataset)) for dataset in datasets.values()]
        clients, num_clients = self.assign([key for part in keys for key in part], len(keys[0]), seed)
        owners = torch.as_tensor(clients, dtype=torch.long).split([len(part) for part in keys])
        return {split: ClientParts.by_owner(owner, num_clients) for split, owner in zip(datasets, owners, strict=True)}


@checked_fields
class WholeGroups(KeyPartitioner):
    """Base class of partitions that divide no group.

    Groups are dealt so that the clients' numbers of samples come near the ratios. The largest group comes first (ties
    in random order), each to a client drawn with probability proportional to its room among those it fits into. A group
    that fits nowhere goes to a client with most room; the others' room is then scaled to the remaining samples.

    Args:
        num_clients: number of clients to deal the groups to; ``None``: each group is a client with its name.
        ratios: the clients' shares of the samples, one per client; ``None`` for equal ones.
    """

    #: Name of the groups in errors.
    _kind = "groups"

    num_clients: Count | None = None
    ratios: list[Positive] | None = None

    def __post_init__(self) -> None:
        if self.ratios is not None and len(self.ratios) != self.num_clients:
            what = f"{type(self).__name__}.ratios={self.ratios} with num_clients={self.num_clients}"
            raise ConfigurationError(f"{what}: give num_clients, and a ratio for each.")

    def assign(self, keys: list[Hashable], num_train: int, seed: int) -> tuple[list[int], int]:
        sizes = Counter(keys)
        groups = self._choose(sorted_groups(keys), Counter(keys[:num_train]), seed)
        if self.num_clients is None:
            self.names = [str(group) for group in groups]
            client_of, num_clients = {group: client for client, group in enumerate(groups)}, len(groups)
        else:
            num_clients = self.num_clients
            client_of = self._deal({group: sizes[group] for group in groups}, num_clients, seed)
        return [client_of.get(key, num_clients) for key in keys], num_clients

    def _choose(self, groups: list[Any], train: Mapping[Any, int], seed: int) -> list[Any]:
        """The groups to deal, in ascending order; ``train`` has the number of training samples of every group."""
        return groups

    def _deal(self, sizes: Mapping[Hashable, int], num_clients: int, seed: int) -> dict[Hashable, int]:
        if num_clients > (count := len(sizes)):
            raise DataError(f"num_clients={num_clients}, but only {count} {self._kind}: use at most {count} clients.")
        rng = generator(seed, "partition", "groups")
        names = list(sizes)
        order = sorted(torch.randperm(len(names), generator=rng).tolist(), key=lambda i: -sizes[names[i]])
        remaining = sum(sizes.values())
        room = torch.tensor(apportion(remaining, self.ratios or [1.0] * num_clients), dtype=torch.float64)
        empty = torch.ones(num_clients, dtype=torch.bool)
        client_of: dict[Hashable, int] = {}
        for position, index in enumerate(order):
            size = sizes[names[index]]
            # The last groups are kept for clients that have none yet.
            allowed = empty if len(order) - position <= int(empty.sum()) else torch.ones_like(empty)
            chances = torch.where(allowed & (room >= size - 1e-9), room, 0.0)
            if chances.sum() == 0:
                chances = (allowed & (room == room[allowed].max())).double()
            client = int(torch.multinomial(chances, 1, generator=rng))
            client_of[names[index]] = client
            empty[client] = False
            remaining -= size
            room[client] = max(0.0, float(room[client]) - size)
            if room.sum() > 0:
                room *= remaining / room.sum()
        return client_of


@checked_fields
class GroupBy(WholeGroups):
    """Whole groups by a column of the data set, such as the assay or the writer.

    Args:
        column: name of the column, read with ``dataset.column(name)``.
        num_groups: number of groups to use, drawn at random; ``None`` for all.
        min_samples: least number of (training) samples of a group; smaller groups stay unused.

    Example:
        >>> hundred_writers = GroupBy(column="writer", num_groups=100, min_samples=20)
    """

    column: str
    num_groups: Count | None = None
    min_samples: Size = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_groups is not None and self.num_groups < (self.num_clients or 1):
            what = f"GroupBy.num_groups={self.num_groups} with num_clients={self.num_clients}"
            raise ConfigurationError(f"{what}: must be at least num_clients, or null.")

    def keys(self, dataset: Dataset) -> Sequence[Hashable]:
        return read_column(dataset, self.column, "GroupBy")

    def _choose(self, groups: list[Any], train: Mapping[Any, int], seed: int) -> list[Any]:
        large = [group for group in groups if train[group] >= self.min_samples]
        if len(large) < (needed := self.num_groups or 1):
            what = f"{len(large)} groups have min_samples={self.min_samples} training samples, {needed} are needed"
            raise DataError(f"{what}: lower num_groups or min_samples.")
        if self.num_groups is None:
            return large
        drawn = torch.randperm(len(large), generator=generator(seed, "partition", "chosen groups"))[: self.num_groups]
        return [large[index] for index in drawn.sort().values.tolist()]


def sorted_groups(keys: Sequence[Hashable]) -> list[Any]:
    """The distinct keys in ascending order, numbers before strings; refuses missing ones (``None`` or NaN)."""
    if len(keys) == 0:
        raise DataError("there are no samples to partition.")
    if missing := [position for position, key in enumerate(keys) if key is None or key != key]:  # NaN != NaN
        raise DataError(f"{len(missing)} samples have no group, the first at position {missing[0]}: fill the column.")
    return sorted(set(keys), key=lambda key: (isinstance(key, str), key))


@checked_fields
class Scaffold(WholeGroups):
    """Molecules by Bemis-Murcko scaffold; the data set needs an attribute ``smiles``.

    Molecules of one scaffold stay together. Those without a ring share one (empty) scaffold, often the largest group.

    Args:
        num_clients: number of clients.
    """

    _kind = "scaffolds"
    num_clients: Count

    def keys(self, dataset: Dataset) -> Sequence[Hashable]:
        return murcko_scaffolds(read_smiles(dataset, "Scaffold"))


@checked_fields
class ScaffoldLDA(KeyPartitioner):
    """Molecules by scaffold and latent Dirichlet allocation: one number sets how much clients' scaffolds differ.

    Zhu, Luo, White, "Federated learning of molecular properties with graph neural networks in a heterogeneous
    setting", Patterns 3 (2022) 100521 (FedChem, FLIT+), which uses alpha = 0.1 and 1: molecules are grouped by
    Bemis-Murcko scaffold, the groups sorted by size (ties by name), and each is divided among the clients in shares
    drawn from Dir(alpha, ..., alpha). Redrawn until every client has ``min_samples``. Unlike in
    :class:`~lightning_fl.data.partition.Scaffold`, a group may be divided.

    Differs from FedChem's code, which cuts a group at the shares rounded down, so that the last client gets nearly all
    scaffolds of a single molecule: here each molecule's client is drawn from the shares of its scaffold.

    Args:
        num_clients: number of clients.
        alpha: concentration: 0.1 keeps most scaffolds at one client, 100 gives nearly equal shares of each.
        min_samples: least number of molecules of a client, over all parts of the data.
    """

    num_clients: Count
    alpha: Concentration
    min_samples: Count = 1

    def keys(self, dataset: Dataset) -> Sequence[Hashable]:
        return murcko_scaffolds(read_smiles(dataset, "ScaffoldLDA"))

    def assign(self, keys: list[Hashable], num_train: int, seed: int) -> tuple[Tensor, int]:
        sizes = Counter(keys)
        names = sorted(sorted_groups(keys), key=lambda name: -sizes[name])
        counts = torch.tensor([sizes[name] for name in names])
        place = {name: number for number, name in enumerate(names)}
        order = torch.tensor([place[key] for key in keys]).argsort(stable=True)
        rng = generator(seed, "partition", "group lda")

        def draw() -> tuple[Tensor, int]:
            shares = sample_dirichlet(self.alpha, self.num_clients, rng, (len(names),))
            owners = torch.multinomial(shares.repeat_interleave(counts, dim=0), 1, generator=rng)[:, 0]
            return owners, int(torch.bincount(owners, minlength=self.num_clients).min())

        owners = draw_until_enough(draw, len(keys), self.num_clients, self.alpha, self.min_samples)
        return torch.empty_like(owners).index_copy(0, order, owners), self.num_clients


def murcko_scaffolds(smiles: Sequence[str]) -> list[str]:
    """Bemis-Murcko scaffold of every molecule: canonical SMILES without chirality, empty if there is no ring.

    Bemis, Murcko, "The properties of known drugs. 1. Molecular frameworks", J. Med. Chem. 39 (1996) 2887. Cached.
    """
    return load_or_compute(cache_folder() / "molecules", "scaffolds", smiles, lambda: _compute_scaffolds(smiles))


def _compute_scaffolds(smiles: Sequence[str]) -> list[str]:
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
