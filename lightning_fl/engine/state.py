"""All that a run needs to go on, as plain values and tensors."""

from typing import TYPE_CHECKING, Any

import torch

from lightning_fl.collaboration import Collaboration
from lightning_fl.engine.turn.optimization import ClientState
from lightning_fl.version import __version__

if TYPE_CHECKING:
    from lightning_fl.callbacks.callback import Callback
    from lightning_fl.trainer import FederatedTrainer

__all__ = ["class_path", "load_run_state", "run_state"]


def class_path(module: object) -> str:
    """The import path of an object's class."""
    return f"{type(module).__module__}.{type(module).__qualname__}"


def run_state(trainer: "FederatedTrainer") -> dict[str, Any]:
    """The state of a run, the same on every rank. To be called on every rank."""
    exchange = trainer.strategy.exchange
    states = exchange({client: state.state_dict() for client, state in trainer.client_states.items()})
    known = exchange({trainer.fabric.global_rank: list(trainer.client_stores)})  # each rank may have stores of its own
    names = sorted({name for of_rank in known.values() for name in of_rank})
    return {
        "lightning_fl_version": __version__,
        "module": class_path(trainer.module),
        "round": trainer.current_round,
        "seed": trainer.seed,
        "num_clients": trainer.num_clients,
        "wall_time_seconds": trainer.wall_time_seconds,
        "models": [model.state_dict() for model in trainer.models],
        "collaboration": trainer.collaboration.state_dict(),
        "personal_layers": [] if trainer.personal is None else trainer.personal.patterns,
        "absent_clients": sorted(trainer.absent_clients),
        "resting_clients": sorted(trainer.resting_clients),
        "clients": states,
        "client_stores": {name: exchange(trainer.client_store(name)) for name in names},
        "communication": trainer.communication.state_dict(),
        "callback_metrics": {
            name: float(value) for name, value in trainer.loop.module_trainer.callback_metrics.items()
        },
        "callbacks": {name: callback.state_dict() for name, callback in _named_callbacks(trainer)},
    }


def load_run_state(trainer: "FederatedTrainer", state: dict[str, Any], *, weights_only: bool) -> None:
    """Take up a state; ``weights_only`` takes what an evaluation needs: the models and who uses which."""
    template = trainer.models[0]
    trainer.models = []
    for saved in state["models"]:
        model = template.clone()
        model.load_state_dict(saved)
        trainer.models.append(model)
    trainer._collaboration = Collaboration.from_state_dict(state["collaboration"])
    trainer.current_round = state["round"]
    trainer.keep_local(state.get("personal_layers", []))
    trainer.absent_clients = set(state.get("absent_clients", ()))
    hosted = set(trainer.hosted_clients)
    trainer.client_stores = {
        name: {client: value for client, value in values.items() if client in hosted}
        for name, values in state.get("client_stores", {}).items()
    }
    if weights_only:
        return
    trainer.resting_clients = set(state.get("resting_clients", ()))
    trainer.wall_time_seconds = state["wall_time_seconds"]
    trainer.communication.load_state_dict(state.get("communication", {}))
    trainer.client_states = {
        client: ClientState(**saved) for client, saved in state["clients"].items() if client in hosted
    }
    trainer.loop.module_trainer.callback_metrics.update(
        {name: torch.tensor(value) for name, value in state["callback_metrics"].items()}
    )
    trainer.has_validated = bool(state["callback_metrics"])
    for name, callback in _named_callbacks(trainer):
        if name in state["callbacks"]:
            callback.load_state_dict(state["callbacks"][name])


def _named_callbacks(trainer: "FederatedTrainer") -> "list[tuple[str, Callback]]":
    seen: dict[str, int] = {}
    named = []
    for callback in trainer.callbacks:
        name = type(callback).__name__
        seen[name] = seen.get(name, 0) + 1
        named.append((name if seen[name] == 1 else f"{name}-{seen[name]}", callback))
    return named
