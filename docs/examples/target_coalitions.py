"""Coalitions of clients with similar targets, formed once before training.

Every client reports the mean of its training targets, one number for each target column, and no samples. Agglomerative
clustering (Ward) of these means gives the coalitions; each trains a model of its own.
"""

from torch import Tensor

from lightning_fl import Collaboration, ConfigurationError
from lightning_fl.callbacks import Callback
from lightning_fl.core.validation import Count, checked
from lightning_fl.runtime.surface import TrainerSurface


class TargetCoalitions(Callback):
    """Divides clients into coalitions by the means of their training targets.

    Args:
        num_coalitions: K, at most the number of clients.

    Raises:
        ConfigurationError: the number is out of range; at the start of a run, there are fewer clients.
    """

    role = "collaboration"
    method_name = "target coalitions"
    saved = ("labels",)

    @checked
    def __init__(self, *, num_coalitions: Count) -> None:
        self.num_coalitions = num_coalitions
        self.labels: list[int] = []

    def on_fit_start(self, trainer: TrainerSurface) -> None:
        """Exchange the means and set the collaboration; a checkpoint holds it for a resumed run."""
        if self.num_coalitions > trainer.num_clients:
            raise ConfigurationError(
                f"TargetCoalitions.num_coalitions={self.num_coalitions}: must be at most {trainer.num_clients}."
            )
        means = trainer.target_summaries(_means)
        self.labels = [0] * trainer.num_clients
        if self.num_coalitions > 1:
            from sklearn.cluster import AgglomerativeClustering  # type: ignore[import-untyped]

            self.labels = AgglomerativeClustering(self.num_coalitions).fit_predict(means.numpy()).tolist()
        trainer.collaboration = Collaboration.coalitions(self.labels, trainer.num_samples)


def _means(targets: Tensor) -> Tensor:
    """Mean of each column of a client's targets [n, T], float64 [T]; 0 for a column without values."""
    return targets.double().reshape(len(targets), -1).nanmean(0).nan_to_num(0.0)
