"""Fine-tuning of clients' models after the last round or before every evaluation."""

from functools import partial
from typing import Any

from torch import Tensor

from lightning_fl.callbacks.callback import Callback
from lightning_fl.callbacks.model_checkpoint import ModelCheckpoint
from lightning_fl.callbacks.personal.best_client_models import (
    BestClientModels,
    deciding_metric,
    keep_better,
    validate_client,
)
from lightning_fl.core.errors import ConfigurationError, TrainingError
from lightning_fl.core.validation import Count, checked_fields
from lightning_fl.engine.client import ClientTurn, LocalWork
from lightning_fl.engine.federation import FINAL_MODELS
from lightning_fl.engine.weights.flat import Weights
from lightning_fl.runtime.surface import TrainerSurface


@checked_fields
class FineTuning(Callback):
    """Trains every client's model further on its own data, such as in FedAvg + fine-tuning.

    At the end of the fit it starts from the models of the best round (with ``BestClientModels`` of each client's own,
    without validation of the last). The fine-tuned models are tested after fit and written to ``models/``. A resumed
    run continues with the shared models.

    With ``every_evaluation`` it fine-tunes temporarily before each evaluation (Bao et al. 2023, FedCollab: two steps);
    then monitored, tested and exported models are all fine-tuned. The rounds have the same bits as without it.

    Args:
        epochs: passes over a client's data; without ``epochs`` and ``steps`` twice the local work of a round, with
            ``best_epoch`` twice its epochs.
        steps: optimiser steps, instead of epochs.
        every_evaluation: before every evaluation and prediction instead of at the end of the fit.
        best_epoch: keep each client's model of the best epoch by its own validation, which may be that before
            fine-tuning, by the metric that decides on the best round. A client without validation data keeps the last.

    Raises:
        ConfigurationError: ``epochs`` and ``steps`` are set, or ``best_epoch`` with ``steps`` or ``every_evaluation``.
    """

    method_name = "+ fine-tuning"
    role = "fine-tuning"
    traits = ("own_samples",)

    epochs: Count | None = None
    steps: Count | None = None
    every_evaluation: bool = False
    best_epoch: bool = False

    def __post_init__(self) -> None:
        if self.epochs is not None and self.steps is not None:
            raise ConfigurationError(f"FineTuning.epochs={self.epochs} and steps={self.steps}: remove one of them.")
        if self.best_epoch and (self.every_evaluation or self.steps is not None):
            raise ConfigurationError("FineTuning.best_epoch=True: remove every_evaluation and steps.")

    def evaluated(self, trainer: TrainerSurface, model: str) -> str:
        if not (self.every_evaluation or trainer.federation.models_are_final):
            return model
        work = self._work(trainer)
        count, unit = (work.epochs, "epoch") if work.steps is None else (work.steps, "step")
        most = "at most " * self.best_epoch
        return f"{model}, fine-tuned by {most}{count} {unit}{'s' * (count > 1)}"

    def evaluation_weights(self, trainer: TrainerSurface, turn: ClientTurn) -> Weights:
        if not self.every_evaluation:
            return turn.start
        try:
            return trainer.loop.train_aside(turn.client, turn.start, "fine-tuning", self._work(trainer))
        except TrainingError as error:
            text = f"fine-tuning of {trainer.loop.name_of(turn.client)} failed: {error}"
            trainer.fail_or_warn(text, "It is evaluated without.", cause=error)
            return turn.start

    def _work(self, trainer: TrainerSurface) -> LocalWork:
        if self.steps is None and self.epochs is None and trainer.local_steps is not None and not self.best_epoch:
            return LocalWork(2 * trainer.local_steps, 1, turns=1)
        return LocalWork(self.steps, self.epochs or 2 * trainer.local_epochs, turns=1)

    def on_fit_end(self, trainer: TrainerSurface) -> None:
        if self.every_evaluation or trainer.federation.interrupted_by:  # a resumed run will get here
            return
        failures: dict[int, str] = {}
        cause: TrainingError | None = None
        for client, start in self._starts(trainer).items():
            try:
                tuned = (self._best_epoch if self.best_epoch else self._tuned)(trainer, client, start)
            except TrainingError as error:
                failures[client], cause = str(error), error
                continue
            trainer.client_store(FINAL_MODELS)[client] = tuned
        for client, problem in trainer.strategy.exchange(failures).items():
            text = f"fine-tuning of client {client} failed: {problem}"
            advice = "The run's checkpoints hold the models before fine-tuning."
            trainer.fail_or_warn(text, "It keeps its model.", advice, cause=cause)
        trainer.federation.models_are_final = True

    def _tuned(self, trainer: TrainerSurface, client: int, start: Weights) -> dict[str, Tensor]:
        work, state = self._work(trainer), trainer.loop.training.state_aside(client)
        trainer.loop.training.train(client, start, state, purpose="fine-tuning", own=False, work=work)
        return trainer.client_weights().clone().state_dict()

    def _best_epoch(self, trainer: TrainerSurface, client: int, weights: Weights) -> dict[str, Tensor]:
        kept: dict[int, Any] = {}
        state, choose = trainer.loop.training.state_aside(client), partial(deciding_metric, trainer)
        work = LocalWork(None, 1, turns=self._work(trainer).epochs)
        for epoch in range(self._work(trainer).epochs + 1):
            if epoch:
                purpose = f"fine-tuning, epoch {epoch}"
                trainer.loop.training.train(client, weights, state, purpose=purpose, own=False, work=work)
                weights = trainer.client_weights().clone()
            keep_better(kept, client, *validate_client(trainer, client, weights, choose), weights, epoch)
        return kept[client]["weights"] if kept else weights.state_dict()

    def _starts(self, trainer: TrainerSurface) -> dict[int, Weights]:
        """Each hosted client's model before fine-tuning."""
        clients = [client for client in trainer.hosted_clients if client not in trainer.federation.absent_clients]
        own = {} if trainer.callback(BestClientModels) is None else trainer.client_store("best_models")
        own = {client: Weights.from_state_dict(of["weights"], trainer.fabric.device) for client, of in own.items()}
        checkpoint = trainer.callback(ModelCheckpoint)
        stores = {name: of for name, of in trainer.federation.client_stores.items() if name != FINAL_MODELS}
        best = None if checkpoint is None else checkpoint.kept(trainer, stores)
        return {client: own.get(client) or trainer.loop.client_model(client, best) for client in clients}
