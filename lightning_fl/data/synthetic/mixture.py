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
either, see :func:`linear_accuracy`. FedSoft draws samples from a pool, so that clients may share some, and tests on
1,000 of each distribution; here all samples are fresh and clients have test samples of their own, as in PI-FL.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from lightning_fl.core.errors import ConfigurationError
from lightning_fl.core.seeding import generator, run_seed
from lightning_fl.core.validation import Count, NonNegative, Positive, Seed, Size, checked
from lightning_fl.data.module import SPLITS, FederatedDataModule, Split
from lightning_fl.data.partition import mixture_counts, mixture_shares
from lightning_fl.data.partition.mixtures import check_mixture, mixture_share

__all__ = ["SyntheticMixture", "SyntheticTask", "linear_accuracy", "linear_samples"]

SyntheticTask = Literal["regression", "classification"]
#: τ of FedSoft.
_FEDSOFT_STD = math.sqrt(10)


def linear_samples(
    coefficients: Tensor, counts: Sequence[int], *, noise_std: float, rng: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Draw samples of several linear models with Gaussian features and noise, in random order.

    Args:
        coefficients: θ_s, one row per distribution, shape [S, D].
        counts: samples of each distribution, n in all.
        noise_std: σ >= 0.
        rng: generator of the draws.

    Returns:
        Features, float32, shape [n, D], and ``<θ_s, x> + ε``, float32, shape [n].
    """
    origin = torch.arange(len(coefficients)).repeat_interleave(torch.tensor(counts))
    origin = origin[torch.randperm(len(origin), generator=rng)]
    x = torch.randn(len(origin), coefficients.shape[1], generator=rng)
    noise = noise_std * torch.randn(len(origin), generator=rng)
    return x, (x * coefficients[origin]).sum(1) + noise


def linear_accuracy(weight: Tensor, coefficients: Tensor, noise_std: float) -> float:
    """Compute the probability that a linear classifier predicts the class of a linear model's sample, the sign of y.

    ``<w, x>`` and ``y = <θ, x> + ε`` are jointly normal with correlation ρ = <w, θ> / (|w| √(|θ|² + σ²)); they have
    the same sign with probability 1 - arccos(ρ) / π.

    Args:
        weight: w, shape [D], not all zero.
        coefficients: θ of the samples, shape [D].
        noise_std: σ >= 0.

    >>> linear_accuracy(torch.tensor([1.0, 0.0]), torch.tensor([0.0, 2.0]), 0.0)
    0.5
    """
    w, theta = weight.double(), coefficients.double()
    scale = w.norm() * math.hypot(float(theta.norm()), noise_std)
    correlation = float((w @ theta / scale).clamp(-1, 1))
    return 1 - math.acos(correlation) / math.pi


class SyntheticMixture(FederatedDataModule):
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
        data_seed: seed of all draws; ``None`` for the run's seed.
        **kwargs: ``batch_size``, ``eval_batch_size``, ``shuffle`` and ``drop_last`` of
            :class:`~lightning_fl.data.module.FederatedDataModule`.

    Raises:
        ConfigurationError: an argument is invalid.

    Example:
        >>> data = SyntheticMixture(num_clients=4, mixture="30:70", data_seed=0)
        >>> data.num_samples("test")
        [100, 100, 100, 100]
    """

    source = "synthetic"

    @checked
    def __init__(
        self,
        *,
        num_clients: Count = 100,
        task: SyntheticTask = "classification",
        mixture: str = "10:90",
        num_features: Count = 10,
        min_samples: Count = 100,
        max_samples: Count = 200,
        val_samples: Size = 50,
        test_samples: Size = 100,
        coefficient_std: Positive = _FEDSOFT_STD,
        noise_std: NonNegative = 1.0,
        invert_test: bool = False,
        invert_validation: bool | None = None,
        data_seed: Seed | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_mixture(mixture)
        if min_samples > max_samples:
            raise ConfigurationError(f"min_samples={min_samples} must be at most max_samples={max_samples}.")
        self.task = task
        self.mixture = mixture
        self.num_features = num_features
        self.min_samples = min_samples
        self.max_samples = max_samples
        self.eval_samples: dict[Split, int] = {"val": val_samples, "test": test_samples}
        self.coefficient_std = coefficient_std
        self.noise_std = noise_std
        self.invert_test = invert_test
        self.invert_validation = invert_test if invert_validation is None else invert_validation
        self.data_seed = data_seed
        self._num_clients = num_clients

    @property
    def num_clients(self) -> int:
        """Number of clients N."""
        return self._num_clients

    @property
    def num_classes(self) -> int:
        """Two, for classification."""
        return 2

    @property
    def seed(self) -> int:
        """Seed of all draws."""
        return run_seed() if self.data_seed is None else self.data_seed

    @property
    def coefficients(self) -> Tensor:
        """θ_A and θ_B, float32, shape [2, D]."""
        rng = generator(self.seed, "synthetic", "coefficients")
        return self.coefficient_std * torch.randn(2, self.num_features, generator=rng)

    def shares(self) -> Tensor:
        """Return every client's share of D_A in its training samples, float64, shape [N]."""
        return mixture_shares(self.mixture, self.num_clients, self.seed)

    def num_samples(self, split: Split) -> list[int]:
        """Return the number of every client's samples in a split."""
        if split != "train":
            return [self.eval_samples[split]] * self.num_clients
        return [self._training_samples(client) for client in range(self.num_clients)]

    def client_sizes(self) -> Sequence[int]:
        """Return the number of every client's training samples."""
        return self.num_samples("train")

    def client_counts(self, client: int, split: Split) -> tuple[int, int]:
        """Return how many of a client's samples in a split are of D_A and of D_B."""
        size = self._training_samples(client) if split == "train" else self.eval_samples[split]
        inverted = {"train": False, "val": self.invert_validation, "test": self.invert_test}[split]
        share = mixture_share(self.mixture, client, self.num_clients, self.seed)
        of_a, of_b = mixture_counts(torch.tensor([share], dtype=torch.float64), [size], [inverted]).flatten().tolist()
        return of_a, of_b

    def client_data(self, client: int, split: Split) -> TensorDataset | None:
        """Draw the client's samples, the same at every call; ``None`` if there are none."""
        counts = self.client_counts(client, split)
        if sum(counts) == 0:
            return None
        rng = generator(self.seed, "synthetic", "samples", client, split)
        x, y = linear_samples(self.coefficients, counts, noise_std=self.noise_std, rng=rng)
        return TensorDataset(x, y[:, None] if self.task == "regression" else (y > 0).long())

    def data_digests(self, client: int, stage: str) -> dict[Split, str]:
        """Return nothing: the arguments determine the samples."""
        return {}

    def describe(self) -> Mapping[str, Any]:
        """Return every argument that changes the samples, the seed, and the clients' shares and sizes."""
        names = ("task", "mixture", "num_features", "coefficient_std", "noise_std", "invert_test", "invert_validation")
        return {
            **super().describe(),
            "title": f"Two linear models, {self.task}",
            **{name: getattr(self, name) for name in names},
            "data_seed": self.seed,
            "shares_of_a": self.shares().tolist(),
            "client_sizes": {split: self.num_samples(split) for split in SPLITS},
        }

    def _training_samples(self, client: int) -> int:
        rng = generator(self.seed, "synthetic", "size", client)
        return int(torch.randint(self.min_samples, self.max_samples + 1, (), generator=rng))
