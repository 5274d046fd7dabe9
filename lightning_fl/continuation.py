"""A checkpoint held against the run that goes on from it: what does not fit is refused, what differs is said."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.utilities.rank_zero import rank_zero_warn

from lightning_fl.checkpoint import class_path
from lightning_fl.data.module import Split
from lightning_fl.engine.weights.flat import Weights
from lightning_fl.errors import CheckpointError
from lightning_fl.fingerprint import differences, listed
from lightning_fl.surface import TrainerSurface

__all__ = ["check_fits", "find_differences", "say_differences", "say_nothing_left"]

_WORDS: dict[str, str] = {"train": "training", "val": "validation", "test": "test"}
_MOST_CHARACTERS = 80


def check_fits(trainer: TrainerSurface, state: Mapping[str, Any], path: Path) -> None:
    """Refuse a checkpoint of another module, of other clients, or with weights that fit no more or are not finite.

    Raises:
        CheckpointError: naming the file and the difference.
    """
    for what, own in (("module", class_path(trainer.module)), ("num_clients", trainer.num_clients)):
        if state[what] != own:
            raise CheckpointError(
                f"{path}: the checkpoint's {what} is {state[what]}, this run's is {own}: give the checkpoint of a run"
                " with the same recipe."
            )
    _check_names(trainer, state, path)
    own_layout = {name: tuple(vector.shape) for name, vector in trainer.models[0].state_dict().items()}
    layout = {name: tuple(vector.shape) for name, vector in state["models"][0].items()}
    if layout != own_layout:
        raise CheckpointError(
            f"{path}: the checkpoint's weights have the layout {layout}, this module's have {own_layout}: give the"
            " checkpoint of a run with the same model."
        )
    for number, model in enumerate(state["models"]):
        if name := _not_finite(trainer, Weights.from_state_dict(model, torch.device("cpu"))):
            raise CheckpointError(
                f"{path}: the weights of {name!r} in its model {number} are not finite: training diverged before it was"
                " saved, or the file was changed. Use another one of its folder, or start anew with a lower learning"
                " rate."
            )


def find_differences(trainer: TrainerSurface, state: Mapping[str, Any], *, evaluates: bool) -> dict[str, list[str]]:
    """What differs from the run that a checkpoint is of: name -> what it was and what it is now. Called on every rank.

    A checkpoint of an older version, which does not know its recipe and data, differs in nothing but the seed.

    Args:
        trainer: in a run, set up.
        state: of the checkpoint.
        evaluates: the run evaluates only.
    """
    recipe = state["recipe"] or {"trainer.seed": repr(state["seed"])}
    found = {name: list(values) for name, values in differences(recipe, trainer.identity, evaluates=evaluates).items()}
    return found | _other_data(trainer, state["data"])


def say_differences(path: Path, found: Mapping[str, list[str]]) -> None:
    """Warn of what differs, once."""
    if found:
        short = {name: (_cut(before), _cut(now)) for name, (before, now) in found.items()}
        rank_zero_warn(
            f"{path} is of a run that differs from this one: {listed(short, '{name} was {before}, is {now}')}. This run"
            " goes on with what is now; summary.json lists it as differs_from_checkpoint."
        )


def say_nothing_left(trainer: TrainerSurface, path: Path) -> None:
    """Warn of a fit whose rounds are done."""
    if trainer.current_round >= trainer.max_rounds:
        rank_zero_warn(
            f"nothing is left to train: {path} is of round {trainer.current_round}, and trainer.max_rounds is"
            f" {trainer.max_rounds}. Its models are written out as they are; raise trainer.max_rounds to train on."
        )


def _check_names(trainer: TrainerSurface, state: Mapping[str, Any], path: Path) -> None:
    assert trainer.datamodule is not None
    before, now = state["client_names"], trainer.datamodule.client_names()
    if before is None or before == now:
        return
    pairs = enumerate(zip(before, now, strict=False))
    other = {f"client {client}": (_cut(old), _cut(new)) for client, (old, new) in pairs if old != new}
    raise CheckpointError(
        f"{path} is of other clients: {listed(other, '{name} was {before}, is {now}')}. Give the data of that run's"
        " clients, under the same names and in the same order, or start anew."
    )


def _not_finite(trainer: TrainerSurface, model: Weights) -> str | None:
    """The first parameter that is not finite, or buffer that is NaN: infinite buffers are masks."""
    if all(vector.isfinite().all() for _, vector in model.floating()):
        return None
    for span in trainer.loop.flat.spans():
        if span.dtype.is_floating_point:
            values = model.vectors[span.dtype][span.begin : span.end]
            if values.isnan().any() or (span.trainable and values.isinf().any()):
                return span.name
    return None


def _other_data(trainer: TrainerSurface, before: Mapping[int, Mapping[str, str]]) -> dict[str, list[str]]:
    """The clients whose data are others than in the checkpoint; only that, and how many, leaves a client's rank."""
    assert trainer.datamodule is not None
    known, names = trainer.data_digests, trainer.datamodule.client_names()
    own = {
        client: {
            split: _change(before[client][split], digest, split, before, names)
            for split, digest in known[client].items()
            if before.get(client, {}).get(split, digest) != digest
        }
        for client in trainer.hosted_clients
        if client in known
    }
    return {
        f"the {_WORDS[split]} data of {names[client]}": list(values)
        for client, of_client in trainer.processes.exchange(own).items()
        for split, values in of_client.items()
    }


def _change(
    old: str,
    new: str,
    split: Split,
    before: Mapping[int, Mapping[str, str]],
    names: list[str],
) -> tuple[str, str]:
    """What a client's data were and are: how many, or whose they were."""
    whose = next((names[client] for client, of_client in before.items() if of_client.get(split) == new), None)
    count, now = old.partition(",")[0], new.partition(",")[0]
    if whose is not None and "," in new:
        return f"{count} of its own", f"those that {whose} had"
    return count, now if now != count else f"{now} that are others"


def _cut(text: str) -> str:
    return text if len(text) <= _MOST_CHARACTERS else f"{text[: _MOST_CHARACTERS - 1]}…"
