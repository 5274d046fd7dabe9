"""What a run leaves behind: its folder, curves for TensorBoard and CSV, and ``summary.json``."""

import contextlib
import functools
import io
import json
import math
import os
import platform
import re
import secrets
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from lightning.fabric import Fabric
from lightning.fabric.utilities.rank_zero import rank_zero_warn

from lightning_fl.core.client_names import curve_names
from lightning_fl.core.errors import ConfigurationError, TrainingError
from lightning_fl.core.lightning_types import AnyLogger
from lightning_fl.core.metrics import MetricSummary, metric_name
from lightning_fl.data.module import Split
from lightning_fl.engine.client import ClientReport
from lightning_fl.engine.federation import Federation
from lightning_fl.files.atomic import remove_leftovers, write_whole
from lightning_fl.files.names import client_files, file_names
from lightning_fl.files.user_file import near
from lightning_fl.runtime.curve_table import OneFileTensorBoardLogger, Row, WholeCSVLogger, read_rows
from lightning_fl.runtime.loggers import Outlet, outlet_of

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

__all__ = ["RunLog", "versions"]

T = TypeVar("T")

#: The file by which ranks see whether they share a run's folder.
_TOKEN = ".run"
#: What stands first in ``summary.json``.
_HEADLINE = (
    "title",
    "method",
    "data_source",
    "rounds",
    "interrupted",
    "best_round",
    "best_value",
    "evaluated",
    "metrics",
)
_VERSION = re.compile(r"version_([0-9]+)")


