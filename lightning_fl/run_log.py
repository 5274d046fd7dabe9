"""What a run leaves behind: its folder, curves for TensorBoard and CSV, and ``summary.json``."""

import contextlib
import json
import math
import os
import platform
import tempfile
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning.fabric.loggers.logger import Logger
from lightning.fabric.utilities.rank_zero import rank_zero_warn

from lightning_fl.atomic import write_whole
from lightning_fl.data.module import Split
from lightning_fl.errors import ConfigurationError, TrainingError
from lightning_fl.metrics import MetricSummary, metric_name

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from lightning_fl.trainer import FederatedTrainer

__all__ = ["RunLog"]

#: Above this many clients their own curves are left out unless asked for.
_MANY_CLIENTS = 100


class RunLog:
    """Writes a run's record. Everything happens on rank zero; other ranks know the folder and write nothing.

    A trainer writes into one folder, ``version_N`` below its root, with N above all that exist: nothing is ever
    overwritten. A resumed run gets a folder of its own, with the curves of the rounds before copied into it.

    Args:
        logger: True for TensorBoard and CSV, False for none, or loggers.
        root: where run folders are made.
    """

    def __init__(self, logger: bool | Logger | list[Logger], root: str) -> None:
        self._logger = logger
        self._root = Path(root)
        self._directory: Path | None = None
        self._writes = False
        self.loggers: list[Any] = []
        self.summary: dict[str, Any] = {}
        #: Shown in TensorBoard's HPARAMS tab; the command line sets the resolved recipe.
        self.hyperparameters: dict[str, Any] = {}

    @property
    def directory(self) -> Path:
        """The run's folder; it exists once a run has started."""
        assert self._directory is not None, "the run's folder is made when a run starts"
        return self._directory

    def start(self, trainer: "FederatedTrainer", stage: str) -> None:
        """Make the run's folder and loggers.

        Raises:
            ConfigurationError: the folder cannot be written, seen before anything is trained.
        """
        if self._directory is not None:
            return
        problem = None
        directory: Path | None = None
        if trainer.is_global_zero:
            try:
                directory = _next_version(self._root)
            except OSError as error:
                problem = f"trainer.default_root_dir={os.fspath(self._root)!r} cannot be written: {error}."
        directory, problem = trainer.fabric.broadcast((directory, problem))
        if problem is not None or directory is None:
            raise ConfigurationError(f"{problem} Free some space or give another folder.")
        self._directory = directory
        self._writes = trainer.is_global_zero
        self.loggers = self._make_loggers() if self._writes else []

    def _make_loggers(self) -> list[Any]:
        if isinstance(self._logger, bool):
            if not self._logger:
                return []
            from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger

            where: dict[str, Any] = {"save_dir": self._root, "name": "", "version": self.directory.name}
            table = CSVLogger(**where, flush_logs_every_n_steps=10)
            _ = table.experiment  # made while the folder is empty: it deletes what it finds
            return [TensorBoardLogger(**where, default_hp_metric=False), table]
        return self._logger if isinstance(self._logger, list) else [self._logger]

    # -- curves --------------------------------------------------------------------------------------------------

    def log_round(self, trainer: "FederatedTrainer") -> None:
        """Write the round that just ended; x is the number of rounds done."""
        if not self._writes:
            return
        scalars = {**trainer.round_metrics, **trainer.communication.curves()}
        for split in ("train", "val") if trainer.evaluated_this_round else ("train",):
            scalars.update(self._scalars(trainer, split))
        self._log(scalars, trainer.current_round)
        if trainer.log_every_n_steps:
            self._log_steps(trainer)

    def log_evaluation(self, trainer: "FederatedTrainer", split: Split) -> None:
        """Write a split's metrics after ``validate`` or ``test``."""
        if self._writes:
            self._log(self._scalars(trainer, split), trainer.current_round)

    def log_figure(self, name: str, figure: "Figure", step: int) -> None:
        """Show a figure in TensorBoard and keep it as ``figures/NAME.png``."""
        if not self._writes:
            return
        with self._disk():
            path = self.directory / "figures" / f"{name.replace('/', '_')}.png"
            path.parent.mkdir(exist_ok=True)
            figure.savefig(path, dpi=150, bbox_inches="tight")
            for logger in self.loggers:
                if hasattr(getattr(logger, "experiment", None), "add_figure"):
                    logger.experiment.add_figure(name, figure, step, close=False)

    @staticmethod
    def logs_clients(trainer: "FederatedTrainer") -> bool:
        """Whether every client has curves of its own."""
        return trainer.num_clients <= _MANY_CLIENTS if trainer.log_per_client is None else trainer.log_per_client

    def _scalars(self, trainer: "FederatedTrainer", split: Split) -> dict[str, float]:
        metrics = trainer.metrics.get(split, {})
        per_client = self.logs_clients(trainer)
        assert trainer.datamodule is not None
        names = trainer.datamodule.client_names()
        scalars: dict[str, float] = {}
        for name, metric in metrics.items():
            if not metric.to_logger:
                continue
            scalars[name] = metric.mean
            scalars[f"{name}/worst"] = metric.worst
            scalars[f"{name}/std"] = metric.std
            if per_client:
                scalars.update({f"{name}/{names[client]}": value for client, value in metric.clients.items()})
        for name, gain in trainer.gains.get(split, {}).items():
            scalars[f"{name}/gain"] = gain.mean
            scalars[f"{name}/ipr"] = gain.ipr
            scalars[f"{name}/rsd"] = gain.rsd
            scalars[f"{name}/harmed"] = gain.harmed
        return scalars

    def _log_steps(self, trainer: "FederatedTrainer") -> None:
        assert trainer.datamodule is not None
        names = trainer.datamodule.client_names()
        for client, values in trainer.client_reports.items():
            for name, logged in values.metrics.items():
                for step, value in logged.steps:
                    self._log({f"{name}/step/{names[client]}": value}, step)

    def _log(self, scalars: dict[str, float], step: int) -> None:
        with self._disk():
            for logger in self.loggers:
                logger.log_metrics(scalars, step=step)

    @contextlib.contextmanager
    def _disk(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise TrainingError(
                f"cannot write to {self.directory}: {error}. Free some space, then go on from the last checkpoint with"
                " --ckpt_path last."
            ) from error

    def replay(self, trainer: "FederatedTrainer", checkpoint: Path) -> None:
        """Copy the curves of the rounds before a checkpoint from the run that it belongs to."""
        if not self._writes or not self.loggers:
            return
        table = checkpoint.parent.parent / "metrics.csv"
        if table.parent == self.directory or not trainer.resumes_fit:
            return
        if not table.is_file():
            rank_zero_warn(f"{table} is not there: the curves begin at round {trainer.current_round + 1}.")
            return
        import pandas as pd  # takes a second to import, which a run without a checkpoint saves

        rows = pd.read_csv(table)
        for row in rows[rows["step"] <= trainer.current_round].to_dict("records"):
            step = int(row.pop("step"))
            self._log({str(name): value for name, value in row.items() if not pd.isna(value)}, step)

    # -- the record ----------------------------------------------------------------------------------------------

    def finish(self, trainer: "FederatedTrainer", stage: str, error: BaseException | None) -> None:
        """Write ``summary.json`` and flush the loggers."""
        if not self._writes or self._directory is None:
            return
        if error is None:
            self._update_summary(trainer, stage)
            with self._disk():
                write_whole(self.directory / "summary.json", json.dumps(self.summary, indent=2, default=str) + "\n")
                if self.hyperparameters or stage == "fit":
                    self._log_hyperparameters()
        for logger in self.loggers:
            logger.save() if hasattr(logger, "save") else None
            logger.finalize("success" if error is None else "failed")

    def _update_summary(self, trainer: "FederatedTrainer", stage: str) -> None:
        assert trainer.datamodule is not None
        assert trainer.module is not None
        source = trainer.datamodule.source
        self.summary.setdefault("title", f"{type(trainer.module).__name__} on {source} data")
        self.summary.update(
            {
                "data_source": source,
                "data": dict(trainer.datamodule.describe()),
                "strategy": type(trainer.strategy).__name__,
                "callbacks": [type(callback).__name__ for callback in trainer.callbacks],
                "seed": trainer.seed,
                "num_clients": trainer.num_clients,
                "client_names": trainer.datamodule.client_names(),
                "num_processes": trainer.fabric.world_size,
                "device": str(trainer.fabric.device),
                "versions": _versions(),
            }
        )
        if stage == "fit":
            self.summary["rounds"] = trainer.current_round
            self.summary["wall_time_seconds"] = round(trainer.wall_time_seconds, 3)
            self.summary["communication"] = trainer.communication.summary(trainer.datamodule.client_names())
            self.summary["interrupted"] = trainer.interrupted_by is not None
            self.summary["resumed_from"] = trainer.ckpt_path
            checkpoint = trainer.checkpoint_callback
            if checkpoint is not None:
                self.summary["best_round"] = checkpoint.best_round
                self.summary["best_value"] = checkpoint.best_value
        splits = self.summary.setdefault("metrics", {})
        for split, metrics in trainer.metrics.items():
            splits[split] = {
                metric_name(name, split): _metric_record(metric, trainer.datamodule.client_names())
                for name, metric in metrics.items()
            }

        gains = self.summary.setdefault("gains_over_local_training", {})
        for split, found in trainer.gains.items():
            gains[split] = {
                metric_name(name, split): {
                    **{part: _plain(getattr(gain, part)) for part in ("mean", "worst", "ipr", "rsd", "harmed")},
                    "clients": {trainer.datamodule.client_names()[i]: _plain(v) for i, v in gain.clients.items()},
                }
                for name, gain in found.items()
            }
        if not gains:
            del self.summary["gains_over_local_training"]

    def _log_hyperparameters(self) -> None:
        final = {
            f"final/{split}/{name}/{part}": record[part]
            for split, metrics in self.summary.get("metrics", {}).items()
            for name, record in metrics.items()
            for part in ("mean", "worst")
            if record[part] is not None
        }
        values = {"strategy": self.summary["strategy"], "seed": self.summary["seed"], **self.hyperparameters}
        for logger in self.loggers:
            if hasattr(getattr(logger, "experiment", None), "add_hparams"):
                logger.log_hyperparams(values, final)


def _next_version(root: Path) -> Path:
    root.mkdir(parents=True, exist_ok=True)
    taken = [int(name[8:]) for name in os.listdir(root) if name.startswith("version_") and name[8:].isdigit()]
    number = max(taken, default=-1) + 1
    while True:
        directory = root / f"version_{number}"
        try:
            directory.mkdir()
        except FileExistsError:  # another run took it meanwhile
            number += 1
            continue
        with tempfile.TemporaryFile(dir=directory) as probe:
            probe.write(b"x")
        return directory


def _metric_record(metric: MetricSummary, names: list[str]) -> dict[str, Any]:
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


def _versions() -> dict[str, str]:
    packages = ("lightning-fl", "torch", "lightning", "torchmetrics", "torch-geometric", "rdkit", "numpy")
    return {"python": platform.python_version(), **{package: version(package) for package in packages}}
