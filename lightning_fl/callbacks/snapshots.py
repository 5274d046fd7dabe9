"""Snapshots of the shared models, whose disagreement measures the uncertainty of predictions."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lightning_fl.callbacks.callback import Callback
from lightning_fl.core.validation import Count, checked
from lightning_fl.engine.weights.flat import Weights
from lightning_fl.runtime.model_file import export_models
from lightning_fl.runtime.surface import TrainerSurface


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

    @checked
    def __init__(self, *, num: Count = 5, every_n_rounds: Count = 1) -> None:
        self.num = num
        self.every_n_rounds = every_n_rounds
        self._kept: dict[int, Sequence[Weights]] = {}
        self._loaded: dict[int, list[dict[str, Any]]] = {}

    def on_fit_start(self, trainer: TrainerSurface) -> None:
        self._kept, self._loaded = {}, {}

    def on_round_end(self, trainer: TrainerSurface) -> None:
        """Keep the round's models and drop the oldest snapshot if there are too many."""
        if trainer.federation.current_round % self.every_n_rounds == 0:
            self._restore_loaded(trainer)
            self._kept[trainer.federation.current_round] = [model.clone() for model in trainer.federation.models]
            self._kept = dict(sorted(self._kept.items())[-self.num :])

    def on_fit_end(self, trainer: TrainerSurface) -> None:
        """Write them."""
        self._restore_loaded(trainer)
        if not trainer.is_global_zero:
            return
        folder = Path(trainer.log_dir) / "models" / "snapshots"
        for number, models in self._kept.items():
            of_round = trainer.federation.with_models(list(models), trainer.federation.collaboration, {}, number)
            export_models(of_round, trainer.module, trainer.loop.flat, [], folder / f"round_{number}")

    def state_dict(self) -> dict[str, Any]:
        kept = {number: [model.state_dict() for model in models] for number, models in self._kept.items()}
        return {"kept": kept | self._loaded}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._loaded = dict(state["kept"])

    def _restore_loaded(self, trainer: TrainerSurface) -> None:
        """Convert loaded states to models, once their layout is known."""
        loaded, self._loaded = self._loaded, {}
        for number, saved in sorted(loaded.items()):
            models = [trainer.federation.models[0].clone() for _ in saved]
            for model, state in zip(models, saved, strict=True):
                model.load_state_dict(state)
            self._kept[number] = models
