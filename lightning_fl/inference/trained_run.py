"""Finished run with its saved models, which can instantiate its module and data again."""

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from lightning_fl.core.errors import CheckpointError, ConfigurationError
from lightning_fl.files.names import client_files
from lightning_fl.files.user_file import refuse_link_out
from lightning_fl.recipe.file import class_name
from lightning_fl.study.finished_run import FinishedRun

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule

    from lightning_fl.data.module import FederatedDataModule

_SHARED = re.compile(r"shared_(0|[1-9]\d*)\.ckpt")
_SNAPSHOT = re.compile(rf".*round_(\d+)[\\/]{_SHARED.pattern}", re.DOTALL)
#: Trainer settings that also apply to the use of a run's models.
_KEPT_SETTINGS = ("num_threads", "precision", "deterministic")


@dataclass(frozen=True)
class Made:
    """Module with initial weights, data module before ``setup``, and the trainer settings to keep of a run's recipe."""

    model: "LightningModule"
    data: "FederatedDataModule"
    settings: dict[str, Any]


class TrainedRun(FinishedRun):
    """A finished run of ``lightning-fl fit`` that saved models."""

    @classmethod
    def read(cls, folder: str | Path) -> Self:
        """Read a run.

        One that does not exist, is not finished, was started from Python or saved no models is a ConfigurationError, a
        damaged record or a missing model a CheckpointError.
        """
        path, run = Path(folder).expanduser(), super().read(folder)
        config = run.folder / "config.yaml"
        if run.folder != path:
            raise ConfigurationError(f"{path} is a folder of runs: name one of them, such as {run.folder}.")
        if not config.is_file():
            other = "load_from_checkpoint of your module, or lightning_fl.inference.personalization.personalize"
            raise ConfigurationError(f"{config} is missing: name a run of lightning-fl fit; from Python use {other}.")
        if run.rounds is None:
            raise ConfigurationError(f"{path} is not the run of a fit: name the folder that lightning-fl fit printed.")
        recipe = run.recipe
        if not isinstance(recipe.get("trainer") or {}, dict) or not (recipe.get("model") and recipe.get("data")):
            raise ConfigurationError(f"{config} has no model, no data or no mapping trainer: copy the file again.")
        _ = run.shared
        return run

    @cached_property
    def shared(self) -> list[Path]:
        """Files of the shared models, in order; their number is missing in runs of older versions."""
        folder, count = self.folder / "models", self.summary.get("num_models")
        found = {int(match[1]) for path in folder.glob("*") if (match := _SHARED.fullmatch(path.name))}
        if not found:
            raise ConfigurationError(f"{folder} has no shared_*.ckpt: train with ModelCheckpoint.save_models.")
        models = [folder / f"shared_{number}.ckpt" for number in range(count or max(found) + 1)]
        for path in models:
            if not path.is_file():
                raise CheckpointError(f"{path} is missing: copy the run again.")
        return models

    @property
    def clients(self) -> dict[str, Path]:
        """Models of clients: name -> file, for those that have one."""
        files = zip(self.client_names, client_files(self.client_names), strict=True)
        found = {name: self.folder / "models" / f"{stem}.ckpt" for name, stem in files}
        return {name: path for name, path in found.items() if path.is_file()}

    @property
    def snapshots(self) -> dict[str, Path]:
        """Shared models of earlier rounds (``Snapshots``), in order: ``shared_K_round_R`` -> file."""
        folder = self.folder / "models" / "snapshots"
        found = [(match, path) for path in folder.glob("round_*/*.ckpt") if (match := _SNAPSHOT.fullmatch(str(path)))]
        found.sort(key=lambda pair: [int(number) for number in pair[0].groups()])
        return {f"{path.stem}_{path.parent.name}": path for _, path in found}

    @property
    def personal_layers(self) -> Any:
        """Layers that were not shared (``PersonalLayers``, ``PrivateHeads``); ``None`` if all were."""
        exported = "exported" in self.summary  # one complete model
        callbacks = [] if exported else (self.recipe.get("trainer") or {}).get("callbacks") or []
        for callback in callbacks if isinstance(callbacks, list) else [callbacks]:
            if isinstance(callback, dict) and class_name(callback) in ("PersonalLayers", "PrivateHeads"):
                return (callback.get("init_args") or {}).get("layers") or "some"
        return None

    def refuse_personal_layers(self, remedy: str) -> None:
        """Refuse to use shared models with untrained personal layers; ``remedy`` ends the message."""
        if (layers := self.personal_layers) is not None:
            raise ConfigurationError(f"the layers {layers} of the shared models are untrained (personal): {remedy}.")

    @contextmanager
    def reading_record(self) -> Iterator[dict[str, Any]]:
        """Context with the record of the run's data, for a data module; a missing key is a CheckpointError."""
        record = self.summary["data"]
        try:
            yield record
        except KeyError as error:
            if error.args and error.args[0] not in record:
                what = f"{self.folder / 'summary.json'} lacks {error.args[0]!r} of the run's data"
                raise CheckpointError(f"{what}: another version wrote it, or it was edited. Copy it again.") from error
            raise

    def make(
        self, *, trust: bool = False, accelerator: str = "auto", model_arguments: Mapping[str, Any] | None = None
    ) -> Made:
        """Instantiate the run's module and data module; ``model_arguments`` override the recipe's. Imports torch."""
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
        fit = make_parser("fit", own_modules=trust)  # imports torch without its warnings
        settings = {key: value for key, value in (self.recipe.get("trainer") or {}).items() if key in _KEPT_SETTINGS}
        named["trainer"] = {**settings, "accelerator": accelerator, "devices": 1, "logger": False}
        with seeded_as(self.seed), nullcontext() if trust else own_classes_only(place):
            made = instantiate(fit, fit.parse_object(named))
        return Made(made.model, made.data, settings)


#: Files and folders of a run that must not be overwritten.
_OF_A_RUN = ("config.yaml", "summary.json", "metrics.csv", "splits.json", "calibration.json", "models", "checkpoints")


def check_out(out: Path, run: Path, *reads: Path, named: bool, replace: bool) -> None:
    """Refuse an output file that cannot be written or must not be replaced, before the run and other files are read.

    Unless the user ``named`` it, it must be inside the run's folder; it may exist if it is to ``replace``.
    """
    whole, folder = out.resolve(), run.resolve()
    own = whole.is_relative_to(folder) and whole.relative_to(folder).parts[:1]
    if (own and own[0] in _OF_A_RUN) or whole in [path.resolve() for path in reads]:
        raise ConfigurationError(f"{out} is an input: choose another file with --out.")
    if out.is_dir():
        raise ConfigurationError(f"{out} is a folder: name a file with --out.")
    if out.exists() and not replace:
        raise ConfigurationError(f"{out} exists: choose another file with --out, or replace it with --force.")
    if not named:
        refuse_link_out(out, run)
    folder = next(parent for parent in out.absolute().parents if parent.exists())
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        reason = "is not writable" if folder.is_dir() else "is not a folder"
        raise ConfigurationError(f"{out} cannot be written, {folder} {reason}: choose another file with --out.")
