"""Optimisers and schedulers that a module makes once and hands out in every turn (from its ``__init__``, say)."""

import copy
from collections.abc import Sequence
from typing import Any
from weakref import WeakSet

from torch import nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_iter

from lightning_fl.core.errors import ConfigurationError
from lightning_fl.engine.client import is_plain

__all__ = ["PristineOptimizers"]

#: Kept in their own way.
_APART = frozenset({"state", "param_groups", "defaults"})


class PristineOptimizers:
    """Gives every turn optimisers and schedulers as they were when the run began.

    Most modules make new ones at each call of ``configure_optimizers``; then there is nothing to do. Objects that come
    again have been stepped in other clients' turns: they are set back to what they were at the run's first call.
    """

    def __init__(self) -> None:
        self._snapshots: dict[int, _OfOptimizer | _OfScheduler] | None = None
        self._seen: WeakSet[Any] = WeakSet()

    def restore(self) -> None:
        """Set all objects that may come again back, before ``configure_optimizers`` is called."""
        for snapshot in (self._snapshots or {}).values():
            snapshot.restore()

    def check(self, made: Sequence[Any]) -> None:
        """Look at the optimisers and schedulers that ``configure_optimizers`` returned or left in the module.

        Raises:
            ConfigurationError: an object of an earlier turn that was not there at the first call.
        """
        if self._snapshots is None:
            self._snapshots = {id(one): _snapshot(one) for one in made}
        else:
            known = {id(one): self._snapshots[id(one)] for one in made if id(one) in self._snapshots}
            for one in made:
                if id(one) not in known and one in self._seen:
                    raise ConfigurationError(
                        f"configure_optimizers returned the {type(one).__name__} of an earlier turn, which it had not"
                        " returned at first: it holds what another client has learned. Return new ones in every turn,"
                        " or the same from the first."
                    )
            self._snapshots = known
        self._seen.update(made)


class _OfOptimizer:
    """An optimiser's state, groups, and plain attributes of its own; those of an optimiser inside of it, too."""

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        self._state = _copied_state(optimizer.state)
        self._groups = [(group, list(group["params"]), _hyper_parameters(group)) for group in optimizer.param_groups]
        others = {key: value for key, value in vars(optimizer).items() if key not in _APART}
        self._values = {key: copy.deepcopy(value) for key, value in others.items() if _is_plain(value)}
        self._inner = [_OfOptimizer(value) for value in others.values() if isinstance(value, Optimizer)]

    def restore(self) -> None:
        optimizer = self._optimizer
        optimizer.state.clear()
        optimizer.state.update(_copied_state(self._state))
        for group, parameters, values in self._groups:
            group.clear()
            group.update({"params": list(parameters), **copy.deepcopy(values)})
        optimizer.param_groups[:] = [group for group, _, _ in self._groups]  # in place: wrappers hold the list
        own = vars(optimizer)
        for key in [key for key, value in own.items() if key not in _APART and _is_plain(value)]:
            if key not in self._values:
                del own[key]
        own.update(copy.deepcopy(self._values))
        for inner in self._inner:
            inner.restore()


class _OfScheduler:
    """A scheduler's state."""

    def __init__(self, scheduler: Any) -> None:
        self._scheduler = scheduler
        self._state = copy.deepcopy(scheduler.state_dict())

    def restore(self) -> None:
        self._scheduler.load_state_dict(copy.deepcopy(self._state))


def _snapshot(made: Any) -> "_OfOptimizer | _OfScheduler":
    return _OfOptimizer(made) if isinstance(made, Optimizer) else _OfScheduler(made)


def _copied_state(state: Any) -> dict[Any, Any]:
    """The state of each parameter; the keys are the parameters themselves."""
    return {parameter: copy.deepcopy(of_parameter) for parameter, of_parameter in state.items()}


def _hyper_parameters(group: dict[str, Any]) -> dict[str, Any]:
    return copy.deepcopy({key: value for key, value in group.items() if key != "params"})


def _is_plain(value: Any) -> bool:
    """Whether an attribute is the optimiser's own, without parameters of the module."""
    return is_plain(value) and not any(isinstance(leaf, nn.Parameter) for leaf in tree_iter(value))
