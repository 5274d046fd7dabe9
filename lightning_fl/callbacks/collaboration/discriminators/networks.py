"""Stacked client discriminators of FedCollab: networks that tell two clients' samples apart.

A network with one hidden layer learns to tell the samples of a pair's first client (label 1) from those of its second
(label 0). In a round both clients start from the server's weights and take one gradient step of binary cross-entropy on
a batch of their own training samples; the server averages the two. The networks of S pairs of one client are stacked.
A stack does not depend on which process holds the other clients of these pairs, so the bits of a step do not either.
"""

import math
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from lightning_fl.core.errors import ConfigurationError
from lightning_fl.core.validation import Count, Positive, check_fields

Monitor = Literal["loss", "balanced_accuracy"]
# Samples whose hidden units are held at once, in all stacked networks.
_EVALUATED_AT_ONCE = 1024


@dataclass(frozen=True, kw_only=True)
class DiscriminatorSettings:
    """How the client discriminators of ``FedCollab`` are trained.

    Args:
        hidden: units of the hidden layer.
        learning_rate: of the gradient steps. With 0.3, distances need twice the rounds of 1.0, and some pairs of small
            clients stop before they learn anything.
        max_rounds: most rounds; rounds after the last evaluation are not trained.
        eval_every: rounds between evaluations.
        patience: evaluations without a better ``monitor`` after which a pair stops.
        monitor: value on the validation samples that chooses the round: their ``"loss"``, or the paper's
            ``"balanced_accuracy"``, whose maximum over many rounds overestimates the discriminator.
        batch_size: most samples of each side in a step, taken in turn. On features of CIFAR-10 with 1,250 training
            samples a side, batches of 128 find larger distances than full batches, in a quarter of the time.
        folds: 2 for cross-fitting (the mean of a discriminator trained on a client's first samples and one trained on
            its last), 1 for the paper's single discriminator.
        label_weight: norm of an encoded label, relative to that of a sample's features.
        max_train: most training samples of each side; ``None`` for half of the smaller client. Few samples hide small
            distances: two types of clients whose labels agree on 7 of 10 classes of CIFAR-10 were 0.11 apart with 64
            samples and 0.22 with 1,250, clients of one type 0.00.
        max_validation: most validation samples of each side.
        shared_size: use the same number of training samples in all pairs, half of the smallest client's, instead of
            half of the smaller client of each pair.
    """

    hidden: Count = 200
    learning_rate: Positive = 1.0
    max_rounds: Count = 2000
    eval_every: Count = 10
    patience: Count = 10
    monitor: Monitor = "loss"
    batch_size: Count = 128
    folds: Literal[1, 2] = 2
    label_weight: Positive = 2.0
    max_train: Count | None = None
    max_validation: Count = 2000
    shared_size: bool = False

    def __post_init__(self) -> None:
        check_fields(self, "FedCollab.discriminator.")
        if self.max_rounds < self.eval_every:
            raise ConfigurationError(
                f"FedCollab.discriminator.max_rounds={self.max_rounds}: must be at least eval_every={self.eval_every}"
                " for one evaluation."
            )


def first_weights(num_features: int, hidden: int, draws: torch.Generator) -> Tensor:
    """The server's initial weights, the same for all pairs, as of ``nn.Linear``: float32 [(d + 1) h + h + 1], CPU."""

    def uniform(count: int, inputs: int) -> Tensor:
        return (2 * torch.rand(count, generator=draws) - 1) / math.sqrt(inputs)

    return torch.cat([uniform((num_features + 1) * hidden, num_features), uniform(hidden + 1, hidden)])


def layers(weights: Tensor, hidden: int) -> tuple[Tensor, Tensor, Tensor]:
    """Views of stacked weights [S, (d + 1) h + h + 1]: W1 over b1 [S, d + 1, h], w2 [S, 1, h] and b2 [S, 1]."""
    inner, output, bias = weights.split([weights.shape[1] - hidden - 1, hidden, 1], 1)
    return inner.unflatten(1, (-1, hidden)), output.unsqueeze(1), bias


def local_step_(weights: Tensor, samples: Tensor, labels: Tensor, hidden: int, learning_rate: float) -> None:
    """A client's gradient step of binary cross-entropy in S of its pairs.

    ``weights`` [S, (d + 1) h + h + 1], the server's in each pair, become the client's. ``samples`` are its training
    samples [m, d + 1] or, different ones per pair, [S, m, d + 1]; ``labels`` [S] are 1 where it is the pair's first.
    """
    inner, output, bias = layers(weights, hidden)
    samples = samples.expand(len(weights), -1, -1)
    units = torch.bmm(samples, inner).relu_()  # [S, m, h]
    logits = torch.bmm(output, units.mT) + bias.unsqueeze(2)  # [S, 1, m]
    error = (labels.view(-1, 1, 1) - logits.sigmoid_()).mul_(learning_rate / samples.shape[1])
    by_output = torch.bmm(error, units)
    slope = units.sign_()  # of ReLU
    inner.baddbmm_(samples.mT, slope.mul_(error.mT).mul_(output))
    output += by_output
    bias += error.sum(2)


def evaluate(weights: Tensor, samples: Tensor, labels: Tensor, held_out: Tensor, hidden: int) -> Tensor:
    """Right answers, and sums of binary cross-entropies, of S discriminators on a client's samples: float32 [S, 2].

    ``weights``, ``labels`` and ``hidden`` are those of :func:`local_step_`; ``held_out`` [S, n] masks the validation
    samples among ``samples`` [n, d + 1].
    """
    inner, output, bias = layers(weights, hidden)
    found = weights.new_zeros(len(weights), 2)
    for part, counts in zip(samples.split(_EVALUATED_AT_ONCE), held_out.split(_EVALUATED_AT_ONCE, 1), strict=True):
        units = torch.bmm(part.expand(len(weights), -1, -1), inner).relu_()
        logits = torch.bmm(output, units.mT).squeeze(1) + bias
        truth = labels.unsqueeze(1).expand_as(logits)
        losses = F.binary_cross_entropy_with_logits(logits, truth, reduction="none")
        right = ((logits > 0) == (truth > 0)) & counts
        found += torch.stack([right.sum(1), losses.masked_fill(~counts, 0.0).sum(1)], 1)
    return found
