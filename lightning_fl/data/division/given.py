"""As published: by a column that says train, val or test, or by lists of identifiers."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from lightning.fabric.utilities.rank_zero import rank_zero_warn
from torch import Tensor
from torch.utils.data import Dataset

from lightning_fl.core.errors import ConfigurationError, DataError, listed
from lightning_fl.core.errors import cut as shortened
from lightning_fl.data.division.division import Cut, Division, check_train, read_texts
from lightning_fl.data.division.random import RandomDivision
from lightning_fl.data.module import SPLITS, Split
from lightning_fl.data.partition.sizes import remaining_fractions
from lightning_fl.data.text_table import read_text_table, require_columns
from lightning_fl.files.user_file import existing_file
from lightning_fl.files.yaml import read_yaml

__all__ = ["ColumnDivision", "ListDivision"]

#: What the parts are called in columns and files, in small letters.
_WORDS: dict[str, Split] = {
    "train": "train",
    "training": "train",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "test": "test",
    "testing": "test",
}
#: What becomes of samples that a file of lists does not name.
Unlisted = Literal["refuse", "leave_out"]


class _GivenDivision(Division):
    """The parts are given; a part that none of all clients' samples is in is cut from every client's training samples.

    A key is the sample's part, for training samples followed by the parts that are to be cut from them; "" for a
    sample that nobody uses.
    """

    def divide(self, keys: list[Any], cut: Cut) -> dict[Split, Tensor]:
        """The given parts; of the training samples those that are not given, at random or by folds.

        Raises:
            DataError: nothing is left to train on, samples of the given parts stand in the way of a data set that has
                such a part itself, or there is nothing for folds.
        """
        parts: dict[Split, Tensor] = {}
        for split in ("val", "test"):
            parts[split] = _places(keys, split)
            if len(parts[split]) and not cut.is_cut[split]:
                raise DataError(
                    f"{type(self).__name__}: {len(parts[split])} samples of client {cut.name} are for {split}, but the"
                    f" data have a {split} part of their own. Leave the division out, or put the parts together."
                )
        rest = torch.tensor([place for place, key in enumerate(keys) if key.startswith("train")], dtype=torch.long)
        check_train({"train": rest}, cut, "leave the client out, or divide otherwise")
        missing = keys[int(rest[0])].split("+")[1:]
        if cut.folds is not None and not [split for split in missing if cut.is_cut[split]]:
            raise DataError(
                f"folds={cut.folds}: {type(self).__name__} has samples for both val and test, so nothing is left to be"
                " chosen by fold. Leave folds out, or the validation samples."
            )
        own: list[Split] = ["train", *(split for split in SPLITS[1:] if split not in missing or not cut.is_cut[split])]
        inner = replace(
            cut,
            size=len(rest),
            own=own,
            fractions=remaining_fractions(cut.fractions, own),
            labels=None if cut.labels is None else cut.labels[rest],
            copies=None if cut.copies is None else cut.copies[rest].unique(return_inverse=True)[1],
        )
        for split, positions in RandomDivision().divide([], inner).items():
            if inner.is_cut[split]:
                parts[split] = rest[positions]
        return {split: parts[split] for split in SPLITS}


class ColumnDivision(_GivenDivision):
    """By a column of the file that says train, val or test, such as a published split.

    Without arguments, ``train``, ``training``, ``val``, ``valid``, ``validation``, ``test`` and ``testing`` are
    understood, in capitals or not. A part that no row of the file has is cut from every client's training samples by
    the shares of ``split``, or by fold: where the test samples are published, ``folds`` divides the others.

    Args:
        column: name of the column, read with ``dataset.column(name)``.
        train: its values for training samples; ``None`` for the words above.
        val: likewise, for validation.
        test: likewise, for test.
        leave_out: values whose samples nobody uses; ``""`` for empty cells, as where a published split covers some
            rows only.

    Example:
        >>> tdc = ColumnDivision(column="split", train=["train_val"])
    """

    def __init__(
        self,
        *,
        column: str,
        train: list[str] | None = None,
        val: list[str] | None = None,
        test: list[str] | None = None,
        leave_out: list[str] | None = None,
    ) -> None:
        self.column = column
        self.train = train
        self.val = val
        self.test = test
        self.leave_out = leave_out
        part_of: dict[str, str] = {}
        chosen = {"train": train, "val": val, "test": test, "": leave_out}
        for part, values in chosen.items():
            for value in values or ([] if not part else [word for word, of in _WORDS.items() if of == part]):
                word = str(value).strip().lower()
                if part_of.setdefault(word, part) != part and values is not None:
                    raise ConfigurationError(
                        f"ColumnDivision: the value {value!r} stands for {part_of[word] or 'leave_out'} and for"
                        f" {part or 'leave_out'}: name it once."
                    )
        self._part_of = part_of

    def read(self, dataset: Dataset, identities: Sequence[str] | None) -> Sequence[str]:
        """The part of every sample.

        Raises:
            DataError: a value is none of those that are known; the message lists them.
        """
        texts = read_texts(dataset, self.column, "ColumnDivision", gaps="" in self._part_of)
        unknown = sorted({text for text in texts if text.lower() not in self._part_of})
        if unknown:
            raise DataError(
                f"ColumnDivision.column={self.column!r} has the values {listed(list(map(repr, unknown)), 10)}, which"
                f" are none of {listed(list(filter(None, self._part_of)))}: name them in train, val, test or leave_out."
            )
        return _with_missing([self._part_of[text.lower()] for text in texts], f"column {self.column!r}")


class ListDivision(_GivenDivision):
    """By lists of identifiers in a file.

    Args:
        path: a YAML or JSON file, ``{train: [...], val: [...], test: [...]}``, or a table (``.csv``) with the columns
            ``id`` and ``split``. A part that is not there is cut from every client's training samples, as for
            :class:`ColumnDivision`.
        id_column: the column of the data that holds the identifiers; ``None`` for the numbers of rows as a spreadsheet
            shows them (the header is row 1), and of data without rows for the numbers of samples, from 0.
        unlisted: what becomes of samples that the file does not name: ``"refuse"``, or ``"leave_out"``.
    """

    def __init__(self, *, path: str, id_column: str | None = None, unlisted: Unlisted = "refuse") -> None:
        if unlisted not in get_args(Unlisted):
            raise ConfigurationError(f"unlisted={unlisted!r}: expected one of {', '.join(get_args(Unlisted))}.")
        if not path.endswith((".yaml", ".yml", ".json", ".csv", ".csv.gz")):
            raise ConfigurationError(f"ListDivision.path={path!r}: expected a file that ends in .yaml, .json or .csv.")
        self.path = path
        self.id_column = id_column
        self.unlisted: Unlisted = unlisted

    def read(self, dataset: Dataset, identities: Sequence[str] | None) -> Sequence[str]:
        """The part of every sample.

        Raises:
            ConfigurationError: the file has no such lists.
            DataError: it cannot be read, names a sample for two parts, or not all samples.
        """
        path = existing_file(self.path, "ListDivision.path")
        part_of = _read_lists(path)
        ids = read_texts(dataset, self.id_column, "ListDivision")
        what = "rows" if self.id_column is None else f"values of {self.id_column!r}"
        absent = sorted(set(ids) - set(part_of))
        if absent and (self.unlisted == "refuse" or len(absent) == len(set(ids))):
            raise DataError(
                f"{path} does not name {len(absent)} of the {what}, such as {listed(absent, 5)}: add them, name another"
                " id_column, or leave these samples out with unlisted: leave_out."
            )
        spare = sorted(set(part_of) - set(ids))
        if spare:
            rank_zero_warn(f"{path} names {len(spare)} that are none of the {what}: {listed(spare, 5)}.")
        return _with_missing([part_of.get(name, "") for name in ids], str(path))


def _with_missing(parts: list[str], place: str) -> list[str]:
    """Parts of all samples; for training samples followed by the parts that none is in."""
    if "train" not in parts:
        raise DataError(f"{place} has no sample for training: check its values.")
    missing = [split for split in SPLITS if split not in parts]
    return ["+".join([part, *missing]) if part == "train" else part for part in parts]


def _read_lists(path: Path) -> dict[str, str]:
    """Identifier -> part."""
    pairs: list[tuple[str, str]] = []
    if path.name.endswith((".csv", ".csv.gz")):
        frame = read_text_table(path)
        require_columns(frame, ["id", "split"], str(path))
        empty = frame["id"].isna() | frame["split"].isna()
        if empty.any():
            raise DataError(f"{path}: {int(empty.sum())} rows, the first {frame.index[empty][0]}, lack id or split.")
        pairs = list(zip(frame["id"], frame["split"], strict=True))
    else:
        content = read_yaml(path)
        lists = content if isinstance(content, Mapping) else {}
        if not lists or not all(isinstance(ids, list) for ids in lists.values()):
            raise ConfigurationError(
                f"{path}: expected lists of identifiers, {{train: [...], val: [...], test: [...]}}."
            )
        pairs = [(str(name).strip(), str(part)) for part, ids in lists.items() for name in ids]
    part_of: dict[str, str] = {}
    for name, word in pairs:
        part = _WORDS.get(word.strip().lower())
        if part is None:
            raise ConfigurationError(f"{path} has the part {shortened(repr(word))}: name parts train, val and test.")
        if part_of.setdefault(name, part) != part:
            raise DataError(f"{path} names {shortened(repr(name))} for {part_of[name]} and for {part}: name it once.")
    return part_of


def _places(keys: Sequence[str], part: str) -> Tensor:
    return torch.tensor([place for place, key in enumerate(keys) if key == part], dtype=torch.long)
