"""A finished run as it lies on the disk: its record, its settings, its curves. Nothing is trained, torch not needed."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from lightning_fl.cli.diagnosis import load_recipe
from lightning_fl.errors import CheckpointError, ConfigurationError

__all__ = ["FinishedRun", "RunMetric"]


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
            folder: of the run, or one that holds runs, of which the last finished one is read.

        Raises:
            ConfigurationError: there is no such folder, or no finished run in it.
            CheckpointError: its files are damaged.
        """
        path = Path(folder).expanduser()
        if not path.is_dir():
            raise ConfigurationError(f"{path} is not a folder: give a run's, such as runs/drflm_esol/version_0.")
        if not (path / "summary.json").is_file():
            return cls.read(_last_finished(path))
        try:
            summary = json.loads((path / "summary.json").read_text(encoding="utf-8"))
            complete = isinstance(summary["metrics"], dict) and isinstance(summary["data"], dict)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise CheckpointError(
                f"{path / 'summary.json'} is damaged ({type(error).__name__}: {error}): copy the run again, or repeat"
                " it."
            ) from error
        if not complete:
            raise CheckpointError(f"{path / 'summary.json'} is no run's record: copy the run again, or repeat it.")
        config = load_recipe(path / "config.yaml") if (path / "config.yaml").is_file() else {}
        return cls(path, summary, config)

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
        watching = ("Figure", "Figures", "Curves", "Checkpoint", "SaveConfig", "ProgressDisplay", "LocalReference")
        parts = [name for name in self.summary.get("callbacks", []) if not name.endswith(watching)]
        return " + ".join([self.summary["strategy"], *parts])

    @property
    def rounds(self) -> int | None:
        """Rounds trained; ``None`` of a run that only evaluated."""
        return self.summary.get("rounds")

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
            there = ", ".join(f"{name} ({other})" for other in self.splits() for name in self.metric_names(other))
            raise ConfigurationError(f"{self.folder} has no {split} metric {name!r}. It has {there or 'no metrics'}.")
        record = found[name]
        return RunMetric(
            name=name,
            **{part: _number(record.get(part)) for part in ("mean", "worst", "best", "std")},
            higher_is_better=bool(record["higher_is_better"]),
            clients={client: _number(value) for client, value in record["clients"].items()},
        )

    @cached_property
    def curves(self) -> pd.DataFrame:
        """What was logged by round: the column ``step`` (rounds done) and one for each curve; may be empty."""
        path = self.folder / "metrics.csv"
        if not path.is_file():
            return pd.DataFrame({"step": []})
        try:
            return pd.read_csv(path)
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{path} is damaged ({error}): copy the run again, or repeat it.") from error


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
    return max(runs, key=lambda path: int(path.name.removeprefix("version_")))


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)
