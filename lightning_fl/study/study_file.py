"""Reader of ``STUDY.yaml`` (keys: docs/study.md). Reports all faults of a file at once."""

import itertools
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Interval

from lightning_fl.core.errors import ConfigurationError, did_you_mean
from lightning_fl.core.validation import faults_of
from lightning_fl.files.names import is_plain_name
from lightning_fl.files.yaml import read_yaml
from lightning_fl.recipe.file import flat_settings
from lightning_fl.study.claims import LABEL, STATISTICS, Claim, parse_claim
from lightning_fl.study.declaration import FULL, Arm, Chosen, Overrides, Published, Scale, Study, TableLayout

_KEYS = (*(one.name for one in fields(Study) if one.name != "path"), "definitions")
_MAX_NAME_LENGTH = 100
_Split = Literal["test", "val", "train"]
_Digits = Annotated[int, Interval(ge=0, le=10)]
#: Columns of ``results.csv`` other than the axes.
_COLUMNS = (
    *("arm", "seed", "status", *STATISTICS, "higher_is_better", "data_source"),
    *("rounds", "seconds", "commit", "run_folder", "failure", "log", "clients_with_gain"),
)
#: Settings that the study controls.
_RESERVED = (
    *("seed_everything", "trainer.seed", "ckpt_path", "config"),
    *("trainer.default_root_dir", "trainer.enable_progress_bar"),
)


def load_study(path: Path, scale: str | None = None) -> Study:
    """Read a study, at the given scale or else that of its file; one error reports all faults of the file."""
    content = read_yaml(path)
    if not isinstance(content, dict):
        kind = "empty" if content is None else f"a {type(content).__name__}"
        raise ConfigurationError(f"{path} is {kind}: a study is a mapping with the keys {', '.join(_KEYS)}.")
    reader = _Reader(path, content)
    study = reader.study(scale)
    if reader.faults:
        raise ConfigurationError("\n".join(f"{path}: {fault}" for fault in reader.faults))
    return study


