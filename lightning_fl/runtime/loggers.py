"""How a run reaches the loggers that people use: TensorBoard, Weights & Biases, MLflow, Comet, or one of their own.

All get the same scalars. What is no scalar (pictures, tables, files, settings) each logger takes in a way of its own:

==================  ==================  ================  =====================  ==========================
logger              pictures            tables            files                  settings
==================  ==================  ================  =====================  ==========================
TensorBoardLogger   ``add_figure``                                               ``add_hparams``, at the end
WandbLogger         ``log_image``       ``log_table``     an artifact            the run's config
MLFlowLogger        ``log_image``       ``log_table``     artifacts              parameters
CometLogger         ``log_image``       ``log_table``     assets                 parameters
another             ``add_figure`` of                                            ``log_hyperparams``
                    its experiment
==================  ==================  ================  =====================  ==========================
"""

import contextlib
import hashlib
import io
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning_fl.core.errors import ConfigurationError, TrainingError, cut
from lightning_fl.runtime.curve_table import WholeCSVLogger

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

__all__ = ["Outlet", "outlet_of", "refused_logger"]

Settings = Mapping[str, bool | int | float | str]


class Outlet:
    """A logger, as a run writes to it. This one is for any logger of Lightning's.

    Args:
        logger: it.
    """

    #: What it takes from pip, and how to mend it where it cannot begin.
    extra, mend = "", ""
    #: The packages whose errors are the logger's.
    packages: Sequence[str] = ()

    def __init__(self, logger: Any) -> None:
        self.logger = logger

    @property
    def name(self) -> str:
        """The logger's class."""
        return type(self.logger).__name__

    @property
    def uploads(self) -> bool | str:
        """Whether it takes checkpoints: ``True`` when a fit has ended, ``"all"`` whenever one is written."""
        return getattr(self.logger, "_log_model", False)

    def begin(self, settings: Settings) -> None:
        """A run begins, with what is known of its settings.

        Raises:
            ConfigurationError: the logger cannot be reached.
        """

    def log_metrics(self, scalars: Mapping[str, float], step: int) -> None:
        """Points of curves."""
        self.logger.log_metrics(dict(scalars), step=step)

    def log_figure(self, name: str, figure: "Figure", picture: bytes, step: int) -> None:
        """A picture, drawn as PNG too."""
        if self._shows_figures:
            with warnings.catch_warnings():  # drawn once more: what there is to warn of was said of its file
                warnings.simplefilter("ignore")
                self.logger.experiment.add_figure(name, figure, step, close=False)

    @property
    def _shows_figures(self) -> bool:
        return hasattr(getattr(self.logger, "experiment", None), "add_figure")

    def log_table(self, name: str, table: "pd.DataFrame", step: int) -> None:
        """A table of the run's."""

    def log_files(self, name: str, files: Sequence[Path]) -> None:
        """Files of the run's under one name."""

    def log_final(self, settings: Settings, final: Mapping[str, float], step: int) -> None:
        """The settings with what came of them, at the end of a fit and of each evaluation after it."""
        if hasattr(getattr(self.logger, "experiment", None), "add_hparams"):
            self.logger.log_hyperparams(dict(settings), dict(final))
        elif not isinstance(self.logger, WholeCSVLogger):
            self.logger.log_hyperparams(dict(settings))

    @contextlib.contextmanager
    def _asking(self, *, begins: bool = False) -> Iterator[None]:
        """Say whose error it is where the logger's own package raises one."""
        try:
            yield
        except Exception as error:
            if not is_of(error, self.packages):
                raise
            if begins:
                raise ConfigurationError(_unreachable(self.name, error, self.mend)) from error
            raise TrainingError(
                f"{self.name} cannot log: {_line(error)} The last checkpoint is whole: go on with --ckpt_path last."
            ) from error


class _Service(Outlet):
    """A logger that takes everything, in its own way."""

    def begin(self, settings: Settings) -> None:
        with self._asking(begins=True):
            self._check()
            self.logger.log_hyperparams(dict(settings))

    def _check(self) -> None:
        pass

    def log_metrics(self, scalars: Mapping[str, float], step: int) -> None:
        with self._asking():
            self.logger.log_metrics(dict(scalars), step=step)

    def log_figure(self, name: str, figure: "Figure", picture: bytes, step: int) -> None:
        from PIL import Image

        with self._asking(), Image.open(io.BytesIO(picture)) as image:
            self._show(f"figures/{name}", image.convert("RGB"), step)

    def _show(self, name: str, image: Any, step: int) -> None:
        raise NotImplementedError

    def log_table(self, name: str, table: "pd.DataFrame", step: int) -> None:
        with self._asking():
            self._tabulate(name, table, step)

    def _tabulate(self, name: str, table: "pd.DataFrame", step: int) -> None:
        raise NotImplementedError

    def log_files(self, name: str, files: Sequence[Path]) -> None:
        with self._asking():
            self._hand_over(name, files)

    def _hand_over(self, name: str, files: Sequence[Path]) -> None:
        raise NotImplementedError

    def log_final(self, settings: Settings, final: Mapping[str, float], step: int) -> None:
        with self._asking():
            self.logger.log_hyperparams(dict(settings))
        self.log_metrics(final, step)


