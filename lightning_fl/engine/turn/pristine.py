"""Optimisers and schedulers that a module makes once and hands out in every turn (from its ``__init__``, say)."""

import copy
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakSet

from torch import nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_iter

from lightning_fl.core.errors import ConfigurationError
from lightning_fl.engine.client import is_plain

#: Kept in their own way.
_APART = frozenset({"state", "param_groups", "defaults"})


class PristineOptimizers:
    """Gives every turn optimisers and schedulers as they were when the run began.

    Most modules make new ones at each call of ``configure_optimizers``; then there is nothing to do. Objects that come
    again have been stepped in other clients' turns: they are set back to what they were at the run's first call.
    """

    def __init__(self) -> None:
        self._snapshots: dict[int, Callable[[], None]] | None = None
        self._seen: WeakSet[Any] = WeakSet()

    def restore(self) -> None:
        for restore in (self._snapshots or {}).values():
            restore()

    def check(self, made: Sequence[Any]) -> None:
        """Refuse an optimiser or scheduler of an earlier turn that was not returned at the first call."""
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


def _snapshot(made: Any) -> Callable[[], None]:
    """A function that sets an optimiser or a scheduler back to what it is now."""
    if isinstance(made, Optimizer):
        return _snapshot_of_optimizer(made)
    state = copy.deepcopy(made.state_dict())
    return lambda: made.load_state_dict(copy.deepcopy(state))


def _snapshot_of_optimizer(optimizer: Optimizer) -> Callable[[], None]:
    """Of its state, groups, and plain attributes of its own; also of an optimiser inside of it."""
    state = _copied_state(optimizer.state)
    groups = [
        (group, list(group["params"]), copy.deepcopy({key: value for key, value in group.items() if key != "params"}))
        for group in optimizer.param_groups
    ]
    others = {key: value for key, value in vars(optimizer).items() if key not in _APART}
    values = {key: copy.deepcopy(value) for key, value in others.items() if _is_plain(value)}
    inner = [_snapshot(value) for value in others.values() if isinstance(value, Optimizer)]

    def restore() -> None:
        optimizer.state.clear()
        optimizer.state.update(_copied_state(state))
        for group, parameters, hyper_parameters in groups:
            group.clear()
            group.update({"params": list(parameters), **copy.deepcopy(hyper_parameters)})
        optimizer.param_groups[:] = [group for group, _, _ in groups]  # in place: wrappers hold the list
        own = vars(optimizer)
        for key in [key for key, value in own.items() if key not in _APART and _is_plain(value)]:
            if key not in values:
                del own[key]
        own.update(copy.deepcopy(values))
        for restore_inner in inner:
            restore_inner()

    return restore


def _copied_state(state: Any) -> dict[Any, Any]:
    return {parameter: copy.deepcopy(of_parameter) for parameter, of_parameter in state.items()}  # parameters as keys


def _is_plain(value: Any) -> bool:
    return is_plain(value) and not any(isinstance(leaf, nn.Parameter) for leaf in tree_iter(value))
