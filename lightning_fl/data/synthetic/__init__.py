"""Data drawn from equations in papers."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.utils.data import TensorDataset

from lightning_fl.core.validation import Seed, checked_fields
from lightning_fl.data.module import FederatedDataModule, Split


@checked_fields
class SyntheticDataModule(FederatedDataModule):
    """Clients whose samples are drawn, the same at every call.

    Args:
        data_seed: seed of all draws; ``None`` for the run's seed.
    """

    source = "synthetic"
    #: Number of classes of a classification.
    num_classes = 2

    data_seed: Seed | None = None

    @abstractmethod
    def count(self, client: int, split: Split) -> int:
        """Number of a client's samples in a split."""

    @abstractmethod
    def draw(self, client: int, split: Split) -> Sequence[Tensor]:
        """Draw a client's features [n, D] and targets."""

    @property
    def seed(self) -> int:
        """Seed of all draws."""
        return self.seed_of(self.data_seed)

    def num_samples(self, split: Split) -> list[int]:
        return [self.count(client, split) for client in range(self.num_clients)]

    def client_sizes(self) -> Sequence[int]:
        return self.num_samples("train")

    def client_data(self, client: int, split: Split) -> TensorDataset | None:
        return TensorDataset(*self.draw(client, split)) if self.count(client, split) else None

    def data_digests(self, client: int, stage: str) -> dict[Split, str]:
        """Return nothing: the arguments determine the samples."""
        return {}

    def describe(self) -> Mapping[str, Any]:
        """Return the origin and the seed; subclasses add every argument that changes the samples."""
        return {**super().describe(), "data_seed": self.seed}
