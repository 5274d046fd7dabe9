"""Molecules by Bemis-Murcko scaffold: whole scaffolds, or latent Dirichlet allocation over them, as in FedChem."""

from collections import Counter
from collections.abc import Hashable, Sequence

import torch
from torch import Tensor
from torch.utils.data import Dataset

from lightning_fl.core.errors import DataError
from lightning_fl.core.seeding import generator
from lightning_fl.core.validation import Count, checked_fields
from lightning_fl.data.partition.groups import KeyPartitioner, WholeGroups, sorted_groups
from lightning_fl.data.partition.partitioner import Concentration, draw_until_enough, read_smiles
from lightning_fl.functional.dirichlet import sample_dirichlet


@checked_fields
class Scaffold(WholeGroups):
    """Molecules by Bemis-Murcko scaffold; the data set needs an attribute ``smiles``.

    Molecules of one scaffold stay together. Those without a ring share one (empty) scaffold, often the largest group.

    Args:
        num_clients: number of clients.
        ratios: the clients' shares of the samples, one per client; ``None`` for equal ones.
    """

    _kind = "scaffolds"
    num_clients: Count

    def keys(self, dataset: Dataset) -> Sequence[Hashable]:
        return read_scaffolds(dataset, "Scaffold")


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
        return read_scaffolds(dataset, "ScaffoldLDA")

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


def read_scaffolds(dataset: Dataset, reader: str) -> list[str]:
    """Read the scaffold of every molecule from ``dataset.smiles``; ``reader`` is named in errors."""
    return murcko_scaffolds(read_smiles(dataset, reader))


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
