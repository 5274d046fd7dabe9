"""Selection and loading of a run's models."""

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
from lightning_fl.inference.trained_run import Made, TrainedRun
from lightning_fl.runtime.model_file import load_model_checkpoint, load_weights

_PERSONAL = "use a client's model (--model NAME, best or all)"


@dataclass(frozen=True)
class LoadedModel:
    """A loaded model; the name is a client's or ``shared_K``."""

    name: str
    path: Path
    module: LightningModule

    @property
    def calibration_name(self) -> str:
        """Its name in ``calibration.json``."""
        return self.path.stem if self.path.parent.name == "models" else self.name


def choose_models(run: TrainedRun, model: str | None) -> dict[str, Path]:
    """Select models: name -> file.

    Args:
        model: a client's name; ``"shared"`` or ``None`` for the only shared model, ``"shared_K"`` for one of several;
            ``"best"`` for the client model with the best validation result; ``"all"`` for all distinct models;
            ``"snapshots"`` for the snapshots of the shared model, ``"shared_K_round_R"`` for one of them.
    """
    shared = {path.stem: path for path in run.shared}
    clients = run.clients
    if model is None or model == "shared":
        run.refuse_personal_layers(_PERSONAL)
        if len(shared) > 1:
            models = f"{len(shared)} shared models, {listed(list(shared), most=8)}, and models of the clients"
            choice = f"{models} {listed(list(clients), most=8)}: choose one with --model, or use --model best or all"
            raise ConfigurationError(f"{run.folder} has {choice}.")
        return shared
    if model in clients:  # before "all", which may be a client's name
        return {model: clients[model]}
    snapshots = run.snapshots
    if model in shared or model in snapshots:
        run.refuse_personal_layers(_PERSONAL)
        return {model: (shared | snapshots)[model]}
    if model == "snapshots":
        run.refuse_personal_layers(_PERSONAL)
        if not snapshots:
            raise ConfigurationError(f"{run.folder / 'models'} has no snapshots: train with the callback Snapshots.")
        if len(shared) > 1:
            what = f"{run.folder} has snapshots of {len(shared)} shared models"
            raise ConfigurationError(f"{what}: choose one, such as {next(iter(snapshots))}.")
        return snapshots
    if not clients and model in ("best", "all"):
        raise ConfigurationError(f"{run.folder / 'models'} has no client models, only shared ones: remove --model.")
    if model == "best":
        name = best_client(run)
        return {name: clients[name]}
    if model == "all":
        chosen = {} if run.personal_layers is not None else dict(shared)
        known = set(map(file_sha256, chosen.values()))
        # A client that uses a shared model unchanged has the same file.
        return chosen | {name: path for name, path in clients.items() if file_sha256(path) not in known}
    names = ["shared", "best", "all", *shared, *clients, *snapshots]
    hint = f"{did_you_mean(model, names)}. Choose one of {listed(names)}"
    raise ConfigurationError(f"--model {model}: {run.folder} has no such model{hint}.")


def best_client(run: TrainedRun) -> str:
    """The client whose model has the best validation result, by the first metric of known direction, a loss last."""
    names = sorted((name for name in run.metric_names("val") if "/" not in name), key=lambda name: "loss" in name)
    known = (run.metric(name, "val") for name in names)
    found = next((metric for metric in known if metric.direction is not None), None)
    values = found.clients if found else {}
    finite = {client: value for client, value in values.items() if client in run.clients and math.isfinite(value)}
    if found is None or not finite or found.percentiles:  # of many clients only the worst are recorded
        what = f"{run.folder} lacks validation metrics of all clients whose direction is known"
        raise ConfigurationError(f"--model best: {what}: choose another.")
    return (max if found.higher_is_better else min)(finite, key=finite.__getitem__)


def load_models(
    run: TrainedRun, chosen: Mapping[str, Path], *, trust: bool = False, accelerator: str = "auto"
) -> tuple[list[LoadedModel], Made]:
    """Load models, and instantiate the run's recipe; arguments that it leaves to the data are the checkpoint's."""
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
    """Plain arguments that are ``null`` in the recipe and known to the checkpoint."""
    known = content.get(LightningModule.CHECKPOINT_HYPER_PARAMS_KEY)
    given = model.get("init_args") if isinstance(model, dict) else None
    if not isinstance(known, Mapping) or not isinstance(given, Mapping):
        return {}
    plain = {name: value for name, value in known.items() if isinstance(value, bool | int | float | str)}
    return {name: plain[name] for name, value in given.items() if value is None and name in plain}
