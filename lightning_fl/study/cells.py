"""Cells of a study: one ``lightning-fl fit`` for each arm, place on the grid and seed.

A cell's folder is named after the cell and a hash of everything that determines its result: recipe, overrides, seed,
package version, and the content of the files that these name. A changed declaration or file therefore makes another
cell. ``cell.json`` holds what was hashed; it is written before the cell starts.
"""

import contextlib
import csv
import glob
import hashlib
import json
import os
import re
import signal
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from lightning_fl.core.errors import CheckpointError, ConfigurationError
from lightning_fl.data.cards.lookup import available_cards, file_sha256, find_file, load_card
from lightning_fl.data.source import STAND_IN
from lightning_fl.files.atomic import write_whole
from lightning_fl.files.names import run_versions
from lightning_fl.files.yaml import dump_yaml
from lightning_fl.recipe.file import flat_settings, load_recipe
from lightning_fl.recipe.shipped import find_recipe
from lightning_fl.study.claims import cell_name
from lightning_fl.study.declaration import Study
from lightning_fl.study.finished_run import FinishedRun
from lightning_fl.version import __version__

#: An arm at a place of the grid; its cells differ in the seed only.
Variant = tuple[str, tuple[tuple[str, str], ...]]

#: Longest name of an arm and place in a folder's name.
_MAX_NAME_LENGTH = 180
#: Beginnings of the settings whose texts may name files.
_NAMES_FILES = ("data", "model", "trainer.callbacks")
#: Import path of a class that is not the package's.
_OWN_CLASS = re.compile(r"(?!lightning_fl\.)[^\W\d]\w*(\.[^\W\d]\w*)+")


