"""Local training without collaboration, as a baseline."""

from lightning_fl.callbacks.callback import Callback
from lightning_fl.core.collaboration import Collaboration
from lightning_fl.runtime.surface import TrainerSurface


class LocalTraining(Callback):
    """Trains N models from one initial model, each by its own client; see also ``LocalReference``."""

    method_name = "training alone"
    role = "collaboration"

    def on_fit_start(self, trainer: TrainerSurface) -> None:
        trainer.federation.collaboration = Collaboration.local(trainer.num_clients)