class _Reader:
    """Parser that collects faults; after a fault its results are not usable."""

    def __init__(self, path: Path, content: dict[str, Any]) -> None:
        self.path, self.content, self.faults = path, content, list[str]()
        self.arms: dict[str, Arm] = {}
        self.grid: dict[str, dict[str, Overrides]] = {}

    def study(self, scale: str | None) -> Study:
        content = self.content
        self._known(content, _KEYS, "")
        for axis, labels in self._named("grid", required=False).items():
            values = self._labelled(labels, f"grid.{axis}")
            self.grid[axis] = {label: self._overrides(of, f"grid.{axis}.{label}") for label, of in values.items()}
            if axis in _COLUMNS:
                self.faults.append(f"grid.{axis}: results already have a column {axis}: rename the axis.")
        self.arms = {name: self._arm(name, value) for name, value in self._named("arms").items()}
        table = self._table(self._mapping("table"))
        scales = self._scales()
        chosen = scale or self._text("scale", FULL)
        if chosen not in scales:
            self.faults.append(f"scales: {_missing(chosen, scales, 'scale')}")
        split = str(content.get("split", "test"))
        self.faults += faults_of({"split": _Split}, {"split": split})
        study = Study(
            path=self.path,
            title=self._text("title"),
            metric=self._text("metric"),
            split=split,
            seeds=self._seeds(content.get("seeds"), "seeds"),
            arms=self.arms,
            grid=self.grid,
            cells=tuple(self._matches("cells")),
            exclude=tuple(self._matches("exclude")),
            overrides=self._overrides(content.get("overrides"), "overrides"),
            table=table,
            published=self._published(self._mapping("published"), table),
            claims=tuple(self._claims(table.percent)),
            scales=scales,
            scale=chosen,
            chosen=tuple(self._chosen(scales)),
        )
        if not self.faults and not any(study.places()):
            self.faults.append(f"scale {chosen} has no cells: check exclude and scales.{chosen}.")
        return study

    def _arm(self, name: str, value: object) -> Arm:
        entry = {"recipe": value} if isinstance(value, str) else value
        where = f"arms.{name}"
        if not isinstance(entry, dict) or not isinstance(entry.get("recipe"), str):
            self.faults.append(f"{where}: set a recipe, such as {name}: fedavg_digits, or the keys recipe, overrides.")
            return Arm("")
        self._known(entry, ("recipe", "overrides"), where)
        recipe = entry["recipe"]
        for axis in re.findall(r"\{(.*?)\}", recipe):
            if axis not in self.grid:
                self.faults.append(f"{where}.recipe={recipe!r}: {_missing(axis, self.grid, 'axis')}")
        # Relative to the study's file.
        if recipe.endswith((".yaml", ".yml")):
            recipe = os.path.abspath(self.path.parent / Path(recipe).expanduser())
        return Arm(recipe, self._overrides(entry.get("overrides"), f"{where}.overrides"))

    def _matches(self, section: str) -> Iterator[dict[str, Any]]:
        """Entries that name arms or labels; those of ``cells`` have overrides as well."""
        known = self._labels()
        for where, entry in self._entries(section, "name an arm or labels, such as {arm: fedavg}"):
            if section == "cells" and not self._overrides(entry.get("overrides"), f"{where}.overrides"):
                self.faults.append(f"{where}.overrides: set what these cells have, such as {{trainer.max_rounds: 20}}.")
            for key, label in entry.items():
                if key == "overrides" and section == "cells":
                    continue
                if key not in known:
                    self.faults.append(f"{where}.{key}: {_missing(str(key), known, 'axis')}")
                elif label not in known[key]:
                    self.faults.append(f"{where}.{key}={label!r}: {_missing(str(label), known[key], 'value')}")
            yield entry

    def _scales(self) -> dict[str, Scale]:
        scales = {FULL: Scale()}
        for name, entry in self._named("scales", required=False).items():
            where = f"scales.{name}"
            if not is_plain_name(name):
                self.faults.append(f"{where}: names a folder: use no / or : and no leading dot.")
            if name == FULL:
                self.faults.append(f"{where}: reserved for everything outside of scales: choose another name.")
            if not isinstance(entry, dict):
                self.faults.append(f"{where}: set at least one of seeds, arms, grid, overrides.")
                continue
            self._known(entry, ("seeds", "arms", "grid", "overrides"), where)
            seeds, arms = entry.get("seeds"), entry.get("arms")
            wanted = "list labels of axes, such as {data: [esol]}"
            grid = self._of(entry.get("grid"), dict, f"{where}.grid", wanted)
            grid = self._part(grid, self.grid, f"{where}.grid", "axis", wanted)
            scales[name] = Scale(
                seeds=None if seeds is None else self._seeds(seeds, f"{where}.seeds"),
                arms=None if arms is None else tuple(self._subset(arms, self.arms, f"{where}.arms", "arm")),
                grid={
                    axis: tuple(self._subset(labels, self.grid[axis], f"{where}.grid.{axis}", "value"))
                    for axis, labels in grid.items()
                },
                overrides=self._overrides(entry.get("overrides"), f"{where}.overrides"),
            )
        return scales

    def _overrides(self, value: object, where: str) -> Overrides:
        value = {} if value is None else value
        if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
            self.faults.append(f"{where}: must be settings of a recipe, such as {{trainer.max_rounds: 20}}.")
            return {}
        reserved = [key for key, _ in flat_settings(value) if key in _RESERVED]
        self.faults += [f"{where}: {key} is set by the study: remove it." for key in reserved]
        return value

    def _table(self, entry: dict[str, Any]) -> TableLayout:
        self._known(entry, ("rows", "columns", "statistics", "percent", "digits"), "table")
        parts = ["arm", *self.grid]
        rows = self._subset(entry.get("rows", ["arm"]), parts, "table.rows", "axis")
        rest = [part for part in parts if part not in rows]
        columns = self._subset(entry.get("columns", rest), parts, "table.columns", "axis", empty=True)
        for part in parts:
            places = rows.count(part) + columns.count(part)
            if places != 1 and rows:
                self.faults.append(f"table: {part} is listed {places} times: list it once in rows or columns.")
        shown = entry.get("statistics", ["mean", "worst"])
        statistics = self._subset(shown, STATISTICS, "table.statistics", "statistic")
        percent = self._of(entry.get("percent"), bool, "table.percent", "must be true or false")
        digits = entry.get("digits", 1 if percent else 3)
        self.faults += faults_of({"digits": _Digits}, {"digits": digits}, "table.")
        return TableLayout(tuple(rows), tuple(columns), tuple(statistics), percent, digits)

    def _published(self, entry: dict[str, Any], table: TableLayout) -> Published:
        if not entry:
            return Published()
        self._known(entry, ("source", "values"), "published")
        if not isinstance(entry.get("source"), str):
            self.faults.append("published.source: name the publication, such as 'Paper (2023), Table 1'.")
        labels = self._labels()
        rows, columns = (
            [", ".join(names) for names in itertools.product(*(labels.get(part, []) for part in parts))]
            for parts in (table.rows, table.columns)
        )
        wanted = "write {ROW: {COLUMN: {mean: 0.9}}}, or {ROW: {mean: 0.9}} without columns"
        values: dict[tuple[str, str, str], tuple[float, float | None]] = {}
        found = self._of(entry.get("values"), dict, "published.values", wanted)
        for row, of_row in self._part(found, rows, "published.values", "row", wanted).items():
            where = f"published.values.{row}"
            of_columns = self._part(of_row, columns, where, "column", wanted) if table.columns else {"": of_row}
            for column, cell in of_columns.items():
                place = f"{where}.{column}" if column else where
                for statistic, value in self._part(cell, table.statistics, place, "statistic", wanted).items():
                    numbers = value if isinstance(value, list) and len(value) == 2 else [value]
                    if all(isinstance(one, int | float) and not isinstance(one, bool) for one in numbers):
                        number, *spread = map(float, numbers)
                        values[row, column, statistic] = (number, spread[0] if spread else None)
                    else:
                        self.faults.append(f"{place}.{statistic}={value!r}: must be a number or [number, spread].")
        return Published(str(entry.get("source")), values)

    def _claims(self, percent: bool) -> Iterator[Claim]:
        grid = {axis: list(labels) for axis, labels in self.grid.items()}
        for where, text in self._entries("claims", "must be a text, such as 'mean(a) > mean(b)'", kind=str):
            try:
                yield parse_claim(text, list(self.arms), grid, percent)
            except ConfigurationError as error:
                self.faults.append(f"{where}: {error}")

    def _chosen(self, scales: Mapping[str, Scale]) -> Iterator[Chosen]:
        of_scales = [self.content.get("seeds"), *(scale.seeds for scale in scales.values())]
        own = {seed for seeds in of_scales if isinstance(seeds, list | tuple) for seed in seeds if type(seed) is int}
        for where, entry in self._entries("chosen", "must have setting, value, candidates, by and seeds"):
            self._known(entry, ("setting", "value", "candidates", "by", "seeds"), where)
            self.faults += [f"{where}.{key} is missing." for key in ("setting", "by") if not entry.get(key)]
            value, candidates, by = str(entry.get("value")), entry.get("candidates"), str(entry.get("by"))
            if not isinstance(candidates, list) or value not in map(str, candidates):
                self.faults.append(f"{where}.candidates: list all values tried, including the chosen {value}.")
                candidates = []
            if by.split("/")[0] == "test":
                self.faults.append(f"{where}.by={by!r}: settings must not be chosen on test data: use validation data.")
            seeds = self._seeds(entry.get("seeds"), f"{where}.seeds")
            if same := sorted(own.intersection(seeds)):
                self.faults.append(f"{where}.seeds: the study also runs {', '.join(map(str, same))}: choose on others.")
            yield Chosen(str(entry.get("setting")), value, tuple(map(str, candidates)), by, seeds)

    def _known(self, entry: Mapping[str, Any], known: Sequence[str], where: str) -> None:
        for key in entry:
            if key not in known:
                hint = did_you_mean(str(key), known) or f"; choose one of {', '.join(known)}"
                self.faults.append(f"{f'{where}.' if where else ''}{key}: unknown key{hint}.")

    def _text(self, key: str, default: str | None = None) -> str:
        value = self.content.get(key, default)
        if not isinstance(value, str) or not value.strip():
            self.faults.append(f"{key} {'is missing' if value is None else f'is {value!r}'}: set a text.")
            return ""
        return value.strip()

    def _of(self, value: object, kind: type[Any], where: str, wanted: str) -> Any:
        """The value, or an empty one for ``None`` and, with a fault, for another kind."""
        if value is not None and not isinstance(value, kind):
            self.faults.append(f"{where}={value!r}: {wanted}.")
        return value if isinstance(value, kind) else kind()

    def _part(
        self, value: object, known: Sequence[str] | Mapping[str, Any], where: str, kind: str, wanted: str
    ) -> dict[str, Any]:
        """The entries of a mapping that have a known name; the others are faults."""
        if not isinstance(value, dict):
            self.faults.append(f"{where}={value!r}: {wanted}.")
            return {}
        self.faults += [f"{where}.{name}: {_missing(str(name), known, kind)}" for name in value if name not in known]
        return {name: one for name, one in value.items() if name in known}

    def _mapping(self, key: str) -> dict[str, Any]:
        return self._of(self.content.get(key), dict, key, "expected a mapping")

    def _entries(self, key: str, wanted: str, kind: type[Any] = dict) -> Iterator[tuple[str, Any]]:
        """Place and value of the entries of a list, less those of another kind and empty ones."""
        for number, entry in enumerate(self._of(self.content.get(key), list, key, "expected a list")):
            if isinstance(entry, kind) and entry:
                yield f"{key}[{number}]", entry
            else:
                self.faults.append(f"{key}[{number}]={entry!r}: {wanted}.")

    def _labels(self) -> dict[str, list[str]]:
        """ "arm" and axes -> their labels."""
        return {"arm": list(self.arms), **{axis: list(of) for axis, of in self.grid.items()}}

    def _seeds(self, value: object, where: str) -> tuple[int, ...]:
        valid = isinstance(value, list) and all(type(seed) is int and 0 <= seed < 2**32 for seed in value)
        if not isinstance(value, list) or not value or not valid or len(set(value)) != len(value):
            got = "is missing" if value is None else f"is {value!r}"
            self.faults.append(f"{where} {got}: list different whole numbers from 0 to 2**32 - 1, such as [0, 1, 2].")
            return ()
        return tuple(value)

    def _named(self, key: str, required: bool = True) -> dict[str, Any]:
        entries = self._mapping(key)
        return self._labelled(entries, key) if entries or required else {}

    def _labelled(self, entries: object, where: str) -> dict[str, Any]:
        if not isinstance(entries, dict) or not entries:
            self.faults.append(f"{where}: must map names to values, such as {{small: {{...}}}}.")
            return {}
        valid = {}
        for name, value in entries.items():
            if isinstance(name, str) and LABEL.fullmatch(name) and len(name) <= _MAX_NAME_LENGTH:
                valid[name] = value
            else:
                wanted = f"at most {_MAX_NAME_LENGTH} letters, digits and _ . : + - / @, in quotes if they are a number"
                self.faults.append(f"{where}: {name!r} is not a name: use {wanted}.")
        return valid

    def _subset(
        self, value: object, known: Sequence[str] | Mapping[str, Any], where: str, kind: str, empty: bool = False
    ) -> list[str]:
        chosen, known = [value] if isinstance(value, str) else value, list(known)
        if not isinstance(chosen, list) or not (chosen or empty):
            self.faults.append(f"{where}={value!r}: list some of {', '.join(known)}.")
            return []
        self.faults += [f"{where}: {_missing(str(name), known, kind)}" for name in chosen if name not in known]
        return [str(name) for name in chosen if name in known]


def _missing(name: str, known: Sequence[str] | Mapping[str, Any], kind: str) -> str:
    hint = did_you_mean(name, list(known)) or f"; the study has {', '.join(known) or 'none'}"
    return f"unknown {kind} {name!r}{hint}."
