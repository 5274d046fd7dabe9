"""How near a new molecule lies to the molecules that a run was trained on."""

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

__all__ = ["TrainingSimilarity"]

_RADIUS, _BITS = 2, 2048


class TrainingSimilarity:
    """Tanimoto similarity of Morgan fingerprints to each client's nearest training molecule.

    Fingerprints of radius 2, 2048 bits (Rogers and Hahn 2010, https://doi.org/10.1021/ci100050t); 1 for equal
    fingerprints, 0 for nothing in common. Of a client's data nothing but this number is told.

    Args:
        data: the run's data module, not set up; its data are opened again, by the recipe.
        seed: the run's, by which clients got them.

    Raises:
        ConfigurationError: the run's data are no molecules.
        DataError: they are not there.

    Attributes:
        columns: ``similarity``, the largest over clients, and ``similarity@CLIENT`` where there are several.
    """

    def __init__(self, data: FederatedDataModule, seed: int) -> None:
        if not isinstance(data, MoleculeDataModule):
            raise ConfigurationError("similarity: the run's data are no molecules; leave it out.")
        try:
            with seeded_as(seed):
                data.prepare_data()
                data.setup("fit")
        except FederatedError as error:
            raise DataError(f"similarity: the run's own data are opened for it, and that failed: {error}") from error
        smiles = data.dataset.smiles
        self._clients: dict[str, list[Any]] = {}
        for client, name in enumerate(data.client_names()):
            part = SharedDataModule.client_data(data, client, "train")  # of molecules, whatever graphs clients get
            places = part.indices if isinstance(part, Subset) else []
            self._clients[name] = [found for place in places if (found := _fingerprint(smiles[place])) is not None]
        several = [f"similarity@{name}" for name in self._clients] if len(self._clients) > 1 else []
        self.columns = ["similarity", *several]

    def __call__(self, chunk: Unlabelled) -> dict[str, np.ndarray]:
        """The columns [k] of a chunk of molecules."""
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
