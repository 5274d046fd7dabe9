"""FLSC: several models; in every round each client trains the average of the few that explain its data best.

Li, Li, Varshney, "Federated Learning with Soft Clustering", IEEE Internet of Things Journal 9(10), 2022,
https://doi.org/10.1109/JIOT.2021.3113927.

=============================  ===================================================  ========
paper                          here                                                 shape
=============================  ===================================================  ========
ω_k, K cluster models          ``trainer.models``, ``num_clusters`` of them         K x [P]
K*, clusters of a client       ``num_best``, n
f_i(ω_k)                       ``losses``, mean loss of ``training_step``           [N, K]
a client's n clusters          the positive entries of its row of P, 1/n each       [N, K]
=============================  ===================================================  ========

A client starts from ``(1/n) Σ_k ω_k`` over the n models with the least loss on its training data, and what it learns
enters the average, by samples, of each of them. A model that nobody chose stays as it is. One best model is IFCA.

Differs from the paper: as :class:`IFCA` does. Clients compare models with their losses of the present models, not of
an earlier round.
"""

from lightning_fl.callbacks.collaboration.ifca import IFCA
from lightning_fl.core.errors import ConfigurationError
from lightning_fl.core.validation import check_counts

__all__ = ["FLSC"]


class FLSC(IFCA):
    """A fixed number of models, of which every client uses, trains and feeds the few with the least loss.

    Composes as :class:`IFCA` does. A client receives all models and sends what it learned once.

    Args:
        num_clusters: K, at most the number of clients.
        num_best: n, at most K: models that a client chooses, of equal losses the first. 1 is IFCA; with K of them all
            clients train the average of all models.
        num_samples: training samples of each client that models are compared on, drawn anew in every round; ``None``
            for all.
        initial_noise: how the first models differ, as :class:`IFCA` has it.

    Attributes:
        clusters: the model with the least loss of each client when it last took part, -1 for none yet, length N.
        losses: when each client last took part, its loss under every model, float64 [N, K]; NaN for none yet.

    Raises:
        ConfigurationError: a value is out of range; further those of :class:`IFCA`.
        TrainingError: a loss is not finite.
    """

    traits = ("soft_assignment",)

    def __init__(
        self, *, num_clusters: int, num_best: int, num_samples: int | None = None, initial_noise: float | None = None
    ) -> None:
        super().__init__(num_clusters=num_clusters, num_samples=num_samples, initial_noise=initial_noise)
        check_counts(self, num_best=num_best)
        if num_best > num_clusters:
            raise ConfigurationError(
                f"FLSC.num_best={num_best} of num_clusters={num_clusters} models: give at most as many."
            )
        self.num_best = num_best