@dataclass(eq=False)
class Cell:
    """One run of a study, done when it has metrics of ``split``."""

    arm: str
    place: dict[str, str]  #: axis -> label
    seed: int
    folder: Path
    split: str
    recipe: Path  #: its file
    layers: list[dict[str, Any]]  #: overrides of the recipe; later ones win
    content: dict[str, Any]  #: of ``cell.json``
    may_stand_in: bool = True  #: whether its data may be a stand-in: wanted, or the measured ones are not there
    lock: FileLock = field(init=False, repr=False)  #: held by the process that runs it
    _run: FinishedRun | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        self.lock = FileLock(self.folder / ".lock", timeout=0)

    @property
    def variant(self) -> Variant:
        """Arm and place, which the other seeds share."""
        return self.arm, tuple(self.place.items())

    @property
    def name(self) -> str:
        return cell_name(self.arm, self.place, self.seed)

    @property
    def log(self) -> Path:
        return self.folder / "log.txt"

    @property
    def accelerator(self) -> str:
        """``trainer.accelerator`` of its recipe and layers; "auto" if not set."""
        settings = [setting for layer in (self.content["recipe"], *self.layers) for setting in flat_settings(layer)]
        return str(dict(settings).get("trainer.accelerator", "auto"))

    def arguments(self) -> list[str]:
        """Command-line arguments of ``lightning-fl``; :meth:`prepare` writes the files that they name."""
        arguments = ["fit", "--config", str(self.recipe)]
        for number in range(len(self.layers)):
            arguments += ["--config", str(self._override(number))]
        seed = str(self.seed)
        arguments += ["--seed_everything", seed, "--trainer.seed", seed, "--trainer.default_root_dir", str(self.folder)]
        arguments += ["--trainer.enable_progress_bar", "false"]
        return [*arguments, "--ckpt_path", "last"] if self.resumable() else arguments

    def prepare(self) -> None:
        """Write the cell's files before it starts, unless its folder belongs to a cell with other settings."""
        record = self.folder / "cell.json"
        if record.is_file() and _read_json(record) != self.content:
            raise ConfigurationError(f"{record} describes another cell: move {self.folder} away.")
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            for number, layer in enumerate(self.layers):
                write_whole(self._override(number), dump_yaml(layer))
            write_whole(record, json.dumps(self.content, indent=2, sort_keys=True) + "\n")
        except OSError as error:
            raise ConfigurationError(f"{self.folder} cannot be written: {error}; choose another --out.") from error

    def claim(self) -> bool:
        """Reserve an unfinished cell until ``lock`` is released or the process ends; ``False`` if impossible."""
        if self.finished() is not None:
            return False
        self.prepare()
        try:
            self.lock.acquire()
        except Timeout:
            return False
        if self.finished() is None:
            return True
        self.lock.release()
        return False

    def _override(self, number: int) -> Path:
        return self.folder / f"override_{number}.yaml"

    def ran_on_other_data(self) -> bool:
        """Whether a sibling folder holds the same cell with other file contents."""
        siblings = self.folder.parent.glob(f"{glob.escape(self.folder.name.rpartition('-')[0])}-*/cell.json")
        found = (one for one in map(_read_json, siblings) if isinstance(one, dict) and one.get("files"))
        return any({**one, "files": self.content.get("files")} == self.content != one for one in found)

    def versions(self) -> list[Path]:
        """Folders of its runs, the latest last; none on a stand-in of data that are there by now."""
        found = [path for _, path in run_versions(self.folder)]
        return [path for path in found if self.may_stand_in or not _stands_in(path)]

    def finished(self) -> FinishedRun | None:
        """Its finished run, if there is one; read once."""
        if self._run is None and _read_json(self.folder / "cell.json") == self.content:
            for folder in self.versions():
                with contextlib.suppress(CheckpointError, ConfigurationError):
                    run = FinishedRun.read(folder)
                    if run.metric_names(self.split) and not run.interrupted and run.seed == self.seed:
                        self._run = run
        return self._run

    def resumable(self) -> bool:
        return any((folder / "checkpoints" / "last.ckpt").is_file() for folder in self.versions())

    def rounds(self) -> int | None:
        """Rounds that the latest run has logged; ``None`` before the first."""
        path = next((path for folder in reversed(self.versions()) if (path := folder / "metrics.csv").is_file()), None)
        if path is None:
            return None
        with path.open("rb") as file:
            header = file.readline()
            # Of each column, a row has at most 25 bytes and the header at least two.
            file.seek(max(len(header), file.seek(0, os.SEEK_END) - 16 * len(header)))
            last = file.read().splitlines()[-1:]
        rows = list(csv.DictReader(line.decode(errors="replace") for line in (header, *last)))
        step = (rows[0].get("step") or "") if rows else ""
        return int(step) if step.isdigit() else 0

    def attempts(self) -> list[dict[str, Any]]:
        """All executions so far, in order, as the arguments of :meth:`record_start` and then of :meth:`record_end`.

        One that the study was killed with has no end.
        """
        path = self.folder / "attempts.jsonl"
        found: list[dict[str, Any]] = []
        for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else []:
            try:
                event = json.loads(line)
            except (ValueError, RecursionError):  # truncated by a kill
                continue
            if "exit_code" not in event:
                found.append(event)
            elif found:
                found[-1] |= event
        return found

    def record_start(self, resumed: bool, commit: str) -> None:
        self._record({"started": time.time(), "resumed": resumed, "commit": commit})

    def record_end(self, seconds: float, exit_code: int) -> None:
        """Record the end of an attempt: its wall time, and its exit code, negative for a signal."""
        self._record({"seconds": round(seconds, 3), "exit_code": exit_code})

    def _record(self, event: dict[str, Any]) -> None:
        with (self.folder / "attempts.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(event) + "\n")

    def failure(self) -> str | None:
        """Reason why the last attempt failed: the last error message of its log, else its last line.

        ``None`` if it did not fail.
        """
        attempts = self.attempts()
        code = attempts[-1].get("exit_code") if attempts else None
        if code is None or self.finished() is not None:
            return None
        if code == 0:
            return f"no {self.split} metrics: the model needs a {self.split} step, and its clients {self.split} data."
        if code < 0:
            return f"killed by {signal.Signals(-code).name}"
        text = self.log.read_text(encoding="utf-8", errors="replace") if self.log.is_file() else ""
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        errors = [line for line in lines if line.startswith("error: ")]
        return (errors or lines or [f"exit code {code}"])[-1].removeprefix("error: ")


def make_cells(study: Study, out: Path) -> list[Cell]:
    """Create the cells of a study in the order of its declaration, the seeds of one variant together."""
    cells, checksum = [], cache(partial(_checksum, out))
    for arm, place in study.places():
        name = study.arms[arm].recipe
        for axis, label in place.items():
            name = name.replace(f"{{{axis}}}", label)
        try:
            recipe = find_recipe(name)
        except ConfigurationError as error:
            raise ConfigurationError(f"{study.path}, arms.{arm}: {error}") from None
        layers = study.layers(arm, place)
        settings = load_recipe(recipe)
        texts = {(path, text) for layer in (settings, *layers) for path, text in _texts(layer)}
        by_key = {(path.rpartition(".")[2], text) for path, text in texts if path.startswith(_NAMES_FILES)}
        root = next((text for key, text in sorted(by_key) if key == "data_root"), None)
        names = {text for key, text in by_key if key != "data_root"}
        classes = {text for _, text in texts if _OWN_CLASS.fullmatch(text) and not checksum(text, root)}
        modules = {text.rpartition(".")[0].replace(".", "/") + ".py" for text in classes}
        files = {name: found for name in sorted(names | modules) if (found := checksum(name, root))}
        cards = [name for name in names if name in available_cards() and load_card(name).files]
        are_here = [checksum(name, root) is not None for name in cards]
        may_stand_in = ("source", "standin") in by_key or not are_here or not all(are_here)
        for seed in study.run_seeds:
            content = {
                "recipe": settings,
                "layers": layers,
                "seed": seed,
                "lightning-fl": __version__,
                "arm": arm,
                "place": place,
                **({"files": files} if files else {}),
            }
            content = json.loads(json.dumps(content, default=str))  # comparable with what cell.json holds
            digest = hashlib.blake2b(json.dumps(content, sort_keys=True).encode(), digest_size=5).hexdigest()
            parts = [arm, *(f"{axis}={label}" for axis, label in place.items())]
            prefix = ",".join(re.sub(r"[^A-Za-z0-9_.=+-]", "_", part) for part in parts)[:_MAX_NAME_LENGTH]
            folder = out.absolute() / "cells" / f"{prefix},seed={seed}-{digest}"
            cells.append(Cell(arm, place, seed, folder, study.split, recipe, layers, content, may_stand_in))
    return cells


def _texts(value: object, path: str = "") -> Iterator[tuple[str, str]]:
    """Dotted path and text of all texts in a layer; those of a list have its path."""
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, list):
        yield from (found for item in value for found in _texts(item, path))
    elif isinstance(value, Mapping):
        yield from (found for key, item in value.items() for found in _texts(item, f"{path}.{key}".lstrip(".")))


