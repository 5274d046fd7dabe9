"""``self.trainer`` while several clients train at once: what is the same for all of them."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torchmetrics import Metric

from lightning_fl.core.errors import ConfigurationError
from lightning_fl.engine.turn.module_trainer import ModuleTrainer

__all__ = ["Logged", "StackedTrainer"]

#: Never the same for two clients.
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
    """Stands before the :class:`ModuleTrainer` during a group's turns, and takes what is logged there.

    Args:
        trainer: answers all that is asked of the run, not of a client.
    """

    def __init__(self, trainer: ModuleTrainer) -> None:
        self._trainer = trainer
        self._facts: dict[str, set[Any]] = {}
        self.logged: list[Logged] = []

    @contextmanager
    def instead_of_shim(self) -> Iterator[None]:
        """The module's ``self.trainer`` is this object."""
        module = self._trainer.model
        module.trainer = self  # type: ignore[assignment]  # reaches modules inside the module, too
        try:
            yield
        finally:
            module.trainer = self._trainer  # type: ignore[assignment]

    def begin_step(self, **facts: set[Any]) -> None:
        """A step for some clients begins.

        Args:
            facts: attribute of ``self.trainer`` -> its values for these clients.
        """
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
                f" {type(self._trainer.model).__name__}.training_step runs for several at once. Log a number"
                " (torchmetrics.functional), or set trainer.stacked_clients=1."
            )
        self.logged.append(Logged(fx, name, value, options))

    def reset(self, metrics: bool | None = None, fx: str | None = None) -> None:
        """Lightning calls this between hooks; there is nothing to do."""

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
                f"{type(self._trainer.model).__name__} reads self.trainer.{name}, which is another one for each client,"
                " while several train at once. Do without it in training, or set trainer.stacked_clients=1."
            )
        return getattr(self._trainer, name)
