"""Snapshots of the shared models, whose disagreement measures the uncertainty of predictions."""

from pathlib import Path

from torch import Tensor

from lightning_fl.callbacks.callback import Callback
from lightning_fl.core.validation import Count, checked_fields
from lightning_fl.engine.weights.flat import Weights
from lightning_fl.runtime.model_file import export_models
from lightning_fl.runtime.surface import TrainerSurface


@checked_fields
class Snapshots(Callback):
    """Saves the shared models of several rounds as ``models/snapshots/round_R/shared_K.ckpt`` after fit.

    ``lightning-fl predict RUN FILE --model snapshots --spread`` predicts with their mean and standard deviation. After
    Huang et al. 2017, "Snapshot Ensembles: Train 1, get M for free" (https://arxiv.org/abs/1704.00109), which restarts
    the learning rate before each snapshot; here the module's schedule is not changed.

    Args:
        num: M, number of snapshots of each shared model; the last ones are kept.
        every_n_rounds: rounds between two snapshots.
    """

    only_shows = True
    saved = ("_kept",)

    num: Count = 5
    every_n_rounds: Count = 1

    def on_fit_start(self, trainer: TrainerSurface) -> None:
        #: Round -> states of the shared models.
        self._kept: dict[int, list[dict[str, Tensor]]] = {}

    def on_round_end(self, trainer: TrainerSurface) -> None:
        if trainer.federation.current_round % self.every_n_rounds == 0:
            states = [model.clone().state_dict() for model in trainer.federation.models]
            self._kept[trainer.federation.current_round] = states
            self._kept = dict(sorted(self._kept.items())[-self.num :])

    def on_fit_end(self, trainer: TrainerSurface) -> None:
        if not trainer.is_global_zero:
            return
        folder = Path(trainer.log_dir) / "models" / "snapshots"
        for number, states in self._kept.items():
            models = [Weights.from_state_dict(state, trainer.fabric.device) for state in states]
            of_round = trainer.federation.with_models(models, trainer.federation.collaboration, {}, number)
            export_models(of_round, trainer.module, trainer.loop.flat, [], folder / f"round_{number}")
