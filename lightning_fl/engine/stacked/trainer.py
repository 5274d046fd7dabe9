"""``self.trainer`` while several clients train at once, limited to what is the same for all of them."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torchmetrics import Metric

from lightning_fl.core.errors import ConfigurationError
from lightning_fl.engine.turn.module_trainer import ModuleTrainer

__all__ = ["Logged", "StackedTrainer"]

#: Attributes that differ between clients.
_OF_ONE_CLIENT = frozenset(
    {
        "client",
        "callback_metrics",
        "logged_metrics",
        "progress_bar_metrics",
        "train_dataloader",
        "val_dataloaders",
        "fit_loop",
        "batches_before",
    }
)


@dataclass(frozen=True)
class Logged:
    """One call of ``self.log`` for all clients of a group: the arguments of :meth:`LogCollector.log`."""

    hook: str
    name: str
    value: Tensor
    options: dict[str, Any]


class StackedTrainer:
    """Replaces the :class:`ModuleTrainer` during a group's turns, and collects what is logged."""

    def __init__(self, trainer: ModuleTrainer) -> None:
        self._trainer = trainer
        self._facts: dict[str, set[Any]] = {}
        self.logged: list[Logged] = []

    @contextmanager
    def replace_module_trainer(self) -> Iterator[None]:
        """Context in which the module's ``self.trainer`` is this object."""
        module: Any = self._trainer.lightning_module
        module.trainer = self  # also for modules inside the module
        try:
            yield
        finally:
            module.trainer = self._trainer

    def begin_step(self, **facts: set[Any]) -> None:
        """Begin a step of some clients."""
        self._facts = facts
        self.logged = []

    @property
    def _results(self) -> "StackedTrainer":
        return self

    def log(self, fx: str, name: str, value: Tensor | Metric, **options: Any) -> None:
        """Keep one value of all clients. The signature is that of Lightning's result collection."""
        if isinstance(value, Metric):
            raise ConfigurationError(
                f"self.log({name!r}): a {type(value).__name__} counts the samples of one client, and"
                f" {type(self._trainer.lightning_module).__name__}.training_step runs for several at once: log a number"
                " (torchmetrics.functional), or set trainer.stacked_clients=1."
            )
        self.logged.append(Logged(fx, name, value, options))

    def reset(self, metrics: bool | None = None, fx: str | None = None) -> None:
        """Do nothing; Lightning calls this between hooks."""

    @property
    def should_stop(self) -> bool:
        """Whether the run ends after the round."""
        return self._trainer.should_stop

    @should_stop.setter
    def should_stop(self, stop: bool) -> None:
        self._trainer.should_stop = stop

    def __getattr__(self, name: str) -> Any:
        values = self._facts.get(name, ())
        if len(values) == 1:
            return next(iter(values))
        if values or name in _OF_ONE_CLIENT:
            raise ConfigurationError(
                f"{type(self._trainer.lightning_module).__name__} reads self.trainer.{name}, which differs between"
                " clients, while several train at once: do not use it in training, or set trainer.stacked_clients=1."
            )
        return getattr(self._trainer, name)
