"""Adapters for loggers: TensorBoard, Weights & Biases, MLflow, Comet, or one of the user's.

All get the same scalars; pictures, tables, files and settings go to each in its own way.
"""

import hashlib
import io
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from traceback import walk_tb
from typing import TYPE_CHECKING, Any

from lightning_fl.core.client_names import rows_of
from lightning_fl.core.errors import ConfigurationError, TrainingError, cut
from lightning_fl.core.escaping import NOT_A_NUMBER, csv_value
from lightning_fl.runtime.curve_table import WholeCSVLogger

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

Settings = Mapping[str, bool | int | float | str]


class LoggerAdapter:
    """Adapter for one logger; this one suits any of Lightning's."""

    #: The name of its extra in pip, and what to do if the logger cannot begin.
    extra, advice = "", ""
    #: The packages whose errors are the logger's.
    packages: Sequence[str] = ()

    def __init__(self, logger: Any) -> None:
        self.logger = logger

    def call(self, method: str, *args: Any) -> None:
        """Call a method below; an error of its package is a ConfigurationError in ``begin``, else a TrainingError."""
        try:
            getattr(self, method)(*args)
        except Exception as error:
            if not _is_of(error, self.packages):
                raise
            if method == "begin":
                raise ConfigurationError(f"{self.name} cannot begin: {_line(error)} {self.advice}") from error
            remedy = "The last checkpoint is complete: resume with --ckpt_path last."
            raise TrainingError(f"{self.name} cannot log: {_line(error)} {remedy}") from error

    @property
    def name(self) -> str:
        return type(self.logger).__name__

    @property
    def uploads(self) -> bool | str:
        """Whether it takes checkpoints: ``True`` for those after a fit, ``"all"`` for each when it is written."""
        return getattr(self.logger, "_log_model", False)

    def begin(self, settings: Settings) -> None:
        """Log the settings known at the start of a run."""

    def log_metrics(self, scalars: Mapping[str, float], step: int) -> None:
        self.logger.log_metrics(dict(scalars), step=step)

    def log_figure(self, name: str, figure: "Figure", picture: bytes, step: int) -> None:
        """Log a figure, which is also given as PNG."""
        experiment: Any = getattr(self.logger, "experiment", None)
        writer = getattr(experiment, "file_writer", None)
        if writer is not None and type(experiment).__module__.startswith("torch."):  # add_figure would draw it again
            from PIL import Image
            from tensorboard.compat.proto.summary_pb2 import Summary

            width, height = Image.open(io.BytesIO(picture)).size
            image = Summary.Image(width=width, height=height, colorspace=4, encoded_image_string=picture)
            writer.add_summary(Summary(value=[Summary.Value(tag=name, image=image)]), step)
        elif hasattr(experiment, "add_figure"):
            with warnings.catch_warnings():  # drawing it for the file has shown the warnings
                warnings.simplefilter("ignore")
                experiment.add_figure(name, figure, step, close=False)

    def log_checkpoints(self, run: Path) -> None:
        """Log the checkpoints in a run's folder."""

    def log_run(self, run: Path, summary: Mapping[str, Any], step: int, fitted: bool) -> None:
        """Log the tables of a run's folder and of its clients, its summary and settings, and a fit's checkpoints."""

    def log_final(self, settings: Settings, final: Mapping[str, float], step: int) -> None:
        """Log the settings with the final metrics, at the end of a fit and of each evaluation after it."""
        if hasattr(getattr(self.logger, "experiment", None), "add_hparams"):
            self.logger.log_hyperparams(dict(settings), dict(final), step)
        elif not isinstance(self.logger, WholeCSVLogger):
            self.logger.log_hyperparams(dict(settings))


class _Service(LoggerAdapter):
    """A logger that takes everything: pictures, tables and files of the run."""

    log_image: Callable[[str, Any, int], None]  # name, picture, step
    log_table: Callable[[str, "pd.DataFrame", int], None]  # name, table, step
    log_files: Callable[[str, Sequence[Path]], None]  # name of all, files

    def begin(self, settings: Settings) -> None:
        self.logger.log_hyperparams(dict(settings))

    def log_figure(self, name: str, figure: "Figure", picture: bytes, step: int) -> None:
        from PIL import Image

        with Image.open(io.BytesIO(picture)) as image:
            self.log_image(f"figures/{name}", image.convert("RGB"), step)

    def log_final(self, settings: Settings, final: Mapping[str, float], step: int) -> None:
        self.logger.log_hyperparams(dict(settings))
        self.log_metrics(final, step)

    def log_checkpoints(self, run: Path) -> None:
        self.log_files("checkpoints", sorted((run / "checkpoints").glob("*.ckpt")))

    def log_run(self, run: Path, summary: Mapping[str, Any], step: int, fitted: bool) -> None:
        import pandas as pd

        for path in sorted(run.glob("*.csv")):
            if path.name != "metrics.csv":
                texts = dict.fromkeys(("client", "received_from", "sender", "recipient"), csv_value)
                table = pd.read_csv(path, converters=texts, keep_default_na=False, na_values=NOT_A_NUMBER)
                self.log_table(path.stem, table, step)
        records = {
            f"{split}/{name}": record["clients"]
            for split, metrics in summary.get("metrics", {}).items()
            for name, record in metrics.items()
        }
        names = rows_of(summary["client_names"], records.values())
        columns = {name: [of_clients.get(client) for client in names] for name, of_clients in records.items()}
        self.log_table("clients", pd.DataFrame({"client": names, **columns}), step)
        self.log_files("run", [path for name in ("summary.json", "config.yaml") if (path := run / name).is_file()])
        if fitted and self.uploads is True:
            self.log_checkpoints(run)


