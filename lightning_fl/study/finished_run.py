"""A finished run as it lies on the disk: its record, its settings, its curves. Nothing is trained, torch not needed."""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import pandas as pd

from lightning_fl.core.errors import CheckpointError, ConfigurationError, did_you_mean, listed
from lightning_fl.core.escaping import printable_values
from lightning_fl.files.user_file import refuse_link_out
from lightning_fl.recipe.file import load_recipe

__all__ = ["WATCHING", "FinishedRun", "RunMetric", "find_runs"]

#: Ends of the names of callbacks that change no result: those that draw, show and measure.
WATCHING = ("Figure", "Figures", "Curves", "SaveConfig", "ProgressDisplay", "LocalReference")

#: What a run's record holds at least, and what else is read of it.
_RECORD = {"metrics": dict, "data": dict, "data_source": str, "strategy": str, "seed": int, "client_names": list}
_MORE = {
    "callbacks": list,
    "communication": dict,
    "gains_over_local_training": dict,
    "last_rounds": dict,
    "interrupted": bool,
    "rounds": int,
    "wall_time_seconds": int | float,
}
_NUMBER = int | float | None
_MEND = "copy the run again, or repeat it."


@dataclass(frozen=True)
class RunMetric:
    """One metric of a run over its clients, as ``summary.json`` has it.

    Args:
        name: without its split: "acc".
        mean: over clients, NaN where it was not finite; ``worst``, ``best`` and ``std`` alike.
        clients: client's name -> value.
    """

    name: str
    mean: float
    worst: float
    best: float
    std: float
    higher_is_better: bool
    clients: dict[str, float]


