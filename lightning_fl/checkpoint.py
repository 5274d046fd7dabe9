"""Checkpoints of a run, and models as ordinary Lightning checkpoints."""

import os
import pickle
import re
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lightning.pytorch
import torch
from lightning.fabric import Fabric
from lightning.pytorch import LightningModule

from lightning_fl.engine.federation import Federation
from lightning_fl.engine.weights.flat import FlatModule
from lightning_fl.errors import CheckpointError

__all__ = [
    "class_path",
    "export_models",
    "load_checkpoint",
    "model_checkpoint",
    "resolve_checkpoint",
    "save_atomically",
]


def class_path(module: object) -> str:
    """The import path of an object's class."""
    return f"{type(module).__module__}.{type(module).__qualname__}"


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


def resolve_checkpoint(
    ckpt_path: str | os.PathLike[str] | None, fabric: Fabric, root: str, own: Sequence[Path]
) -> Path | None:
    """The file that ``last``, ``best`` or a path means; the same on every rank.

    Args:
        ckpt_path: what is wanted; ``None`` for nothing.
        fabric: rank zero looks.
        root: where runs are written; the latest version comes first.
        own: folders of runs that come before those.

    Raises:
        CheckpointError: there is none.
    """
    if ckpt_path is None:
        return None
    if ckpt_path not in ("last", "best"):
        return Path(ckpt_path)
    found: Path | None = None
    if fabric.is_global_zero:
        versions = [
            (int(match[1]), folder) for folder in Path(root).glob("version_*") if (match := _VERSION.match(folder.name))
        ]
        folders = [*own, *(folder for _, folder in sorted(versions, reverse=True))]
        files = (folder / "checkpoints" / f"{ckpt_path}.ckpt" for folder in folders)
        found = next((file for file in files if file.is_file()), None)
    found = fabric.broadcast(found)
    if found is None:
        monitored = " A best one exists only where a metric is monitored." if ckpt_path == "best" else ""
        raise CheckpointError(
            f"no {ckpt_path}.ckpt in any run below {root}.{monitored} Check trainer.default_root_dir, or give a file."
        )
    return found


_VERSION = re.compile(r"version_(\d+)$")


def export_models(
    federation: Federation, module: LightningModule, flat: FlatModule, names: Sequence[str], directory: Path
) -> None:
    """Write every shared model and every client's model as a checkpoint that ``load_from_checkpoint`` opens.

    Clients that use a shared model as it is are links to its file. The files hold ``hyper_parameters`` as Lightning
    saves them.

    Args:
        federation: with what all clients keep.
        module: the user's; its weights are overwritten.
        flat: its flat weights.
        names: the clients'.
        directory: of the files.
    """
    shared = []
    for k, model in enumerate(federation.models):
        path = directory / f"shared_{k}.ckpt"
        flat.load(model)
        save_atomically(model_checkpoint(module, federation.current_round), path)
        shared.append(path)
    own = {*federation.client_stores.get("final_models", {}), *federation.personal_layers}
    device = next(iter(flat.weights.vectors.values())).device
    for client, name in enumerate(names):
        path = directory / f"{re.sub(r'[^A-Za-z0-9._-]+', '_', name)}.ckpt"
        used = federation.collaboration.model_of(client)
        if used is not None and client not in own:
            path.unlink(missing_ok=True)
            _link(shared[used], path)
            continue
        flat.load(federation.client_model(client, device))
        save_atomically(model_checkpoint(module, federation.current_round), path)


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
