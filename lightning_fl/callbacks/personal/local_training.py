"""Local training: every client alone, the baseline that collaboration has to beat."""

from lightning_fl.callbacks.callback import Callback
from lightning_fl.core.collaboration import Collaboration
from lightning_fl.runtime.surface import TrainerSurface

__all__ = ["LocalTraining"]


class LocalTraining(Callback):
    """Nobody collaborates: N models, each trained by its own client on its own data, from one initial model.

    For a reference inside another algorithm's run see ``LocalReference``.
    """

    method_name = "training alone"
    role = "collaboration"

    def on_fit_start(self, trainer: TrainerSurface) -> None:
        """Everybody alone."""
        trainer.federation.collaboration = Collaboration.local(trainer.num_clients)
