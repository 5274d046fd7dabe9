"""The cells of a study: one ``lightning-fl fit`` for each arm, place on the grid and seed, and how far each has come.

A cell has a folder of its own, named after what it is and a hash of everything that decides its result: recipe,
overrides, seed, package version, and the content of the files that these name. A declaration or file that changes makes
another cell, so that no result is taken for one of other settings; the folder's ``cell.json`` says what was hashed and
is written before the cell starts.
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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from lightning_fl.core.errors import CheckpointError, ConfigurationError
from lightning_fl.data.cards.catalogue import Card, available_cards, load_card
from lightning_fl.data.cards.lookup import file_sha256, find_file
from lightning_fl.files.atomic import write_whole
from lightning_fl.files.yaml import dump_yaml
from lightning_fl.recipe.file import load_recipe
from lightning_fl.recipe.shipped import find_recipe
from lightning_fl.study.declaration import Study
from lightning_fl.study.finished_run import FinishedRun
from lightning_fl.version import __version__

__all__ = ["Attempt", "Cell", "Variant", "cells_of"]

#: An arm at a place of the grid: what the seeds of a study share.
Variant = tuple[str, tuple[tuple[str, str], ...]]

_VERSION = re.compile(r"version_(\d+)$")
_TAIL_BYTES = 65_536
#: Of the words that a cell's folder begins with.
_MOST_BYTES = 180


@dataclass(frozen=True)
class Attempt:
    """One time that a cell was run.

    Args:
        started: seconds since 1970.
        resumed: whether it went on from a checkpoint.
        commit: of the package; empty where it is not run from a git checkout.
        seconds: that it took, start of the process to its end; ``None`` if it was cut off with the study.
        exit_code: of the process, negative for a signal; ``None`` if it was cut off with the study.
    """

    started: float
    resumed: bool
    commit: str = ""
    seconds: float | None = None
    exit_code: int | None = None


@dataclass(eq=False)
class Cell:
    """One run of a study.

    Args:
        arm: its arm.
        place: axis -> label.
        seed: its seed.
        folder: where it is run.
        split: whose metrics make it done.
        recipe: the recipe's file.
        layers: what changes the recipe, the later over the earlier.
        content: what decides the result, as ``cell.json`` keeps it.
    """

    arm: str
    place: dict[str, str]
    seed: int
    folder: Path
    split: str
    recipe: Path
    layers: list[dict[str, Any]]
    content: dict[str, Any]
    _run: FinishedRun | None = field(default=None, init=False, repr=False)

    @property
    def variant(self) -> Variant:
        """What it shares with the other seeds."""
        return self.arm, tuple(self.place.items())

    @property
    def name(self) -> str:
        """For people: "fedavg, data=esol, seed 3"."""
        return ", ".join([self.arm, *(f"{axis}={label}" for axis, label in self.place.items()), f"seed {self.seed}"])

    @property
    def log(self) -> Path:
        """What the run prints."""
        return self.folder / "log.txt"

    @property
    def accelerator(self) -> str:
        """``trainer.accelerator`` as its recipe and its layers set it; "auto" where none does."""
        found = "auto"
        for settings in (load_recipe(self.recipe), *self.layers):
            trainer = settings.get("trainer")
            if isinstance(trainer, dict):
                found = trainer.get("accelerator", found)
            found = settings.get("trainer.accelerator", found)
        return str(found)

    def words(self) -> list[str]:
        """The words after ``lightning-fl``; ``prepare`` has written the files that they name."""
        words = ["fit", "--config", str(self.recipe)]
        for number, layer in enumerate(self.layers):
            if _nested(layer):
                words += ["--config", str(self._override(number))]
            words += [f"--{key}={_word(value)}" for key, value in layer.items() if "." in key]
        words += ["--seed_everything", str(self.seed), "--trainer.default_root_dir", str(self.folder)]
        words += ["--trainer.enable_progress_bar", "false"]
        return [*words, "--ckpt_path", "last"] if self.resumable() else words

    def prepare(self) -> None:
        """Write what the run is made of, before it starts.

        Raises:
            ConfigurationError: the folder cannot be written, or holds a cell of other settings.
        """
        record = self.folder / "cell.json"
        if record.is_file() and _read_json(record) != self.content:
            raise ConfigurationError(f"{record} does not describe this cell: move {self.folder} away.")
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            for number, layer in enumerate(self.layers):
                if nested := _nested(layer):
                    write_whole(self._override(number), dump_yaml(nested))
            write_whole(record, json.dumps(self.content, indent=2, sort_keys=True) + "\n")
        except OSError as error:
            raise ConfigurationError(
                f"{self.folder} cannot be written: {error}. Free some space, or give another folder with --out."
            ) from error

    def _override(self, number: int) -> Path:
        return self.folder / f"override_{number}.yaml"

    def data_changed(self) -> bool:
        """Whether it was run before on other data: a folder beside its own differs in what files hold."""
        beside = self.folder.parent.glob(f"{glob.escape(self.folder.name.rpartition('-')[0])}-*/cell.json")
        for record in beside:
            found = _read_json(record)
            if (
                isinstance(found, dict)
                and found.get("files")
                and {**found, "files": self.content.get("files")} == self.content != found
            ):
                return True
        return False

    # -- how far it has come -------------------------------------------------------------------------------------

    def versions(self) -> list[Path]:
        """The folders of its runs, the latest last."""
        if not self.folder.is_dir():
            return []
        found = [(int(match[1]), path) for path in self.folder.iterdir() if (match := _VERSION.match(path.name))]
        return [path for _, path in sorted(found)]

    def finished(self) -> FinishedRun | None:
        """Its run, if one came to its end; it is read once."""
        if self._run is None:
            self._run = self._find_finished()
        return self._run

    def _find_finished(self) -> FinishedRun | None:
        record = self.folder / "cell.json"
        if not record.is_file() or _read_json(record) != self.content:
            return None
        for folder in reversed(self.versions()):
            if not (folder / "summary.json").is_file():
                continue
            try:
                run = FinishedRun.read(folder)
            except (CheckpointError, ConfigurationError):
                continue
            if run.metric_names(self.split) and not run.summary.get("interrupted") and run.seed == self.seed:
                return run
        return None

    def resumable(self) -> bool:
        """Whether there is a checkpoint to go on from."""
        return any((folder / "checkpoints" / "last.ckpt").is_file() for folder in self.versions())

    def rounds(self) -> int | None:
        """Rounds that the latest run has logged; ``None`` where it logs none."""
        for folder in reversed(self.versions()):
            path = folder / "metrics.csv"
            if path.is_file():
                return _last_step(path)
        return None

    # -- attempts ------------------------------------------------------------------------------------------------

    def attempts(self) -> list[Attempt]:
        """Every time that it was run."""
        path = self.folder / "attempts.jsonl"
        found: list[Attempt] = []
        for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else []:
            try:
                event = json.loads(line)
            except (ValueError, RecursionError):  # cut off while it was written
                continue
            if "exit_code" not in event:
                found.append(Attempt(**event))
            elif found:
                found[-1] = replace(found[-1], **event)
        return found

    def note_start(self, resumed: bool, commit: str) -> None:
        """Put down that it starts."""
        self._note({"started": time.time(), "resumed": resumed, "commit": commit})

    def note_end(self, seconds: float, exit_code: int) -> None:
        """Put down how it ended."""
        self._note({"seconds": round(seconds, 3), "exit_code": exit_code})

    def _note(self, event: dict[str, Any]) -> None:
        with (self.folder / "attempts.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(event) + "\n")

    def failure(self) -> str | None:
        """Why the last attempt failed, in a line; ``None`` if it did not."""
        attempts = self.attempts()
        code = attempts[-1].exit_code if attempts else None
        if code is None or self.finished() is not None:
            return None
        if code == 0:
            return f"the run came to its end without {self.split} metrics: see that its model has such a step"
        return _last_error(self.log, code)


def _last_step(path: Path) -> int:
    """The step of the last row, without reading the rows before it."""
    with path.open("rb") as file:
        header = next(csv.reader([file.readline().decode(errors="replace")]), [])
        end = file.seek(0, os.SEEK_END)
        file.seek(max(0, end - _TAIL_BYTES))
        rows = list(csv.reader(file.read().decode(errors="replace").splitlines()))
    last = rows[-1] if rows else []
    if "step" not in header or len(last) != len(header):  # being written at this moment
        return 0
    step = last[header.index("step")]
    return int(step) if step.isdigit() else 0


def cells_of(study: Study, out: Path) -> list[Cell]:
    """The cells of a study, in the order of its declaration, the seeds of one variant together.

    Args:
        study: the study.
        out: the study's folder.

    Raises:
        ConfigurationError: a recipe is not there or is no recipe.
    """
    cells = []
    sums: dict[tuple[str, str | None], str] = {}
    for arm, place in study.places():
        recipe = find_recipe(study.arms[arm].recipe.format(**place))
        layers = study.layers(arm, place)
        read = load_recipe(recipe)
        named = _texts_in([read, *layers])
        root = next((text for key, text in sorted(named) if key == "data_root"), None)
        names = sorted({text for key, text in named if key != "data_root"})
        files = {name: total for name in names if (total := _sum_of(name, out, root, sums))}
        for seed in study.run_seeds:
            content = _plain(
                {
                    "recipe": read,
                    "layers": layers,
                    "seed": seed,
                    "lightning-fl": __version__,
                    "arm": arm,
                    "place": place,
                    **({"files": files} if files else {}),
                }
            )
            digest = hashlib.blake2b(json.dumps(content, sort_keys=True).encode(), digest_size=5).hexdigest()
            parts = [arm, *(f"{axis}={label}" for axis, label in place.items())]
            words = ",".join(re.sub(r"[^A-Za-z0-9_.=+-]", "_", part) for part in parts)[:_MOST_BYTES]
            name = f"{words},seed={seed}-{digest}"
            cells.append(Cell(arm, place, seed, out.absolute() / "cells" / name, study.split, recipe, layers, content))
    return cells


def _texts_in(layers: Sequence[Mapping[str, Any]]) -> set[tuple[str, str]]:
    """The texts in settings of model, data and callbacks, which may name files, each after its key."""
    found = set()
    for layer in layers:
        trainer = layer.get("trainer")
        found |= _texts(trainer.get("callbacks") if isinstance(trainer, Mapping) else None)
        found |= _texts({key: of for key, of in layer.items() if key.startswith(("data", "model", "trainer.callb"))})
    return found


def _texts(value: object, key: str = "") -> set[tuple[str, str]]:
    if isinstance(value, Mapping):
        return set().union(*(_texts(part, str(name).rpartition(".")[2]) for name, part in value.items()))
    if isinstance(value, list):
        return set().union(*(_texts(part, key) for part in value))
    return {(key, value)} if isinstance(value, str) else set()


def _sum_of(name: str, out: Path, data_root: str | None, known: dict[tuple[str, str | None], str]) -> str:
    """What a file or a card's files hold, or which files of which sizes and times a folder; "" where there is nothing.

    A folder that the study writes into says nothing, nor do files that are as their card describes them.
    """
    key = (name, data_root)
    if key not in known:
        known[key] = ""
        with contextlib.suppress(OSError, ValueError, RuntimeError):  # a text that is no name, or nobody may read it
            path = Path(name).expanduser()
            if path.is_file():
                known[key] = file_sha256(path)
            elif path.is_dir() and not out.resolve().is_relative_to(path.resolve()):
                known[key] = _folder_sum(path)
            elif name in available_cards():
                known[key] = _card_sum(load_card(name), data_root)
    return known[key]


def _card_sum(card: Card, data_root: str | None) -> str:
    found = [find_file(card, file, data_root=data_root, allow_download=False) for file in card.files]
    return " ".join(file.sha256 for file in found if not file.verified)


def _folder_sum(folder: Path) -> str:
    """Sum of the names, sizes and times of change of the files in a folder, and below it."""
    states = [(str(path.relative_to(folder)), path.stat()) for path in sorted(folder.rglob("*")) if path.is_file()]
    listed = "".join(f"{name}\0{state.st_size}\0{state.st_mtime_ns}\n" for name, state in states)
    return hashlib.sha256(listed.encode(errors="surrogateescape")).hexdigest()


def _plain(content: Mapping[str, Any]) -> dict[str, Any]:
    """As JSON gives it back, so that what was written compares with what is declared (dates become text)."""
    plain: dict[str, Any] = json.loads(json.dumps(content, default=str))
    return plain


def _read_json(path: Path) -> object:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None


def _nested(layer: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a layer that are nested as in a recipe; those by dotted key become words."""
    return {key: value for key, value in layer.items() if "." not in key}


def _word(value: object) -> str:
    """A value as the command line takes it: YAML in one line."""
    if isinstance(value, str):
        return value
    return json.dumps(value)


def _last_error(log: Path, exit_code: int) -> str:
    """The line of a log that says most about a failure."""
    if exit_code < 0:
        return f"killed by {signal.Signals(-exit_code).name}"
    try:
        lines = [
            line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()
        ]
    except OSError:
        lines = []
    said = [line for line in lines if line.startswith("error: ")]
    return (said or lines or [f"exit code {exit_code}"])[-1].removeprefix("error: ")
