"""Schedulers of a client's turn; and optimisers and schedulers that a module makes once and hands out in every turn."""

import copy
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakSet

from lightning.fabric.utilities.rank_zero import rank_zero_warn
from lightning.pytorch import LightningModule
from lightning.pytorch.utilities.types import LRSchedulerConfig
from torch import nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_iter

from lightning_fl.core.errors import ConfigurationError
from lightning_fl.core.lightning_types import is_overridden
from lightning_fl.engine.client import is_plain
from lightning_fl.engine.federation import Federation, Round
from lightning_fl.engine.settings import Settings
from lightning_fl.engine.turn.module_trainer import ModuleTrainer

#: Attributes of an optimiser that are kept in their own way.
_APART = frozenset({"state", "param_groups", "defaults"})
#: Attributes of every module, of torch and of Lightning, which hold no scheduler.
_OF_ALL = frozenset(vars(LightningModule()))


class Schedulers:
    """Steps the schedulers of the client in turn."""

    def __init__(self, module_trainer: ModuleTrainer, settings: Settings, federation: Federation, of: Round) -> None:
        self._trainer, self._settings, self._federation, self._round = module_trainer, settings, federation, of
        hook, module = "lr_scheduler_step", module_trainer.lightning_module
        self._by_module = is_overridden(hook, module) or hook in module_trainer.watching

    def step(self, when: str, done: int, *, latest: bool = True, plateau: bool | None = None) -> None:
        """Step the schedulers of an interval; metrics are known only of the ``latest`` of several rounds."""
        for config in self._trainer.lr_scheduler_configs:
            interval = self._settings.scheduler_interval
            if interval == "auto":
                interval = "round" if config.interval == "epoch" else "step"
            if interval != when or done % config.frequency or plateau not in (None, config.reduce_on_plateau):
                continue
            metric = self._monitored(config) if config.reduce_on_plateau and latest else None
            if config.reduce_on_plateau and metric is None:
                continue
            if self._by_module:
                self._trainer.call_hook("lr_scheduler_step", config.scheduler, metric)
            elif metric is None:
                config.scheduler.step()
            else:
                config.scheduler.step(metric)

    def _monitored(self, config: LRSchedulerConfig) -> float | None:
        known = self._trainer.callback_metrics
        if config.monitor in known:
            return float(known[config.monitor])
        if not self._round.fitting:
            return None  # fine-tuning in an evaluation by itself
        every = self._settings.check_val_every_n_rounds
        if every and "val" not in self._federation.metrics:
            return None  # no validation yet
        text = f"the scheduler monitors {config.monitor!r}, which is not logged: choose one of {sorted(known)}."
        if config.strict:
            raise ConfigurationError(text)
        rank_zero_warn(f"{text} The scheduler is not stepped.", category=RuntimeWarning)
        return None


def held_schedulers(module: nn.Module, optimizers: Sequence[Optimizer], returned: Sequence[Any]) -> list[Any]:
    """Schedulers of some optimisers that a module keeps in attributes and has not returned."""
    made, found = set(map(id, optimizers)), dict.fromkeys(map(id, returned))
    for part in module.modules():
        for value in [value for name, value in vars(part).items() if name not in _OF_ALL]:
            kind = type(value)
            for one in value.values() if kind is dict else value if kind in (list, tuple) else (value,):
                if id(getattr(one, "__dict__", {}).get("optimizer")) not in made:
                    continue
                if hasattr(type(one), "load_state_dict") and not issubclass(type(one), Optimizer | nn.Module):
                    found.setdefault(id(one), one)
    return [one for one in found.values() if one is not None]


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
        known = {id(one): self._snapshots[id(one)] for one in made if id(one) in self._snapshots}
        for one in made:
            if id(one) not in known and one in self._seen:
                what = f"configure_optimizers returned the {type(one).__name__} of an earlier turn"
                why = "which it had not returned at first: it holds what another client has learned"
                raise ConfigurationError(f"{what}, {why}. Return new ones in every turn, or the same from the first.")
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
