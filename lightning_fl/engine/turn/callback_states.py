"""States of Lightning's callbacks, of each client or of the run, by Lightning's checkpoint hooks."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
from lightning.pytorch.trainer.states import TrainerFn
from lightning_utilities.core.apply_func import apply_to_collection
from torch import Tensor

from lightning_fl.core.lightning_types import rank_seen
from lightning_fl.engine.client import packed
from lightning_fl.engine.federation import Federation
from lightning_fl.engine.turn.module_callbacks import LIGHTNING, OF_STATE, is_of_run
from lightning_fl.engine.turn.module_trainer import ModuleTrainer
from lightning_fl.engine.weights.flat import FlatModule

#: Name of the client store, which holds checkpoints with only what the callbacks saved.
_STORE = "callback_states"
#: Placeholder for the module's own ``state_dict`` in such a checkpoint.
_OF_MODULE = "the module's weights"
#: Key of such a checkpoint whose ``state_dict`` is an average.
_AVERAGE = "averaging_state"
#: Attribute of a callback with the state before the fit.
_PRISTINE = "_state_before_fit"


class CallbackStates:
    """Loads and saves clients' states of callbacks around each turn, as Lightning does around a restart.

    The state at the start of the fit (at the end of ``on_train_start``) is the initial one of every client. As in
    Lightning, an evaluation without a checkpoint does not change callbacks that were never in a fit.
    """

    def __init__(self, module_trainer: ModuleTrainer, flat: FlatModule, federation: Federation) -> None:
        self._trainer, self._flat, self._federation = module_trainer, flat, federation
        found = {id(callback): callback for hook in OF_STATE for callback in module_trainer.watching.get(hook, ())}
        self.callbacks: dict[str, Any] = {
            f"{n} {one.state_key}": one for n, one in enumerate(found.values()) if not is_of_run(one)
        }
        self._numbers = {  # plain attributes that callbacks do not save
            name: {key: value for key, value in vars(callback).items() if isinstance(value, int | float | str | None)}
            for name, callback in self.callbacks.items()
        }
        self._in_turn = False
        if self.callbacks and module_trainer.state.fn == TrainerFn.FITTING:
            pristine = self._saved() | {"state_dict": _OF_MODULE}
            for callback in self.callbacks.values():
                setattr(callback, _PRISTINE, pristine)
        self._pristine: dict[str, Any] = next((getattr(one, _PRISTINE, {}) for one in self.callbacks.values()), {})

    @property
    def averages(self) -> bool:
        """Whether one of the callbacks is Lightning's ``WeightAveraging``, see :func:`averaged_weights`."""
        return _AVERAGE in self._pristine

    def watch(self, hook: str) -> bool:
        """Whether a callback with clients' states has a hook that is otherwise called once for all clients."""
        return any(callback in self.callbacks.values() for callback in self._trainer.watching.get(hook, ()))

    @contextmanager
    def turn(self, client: int, *, keep: bool, trained: bool = False) -> Iterator[None]:
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
        return saved_states(self._trainer, self.callbacks)

    def _load(self, state: dict[str, Any]) -> None:
        for name, callback in self.callbacks.items():
            vars(callback).update(self._numbers[name])
        present = self._flat.collect().clone()
        load_states(self._trainer, self.callbacks, state, lambda: self._flat.load(present))


def saved_states(trainer: ModuleTrainer, callbacks: Mapping[str, Any]) -> dict[str, Any]:
    """A checkpoint with what some callbacks save: plain values and copied tensors on the CPU."""
    weights = trainer.lightning_module.state_dict()
    own = dict(weights)
    states = {name: callback.state_dict() for name, callback in callbacks.items()}
    now = {"epoch": trainer.current_epoch, "global_step": trainer.global_step}
    checkpoint: dict[str, Any] = {**now, "state_dict": weights, "callbacks": states}
    _call(trainer, callbacks, "on_save_checkpoint", checkpoint)
    kept = {name: _OF_MODULE if _same(value, own) else value for name, value in checkpoint.items()}
    of_trainer = set(map(id, trainer.federated.lightning_callbacks))
    whose = [
        f"{'trainer.callbacks' if id(one) in of_trainer else 'the module'}'s {type(one).__name__}"
        for one in callbacks.values()
    ]
    return packed(_copied(kept, "cpu"), ", ".join(whose))


def load_states(
    trainer: ModuleTrainer,
    callbacks: Mapping[str, Any],
    state: Mapping[str, Any],
    restore_module: Callable[[], object] = lambda: None,
) -> None:
    """Load what :func:`saved_states` returned; hooks may change the module, which is then restored."""
    module = trainer.lightning_module
    state = {
        name: module.state_dict() if isinstance(value, str) and value == _OF_MODULE else value
        for name, value in state.items()
    }
    _call(trainer, callbacks, "on_load_checkpoint", _copied(state, module.device))
    restore_module()
    for name, callback in callbacks.items():
        callback.load_state_dict(_copied(state["callbacks"].get(name, {}), module.device))


def _call(trainer: ModuleTrainer, callbacks: Mapping[str, Any], hook: str, checkpoint: dict[str, Any]) -> None:
    for callback in callbacks.values():
        method = getattr(callback, hook)
        # Lightning's own callbacks log on rank zero, which is too much in every turn.
        with rank_seen(int(method.__module__.startswith(LIGHTNING))):
            method(trainer, trainer.lightning_module, checkpoint)


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
