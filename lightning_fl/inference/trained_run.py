"""A finished run as its models and its recipe: what makes the run's module again and loads weights into it.

Its record and its curves are :class:`lightning_fl.study.finished_run.FinishedRun`'s, which asks for neither.
"""

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning_fl.core.errors import CheckpointError, ConfigurationError
from lightning_fl.core.escaping import printable_values
from lightning_fl.files.names import client_files
from lightning_fl.files.user_file import refuse_link_out
from lightning_fl.recipe.file import load_recipe

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule

    from lightning_fl.data.module import FederatedDataModule

__all__ = ["Made", "TrainedRun", "check_out"]

_SHARED = re.compile(r"shared_(0|[1-9]\d*)\.ckpt")
_SNAPSHOT = re.compile(rf".*round_(\d+)[\\/]{_SHARED.pattern}", re.DOTALL)
#: Settings of the trainer that a run's models are used with, too.
_KEPT_SETTINGS = ("num_threads", "precision", "deterministic")


@dataclass(frozen=True)
class Made:
    """What a run's recipe makes.

    Attributes:
        model: the module, with fresh weights.
        data: the data module, not set up.
        settings: of the trainer, those by which models compute: ``num_threads``, ``precision``, ``deterministic``.
    """

    model: "LightningModule"
    data: "FederatedDataModule"
    settings: dict[str, Any]


@dataclass(frozen=True)
class TrainedRun:
    """A finished run of ``lightning-fl fit``, read.

    Attributes:
        folder: of the run: ``version_N``.
        recipe: the resolved ``config.yaml``.
        summary: ``summary.json``.
        shared: the shared models' files, in their order.
    """

    folder: Path
    recipe: dict[str, Any] = field(repr=False)
    summary: dict[str, Any] = field(repr=False)
    shared: tuple[Path, ...]

    @classmethod
    def read(cls, folder: Path) -> "TrainedRun":
        """Read a run.

        Raises:
            ConfigurationError: there is no such run, it is not finished, was not started by the command line or kept no
                models.
            CheckpointError: its summary is damaged, or a model is missing.
        """
        recipe, summary, shared = _read(folder)
        return cls(folder, recipe, summary, tuple(shared))

    @property
    def clients(self) -> dict[str, Path]:
        """The clients' own models: name -> file, for those that have one."""
        names = self.summary.get("client_names")
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise CheckpointError(
                f"{self.folder / 'summary.json'} does not say the clients' names: copy it again, or train again."
            )
        folder = self.folder / "models"
        files = {name: folder / f"{stem}.ckpt" for name, stem in zip(names, client_files(names), strict=True)}
        return {name: path for name, path in files.items() if path.is_file()}

    @property
    def snapshots(self) -> dict[str, Path]:
        """The shared models of earlier rounds (``Snapshots``), in their order: ``shared_K_round_R`` -> file."""
        folder = self.folder / "models" / "snapshots"
        found = [(match, path) for path in folder.glob("round_*/*.ckpt") if (match := _SNAPSHOT.fullmatch(str(path)))]
        found.sort(key=lambda pair: [int(number) for number in pair[0].groups()])
        return {f"{path.stem}_{path.parent.name}": path for _, path in found}

    @property
    def personal_layers(self) -> Any:
        """The layers that clients kept for themselves (``PersonalLayers``); ``None`` where they kept none."""
        trainer = self.recipe.get("trainer")
        callbacks = (trainer.get("callbacks") if isinstance(trainer, dict) else None) or []
        for callback in callbacks if isinstance(callbacks, list) else [callbacks]:
            name = callback.get("class_path", "") if isinstance(callback, dict) else ""
            if str(name).rpartition(".")[2] in ("PersonalLayers", "PrivateHeads"):
                return (callback.get("init_args") or {}).get("layers") or "some"
        return None

    def refuse_personal_layers(self, mend: str) -> None:
        """Shared models have no layers of use where clients keep some for themselves.

        Raises:
            ConfigurationError: they did.
        """
        if (layers := self.personal_layers) is not None:
            raise ConfigurationError(
                f"the run's clients kept the layers {layers} for themselves (PersonalLayers), nobody trained these in"
                f" the shared models: {mend}."
            )

    @contextmanager
    def reading_record(self) -> Iterator[dict[str, Any]]:
        """What the record says of the run's data, for a data module to read.

        Raises:
            CheckpointError: it lacks what the data module looks for.
        """
        record = self.summary["data"]
        try:
            yield record
        except KeyError as error:
            if error.args and error.args[0] not in record:
                raise CheckpointError(
                    f"{self.folder / 'summary.json'} does not say {error.args[0]!r} of the run's data: another version"
                    " made it, or it was changed. Copy it again, or train again."
                ) from error
            raise

    def make(
        self, *, trust: bool = False, accelerator: str = "auto", model_arguments: Mapping[str, Any] | None = None
    ) -> Made:
        """Make the run's module and data module. Imports torch.

        Args:
            trust: the recipe may name classes that are not of this package.
            accelerator: of the trainer that comes with them.
            model_arguments: of the module, in place of the recipe's.

        Raises:
            ConfigurationError: the recipe names a foreign class without ``trust``, or its arguments are refused.
        """
        from lightning_fl.core.seeding import seeded_as
        from lightning_fl.recipe.instantiate import instantiate
        from lightning_fl.recipe.parser import make_parser
        from lightning_fl.recipe.trust import own_classes_only, refuse_foreign_classes

        named = {"model": self.recipe["model"], "data": self.recipe["data"]}
        place = str(self.folder / "config.yaml")
        if not trust:
            refuse_foreign_classes(named, place)
        if model_arguments:
            model = named["model"]
            named["model"] = {**model, "init_args": {**(model.get("init_args") or {}), **model_arguments}}
        fit = make_parser("fit", own_modules=trust)  # imports torch and what depends on it, without their warnings
        settings = {key: value for key, value in (self.recipe.get("trainer") or {}).items() if key in _KEPT_SETTINGS}
        named["trainer"] = {**settings, "accelerator": accelerator, "devices": 1, "logger": False}
        with seeded_as(self.summary["seed"]), nullcontext() if trust else own_classes_only(place):
            made = instantiate(fit, fit.parse_object(named))
        return Made(made.model, made.data, settings)


