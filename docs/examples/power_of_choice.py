"""Power of choice: of some clients drawn at random, those with the highest loss train.

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

Differs from the paper: the loss is of some batches, as in its variant with an estimate of the loss (cpow-d).
"""

import torch

from lightning_fl import ConfigurationError
from lightning_fl.callbacks import Callback
from lightning_fl.core.cohort import Cohort, Participant
from lightning_fl.runtime.surface import TrainerSurface


class PowerOfChoice(Callback):
    """Draws candidates by their samples, and lets those train whose loss under the current model is highest.

    Args:
        num_candidates: d, clients whose loss is asked in a round; all, where fewer are there.
        cohort_size: m, of these train; the average counts them alike.
        num_batches: training batches that a client's loss is taken over.

    Raises:
        ConfigurationError: a number is below 1, or there are fewer candidates than clients that train.
    """

    role = "participation"

    def __init__(self, *, num_candidates: int, cohort_size: int, num_batches: int = 1) -> None:
        if not 1 <= cohort_size <= num_candidates:
            raise ConfigurationError(
                f"PowerOfChoice.cohort_size={cohort_size}: give at least 1 and at most num_candidates={num_candidates}."
            )
        if num_batches < 1:
            raise ConfigurationError(f"PowerOfChoice.num_batches={num_batches}: give a number of at least 1.")
        self.num_candidates = num_candidates
        self.cohort_size = cohort_size
        self.num_batches = num_batches

    def select_clients(self, trainer: TrainerSurface) -> Cohort:
        """Ask the candidates, on the ranks that host them, and choose alike on all ranks."""
        there = trainer.active_clients
        samples = torch.tensor([float(trainer.num_samples[client]) for client in there])
        count = min(self.num_candidates, len(there))
        drawn = torch.multinomial(samples, count, generator=trainer.generator("candidates"))
        candidates = sorted(there[place] for place in drawn.tolist())
        trainer.communication.receive(candidates, trainer.models)
        losses = trainer.on_hosts(
            candidates, lambda client: self._loss(trainer, client), "PowerOfChoice asks for losses"
        )
        worst = sorted(candidates, key=lambda client: (-losses[client], client))[: self.cohort_size]
        trainer.log("power_of_choice/loss", sum(losses.values()) / len(losses))
        return Cohort(tuple(Participant(client, weight=1.0) for client in sorted(worst)))

    def _loss(self, trainer: TrainerSurface, client: int) -> float:
        return trainer.training_loss(client, trainer.shared_model(client), self.num_batches, "candidates")