class RunLog:
    """Writes a run's record. Everything happens on rank zero; other ranks know the folder and write nothing.

    A fit and the evaluations after it write into one folder, ``version_N`` below its root, with N above all that exist:
    nothing is ever overwritten. On machines that share no folder each rank has one of the same name, for what its
    clients keep. A resumed run gets a folder of its own, with the curves of the rounds before copied into it, and so
    does every further fit of a trainer.

    Args:
        logger: True for TensorBoard and CSV, False for none, or loggers; True among several stands for those two.
        root: where run folders are made.
    """

    def __init__(self, logger: bool | AnyLogger | list[bool | AnyLogger], root: str) -> None:
        self._logger = _checked(logger)
        #: Where run folders are made, whatever user code makes the working directory.
        self.root = Path(root).absolute()
        self._directory: Path | None = None
        self._root_is_new = self._is_new = False
        self._writes = False
        self._fitted = False
        self._problem: OSError | None = None
        self._held: list[Callable[[], None]] | None = None
        self.loggers: list[Any] = []
        self._outlets: list[Outlet] = []
        self.summary: dict[str, Any] = {}
        #: The same on all ranks of a run and of no other; empty where one process needs none.
        self.token = ""
        #: Shown in TensorBoard's HPARAMS tab; the command line sets the resolved recipe.
        self.hyperparameters: dict[str, Any] = {}

    @property
    def directory(self) -> Path:
        """The run's folder, the whole path; it exists once a run has started."""
        assert self._directory is not None, "the run's folder is made when a run starts"
        return self._directory

    @property
    def started(self) -> bool:
        """Whether there is a folder."""
        return self._directory is not None

    def start(self, fabric: Fabric, *, fits: bool) -> None:
        """Make the run's folder and loggers, where there are none yet. To be called on every rank.

        Args:
            fabric: of the run.
            fits: a fit begins, which does not write over an earlier one.

        Raises:
            ConfigurationError: the folder cannot be written, or a logger not be reached, seen before anything is
                trained.
        """
        before, self._fitted = self._fitted, self._fitted or fits
        if self.started and not (fits and before):
            return
        if self.started:
            self.summary = {}
        self._problem, self._held = None, None
        self._root_is_new, self._is_new = not self.root.exists(), True
        self._directory, self.token = _make_folders(self.root, fabric)
        self._writes = fabric.is_global_zero
        self.loggers = self._make_loggers() if self._writes else []
        self._outlets = [outlet_of(logger) for logger in self.loggers]
        try:
            for outlet in self._outlets:
                outlet.begin({"strategy": type(fabric.strategy).__name__, **self.hyperparameters})
        except ConfigurationError:
            self.discard()
            raise

    def _make_loggers(self) -> list[Any]:
        loggers: list[Any] = []
        for logger in self._logger:
            loggers += self._own_loggers() if logger is True else [logger]
        return loggers

    def _own_loggers(self) -> list[Any]:
        _quiet_writers()
        version = self.directory.name
        return [OneFileTensorBoardLogger(self.root, version), WholeCSVLogger(self.root, version)]

    # -- curves --------------------------------------------------------------------------------------------------

    def log_round(
        self, federation: Federation, logged: Mapping[str, float], *, evaluated: bool, names: Sequence[str] | None
    ) -> None:
        """Write the round that just ended; x is the number of rounds done.

        Args:
            federation: after the round.
            logged: what callbacks logged in it.
            evaluated: it ended with an evaluation.
            names: the clients', where each has curves of its own.
        """
        if not self._writes:
            return
        scalars = {**logged, **federation.communication.curves()}
        splits: tuple[Split, ...] = ("train", "val") if evaluated else ("train",)
        for split in splits:
            scalars.update(_scalars(federation, split, names))
        self._log(scalars, federation.current_round)

    def log_steps(self, reports: Mapping[int, ClientReport], names: Sequence[str]) -> None:
        """Write single local steps of clients' turns, where they were kept; x is a client's own step."""
        if not self._writes:
            return
        of_curves = curve_names(names)
        for client, report in reports.items():
            for name, logged in report.metrics.items():
                for step, value in logged.steps:
                    self._log({f"{name}/step/{of_curves[client]}": value}, step)

    def log_evaluation(self, federation: Federation, split: Split, names: Sequence[str] | None) -> None:
        """Write a split's metrics after ``validate`` or ``test``."""
        if self._writes:
            self._log(_scalars(federation, split, names), federation.current_round)

    def log_figure(self, name: str, figure: "Figure", step: int) -> None:
        """Show a figure in the loggers and keep it as ``figures/NAME.png``; see :meth:`write` for a full disk."""
        if not self._writes:
            return
        picture = io.BytesIO()
        figure.savefig(picture, format="png", dpi=150, bbox_inches="tight")
        (stem,) = file_names([name.replace("/", "_")])
        self.write(f"figures/{stem}.png", picture.getvalue())
        for outlet in self._outlets:
            self._keep(partial(outlet.log_figure, name, figure, picture.getvalue(), step))

    def _log(self, scalars: dict[str, float], step: int) -> None:
        with self._curves():
            for outlet in self._outlets:
                outlet.log_metrics(scalars, step)

    @contextlib.contextmanager
    def _curves(self) -> Iterator[None]:
        """End the run, with the last checkpoint as it is, where loggers cannot write."""
        try:
            yield
        except OSError as error:
            raise TrainingError(
                f"{self._refused(error)} Free some space, then go on from the last checkpoint with --ckpt_path last."
            ) from error

    def write(self, name: str, content: str | bytes, *, of_every_rank: bool = False) -> None:
        """Keep a table or a picture in the run's folder, whole or not at all.

        Where the disk is full, the run goes on to write its models and its summary, and :meth:`finish` says so.

        Args:
            name: of the file.
            content: all of it.
            of_every_rank: every rank has a file of its own name to write; otherwise rank zero alone writes.
        """
        if self._writes or of_every_rank:
            self._keep(partial(write_whole, self.directory / name, content))

    def hold(self) -> None:
        """From now on keep tables and pictures until :meth:`finish`: where space is short, the models come first."""
        self._held = []

    def _keep(self, write: Callable[[], None]) -> None:
        if self._held is not None:
            self._held.append(write)
            return
        with self._later():
            write()

    @contextlib.contextmanager
    def _later(self) -> Iterator[None]:
        """Keep what cannot be written for :meth:`finish` to say."""
        try:
            yield
        except OSError as error:
            self._problem = self._problem or error

    def _refused(self, error: OSError) -> str:
        what = error.filename or error.filename2
        inside = "" if what is None or str(self.directory) in str(what) else f" ({what})"
        return f"cannot write to {self.directory}: {error.strerror or error}{inside}."

    # -- going on ------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps of the record: how many rows the curves have, and what is not in files yet."""
        table = self._table()
        state: dict[str, Any] = {"summary": json.loads(json.dumps(self.summary, default=str))}
        if table is not None:
            with self._curves():
                state |= {"unwritten": table.unwritten(), "num_rows": table.num_rows}
        return state

    def _table(self) -> WholeCSVLogger | None:
        return next((logger for logger in self.loggers if isinstance(logger, WholeCSVLogger)), None)

    def replay(self, checkpoint: Path, current_round: int, state: Mapping[str, Any] | None = None) -> None:
        """Take up the record of the rounds before a checkpoint, from the run that it belongs to.

        Args:
            checkpoint: its file, in the ``checkpoints/`` of that run's folder.
            current_round: rounds done by then.
            state: what :meth:`state_dict` said; ``None`` in a checkpoint of before.
        """
        folder = checkpoint.parent.parent
        if folder == self.directory:
            return
        if checkpoint.parent.name == "checkpoints":
            with contextlib.suppress(OSError):  # of a run that may lie where nothing can be written
                remove_leftovers(folder)
        if not self._writes:
            return
        self.summary = {**(state or {}).get("summary", {}), **self.summary}
        if not self.loggers:
            return
        for row in _rows_before(folder / "metrics.csv", current_round, state):
            step = row.pop("step")
            self._log(row, step)

    # -- the record ----------------------------------------------------------------------------------------------

    def finish(
        self,
        error: BaseException | None,
        about: Mapping[str, Any] | None = None,
        federation: Federation | None = None,
        names: Sequence[str] = (),
        *,
        fitted: bool = False,
    ) -> None:
        """Write ``summary.json`` and flush the loggers.

        Args:
            error: that the run ended with; the summary stays as it was.
            about: what is said of the run besides metrics.
            federation: with the metrics, and what was gained over local training.
            names: the clients'.
            fitted: the run was a fit.
        """
        self._is_new = False
        if not self._writes or self._directory is None:
            return
        held, self._held = self._held or [], None
        if error is None:
            assert about is not None
            assert federation is not None
            self.summary.update(about)
            self._add_metrics(federation, names)
            files = {name: stem for name, stem in zip(names, client_files(names), strict=True) if name != stem}
            if files:
                self.summary["file_names"] = files
            ordered = {key: self.summary[key] for key in _HEADLINE if key in self.summary} | self.summary
            self.write("summary.json", json.dumps(ordered, indent=2, default=str) + "\n")
            if self.hyperparameters or fitted:
                with self._later():
                    self._log_hyperparameters(federation.current_round)
        for write in held:
            self._keep(write)
        if error is None and federation is not None:
            self._hand_over(federation.current_round, fitted=fitted)
        for logger in self.loggers:
            with self._later():
                logger.save() if hasattr(logger, "save") else None
            with self._later():
                logger.finalize("success" if error is None else "failed")
        if self._problem is not None and error is None:
            raise TrainingError(
                f"{self._refused(self._problem)} The checkpoints and models that are there are whole; figures, tables,"
                " curves or the summary are missing. Free some space, then run again with --ckpt_path last to have them"
                " written."
            ) from self._problem

    def discard(self) -> None:
        """Remove the folder that was made for a run that was refused before its first round."""
        if self._directory is None or not self._is_new:
            return
        if self._writes:
            shutil.rmtree(self._directory, ignore_errors=True)
        with contextlib.suppress(OSError):  # of another machine's rank; or other runs are in the root
            if not self._writes:
                self._directory.rmdir()
            if self._root_is_new:
                self.root.rmdir()
        self._directory = None

    def _add_metrics(self, federation: Federation, names: Sequence[str]) -> None:
        splits = self.summary.setdefault("metrics", {})
        for split, metrics in federation.metrics.items():
            splits[split] = {
                metric_name(name, split): _metric_record(metric, names) for name, metric in metrics.items()
            }
        gains = self.summary.setdefault("gains_over_local_training", {})
        for split, found in federation.gains.items():
            gains[split] = {
                metric_name(name, split): {
                    **{part: _plain(getattr(gain, part)) for part in ("mean", "worst", "ipr", "rsd", "harmed")},
                    "clients": {names[client]: _plain(value) for client, value in gain.clients.items()},
                }
                for name, gain in found.items()
            }
        if not gains:
            del self.summary["gains_over_local_training"]

    def _log_hyperparameters(self, step: int) -> None:
        final = {
            f"final/{split}/{name}/{part}": record[part]
            for split, metrics in self.summary.get("metrics", {}).items()
            for name, record in metrics.items()
            for part in ("mean", "worst")
            if record[part] is not None
        }
        values = {"strategy": self.summary["strategy"], "seed": self.summary["seed"], **self.hyperparameters}
        for outlet in self._outlets:
            outlet.log_final(values, final, step)

    # -- what loggers get besides curves and figures -----------------------------------------------------------------

    def checkpoint_written(self) -> None:
        """A checkpoint was written: loggers that want every one get it."""
        if self._writes:
            for outlet in self._outlets:
                if outlet.uploads == "all":
                    self._keep(partial(self._upload, outlet))

    def _upload(self, outlet: Outlet) -> None:
        outlet.log_files("checkpoints", sorted((self.directory / "checkpoints").glob("*.ckpt")))

    def _hand_over(self, step: int, *, fitted: bool) -> None:
        """Give the run's tables, its summary and settings, and, after a fit, its checkpoints to loggers that take them.

        Tables are those of the run's folder, less the curves, and ``clients``: a row for each client with its metrics.
        """
        if all(type(outlet) is Outlet for outlet in self._outlets):
            return
        tables = {path.stem: path for path in sorted(self.directory.glob("*.csv")) if path.name != "metrics.csv"}
        files = [path for name in ("summary.json", "config.yaml") if (path := self.directory / name).is_file()]
        for outlet in self._outlets:
            with self._later():
                for name, path in tables.items():
                    outlet.log_table(name, _read_table(path), step)
                outlet.log_table("clients", _client_table(self.summary), step)
                outlet.log_files("run", files)
                if fitted and outlet.uploads is True:
                    self._upload(outlet)


