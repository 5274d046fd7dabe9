"""Reader of a finished run's record, recipe and curves. Imports no torch."""

import json
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from lightning_fl.core.client_names import default_names
from lightning_fl.core.errors import CheckpointError, ConfigurationError, did_you_mean, listed
from lightning_fl.core.escaping import printable_values
from lightning_fl.core.metrics import direction_is_known
from lightning_fl.files.names import run_versions
from lightning_fl.files.user_file import refuse_link_out
from lightning_fl.recipe.file import load_recipe

if TYPE_CHECKING:
    import pandas as pd

#: Callbacks that change no result: those with ``Callback.only_shows`` (importing them would import torch; a test
#: compares the two), ``LocalReference``, and ``SaveConfig`` of older versions.
ONLY_SHOW = frozenset(
    {
        *("Calibration", "CalibrationFigure", "CoalitionFigure", "CollaborationFigure", "ContributionFigure"),
        *("Figures", "ForestReference", "GainFigure", "GraphFigure", "GroupAgreement", "LastRounds", "LearningCurves"),
        *("LocalReference", "ParityFigure", "PrecisionRecallFigure", "ProgressDisplay", "ROCFigure"),
        *("SamplingWeightsFigure", "SaveConfig", "Snapshots", "TierFigures"),
    }
)

_NUMBER = int | float | None
#: Required fields of ``summary.json``, and optional ones.
_RECORD = {"metrics": dict, "data": dict, "data_source": str, "strategy": str, "seed": int, "client_names": list} | {
    **dict.fromkeys(("communication", "gains_over_local_training", "last_rounds"), dict | None),
    "callbacks": list | None,
    "num_models": int | None,
    "interrupted": bool | None,
    "rounds": int | None,
    "wall_time_seconds": _NUMBER,
}
_REMEDY = "copy the run again, or repeat it."


@dataclass(frozen=True)
class RunMetric:
    """One metric of a run over its clients, named without its split; non-finite values are NaN."""

    name: str
    mean: float
    worst: float
    best: float
    std: float
    higher_is_better: bool
    clients: dict[str, float]  #: those with a value; of very many, the worst hundred
    num_clients: int  #: those with a value
    percentiles: list[float] = field(default_factory=list)  #: of very many

    @property
    def sample(self) -> list[float]:
        """Values that have the distribution over clients: all, or the percentiles."""
        return self.percentiles or list(self.clients.values())

    @property
    def direction(self) -> bool | None:
        """Whether higher is better; ``None`` if unknown."""
        return self.higher_is_better if direction_is_known(self.name, self.higher_is_better) else None


