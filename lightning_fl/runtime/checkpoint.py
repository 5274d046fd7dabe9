"""Checkpoints of a run.

A checkpoint is one file, ``NAME.ckpt``, that rank zero writes. If clients' states may not leave their ranks
(``Processes.private``), it contains what is shared, and each client's rank writes ``NAME.client-I.round-R.ckpt`` beside
it, on its own disk. Client files of the round before are kept until those of the next are complete on all ranks and
rank zero has named them, so that a kill at any moment leaves a consistent set.
"""

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from lightning.fabric import Fabric

from lightning_fl.core.errors import CheckpointError
from lightning_fl.engine.processes import Processes
from lightning_fl.files.atomic import link_whole, whole_file
from lightning_fl.files.names import run_versions
from lightning_fl.files.tensors import NUMPY, read_torch, unreadable_part
from lightning_fl.files.user_file import near
from lightning_fl.runtime.checkpoint_fields import check_client_part, check_state


@contextmanager
def saving(path: Path) -> Iterator[None]:
    """Context in which a file that cannot be written is a CheckpointError."""
    try:
        yield
    except (OSError, RuntimeError) as error:
        kept = f" {path} from before is kept." if path.exists() else ""
        remedy = "Free some space or set trainer.default_root_dir to a writable folder."
        raise CheckpointError(f"cannot write {path}: {error}.{kept} {remedy}") from error


def save_atomically(content: dict[str, Any], path: Path) -> None:
    """Write a file atomically: a crash leaves the old one."""
    with saving(path), whole_file(path) as file:
        torch.save(content, file)


def save_state(state: dict[str, Any], folder: Path, name: str, processes: Processes, token: str) -> dict[str, Any]:
    """Write a run's checkpoint, and one file per client if clients' states are private. Called on every rank.

    ``folder`` is on this rank's disk; ``token`` identifies the run. Returns the content of the checkpoint's own file.
    """
    if processes.private:
        for client in processes.hosted:
            part = {
                "lightning_fl_version": state["lightning_fl_version"],
                "client": state["client_names"][client],
                "round": state["round"],
                "token": token,
                "state": state["clients"].get(client),
                "stores": {key: of[client] for key, of in state["client_stores"].items() if client in of},
                "data": state["data"].get(client, {}),
            }
            first = not any(folder.glob(f"{name}.client-{client}.round-*.ckpt"))
            _save_readable(part, _client_file(folder, name, client, state["round"]), first=first)
        _replace_client_files(folder, name, processes)
        shared: dict[str, Any] = {"clients": {}, "client_stores": {}, "data": {}}
        state = {**state, **shared, "client_files": {"name": name, "token": token}}
    if processes.rank == 0:
        path = folder / f"{name}.ckpt"
        names = json.dumps(state["client_names"])  # one text, as torch.save is slow for many objects
        _save_readable({**state, "client_names": names}, path, first=not path.exists())
    return state


def _save_readable(content: dict[str, Any], path: Path, *, first: bool) -> None:
    """Write a file; the first of its kind only if it could be read again."""
    if first and (found := unreadable_part(content, NUMPY)) is not None:
        what = f"its {found[0]} holds a {found[1]}, and a checkpoint only numbers, texts, tensors, lists and dicts"
        raise CheckpointError(f"{path} could not be read again: {what}. Let state_dict return these alone.")
    save_atomically(content, path)


def copy_checkpoint(source: Path, state: dict[str, Any], folder: Path, name: str, processes: Processes) -> None:
    """Copy a checkpoint to another name or folder, with its clients' files. Called on every rank."""
    target, about = folder / f"{name}.ckpt", state.get("client_files")
    if about is None:
        if processes.rank == 0:
            with saving(target):
                link_whole(source, target)
        return
    for client in processes.hosted:
        of_client = _client_file(folder, name, client, state["round"])
        with saving(of_client):
            link_whole(_client_file(source.parent, about["name"], client, state["round"]), of_client)
    _replace_client_files(folder, name, processes)
    if processes.rank == 0:
        save_atomically({**state, "client_files": {**about, "name": name}}, target)


def _replace_client_files(folder: Path, name: str, processes: Processes) -> None:
    """Wait until new client files are complete on all ranks; keep these and those that rank zero's file names."""
    processes.of_ranks(None)
    remove_old_client_files(folder, name, processes, keep=2)


def remove_old_client_files(folder: Path, name: str, processes: Processes, keep: int = 1) -> None:
    """Remove all but the latest files of this rank's clients."""
    for client in processes.hosted:
        found = folder.glob(f"{name}.client-{client}.round-*.ckpt")
        for path in sorted(found, key=lambda path: int(path.stem.rpartition("-")[2]))[:-keep]:
            path.unlink()