def _checked(logger: bool | AnyLogger | list[bool | AnyLogger]) -> list[bool | AnyLogger]:
    """The loggers as a list, in which True stands for TensorBoard and CSV.

    Raises:
        ConfigurationError: a list holds False, or True twice.
    """
    if not isinstance(logger, list):
        return [] if logger is False else [logger]
    if any(one is False for one in logger) or sum(one is True for one in logger) > 1:
        raise ConfigurationError(
            f"trainer.logger={logger}: among several, true stands for TensorBoard and CSV, once; leave out false."
        )
    return list(logger)


def _read_table(path: Path) -> "pd.DataFrame":
    import pandas as pd

    return pd.read_csv(path)


def _client_table(summary: Mapping[str, Any]) -> "pd.DataFrame":
    """A row for each client: its name, and each of its metrics as ``SPLIT/NAME``."""
    import pandas as pd

    columns = {
        f"{split}/{name}": record["clients"]
        for split, metrics in summary.get("metrics", {}).items()
        for name, record in metrics.items()
    }
    names = summary["client_names"]
    rows = {column: [values.get(name) for name in names] for column, values in columns.items()}
    return pd.DataFrame({"client": names, **rows})


def _scalars(federation: Federation, split: Split, names: Sequence[str] | None) -> dict[str, float]:
    """The curves of a split: of all clients together, and of each where there are names."""
    scalars: dict[str, float] = {}
    of_curves = None if names is None else curve_names(names)
    for name, metric in federation.metrics.get(split, {}).items():
        if not metric.to_logger:
            continue
        scalars[name] = metric.mean
        scalars[f"{name}/worst"] = metric.worst
        scalars[f"{name}/std"] = metric.std
        if of_curves is not None:
            scalars.update({f"{name}/{of_curves[client]}": value for client, value in metric.clients.items()})
    for name, gain in federation.gains.get(split, {}).items():
        scalars[f"{name}/gain"] = gain.mean
        scalars[f"{name}/ipr"] = gain.ipr
        scalars[f"{name}/rsd"] = gain.rsd
        scalars[f"{name}/harmed"] = gain.harmed
    return scalars