@dataclass(frozen=True)
class FinishedRun:
    """A finished run."""

    folder: Path  #: the ``version_N`` folder
    summary: dict[str, Any] = field(repr=False)  #: content of ``summary.json``
    recipe: dict[str, Any] = field(repr=False)  #: the resolved ``config.yaml``; empty for a run started from Python

    @classmethod
    def read(cls, folder: str | Path) -> Self:
        """Read the run of a folder, or the last finished fit (else the last run) of the folders in it."""
        path = Path(folder).expanduser()
        if not path.is_dir():
            raise ConfigurationError(f"{path} is not a folder: name a run's folder, such as runs/drflm_esol/version_0.")
        if not (path / "summary.json").is_file():
            path = _last_finished(path)
        for name in ("summary.json", "config.yaml", "metrics.csv"):
            refuse_link_out(path / name, path)
        recipe = path / "config.yaml"
        exists = os.path.lexists(recipe)  # a broken link is refused by load_recipe
        return cls(path, _read_record(path / "summary.json"), load_recipe(recipe) if exists else {})

    @property
    def seed(self) -> int:
        return int(self.summary["seed"])

    @property
    def data_source(self) -> str:
        """Source of the data, such as "measured" or "stand-in"."""
        return str(self.summary["data_source"])

    @property
    def data(self) -> Mapping[str, Any]:
        """Description of the data, partition and split."""
        return self.summary["data"]

    @property
    def client_names(self) -> list[str]:
        return self.summary["client_names"] or list(default_names(self.summary["num_clients"]))

    @property
    def algorithm(self) -> str:
        """The strategy and the callbacks that change results: "FedAvg + DROClientSampling"."""
        parts = [name for name in self.summary.get("callbacks", []) if name not in ONLY_SHOW | {"ModelCheckpoint"}]
        return " + ".join([self.summary["strategy"], *parts])

    @property
    def rounds(self) -> int | None:
        """Rounds trained; ``None`` for an evaluation."""
        return self.summary.get("rounds")

    @property
    def interrupted(self) -> bool:
        return bool(self.summary.get("interrupted", False))

    @property
    def seconds(self) -> float | None:
        """Wall time of the training in seconds."""
        return self.summary.get("wall_time_seconds")

    def megabytes(self, direction: Literal["sent", "received"]) -> float:
        """Megabytes (10^6 bytes) of all clients; NaN if not counted."""
        return number_or_nan(self.summary.get("communication", {}).get(f"bytes_{direction}")) / 1e6

    def splits(self) -> list[str]:
        """Evaluated splits, test first."""
        return [split for split in ("test", "val", "train") if self.summary["metrics"].get(split)]

    def metric_names(self, split: str = "test") -> list[str]:
        """Names of a split's metrics, in the order of their logging."""
        return list(self.summary["metrics"].get(split, {}))

    def metric(self, name: str, split: str = "test") -> RunMetric:
        """One metric; a ConfigurationError if the run does not have it."""
        found = self.summary["metrics"].get(split, {})
        if name not in found:
            names = [f"{metric} ({other})" for other in self.splits() for metric in self.metric_names(other)]
            hint = f"{did_you_mean(name, found)}. It has {listed(names, near=f'{name} ({split})') or 'no metrics'}"
            raise ConfigurationError(f"{self.folder} has no {split} metric {name!r}{hint}.")
        record = found[name]
        clients = {client: number_or_nan(value) for client, value in record["clients"].items()}
        return RunMetric(
            name=name,
            **{part: number_or_nan(record.get(part)) for part in ("mean", "worst", "best", "std")},
            higher_is_better=bool(record["higher_is_better"]),
            clients=clients,
            num_clients=record.get("num_clients", sum(not math.isnan(value) for value in clients.values())),
            percentiles=record.get("percentiles", []),
        )

    def gains(self, name: str, split: str = "test") -> dict[str, float] | None:
        """Client's name -> gain over its local training; ``None`` without local models, or if not all are recorded."""
        found = self.summary.get("gains_over_local_training", {}).get(split, {}).get(name)
        if found is None or "percentiles" in found:
            return None
        return {client: number_or_nan(gain) for client, gain in found["clients"].items()}

    @cached_property
    def curves(self) -> "pd.DataFrame":
        """Content of ``metrics.csv``: ``step`` (rounds done) and a column per curve; may be empty."""
        import pandas as pd  # not imported for the other entries

        path = self.folder / "metrics.csv"
        if not os.path.lexists(path):
            return pd.DataFrame({"step": []})
        try:
            if not path.is_file():
                raise ValueError("not a file")
            curves = pd.read_csv(path)
            if "step" not in curves:
                raise ValueError("no column step")
            for name in curves.select_dtypes(exclude="number"):
                raise ValueError(f"column {str(name)[:40]!r} is not numeric")
        except (OSError, ValueError, OverflowError) as error:
            raise CheckpointError(f"{path} is damaged ({_reason(error)}): {_REMEDY}") from error
        return curves

    def curve(self, name: str, split: str = "val") -> "pd.DataFrame":
        """One metric by round: ``round``, ``mean``, ``worst`` and ``megabytes`` that all clients have exchanged so far.

        Values that were not logged are NaN; without the metric the frame is empty.
        """
        import pandas as pd

        curves = self.curves
        names = [f"{split}/{name}", f"{split}_{name}", *({name} & {*self.metric_names(split)})]  # else another split's
        column = next((found for found in names if found in curves), None)
        if column is None:
            return pd.DataFrame(columns=["round", "mean", "worst", "megabytes"], dtype=float)
        moved = [f"communication/megabytes_{direction}" for direction in ("sent", "received")]
        wanted = ["step", column, f"{column}/worst", *moved]
        # A logger may split a round over several rows; a test, which may use the same names, follows.
        by_round = curves.reindex(columns=wanted).groupby("step").first().dropna(subset=column).reset_index()
        frame = by_round.set_axis(["round", "mean", "worst", *moved], axis="columns").astype(float)
        return frame.assign(megabytes=frame[moved].sum(axis="columns", skipna=False)).drop(columns=moved)


