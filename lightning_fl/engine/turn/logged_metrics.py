"""What a module's ``self.trainer`` tells of logged metrics."""

from typing import Any

import torch
from torch import Tensor

from lightning_fl.core.metrics import lightning_names
from lightning_fl.engine.federation import Federation
from lightning_fl.engine.turn.results import EarlyLog, LogCollector

__all__ = ["LoggedMetrics"]


class LoggedMetrics:
    """Mixin of :class:`~lightning_fl.engine.turn.module_trainer.ModuleTrainer`: the latest means over clients.

    Within a client's turn, what it logged until now comes first.
    """

    client: int | None
    collector: LogCollector
    training: Any
    predicting: Any
    _federation: Federation
    _module: Any
    _between_turns: EarlyLog

    @property
    def _results(self) -> Any:
        if self.predicting:
            return None
        return self._between_turns if self.client is None else self.collector

    @property
    def callback_metrics(self) -> dict[str, Tensor]:
        """All of them."""
        means = self._federation.latest_means()
        return means if self.client is None else means | self._so_far()

    @property
    def logged_metrics(self) -> dict[str, Tensor]:
        """Those for loggers."""
        return self._logged_with("to_logger")

    @property
    def progress_bar_metrics(self) -> dict[str, float]:
        """Those for a progress bar."""
        return {name: float(value) for name, value in self._logged_with("prog_bar").items()}

    def _logged_with(self, destination: str) -> dict[str, Tensor]:
        found: dict[str, Tensor] = {}
        for metrics in self._federation.metrics.values():
            wanted = {name: metric for name, metric in metrics.items() if getattr(metric, destination)}
            means = lightning_names(wanted, steps=True, single=True)
            found |= {name: torch.tensor(mean) for name, mean in means.items()}
        return found if self.client is None else found | self._so_far(destination)

    def _so_far(self, destination: str | None = None) -> dict[str, Tensor]:
        ended = (self._module._current_fx_name or "").endswith("_epoch_end")
        return self.collector.so_far(training=self.training, ended=ended, destination=destination)
