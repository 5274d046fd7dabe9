"""Results of a study: statistics of every cell, answers to the claims, and the environment."""

import csv
import io
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, cast, get_args

from lightning_fl.core.errors import CheckpointError, ConfigurationError, listed
from lightning_fl.core.escaping import csv_text, csv_value
from lightning_fl.files.atomic import write_whole
from lightning_fl.files.yaml import dump_yaml
from lightning_fl.study.cells import Cell
from lightning_fl.study.claims import STATISTICS, Answer, answer_claim, cell_name, correct_answers
from lightning_fl.study.declaration import Study
from lightning_fl.study.finished_run import number_or_nan
from lightning_fl.study.study_file import load_study
from lightning_fl.version import __version__

#: "cut off": started but not finished; "open": not started.
Status = Literal["done", "failed", "cut off", "open"]

_LAST = {"last_mean": "mean", "last_worst": "worst"}
_GAINS = {"gain": "mean", "rsd": "rsd", "ipr": "ipr", "harmed": "harmed"}


@dataclass(frozen=True)
class CellResult:
    """Result of one cell; its fields are the columns of ``results.csv``, empty or ``None`` before it is done."""

    arm: str
    place: dict[str, str]  #: axis -> label
    seed: int
    status: Status
    values: dict[str, float]  #: statistic -> value in the metric's unit; NaN if missing
    higher_is_better: bool | None = None  #: the metric's direction
    data_source: str = ""  #: "measured", "stand-in", "synthetic", ...
    rounds: int | None = None
    seconds: float | None = None  #: wall time of the training
    commit: str = ""
    run_folder: str = ""  #: relative to the study's folder, as ``log``
    failure: str = ""  #: reason in one line
    log: str = ""
    clients_with_gain: int | None = None  #: number of clients with a gain over local training

    @property
    def key(self) -> tuple[str, tuple[tuple[str, str], ...], int]:
        """Arm, sorted place and seed."""
        return self.arm, tuple(sorted(self.place.items())), self.seed

    @property
    def name(self) -> str:
        return cell_name(self.arm, self.place, self.seed)

    @classmethod
    def of(cls, cell: Cell, metric: str, out: Path) -> "CellResult":
        """Current result of a cell of the study in the folder ``out``."""
        run, attempts, out = cell.finished(), cell.attempts(), out.absolute()
        values = dict.fromkeys(STATISTICS, math.nan)
        log = cell.log.relative_to(out).as_posix()
        if run is None:
            failure = cell.failure()
            status: Status = "failed" if failure is not None else "cut off" if attempts or cell.versions() else "open"
            return cls(cell.arm, cell.place, cell.seed, status, values, failure=failure or "", log=log)
        higher, failure, gains = None, "", {}
        try:
            found = run.metric(metric, cell.split)
        except ConfigurationError as error:
            failure = str(error)
        else:
            higher = found.direction
            values |= {name: getattr(found, name) for name in ("mean", "worst", "best", "std")}
            last = run.summary.get("last_rounds", {}).get(cell.split, {}).get(metric, {})
            values |= {name: number_or_nan(last.get(part)) for name, part in _LAST.items()}
            values["ari"] = number_or_nan(run.summary.get("group_agreement", {}).get("adjusted_rand_index"))
            gains = run.summary.get("gains_over_local_training", {}).get(cell.split, {}).get(metric, {})
            values |= {name: number_or_nan(gains.get(part)) for name, part in _GAINS.items()}
        return cls(
            arm=cell.arm,
            place=cell.place,
            seed=cell.seed,
            status="failed" if failure else "done",
            values=values,
            higher_is_better=higher,
            data_source=run.data_source,
            rounds=run.rounds,
            seconds=run.seconds,
            commit=attempts[-1].get("commit", "") if attempts else "",
            run_folder=run.folder.relative_to(out).as_posix(),
            failure=failure,
            log=log,
            clients_with_gain=gains.get("num_clients", len(gains["clients"])) if gains.get("clients") else None,
        )


