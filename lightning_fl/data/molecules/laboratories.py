"""Laboratories that measure different targets: a file for each, read only where the laboratory's data may be."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import Subset

from lightning_fl.core.errors import ConfigurationError, DataError
from lightning_fl.core.seeding import run_seed
from lightning_fl.core.validation import check_counts, check_numbers
from lightning_fl.data.cards.lookup import cache_folder
from lightning_fl.data.module import FederatedDataModule, Split
from lightning_fl.data.molecules.descriptors import FeatureName, check_features, descriptor_names
from lightning_fl.data.molecules.table import INVALID_POLICIES, Invalid, MoleculeTable, read_table
from lightning_fl.data.partition.sizes import check_fractions
from lightning_fl.data.shared import cut_splits
from lightning_fl.data.text_table import read_text_table
from lightning_fl.files.user_file import existing_file

if TYPE_CHECKING:
    from lightning_fl.data.molecules.dataset import MoleculeDataset

__all__ = ["PrivateTargets"]


class PrivateTargets(FederatedDataModule):
    """A CSV file of molecules for each laboratory, whose target columns are its own.

    Every molecule has ``y`` [1, num_targets]: the first columns are the laboratory's targets in the order of its file,
    the others are missing. What column t is differs between laboratories, so their heads and scales must, too: use it
    with :class:`~lightning_fl.callbacks.personal.private_heads.PrivateHeads`. A file is opened only by the process that
    hosts its laboratory, and the names of its targets are in no record, figure or model: these have numbers.

    Args:
        files: name of a laboratory -> its file, ``.csv`` or ``.csv.gz``.
        num_targets: width of every head, at least the number of targets of any laboratory.
        target_columns: name of a laboratory -> the columns to predict, for those that may be known to everyone: they
            stand in the recipe and in the run's record. Of the others all columns are, but for those of
            ``other_columns``.
        other_columns: columns that are no targets, wherever they are, such as an identifier.
        smiles_column: the column of SMILES.
        split: shares of every laboratory's molecules for training, validation and test.
        split_seed: seed of this; ``None`` for the run's seed.
        invalid: as of :class:`~lightning_fl.data.molecules.module.MoleculeDataModule`.
        features: likewise.
        **kwargs: ``batch_size``, ``eval_batch_size``, ``shuffle`` and ``drop_last`` of
            :class:`~lightning_fl.data.module.FederatedDataModule`.

    Raises:
        DataError: when a laboratory's data are opened: its file is missing or damaged, or has more targets than
            ``num_targets`` or none.
    """

    pinned = True

    def __init__(
        self,
        *,
        files: dict[str, str],
        num_targets: int,
        target_columns: dict[str, list[str]] | None = None,
        other_columns: list[str] | None = None,
        smiles_column: str = "smiles",
        split: tuple[float, float, float] = (0.8, 0.1, 0.1),
        split_seed: int | None = None,
        invalid: Invalid = "refuse",
        features: list[FeatureName] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_counts(self, num_targets=num_targets)
        check_numbers(self, split=split, at_least=0, at_most=1)
        check_fractions(split)
        check_counts(self, split_seed=split_seed, at_least=0, at_most=2**64 - 1)
        if not files:
            raise ConfigurationError("files={}: give a file for each laboratory, {name: path}.")
        if invalid not in INVALID_POLICIES:
            raise ConfigurationError(f"invalid={invalid!r}: expected one of {', '.join(INVALID_POLICIES)}.")
        for name, columns in (target_columns or {}).items():
            if name not in files or not 0 < len(columns) <= num_targets:
                raise ConfigurationError(
                    f"target_columns[{name!r}]={columns}: name a laboratory of files ({', '.join(files)}) and one to"
                    f" num_targets={num_targets} of its columns."
                )
        self.files = dict(files)
        self.num_targets = num_targets
        self.target_columns = target_columns or {}
        self.other_columns = other_columns or []
        self.smiles_column = smiles_column
        self.split = tuple(split)
        self.split_seed = split_seed
        self.invalid = invalid
        self.features = check_features(features or [])
        self._parts: dict[int, dict[Split, Subset]] = {}
        self._names: dict[int, list[str]] = {}

    @property
    def num_clients(self) -> int:
        """A client for each laboratory."""
        return len(self.files)

    def client_names(self) -> list[str]:
        """The laboratories'."""
        return list(self.files)

    @property
    def descriptor_dim(self) -> int:
        """Number F of descriptors of every molecule; 0 without ``features``."""
        return sum(len(descriptor_names(kind)) for kind in self.features)

    @property
    def target_names(self) -> list[str]:
        """What the T columns are called in records and figures: "target_0", ..."""
        return [f"target_{number}" for number in range(self.num_targets)]

    def client_target_names(self, client: int) -> list[str]:
        """The names of a laboratory's targets, in the order of its columns; opens its file."""
        self._open(client)
        return self._names[client]

    def client_data(self, client: int, split: Split) -> Subset | None:
        """The laboratory's molecules; ``None`` where it has none in this split."""
        return self._open(client).get(split)

    def describe(self) -> Mapping[str, Any]:
        """What everybody may know."""
        return {
            **super().describe(),
            "client_names": self.client_names(),
            "num_targets": self.num_targets,
            "target_names": {name: list(columns) for name, columns in self.target_columns.items()},
            "split": list(self.split),
            "split_seed": run_seed() if self.split_seed is None else self.split_seed,
            "features": list(self.features),
        }

    def _open(self, client: int) -> dict[Split, Subset]:
        if client not in self._parts:
            name = self.client_names()[client]
            try:
                dataset = self._read(client, existing_file(self.files[name]))
            except Exception as error:
                error.add_note(f"This came from the file of {name}.")
                raise
            seed = run_seed() if self.split_seed is None else self.split_seed
            shares = cut_splits(torch.arange(len(dataset)), self.split, seed, client)
            self._parts[client] = {split: Subset(dataset, part.tolist()) for split, part in shares.items() if len(part)}
        return self._parts[client]

    def _read(self, client: int, path: Path) -> "MoleculeDataset":
        from lightning_fl.data.molecules.dataset import MoleculeDataset

        columns = self.target_columns.get(self.client_names()[client]) or [
            str(name)
            for name in read_text_table(path).columns
            if name != self.smiles_column and name not in self.other_columns
        ]
        if not 0 < len(columns) <= self.num_targets:
            raise DataError(
                f"{path} has {len(columns)} target columns, and num_targets={self.num_targets}: give every laboratory 1"
                " to num_targets of them; other_columns names columns that are none."
            )
        table = read_table(
            path,
            file_format="csv.gz" if path.suffix == ".gz" else "csv",
            smiles=self.smiles_column,
            targets=columns,
            units=["not given"] * len(columns),
        )
        self._names[client] = list(columns)
        dataset = MoleculeDataset(
            _widened(table, self.num_targets),
            invalid=self.invalid,
            cache=cache_folder() / "molecules",
            features=self.features,
        )
        dataset.target_names = self.target_names
        return dataset


def _widened(table: MoleculeTable, num_targets: int) -> MoleculeTable:
    """The table with as many target columns as the widest head; those that are added are empty."""
    missing = table.targets.new_full((len(table.targets), num_targets - table.targets.size(1)), float("nan"))
    return replace(table, targets=torch.cat([table.targets, missing], dim=1))