@dataclass(frozen=True)
class FinishedRun:
    """A run's folder, read.

    Args:
        folder: the ``version_N`` folder.
        summary: ``summary.json``.
        config: the resolved recipe; empty for a run that was started from Python.
    """

    folder: Path
    summary: dict[str, Any] = field(repr=False)
    config: dict[str, Any] = field(repr=False)

    @classmethod
    def read(cls, folder: str | Path) -> "FinishedRun":
        """Read a run.

        Args:
            folder: of the run, or one that holds runs, of which the last fit that ended is read, else the last run.

        Raises:
            ConfigurationError: there is no such folder, or no finished run in it.
            CheckpointError: its files are damaged.
        """
        path = Path(folder).expanduser()
        if not path.is_dir():
            raise ConfigurationError(f"{path} is not a folder: give a run's, such as runs/drflm_esol/version_0.")
        if not (path / "summary.json").is_file():
            return cls.read(_last_finished(path))
        for name in ("summary.json", "config.yaml", "metrics.csv"):
            refuse_link_out(path / name, path)
        recipe = path / "config.yaml"
        is_there = recipe.exists() or recipe.is_symlink()  # whatever it is: reading says what is wrong with it
        return cls(path, _read_record(path / "summary.json"), load_recipe(recipe) if is_there else {})

    @property
    def seed(self) -> int:
        """The run's seed."""
        return int(self.summary["seed"])

    @property
    def data_source(self) -> str:
        """ "measured", "stand-in" or what else the data say of themselves."""
        return str(self.summary["data_source"])

    @property
    def data(self) -> Mapping[str, Any]:
        """What the data module said of the data, partition and split included."""
        return self.summary["data"]

    @property
    def clients(self) -> list[str]:
        """The clients' names, in their order."""
        return list(self.summary["client_names"])

    @property
    def algorithm(self) -> str:
        """The strategy and the callbacks that take part in the algorithm: "FedAvg + DROClientSampling"."""
        aside = (*WATCHING, "Checkpoint")
        parts = [name for name in self.summary.get("callbacks", []) if not name.endswith(aside)]
        return " + ".join([self.summary["strategy"], *parts])

    @property
    def rounds(self) -> int | None:
        """Rounds trained; ``None`` of a run that only evaluated."""
        return self.summary.get("rounds")

    @property
    def interrupted(self) -> bool:
        """Whether the training was stopped before its last round."""
        return bool(self.summary.get("interrupted", False))

    @property
    def seconds(self) -> float | None:
        """Wall time of the training."""
        return self.summary.get("wall_time_seconds")

    @property
    def bytes_sent(self) -> int | None:
        """What all clients sent over the run, in bytes; ``None`` where the run did not count it."""
        return self.summary.get("communication", {}).get("bytes_sent")

    @property
    def bytes_received(self) -> int | None:
        """What all clients received over the run, in bytes; ``None`` where the run did not count it."""
        return self.summary.get("communication", {}).get("bytes_received")

    def splits(self) -> list[str]:
        """The splits that were evaluated, test first."""
        return [split for split in ("test", "val", "train") if self.summary["metrics"].get(split)]

    def metric_names(self, split: str = "test") -> list[str]:
        """The metrics of a split, in the order in which they were logged."""
        return list(self.summary["metrics"].get(split, {}))

    def metric(self, name: str, split: str = "test") -> RunMetric:
        """One metric.

        Raises:
            ConfigurationError: the run does not have it; the message names those that it has.
        """
        found = self.summary["metrics"].get(split, {})
        if name not in found:
            there = [f"{known} ({other})" for other in self.splits() for known in self.metric_names(other)]
            raise ConfigurationError(
                f"{self.folder} has no {split} metric {name!r}{did_you_mean(name, found)}. It has"
                f" {listed(there, near=f'{name} ({split})') or 'no metrics'}."
            )
        record = found[name]
        return RunMetric(
            name=name,
            **{part: _number(record.get(part)) for part in ("mean", "worst", "best", "std")},
            higher_is_better=bool(record["higher_is_better"]),
            clients={client: _number(value) for client, value in record["clients"].items()},
        )

    def gains(self, name: str, split: str = "test") -> dict[str, float] | None:
        """Client's name -> gain over its own local training; ``None`` where the run trained no local models."""
        found = self.summary.get("gains_over_local_training", {}).get(split, {}).get(name)
        return None if found is None else {client: _number(gain) for client, gain in found["clients"].items()}

    @cached_property
    def curves(self) -> pd.DataFrame:
        """What was logged by round: the column ``step`` (rounds done) and one for each curve; may be empty."""
        path = self.folder / "metrics.csv"
        if not (path.exists() or path.is_symlink()):
            return pd.DataFrame({"step": []})
        try:
            if not path.is_file():
                raise ValueError("it is no file")
            curves = pd.read_csv(path)
            if "step" not in curves:
                raise ValueError("it has no column step")
            strange = [name for name in map(str, curves) if not pd.api.types.is_numeric_dtype(curves[name])]
            if strange:
                raise ValueError(f"not all in its column {strange[0][:40]!r} are numbers")
        except (OSError, ValueError, OverflowError) as error:
            raise CheckpointError(f"{path} is damaged ({_reason(error)}): {_MEND}") from error
        return curves

    def curve(self, name: str, split: str = "val") -> pd.DataFrame:
        """One metric by round: ``round``, ``mean``, ``worst`` (NaN where not logged) and ``megabytes``.

        ``megabytes`` is what all clients had sent and received by then; NaN where the run did not count it. The frame
        is empty if the metric was not logged.
        """
        curves = self.curves
        column = next((found for found in (f"{split}/{name}", f"{split}_{name}", name) if found in curves), None)
        if column is None:
            return pd.DataFrame(columns=["round", "mean", "worst", "megabytes"], dtype=float)

        def by_round(name: str) -> pd.Series:
            # A logger may write several rows for one round, each with a part of the columns.
            return curves.groupby("step")[name].last() if name in curves else pd.Series(dtype=float)

        mean = by_round(column).dropna()
        moved = by_round("communication/megabytes_sent").add(by_round("communication/megabytes_received"))
        worst = by_round(f"{column}/worst").reindex(mean.index)
        frame = {"round": mean.index, "mean": mean, "worst": worst, "megabytes": moved.reindex(mean.index)}
        return pd.DataFrame(frame).astype(float).reset_index(drop=True)


