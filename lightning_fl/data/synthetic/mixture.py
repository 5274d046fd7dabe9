"""Synthetic clients with samples of two linear models, each client with its own shares of both.

The synthetic data of FedSoft: Ruan, Joe-Wong, "FedSoft: Soft Clustered Federated Learning with Proximal Local
Updating", AAAI 2022, https://arxiv.org/abs/2112.06053, as in the authors' repository, with which PI-FL (Khan et al.
2023, https://arxiv.org/abs/2304.07514, section 4.1) compares. Distribution s, A or B, is

    y = <θ_s, x> + ε,    x ~ N(0, I_D),    ε ~ N(0, σ²),    θ_s ~ N(0, τ² I_D)

with the coefficients θ_s drawn once.

============  ===================  ==============================  ===========
paper         here                 what                            shape
============  ===================  ==============================  ===========
θ_s           ``coefficients``     coefficients, A then B          [2, D]
σ             ``noise_std``        of ε, 1 in FedSoft              number
τ             ``coefficient_std``  of the coefficients, √10 there  number
x, y          a sample             features, target                [D], [1]
============  ===================  ==============================  ===========

Differs from the papers: FedSoft has regression only (y, squared error), but PI-FL reports accuracies on "the same" data
without defining them. Here ``task="classification"`` asks for the sign, y > 0, the simplest choice of classes, so
PI-FL's figures cannot be compared. The best possible accuracy is that of θ_s itself, 1 - arctan(σ / |θ_s|) / π, about
0.97; that of θ_A on samples of B is one half on average over the draws, that of θ_A + θ_B about three quarters on
either. FedSoft draws samples from a pool, so that clients may share some, and tests on
1,000 of each distribution; here all samples are fresh and clients have test samples of their own, as in PI-FL.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from lightning_fl.core.errors import ConfigurationError
from lightning_fl.core.seeding import generator
from lightning_fl.core.validation import Count, NonNegative, Positive, Size, checked_fields
from lightning_fl.data.module import SPLITS, Split
from lightning_fl.data.partition import mixture_counts, mixture_shares
from lightning_fl.data.partition.mixtures import check_mixture, mixture_share
from lightning_fl.data.synthetic import SyntheticDataModule


def linear_samples(
    coefficients: Tensor, counts: Sequence[int], *, noise_std: float, rng: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Draw samples of several linear models with Gaussian features and noise, in random order.

    ``coefficients`` are θ_s, [S, D]; ``counts`` the samples of each distribution, n in all. Returns features, float32
    [n, D], and ``<θ_s, x> + ε``, float32 [n].
    """
    origin = torch.arange(len(coefficients)).repeat_interleave(torch.tensor(counts))
    origin = origin[torch.randperm(len(origin), generator=rng)]
    x = torch.randn(len(origin), coefficients.shape[1], generator=rng)
    noise = noise_std * torch.randn(len(origin), generator=rng)
    return x, (x * coefficients[origin]).sum(1) + noise


@checked_fields
class SyntheticMixture(SyntheticDataModule):
    """Clients with samples of two linear models, for regression or classification: batches ``(x, y)``.

    ``x`` is float32 [B, D]; ``y`` is float32 [B, 1] for regression, and the class 0 or 1, int64 [B], for
    classification. The coefficients depend only on the seed, a client's samples on the seed, the client and its share
    of D_A. Every split has exactly the client's mixture, rounded to whole samples
    (:func:`~lightning_fl.data.partition.mixture_counts`).

    Args:
        num_clients: number N of clients.
        task: ``"classification"`` or ``"regression"``.
        mixture: ``"p:q"`` for q % of D_A in the first half of the clients and p % in the others, ``"linear"`` or
            ``"random"``; see :func:`~lightning_fl.data.partition.mixture_shares`.
        num_features: D.
        min_samples: fewest training samples of a client; the number is drawn uniformly.
        max_samples: most training samples of a client.
        val_samples: validation samples of every client.
        test_samples: test samples of every client.
        coefficient_std: τ, standard deviation of every coefficient.
        noise_std: σ, standard deviation of the noise.
        invert_test: give the test samples the inverse mixture, 1 - a of D_A where the training samples have a.
        invert_validation: give the validation samples the inverse mixture; ``None`` for the value of ``invert_test``.

    Example:
        >>> data = SyntheticMixture(num_clients=4, mixture="30:70", data_seed=0)
        >>> data.num_samples("test")
        [100, 100, 100, 100]
    """

    num_clients: Count = 100
    task: Literal["regression", "classification"] = "classification"
    mixture: str = "10:90"
    num_features: Count = 10
    min_samples: Count = 100
    max_samples: Count = 200
    val_samples: Size = 50
    test_samples: Size = 100
    coefficient_std: Positive = math.sqrt(10)
    noise_std: NonNegative = 1.0
    invert_test: bool = False
    invert_validation: bool | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_mixture(self.mixture)
        if self.min_samples > self.max_samples:
            raise ConfigurationError(f"min_samples={self.min_samples} must be at most max_samples={self.max_samples}.")
        if self.invert_validation is None:
            self.invert_validation = self.invert_test

    @property
    def coefficients(self) -> Tensor:
        """θ_A and θ_B, float32, shape [2, D]."""
        rng = generator(self.seed, "synthetic", "coefficients")
        return self.coefficient_std * torch.randn(2, self.num_features, generator=rng)

    def shares(self) -> Tensor:
        """Every client's share of D_A in its training samples, float64 [N]."""
        return mixture_shares(self.mixture, self.num_clients, self.seed)

    def count(self, client: int, split: Split) -> int:
        if split != "train":
            return self.val_samples if split == "val" else self.test_samples
        rng = generator(self.seed, "synthetic", "size", client)
        return int(torch.randint(self.min_samples, self.max_samples + 1, (), generator=rng))

    def client_counts(self, client: int, split: Split) -> tuple[int, int]:
        """How many of a client's samples in a split are of D_A and of D_B."""
        size = self.count(client, split)
        inverted = {"train": False, "val": bool(self.invert_validation), "test": self.invert_test}[split]
        share = mixture_share(self.mixture, client, self.num_clients, self.seed)
        of_a, of_b = mixture_counts(torch.tensor([share], dtype=torch.float64), [size], [inverted]).flatten().tolist()
        return of_a, of_b

    def draw(self, client: int, split: Split) -> tuple[Tensor, Tensor]:
        counts = self.client_counts(client, split)
        rng = generator(self.seed, "synthetic", "samples", client, split)
        x, y = linear_samples(self.coefficients, counts, noise_std=self.noise_std, rng=rng)
        return x, y[:, None] if self.task == "regression" else (y > 0).long()

    def describe(self) -> Mapping[str, Any]:
        names = ("task", "mixture", "num_features", "coefficient_std", "noise_std", "invert_test", "invert_validation")
        return {
            **super().describe(),
            "title": f"Two linear models, {self.task}",
            **{name: getattr(self, name) for name in names},
            "shares_of_a": self.shares().tolist(),
            "client_sizes": {split: self.num_samples(split) for split in SPLITS},
        }
