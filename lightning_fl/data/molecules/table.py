"""Tables of molecules: SMILES, targets and other columns, read from a file and checked."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from lightning_fl.core.errors import ConfigurationError, DataError
from lightning_fl.core.validation import checked
from lightning_fl.data.cards.kinds import FileFormat, Transform
from lightning_fl.files.table_file import as_texts, read_table_file
from lightning_fl.files.text_table import read_numbers, refuse_values, require_columns, smiles_name

if TYPE_CHECKING:
    import pandas as pd

#: Part of a DrugOOD file, in the order of reading.
DrugOODPart = Literal["train", "iid_val", "iid_test", "ood_val", "ood_test"]
#: Treatment of SMILES that RDKit cannot read.
Invalid = Literal["refuse", "skip"]

#: Largest target, beyond which float32 cannot hold the sum of the squares of some thousands.
_LARGEST = 1e17
#: A bound; "at most" and "less" count as the same, as do "at least" and "more".
_RELATION = r"([<>≤≥])\s*=?\s*(?=[-+.\d])"


@dataclass(frozen=True)
class TargetTransform:
    """Transform applied to the values of a target: ``"log10"`` or ``"-log10"`` of ``factor`` times the values."""

    function: Transform
    factor: float = 1.0

    @property
    def sign(self) -> float:
        """Sign of the transform: "at most" becomes "at least" where it is negative."""
        return -1.0 if self.function.startswith("-") else 1.0

    def values(self, numbers: "pd.Series") -> "pd.Series":
        return self.sign * np.log10(self.factor * numbers)


@dataclass(frozen=True)
class MoleculeTable:
    """n molecules with T targets, as their source holds them."""

    smiles: list[str]  #: without surrounding blanks
    targets: Tensor  #: float32 [n, T]; NaN for a missing value
    target_names: list[str]
    target_units: list[str]
    columns: dict[str, list[str | None]]  #: every other column: name -> n texts, ``None`` for an empty cell
    #: Row numbers as a spreadsheet shows them: the header is row 1. (In a DrugOOD file: numbers of its records.)
    rows: list[int]
    place: str  #: source of the molecules, for messages
    bounds: Tensor | None = None  #: float32 [n, T]: 0 for a value, -1 for "at most", +1 for "at least"

    def take(self, places: Sequence[int]) -> "MoleculeTable":
        return replace(
            self,
            smiles=[self.smiles[place] for place in places],
            targets=self.targets[list(places)],
            bounds=None if self.bounds is None else self.bounds[list(places)],
            columns={name: [values[place] for place in places] for name, values in self.columns.items()},
            rows=[self.rows[place] for place in places],
        )


@checked
def read_table(
    path: Path,
    *,
    file_format: FileFormat = "csv",
    smiles: str,
    targets: Sequence[str] | None,
    units: Sequence[str] | str,
    required: Sequence[str] = (),
    parts: Sequence[DrugOODPart] | None = None,
    not_targets: Sequence[str] = (),
    select: Mapping[str, str] | None = None,
    censored: bool = False,
    transforms: Mapping[str, TargetTransform] | None = None,
    may_be_empty: bool = False,
) -> MoleculeTable:
    """Read a file of molecules.

    Args:
        path: the file.
        file_format: ``"csv"`` or ``"csv.gz"`` for any table that
            :func:`~lightning_fl.files.table_file.read_table_file` reads, or ``"drugood-json"``.
        smiles: column of SMILES, in any case; "smiles" also finds "canonical_smiles", "isomeric_smiles" and "smi".
        targets: columns to predict; ``None`` for all with a value except ``smiles``, ``required`` and ``not_targets``.
        units: units of the targets; one text for all where ``targets`` is ``None``.
        required: other columns that must exist.
        parts: parts of a DrugOOD file to read, in this order; ``None`` for all.
        not_targets: see ``targets``.
        select: column -> value that rows must have there.
        censored: allow bounds such as "> 99.5" as targets.
        transforms: target -> transform of its values.
        may_be_empty: allow targets without any value.
    """
    if targets is not None and (not targets or len(units) != len(targets)):
        given = f"targets={list(targets)!r}, units={list(units)!r}"
        raise ConfigurationError(f"{given}: name at least one target and one unit for each.")
    if file_format == "drugood-json":
        frame = _read_drugood(path, get_args(DrugOODPart) if parts is None else parts)
    elif parts is not None:
        raise ConfigurationError(f"parts={list(parts)!r}: a file of format {file_format} has no parts; omit it.")
    else:
        frame = read_table_file(path, smiles=smiles)
    smiles = smiles_name(frame.columns, smiles)
    require_columns(frame, (smiles, *(targets or ()), *required, *(select or {})), str(path))
    for column, value in (select or {}).items():
        known = sorted({str(other) for other in frame[column] if other is not None})
        require_columns(known, [value], f"{path}, column {column!r}", "value")
        frame = frame[frame[column] == value]
    if targets is None:
        others = {smiles, *required, *not_targets}
        targets = [str(name) for name in frame.columns if name not in others and frame[name].notna().any()]
        if not targets:
            raise DataError(f"{path} has no column with values to predict besides {', '.join(sorted(others))}.")
        units = [str(units)] * len(targets)
    read = [_read_target(frame[name], path, censored, (transforms or {}).get(name), may_be_empty) for name in targets]
    bounds = torch.stack([bound for _, bound in read], dim=1)
    return MoleculeTable(
        smiles=[value or "" for value in frame[smiles]],
        targets=torch.stack([numbers for numbers, _ in read], dim=1),
        bounds=bounds if bool(bounds.any()) else None,
        target_names=list(targets),
        target_units=list(units),
        columns={str(name): frame[name].tolist() for name in frame.columns if name not in (smiles, *targets)},
        rows=list(map(int, frame.index)),
        place=str(path),
    )


def _read_drugood(path: Path, parts: Sequence[str]) -> "pd.DataFrame":
    import pandas as pd  # takes a second to import

    if not parts or len(set(parts)) != len(parts):
        raise ConfigurationError(f"parts={list(parts)!r}: name at least one part, and each once.")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{path} cannot be read as JSON ({error}): check the file.") from error
    split = content.get("split") if isinstance(content, dict) else None
    if not isinstance(split, dict):
        raise DataError(f"{path} is not a DrugOOD file: expected an object with the key 'split'.")
    frames, first, before = [], {}, 0
    for part in get_args(DrugOODPart):  # numbers of records do not depend on the chosen parts
        first[part], before = before, before + len(split[part] if isinstance(split.get(part), list) else ())
    for part in parts:
        records = split.get(part)
        if not isinstance(records, list) or not all(isinstance(record, dict) for record in records):
            raise DataError(f"{path} has no list of records in split[{part!r}]; its parts are {', '.join(split)}.")
        frames.append(pd.DataFrame.from_records(records).assign(split=part))
        frames[-1].index += first[part] + 1
    frame = pd.concat([part for part in frames if len(part)] or frames)
    if frame.empty:
        raise DataError(f"{path} has no records in {', '.join(parts)}: check the file.")
    return as_texts(frame)


def _read_target(
    column: "pd.Series", path: Path, censored: bool, transform: TargetTransform | None, may_be_empty: bool
) -> tuple[Tensor, Tensor]:
    """Read a target column as numbers and bounds, both float32 ``[n]``."""
    place = f"{path}, target column {column.name!r}"
    bounds = torch.zeros(len(column))
    if censored:
        column, bounds = _split_bounds(column)
    numbers, wrong = read_numbers(column)
    remedy = "Correct them (classes are 0, 1, ...), or leave the cells empty for missing values"
    if not censored and wrong.astype(str).str.match(_RELATION).any():
        remedy += ", or set censored: true (for MoleculeModel, or a loss that reads batch.y_bound) to read bounds"
    refuse_values(wrong, place, "are not finite numbers", remedy)
    if transform is not None:
        wrong = column[numbers <= 0]
        refuse_values(wrong, place, f"are not above 0 and have no logarithm ({transform.function})", remedy)
        numbers, bounds = transform.values(numbers), bounds * transform.sign
    what = f"are above {_LARGEST:g}, where float32 cannot hold their squares"
    refuse_values(column[numbers.abs() > _LARGEST], place, what, "Choose a smaller unit")
    if numbers.isna().all() and not may_be_empty:
        raise DataError(f"{place} is empty: choose another column.")
    return torch.from_numpy(numbers.to_numpy(copy=True)).float(), bounds


def _split_bounds(column: "pd.Series") -> "tuple[pd.Series, Tensor]":
    """Strip "<" and ">" before numbers; return the cells, and -1 or +1 for each bound."""
    texts = column.astype(str).str
    signs = texts.extract(f"^{_RELATION}")[0].map({"<": -1.0, "≤": -1.0, ">": 1.0, "≥": 1.0})
    cells = column.where(signs.isna(), texts.replace(f"^{_RELATION}", "", regex=True))
    return cells, torch.from_numpy(signs.fillna(0.0).to_numpy(dtype=np.float32, copy=True))