@dataclass(frozen=True)
class StudyResults:
    """Results of a study, with the cells in the order of the declaration and the answers to the claims."""

    study: Study
    cells: list[CellResult]
    environment: dict[str, Any]
    answers: list[Answer] = field(default_factory=list)

    @classmethod
    def of(cls, study: Study, cells: Sequence[Cell], out: Path, environment: dict[str, Any]) -> "StudyResults":
        """Collect the current results of the cells and answer the claims; ``out`` is the study's folder."""
        return cls.from_cells(study, [CellResult.of(cell, study.metric, out) for cell in cells], environment)

    @classmethod
    def from_cells(cls, study: Study, cells: list[CellResult], environment: dict[str, Any]) -> "StudyResults":
        """Answer the claims from the results of cells."""
        by_key = {cell.key: cell for cell in cells}

        def value(statistic: str, arm: str, place: Mapping[str, str], seed: int) -> float | None:
            cell = by_key.get((arm, tuple(sorted(place.items())), seed))
            return None if cell is None else study.table.unit * cell.values[statistic]

        grid = study.run_grid
        answers = [answer for claim in study.claims for answer in answer_claim(claim, study.run_seeds, grid, value)]
        return cls(study, cells, environment, correct_answers(answers))

    @classmethod
    def read(cls, out: Path) -> "StudyResults":
        """Read what :meth:`write` wrote; a CheckpointError names a damaged file."""
        if not (out / "results.csv").is_file():
            raise ConfigurationError(f"{out} has no results of a study: name the folder that it printed.")
        study = load_study(out / "study.yaml")
        with _damage(out / "environment.json"):
            environment = json.loads((out / "environment.json").read_text(encoding="utf-8"))
        return cls.from_cells(study, _read_cells(out / "results.csv", study), environment)

    @classmethod
    def of_table(cls, study: Study, path: Path) -> "StudyResults":
        """Results of a study from its ``results.csv`` alone, whose seeds replace those of the study.

        Columns of paths may be missing. Errors as in :meth:`read`; a ConfigurationError names unknown cells.
        """
        if not path.is_file():
            raise ConfigurationError(f"{path} does not exist: name the results.csv of a study.")
        found = {cell.key: cell for cell in sorted(_read_cells(path, study), key=lambda cell: cell.status == "done")}
        study = study.with_seeds(sorted({cell.seed for cell in found.values()}))
        missing = dict.fromkeys(STATISTICS, math.nan)
        cells = [
            found.pop(cell.key, cell)
            for arm, place in study.places()
            for cell in (CellResult(arm, place, seed, "open", missing) for seed in study.run_seeds)
        ]
        if found:
            others = listed([cell.name for cell in found.values()], 3)
            raise ConfigurationError(f"{path} has results that {study.path} (scale {study.scale}) does not: {others}.")
        return cls.from_cells(study, cells, {"lightning-fl": __version__, "results": str(path)})

    def write(self, out: Path) -> None:
        """Write ``study.yaml``, ``results.csv``, ``claims.csv`` and ``environment.json`` into the study's folder."""
        text = dump_yaml(self.study.as_dict())
        write_whole(out / "study.yaml", f"# lightning-fl {self.environment.get('lightning-fl', '')}, resolved\n{text}")
        write_whole(out / "results.csv", _csv([_flat(asdict(cell)) for cell in self.cells]))
        claims = [
            {
                "claim": answer.claim,
                "at": cell_name("", answer.axes),
                "verdict": answer.verdict,
                "verdict_holm": answer.corrected,
                **asdict(answer.interval),
                "p_value_holm": answer.corrected_p_value,
                "seeds_needed": answer.seeds_needed,
                "reason": answer.reason,
            }
            for answer in self.answers
        ]
        write_whole(out / "claims.csv", _csv(claims))
        write_whole(out / "environment.json", json.dumps(self.environment, indent=2) + "\n")

    @property
    def higher_is_better(self) -> bool | None:
        """The metric's direction; ``None`` before a cell is done, and if it is unknown."""
        return next((cell.higher_is_better for cell in self.cells if cell.higher_is_better is not None), None)

    @property
    def measured(self) -> list[str]:
        """The table's statistics with a value in any cell."""
        names = self.study.table.statistics
        return [name for name in names if not all(math.isnan(cell.values[name]) for cell in self.cells)]

    @property
    def failed(self) -> list[CellResult]:
        return [cell for cell in self.cells if cell.status == "failed"]


def _flat(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row with the entries of its dicts as columns of their own."""
    pairs = (value.items() if isinstance(value, dict) else [(name, value)] for name, value in row.items())
    return {name: value for part in pairs for name, value in part}


@contextmanager
def _damage(path: Path) -> Iterator[None]:
    """Context in which the errors of a damaged results file are a CheckpointError."""
    try:
        yield
    except (OSError, ValueError, KeyError, RecursionError) as error:
        reason = f"{type(error).__name__}: {error}"
        if isinstance(error, KeyError):
            reason = f"no column {error}; perhaps they are of another study"
        raise CheckpointError(f"the results {path} are damaged ({reason}).") from error


def _read_cells(path: Path, study: Study) -> list[CellResult]:
    with _damage(path):
        if not (text := path.read_text(encoding="utf-8")):
            raise ValueError("empty")
        header, *lines = csv.reader(io.StringIO(text))
        rows = [dict(zip(map(csv_value, header), map(csv_value, line), strict=True)) for line in lines if line]
        return [_cell_of(row, list(study.grid)) for row in rows]


def _cell_of(row: dict[str, str], axes: Sequence[str]) -> CellResult:
    def number(name: str, kind: type) -> Any:
        return kind(row[name].removesuffix(".0") if kind is int else row[name]) if row.get(name) else None

    if row["status"] not in get_args(Status):
        raise ValueError(f"unknown status {row['status']!r}")
    return CellResult(
        **{name: row.get(name, "") for name in ("data_source", "commit", "run_folder", "failure", "log")},
        arm=row["arm"],
        place={axis: row[axis] for axis in axes},
        seed=int(row["seed"]),
        status=cast(Status, row["status"]),
        values={name: float(row.get(name) or "nan") for name in STATISTICS},
        higher_is_better={"True": True, "False": False}.get(row["higher_is_better"]),
        rounds=number("rounds", int),
        seconds=number("seconds", float),
        clients_with_gain=number("clients_with_gain", int),
    )


def _csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows as CSV, in which NaN and ``None`` are empty."""
    lines = ([None if one != one else one for one in row.values()] for row in rows)  # NaN differs from itself
    return csv_text([list(rows[0]), *lines]) if rows else ""
