"""Checkpoints of a run, and models as ordinary Lightning checkpoints.

A checkpoint is one file, ``NAME.ckpt``, that rank zero writes. Where clients' states may not leave their ranks
(``Processes.private``), it holds what is shared, and each client's rank writes ``NAME.client-I.round-R.ckpt`` beside
it, on its own disk. Client files of the round before are kept until those of the next are whole on all ranks and rank
zero has named them, so that a kill at any moment leaves a set that fits.
"""

import contextlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import lightning.pytorch
import torch
from lightning.fabric import Fabric
from lightning.pytorch import LightningModule

from lightning_fl.core.errors import CheckpointError
from lightning_fl.engine.federation import Federation
from lightning_fl.engine.processes import Processes
from lightning_fl.engine.weights.flat import FlatModule
from lightning_fl.files.atomic import link_whole, whole_file
from lightning_fl.files.names import client_files
from lightning_fl.files.tensors import NUMPY, read_torch, unreadable_part
from lightning_fl.files.user_file import near
from lightning_fl.runtime.checkpoint_fields import check_client_part, check_state

__all__ = [
    "class_path",
    "copy_checkpoint",
    "export_models",
    "load_checkpoint",
    "load_state",
    "model_checkpoint",
    "plain_hyper_parameters",
    "remove_old_client_files",
    "resolve_checkpoint",
    "save_atomically",
    "save_state",
    "with_client_files",
]


def class_path(module: object) -> str:
    """The import path of an object's class."""
    return f"{type(module).__module__}.{type(module).__qualname__}"


def plain_hyper_parameters(module: object) -> dict[str, Any]:
    """A module's hyper-parameters as far as they are plain values, lists and dicts of such."""
    return {name: value for name, value in dict(getattr(module, "hparams", {})).items() if _is_plain(value)}


def _is_plain(value: object) -> bool:
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_plain(part) for key, part in value.items())
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return value is None or type(value) in (bool, int, float, str)


def save_atomically(content: dict[str, Any], path: Path) -> None:
    """Write a file whole or not at all: a crash leaves the old one.

    Raises:
        CheckpointError: the disk is full or the folder cannot be written.
    """
    with _saving(path), whole_file(path) as file:
        torch.save(content, file)


@contextlib.contextmanager
def _saving(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, RuntimeError) as error:
        kept = f" {path} from before is kept." if path.exists() else ""
        raise CheckpointError(
            f"cannot write {path}: {error}.{kept} Free some space or set trainer.default_root_dir to a folder that can"
            " be written."
        ) from error


def load_checkpoint(path: Path) -> dict[str, Any]:
    """A run's checkpoint with all of its entries (see :mod:`lightning_fl.runtime.checkpoint_fields`).

    It is read without running any code from it.

    Raises:
        CheckpointError: the file is missing, damaged, not a federated run's checkpoint, or a field is missing or of
            another kind.
    """
    if path.is_dir():
        raise CheckpointError(f"{path} is a folder: give a file of a run's checkpoints/, or 'last' or 'best'.")
    if not path.is_file():
        raise CheckpointError(f"{path}: there is no such checkpoint. Give a file, or 'last' or 'best'.")
    content = _read(path)
    if not isinstance(content, dict) or "lightning_fl_version" not in content:
        hint = ""
        if isinstance(content, dict) and "state_dict" in content:
            hint = " It is a single model's: open it with YourModule.load_from_checkpoint."
        raise CheckpointError(
            f"{path} is not the checkpoint of a federated run.{hint} Give one from a run's checkpoints/."
        )
    if "token" in content and "client" in content:
        raise CheckpointError(
            f"{path} is the part of one client, {content['client']}: give the run's, such as last.ckpt beside it."
        )
    if isinstance(names := content.get("client_names"), str):
        with contextlib.suppress(ValueError):
            content["client_names"] = json.loads(names)
    return check_state(content, path)


def _read(path: Path) -> Any:
    return read_torch(path, "a checkpoint", "Use another one of its folder, or start anew.", known=NUMPY)


def load_state(path: Path, fabric: Fabric) -> dict[str, Any]:
    """A run's checkpoint as rank zero reads it, on all ranks: their machines need not hold the file.

    Raises:
        CheckpointError: on all ranks; see :func:`load_checkpoint`.
    """
    problem, state = "", None
    if fabric.is_global_zero:
        try:
            state = load_checkpoint(path)
        except CheckpointError as error:
            problem = str(error)
    problem, state = fabric.broadcast((problem, state))
    if state is None:
        raise CheckpointError(problem)
    return state


# -- clients whose states stay on their ranks --------------------------------------------------------------------


