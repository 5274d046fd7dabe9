"""Client states of a module's ``torchmetrics`` metrics that outlive a turn ("best so far")."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torchmetrics import Metric

from lightning_fl.engine.federation import Federation

#: Name of the client store.
_STORE = "metric_states"
#: Temporary attributes of a metric.
_PASSING = frozenset(
    {"_computed", "_forward_cache", "_cache", "_is_synced", "_to_sync", "_should_unsync", "_enable_grad", "training"}
)

#: Types of the attributes that are kept.
_PLAIN = (bool, int, float, str, Tensor, type(None))

#: An attribute of a metric -> its value; lists of tensors are states that grow.
_State = dict[str, Any]
#: Module -> name -> the metric, its state before any run, and that in which the latest run left it.
_BEFORE_RUNS: WeakKeyDictionary[LightningModule, dict[str, tuple[Metric, _State, _State]]] = WeakKeyDictionary()


class MetricStates:
    """Swaps the states of a module's metrics with the client in turn, as for buffers.

    Every client's initial one is the module's before its first run, with what was changed between runs and in hooks
    before the first turn. Metrics logged as objects are reset after a turn.
    """

    def __init__(self, module: LightningModule, federation: Federation) -> None:
        self._federation = federation
        self.metrics = {name: one for name, one in module.named_modules() if isinstance(one, Metric)}
        self._module, self._pristine = module, dict[str, _State]()
        for name, metric in self.metrics.items():
            known, before, left = _BEFORE_RUNS.get(module, {}).get(name, (None, {}, {}))
            if known is metric:  # what was changed since stays
                now = vars(metric)
                _put(metric, {key: value for key, value in before.items() if _same(now.get(key), left.get(key))})
            self._pristine[name] = _state(metric)
        #: Attributes whose identity shows that a metric was updated: all but its states, which ``reset`` recreates.
        self._marks = {name: self._mark(name) for name in self.metrics}
        self._owner: int | None = None

    def leave(self) -> None:
        """End a run, which leaves the metrics as the last client's turn did."""
        left = {name: (one, self._pristine[name], _state(one)) for name, one in self.metrics.items()}
        _BEFORE_RUNS[self._module] = left

    def begin(self, client: int) -> None:
        if not self.metrics:
            return
        if client != self._owner:
            self._give(self._store.get(client, {}))
        self._owner = None  # until the turn has succeeded

    def end(self, client: int, keep: bool) -> None:
        """End a client's turn; without ``keep`` the client keeps the states before it."""
        if not self.metrics or not keep:
            return
        changed = {name: _state(metric) for name, metric in self.metrics.items() if self._changed(name, metric)}
        if changed or client in self._store:
            self._federation.client_store(_STORE)[client] = changed
        self._owner = client

    def reset(self) -> None:
        """Give the metrics every client's initial state, after a failed turn."""
        self._owner = None
        self._give({})

    @contextmanager
    def hook_of_round(self) -> Iterator[None]:
        """Context of a hook called once for all clients of a round: metrics that it resets are reset for all."""
        kept = {name: state for states in self._store.values() for name, state in states.items()}
        if not kept:
            yield
            return
        for name, state in kept.items():
            if not self._changed(name, self.metrics[name]):
                _put(self.metrics[name], state)
                self._owner = None
        yield
        if reset := {name for name in kept if not self._changed(name, self.metrics[name])}:
            store = self._federation.client_store(_STORE)
            for client, states in store.items():
                store[client] = {name: state for name, state in states.items() if name not in reset}

    @property
    def _store(self) -> dict[int, dict[str, _State]]:
        return self._federation.client_stores.get(_STORE, {})

    def _give(self, states: dict[str, _State]) -> None:
        for name, metric in self.metrics.items():
            if name in states:
                _put(metric, states[name])
            elif self._changed(name, metric):
                _put(metric, self._pristine[name])
                self._marks[name] = self._mark(name)

    def _mark(self, name: str) -> _State:
        own, states = vars(self.metrics[name]), self.metrics[name]._defaults
        return {key: own[key] for key in self._pristine[name] if key not in states}

    def _changed(self, name: str, metric: Metric) -> bool:
        own = vars(metric)
        return any(own.get(key) is not value for key, value in self._marks[name].items())


def _state(metric: Metric) -> _State:
    """A copy of a metric's states and plain attributes, its count of updates among them."""
    return {
        key: _copied(value, "cpu")
        for key, value in vars(metric).items()
        if key in metric._defaults
        or (key not in _PASSING and isinstance(value, _PLAIN) and not isinstance(value, nn.Parameter))
    }


def _put(metric: Metric, state: _State) -> None:
    vars(metric).update({key: _copied(value, metric.device) for key, value in state.items()})
    metric._computed = metric._forward_cache = None


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        one, other = one.cpu(), other.cpu()
        return one.shape == other.shape and bool(((one == other) | ((one != one) & (other != other))).all())
    return type(one) is type(other) and (one == other or (one != one and other != other))  # also NaN


def _copied(value: Any, device: torch.device | str) -> Any:
    if isinstance(value, list):  # entries are never changed in place
        return [one.detach().to(device) if isinstance(one, Tensor) else one for one in value]
    return value.detach().to(device, copy=True) if isinstance(value, Tensor) else value


@contextmanager
def preserve_metrics(module: LightningModule) -> Iterator[None]:
    """Restore the states of a module's torchmetrics afterwards."""
    cached = ("_update_count", "_computed", "_forward_cache")
    metrics = [metric for metric in module.modules() if isinstance(metric, Metric)]
    kept = [{**metric._copy_state_dict(), **{name: vars(metric)[name] for name in cached}} for metric in metrics]
    try:
        yield
    finally:
        for metric, state in zip(metrics, kept, strict=True):
            vars(metric).update(state)
