"""Two clients with the same distribution, one of them with wrong labels near the boundary.

Example 1 of Wu et al., DRFLM: Distributionally Robust Federated Learning with Inter-client Noise via Local Mixup, 2022
(https://arxiv.org/abs/2204.07742), section 3.1, where the client with wrong labels is the worst:

    x ~ Uniform([-2, -1]^d ∪ ([1, 2] × [-2, -1]^(d-1))),    y = 1 where x_1 > 0, else 0

The first client has these labels. At the second, labels with x_1 in I = [-1 - p2, -1] are flipped with probability p1 >
1/2. Test labels are right at both, as the paper's claim is about the distribution without noise: with the 0-1 loss and
many samples, the minimiser of the larger of the clients' losses has an error on it; the minimiser of their mean has
none, nor has the minimiser of the larger loss on mixed samples.

============  ====================  ======================================  ===========
paper         here                  what                                    shape
============  ====================  ======================================  ===========
p_1           ``flip_probability``  that a label in I is wrong              number
p_2           ``width``             of I                                    number
d             ``num_features``      of x                                    count
Ñ             ``train_samples``     of each client                          count
x, y          a sample              features, class 0 or 1 (the paper: ±1)  [d], []
============  ====================  ======================================  ===========

Differs from the paper: it minimises the 0-1 loss, which no gradient does. With a logistic loss, FedAvg has an error too
where I is wide or most of its labels are wrong.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from lightning_fl.core.seeding import generator
from lightning_fl.core.validation import Count, Fraction, Size, checked_fields
from lightning_fl.data.module import Split
from lightning_fl.data.synthetic import SyntheticDataModule


def boundary_samples(
    count: int, num_features: int, flip_probability: float, width: float, rng: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Draw n samples of Example 1: features, float32 [n, d], and classes 0 or 1, int64 [n].

    ``flip_probability`` is p_1, 0 for the distribution without noise; ``width`` is p_2, that of I = [-1 - p_2, -1].
    """
    x = torch.rand(count, num_features, generator=rng) - 2
    x[:, 0] += 3 * (torch.rand(count, generator=rng) < 0.5)
    wrong = (x[:, 0] <= -1) & (x[:, 0] >= -1 - width) & (torch.rand(count, generator=rng) < flip_probability)
    return x, ((x[:, 0] > 0) ^ wrong).long()


@checked_fields
class BoundaryNoise(SyntheticDataModule):
    """Two clients of Wu et al.'s Example 1: batches ``(x, y)``, float32 [B, d] and int64 [B].

    Args:
        num_features: d.
        flip_probability: p_1, probability that a label of the second client near the boundary is wrong.
        width: p_2, width of the strip with wrong labels.
        train_samples: training samples of each client.
        val_samples: validation samples of each client, with wrong labels at the second.
        test_samples: test samples of each client, with right labels.
    """

    num_clients = 2

    num_features: Count = 2
    flip_probability: Fraction = 0.6
    width: Fraction = 0.5
    train_samples: Count = 1000
    val_samples: Size = 200
    test_samples: Size = 2000

    @property
    def sizes(self) -> dict[Split, int]:
        """Samples of each client by split."""
        return {"train": self.train_samples, "val": self.val_samples, "test": self.test_samples}

    def client_names(self) -> list[str]:
        return ["clean", "noisy"]

    def count(self, client: int, split: Split) -> int:
        return self.sizes[split]

    def draw(self, client: int, split: Split) -> tuple[Tensor, Tensor]:
        rng = generator(self.seed, "boundary noise", client, split)
        probability = self.flip_probability if client == 1 and split != "test" else 0.0
        return boundary_samples(self.sizes[split], self.num_features, probability, self.width, rng)

    def describe(self) -> Mapping[str, Any]:
        return {
            **super().describe(),
            "title": "Wrong labels near the boundary at one of two clients",
            **{name: getattr(self, name) for name in ("num_features", "flip_probability", "width")},
            "samples": self.sizes,
        }
