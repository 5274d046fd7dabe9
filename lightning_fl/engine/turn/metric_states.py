"""States of a module's ``torchmetrics`` metrics that outlive a turn ("best so far"): each client's own."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torchmetrics import Metric

from lightning_fl.engine.federation import Federation

__all__ = ["MetricStates", "preserve_metrics"]

#: Whose store holds them.
_STORE = "metric_states"
#: What a metric keeps for a moment only.
_PASSING = frozenset(
    {"_computed", "_forward_cache", "_cache", "_is_synced", "_to_sync", "_should_unsync", "_enable_grad", "training"}
)

#: An attribute of a metric -> its value; lists of tensors are states that grow.
_State = dict[str, Any]


class MetricStates:
    """Swaps the states of all metrics of a module with the client whose turn it is, as buffers are.

    Metrics that are logged as objects are reset at the end of a turn, so that nothing of them is kept; a module
    without metrics has nothing to swap. What a client keeps is in its store, and so in checkpoints.

    Args:
        module: as it is when the run begins: so it is for every client at first.
        federation: holds the clients' stores.
    """

    def __init__(self, module: LightningModule, federation: Federation) -> None:
        self._federation = federation
        self.metrics = {name: one for name, one in module.named_modules() if isinstance(one, Metric)}
        self._pristine = {name: _state(metric) for name, metric in self.metrics.items()}
        #: What tells by its identity that a metric has counted: all but its states, which ``reset`` makes anew.
        self._marks = {name: self._mark(name) for name in self.metrics}
        self._owner: int | None = None

    def begin(self, client: int) -> None:
        """The turn of a client begins: the metrics have its states."""
        if not self.metrics:
            return
        if client != self._owner:
            self._give(self._store.get(client, {}))
        self._owner = None  # until the turn has ended well

    def end(self, client: int, keep: bool) -> None:
        """The turn has ended.

        Args:
            client: whose.
            keep: it goes on from what the metrics have counted; else from what they had counted before the turn.
        """
        if not self.metrics or not keep:
            return
        changed = {name: _state(metric) for name, metric in self.metrics.items() if self._changed(name, metric)}
        if changed or client in self._store:
            self._federation.client_store(_STORE)[client] = changed
        self._owner = client

    @contextmanager
    def hook_of_round(self) -> Iterator[None]:
        """A hook that is called once for all clients of a round: what it resets is reset for all of them."""
        kept = {name: state for states in self._store.values() for name, state in states.items()}
        if not kept:
            yield
            return
        for name, state in kept.items():
            if not self._changed(name, self.metrics[name]):
                _put(self.metrics[name], state)
                self._owner = None
        yield
        reset = {name for name in kept if not self._changed(name, self.metrics[name])}
        if reset:
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
        if key in metric._defaults or (key not in _PASSING and _is_plain(value))
    }


def _put(metric: Metric, state: _State) -> None:
    own = vars(metric)
    for key, value in state.items():
        own[key] = _copied(value, metric.device)
    metric._computed = metric._forward_cache = None


def _copied(value: Any, device: torch.device | str) -> Any:
    if isinstance(value, list):  # its entries are never changed in place
        return [one.detach().to(device) if isinstance(one, Tensor) else one for one in value]
    return value.detach().to(device, copy=True) if isinstance(value, Tensor) else value


def _is_plain(value: Any) -> bool:
    if isinstance(value, nn.Parameter):
        return False
    return value is None or isinstance(value, bool | int | float | str | Tensor)


@contextmanager
def preserve_metrics(module: LightningModule) -> Iterator[None]:
    """What a module's torchmetrics have counted is afterwards what it was before."""
    cached = ("_update_count", "_computed", "_forward_cache")
    metrics = [metric for metric in module.modules() if isinstance(metric, Metric)]
    kept = [{**metric._copy_state_dict(), **{name: vars(metric)[name] for name in cached}} for metric in metrics]
    try:
        yield
    finally:
        for metric, state in zip(metrics, kept, strict=True):
            vars(metric).update(state)