class _Wandb(_Service):
    extra, packages = "wandb", ("wandb",)
    advice = "Log in with `wandb login`, or set WANDB_MODE=offline."

    def log_image(self, name: str, image: Any, step: int) -> None:
        self.logger.log_image(key=name, images=[image], step=step)

    def log_table(self, name: str, table: "pd.DataFrame", step: int) -> None:
        self.logger.log_table(key=f"tables/{name}", dataframe=table, step=step)

    def log_files(self, name: str, files: Sequence[Path]) -> None:
        import wandb

        experiment = self.logger.experiment
        artifact = wandb.Artifact(f"{name}-{experiment.id}", type="model" if name == "checkpoints" else "run")
        for file in files:
            artifact.add_file(str(file), name=file.name)
        experiment.log_artifact(artifact)


class _MLflow(_Service):
    extra, packages = "mlflow", ("mlflow", "requests", "urllib3", "sqlalchemy")
    advice = "Check tracking_uri: a server's address, or a file such as sqlite:///mlflow.db, which needs none."

    def log_metrics(self, scalars: Mapping[str, float], step: int) -> None:
        # Lightning drops characters that MLflow does not take, so that two clients might share a curve.
        super().log_metrics({_plain(name): value for name, value in scalars.items()}, step)

    def log_image(self, name: str, image: Any, step: int) -> None:
        self.logger.experiment.log_image(self.logger.run_id, image, key=name, step=step)

    def log_table(self, name: str, table: "pd.DataFrame", step: int) -> None:
        # MLflow's log_table would append to the rows of an earlier evaluation.
        text = table.to_json(orient="split", index=False)
        self.logger.experiment.log_text(self.logger.run_id, text, f"tables/{name}.json")

    def log_files(self, name: str, files: Sequence[Path]) -> None:
        for file in files:
            self.logger.experiment.log_artifact(self.logger.run_id, str(file), name)


class _Comet(_Service):
    extra, packages = "comet", ("comet_ml", "requests", "urllib3")
    advice = "Set COMET_API_KEY, or COMET_START_ONLINE=0 to write into the folder COMET_OFFLINE_DIRECTORY."

    @property
    def uploads(self) -> bool | str:
        return False

    def begin(self, settings: Settings) -> None:
        if getattr(self.logger, "_online", None) is False and self.logger.experiment.disabled:
            instead = "set COMET_START_ONLINE=0 and COMET_OFFLINE_DIRECTORY instead"
            raise ConfigurationError(f"CometLogger.online=false makes Lightning's logger record nothing: {instead}.")
        super().begin(settings)

    def log_image(self, name: str, image: Any, step: int) -> None:
        self.logger.experiment.log_image(image, name=name, step=step)

    def log_table(self, name: str, table: "pd.DataFrame", step: int) -> None:
        self.logger.experiment.log_table(f"{name}.csv", tabular_data=table)

    def log_files(self, name: str, files: Sequence[Path]) -> None:
        for file in files:
            self.logger.experiment.log_asset(str(file), file_name=f"{name}/{file.name}", overwrite=True)


#: By class name, since a logger may be of either of Lightning's packages.
_KINDS: dict[str, type[_Service]] = {"WandbLogger": _Wandb, "MLFlowLogger": _MLflow, "CometLogger": _Comet}


def adapter_of(logger: Any) -> LoggerAdapter:
    """Return the adapter for a logger."""
    return _adapter_class(type(logger))(logger)


def _adapter_class(logger: type) -> type[LoggerAdapter]:
    return next((_KINDS[base.__name__] for base in logger.__mro__ if base.__name__ in _KINDS), LoggerAdapter)


def refused_logger(kind: type, error: Exception) -> ConfigurationError | None:
    """The error to raise if a logger's constructor failed in a recipe; ``None`` if the error has another cause."""
    adapter = _adapter_class(kind)
    if adapter is not LoggerAdapter and isinstance(error, ModuleNotFoundError):
        remedy = f'Install it with `pip install "lightning-fl[{adapter.extra}]"`.'
        return ConfigurationError(f"{kind.__name__}: {adapter.packages[0]} is not installed, or too old. {remedy}")
    if _is_of(error, adapter.packages):
        return ConfigurationError(f"{kind.__name__} cannot begin: {_line(error)} {adapter.advice}")
    return None


def _is_of(error: BaseException, packages: Sequence[str]) -> bool:
    """Whether an error is one of some packages, or was raised in one of them."""
    modules = [type(error).__module__]
    modules += [frame.f_globals.get("__name__", "") for frame, _ in list(walk_tb(error.__traceback__))[-1:]]
    return any(module.partition(".")[0] in packages for module in modules)


def _line(error: Exception) -> str:
    text = cut(" ".join(str(error).split()), 300) or type(error).__name__
    return text if text.endswith((".", "!", "?")) else f"{text}."


def _plain(name: str) -> str:
    """The name in characters that MLflow takes, distinct for each name."""
    if re.fullmatch(r"[A-Za-z0-9_/. -]+", name):
        return name
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()
    return f"{re.sub(r'[^A-Za-z0-9_/. -]+', '_', name)}-{digest[:8]}"
