"""Learning-rate schedulers of a client's turn."""

from collections.abc import Sequence
from typing import Any

from lightning.fabric.utilities.rank_zero import rank_zero_warn
from lightning.pytorch.utilities.types import LRSchedulerConfig
from torch import nn
from torch.optim import Optimizer

from lightning_fl.core.errors import ConfigurationError
from lightning_fl.core.lightning_types import is_overridden
from lightning_fl.engine.federation import Federation
from lightning_fl.engine.settings import Settings
from lightning_fl.engine.turn.module_trainer import ModuleTrainer


class Schedulers:
    """Steps the schedulers of the client in turn."""

    def __init__(self, module_trainer: ModuleTrainer, settings: Settings, federation: Federation) -> None:
        self._trainer, self._settings, self._federation = module_trainer, settings, federation
        hook, module = "lr_scheduler_step", module_trainer.lightning_module
        self._by_module = is_overridden(hook, module) or hook in module_trainer.watching

    def step(self, when: str, done: int, *, latest: bool = True) -> None:
        """Step the schedulers of an interval; metrics are known only of the ``latest`` of several rounds."""
        for config in self._trainer.lr_scheduler_configs:
            interval = self._settings.scheduler_interval
            if interval == "auto":
                interval = "round" if config.interval == "epoch" else "step"
            if interval != when:
                continue
            if done % config.frequency:
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
        every = self._settings.check_val_every_n_rounds
        if every and self._federation.current_round < every:
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
        for value in vars(part).values():
            kind = type(value)
            for one in value.values() if kind is dict else value if kind in (list, tuple) else (value,):
                stateful = hasattr(type(one), "load_state_dict") and not issubclass(type(one), Optimizer | nn.Module)
                if stateful and id(getattr(one, "__dict__", {}).get("optimizer")) in made:
                    found.setdefault(id(one), one)
    return [one for one in found.values() if one is not None]