@functools.cache
def _quiet_writers() -> None:
    """Have no traceback from TensorBoard's thread where the disk is full: its next call raises the same error here."""
    others = threading.excepthook

    def hook(args: threading.ExceptHookArgs) -> None:
        if not (isinstance(args.exc_value, OSError) and type(args.thread).__module__.startswith("tensorboard.")):
            others(args)

    threading.excepthook = hook


def _next_number(root: Path) -> int:
    root.mkdir(parents=True, exist_ok=True)
    taken = [int(match[1]) for name in os.listdir(root) if (match := _VERSION.fullmatch(name))]
    return max(taken, default=-1) + 1


def _rows_before(table: Path, current_round: int, state: Mapping[str, Any] | None) -> list[Row]:
    """The rows of a run's curves up to a checkpoint; a warning says what of them is lost."""
    known = state is not None and "num_rows" in state
    unwritten: list[Row] = [dict(row) for row in state["unwritten"]] if known and state is not None else []
    expected = state["num_rows"] - len(unwritten) if known and state is not None else None
    if not expected and known:
        return unwritten
    try:
        found = read_rows(table)
    except OSError as error:
        why = "is not there" if isinstance(error, FileNotFoundError) else f"cannot be read ({error.strerror})"
        rank_zero_warn(f"{table} {why}: the curves begin at round {current_round + 1}.")
        return unwritten
    rows = [row for row in found[:expected] if row is not None]
    missing = len(found[:expected]) - len(rows) if expected is None else expected - len(rows)
    if expected is None:  # a checkpoint of before, which does not know how many there were
        rows = [row for row in rows if row["step"] <= current_round]
    if missing:
        rank_zero_warn(
            f"{table} is damaged: {missing} of {expected or len(found)} rows up to round {current_round} cannot be read"
            " and are missing in this run's curves. Its models and figures are not changed by that."
        )
    return [*rows, *unwritten]