#: Files and folders of a run that are its record and its models.
_OF_A_RUN = ("config.yaml", "summary.json", "metrics.csv", "splits.json", "calibration.json", "models", "checkpoints")


def check_out(out: Path, run: Path, *reads: Path, named: bool, replace: bool) -> None:
    """Refuse, before anything is read, a file that cannot be written or may not be replaced.

    Args:
        out: the file.
        run: a run's folder, of which the record and the models are read.
        *reads: other files that are read.
        named: the user named it; else it must not lie outside of the run's folder.
        replace: it may be there.
    """
    whole, folder = out.resolve(), run.resolve()
    own = whole.is_relative_to(folder) and whole.relative_to(folder).parts[:1]
    if (own and own[0] in _OF_A_RUN) or whole in [path.resolve() for path in reads]:
        raise ConfigurationError(f"{out} is itself read: name another file with --out.")
    if out.exists() and not replace:
        raise ConfigurationError(f"{out} is there already: name another file with --out, or replace it with --force.")
    if not named:
        refuse_link_out(out, run)
    folder = next(parent for parent in out.absolute().parents if parent.exists())
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        reason = "which cannot be written" if folder.is_dir() else "which is no folder"
        raise ConfigurationError(f"{out} would lie in {folder}, {reason}: name another file with --out.")


def _read(folder: Path) -> tuple[dict[str, Any], dict[str, Any], list[Path]]:
    """The recipe, the summary and the shared models."""
    if not folder.is_dir():
        raise ConfigurationError(f"{folder} is not a folder: give a run's, such as runs/drflm_esol/version_0.")
    if not (folder / "config.yaml").is_file():
        below = sorted(path.parent for path in folder.glob("*/config.yaml"))
        mend = (
            f"give one of the runs in it, such as {below[-1]}"
            if below
            else "give the folder that lightning-fl fit named; for a run started from Python there is"
            " lightning_fl.inference.personalization.personalize"
        )
        raise ConfigurationError(f"{folder} is no run of lightning-fl fit, it has no config.yaml: {mend}.")
    summary_file = folder / "summary.json"
    try:
        text = summary_file.read_text(encoding="utf-8") if summary_file.is_file() else "{}"
        summary = printable_values(json.loads(text))
        if not isinstance(summary, dict):
            raise TypeError("it is no mapping")
        finished = "rounds" in summary and "data" in summary
        if finished and not (isinstance(summary["data"], dict) and isinstance(summary.get("seed"), int)):
            raise TypeError("it lacks the run's seed or what its data were")
    except (OSError, ValueError, TypeError, RecursionError) as error:
        reason = "it is no text" if isinstance(error, UnicodeDecodeError) else error
        raise CheckpointError(f"{summary_file} is damaged ({reason}): copy it again, or train again.") from error
    if not finished:
        last = folder / "checkpoints" / "last.ckpt"
        resume = f"lightning-fl fit --config {folder / 'config.yaml'}{f' --ckpt_path {last}' if last.is_file() else ''}"
        raise ConfigurationError(
            f"the run {folder} is not finished, it has no summary.json{' of a fit' if summary else ''}:"
            f" end it with {resume}, and give the folder that this names."
        )
    found = {int(match[1]): path for path in folder.glob("models/*") if (match := _SHARED.fullmatch(path.name))}
    if not found:
        raise ConfigurationError(
            f"{folder / 'models'} holds no shared_*.ckpt: the run kept no models; train with ModelCheckpoint's"
            " save_models (and trainer.enable_checkpointing) true."
        )
    known = summary.get("num_models")  # of older versions' runs the files say it
    shared = range(known if isinstance(known, int) and known > 0 else max(found) + 1)
    if (missing := next((k for k in shared if k not in found), None)) is not None:
        raise CheckpointError(f"{folder / 'models' / f'shared_{missing}.ckpt'} is missing: copy the run again.")
    recipe = load_recipe(folder / "config.yaml")
    if not isinstance(recipe.get("trainer") or {}, dict):
        raise ConfigurationError(f"{folder / 'config.yaml'}: trainer is no mapping. Copy the file again.")
    if lacking := [key for key in ("model", "data") if not recipe.get(key)]:
        raise ConfigurationError(
            f"{folder / 'config.yaml'} has no {' and no '.join(lacking)}: it is not the file that lightning-fl fit"
            " wrote. Copy it again, or train again."
        )
    return recipe, summary, [found[k] for k in shared]
