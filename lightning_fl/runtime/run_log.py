"""Record of a run: its folder, curves for TensorBoard and CSV, figures, tables and ``summary.json``."""

import contextlib
import io
import json
import math
import os
import secrets
import shutil
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from lightning.fabric import Fabric

from lightning_fl.core.client_names import are_many, curve_names, recorded_names
from lightning_fl.core.errors import ConfigurationError, TrainingError
from lightning_fl.core.lightning_types import AnyLogger
from lightning_fl.core.metrics import MetricSummary, metric_name, percentiles
from lightning_fl.data.module import Split
from lightning_fl.engine.client import ClientReport
from lightning_fl.engine.federation import Federation
from lightning_fl.files.atomic import remove_leftovers, write_whole
from lightning_fl.files.names import client_files, file_names, run_versions
from lightning_fl.files.user_file import near
from lightning_fl.runtime.curve_table import WholeCSVLogger, own_loggers, rows_before
from lightning_fl.runtime.loggers import LoggerAdapter, adapter_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

T = TypeVar("T")

#: The first keys of ``summary.json``.
_HEADLINE = (
    *("title", "method", "data_source", "rounds", "interrupted"),
    *("best_round", "best_value", "evaluated", "metrics"),
)
#: Clients that the summary lists of many, the worst ones.
_WORST = 100


