"""Distributionally robust client sampling: clients with a high loss are drawn more often.

Deng, Kamani, Mahdavi: Distributionally Robust Federated Averaging, NeurIPS 2020 (https://arxiv.org/abs/2102.12660),
Algorithm 1. Wu et al.: DRFLM, 2022 (https://arxiv.org/abs/2204.07742), Algorithm 1, which adds local mixup. Mohri,
Sivek, Suresh: Agnostic Federated Learning, ICML 2019 (https://arxiv.org/abs/1902.00146), section 4 (AFL). All solve
``min_w max_lambda Σ lambda_i f_i(w)``.

The steps of lambda are in :mod:`lightning_fl.functional.drflm`. In a round C_s, ``cohort_size`` draws from lambda with
return, trains for tau steps; U_s, as many distinct clients, give their losses at w~, the average of the snapshots at
step t', by which lambda ascends. A client drawn k times trains k times with different batches, as in both papers: a
round of N draws costs as much as a round of all N clients. Differs from the papers: t' is drawn from 1..tau (the text
of DRFLM has 0..tau, its algorithm box 1..tau); weights may have a floor; losses for lambda are means over
``num_loss_batches`` batches instead of one, whose noise is as large as the differences between clients. They are
training losses: with dropout, batch statistics and mixup.

``cohort="all"`` has no draws of C_s and U_s: all clients train, count with lambda in both averages, and give their
losses. With ``step_size`` 0 this is the mean over clients with equal weights: the baseline of DRFA and DRFLM.

The unit of ``step_size`` is 1 / loss of the module's ``training_step``. ``MoleculeModel`` with ``standardize_targets``
divides the squared error by the targets' variance: on ESOL (variance 4.4), 0.1 is the paper's 0.1 / 4.4 = 0.023.

In AFL all clients take one step from w_t and count with lambda_t in the average w_{t+1}; lambda ascends their losses at
w_t in the same round, ``lambda_{t+1} = Π(lambda_t + eta F(w_t))``. Its result is the average of w_1, ..., w_t, which
replaces the shared model between rounds: it is evaluated, saved and exported.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from lightning_fl.callbacks.callback import Callback
from lightning_fl.core.cohort import Cohort, Participant
from lightning_fl.core.errors import ConfigurationError
from lightning_fl.core.validation import Count, Fraction, NonNegative, checked_fields
from lightning_fl.engine.turn.services import refuse_manual_steps
from lightning_fl.engine.weights.flat import Weights
from lightning_fl.engine.weights.weighted_sum import WeightedSum
from lightning_fl.functional.drflm import draw_cohort, draw_subset, loss_estimate, sampling_weights_update
from lightning_fl.runtime.surface import TrainerSurface

#: Most draws per client and round.
_MOST_DRAWS = 100


@checked_fields
class DROClientSampling(Callback):
    """Draws each round's cohort from sampling weights that ascend the clients' losses.

    With ``LocalMixup`` the losses are those on mixed samples: FedAvg + this callback is DRFA, with mixup it is DRFLM.

    Args:
        method: "drfa", or "afl" with ``local_steps`` 1: all clients with their weights, and the average over rounds.
        cohort: for "drfa": "draws" from lambda with replacement, or "all" clients, averaged by lambda.
        cohort_size: turns per round, at most 100 N; default N. Only for "draws".
        step_size: eta_lambda of the weights' ascent.
        floor: least weight of a client, between 0 and 1/N.
        num_loss_batches: training batches of a client's loss (at the averaged snapshot; for "afl" at the received
            model), at most all of them; one in the papers.

    Raises:
        ConfigurationError: a value is out of range; the run counts epochs instead of ``local_steps``, or has more than
            one step with "afl"; there are several shared models, or the module optimises manually.
    """

    role = "participation"
    traits = ("drawn_weights",)

    method: Literal["drfa", "afl"] = "drfa"
    cohort: Literal["draws", "all"] = "draws"
    cohort_size: Count | None = None
    step_size: NonNegative = 0.01
    floor: Fraction = 0.0
    num_loss_batches: Count = 10

    def __post_init__(self) -> None:
        whole = "method=afl" if self.method == "afl" else "cohort=all" if self.cohort == "all" else None
        if whole and self.cohort_size is not None:
            size = f"DROClientSampling.cohort_size={self.cohort_size}"
            raise ConfigurationError(f"{size}: leave it out with {whole}, where all take part.")
        self.method_name = self.method.upper() if self.step_size else "equal weights" if whole else "uniform draws"
        #: lambda, float64, shape [N].
        self.weights: Tensor = torch.empty(0, dtype=torch.float64)
        #: AFL: w_t between rounds, the average while clients train, and t.
        self._latest: dict[str, Tensor] | None = None
        self._mean: Weights | None = None
        self._num_averaged = 0

    def setup(self, trainer: TrainerSurface, stage: str) -> None:
        if stage == "fit" and trainer.local_steps is None:
            raise ConfigurationError("DROClientSampling needs the same steps of all clients: set trainer.local_steps.")
        if stage == "fit" and self.method == "afl" and trainer.local_steps != 1:
            raise ConfigurationError("DROClientSampling.method=afl needs trainer.local_steps=1: change one of the two.")

    def on_fit_start(self, trainer: TrainerSurface) -> None:
        refuse_manual_steps(trainer.loop.module, "DROClientSampling")
        count = trainer.num_clients
        if self.floor * count > 1:
            floor = f"DROClientSampling.floor={self.floor}"
            raise ConfigurationError(f"{floor} for {count} clients: must be at most {1 / count:.4g}.")
        if (self.cohort_size or 0) > (most_draws := _MOST_DRAWS * count):
            raise ConfigurationError(f"DROClientSampling.cohort_size={self.cohort_size}: must be at most {most_draws}.")
        self.__post_init__()
        self.weights = torch.full((count,), 1 / count, dtype=torch.float64)

    def on_round_start(self, trainer: TrainerSurface) -> None:
        """AFL: continue from the latest model, not from the average."""
        if self._latest is not None:
            self._mean = trainer.federation.models[0]
            trainer.federation.models = [Weights.from_state_dict(self._latest, trainer.fabric.device)]
            self._latest = None

    def evaluated(self, trainer: TrainerSurface, model: str) -> str:
        return f"{model}, averaged over the rounds" if self.method == "afl" else model

    def select_clients(self, trainer: TrainerSurface) -> Cohort:
        """``c`` draws from lambda, each a turn of weight 1; or all clients with their lambda."""
        if (num_models := trainer.federation.collaboration.num_models) != 1:
            what = f"the collaboration has {num_models} models"
            raise ConfigurationError(f"DROClientSampling needs one shared model, but {what}: remove one of the two.")
        assert trainer.local_steps is not None
        present = trainer.present_clients
        there = torch.zeros_like(self.weights)
        there[present] = self._of_present(present)[1]
        if self.method == "afl":
            self._measure_losses(trainer, present, trainer.federation.models[0], sent=trainer.federation.models[0])
            return _full_cohort(there)
        size = len(present) if self.cohort == "all" else self.cohort_size or trainer.num_clients
        #: t', uniform in 1..tau.
        self.snapshot_step = int(torch.randint(1, trainer.local_steps + 1, (), generator=trainer.generator("snapshot")))
        asked = draw_subset(len(present), min(size, len(present)), trainer.generator("loss clients"))
        self._loss_clients = [present[position] for position in asked.tolist()]
        self._snapshots = WeightedSum(trainer.federation.models[0])
        #: Hosted client -> sum of the weights of its finished turns, and number of those that passed step t'.
        self._done: dict[int, tuple[float, int]] = {}
        if self.cohort == "all":
            return _full_cohort(there)
        counts = draw_cohort(there, size, trainer.generator("cohort"))
        drawn = counts.nonzero().flatten().tolist()
        return Cohort(tuple(Participant(i, 0, 1.0, draw=draw) for i in drawn for draw in range(int(counts[i]))))

    def _of_present(self, present: Sequence[int]) -> tuple[float, Tensor]:
        """Sum of the present clients' weights, and their shares of it; absent ones are not drawn and keep theirs."""
        weights = self.weights[present]
        share = 1.0 if len(present) == len(self.weights) else float(weights.sum())
        return share, weights / share if share else torch.full_like(weights, 1 / max(1, len(present)))

    def on_client_start(self, trainer: TrainerSurface, client: int) -> None:
        self._snapshot: Weights | None = None
        self._steps = 0

    def on_client_step_end(self, trainer: TrainerSurface, client: int, num_steps: int) -> None:
        self._steps = num_steps
        if self.method == "drfa" and num_steps == self.snapshot_step:
            self._snapshot = trainer.client_weights().clone()

    def on_client_end(self, trainer: TrainerSurface, client: int) -> None:
        """Add the snapshot (or the last weights, if the client stopped before t') to the average."""
        if self.method == "afl":
            return
        assert trainer.round.participant is not None
        assert trainer.round.participant.weight is not None
        weight = trainer.round.participant.weight
        self._snapshots.add_(trainer.client_weights() if self._snapshot is None else self._snapshot, weight)
        total, later = self._done.get(client, (0.0, 0))
        self._done[client] = total + weight, later + (self._steps > self.snapshot_step)

    def on_aggregate_end(self, trainer: TrainerSurface) -> None:
        """Ascend the losses of ``U_s`` at the averaged snapshot, or those of AFL; skip rounds without participants."""
        if not trainer.round.survivors:
            if self._mean is not None:
                self._publish(trainer, self._mean)
            return
        if self.method == "drfa":
            self._measure_at_snapshot(trainer)
        else:
            self._average(trainer)
        losses = self._finite(trainer, self._losses)
        if not losses:
            return
        values, present = torch.tensor(list(losses.values()), dtype=torch.float64), trainer.present_clients
        if self.method == "drfa":
            estimate = loss_estimate(values, list(losses), trainer.num_clients) * (len(present) / trainer.num_clients)
        else:
            estimate = torch.zeros_like(self.weights)
            estimate[list(losses)] = values
        assert trainer.local_steps is not None
        share, weights = self._of_present(present)
        floor = min(self.floor / (share or 1.0), 1 / len(present))
        ascent = estimate[present], self.step_size, trainer.local_steps
        self.weights[present] = share * sampling_weights_update(weights, *ascent, floor=floor)
        if not trainer.logs_clients:
            trainer.log("sampling_weight/max", float(self.weights.max()))
        trainer.log_each_client("sampling_weight", dict(enumerate(self.weights.tolist())))

    def _measure_at_snapshot(self, trainer: TrainerSurface) -> None:
        if trainer.fabric.world_size > 1:
            self._snapshots.reduce_(trainer.strategy)
        done = trainer.on_hosts(trainer.round.survivors, self._done.__getitem__, "DROClientSampling cannot average")
        snapshot = self._snapshots.value(math.fsum(weight for weight, _ in done.values()))
        # clients' personal layers stay with them: the snapshot has those of the shared model
        if (personal := trainer.federation.personal) is not None:
            personal.copy_(snapshot, trainer.federation.models[0])
        del self._snapshots
        self._snapshot = None
        # Turns that passed step t' send two models; without any, the averaged snapshot is the new model.
        twice = [client for client, (_, later) in done.items() for _ in range(later)]
        trainer.federation.communication.send(twice)
        sent = snapshot if twice else trainer.federation.models[0]
        self._measure_losses(trainer, self._loss_clients, snapshot, sent=sent)

    def _measure_losses(self, trainer: TrainerSurface, clients: Sequence[int], weights: Weights, sent: Weights) -> None:
        """Measure some clients' losses at some weights; ``sent`` counts as traffic if they do not hold it."""
        trainer.federation.communication.receive(clients, [sent])
        self._losses = trainer.on_hosts(
            clients,
            lambda client: trainer.training_loss(client, weights, self.num_loss_batches, "sampling weights"),
            "DROClientSampling cannot measure losses",
        )

    def _average(self, trainer: TrainerSurface) -> None:
        """Add w_t to the average over rounds; integer entries are the latest ones."""
        self._num_averaged += 1
        mean = trainer.federation.models[0].clone()
        if self._mean is not None:
            for dtype, vector in mean.floating():
                before = self._mean.vectors[dtype]
                vector.sub_(before).div_(self._num_averaged).add_(before)
        self._publish(trainer, mean)

    def _publish(self, trainer: TrainerSurface, mean: Weights) -> None:
        """Replace w_t by the average until the next round."""
        self._latest = trainer.federation.models[0].clone().state_dict()
        self._mean, trainer.federation.models = None, [mean]

    def _finite(self, trainer: TrainerSurface, losses: Mapping[int, float]) -> dict[int, float]:
        """Finite losses. Others are errors, or left out with ``on_client_error="skip"``."""
        finite = {client: loss for client, loss in losses.items() if math.isfinite(loss)}
        lost = [trainer.client_names[client] for client in losses if client not in finite]
        if lost:
            problem = f"DROClientSampling: the loss of {', '.join(lost)} is not finite."
            advice = "Lower the learning rate, check the client's data, or set trainer.on_client_error=skip."
            trainer.fail_or_warn(problem, "It is skipped.", advice)
        return finite

    def state_dict(self) -> dict[str, Any]:
        if self._latest is None:
            return {"weights": self.weights}
        return {"weights": self.weights, "latest": self._latest, "num_averaged": self._num_averaged}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.weights = state["weights"]
        self._latest, self._num_averaged = state.get("latest"), state.get("num_averaged", 0)


def _full_cohort(weights: Tensor) -> Cohort:
    """A turn for every client of positive weight."""
    return Cohort(tuple(Participant(i, 0, weight) for i, weight in enumerate(weights.tolist()) if weight))
