"""Molecules by Bemis-Murcko scaffold."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from torch.utils.data import Dataset

from lightning_fl.core.errors import DataError
from lightning_fl.core.validation import Count
from lightning_fl.data.partition.groups import WholeGroups
from lightning_fl.data.partition.partitioner import read_smiles


@dataclass(kw_only=True, eq=False)
class Scaffold(WholeGroups):
    """Molecules by Bemis-Murcko scaffold; the data set needs an attribute ``smiles``.

    Molecules of one scaffold stay together. Those without a ring share one (empty) scaffold, often the largest group.

    Args:
        num_clients: number of clients.
        ratios: the clients' shares of the samples, one per client; ``None`` for equal ones.
    """

    _kind = "scaffolds"
    num_clients: Count = field()

    def keys(self, dataset: Dataset) -> Sequence[Hashable]:
        return read_scaffolds(dataset, "Scaffold")


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
