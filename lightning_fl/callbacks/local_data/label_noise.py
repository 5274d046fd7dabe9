"""Label noise on some clients, as in DRFLM's study.

Wu et al.: DRFLM, 2022 (https://arxiv.org/abs/2204.07742), section 4.2: half of the clients, each label with
probability 0.3, Gaussian noise of standard deviation 0 to 1 in label units; class labels flip instead.

Differs from the paper: half of an odd number of clients is rounded up; only training labels are changed unless
``splits`` says otherwise, since the paper does not say which are.
"""

import math
import warnings

import torch
from torch import Tensor

from lightning_fl.callbacks.callback import Callback
from lightning_fl.core.errors import ConfigurationError
from lightning_fl.core.pinned_memory import to_device
from lightning_fl.core.seeding import generator
from lightning_fl.core.validation import check_counts, check_numbers
from lightning_fl.data.module import SPLITS, Split
from lightning_fl.engine.batches.client import ClientBatches
from lightning_fl.runtime.surface import TrainerSurface

__all__ = ["LabelNoise", "flip_labels", "perturb_targets"]


def perturb_targets(targets: Tensor, std: float, probability: float, generator: torch.Generator) -> Tensor:
    """Add Gaussian noise of standard deviation ``std`` to each entry with a probability; shape and type are kept."""
    hit = torch.rand(targets.shape, generator=generator) < probability
    noise = torch.randn(targets.shape, generator=generator) * std
    return targets + to_device((noise * hit).to(targets.dtype), targets.device)


def flip_labels(labels: Tensor, num_classes: int, probability: float, generator: torch.Generator) -> Tensor:
    """Replace each class label, with a probability, by another one drawn uniformly; shape [n, ...] is kept."""
    hit = torch.rand(labels.shape, generator=generator) < probability
    shift = torch.randint(1, max(2, num_classes), labels.shape, generator=generator)
    hit, shift = (to_device(drawn, labels.device) for drawn in (hit, shift.to(labels.dtype)))
    return torch.where(hit, (labels + shift) % num_classes, labels)


class LabelNoise(Callback):
    """Corrupts the labels of some clients once, when their data are opened.

    Args:
        std: standard deviation of the noise on real targets, in their units. Class labels flip instead.
        probability: of each label.
        client_share: share of the clients that are noisy, rounded half up, drawn by the run's seed.
        clients: the noisy clients themselves, instead of a share.
        num_classes: number of classes, for class labels; with it floating numbers count as labels too, NaN as none.
        splits: the splits whose labels are changed; test labels should stay clean to measure by.
    """

    several = True  # some clients with more noise than others

    def __init__(
        self,
        *,
        std: float = 0.5,
        probability: float = 0.3,
        client_share: float = 0.5,
        clients: list[int] | None = None,
        num_classes: int | None = None,
        splits: tuple[Split, ...] = ("train",),
    ) -> None:
        check_numbers(self, std=std, at_least=0)
        check_numbers(self, probability=probability, client_share=client_share, at_least=0, at_most=1)
        check_counts(self, clients=clients, at_least=0)
        check_counts(self, num_classes=num_classes, at_least=2)
        unknown = [split for split in splits if split not in SPLITS]
        if unknown:
            raise ConfigurationError(f"LabelNoise.splits={list(splits)}: choose from {', '.join(SPLITS)}.")
        self.std = std
        self.probability = probability
        self.client_share = client_share
        self.clients = clients
        self.num_classes = num_classes
        self.splits = tuple(splits)

    def noisy_clients(self, seed: int, num_clients: int) -> list[int]:
        """Which clients are noisy."""
        if self.clients is not None:
            outside = [client for client in self.clients if not 0 <= client < num_clients]
            if outside:
                raise ConfigurationError(f"LabelNoise.clients={self.clients}: the clients are 0 to {num_clients - 1}.")
            return sorted(set(self.clients))
        count = math.floor(num_clients * self.client_share + 0.5)
        order = torch.randperm(num_clients, generator=generator(seed, "label noise", "clients"))
        return sorted(order[:count].tolist())

    def on_client_data(self, trainer: TrainerSurface, client: int, split: Split, batches: ClientBatches) -> None:
        """Change the targets of a noisy client."""
        if split not in self.splits or client not in self.noisy_clients(trainer.seed, trainer.num_clients):
            return
        targets = batches.targets
        draws = generator(trainer.seed, "label noise", client, split)
        if targets.is_floating_point() and self.num_classes is None:
            if self.std and bool(((targets == 0) | (targets == 1) | targets.isnan()).all()):
                warnings.warn(
                    f"LabelNoise adds Gaussian noise to the {split} targets of client {client}, all of which are 0 or"
                    " 1: a model that takes its task from them takes a regression. Set LabelNoise.num_classes to 2 to"
                    " flip labels.",
                    stacklevel=2,
                )
            batches.targets = perturb_targets(targets, self.std, self.probability, draws)
            return
        if self.num_classes is None:
            raise ConfigurationError("LabelNoise: the targets are class labels; set LabelNoise.num_classes.")
        batches.targets = flip_labels(targets, self.num_classes, self.probability, draws)