def _stands_in(run: Path) -> bool:
    summary, splits = (_read_json(run / name) for name in ("summary.json", "splits.json"))
    if isinstance(summary, dict):
        return summary.get("data_source") == STAND_IN
    return isinstance(splits, dict) and splits.get("files") == []  # of a run that was killed


def _checksum(out: Path, name: str, data_root: str | None) -> str | None:
    """Checksum of a file, folder (names, sizes, times) or data card; "" if there is none, ``None`` without its data.

    Folders that contain ``out`` and files that match their card's checksum have none.
    """
    with contextlib.suppress(OSError, ValueError, RuntimeError):  # not a file name, or not readable
        path = Path(name).expanduser()
        if path.is_file():
            return file_sha256(path)
        if path.is_dir() and not out.resolve().is_relative_to(path.resolve()):
            states = [(str(file.relative_to(path)), file.stat()) for file in sorted(path.rglob("*")) if file.is_file()]
            listing = "".join(f"{name}\0{state.st_size}\0{state.st_mtime_ns}\n" for name, state in states)
            return hashlib.sha256(listing.encode(errors="surrogateescape")).hexdigest()
    if name not in available_cards():
        return ""
    with contextlib.suppress(OSError, ValueError, RuntimeError):
        card = load_card(name)
        found = [find_file(card, file, data_root=data_root, allow_download=False) for file in card.files]
        return " ".join(file.sha256 for file in found if not file.verified)
    return None


def _read_json(path: Path) -> object:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
