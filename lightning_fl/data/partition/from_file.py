"""Partition and division of another run, from its ``splits.json``."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves
from torch.utils.data import Dataset

from lightning_fl.core.errors import DataError, listed
from lightning_fl.core.validation import checked_fields
from lightning_fl.data.module import SPLITS, FederatedDataModule, Split
from lightning_fl.data.partition.partitioner import Partitioner, sample_rows
from lightning_fl.files.user_file import existing_file

_FORMAT = 1


@dataclass(frozen=True)
class SplitFile:
    """Content of ``splits.json``: for every client, the numbers of its samples in each split."""

    place: Path
    by_rows: bool  #: numbers are those of a spreadsheet's rows, not of samples from 0
    sums: frozenset[str]  #: SHA-256 sums of the data files
    parts: Mapping[Split, Split]  #: the part of the data that each split's samples belong to
    seed: int | None  #: ``split_seed`` of that run
    sizes: Mapping[Split, int]  #: number of samples of each part of the data
    merged_within: list[str]  #: columns in which rows had to agree to be merged
    names: list[str]
    clients: list[dict[Split, list[int]]]


def split_file_text(data: FederatedDataModule, clients: Sequence[int]) -> str | None:
    """JSON text with the splits of some clients, a line for each split; ``None`` if the data have no numbers."""
    names, lines = data.client_names(), []
    for client in clients:
        rows = data.held_rows(client)
        if rows is None:
            return None
        parts = ",\n".join(f'   "{split}": {json.dumps(list(rows[split]))}' for split in SPLITS)
        lines.append(f'  {{"name": {json.dumps(names[client])},\n{parts}}}')
    about = json.dumps({"format": _FORMAT, **data.held_source()}, indent=1)
    return about[:-2] + ',\n "clients": [\n' + ",\n".join(lines) + "\n ]\n}\n"


def read_split_file(path: Path) -> SplitFile:
    """Read and check ``splits.json``, with ``DataError`` if that is not possible."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{path} cannot be read as JSON: {error}. Give the splits.json of a run.") from error
    try:
        if content["format"] != _FORMAT:
            raise DataError(f"{path} has format {content['format']!r}, not {_FORMAT}: use the version that wrote it.")
        clients = [{split: _numbers(entry[split]) for split in SPLITS} for entry in content["clients"]]
        parts: dict[Split, Split] = {split: content["parts"][split] for split in SPLITS}
        if not clients or not set(parts.values()) <= set(SPLITS):
            raise ValueError("no clients, or no parts")
        file = SplitFile(
            place=path,
            by_rows={"rows": True, "samples from 0": False}[content["numbering"]],
            sums=sums_of(content["files"]),
            parts=parts,
            seed=None if (seed := content.get("split_seed")) is None else _numbers([seed])[0],
            sizes=content.get("sizes", {}),
            merged_within=list(map(str, content.get("merged_within", []))),
            names=[str(entry["name"]) for entry in content["clients"]],
            clients=clients,
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        reason = f"it lacks {error}" if isinstance(error, KeyError) else error
        raise DataError(f"{path} is not the splits.json of a run, or is damaged: {reason}. Copy it again.") from error
    seen: set[tuple[Split, int]] = set()
    for name, samples in zip(file.names, clients, strict=True):
        for split in SPLITS:
            for number in samples[split]:
                if (parts[split], number) in seen:
                    where = f"again in the {split} samples of {name}"
                    raise DataError(f"{path} has sample {number} twice, {where}: the file is damaged.")
                seen.add((parts[split], number))
    return file


def sums_of(files: Sequence[Mapping[str, Any]]) -> frozenset[str]:
    """The known SHA-256 sums of files."""
    sums = [file.get("sha256") or file.get("names_and_sizes_sha256") for file in files]
    return frozenset(entry for entry in tree_leaves(sums) if isinstance(entry, str))


def _numbers(values: object) -> list[int]:
    if not isinstance(values, list) or not all(type(value) is int and value >= 0 for value in values):
        raise ValueError("must be numbers of samples")
    return values


@checked_fields
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
        self.names = file.names
        return file

    @property
    def repeated_seed(self) -> int | None:
        return self._splits.seed

    @property
    def merged_within(self) -> list[str]:
        return self._splits.merged_within

    def check_record(self, record: Mapping[str, Any]) -> None:
        given, wanted = sums_of(record.get("files") or [record]), self._splits.sums
        if given != wanted:
            sums = f"{listed(sorted(wanted)) or 'of no file'}, these have {listed(sorted(given)) or 'none'}"
            raise DataError(f"{self._splits.place} is for data with the SHA-256 sum {sums}: give the same data file.")

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
        if (own := {split for split, part in file.parts.items() if split == part}) != set(datasets):
            parts = f"{listed(sorted(own))}, not {listed(sorted(datasets))}"
            raise DataError(f"{file.place} is for data with the parts {parts}: give the data as in that run.")
        index_of = {part: _index_of(dataset, file) for part, dataset in datasets.items()}
        sizes = {part: len(index) for part, index in index_of.items()}
        if not file.by_rows and file.sizes not in ({}, sizes):
            raise DataError(f"{file.place} is for {file.sizes} samples, not {sizes}: read the data as in that run.")
        return {
            split: [_indices(of[split], index_of[file.parts[split]], file) for of in file.clients] for split in SPLITS
        }


def _index_of(dataset: Any, file: SplitFile) -> dict[int, int]:
    """Number in the file -> index in the data set."""
    rows = sample_rows(dataset) if file.by_rows else range(len(dataset))
    if rows is None:
        raise DataError(f"{file.place} numbers rows, and these data do not: read the data as in that run.")
    return {row: index for index, row in enumerate(rows)}


def _indices(rows: Sequence[int], index_of: Mapping[int, int], file: SplitFile) -> Tensor:
    if absent := [str(row) for row in rows if row not in index_of]:
        what = f"{len(absent)} {'rows' if file.by_rows else 'samples'} that the data do not have"
        raise DataError(f"{file.place} names {what}: {listed(absent, 5)}. Read the data as in that run.")
    return torch.tensor([index_of[row] for row in rows], dtype=torch.long).sort().values
