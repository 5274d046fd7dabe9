"""Label noise on some clients, as in DRFLM's study.

Wu et al.: DRFLM, 2022 (https://arxiv.org/abs/2204.07742), section 4.2: half of the clients, each label with
probability 0.3, Gaussian noise with several standard deviations, which it does not give; class labels flip here.

Differs from the paper: half of an odd number of clients is rounded up. The paper does not say which splits are noisy:
only training labels by default.
"""

import math
import warnings
from typing import Annotated

import torch
from annotated_types import Ge
from torch import Tensor

from lightning_fl.callbacks.callback import Callback
from lightning_fl.core.errors import ConfigurationError
from lightning_fl.core.pinned_memory import to_device
from lightning_fl.core.seeding import generator, shuffled
from lightning_fl.core.validation import Fraction, NonNegative, Size, checked_fields
from lightning_fl.data.module import Split
from lightning_fl.engine.batches.client import ClientBatches
from lightning_fl.runtime.surface import TrainerSurface


def perturb_targets(targets: Tensor, std: float, probability: float, generator: torch.Generator) -> Tensor:
    """Add Gaussian noise of standard deviation ``std`` to each entry with a probability; shape and type are kept."""
    hit = torch.rand(targets.shape, generator=generator) < probability
    noise = torch.randn(targets.shape, generator=generator) * std
    return targets + to_device((noise * hit).to(targets.dtype), targets.device)


def flip_labels(labels: Tensor, num_classes: int, probability: float, generator: torch.Generator) -> Tensor:
    """Replace each class label, with a probability, by another one drawn uniformly, [n, ...]; not negative ones."""
    hit = torch.rand(labels.shape, generator=generator) < probability
    shift = torch.randint(1, max(2, num_classes), labels.shape, generator=generator)
    hit, shift = (to_device(drawn, labels.device) for drawn in (hit, shift.to(labels.dtype)))
    return torch.where(hit & (labels >= 0), (labels + shift) % num_classes, labels)


@checked_fields
class LabelNoise(Callback):
    """Corrupts the labels of some clients when their data are opened.

    Args:
        std: standard deviation of the noise on real targets, in their units. Class labels flip instead.
        probability: probability of a label to change.
        client_share: share of noisy clients, rounded half up, drawn by the run's seed.
        clients: numbers of the noisy clients, from 0, instead of a share.
        num_classes: number of classes, for class labels, also floating ones with NaN for missing; for integers the
            module's hyper-parameter ``num_classes`` is the default.
        splits: splits to change; keep test labels clean.
    """

    several = True  # different noise on different clients
    traits = ("own_samples",)

    std: NonNegative = 0.5
    probability: Fraction = 0.3
    client_share: Fraction = 0.5
    clients: list[Size] | None = None
    num_classes: Annotated[int, Ge(2)] | None = None
    splits: tuple[Split, ...] = ("train",)

    def noisy_clients(self, seed: int, num_clients: int) -> list[int]:
        """Noisy clients, ascending."""
        if self.clients is not None:
            if not set(self.clients) <= set(range(num_clients)):
                raise ConfigurationError(f"LabelNoise.clients={self.clients}: clients are 0..{num_clients - 1}.")
            return sorted(set(self.clients))
        count = math.floor(num_clients * self.client_share + 0.5)
        return sorted(shuffled(range(num_clients), generator(seed, "label noise", "clients"))[:count])

    def on_client_data(self, trainer: TrainerSurface, client: int, split: Split, batches: ClientBatches) -> None:
        if split not in self.splits or client not in self.noisy_clients(trainer.seed, trainer.num_clients):
            return
        targets = batches.targets
        draws = generator(trainer.seed, "label noise", client, split)
        if targets.is_floating_point() and self.num_classes is None:
            if self.std and bool(((targets == 0) | (targets == 1) | targets.isnan()).all()):
                what = f"LabelNoise adds Gaussian noise to the {split} targets of client {client}, which are all 0 or 1"
                warnings.warn(f"{what}. Set LabelNoise.num_classes=2 to flip labels instead.", stacklevel=2)
            batches.targets = perturb_targets(targets, self.std, self.probability, draws)
            return
        classes = self.num_classes or trainer.module.hparams.get("num_classes")
        if not isinstance(classes, int):
            raise ConfigurationError("The targets are class labels: set LabelNoise.num_classes.")
        batches.targets = flip_labels(targets, classes, self.probability, draws)