def find_runs(folder: str | Path) -> list[FinishedRun]:
    """All fits below a folder that have a record, in the order of their paths; the interrupted ones among them.

    Args:
        folder: of a run, or one with runs at any depth below it.

    Raises:
        ConfigurationError: there is no such folder, or no finished run below it.
        CheckpointError: a run's files are damaged.
    """
    path = Path(folder).expanduser()
    if not path.is_dir():
        raise ConfigurationError(f"{path} is not a folder: give one with runs below it, such as runs.")
    found = [FinishedRun.read(file.parent) for file in sorted(path.rglob("summary.json"), key=_natural)]
    runs = [run for run in found if run.rounds is not None]
    if not runs:
        raise ConfigurationError(
            f"there is no finished run of lightning-fl fit below {path}: give a folder that holds one, with its"
            " summary.json."
        )
    return runs


def _natural(path: Path) -> list[tuple[int, str]]:
    """Sorts ``version_2`` before ``version_10``."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", path.as_posix())]


def _last_finished(folder: Path) -> Path:
    runs = [path for path in folder.glob("version_*") if (path / "summary.json").is_file()]
    if not runs:
        last = folder / "checkpoints" / "last.ckpt"
        mend = (
            f"end it with lightning-fl fit --config {folder / 'config.yaml'} --ckpt_path {last}"
            if last.is_file() and (folder / "config.yaml").is_file()
            else "give the folder that lightning-fl fit named"
        )
        raise ConfigurationError(f"{folder} holds no finished run, there is no summary.json: {mend}.")
    runs.sort(key=_natural, reverse=True)
    # An evaluation of a fit stands in a folder of its own beside it, a fit that goes on after an interrupt likewise.
    return next((path for path in runs if _is_finished_fit(path)), runs[0])


def _is_finished_fit(folder: Path) -> bool:
    try:
        summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
        return "rounds" in summary and not summary.get("interrupted", False)
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        return True  # damaged: reading it says so


def _read_record(path: Path) -> dict[str, Any]:
    """``summary.json`` of a run."""
    try:
        summary = printable_values(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is damaged ({_reason(error)}): {_MEND}") from error
    if not isinstance(summary, dict):
        raise CheckpointError(f"{path} is no run's record, but a {type(summary).__name__}: {_MEND}")
    wrong = [key for key, kind in _RECORD.items() if not isinstance(summary.get(key), kind)]
    wrong += [key for key, kind in _MORE.items() if not isinstance(summary.get(key), kind | None)]
    inner_of = dict.fromkeys(("metrics", "last_rounds"), "higher_is_better") | {"gains_over_local_training": "clients"}
    for key, inner in inner_of.items():
        if key not in wrong and not all(map(partial(_is_split, inner=inner), (summary.get(key) or {}).values())):
            wrong.append(key)
    if wrong:
        raise CheckpointError(f"{path} is no run's record, {wrong[0]!r} in it is missing or of another kind: {_MEND}")
    return summary


def _is_split(metrics: Any, inner: str) -> bool:
    """Whether this is what a record says of a split: metric -> its figures, those of the clients among them."""
    return isinstance(metrics, dict) and all(
        isinstance(metric, dict)
        and inner in metric
        and isinstance(metric.get("clients"), dict)
        and all(isinstance(value, _NUMBER) for value in metric["clients"].values())
        and all(isinstance(metric.get(part), _NUMBER) for part in ("mean", "worst", "best", "std"))
        for metric in metrics.values()
    )


def _reason(error: Exception) -> str:
    """Why a file is not read, without the words of the parser's inside."""
    if isinstance(error, UnicodeDecodeError):
        return "it is no text in UTF-8"
    if isinstance(error, json.JSONDecodeError):
        return f"not JSON from line {error.lineno}, column {error.colno}"
    if isinstance(error, RecursionError):
        return "its lists lie too deep in each other"
    if isinstance(error, OSError):
        return error.strerror or type(error).__name__
    return " ".join(str(error).removeprefix("Error tokenizing data. C error: ").split())


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)
