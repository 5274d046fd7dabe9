"""Laboratories that measure different targets: one file each, opened only where its data may be."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import Subset

from lightning_fl.core.errors import ConfigurationError, DataError
from lightning_fl.core.validation import Count, Fraction, Seed, checked_fields
from lightning_fl.data.cards.lookup import cache_folder
from lightning_fl.data.division.division import cut_splits
from lightning_fl.data.module import FederatedDataModule, Split
from lightning_fl.data.molecules.descriptors import FeatureName, descriptor_names, distinct_features
from lightning_fl.data.molecules.table import Invalid, read_table
from lightning_fl.data.sizes import check_fractions
from lightning_fl.files.user_file import existing_file

if TYPE_CHECKING:
    from lightning_fl.data.molecules.dataset import MoleculeDataset


@checked_fields
class PrivateTargets(FederatedDataModule):
    """A CSV file of molecules for each laboratory, with target columns of its own.

    Every molecule has ``y`` [1, num_targets]: the laboratory's targets in the order of its file, then missing values.
    Column t means different things at different laboratories, so each needs its own head and scale: use
    :class:`~lightning_fl.callbacks.personal.personal_layers.PrivateHeads`. Only the process that hosts a laboratory
    opens its file, and the names of its targets appear in no record, figure or model, which number them.

    Args:
        files: laboratory -> its file, ``.csv`` or ``.csv.gz``.
        num_targets: width of every head, at least the largest number of targets of a laboratory.
        target_columns: laboratory -> columns to predict, for laboratories whose target names may be public: they are in
            the recipe and in the run's record. Other laboratories predict all columns except ``other_columns``.
        other_columns: columns that are never targets, such as an identifier.
        smiles_column: column of SMILES, in any case; by default also "canonical_smiles", "isomeric_smiles" or "smi".
        split: shares of every laboratory's molecules for training, validation and test.
        split_seed: seed of the split; ``None`` for the run's seed.
        invalid: see :class:`~lightning_fl.data.molecules.module.MoleculeDataModule`.
        features: see :class:`~lightning_fl.data.molecules.module.MoleculeDataModule`.
    """

    pinned = True

    files: dict[str, str]
    num_targets: Count
    target_columns: dict[str, list[str]] | None = None
    other_columns: list[str] | None = None
    smiles_column: str = "smiles"
    split: tuple[Fraction, Fraction, Fraction] = (0.8, 0.1, 0.1)
    split_seed: Seed | None = None
    invalid: Invalid = "refuse"
    features: list[FeatureName] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_fractions(self.split)
        if not self.files:
            raise ConfigurationError("files={}: give a file for each laboratory, {name: path}.")
        self._public_targets = self.target_columns = self.target_columns or {}
        self.other_columns = self.other_columns or []
        for name, columns in self._public_targets.items():
            if name not in self.files or not 0 < len(columns) <= self.num_targets:
                needed = f"one of {', '.join(self.files)} and up to num_targets={self.num_targets} columns"
                raise ConfigurationError(f"target_columns[{name!r}]={columns}: name {needed}.")
        self._features = self.features = distinct_features(self.features or [])
        self._parts: dict[int, dict[Split, Subset]] = {}
        self._names: dict[int, list[str]] = {}

    @property
    def num_clients(self) -> int:
        return len(self.files)

    def client_names(self) -> list[str]:
        return list(self.files)

    @property
    def descriptor_dim(self) -> int:
        """Number F of descriptors of every molecule; 0 without ``features``."""
        return sum(len(descriptor_names(kind)) for kind in self._features)

    @property
    def target_names(self) -> list[str]:
        """Public names of the T target columns: "target_0", ..."""
        return [f"target_{number}" for number in range(self.num_targets)]

    def client_target_names(self, client: int) -> list[str]:
        """Return a laboratory's own names of its targets, in the order of its columns; opens its file."""
        self._open(client)
        return self._names[client]

    def client_data(self, client: int, split: Split) -> Subset | None:
        return self._open(client).get(split)

    def describe(self) -> Mapping[str, Any]:
        """Return what may be public."""
        return {
            **super().describe(),
            "client_names": self.client_names(),
            "num_targets": self.num_targets,
            "target_names": {name: list(columns) for name, columns in self._public_targets.items()},
            "split": list(self.split),
            "split_seed": self.seed_of(self.split_seed),
            "features": list(self._features),
        }

    def _open(self, client: int) -> dict[Split, Subset]:
        if client not in self._parts:
            name = self.client_names()[client]
            try:
                dataset = self._read(client, existing_file(self.files[name]))
            except Exception as error:
                error.add_note(f"The error is in the file of {name}.")
                raise
            shares = cut_splits(torch.arange(len(dataset)), self.split, self.seed_of(self.split_seed), client)
            self._parts[client] = {split: Subset(dataset, part.tolist()) for split, part in shares.items() if len(part)}
        return self._parts[client]

    def _read(self, client: int, path: Path) -> "MoleculeDataset":
        from lightning_fl.data.molecules.dataset import MoleculeDataset

        columns = self._public_targets.get(self.client_names()[client])
        table = read_table(
            path,
            smiles=self.smiles_column,
            targets=columns,
            units="not given" if columns is None else ["not given"] * len(columns),
            not_targets=self.other_columns or (),
        )
        self._names[client] = table.target_names
        if (found := len(table.target_names)) > self.num_targets:
            what = f"{found} target columns, but num_targets={self.num_targets}"
            raise DataError(f"{path} has {what}: name columns that are not targets in other_columns.")
        missing = table.targets.new_full((len(table.targets), self.num_targets - len(table.target_names)), torch.nan)
        dataset = MoleculeDataset(
            replace(table, targets=torch.cat([table.targets, missing], dim=1)),
            invalid=self.invalid,
            cache=cache_folder() / "molecules",
            features=self._features,
        )
        dataset.target_names = self.target_names
        return dataset
