"""Comparison of a checkpoint with the run that resumes from it: refusals and warnings."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.utilities.rank_zero import rank_zero_warn

from lightning_fl.core.errors import CheckpointError
from lightning_fl.data.module import Split
from lightning_fl.engine.weights.flat import Weights
from lightning_fl.runtime.checkpoint import class_path
from lightning_fl.runtime.surface import TrainerSurface
from lightning_fl.trainer.fingerprint import differences, listed

__all__ = ["check_fits", "find_differences", "warn_if_finished", "warn_of_differences"]

_MOST_CHARACTERS = 80
_WORDS = "{name} was {before}, is {now}"


def check_fits(trainer: TrainerSurface, state: Mapping[str, Any], path: Path) -> None:
    """Refuse a checkpoint of another module or other clients, or with weights of another layout or not finite.

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
    own_layout = {name: tuple(vector.shape) for name, vector in trainer.federation.models[0].state_dict().items()}
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
                " saved, or the file was changed. Use another one of its folder, or start again with a lower learning"
                " rate."
            )


def find_differences(trainer: TrainerSurface, state: Mapping[str, Any], *, evaluates: bool) -> dict[str, list[str]]:
    """Differences from the run of a checkpoint: name -> value before and now. Called on every rank.

    A checkpoint of an older version, which does not know its recipe and data, differs in nothing but the seed.

    Args:
        trainer: in a run, set up.
        state: of the checkpoint.
        evaluates: the run evaluates only.
    """
    recipe = state["recipe"] or {"trainer.seed": repr(state["seed"])}
    found = {name: list(values) for name, values in differences(recipe, trainer.identity, evaluates=evaluates).items()}
    return found | _other_data(trainer, state["data"])


def warn_of_differences(path: Path, found: Mapping[str, list[str]]) -> None:
    """Warn of differences, once."""
    if found:
        rank_zero_warn(
            f"{path} is of a run that differs from this one: {listed(found, _WORDS, _MOST_CHARACTERS)}. This run goes"
            " on with what is now; summary.json lists it as differs_from_checkpoint."
        )


def warn_if_finished(trainer: TrainerSurface, path: Path) -> None:
    """Warn of a fit whose rounds are done."""
    if trainer.federation.current_round >= trainer.max_rounds:
        rank_zero_warn(
            f"nothing is left to train: {path} is of round {trainer.federation.current_round}, and"
            f" trainer.max_rounds is {trainer.max_rounds}. Its models are written out as they are;"
            " raise trainer.max_rounds to train on."
        )


def _check_names(trainer: TrainerSurface, state: Mapping[str, Any], path: Path) -> None:
    before, now = state["client_names"], trainer.client_names
    if before is None or before == now:
        return
    pairs = enumerate(zip(before, now, strict=False))
    other = {f"client {client}": (old, new) for client, (old, new) in pairs if old != new}
    raise CheckpointError(
        f"{path} is of other clients: {listed(other, _WORDS, _MOST_CHARACTERS)}. Give the data of that run's"
        " clients, under the same names and in the same order, or start a new run."
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
    """Clients with other data than in the checkpoint; only that, and the number of samples, leaves a client's rank."""
    names, own = trainer.client_names, {}
    for client in trainer.processes.panel:
        old, new = before.get(client, {}), trainer.data_digests.get(client, {})
        changed = [split for split in new if old.get(split, new[split]) != new[split]]
        if changed:
            own[client] = [
                ", ".join(f"{old[split].partition(',')[0]} ({split})" for split in changed),
                ", ".join(_now(old[split], new[split], split) for split in changed),
            ]
    return {f"the data of {names[client]}": found for client, found in trainer.processes.exchange(own).items()}


def _now(old: str, new: str, split: Split) -> str:
    count, before = new.partition(",")[0], old.partition(",")[0]
    return f"{count if count != before else count.replace(' ', ' other ', 1)} ({split})"
