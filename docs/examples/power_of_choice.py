"""Power of choice: among clients drawn at random, those with the highest loss train.

Cho, Wang, Joshi: "Towards Understanding Biased Client Selection in Federated Learning", AISTATS 2022
(https://arxiv.org/abs/2010.01243), algorithm 1.

=================  =======================================  =====
paper              here                                     unit
=================  =======================================  =====
d                  ``num_candidates``
m = CK             ``cohort_size``
p_k                a client's share of the samples
F_k(w)             mean over ``num_batches`` drawn batches  loss
=================  =======================================  =====

Differs from the paper: the loss is over some batches, as in its variant with an estimate of the loss (cpow-d).
"""

import torch

from lightning_fl import Cohort, ConfigurationError, Participant
from lightning_fl.callbacks import Callback
from lightning_fl.core.validation import Count, checked
from lightning_fl.runtime.surface import TrainerSurface


class PowerOfChoice(Callback):
    """Draw candidates by their samples, and choose those with the highest loss of the current model.

    Args:
        num_candidates: d, clients that report a loss in a round; all, if there are fewer.
        cohort_size: m, candidates that train, with equal weights.
        num_batches: training batches for a client's loss.

    Raises:
        ConfigurationError: a number is below 1, or ``cohort_size`` exceeds ``num_candidates``.
    """

    role = "participation"

    @checked
    def __init__(self, *, num_candidates: Count, cohort_size: Count, num_batches: Count = 1) -> None:
        if cohort_size > num_candidates:
            raise ConfigurationError(
                f"PowerOfChoice.cohort_size={cohort_size}: must be at most num_candidates={num_candidates}."
            )
        self.num_candidates = num_candidates
        self.cohort_size = cohort_size
        self.num_batches = num_batches

    def select_clients(self, trainer: TrainerSurface) -> Cohort:
        """Measure losses on the ranks that host the candidates, and choose the same cohort on all ranks."""
        there = trainer.active_clients
        samples = torch.tensor([float(trainer.num_samples[client]) for client in there])
        count = min(self.num_candidates, len(there))
        drawn = torch.multinomial(samples, count, generator=trainer.generator("candidates"))
        candidates = sorted(there[place] for place in drawn.tolist())
        trainer.communication.receive(candidates, trainer.models)
        losses = trainer.on_hosts(
            candidates, lambda client: self._loss(trainer, client), "PowerOfChoice cannot measure losses"
        )
        worst = sorted(candidates, key=lambda client: (-losses[client], client))[: self.cohort_size]
        trainer.log("power_of_choice/loss", sum(losses.values()) / len(losses))
        return Cohort(tuple(Participant(client, weight=1.0) for client in sorted(worst)))

    def _loss(self, trainer: TrainerSurface, client: int) -> float:
        return trainer.training_loss(client, trainer.shared_model(client), self.num_batches, "candidates")
