"""Figure of the clients' sampling weights over rounds."""

from functools import partial
from typing import Any

import torch
from torch import Tensor

from lightning_fl.callbacks.figures.figure import Drawings, FigureCallback
from lightning_fl.callbacks.figures.plots.run import draw_client_curves
from lightning_fl.core.errors import ConfigurationError
from lightning_fl.runtime.surface import TrainerSurface

__all__ = ["SamplingWeightsFigure"]


class SamplingWeightsFigure(FigureCallback):
    """Draws the sampling weights lambda [N] over rounds, a line per client.

    The weights are those of a callback for the participation, such as ``DROClientSampling``. Drawn at the end of the
    fit, in TensorBoard and as ``figures/sampling_weights.png``. Checkpoints contain 8 bytes per round and client.

    Args:
        every_n_rounds: also draw every n rounds; 0 for the end only.

    Raises:
        ConfigurationError: at the start of a run, no callback has sampling weights.
    """

    def __init__(self, *, every_n_rounds: int = 0) -> None:
        super().__init__(every_n_rounds=every_n_rounds)
        #: Rounds done when each row of :attr:`history` was read.
        self.rounds: list[int] = []
        self._rows: list[Tensor] = []

    @property
    def history(self) -> Tensor:
        """Weights, shape [R, N]; the first row is of the start."""
        return torch.stack(self._rows) if self._rows else torch.empty(0, 0, dtype=torch.float64)

    def setup(self, trainer: TrainerSurface, stage: str) -> None:
        """Refuse a run without sampling weights; clear the history."""
        _sampling_weights(trainer)
        if stage == "fit":
            self.rounds, self._rows = [], []

    def on_round_start(self, trainer: TrainerSurface) -> None:
        """Keep the initial weights."""
        if not self.rounds:
            self._record(trainer)

    def on_round_end(self, trainer: TrainerSurface) -> None:
        """Keep the round's weights; draw if due."""
        self._record(trainer)
        super().on_round_end(trainer)

    def state_dict(self) -> dict[str, Any]:
        """The history."""
        return {"rounds": list(self.rounds), "history": self.history}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the history."""
        self.rounds, self._rows = list(state["rounds"]), list(state["history"])

    def figures(self, trainer: TrainerSurface) -> Drawings:
        """The whole history."""
        if self.rounds:
            yield (
                "sampling_weights",
                partial(
                    draw_client_curves,
                    self.rounds,
                    self.history,
                    trainer.client_names,
                    title=f"Sampling weights up to round {trainer.federation.current_round}",
                    ylabel="sampling weight λ",
                    reference=("uniform", 1 / trainer.num_clients),
                ),
            )

    def _record(self, trainer: TrainerSurface) -> None:
        self.rounds.append(trainer.federation.current_round)
        self._rows.append(_sampling_weights(trainer).detach().to("cpu", torch.float64, copy=True))


def _sampling_weights(trainer: TrainerSurface) -> Tensor:
    for callback in trainer.callbacks:
        weights = getattr(callback, "weights", None)
        if callback.role == "participation" and isinstance(weights, Tensor):
            return weights
    raise ConfigurationError(
        "SamplingWeightsFigure needs a callback with sampling weights: add DROClientSampling to trainer.callbacks, or"
        " remove SamplingWeightsFigure."
    )
