"""Checkpoints of a run, and models as ordinary Lightning checkpoints."""

import os
import pickle
import re
import tempfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lightning.pytorch
import torch
from lightning.pytorch import LightningModule

from lightning_fl.collaboration import Collaboration
from lightning_fl.engine.round.training import mixture
from lightning_fl.engine.weights.flat import Weights
from lightning_fl.errors import CheckpointError

if TYPE_CHECKING:
    from lightning_fl.trainer import FederatedTrainer

__all__ = ["export_models", "load_checkpoint", "model_checkpoint", "resolve_checkpoint", "save_atomically"]


def save_atomically(content: dict[str, Any], path: Path) -> None:
    """Write a file whole or not at all: a crash leaves the old one.

    Raises:
        CheckpointError: the disk is full or the folder cannot be written.
    """
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        temporary = Path(name)
        with os.fdopen(handle, "wb") as file:
            torch.save(content, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except (OSError, RuntimeError) as error:
        if temporary is not None:
            temporary.unlink(missing_ok=True)
        kept = f" {path} from before is kept." if path.exists() else ""
        raise CheckpointError(
            f"cannot write {path}: {error}.{kept} Free some space or set trainer.default_root_dir to a folder that can"
            " be written."
        ) from error


def load_checkpoint(path: Path) -> dict[str, Any]:
    """A run's checkpoint, read without running any code from it.

    Raises:
        CheckpointError: the file is missing, damaged, or not a federated run's checkpoint.
    """
    if not path.is_file():
        raise CheckpointError(f"{path}: there is no such checkpoint. Give a file, or 'last' or 'best'.")
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, EOFError, RuntimeError, ValueError, KeyError, pickle.UnpicklingError, zipfile.BadZipFile) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise CheckpointError(
            f"{path} is damaged or not a checkpoint ({reason}). Use another one of its folder, or start anew."
        ) from error
    if not isinstance(content, dict) or "lightning_fl_version" not in content:
        hint = ""
        if isinstance(content, dict) and "state_dict" in content:
            hint = " It is a single model's: open it with YourModule.load_from_checkpoint."
        raise CheckpointError(
            f"{path} is not the checkpoint of a federated run.{hint} Give one from a run's checkpoints/."
        )
    return content


def resolve_checkpoint(trainer: "FederatedTrainer", ckpt_path: str | os.PathLike[str] | None) -> Path | None:
    """The file that ``last``, ``best`` or a path means; the same on every rank.

    The trainer's own run comes first, then the other runs below ``default_root_dir``, the latest version first.

    Raises:
        CheckpointError: there is none.
    """
    if ckpt_path is None:
        return None
    if ckpt_path not in ("last", "best"):
        return Path(ckpt_path)
    found: Path | None = None
    if trainer.is_global_zero:
        root = Path(trainer.default_root_dir)
        versions = [
            (int(match[1]), folder) for folder in root.glob("version_*") if (match := _VERSION.match(folder.name))
        ]
        folders = [Path(trainer.log_dir), *(folder for _, folder in sorted(versions, reverse=True))]
        if trainer.ckpt_path is not None:  # a resumed run may have found nothing better than the run it goes on from
            folders.insert(1, Path(trainer.ckpt_path).parent.parent)
        files = (folder / "checkpoints" / f"{ckpt_path}.ckpt" for folder in folders)
        found = next((file for file in files if file.is_file()), None)
    found = trainer.fabric.broadcast(found)
    if found is None:
        monitored = " A best one exists only where a metric is monitored." if ckpt_path == "best" else ""
        raise CheckpointError(
            f"no {ckpt_path}.ckpt in any run below {trainer.default_root_dir}.{monitored} Check"
            " trainer.default_root_dir, or give a file."
        )
    return found


_VERSION = re.compile(r"version_(\d+)$")


def export_models(
    trainer: "FederatedTrainer",
    models: list[Weights],
    collaboration: Collaboration,
    client_stores: dict[str, dict[int, Any]],
    directory: Path,
    current_round: int,
) -> None:
    """Write every shared model and every client's model as a checkpoint that ``load_from_checkpoint`` opens.

    Clients that use a shared model as it is are links to its file. The files hold ``hyper_parameters`` as Lightning
    saves them. Rank zero writes.
    """
    if not trainer.is_global_zero:
        return
    assert trainer.module is not None
    assert trainer.datamodule is not None
    shared = []
    for k, model in enumerate(models):
        path = directory / f"shared_{k}.ckpt"
        trainer.loop.flat.load(model)
        save_atomically(model_checkpoint(trainer.module, current_round), path)
        shared.append(path)
    for client, name in enumerate(trainer.datamodule.client_names()):
        path = directory / f"{re.sub(r'[^A-Za-z0-9._-]+', '_', name)}.ckpt"
        own = collaboration.model_of(client)
        final = client_stores.get("final_models", {}).get(client)
        personal = client_stores.get("personal_layers", {}).get(client)
        if own is not None and final is None and personal is None:
            path.unlink(missing_ok=True)
            _link(shared[own], path)
            continue
        if final is not None:
            trainer.loop.flat.load(Weights.from_state_dict(final, trainer.fabric.device))
        else:
            trainer.loop.flat.load(mixture(collaboration.personalisation[client].tolist(), models))
            if personal is not None and trainer.personal is not None:
                trainer.personal.insert_(trainer.loop.flat.weights, personal)
        save_atomically(model_checkpoint(trainer.module, current_round), path)


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # a file system without hard links
        target.write_bytes(source.read_bytes())


def model_checkpoint(module: LightningModule, current_round: int) -> dict[str, Any]:
    """What Lightning saves of a module, so that ``load_from_checkpoint`` opens it."""
    checkpoint: dict[str, Any] = {
        "epoch": current_round,
        "global_step": 0,
        "pytorch-lightning_version": lightning.pytorch.__version__,
        "state_dict": {name: value.detach().cpu().clone() for name, value in module.state_dict().items()},
    }
    if module.hparams:
        if getattr(module, "_hparams_name", None):
            checkpoint[module.CHECKPOINT_HYPER_PARAMS_NAME] = module._hparams_name
        checkpoint[module.CHECKPOINT_HYPER_PARAMS_KEY] = dict(module.hparams)
    module.on_save_checkpoint(checkpoint)
    return checkpoint
