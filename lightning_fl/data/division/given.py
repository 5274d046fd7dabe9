"""Published divisions: by a column with train, val or test, or by lists of identifiers."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch
from lightning.fabric.utilities.rank_zero import rank_zero_warn
from torch import Tensor
from torch.utils.data import Dataset

from lightning_fl.core.errors import ConfigurationError, DataError, listed
from lightning_fl.core.errors import cut as shortened
from lightning_fl.core.validation import checked_fields
from lightning_fl.data.division.division import Cut, Division, RandomDivision, check_train, read_texts
from lightning_fl.data.module import SPLIT_NAMES, SPLITS, Split
from lightning_fl.data.sizes import remaining_fractions
from lightning_fl.files.text_table import read_text_table, require_columns
from lightning_fl.files.user_file import existing_file
from lightning_fl.files.yaml import read_yaml


class _GivenDivision(Division):
    """Division with given parts; a part without any sample is cut from every client's training samples.

    A key is the sample's part; "" for an unused sample.
    """

    #: Parts without any sample of any client.
    _missing: Sequence[Split] = ()

    def divide(self, keys: list[Any], cut: Cut) -> dict[Split, Tensor]:
        """Use the given parts; cut missing ones from the training samples at random or by folds."""
        parts: dict[Split, Tensor] = {}
        for split in ("val", "test"):
            parts[split] = torch.tensor([place for place, key in enumerate(keys) if key == split], dtype=torch.long)
            if len(parts[split]) and not cut.is_cut[split]:
                what = f"{len(parts[split])} samples of client {cut.name} are for {split}"
                raise DataError(f"{type(self).__name__}: {what}, but the data have such a part: omit division.")
        rest = torch.tensor([place for place, key in enumerate(keys) if key == "train"], dtype=torch.long)
        check_train({"train": rest}, cut, "leave the client out, or use another division")
        missing = [split for split in self._missing if cut.is_cut[split]]
        if cut.folds is not None and not missing:
            raise DataError(f"folds={cut.folds}: {type(self).__name__} already has val and test: leave folds out.")
        own: list[Split] = ["train", *(split for split in SPLITS[1:] if split not in missing)]
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

    def _note_missing(self, parts: list[str], place: str) -> list[str]:
        """Return the parts of all samples, and keep in mind which have none."""
        if "train" not in parts:
            raise DataError(f"{place} has no sample for training: check its values.")
        self._missing = [split for split in SPLITS if split not in parts]
        return parts


@checked_fields
class ColumnDivision(_GivenDivision):
    """Division by a column of the file with train, val or test, such as a published split.

    By default the values are ``train``, ``training``, ``val``, ``valid``, ``validation``, ``dev``, ``test`` and
    ``testing``, in any case. A part without any row is cut from every client's training samples by the shares of
    ``split``, or by fold: if the test samples are published, ``folds`` divides the others.

    Args:
        column: name of the column, read with ``dataset.column(name)``.
        train: its values for training samples; ``None`` for those above.
        val: its values for validation samples; ``None`` for those above.
        test: its values for test samples; ``None`` for those above.
        leave_out: its values for samples to leave unused; ``""`` for empty cells, if only some rows have a part.

    Example:
        >>> tdc = ColumnDivision(column="split", train=["train_val"])
    """

    column: str
    train: list[str] | None = None
    val: list[str] | None = None
    test: list[str] | None = None
    leave_out: list[str] | None = None

    def __post_init__(self) -> None:
        part_of: dict[str, str] = {}
        chosen = {"train": self.train, "val": self.val, "test": self.test, "": self.leave_out}
        for part, values in sorted(chosen.items(), key=lambda of: of[1] is None):  # given values before the usual ones
            for value in values or ([] if not part else [word for word, of in SPLIT_NAMES.items() if of == part]):
                word = str(value).strip().lower()
                if part_of.setdefault(word, part) != part and values is not None:
                    both = " and ".join(one or "leave_out" for one in (part_of[word], part))
                    raise ConfigurationError(f"ColumnDivision: the value {value!r} is in both {both}: give it once.")
        self._part_of = part_of

    def read(self, dataset: Dataset, identities: Sequence[str] | None) -> Sequence[str]:
        texts = read_texts(dataset, self.column, "ColumnDivision", gaps="" in self._part_of)
        if unknown := sorted({text for text in texts if text.lower() not in self._part_of}):
            values, known = listed(list(map(repr, unknown)), 10), listed(list(filter(None, self._part_of)))
            what = f"ColumnDivision.column={self.column!r} has unknown values {values}; known are {known}"
            raise DataError(f"{what}. Add the others to train, val, test or leave_out.")
        return self._note_missing([self._part_of[text.lower()] for text in texts], f"column {self.column!r}")


@checked_fields
class ListDivision(_GivenDivision):
    """Division by lists of identifiers in a file.

    Args:
        path: a YAML or JSON file, ``{train: [...], val: [...], test: [...]}``, or a table (``.csv``) with the columns
            ``id`` and ``split``. A missing part is cut from every client's training samples, as for
            :class:`ColumnDivision`.
        id_column: the column of the data with the identifiers; ``None`` for row numbers as in a spreadsheet (the header
            is row 1), or for sample numbers from 0 if the data have no rows.
        unlisted: ``"refuse"`` or ``"leave_out"`` samples that are not in the file.
    """

    path: str
    id_column: str | None = None
    unlisted: Literal["refuse", "leave_out"] = "refuse"

    def __post_init__(self) -> None:
        if not self.path.endswith((".yaml", ".yml", ".json", ".csv", ".csv.gz")):
            raise ConfigurationError(f"ListDivision.path={self.path!r}: must end in .yaml, .json or .csv.")

    def read(self, dataset: Dataset, identities: Sequence[str] | None) -> Sequence[str]:
        path = existing_file(self.path, "ListDivision.path")
        part_of = _read_lists(path)
        ids = read_texts(dataset, self.id_column, "ListDivision")
        what = "rows" if self.id_column is None else f"values of {self.id_column!r}"
        absent = sorted(set(ids) - set(part_of))
        if absent and (self.unlisted == "refuse" or len(absent) == len(set(ids))):
            count = f"{len(absent)} of the {what}, such as {listed(absent, 5)}"
            raise DataError(f"{path} lacks {count}: add them, give another id_column, or set unlisted: leave_out.")
        if spare := sorted(set(part_of) - set(ids)):
            rank_zero_warn(f"{path} has {len(spare)} entries that are not among the {what}: {listed(spare, 5)}.")
        return self._note_missing([part_of.get(name, "") for name in ids], str(path))


def _read_lists(path: Path) -> dict[str, str]:
    if path.name.endswith((".csv", ".csv.gz")):
        frame = read_text_table(path)
        require_columns(frame, ["id", "split"], str(path))
        if (empty := frame["id"].isna() | frame["split"].isna()).any():
            raise DataError(f"{path}: {int(empty.sum())} rows, the first {frame.index[empty][0]}, lack id or split.")
        pairs = list(zip(frame["id"], frame["split"], strict=True))
    else:
        content = read_yaml(path)
        lists = content if isinstance(content, Mapping) else {}
        if not lists or not all(isinstance(ids, list) for ids in lists.values()):
            raise ConfigurationError(f"{path}: must have lists of identifiers, {{train: [...], val: [...]}}.")
        pairs = [(str(name).strip(), str(part)) for part, ids in lists.items() for name in ids]
    part_of: dict[str, str] = {}
    for name, word in pairs:
        part = SPLIT_NAMES.get(word.strip().lower())
        if part is None:
            raise ConfigurationError(f"{path} has the part {shortened(repr(word))}: must be train, val or test.")
        if part_of.setdefault(name, part) != part:
            raise DataError(f"{path} has {shortened(repr(name))} in both {part_of[name]} and {part}: give it once.")
    return part_of
