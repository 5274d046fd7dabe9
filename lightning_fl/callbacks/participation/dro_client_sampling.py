"""Distributionally robust client sampling: clients with a high loss are drawn more often.

Deng, Kamani, Mahdavi: Distributionally Robust Federated Averaging, NeurIPS 2020 (https://arxiv.org/abs/2102.12660),
Algorithm 1. Wu et al.: DRFLM, 2022 (https://arxiv.org/abs/2204.07742), Algorithm 1, which adds local mixup.

=================  ====================================  ========
paper              here                                  shape
=================  ====================================  ========
lambda             ``weights``                           [N]
C_s, size m        ``cohort_size`` draws, with return    count
U_s, size m        distinct clients whose loss is asked
t'                 ``snapshot_step``, uniform in 1..tau
w~                 average of the snapshots at t'
eta (of lambda)    ``step_size``                         1 / loss
tau                ``FederatedTrainer.local_steps``      steps
=================  ====================================  ========

Differs from the papers: a client drawn k times trains once and counts k times in both averages (its k trainings would
differ in their batches only); t' is drawn from 1..tau (the text of DRFLM has 0..tau, its algorithm box 1..tau);
weights may have a floor.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch
from lightning.fabric.utilities.rank_zero import rank_zero_warn
from torch import Tensor

from lightning_fl.callbacks.callback import Callback
from lightning_fl.client_names import curve_names
from lightning_fl.cohort import Cohort, Participant
from lightning_fl.engine.weights.flat import Weights
from lightning_fl.engine.weights.weighted_sum import WeightedSum
from lightning_fl.errors import ConfigurationError, TrainingError
from lightning_fl.functional.drflm import draw_cohort, draw_subset, loss_estimate, sampling_weights_update
from lightning_fl.options import check_counts, check_numbers
from lightning_fl.surface import TrainerSurface

__all__ = ["DROClientSampling"]


class DROClientSampling(Callback):
    """Draws each round's cohort from sampling weights that ascend the clients' losses.

    With ``LocalMixup`` the losses are those on mixed samples: FedAvg + this callback is DRFA, with mixup it is DRFLM.

    Args:
        cohort_size: draws per round, with replacement; default N.
        step_size: eta_lambda of the weights' ascent.
        floor: least weight of a client, between 0 and 1/N.
        num_loss_batches: batches over which a client's loss at the averaged snapshot is taken; the papers use one.

    Raises:
        ConfigurationError: a value is out of range; the run counts epochs instead of steps (``local_steps``); there is
            more than one shared model.
    """

    role = "participation"
    traits = ("drawn_weights",)

    def __init__(
        self,
        *,
        cohort_size: int | None = None,
        step_size: float = 0.01,
        floor: float = 0.0,
        num_loss_batches: int = 1,
    ) -> None:
        check_counts(self, cohort_size=cohort_size, num_loss_batches=num_loss_batches)
        check_numbers(self, step_size=step_size, at_least=0)
        check_numbers(self, floor=floor, at_least=0, at_most=1)
        self.cohort_size = cohort_size
        self.step_size = step_size
        self.floor = floor
        self.num_loss_batches = num_loss_batches
        #: lambda, float64, shape [N].
        self.weights: Tensor = torch.empty(0, dtype=torch.float64)
        self.snapshot_step = 0
        self._counts: dict[int, int] = {}
        self._loss_clients: list[int] = []
        self._snapshot: Weights | None = None
        self._snapshots: WeightedSum | None = None

    def setup(self, trainer: TrainerSurface, stage: str) -> None:
        """Refuse what cannot work before anything is read."""
        if stage == "fit" and trainer.local_steps is None:
            raise ConfigurationError(
                "DROClientSampling compares clients after the same number of steps: set trainer.local_steps (5 in the"
                " paper) instead of trainer.local_epochs."
            )

    def on_fit_start(self, trainer: TrainerSurface) -> None:
        """Uniform weights."""
        count = trainer.num_clients
        if self.floor * count > 1:
            raise ConfigurationError(
                f"DROClientSampling.floor={self.floor} for {count} clients: {count} such weights exceed 1; choose at"
                f" most {1 / count:.4g}."
            )
        self.weights = torch.full((count,), 1 / count, dtype=torch.float64)

    def select_clients(self, trainer: TrainerSurface) -> Cohort:
        """``c`` draws from lambda; a client's weight is the number of its draws."""
        if trainer.collaboration.num_models != 1:
            raise ConfigurationError(
                f"DROClientSampling needs one shared model, the collaboration has {trainer.collaboration.num_models}:"
                " leave out either it or the callback that sets the collaboration."
            )
        assert trainer.local_steps is not None
        size = self.cohort_size or trainer.num_clients
        present = trainer.present_clients
        there = self.weights
        if len(present) < trainer.num_clients:  # who has not arrived is not drawn, and keeps its weight
            there = torch.zeros_like(self.weights)
            there[present] = self.weights[present] / self.weights[present].sum()
        counts = draw_cohort(there, size, trainer.generator("cohort"))
        self._counts = {client: count for client, count in enumerate(counts.tolist()) if count}
        self.snapshot_step = int(torch.randint(1, trainer.local_steps + 1, (), generator=trainer.generator("snapshot")))
        asked = draw_subset(len(present), min(size, len(present)), trainer.generator("loss clients"))
        self._loss_clients = [present[position] for position in asked.tolist()]
        self._snapshots = WeightedSum(trainer.models[0])
        return Cohort(tuple(Participant(client, 0, float(count)) for client, count in self._counts.items()))

    def on_client_start(self, trainer: TrainerSurface, client: int) -> None:
        """No snapshot of this client yet."""
        self._snapshot = None

    def on_client_step_end(self, trainer: TrainerSurface, client: int, num_steps: int) -> None:
        """Keep the client's weights after step t'."""
        if num_steps == self.snapshot_step:
            self._snapshot = trainer.client_weights().clone()

    def on_client_end(self, trainer: TrainerSurface, client: int) -> None:
        """Add the snapshot to the average (the last weights, if the client stopped before t')."""
        assert self._snapshots is not None
        self._snapshots.add_(self._snapshot or trainer.client_weights(), float(self._counts[client]))

    def on_aggregate_end(self, trainer: TrainerSurface) -> None:
        """Ask ``U_s`` for its losses at the averaged snapshot and ascend; where nobody took part, there is none."""
        if not trainer.survivors:
            return
        assert self._snapshots is not None
        assert trainer.local_steps is not None
        if trainer.fabric.world_size > 1:
            self._snapshots.reduce_(trainer.strategy)
        snapshot = self._snapshots.value(float(sum(self._counts[client] for client in trainer.survivors)))
        # Who trained on after step t' sends two models; where nobody did, the average of the snapshots is the new one.
        steps = {client: trainer.client_reports[client].num_steps for client in sorted(trainer.survivors)}
        twice = [client for client, taken in steps.items() if taken > self.snapshot_step]
        trainer.communication.send(twice)
        trainer.communication.receive(self._loss_clients, [snapshot if twice else trainer.models[0]])
        losses = trainer.on_hosts(
            self._loss_clients,
            lambda client: trainer.training_loss(client, snapshot, self.num_loss_batches, "sampling weights"),
            "DROClientSampling asks for losses",
        )
        losses = self._finite(trainer, losses)
        if not losses:
            return
        estimate = loss_estimate(
            torch.tensor(list(losses.values()), dtype=torch.float64), list(losses), trainer.num_clients
        )
        self.weights = sampling_weights_update(
            self.weights, estimate, self.step_size, trainer.local_steps, floor=self.floor
        )
        assert trainer.datamodule is not None
        names = curve_names(trainer.datamodule.client_names())
        for name, weight in zip(names, self.weights.tolist(), strict=True):
            trainer.log(f"sampling_weight/{name}", weight)
        self._snapshots = self._snapshot = None

    def _finite(self, trainer: TrainerSurface, losses: Mapping[int, float]) -> dict[int, float]:
        """The losses that are numbers. A client whose is none has failed, and is left out where failing ones are."""
        assert trainer.datamodule is not None
        finite = {client: loss for client, loss in losses.items() if math.isfinite(loss)}
        lost = [trainer.datamodule.client_names()[client] for client in losses if client not in finite]
        if lost and trainer.on_client_error == "fail":
            raise TrainingError(
                f"DROClientSampling asks for losses: that of {', '.join(lost)} is not finite. Lower the learning rate,"
                " look at the client's data, or set trainer.on_client_error=skip to leave it out."
            )
        if lost:
            rank_zero_warn(f"DROClientSampling: the loss of {', '.join(lost)} is not finite and not counted.")
        return finite

    def state_dict(self) -> dict[str, Any]:
        """lambda; the draws are derived anew."""
        return {"weights": self.weights}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up lambda."""
        self.weights = state["weights"]
