"""Client states of a module's callbacks (``configure_callbacks``), by Lightning's checkpoint hooks."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
from lightning.pytorch.trainer.states import TrainerFn
from lightning_utilities.core.apply_func import apply_to_collection
from torch import Tensor

from lightning_fl.core.lightning_types import rank_seen
from lightning_fl.engine.client import packed
from lightning_fl.engine.federation import Federation
from lightning_fl.engine.turn.module_callbacks import LIGHTNING, OF_STATE
from lightning_fl.engine.turn.module_trainer import ModuleTrainer
from lightning_fl.engine.weights.flat import FlatModule

__all__ = ["CallbackStates", "averaged_weights"]

#: Name of the client store, which holds checkpoints with only what the callbacks saved.
_STORE = "callback_states"
#: Placeholder for the module's own ``state_dict`` in such a checkpoint.
_OF_MODULE = "the module's weights"
#: Key of such a checkpoint whose ``state_dict`` is an average.
_AVERAGE = "averaging_state"
#: Attribute of a callback with the state before the fit.
_PRISTINE = "_state_before_fit"


class CallbackStates:
    """Loads and saves the states of callbacks around each client's turn, as Lightning does around a restart.

    The state at the start of the fit is the initial one of every client. As in Lightning, an evaluation without a
    checkpoint does not change callbacks that were never in a fit.

    Args:
        module_trainer: with the module and its callbacks; for a fit, at the end of ``on_train_start``.
        flat: the module's flat weights.
        federation: with the clients' stores.

    Raises:
        ConfigurationError: a checkpoint cannot hold what a callback saves.
    """

    def __init__(self, module_trainer: ModuleTrainer, flat: FlatModule, federation: Federation) -> None:
        self._trainer, self._flat, self._federation = module_trainer, flat, federation
        watching = module_trainer.watching
        found = {id(callback): callback for hook in OF_STATE for callback in watching.get(hook, ())}
        self.callbacks: dict[str, Any] = {f"{n} {one.state_key}": one for n, one in enumerate(found.values())}
        self._numbers = {  # plain attributes that callbacks do not save
            name: {key: value for key, value in vars(callback).items() if isinstance(value, int | float | str | None)}
            for name, callback in self.callbacks.items()
        }
        self._in_turn = False
        if found and module_trainer.state.fn == TrainerFn.FITTING:
            pristine = self._saved() | {"state_dict": _OF_MODULE}
            for callback in found.values():
                setattr(callback, _PRISTINE, pristine)
        self._pristine: dict[str, Any] = next((getattr(one, _PRISTINE, {}) for one in found.values()), {})

    @property
    def averages(self) -> bool:
        """Whether one of the callbacks is Lightning's ``WeightAveraging``, see :func:`averaged_weights`."""
        return _AVERAGE in self._pristine

    def of_run(self, hook: str) -> bool:
        """Whether a callback with a state has a hook that is otherwise called once for all clients."""
        return any(callback in self.callbacks.values() for callback in self._trainer.watching.get(hook, ()))

    @contextmanager
    def turn(self, client: int, *, keep: bool, trained: bool = False) -> Iterator[None]:
        """Context in which the callbacks have a client's state.

        Args:
            client: in turn; the module has its weights.
            keep: save the state at the end.
            trained: the turn trains the module.
        """
        before = self._federation.client_stores.get(_STORE, {}).get(client, self._pristine)
        if not (self.callbacks and before and (self._pristine or self._trainer.ckpt_path)):
            yield
            return
        outer, self._in_turn = self._saved() if self._in_turn else None, True
        evaluated = {} if trained else {"state_dict": _OF_MODULE}  # evaluate the module's own weights
        try:
            self._load(before | evaluated)
            yield
            if keep:
                state = self._saved() | ({} if trained else {"state_dict": before["state_dict"]})
                self._federation.client_store(_STORE)[client] = state
        finally:
            self._in_turn = outer is not None
            if outer is not None:
                self._load(outer)

    def _saved(self) -> dict[str, Any]:
        """A checkpoint with plain values and copied tensors on the CPU."""
        weights = self._trainer.lightning_module.state_dict()
        own = dict(weights)
        states = {name: callback.state_dict() for name, callback in self.callbacks.items()}
        now = {"epoch": self._trainer.current_epoch, "global_step": self._trainer.global_step}
        checkpoint: dict[str, Any] = {**now, "state_dict": weights, "callbacks": states}
        self._call("on_save_checkpoint", checkpoint)
        kept = {name: _OF_MODULE if _same(value, own) else value for name, value in checkpoint.items()}
        names = ", ".join(type(callback).__name__ for callback in self.callbacks.values())
        return packed(_copied(kept, "cpu"), f"the module's {names}")

    def _load(self, state: dict[str, Any]) -> None:
        for name, callback in self.callbacks.items():
            vars(callback).update(self._numbers[name])
        present, module = self._flat.collect().clone(), self._trainer.lightning_module
        state = {
            name: module.state_dict() if isinstance(value, str) and value == _OF_MODULE else value
            for name, value in state.items()
        }
        self._call("on_load_checkpoint", _copied(state, module.device))
        self._flat.load(present)
        for name, callback in self.callbacks.items():
            callback.load_state_dict(_copied(state["callbacks"].get(name, {}), module.device))

    def _call(self, hook: str, checkpoint: dict[str, Any]) -> None:
        for callback in self.callbacks.values():
            method = getattr(callback, hook)
            # Lightning's own callbacks log on rank zero, which is too much in every turn.
            with rank_seen(int(method.__module__.startswith(LIGHTNING))):
                method(self._trainer, self._trainer.lightning_module, checkpoint)


def averaged_weights(federation: Federation, client: int) -> Mapping[str, Tensor]:
    """A hosted client's average over its steps, kept by Lightning's ``WeightAveraging``; empty without it."""
    state = federation.client_stores.get(_STORE, {}).get(client, {})
    return {} if _AVERAGE not in state or state["state_dict"] == _OF_MODULE else state["state_dict"]


def _copied(value: Any, device: Any) -> Any:
    def own(one: Tensor | np.ndarray) -> Tensor | np.ndarray:
        return one.copy() if isinstance(one, np.ndarray) else one.detach().to(device, copy=True)

    return apply_to_collection(value, (Tensor, np.ndarray), own)


def _same(value: Any, own: dict[str, Tensor]) -> bool:
    return isinstance(value, Mapping) and value.keys() == own.keys() and all(value[k] is own[k] for k in own)
