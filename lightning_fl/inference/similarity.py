"""Similarity of new molecules to a run's training molecules."""

from typing import Any

import numpy as np
import torch
from torch.utils.data import Subset

from lightning_fl.core.errors import ConfigurationError, DataError, FederatedError
from lightning_fl.core.seeding import seeded_as
from lightning_fl.data.module import FederatedDataModule
from lightning_fl.data.molecules.module import MoleculeDataModule
from lightning_fl.data.shared import SharedDataModule
from lightning_fl.data.unlabelled import Unlabelled

_RADIUS, _BITS = 2, 2048


class TrainingSimilarity:
    """Tanimoto similarity of Morgan fingerprints to each client's nearest training molecule.

    Fingerprints of radius 2 with 2048 bits (Rogers and Hahn 2010, https://doi.org/10.1021/ci100050t); 1 for equal
    fingerprints, 0 for no common bits. Reveals nothing else of a client's data.

    Args:
        data: the run's data module, before ``setup``; its data are read again.
        seed: of the run.

    Raises:
        ConfigurationError: the data are not molecules.
        DataError: the data cannot be read.

    Attributes:
        columns: ``similarity``, the maximum over clients, and ``similarity@CLIENT`` for several clients.
    """

    def __init__(self, data: FederatedDataModule, seed: int) -> None:
        if not isinstance(data, MoleculeDataModule):
            raise ConfigurationError("similarity: the run's data are not molecules; remove this option.")
        try:
            with seeded_as(seed):
                data.prepare_data()
                data.setup("fit")
        except FederatedError as error:
            raise DataError(f"similarity: the run's data cannot be read: {error}") from error
        smiles = data.dataset.smiles
        self._clients: dict[str, list[Any]] = {}
        for client, name in enumerate(data.client_names()):
            part = SharedDataModule.client_data(data, client, "train")  # molecules, not graphs
            places = part.indices if isinstance(part, Subset) else []
            self._clients[name] = [found for place in places if (found := _fingerprint(smiles[place])) is not None]
        several = [f"similarity@{name}" for name in self._clients] if len(self._clients) > 1 else []
        self.columns = ["similarity", *several]

    def __call__(self, chunk: Unlabelled) -> dict[str, np.ndarray]:
        """Columns [k] for a chunk of molecules."""
        from rdkit.DataStructs import BulkTanimotoSimilarity

        smiles = chunk.data.smiles
        found = torch.zeros(len(self._clients), len(smiles))
        for place, text in enumerate(smiles):
            fingerprint = _fingerprint(text)
            for client, known in enumerate(self._clients.values()):
                found[client, place] = max(BulkTanimotoSimilarity(fingerprint, known), default=0.0)
        nearest = found.max(dim=0).values.numpy()
        return dict(zip(self.columns, [nearest, *(row.numpy() for row in found)], strict=False))


def _fingerprint(smiles: str) -> Any:
    from rdkit import Chem
    from rdkit.Chem import rdFingerprintGenerator

    molecule = Chem.MolFromSmiles(smiles)
    if molecule is None:
        return None
    return rdFingerprintGenerator.GetMorganGenerator(radius=_RADIUS, fpSize=_BITS).GetFingerprint(molecule)