class RunLog:
    """Writes a run's record on rank zero; other ranks know the folder and write nothing.

    A fit and the evaluations after it write into one folder, ``version_N`` below its root, with N above all that exist:
    nothing is ever overwritten. On machines that share no folder each rank has one of the same name, for what its
    clients keep. A resumed run gets a folder of its own, with the curves of the rounds before copied into it, and so
    does every further fit of a trainer.

    A write that fails (full disk) is kept until the next round is logged or the record is finished, which then ends the
    run with one error. No file is damaged by it.

    Args:
        logger: True for TensorBoard and CSV, False for none, or loggers; True in a list means those two.
        root: where run folders are made.
    """

    def __init__(self, logger: bool | AnyLogger | list[bool | AnyLogger], root: str) -> None:
        self._logger = _checked(logger)
        #: Where run folders are made; absolute, since user code may change the working directory.
        self.root = Path(root).absolute()
        self._directory: Path | None = None
        self._root_is_new = self._is_new = self._writes = self.fitted = False
        #: What could not be written, and why.
        self._problem: tuple[str, OSError] | None = None
        #: Tables and pictures to write after the models; ``None`` to write them at once.
        self._held: list[tuple[str, Callable[[], None]]] | None = None
        self.loggers: list[Any] = []
        self._adapters: list[LoggerAdapter] = []
        self.summary: dict[str, Any] = {}
        #: The same on all ranks of a run and of no other; empty in a single process.
        self.token = ""
        #: Shown in TensorBoard's HPARAMS tab; the command line sets them, and the resolved recipe for ``config.yaml``.
        self.hyperparameters: dict[str, Any] = {}
        self.recipe = ""

    @property
    def directory(self) -> Path:
        """Absolute path of the run's folder; it exists once a run has started."""
        assert self._directory is not None, "the run's folder is made when a run starts"
        return self._directory

    @property
    def started(self) -> bool:
        return self._directory is not None

    def start(self, fabric: Fabric, *, fits: bool) -> None:
        """Make the run's folder and loggers, if there are none yet or a further fit begins. Call on every rank."""
        before, self.fitted = self.fitted, self.fitted or fits
        if self.started and fits:  # of another model
            self.summary = {}
        if self.started and not (fits and before):
            return
        self._problem = self._held = None
        self._root_is_new, self._is_new = not self.root.exists(), True
        self._directory, self.token = make_folder(self.root, fabric)
        self._writes = fabric.is_global_zero
        self.loggers = []
        for logger in self._logger if self._writes else []:
            self.loggers += own_loggers(self.root, self.directory.name) if logger is True else [logger]
        self._adapters = [adapter_of(logger) for logger in self.loggers]
        try:
            for adapter in self._adapters:
                adapter.call("begin", {"strategy": type(fabric.strategy).__name__, **self.hyperparameters})
        except ConfigurationError:
            self.discard()
            raise
        if self.recipe:
            self.write("config.yaml", self.recipe)

    def log_round(
        self, federation: Federation, logged: Mapping[str, float], *, evaluated: bool, names: Sequence[str] | None
    ) -> None:
        """Write a round's curves and what callbacks ``logged``; ``names`` are given if each client has curves."""
        if self._adapters:
            scalars = {**logged, **federation.communication.curves(), **_scalars(federation, "train", names)}
            scalars |= _scalars(federation, "val", names) if evaluated else {}
            self._log([(scalars, federation.current_round)])

    def log_steps(self, reports: Mapping[int, ClientReport], names: Sequence[str]) -> None:
        """Write single local steps of clients' turns, if they were kept; x is a client's own step."""
        of_curves = curve_names(names)
        self._log(
            [
                ({f"{name}/step/{of_curves[client]}": value}, step)
                for client, report in reports.items()
                for name, logged in report.metrics.items()
                for step, value in logged.steps
            ]
        )

    def log_evaluation(self, federation: Federation, split: Split, names: Sequence[str] | None) -> None:
        """Write a split's metrics after ``validate`` or ``test``."""
        self._log([(_scalars(federation, split, names), federation.current_round)])

    def log_figure(self, name: str, figure: "Figure", step: int) -> None:
        """Show a figure in the loggers and save it as ``figures/NAME.png``."""
        if not self._writes:
            return
        picture = io.BytesIO()
        figure.savefig(picture, format="png", dpi=150, bbox_inches="tight")
        (stem,) = file_names([name.replace("/", "_")])
        self.write(f"figures/{stem}.png", picture.getvalue())
        for adapter in self._adapters:
            self._do(adapter.name, partial(adapter.call, "log_figure", name, figure, picture.getvalue(), step))

    def write(self, name: str, content: str | bytes, *, of_every_rank: bool = False) -> None:
        """Write a file into the run's folder, whole or not at all: on rank zero, or on every rank its own."""
        if self._writes or of_every_rank:
            self._do(name, partial(write_whole, self.directory / name, content))

    def hold(self) -> None:
        """From now on keep tables and pictures until :meth:`finish`: where space is short, the models come first."""
        self._held = []

    def _log(self, points: Sequence[tuple[Mapping[str, float], int]]) -> None:
        """Write points of curves, and raise what could not be written so far."""
        self._do("the curves", *(partial(to.call, "log_metrics", *point) for point in points for to in self._adapters))
        self._do("the curves", *(one.save for one in self.loggers if isinstance(one, WholeCSVLogger)))
        self._raise_problem()

    def _do(self, what: str, *tasks: Callable[[], None]) -> None:
        """Write something, now or after :meth:`hold`; the first failure is kept for :meth:`_raise_problem`."""
        if self._held is not None:
            self._held += [(what, task) for task in tasks]
            return
        for task in tasks:
            try:
                task()
            except OSError as error:
                self._problem = self._problem or (what, error)

    def _raise_problem(self) -> None:
        if self._problem is not None:
            what, error = self._problem
            reason = f"cannot write {what} to {self.directory}: {error.strerror or error}"
            raise TrainingError(f"{reason}. Free some space, then run again with --ckpt_path last.") from error

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps of the record: the summary and how many rows the curves have."""
        state: dict[str, Any] = {"summary": json.loads(json.dumps(self.summary, default=str))}
        tables = [one for one in self.loggers if isinstance(one, WholeCSVLogger)]
        return state | ({"num_rows": tables[0].num_rows} if tables else {})

    def replay(self, checkpoint: Path, current_round: int, state: Mapping[str, Any] | None = None) -> None:
        """Copy the record before a checkpoint from its run's folder; an older version's has the ``state`` ``None``."""
        folder = checkpoint.parent.parent
        if folder == self.directory:
            return
        if checkpoint.parent.name == "checkpoints":
            with contextlib.suppress(OSError):  # of a run on a disk that is read-only
                remove_leftovers(folder)
        if not self._writes:
            return
        self.summary = {**(state or {}).get("summary", {}), **self.summary}
        if self.loggers:
            rows = rows_before(folder / "metrics.csv", current_round, state or {})
            self._log([({name: value for name, value in row.items() if name != "step"}, row["step"]) for row in rows])

    def finish(
        self,
        error: BaseException | None,
        about: Mapping[str, Any] | None = None,
        federation: Federation | None = None,
        names: Sequence[str] = (),
        *,
        fitted: bool = False,
    ) -> None:
        """Write ``summary.json``, hand files to the loggers, and close them.

        After an error the summary stays as it was. ``about`` has its entries besides those of the federation, metrics
        and gains over local training; ``names`` are the clients', and ``fitted`` tells whether the run was a fit.
        """
        held, self._held, self._is_new = self._held or [], None, False
        if not self._writes or self._directory is None:
            return
        if federation is not None:
            self.summary.update(about or {})
            self._add_metrics(federation, names)
            shown = recorded_names(names)
            if files := {name: stem for name, stem in zip(shown, client_files(shown), strict=True) if name != stem}:
                self.summary["file_names"] = files
            ordered = {key: self.summary[key] for key in _HEADLINE if key in self.summary} | self.summary
            self.write("summary.json", json.dumps(ordered, indent=2, default=str) + "\n")
            if self.hyperparameters or fitted:
                self._do("the settings", partial(self._log_hyperparameters, federation.current_round))
        for what, task in held:
            self._do(what, task)
        for adapter in self._adapters:
            if federation is not None:
                give = partial(adapter.call, "log_run", self.directory, self.summary, federation.current_round, fitted)
                self._do(adapter.name, give)
            self._do(adapter.name, getattr(adapter.logger, "save", lambda: None))
            self._do(adapter.name, partial(adapter.logger.finalize, "success" if error is None else "failed"))
        if error is None:
            self._raise_problem()

    def discard(self) -> None:
        """Remove the folder of a run that was refused before its first round."""
        if self._directory is None or not self._is_new:
            return
        if self._writes:
            shutil.rmtree(self._directory, ignore_errors=True)
        with contextlib.suppress(OSError):  # another machine's rank uses it, or the root has other runs
            if not self._writes:
                self._directory.rmdir()
            if self._root_is_new:
                self.root.rmdir()
        self._directory = None

    def _add_metrics(self, federation: Federation, names: Sequence[str]) -> None:
        def record(one: Any, parts: Sequence[str], higher: bool | None = None) -> dict[str, Any]:
            direction = {} if higher is None else {"higher_is_better": higher}
            clients, more = one.clients, {}
            if are_many(len(clients)):
                ordered = sorted((of for of in clients.items() if not math.isnan(of[1])), key=lambda of: of[1])
                more = {"num_clients": len(ordered), "percentiles": percentiles([value for _, value in ordered])}
                clients = dict(ordered[::-1][:_WORST] if higher is False else ordered[:_WORST])
            of_clients = {names[client]: _plain(value) for client, value in clients.items()}
            return {part: _plain(getattr(one, part)) for part in parts} | direction | more | {"clients": of_clients}

        splits = self.summary.setdefault("metrics", {})
        for split, metrics in federation.metrics.items():
            splits[split] = {
                metric_name(name, split): record(metric, ("mean", "worst", "best", "std"), metric.higher_is_better)
                for name, metric in metrics.items()
            }
        for split, gains in federation.gains.items():
            self.summary.setdefault("gains_over_local_training", {})[split] = {
                metric_name(name, split): record(gain, ("mean", "worst", "ipr", "rsd", "harmed"))
                for name, gain in gains.items()
            }

    def _log_hyperparameters(self, step: int) -> None:
        final = {
            f"final/{split}/{name}/{part}": record[part]
            for split, metrics in self.summary.get("metrics", {}).items()
            for name, record in metrics.items()
            for part in ("mean", "worst")
            if record[part] is not None
        }
        values = {"strategy": self.summary["strategy"], "seed": self.summary["seed"], **self.hyperparameters}
        for adapter in self._adapters:
            adapter.call("log_final", values, final, step)

    def checkpoint_written(self) -> None:
        """Give a checkpoint that was just written to the loggers that take every one."""
        for adapter in self._adapters:
            if adapter.uploads == "all":
                self._do(adapter.name, partial(adapter.call, "log_checkpoints", self.directory))


def _checked(logger: bool | AnyLogger | list[bool | AnyLogger]) -> list[bool | AnyLogger]:
    """The loggers as a list, where True, at most once, stands for TensorBoard and CSV; refuses anything else."""
    loggers = list(logger) if isinstance(logger, list | tuple) else [] if logger in (None, False) else [logger]
    others = [one for one in loggers if one is not True]
    if len(loggers) - len(others) > 1 or not all(hasattr(one, "log_metrics") for one in others):
        remedy = "give true, false or Lightning's loggers; in a list, true may occur once, and false must not"
        raise ConfigurationError(f"trainer.logger={logger!r}: {remedy}.")
    return loggers


def _scalars(federation: Federation, split: Split, names: Sequence[str] | None) -> dict[str, float]:
    """The curves of a split: of all clients together, and of each if names are given."""
    scalars: dict[str, float] = {}
    of_curves = [] if names is None else curve_names(names)
    shown: dict[str, MetricSummary] = federation.metrics.get(split, {})
    for name, metric in shown.items():
        if metric.to_logger:
            name = federation.curve_name(name, split)
            scalars |= {name: metric.mean, f"{name}/worst": metric.worst, f"{name}/std": metric.std}
            if of_curves:
                scalars |= {f"{name}/{of_curves[client]}": value for client, value in metric.clients.items()}
    for name, gain in federation.gains.get(split, {}).items():
        name = federation.curve_name(name, split)
        scalars[f"{name}/gain"] = gain.mean
        scalars |= {f"{name}/{part}": getattr(gain, part) for part in ("ipr", "rsd", "harmed")}
    return scalars


def _plain(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def make_folder(root: Path, fabric: Fabric) -> tuple[Path, str]:
    """Make the run's folder, of one name on every rank; returns it and a token, the same on all ranks of the run only.

    Rank zero makes a new folder; a rank that does not see it has a disk of its own, and makes one there. The token is
    empty in a single process. A folder that cannot be written is a ConfigurationError on all ranks.
    """
    strategy: Any = fabric.strategy
    rank, several = fabric.global_rank, fabric.world_size > 1

    def together(action: Callable[[], T]) -> list[T]:
        """Run an action on every rank; returns the results of all."""
        problem, found = "", None
        try:
            found = action()
        except OSError as error:
            is_file = isinstance(error, FileExistsError | NotADirectoryError)
            fault = "is a file, or lies in one:" if is_file else f"cannot be written: {error}. Free some space, or"
            problem = f"trainer.default_root_dir={os.fspath(near(root))!r} {fault} choose another folder."
        of_ranks = strategy.exchange({rank: (problem, found)})
        for other, (text, _) in of_ranks.items():
            if text:
                where = f"{strategy.rank_names[other]}: " if several else ""
                raise ConfigurationError(f"{where}{text}")
        return [value for _, value in of_ranks.values()]

    def next_number() -> int:
        root.mkdir(parents=True, exist_ok=True)
        return max((number for number, _ in run_versions(root)), default=-1) + 1

    def claim() -> str | None:
        """Rank zero's token; ``None`` if another run has just made the folder."""
        try:
            if rank == 0:
                directory.mkdir()
        except FileExistsError:
            return None
        return secrets.token_hex(8)

    number, token = -1, None
    while token is None:
        number = max(number + 1, *together(next_number))
        directory = root / f"version_{number}"
        token = together(claim)[0]
    together(lambda: directory.mkdir(exist_ok=True))
    return directory, token if several else ""