def find_runs(folder: str | Path) -> list[FinishedRun]:
    """Read all fits with a record below a folder, interrupted ones included, in the order of their paths."""
    path = Path(folder).expanduser()
    if not path.is_dir():
        raise ConfigurationError(f"{path} is not a folder: name a folder with runs below it, such as runs.")
    found = [FinishedRun.read(file.parent) for file in sorted(path.rglob("summary.json"), key=_natural)]
    runs = [run for run in found if run.rounds is not None]
    if not runs:
        raise ConfigurationError(f"no finished run below {path}: there is no summary.json of lightning-fl fit.")
    return runs


def number_or_nan(value: float | None) -> float:
    """A number as JSON stores it, with ``None`` for NaN."""
    return math.nan if value is None else float(value)


def _natural(path: Path) -> list[tuple[int, str]]:
    """Sorts ``version_2`` before ``version_10``."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", path.as_posix())]


def _last_finished(folder: Path) -> Path:
    """The last finished fit below a folder, else its last run: evaluations and resumed fits have their own folders."""
    runs = [path for _, path in reversed(run_versions(folder)) if (path / "summary.json").is_file()]
    if not runs:
        last = folder / "checkpoints" / "last.ckpt"
        remedy = (
            f"finish it with lightning-fl fit --config {folder / 'config.yaml'} --ckpt_path {last}"
            if last.is_file() and (folder / "config.yaml").is_file()
            else "name the folder that lightning-fl fit printed"
        )
        raise ConfigurationError(f"{folder} has no finished run, summary.json is missing: {remedy}.")
    for path in runs:
        summary = _read_record(path / "summary.json")
        if "rounds" in summary and not summary.get("interrupted"):
            return path
    return runs[0]


def _read_record(path: Path) -> dict[str, Any]:
    """Read and check a ``summary.json``; raises CheckpointError if it is damaged."""
    try:
        summary = printable_values(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is damaged ({_reason(error)}): {_REMEDY}") from error
    if not isinstance(summary, dict):
        raise CheckpointError(f"{path} is not a run's record but a {type(summary).__name__}: {_REMEDY}")
    wrong = [key for key, kind in _RECORD.items() if not isinstance(summary.get(key), kind)]
    inner_of = dict.fromkeys(("metrics", "last_rounds"), "higher_is_better") | {"gains_over_local_training": "clients"}
    for key, inner in inner_of.items():
        if key not in wrong and not all(map(partial(_is_split, inner=inner), (summary.get(key) or {}).values())):
            wrong.append(key)
    if wrong:
        raise CheckpointError(f"{path} is not a run's record, {wrong[0]!r} is missing or has another type: {_REMEDY}")
    return summary


def _is_split(metrics: Any, inner: str) -> bool:
    """Whether this is a split's record: metric -> its statistics, including ``clients`` and ``inner``."""
    return isinstance(metrics, dict) and all(
        isinstance(metric, dict)
        and inner in metric
        and isinstance(metric.get("clients"), dict)
        and isinstance(metric.get("percentiles", []), list)
        and all(isinstance(value, _NUMBER) for value in [*metric["clients"].values(), *metric.get("percentiles", [])])
        and all(isinstance(metric.get(part), _NUMBER) for part in ("mean", "worst", "best", "std"))
        for metric in metrics.values()
    )


def _reason(error: Exception) -> str:
    if isinstance(error, OSError):
        return error.strerror or type(error).__name__
    return " ".join(str(error).removeprefix("Error tokenizing data. C error: ").split())
