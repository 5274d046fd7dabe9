"""Partition and division of another run, from its record."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from lightning_fl.core.errors import DataError, listed
from lightning_fl.data.module import SPLITS, Split
from lightning_fl.data.partition.partitioner import Partitioner, sample_rows
from lightning_fl.data.split_file import SplitFile, read_split_file, sums_of
from lightning_fl.files.user_file import existing_file


@dataclass(kw_only=True, eq=False)
class FromFile(Partitioner):
    """Partition and division of another run, sample for sample, independent of the seed and the version.

    Args:
        path: ``splits.json`` in that run's folder. The data must come from the same file, by its SHA-256 sum.
    """

    exact = True
    path: str

    @cached_property
    def _splits(self) -> SplitFile:
        file = read_split_file(existing_file(self.path, "FromFile.path"))
        _check_once(file)
        self.names = file.names
        return file

    def check_record(self, record: Mapping[str, Any]) -> None:
        now = sums_of(record.get("files") or [record])
        known = self._splits.sums
        if known != now:
            raise DataError(
                f"{self._splits.place} belongs to data with the SHA-256 sum {listed(sorted(known)) or 'of no file'}, "
                f"these have {listed(sorted(now)) or 'none'}: give the same data file, or divide these by ListDivision."
            )

    def __call__(self, dataset: Dataset, seed: int) -> list[Tensor]:
        """Every client's samples of the training data, in whichever split it used them."""
        index_of = _index_of(dataset, self._splits)
        parts = self._splits.parts
        return [
            _indices([row for split in SPLITS if parts[split] == "train" for row in of[split]], index_of, self._splits)
            for of in self._splits.clients
        ]

    def partition_clients(
        self, datasets: Mapping[Split, Dataset], fractions: Sequence[float], seed: int
    ) -> dict[Split, list[Tensor]]:
        file = self._splits
        own = {split for split, part in file.parts.items() if split == part}
        if own != set(datasets):
            raise DataError(
                f"{file.place} belongs to data with the parts {listed(sorted(own))}, these have"
                f" {listed(sorted(datasets))}: give the data as in that run."
            )
        index_of = {part: _index_of(dataset, file) for part, dataset in datasets.items()}
        return {
            split: [_indices(of[split], index_of[file.parts[split]], file) for of in file.clients] for split in SPLITS
        }


def _index_of(dataset: Any, file: SplitFile) -> dict[int, int]:
    """Number in the file -> index in the data set."""
    rows = sample_rows(dataset)
    if file.by_rows != (rows is not None):
        raise DataError(f"{file.place} numbers {'rows' if file.by_rows else 'samples'}, and these data do not.")
    return {row: index for index, row in enumerate(range(len(dataset)) if rows is None else rows)}


def _indices(rows: Sequence[int], index_of: Mapping[int, int], file: SplitFile) -> Tensor:
    absent = [str(row) for row in rows if row not in index_of]
    if absent:
        raise DataError(
            f"{file.place} names {len(absent)} {'rows' if file.by_rows else 'samples'} that the data do not have:"
            f" {listed(absent, 5)}. Give the data as in that run (invalid, identity and duplicates too)."
        )
    return torch.tensor([index_of[row] for row in rows], dtype=torch.long).sort().values


def _check_once(file: SplitFile) -> None:
    seen: set[tuple[Split, int]] = set()
    for name, of in zip(file.names, file.clients, strict=True):
        for split in SPLITS:
            numbers = {(file.parts[split], number) for number in of[split]}
            if both := numbers & seen:
                raise DataError(
                    f"{file.place} has sample {min(both)[1]} twice, at last in {split} of {name}: the file is damaged."
                )
            seen |= numbers