def _make_folder(directory: Path, token: str) -> bool:
    """Make a run's folder with a file that bears its token; whether it was not there before."""
    try:
        directory.mkdir()
    except FileExistsError:  # another run took it meanwhile
        return False
    write_whole(directory / _TOKEN, token)
    return True


def _make_folders(root: Path, fabric: Fabric) -> tuple[Path, str]:
    """The run's folder on every rank, of one name, and its token.

    Rank zero makes it; a rank that does not see it has a disk of its own, and makes one there.

    Raises:
        ConfigurationError: a folder cannot be written, on all ranks.
    """
    strategy: Any = fabric.strategy
    rank, several = fabric.global_rank, fabric.world_size > 1

    def together(action: Callable[[], T]) -> list[T]:
        """What each rank does and finds."""
        problem, found = "", None
        try:
            found = action()
        except OSError as error:
            problem = f"trainer.default_root_dir={os.fspath(near(root))!r} cannot be written: {error}."
        of_ranks = strategy.exchange({rank: (problem, found)})
        for other, (text, _) in of_ranks.items():
            if text:
                who = f"{strategy.rank_names[other]}: " if several else ""
                raise ConfigurationError(f"{who}{text} Free some space or give another folder.")
        return [value for _, value in of_ranks.values()]

    def claim(directory: Path, turn: int) -> bool | None:
        """Whether this rank, if it is its turn, made the folder; ``None`` where it is another run's."""
        if turn != (0 if rank == 0 else 1 if fabric.local_rank == 0 else 2):
            return False
        return _make_folder(directory, token) or (False if _bears(directory, token) else None)

    def end_claim(directory: Path, made: bool, taken: bool) -> None:
        if made:
            (directory / _TOKEN).unlink()
        if made and taken:
            directory.rmdir()

    (token, *_) = together(lambda: secrets.token_hex(8))
    number = 0
    while True:
        number = max(number, *together(lambda: _next_number(root)))
        directory = root / f"version_{number}"
        # One after another: rank zero, the first rank of each machine, all others, which may share what was made.
        claims = [together(partial(claim, directory, turn)) for turn in range(3 if several else 1)]
        taken = any(found is None for of_turn in claims for found in of_turn)
        together(partial(end_claim, directory, any(of_turn[rank] for of_turn in claims), taken))
        if not taken:
            return directory, token if several else ""
        number += 1


def _bears(directory: Path, token: str) -> bool:
    """Whether a folder was made by this run."""
    try:
        return (directory / _TOKEN).read_text() == token
    except OSError:
        return False


def _metric_record(metric: MetricSummary, names: Sequence[str]) -> dict[str, Any]:
    return {
        "mean": _plain(metric.mean),
        "worst": _plain(metric.worst),
        "best": _plain(metric.best),
        "std": _plain(metric.std),
        "higher_is_better": metric.higher_is_better,
        "clients": {names[client]: _plain(value) for client, value in metric.clients.items()},
    }


def _plain(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def versions() -> dict[str, str]:
    """What a run was made with: package -> version."""
    packages = ("lightning-fl", "torch", "lightning", "torchmetrics", "torch-geometric", "rdkit", "numpy")
    return {"python": platform.python_version(), **{package: version(package) for package in packages}}
