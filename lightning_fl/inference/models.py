"""Which of a run's models predict, and the modules with their weights."""

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightning.pytorch import LightningModule

from lightning_fl.core.errors import ConfigurationError, did_you_mean, listed
from lightning_fl.core.seeding import isolated_draws
from lightning_fl.data.cards.lookup import file_sha256
from lightning_fl.inference.personalization import load_model_checkpoint, load_weights
from lightning_fl.inference.trained_run import Made, TrainedRun

__all__ = ["LoadedModel", "best_client", "choose_models", "load_models"]

_PERSONAL = "take a client's model (--model NAME, best or all)"


@dataclass(frozen=True)
class LoadedModel:
    """A model that predicts.

    Attributes:
        name: a client's, or ``shared_K``.
        path: its checkpoint.
        module: with its weights.
    """

    name: str
    path: Path
    module: LightningModule

    @property
    def measured_as(self) -> str:
        """What ``calibration.json`` would call it: a file in ``models/`` by its name, a snapshot by its own."""
        return self.path.stem if self.path.parent.name == "models" else self.name


def choose_models(run: TrainedRun, word: str | None) -> dict[str, Path]:
    """The models that a word means: name -> file.

    Args:
        run: the run.
        word: a client's name; ``"shared"`` for the one shared model, ``"shared_K"`` for one of several; ``"best"`` for
            the client's that did best on its own validation data; ``"all"`` for all that differ, the clients' and the
            shared ones; ``"snapshots"`` for the shared one of several rounds, ``"shared_K_round_R"`` for that of one;
            ``None`` for the shared one.

    Raises:
        ConfigurationError: there is no such model, or the word means several.
    """
    shared = {path.stem: path for path in run.shared}
    clients = run.clients
    if word is None or word == "shared":
        run.refuse_personal_layers(_PERSONAL)
        if len(shared) > 1:
            raise ConfigurationError(
                f"{run.folder} has {len(shared)} shared models, {listed(list(shared), most=8)}, and models of the"
                f" clients {listed(list(clients), most=8)}: name one with --model, or take --model best or all."
            )
        return shared
    if word in clients:  # a client may be called "all"; its name is the more particular
        return {word: clients[word]}
    if word in shared:
        run.refuse_personal_layers(_PERSONAL)
        return {word: shared[word]}
    snapshots = run.snapshots
    if word in snapshots:
        run.refuse_personal_layers(_PERSONAL)
        return {word: snapshots[word]}
    if word == "snapshots":
        return _snapshots(run, snapshots)
    if not clients and word in ("best", "all"):
        raise ConfigurationError(
            f"{run.folder / 'models'} holds no client's model, only shared ones: leave out --model."
        )
    if word == "best":
        name = best_client(run)
        return {name: clients[name]}
    if word == "all":
        chosen = {} if run.personal_layers is not None else dict(shared)
        known = set(map(file_sha256, chosen.values()))
        for name, path in clients.items():  # of a client that uses a shared model as it is, this is the same file
            if file_sha256(path) not in known:
                chosen[name] = path
        return chosen
    words = ["shared", "best", "all", *shared, *clients, *snapshots]
    raise ConfigurationError(
        f"--model {word}: {run.folder} has no such model{did_you_mean(word, words)}. There are {listed(words)}."
    )


def _snapshots(run: TrainedRun, found: dict[str, Path]) -> dict[str, Path]:
    run.refuse_personal_layers(_PERSONAL)
    if not found:
        raise ConfigurationError(
            f"{run.folder / 'models'} holds no snapshots: train with the callback Snapshots in trainer.callbacks."
        )
    if len(run.shared) > 1:
        raise ConfigurationError(
            f"{run.folder} has snapshots of {len(run.shared)} shared models: name one with --model, such as"
            f" {next(iter(found))}."
        )
    return found


def best_client(run: TrainedRun) -> str:
    """The client whose own model did best on its own validation data, by the first metric that is no loss.

    Raises:
        ConfigurationError: the run's record has no such figures of clients with a model.
    """
    metrics = run.summary.get("metrics")
    found = metrics.get("val") if isinstance(metrics, dict) else None
    names = [name for name in found or {} if not name.startswith("local/") and "/" not in name]
    name = next((name for name in names if "loss" not in name), next(iter(names), None))
    values: Mapping[str, Any] = (found or {})[name].get("clients", {}) if name is not None else {}
    finite = {
        client: float(value)
        for client, value in values.items()
        if client in run.clients and isinstance(value, int | float) and math.isfinite(value)
    }
    if name is None or not finite:
        raise ConfigurationError(
            f"--model best: {run.folder / 'summary.json'} has no validation metrics of clients; name a model with"
            " --model, or take all."
        )
    sign = -1 if (found or {})[name].get("higher_is_better") else 1
    return min(finite, key=lambda client: sign * finite[client])


def load_models(
    run: TrainedRun, chosen: Mapping[str, Path], *, trust: bool = False, accelerator: str = "auto"
) -> tuple[list[LoadedModel], Made]:
    """The models with their weights, and what the run's recipe made.

    Arguments of the module that the recipe left to the data (``null``) are those of the checkpoint.

    Raises:
        ConfigurationError: the recipe names a foreign class without ``trust``.
        CheckpointError: a model is damaged or of another module.
    """
    made: dict[str, Made] = {}
    loaded = []
    for name, path in chosen.items():
        content = load_model_checkpoint(path)
        arguments = _resolved(run.recipe["model"], content)
        key = repr(sorted(arguments.items()))
        if key not in made:
            made[key] = run.make(trust=trust, accelerator=accelerator, model_arguments=arguments)
            with isolated_draws():
                made[key].model.configure_model()
        module = copy.deepcopy(made[key].model) if len(chosen) > 1 else made[key].model
        load_weights(module, path, content)
        loaded.append(LoadedModel(name, path, module))
    return loaded, next(iter(made.values()))


def _resolved(model: Any, content: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments that the recipe leaves open and the checkpoint knows, plain ones."""
    known = content.get(LightningModule.CHECKPOINT_HYPER_PARAMS_KEY)
    given = model.get("init_args") if isinstance(model, dict) else None
    if not isinstance(known, Mapping) or not isinstance(given, Mapping):
        return {}
    return {
        name: known[name]
        for name, value in given.items()
        if value is None and isinstance(known.get(name), bool | int | float | str)
    }
