"""FLSC: several models; in every round each client trains the average of its n best ones.

Li, Li, Varshney, "Federated Learning with Soft Clustering", IEEE Internet of Things Journal 9(10), 2022,
https://doi.org/10.1109/JIOT.2021.3113927.

A client starts from ``(1/n) Σ_k ω_k`` over the n models with the least loss on its training data, and its result enters
the average of each of them, weighted by samples. Differs from the paper: as :class:`IFCA`. Clients compare the current
models, not those of an earlier round.
"""

from lightning_fl.callbacks.collaboration.ifca import IFCA
from lightning_fl.core.errors import ConfigurationError
from lightning_fl.core.validation import Count, checked_fields


@checked_fields
class FLSC(IFCA):
    """A fixed number of models; every client uses and trains the n models with its least losses.

    Composes with other parts as :class:`IFCA`. A client receives all models and sends one result.

    Args:
        num_clusters: K, at most the number of clients.
        num_best: n, at most K: models of a client, of equal losses the first. 1 is IFCA, K the average of all models.
        num_samples: as for :class:`IFCA`.
        initial_noise: as for :class:`IFCA`.

    Raises:
        ConfigurationError: a value is out of range, or as for :class:`IFCA`.
    """

    traits = ("soft_assignment", "mixed_starts")

    num_best: Count

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_best > (most := self.num_clusters):
            raise ConfigurationError(f"FLSC.num_best={self.num_best}: must be at most num_clusters={most}.")