def save_state(
    state: dict[str, Any], folder: Path, name: str, processes: Processes, client_names: Sequence[str], token: str
) -> dict[str, Any]:
    """Write a run's checkpoint: one file or, where clients' states stay on their ranks, one of each client's besides.

    Args:
        state: what ``trainer.state_dict()`` returned.
        folder: of this rank, where checkpoints go.
        name: "last" or "best".
        processes: every rank calls this.
        client_names: of all clients.
        token: the run's.

    Returns:
        What the checkpoint's own file holds.

    Raises:
        CheckpointError: a file cannot be written.
    """
    if processes.private:
        for client in processes.hosted:
            part = {
                "lightning_fl_version": state["lightning_fl_version"],
                "client": client_names[client],
                "round": state["round"],
                "token": token,
                "state": state["clients"].get(client),
                "stores": {key: of[client] for key, of in state["client_stores"].items() if client in of},
                "data": state["data"].get(client, {}),
            }
            _save_readable(
                part, _client_file(folder, name, client, state["round"]), first=not _saved(folder, name, client)
            )
        processes.of_ranks(None)  # all are whole, and rank zero has named those of the time before
        remove_old_client_files(folder, name, processes, keep=2)
        kept: dict[str, Any] = {"clients": {}, "client_stores": {}, "data": {}}
        state = {**state, **kept, "client_files": {"name": name, "token": token}}
    if processes.rank == 0:
        path = folder / f"{name}.ckpt"
        names = json.dumps(state["client_names"])  # a single text: torch.save looks at every object
        _save_readable({**state, "client_names": names}, path, first=not path.exists())
    return state


def _save_readable(content: dict[str, Any], path: Path, *, first: bool) -> None:
    """Write a file, the first of its kind only if it can be read again: it is no use to find out when it is needed.

    Raises:
        CheckpointError: it holds more than values and tensors, or cannot be written.
    """
    if first and (found := unreadable_part(content, NUMPY)) is not None:
        raise CheckpointError(
            f"{path} could not be read again: its {found[0]} holds a {found[1]}, and a checkpoint only numbers, texts,"
            " tensors, lists and dicts. Let state_dict return these alone."
        )
    save_atomically(content, path)


def _saved(folder: Path, name: str, client: int) -> bool:
    return any(folder.glob(f"{name}.client-{client}.round-*.ckpt"))


def copy_checkpoint(source: Path, state: dict[str, Any], folder: Path, name: str, processes: Processes) -> None:
    """Keep a checkpoint that is there under another name, or in another folder, with its clients' files.

    Args:
        source: its file; a rank's clients' files lie beside it on the rank's disk.
        state: what that file holds.
        folder: of this rank, where checkpoints go.
        name: "last" or "best".
        processes: every rank calls this.

    Raises:
        CheckpointError: a file cannot be written.
    """
    target, about = folder / f"{name}.ckpt", state.get("client_files")
    if about is None:
        if processes.rank == 0:
            with _saving(target):
                link_whole(source, target)
        return
    for client in processes.hosted:
        of_client = _client_file(folder, name, client, state["round"])
        with _saving(of_client):
            link_whole(_client_file(source.parent, about["name"], client, state["round"]), of_client)
    processes.of_ranks(None)  # all are whole, and rank zero has named those of the time before
    remove_old_client_files(folder, name, processes, keep=2)
    if processes.rank == 0:
        save_atomically({**state, "client_files": {**about, "name": name}}, target)


def remove_old_client_files(folder: Path, name: str, processes: Processes, keep: int = 1) -> None:
    """Remove all but the latest of this rank's clients' files."""
    for client in processes.hosted:
        rounds = {
            int(path.stem.rpartition("-")[2]): path for path in folder.glob(f"{name}.client-{client}.round-*.ckpt")
        }
        for number in sorted(rounds)[:-keep]:
            rounds[number].unlink()


def with_client_files(
    state: dict[str, Any], path: Path, processes: Processes, client_names: Sequence[str], rank_names: Sequence[str]
) -> dict[str, Any]:
    """A checkpoint's state with what this rank's clients keep, from files of their own where it names such.

    Args:
        state: of the checkpoint.
        path: its file; on this rank's disk clients' files are looked for in the same folder.
        processes: every rank calls this.
        client_names: of all clients.
        rank_names: of all ranks, for errors.

    Raises:
        CheckpointError: a file is missing or does not belong to the checkpoint; on all ranks.
    """
    about = state["client_files"]
    if about is None:
        return state
    parts, problem = {}, None
    for client in processes.hosted:
        file = _client_file(path.parent, about["name"], client, state["round"])
        try:
            parts[client] = _client_part(file, client_names[client], state["round"], about["token"])
        except CheckpointError as error:
            problem = str(error)
            break
    for rank, text in enumerate(processes.of_ranks(problem)):
        if text is not None:
            raise CheckpointError(f"{rank_names[rank]}: {text}" if processes.several else text)
    stores: dict[str, dict[int, Any]] = {}
    for client, part in parts.items():
        for key, value in part["stores"].items():
            stores.setdefault(key, {})[client] = value
    clients = {client: part["state"] for client, part in parts.items() if part["state"] is not None}
    data = {client: part["data"] for client, part in parts.items()}
    return {**state, "clients": clients, "client_stores": stores, "data": data}


