"""Lightning's ``StochasticWeightAveraging`` in a federated run: averages of the shared models over rounds."""

from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule
from lightning.pytorch.utilities.types import LRSchedulerConfig
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim.swa_utils import SWALR

from lightning_fl.core.errors import ConfigurationError
from lightning_fl.engine.weights.flat import Weights, copy_spans_
from lightning_fl.engine.weights.weighted_sum import WeightedSum

_NAME = "StochasticWeightAveraging"


class SharedAverages(Callback):
    """Averages each shared model over rounds, by the settings of Lightning's ``StochasticWeightAveraging``.

    From ``swa_epoch_start`` on the models at the start of each round enter the averages, and clients' learning rates
    anneal to ``swa_lrs``. After the last round the averages replace the models, with BatchNorm's statistics of one pass
    over the training data. Caldarola, Caputo and Ciccone 2022, "Improving Generalization in Federated Learning by
    Seeking Flat Minima" (https://arxiv.org/abs/2203.11834), average the server's model like this.

    Args:
        given: Lightning's callback.
    """

    def __init__(self, given: Any) -> None:
        self.given = given
        self.start = 0  #: round of the first average, from 0
        self.count = 0  #: averaged rounds
        self.averages: list[Weights] = []
        self.trained: list[Weights] = []  #: of the last round, once the averages have replaced them

    def on_fit_start(self, trainer: Any, pl_module: LightningModule) -> None:
        """Find the round of the first average."""
        if not pl_module.automatic_optimization:
            raise ConfigurationError(
                f"{_NAME} sets the learning rate, and {type(pl_module).__name__} optimises manually: use"
                " lightning.pytorch.callbacks.WeightAveraging."
            )
        start = self.given._swa_epoch_start
        self.start = max((int(trainer.max_epochs * start) if isinstance(start, float) else start) - 1, 0)

    def on_train_epoch_start(self, trainer: Any, pl_module: LightningModule) -> None:
        """Average the models at the start of a round."""
        models = trainer.federated.federation.models
        for model, trained in zip(models, self.trained, strict=False):  # after the end of a run with fewer rounds
            model.copy_(trained)
        self.trained = []
        if trainer.current_epoch < self.start:
            return
        if len(self.averages) != len(models):
            self.averages, self.count = [model.clone() for model in models], 0
        for average, model in zip(self.averages, models, strict=True):
            for dtype, vector in average.floating():
                new = model.vectors[dtype].to(vector.device)
                vector.copy_(self.given._avg_fn(vector, new, torch.tensor(self.count)) if self.count else new)
        self.count += 1

    def replace_schedulers(self, trainer: Any) -> None:
        """Anneal the learning rates of the client in turn, in place of its scheduler."""
        given, (optimizer,), configs = self.given, trainer.optimizers, trainer.lr_scheduler_configs
        if len(configs) > 1:
            raise ConfigurationError(f"{_NAME} replaces one learning-rate scheduler: this module has {len(configs)}.")
        annealing = SWALR(optimizer, given._swa_lrs, given._annealing_epochs, given._annealing_strategy)
        configs[:] = [LRSchedulerConfig(annealing)]

    def on_train_end(self, trainer: Any, pl_module: LightningModule) -> None:
        """Replace the models by their averages, unless the run ended early."""
        federation, flat = trainer.federated.federation, trainer.federated.loop.flat
        if not self.count or federation.current_round < trainer.max_epochs or federation.interrupted_by:
            return
        self.trained = [model.clone() for model in federation.models]
        buffers = set(flat.buffers())
        parameters = [span for span in flat.spans() if span not in buffers]
        for number, (average, model) in enumerate(zip(self.averages, federation.models, strict=True)):
            _renew_statistics(trainer.federated, number, copy_spans_(model, average, parameters))
        federation.models_are_final = True

    def state_dict(self) -> dict[str, Any]:
        """Plain values and tensors."""
        kept = {name: [one.state_dict() for one in getattr(self, name)] for name in ("averages", "trained")}
        return {"count": self.count, **kept}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what :meth:`state_dict` returned."""
        self.count = state_dict["count"]
        for name in ("averages", "trained"):
            models = [Weights({getattr(torch, key): one for key, one in of.items()}) for of in state_dict[name]]
            setattr(self, name, models)


def _renew_statistics(trainer: Any, number: int, model: Weights) -> None:
    """Set BatchNorm's statistics in a shared model to those of one pass over its clients' training data."""
    loop, shares = trainer.loop, trainer.federation.shares(number)
    norms = [part for part in loop.module.modules() if isinstance(part, _BatchNorm) and part.running_mean is not None]
    momenta = {part: part.momentum for part in norms if part.training}
    if not (momenta and shares):  # without shares its clients use other models, too
        return
    loop.flat.load(model)
    try:
        for part in momenta:
            part.reset_running_stats()
            part.momentum = None  # the mean over batches
        start = loop.flat.collect().clone()
        total = WeightedSum(start)
        for client in [client for client in trainer.hosted_clients if client in shares]:
            batches = trainer.client_batches(client, "train")
            length = batches.epoch_length() or loop.training.turn_length(batches, None).total
            loop.training.mean_loss(client, start, length, "statistics of BatchNorm")
            total.add_(loop.flat.collect(), shares[client])
    finally:
        for part, momentum in momenta.items():
            part.momentum = momentum
    if trainer.processes.several:
        total.reduce_(trainer.processes.transport)
    model.copy_(total.value(sum(shares.values())))