class _Wandb(_Service):
    extra, packages = "wandb", ("wandb",)
    mend = "Log in with `wandb login`, or set WANDB_MODE=offline."

    def _show(self, name: str, image: Any, step: int) -> None:
        self.logger.log_image(key=name, images=[image], step=step)

    def _tabulate(self, name: str, table: "pd.DataFrame", step: int) -> None:
        self.logger.log_table(key=f"tables/{name}", dataframe=table, step=step)

    def _hand_over(self, name: str, files: Sequence[Path]) -> None:
        import wandb

        experiment = self.logger.experiment
        kind = "model" if name == "checkpoints" else "run"
        artifact = wandb.Artifact(name=f"{name}-{experiment.id}", type=kind)
        for file in files:
            artifact.add_file(str(file), name=file.name)
        experiment.log_artifact(artifact)


class _MLflow(_Service):
    extra, packages = "mlflow", ("mlflow", "requests", "urllib3", "sqlalchemy")
    mend = "Check tracking_uri: a server's address, or a file such as sqlite:///mlflow.db, which needs none."

    def log_metrics(self, scalars: Mapping[str, float], step: int) -> None:
        # Of other letters Lightning leaves the letters out, so that two clients might share a curve.
        super().log_metrics({_plain(name): value for name, value in scalars.items()}, step)

    def _show(self, name: str, image: Any, step: int) -> None:
        self.logger.experiment.log_image(self.logger.run_id, image, key=name, step=step)

    def _tabulate(self, name: str, table: "pd.DataFrame", step: int) -> None:
        # Its log_table adds rows to those that an earlier evaluation of the run has left; these stand for all.
        self.logger.experiment.log_text(
            self.logger.run_id, table.to_json(orient="split", index=False), f"tables/{name}.json"
        )

    def _hand_over(self, name: str, files: Sequence[Path]) -> None:
        for file in files:
            self.logger.experiment.log_artifact(self.logger.run_id, str(file), name)


class _Comet(_Service):
    extra, packages = "comet", ("comet_ml", "requests", "urllib3")
    mend = "Set COMET_API_KEY, or COMET_START_ONLINE=0 to write into the folder COMET_OFFLINE_DIRECTORY."

    def _check(self) -> None:
        if getattr(self.logger, "_online", None) is False and self.logger.experiment.disabled:
            raise ConfigurationError(
                "CometLogger.online=false makes Lightning's logger record nothing: leave it out and set"
                " COMET_START_ONLINE=0 and COMET_OFFLINE_DIRECTORY."
            )

    @property
    def uploads(self) -> bool | str:
        return False

    def _show(self, name: str, image: Any, step: int) -> None:
        self.logger.experiment.log_image(image, name=name, step=step)

    def _tabulate(self, name: str, table: "pd.DataFrame", step: int) -> None:
        self.logger.experiment.log_table(f"{name}.csv", tabular_data=table)

    def _hand_over(self, name: str, files: Sequence[Path]) -> None:
        for file in files:
            self.logger.experiment.log_asset(str(file), file_name=f"{name}/{file.name}", overwrite=True)


#: By class name, since a logger may be of either of Lightning's packages.
_KINDS: dict[str, type[_Service]] = {"WandbLogger": _Wandb, "MLFlowLogger": _MLflow, "CometLogger": _Comet}


def outlet_of(logger: Any) -> Outlet:
    """How a run writes to a logger."""
    return _kind(type(logger))(logger)


def _kind(logger: type) -> type[Outlet]:
    return next((_KINDS[base.__name__] for base in logger.__mro__ if base.__name__ in _KINDS), Outlet)


def refused_logger(kind: type, error: Exception) -> ConfigurationError | None:
    """What is to be said where a logger of a recipe cannot be made; ``None`` if the error is not about that.

    Args:
        kind: the class.
        error: of its constructor.
    """
    outlet = _kind(kind)
    if outlet is Outlet:
        return None
    if isinstance(error, ModuleNotFoundError):
        return ConfigurationError(
            f"{kind.__name__}: {outlet.packages[0]} is not installed, or too old. Install it with `pip install"
            f' "lightning-fl[{outlet.extra}]"`.'
        )
    if is_of(error, outlet.packages):
        return ConfigurationError(_unreachable(kind.__name__, error, outlet.mend))
    return None


def is_of(error: BaseException, packages: Sequence[str]) -> bool:
    """Whether an error is one of some packages, or was raised in one of them."""
    if type(error).__module__.partition(".")[0] in packages:
        return True
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and trace.tb_frame.f_globals.get("__name__", "").partition(".")[0] in packages


def _unreachable(name: str, error: Exception, mend: str) -> str:
    return f"{name} cannot begin: {_line(error)} {mend}"


def _line(error: Exception) -> str:
    text = cut(" ".join(str(error).split()), 300) or type(error).__name__
    return text if text.endswith((".", "!", "?")) else f"{text}."


def _plain(name: str) -> str:
    """A name of the letters that MLflow takes, another one for each name."""
    if re.fullmatch(r"[A-Za-z0-9_/. -]+", name):
        return name
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()
    return f"{re.sub(r'[^A-Za-z0-9_/. -]+', '_', name)}-{digest[:8]}"
