"""Models as ordinary Lightning checkpoints, which ``load_from_checkpoint`` opens."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import lightning.pytorch
from lightning.pytorch import LightningModule
from torch import Tensor

from lightning_fl.core.errors import CheckpointError
from lightning_fl.engine.federation import Federation
from lightning_fl.engine.weights.flat import FlatModule
from lightning_fl.files.atomic import link_whole
from lightning_fl.files.names import client_files
from lightning_fl.files.tensors import read_torch
from lightning_fl.runtime.checkpoint import save_atomically, saving

#: Above this many clients, those that use a shared model get no link to its file: file systems limit links.
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
    """Write the shared models, unless told otherwise, and those of some clients; ``None`` for all.

    A client's file has its name, see :func:`~lightning_fl.files.names.client_files`. Clients that use a shared model
    unchanged get a link to its file; none if there are more than 1,000 clients. The module's weights are overwritten.
    ``federation`` has the personal weights of these clients, ``names`` those of all clients.
    """
    files = []
    for k, model in enumerate(federation.models if shared else ()):
        path = directory / f"shared_{k}.ckpt"
        flat.load(model)
        save_atomically(model_checkpoint(module, federation.current_round), path)
        files.append(path)
    own = {*federation.final_models, *federation.own_models, *federation.personal_layers}
    shares, used = (values.tolist() for values in federation.collaboration.personalisation.max(1))
    links = {client for client, share in enumerate(shares) if files and share == 1} - own
    left_out = links if len(names) > _MOST_LINKS else set()
    every = range(len(names)) if clients is None else clients
    written = [client for client in every if client not in left_out]
    stems = client_files(names) if written else []
    for client in written:
        path = directory / f"{stems[client]}.ckpt"
        if client in links:
            with saving(path):
                link_whole(files[used[client]], path)
            continue
        flat.load(federation.client_model(client, flat.device))
        save_atomically(model_checkpoint(module, federation.current_round), path)


def model_checkpoint(module: LightningModule, current_round: int) -> dict[str, Any]:
    """Content of a module's Lightning checkpoint."""
    checkpoint: dict[str, Any] = {
        "epoch": current_round,
        "global_step": 0,
        "pytorch-lightning_version": lightning.pytorch.__version__,
        "state_dict": {  # with an extra state, as it is
            name: value.detach().cpu().clone() if isinstance(value, Tensor) else value
            for name, value in module.state_dict().items()
        },
    }
    if module.hparams:
        if getattr(module, "_hparams_name", None):
            checkpoint[module.CHECKPOINT_HYPER_PARAMS_NAME] = module._hparams_name
        checkpoint[module.CHECKPOINT_HYPER_PARAMS_KEY] = dict(module.hparams)
    module.on_save_checkpoint(checkpoint)
    return checkpoint


def load_model_checkpoint(path: Path) -> dict[str, Any]:
    """Read a model's Lightning checkpoint without executing code from it."""
    content = read_torch(path, "a model's checkpoint", "Copy it again from the run, or train again.")
    weights = content.get("state_dict") if isinstance(content, dict) else None
    if not isinstance(weights, dict):
        raise CheckpointError(f"{path} is not a model's checkpoint: it has no state_dict. Use one of a run's models/.")
    return content


def load_weights(module: LightningModule, path: Path, content: dict[str, Any]) -> None:
    """Load the weights of a checkpoint, read by :func:`load_model_checkpoint`, into its model."""
    module.on_load_checkpoint(content)
    try:
        module.load_state_dict(content["state_dict"], strict=module.strict_loading)
    except RuntimeError as error:
        what = f"{path} does not fit {type(module).__name__}: {' '.join(str(error).split())[:300]}"
        raise CheckpointError(f"{what}. Use the arguments that the model was trained with.") from error