def resolve_checkpoint(
    ckpt_path: str | os.PathLike[str] | None, fabric: Fabric, root: Path, own: Sequence[Path], others: bool
) -> Path | None:
    """The file for ``last``, ``best`` or a path, the same on every rank.

    Searched are the run folders ``own``, then with ``others`` those in ``root``, the latest version first.
    """
    if ckpt_path is None:
        return None
    if ckpt_path not in ("last", "best"):
        if not os.fspath(ckpt_path).strip():
            raise CheckpointError("ckpt_path is empty: give last, best or a file, or leave it out.")
        return Path(ckpt_path).expanduser().absolute()
    file = Path("checkpoints") / f"{ckpt_path}.ckpt"
    found: int | str | None = None
    if fabric.is_global_zero:
        places: list[tuple[int | str, Path]] = [
            *enumerate(own),
            *((folder.name, folder) for _, folder in (reversed(run_versions(root)) if others else ())),
        ]
        found = next((key for key, folder in places if (folder / file).is_file()), None)
    found = fabric.broadcast(found)
    if found is None:
        monitored = " A best one exists only where a metric is monitored." if ckpt_path == "best" else ""
        where = f"no {ckpt_path}.ckpt in " + (f"any run below {near(root)}" if others else "this trainer's run")
        raise CheckpointError(f"{where}.{monitored} Check trainer.default_root_dir, or give a file.")
    return (own[found] if isinstance(found, int) else root / found) / file


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Read a run's checkpoint without executing code from it; entries are those of ``checkpoint_fields``.

    A missing or damaged file, another one, and a field that is missing or of another type are a CheckpointError.
    """
    if path.is_dir():
        raise CheckpointError(f"{path} is a folder: give a file of a run's checkpoints/, or 'last' or 'best'.")
    if not path.is_file():
        raise CheckpointError(f"{path}: there is no such checkpoint. Give a file, or 'last' or 'best'.")
    content = _read(path)
    if not isinstance(content, dict) or "lightning_fl_version" not in content:
        is_model = isinstance(content, dict) and "state_dict" in content
        hint = " It is a single model's: open it with YourModule.load_from_checkpoint." if is_model else ""
        raise CheckpointError(f"{path} is not a federated run's checkpoint.{hint} Give one from a run's checkpoints/.")
    if "token" in content and "client" in content:
        client = content["client"]
        raise CheckpointError(f"{path} is the part of one client, {client}: give the run's, such as last.ckpt.")
    if isinstance(names := content.get("client_names"), str):
        with suppress(ValueError):
            content["client_names"] = json.loads(names)
    return check_state(content, path)


def _read(path: Path) -> Any:
    return read_torch(path, "a checkpoint", "Use another one of its folder, or start a new run.", known=NUMPY)


def load_state(path: Path, fabric: Fabric) -> dict[str, Any]:
    """Read a checkpoint on rank zero and send it, or the error, to all ranks, whose machines may lack the file."""
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


def with_client_files(
    state: dict[str, Any], path: Path, processes: Processes, client_names: Sequence[str], rank_names: Sequence[str]
) -> dict[str, Any]:
    """Add the content of client files to a checkpoint's state, if it has such. Called on every rank.

    Client files are in the folder of ``path``, on this rank's disk. Any fault of one is an error on all ranks.
    """
    about = state["client_files"]
    if about is None:
        return state
    parts, problem = {}, None
    try:
        for client in processes.hosted:
            file = _client_file(path.parent, about["name"], client, state["round"])
            parts[client] = _client_part(file, client_names[client], state["round"], about["token"])
    except CheckpointError as error:
        problem = str(error)
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
        what = f"{file}, what {client_name} kept up to round {number}, is not there"
        raise CheckpointError(f"{what}: it lies on the machine that trained it. Start the rank there, or copy it.")
    content = _read(file)
    if not isinstance(content, dict) or "token" not in content:
        raise CheckpointError(f"{file} is not a client's part of a checkpoint: copy it again, or start a new run.")
    part = check_client_part(content, file)
    for what, key, value in (("client", "client", client_name), ("round", "round", number), ("run", "token", token)):
        if part[key] != value:
            fault = f"does not belong to the checkpoint: its {what} is {part[key]}, the checkpoint's {value}"
            raise CheckpointError(f"{file} {fault}. Put the client files of the checkpoint's own run there.")
    return part