def _client_file(folder: Path, name: str, client: int, number: int) -> Path:
    return folder / f"{name}.client-{client}.round-{number}.ckpt"


def _client_part(file: Path, client_name: str, number: int, token: str) -> dict[str, Any]:
    if not file.is_file():
        raise CheckpointError(
            f"{file}, what {client_name} kept up to round {number}, is not there: each client's part of a checkpoint"
            " lies on the machine that trained it. Start that rank where it ran before, copy the file, or start anew."
        )
    content = _read(file)
    if not isinstance(content, dict) or "token" not in content:
        raise CheckpointError(f"{file} is not a client's part of a checkpoint: copy it again, or start anew.")
    part = check_client_part(content, file)
    found = {"client": part["client"], "round": part["round"], "run": part["token"]}
    expected = {"client": client_name, "round": number, "run": token}
    for what, value in expected.items():
        if found[what] != value:
            raise CheckpointError(
                f"{file} does not belong to the checkpoint: its {what} is {found[what]}, the checkpoint's {value}. Give"
                " the silos in the order of that run, and the folder of that run."
            )
    return part


def resolve_checkpoint(
    ckpt_path: str | os.PathLike[str] | None, fabric: Fabric, root: Path, own: Sequence[Path]
) -> Path | None:
    """The file that ``last``, ``best`` or a path means; on every rank the one of that name below its own folders.

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
        if not os.fspath(ckpt_path).strip():
            raise CheckpointError("ckpt_path is empty: give last, best or a file, or leave it out.")
        return Path(ckpt_path).expanduser().absolute()
    found: int | str | None = None
    if fabric.is_global_zero:
        versions = [
            (int(match[1]), folder) for folder in root.glob("version_*") if (match := _VERSION.match(folder.name))
        ]
        places: list[tuple[int | str, Path]] = [
            *enumerate(own),
            *((folder.name, folder) for _, folder in sorted(versions, reverse=True)),
        ]
        found = next((key for key, folder in places if _file(folder, ckpt_path).is_file()), None)
    found = fabric.broadcast(found)
    if found is None:
        monitored = " A best one exists only where a metric is monitored." if ckpt_path == "best" else ""
        raise CheckpointError(
            f"no {ckpt_path}.ckpt in any run below {near(root)}.{monitored} Check trainer.default_root_dir, or give"
            " a file."
        )
    return _file(own[found] if isinstance(found, int) else root / found, ckpt_path)


def _file(folder: Path, name: str) -> Path:
    return folder / "checkpoints" / f"{name}.ckpt"


_VERSION = re.compile(r"version_(\d+)$")
#: Clients whose models are links to a shared one's file, of which file systems allow some ten thousand.
_MOST_LINKS = 1000


def export_models(
    federation: Federation,
    module: LightningModule,
    flat: FlatModule,
    names: Sequence[str],
    directory: Path,
    *,
    shared: bool = True,
    clients: Iterable[int] | None = None,
) -> None:
    """Write every shared model and every client's model as a checkpoint that ``load_from_checkpoint`` opens.

    A client's file bears its name, as :func:`~lightning_fl.files.names.client_files` makes a file's of it. Clients that
    use a shared model as it is are links to its file; of more than 1,000 clients they have none. The files hold
    ``hyper_parameters`` as Lightning saves them.

    Args:
        federation: with what these clients keep.
        module: the user's; its weights are overwritten.
        flat: its flat weights.
        names: the clients'.
        directory: of the files.
        shared: write the shared models.
        clients: whose models are written; ``None`` for all.
    """
    files = []
    for k, model in enumerate(federation.models if shared else ()):
        path = directory / f"shared_{k}.ckpt"
        flat.load(model)
        save_atomically(model_checkpoint(module, federation.current_round), path)
        files.append(path)
    own = {*federation.final_models, *federation.personal_layers}
    device = next(iter(flat.weights.vectors.values())).device
    stems = client_files(names)
    shares, used = (values.tolist() for values in federation.collaboration.personalisation.max(1))
    for client in range(len(names)) if clients is None else clients:
        path = directory / f"{stems[client]}.ckpt"
        if files and shares[client] == 1 and client not in own:
            if len(names) <= _MOST_LINKS:
                with _saving(path):
                    link_whole(files[used[client]], path)
            continue
        flat.load(federation.client_model(client, device))
        save_atomically(model_checkpoint(module, federation.current_round), path)


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
