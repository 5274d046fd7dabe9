"""Uniform sampling of clients, as in FedAvg.

McMahan et al.: "Communication-Efficient Learning of Deep Networks from Decentralized Data", 2017
(https://arxiv.org/abs/1602.05629), algorithm 1: ``m = max(C K, 1)`` of K clients, weighted by their samples.
"""

from lightning.fabric.utilities.rank_zero import rank_zero_warn

from lightning_fl.callbacks.callback import Callback
from lightning_fl.core.cohort import Cohort
from lightning_fl.core.seeding import shuffled
from lightning_fl.core.validation import Positive, checked_fields, number_of, number_or_share
from lightning_fl.runtime.surface import TrainerSurface


@checked_fields
class UniformSampling(Callback):
    """Draws each round's clients without replacement from those that are present.

    Clients train the models that they use and are weighted by samples. Works with any strategy and any callback that
    sets the collaboration but not the clients.

    Args:
        cohort_size: clients per round, as a number or as a share below 1; all clients if fewer are present.
    """

    role = "participation"

    cohort_size: Positive

    def __post_init__(self) -> None:
        number_or_share("UniformSampling.cohort_size", self.cohort_size)

    def on_fit_start(self, trainer: TrainerSurface) -> None:
        if self.num_participants(count := trainer.num_clients) > count:
            rank_zero_warn(f"UniformSampling.cohort_size={self.cohort_size:g}: all {count} clients take part.")

    def num_participants(self, num_clients: int) -> int:
        return number_of(self.cohort_size, num_clients)

    def select_clients(self, trainer: TrainerSurface) -> Cohort:
        size = self.num_participants(trainer.num_clients)
        return Cohort.of(sorted(shuffled(trainer.active_clients, trainer.generator("cohort"), size)))
