"""Federated data of tables, from a card such as UCI Adult or from the user's file."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch.utils.data import Dataset, TensorDataset

from lightning_fl.core.errors import ConfigurationError, DataError, listed
from lightning_fl.core.validation import checked_fields
from lightning_fl.data.cards.kinds import TableCard
from lightning_fl.data.cards.lookup import file_sha256, find_file, load_card
from lightning_fl.data.module import Split
from lightning_fl.data.shared import ClientShares, OpenedData, SharedDataModule
from lightning_fl.data.unlabelled import NewSamples, Reading, Unlabelled, name_of_source, read_rows
from lightning_fl.files.table_file import as_texts
from lightning_fl.files.text_table import read_numbers, require_columns
from lightning_fl.files.user_file import existing_file

if TYPE_CHECKING:
    import pandas as pd

    from lightning_fl.data.tables.dataset import TableDataset, TableSchema


@checked_fields
class TableData(SharedDataModule):
    """Rows of a table with a target each.

    Batches are ``(features float32 [B, D], target)``: a class int64 [B]; for a regression a number float32 [B, 1]; for
    survival ``(time, event)`` float32 [B, 2], event 1 if observed, 0 if nothing is known after the time (censored).

    Numeric columns are standardised with the mean and the standard deviation of all clients' training rows (a missing
    number becomes the mean); categorical ones are one-hot over the values in all rows, where ``?`` or an empty cell is
    a value of its own. Drop a column that only divides the rows among clients; partitioners still find it.

    Args:
        name: name of a card, such as ``adult``, or path of another (``.yaml``); instead of ``path``. No stand-ins.
        path: the user's file with a header (text, packed or not, Parquet or Excel); instead of ``name``.
        data_root: folder searched for a card's files first, before ``$LIGHTNING_FL_DATA``, cache and download.
        target: column of classes, numbers or times; ``None`` for the card's.
        task: whether the target holds classes or, for a "regression", numbers.
        event: column of 0 and 1, whether the event was observed; the target is then its time. ``None`` for the card's.
        columns: input columns; ``None`` for all but the target, ``drop``, and those that a card leaves out or derives.
        drop: columns that are not inputs; instead of ``columns``.
        categorical: input columns of categories; ``None`` for the card's, and in the user's file for the columns where
            at most half of the values are numbers. Where most are, the other values are refused.
        incomplete: "keep" or "leave_out" rows without a value in an input column.

    Example:
        >>> from lightning_fl.data.partition import GroupBy
        >>> data = TableData(name="adult", partitioner=GroupBy(column="doctorate"))
    """

    name: str | None = None
    path: str | None = None
    data_root: str | None = None
    target: str | None = None
    task: Literal["classification", "regression"] = "classification"
    event: str | None = None
    columns: list[str] | None = None
    drop: list[str] | None = None
    categorical: list[str] | None = None
    incomplete: Literal["keep", "leave_out"] = "keep"

    def __post_init__(self) -> None:
        # Not at the top: pandas loads slowly, and every run imports this class. Not later: forked processes should
        # share it.
        import lightning_fl.data.tables.dataset  # noqa: F401

        super().__post_init__()
        name, path, target, columns = self.name, self.path, self.target, self.columns
        if (name is None) == (path is None):
            raise ConfigurationError(f"name={name!r}, path={path!r}: give exactly one of them, such as name='adult'.")
        if path is not None:
            if self.data_root is not None:
                raise ConfigurationError(f"data_root={self.data_root!r} has no effect with path={path!r}: omit it.")
            if target is None:
                raise ConfigurationError(f"path={path!r} without target: name the column to predict.")
        if columns is not None and (self.drop is not None or not columns):
            raise ConfigurationError(f"columns={columns}, drop={self.drop}: give one of them.")
        self.card = None if name is None else load_card(name, TableCard)
        if self.card is not None and target in (None, self.card.target):
            self.target, self.event = self.card.target, self.event or self.card.event
        if self.task == "regression" and self.event is not None:
            raise ConfigurationError(f"task={self.task!r} and event={self.event!r}: give only one of them.")
        self._has_classes = self.task == "classification" and self.event is None
        derived = [{of.name, of.column} for of in self.card.derived] if self.card is not None else []
        aims = {self.target, self.event}
        if leaks := aims.union(*(pair for pair in derived if pair & aims)).intersection(columns or []):
            raise ConfigurationError(f"columns={columns}: {min(map(str, leaks))!r} is or reveals the target; omit it.")
        self._standardization: dict[str, list[float]] = {}

    @property
    def _table(self) -> "TableDataset":
        return self._data.datasets["train"]

    @property
    def class_names(self) -> list[str]:
        """Names of the classes 0, 1, ..., after ``prepare_data`` or ``setup``."""
        return self._table.classes

    classes = class_names

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        return len(self.class_names)

    @property
    def feature_names(self) -> list[str]:
        """Names of the D features: numeric columns, then ``column=value`` for every category."""
        return self._table.schema.feature_names

    @property
    def num_features(self) -> int:
        """Number of features D."""
        return len(self.feature_names)

    def _open(self, *, allow_download: bool) -> OpenedData:
        import pandas as pd

        from lightning_fl.data.tables.dataset import TableDataset, TableSchema, class_names

        read = self._read(allow_download)
        frames, place = list(read.datasets.values()), self.path or f"data set {read.record['name']}"
        target = str(self.target)
        aims = [target] if self.event is None else [target, self.event]
        derived = [column.name for column in self.card.derived] if self.card is not None else []
        for frame in frames:
            require_columns(frame, [*aims, *(self.columns or []), *(self.drop or [])], place)
        unused = {*aims, *derived, *(self.drop or [])}
        if self.card is not None:  # also the column from which a derived target is made
            unused |= {*self.card.unused, *(one.column for one in self.card.derived if one.name == target)}
        columns = self.columns or [name for name in frames[0].columns if name not in unused]
        categorical = self.categorical
        if categorical is not None and (unknown := [name for name in categorical if name not in columns]):
            raise DataError(f"categorical={categorical}: {unknown[0]!r} is not an input column: {listed(columns)}.")
        if categorical is None and self.card is not None:
            categorical = [*self.card.categorical, *([self.card.target] if self.card.classes else []), *derived]
        if not columns:
            raise DataError(f"{place} has no input column besides the target {target!r}: drop fewer columns.")
        read = self._leave_out_incomplete(read, columns, categorical or (), place)
        frames = list(read.datasets.values())
        schema = TableSchema.of(frames, columns, categorical, place)
        classes: list[str] = []
        if self._has_classes and self.card is not None and target == self.card.target:
            classes = list(self.card.classes)
        elif self._has_classes:
            classes = class_names(pd.concat([frame[target] for frame in frames]), place)
        datasets = {
            split: TableDataset(frame, self._targets(frame, classes, place), classes, schema, place)
            for split, frame in read.datasets.items()
        }
        own = {
            "rows": {split: len(frame) for split, frame in read.datasets.items()},
            "target": target,
            **({"classes": classes} if self._has_classes else {}),
            **({} if self.event is None else {"event": self.event}),
            "columns": list(columns),
            "num_features": len(schema.feature_names),
        }
        return OpenedData(datasets, read.source, read.record | own)

    def _targets(self, frame: "pd.DataFrame", classes: Sequence[str], place: str) -> torch.Tensor:
        from lightning_fl.data.tables.dataset import class_indices, survival_times, target_numbers

        if self._has_classes:
            return class_indices(frame[str(self.target)], classes, place)
        if self.event is None:
            return target_numbers(frame[str(self.target)], place)
        return survival_times(frame[str(self.target)], frame[self.event], place)

    def _leave_out_incomplete(
        self, read: OpenedData, columns: Sequence[str], categorical: Sequence[str], place: str
    ) -> OpenedData:
        if self.incomplete == "keep":
            return read
        frames = {split: frame.dropna(subset=list(columns)) for split, frame in read.datasets.items()}
        for split, name in itertools.product(frames, columns):
            numbers, wrong = read_numbers(frames[split][name])
            if wrong.empty and name not in categorical:  # numbers, but for texts such as NA
                frames[split] = frames[split][numbers.notna()]
        if any(frame.empty for frame in frames.values()):
            what = f"incomplete=leave_out leaves no row with a value in each of {listed(columns)}"
            raise DataError(f"{place}: {what}. Drop columns with few values, or keep the rows.")
        left_out = {split: len(read.datasets[split]) - len(frame) for split, frame in frames.items()}
        return OpenedData(frames, read.source, read.record | {"incomplete_rows_left_out": left_out})

    def _read(self, allow_download: bool) -> OpenedData:
        from lightning_fl.data.tables.dataset import read_c45, read_csv

        card = self.card
        if card is None:
            path = existing_file(str(self.path))
            return OpenedData({"train": read_csv(path)}, "user", {"file": path.name, "sha256": file_sha256(path)})
        frames: dict[Split, pd.DataFrame] = {}
        found_files = []
        parts: tuple[Split, ...] = ("train", "test")
        for split, file in zip(parts, card.files, strict=False):
            found = find_file(card, file, data_root=self.data_root, allow_download=allow_download)
            found_files.append({"file": found.path.name, "sha256": found.sha256, "verified": found.verified})
            if card.format == "c45":
                frame = read_c45(found.path, card.columns)
            else:
                frame = read_csv(found.path)
                require_columns(frame, card.columns, str(found.path))
            frames[split] = _with_derived(frame, card)
        return OpenedData(frames, "measured", card.describe() | {"files": found_files})

    def _hold(self, datasets: Mapping[Split, "TableDataset"], shares: ClientShares) -> Mapping[Split, Dataset]:
        from lightning_fl.data.tables.dataset import column_statistics

        table = self._table
        training = torch.cat([of_client["train"] for of_client in shares])
        mean, std = column_statistics(table.schema.numbers(table.frame)[training])
        self._standardization = {"mean": mean.tolist(), "std": std.tolist()}
        return {
            split: TensorDataset(table.schema.features(one.frame, mean, std), one.targets)
            for split, one in datasets.items()
        }

    def newcomer_data(self, path: str, record: Mapping[str, Any]) -> TensorDataset:
        from lightning_fl.data.tables.dataset import read_csv

        schema, mean, std = _encoding(record)
        frame = read_csv(existing_file(path))
        if self.card is not None:
            frame = _with_derived(frame, self.card)
        given, columns = OpenedData({"train": frame}, "user", {}), [*schema.numeric, *schema.categories]
        require_columns(frame, [*columns, record["target"], *([record["event"]] if "event" in record else [])], path)
        frame = self._leave_out_incomplete(given, columns, list(schema.categories), path).datasets["train"]
        schema.check(frame, path)
        return TensorDataset(schema.features(frame, mean, std), self._targets(frame, record.get("classes", []), path))

    def unlabelled_data(self, source: NewSamples, record: Mapping[str, Any], reading: Reading) -> Iterator[Unlabelled]:
        if reading.smiles_column is not None:
            raise ConfigurationError("smiles_column: the run's data are tables, not molecules; omit it.")
        from lightning_fl.data.tables.dataset import MISSING

        schema, mean, std = _encoding(record)
        place = name_of_source(source)
        for given in read_rows(source, reading.rows):
            cells = as_texts(given)
            cells = cells.where(cells != MISSING, None)
            if self.card is not None:
                cells = _with_derived(cells, self.card)
            require_columns(cells, [*schema.numeric, *schema.categories], place)
            errors = schema.faults(cells)
            kept = [row for row in range(len(cells)) if row not in errors]
            shape = (len(kept),) if self._has_classes else (len(kept), 1 if self.event is None else 2)
            unknown = torch.zeros(shape, dtype=torch.long if self._has_classes else torch.float)
            data = TensorDataset(schema.features(cells.iloc[kept], mean, std), unknown)
            yield Unlabelled(given, data if kept else None, kept, errors)

    def describe(self) -> Mapping[str, Any]:
        schema = self._table.schema
        categories = {name: list(of) for name, of in schema.categories.items()}
        columns = {"numeric": list(schema.numeric), "categories": categories}
        return {**super().describe(), "encoding": columns | self._standardization}


def _encoding(record: Mapping[str, Any]) -> "tuple[TableSchema, torch.Tensor, torch.Tensor]":
    """Encoding of the run's columns from its record: schema, means [Q] and deviations [Q]."""
    from lightning_fl.data.tables.dataset import TableSchema

    encoding = record.get("encoding")
    if encoding is None:
        raise ConfigurationError("summary.json lacks the columns' encoding, as an older version made it: train again.")
    categories = {name: tuple(of) for name, of in encoding["categories"].items()}
    mean, std = (torch.tensor(encoding[name], dtype=torch.float64) for name in ("mean", "std"))
    return TableSchema(tuple(encoding["numeric"]), categories), mean, std


def _with_derived(frame: "pd.DataFrame", card: TableCard) -> "pd.DataFrame":
    for derived in card.derived:
        if derived.column in frame.columns and derived.name not in frame.columns:
            frame[derived.name] = np.where(frame[derived.column].isin(derived.values), derived.label, derived.other)
            frame.loc[frame[derived.column].isna(), derived.name] = None
    return frame
