"""Stacked client discriminators of FedCollab: networks that tell two clients' samples apart, and their rounds.

A network with one hidden layer learns to tell the samples of a pair's first client (label 1) from those of its second
(label 0). In a round both clients start from the server's weights and take one gradient step of binary cross-entropy on
a batch of their own training samples; the server averages the two. The networks of S pairs of one client are stacked.
A stack does not depend on which process holds the other clients of these pairs, so the bits of a step do not either.

A *lane* is one discriminator: a pair of clients and a fold of their samples. Lanes with batches of the same size train
stacked, as many as the memory limit allows, until each has stopped.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from lightning_fl.core.errors import ConfigurationError
from lightning_fl.core.validation import Count, Positive, check_fields

# Samples whose hidden units are held at once, in all stacked networks.
_EVALUATED_AT_ONCE = 1024
#: Adds a tensor over all processes and returns the sum to each.
Reduce = Callable[[Tensor], Tensor]

# Memory of the lanes trained at once: the size of a CPU's cache, or enough to keep an accelerator busy.
_CPU_CHUNK_BYTES, _GPU_CHUNK_BYTES = 2**23, 2**30


@dataclass(frozen=True, kw_only=True)
class DiscriminatorSettings:
    """How the client discriminators of ``FedCollab`` are trained.

    Args:
        hidden: units of the hidden layer.
        learning_rate: of the gradient steps. With 0.3, distances need twice the rounds of 1.0, and some pairs of small
            clients stop before they learn anything.
        max_rounds: most rounds, at least ``eval_every``; rounds after the last evaluation are not trained.
        eval_every: rounds between evaluations.
        patience: evaluations without a better ``monitor`` after which a pair stops.
        monitor: value on the validation samples that chooses the round (the paper takes the last): ``"loss"``, or
            ``"balanced_accuracy"``, whose maximum over many rounds overestimates the discriminator.
        batch_size: most samples of each side in a step, taken in turn. On features of CIFAR-10 with 1,250 training
            samples a side, batches of 128 find larger distances than full batches, in a quarter of the time.
        folds: 2 for cross-fitting (the mean of a discriminator trained on a client's first samples and one trained on
            its last), 1 for the paper's single discriminator.
        label_weight: norm of an encoded label, relative to that of a sample's features.
        max_train: most training samples of each side; ``None`` for half of the smaller client. Few samples hide small
            distances (docs/coalitions.md has a measurement).
        max_validation: most validation samples of each side.
        shared_size: use the same number of training samples in all pairs, half of the smallest client's, instead of
            half of the smaller client of each pair.
    """

    hidden: Count = 200
    learning_rate: Positive = 1.0
    max_rounds: Count = 2000
    eval_every: Count = 10
    patience: Count = 5
    monitor: Literal["loss", "balanced_accuracy"] = "loss"
    batch_size: Count = 128
    folds: Literal[1, 2] = 2
    label_weight: Positive = 2.0
    max_train: Count | None = None
    max_validation: Count = 2000
    shared_size: bool = False

    def __post_init__(self) -> None:
        check_fields(self, "FedCollab.discriminator.")
        if self.max_rounds < self.eval_every:
            option = f"FedCollab.discriminator.max_rounds={self.max_rounds}"
            raise ConfigurationError(f"{option}: must be at least eval_every={self.eval_every}.")


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


class Lane(NamedTuple):
    """A discriminator: its clients, the fold, and the training samples of each side.

    In fold 0 the first ``size`` samples of a client's order train, in fold 1 the last; the others validate.
    """

    first: int
    second: int
    fold: int
    size: int


@dataclass
class Outcome:
    """Accuracies on both clients' validation samples in the best round (0 if there is none), and rounds trained."""

    accuracies: tuple[float, float] = (math.nan, math.nan)
    best_round: int = 0
    rounds: int = 0
    score: float = -math.inf
    stale: int = 0

    def add(self, accuracies: tuple[float, float], loss: float, rounds: int, settings: DiscriminatorSettings) -> bool:
        """Record an evaluation; return whether the discriminator stops."""
        score = -loss if settings.monitor == "loss" else sum(accuracies) / 2
        self.rounds, perfect = rounds, min(accuracies) == 1
        self.stale += 1
        if math.isfinite(loss) and (score > self.score or perfect):
            self.score, self.stale, self.accuracies, self.best_round = score, 0, accuracies, rounds
        return perfect or rounds + settings.eval_every > settings.max_rounds or self.stale >= settings.patience


class _Side(NamedTuple):
    """A client of this process in the lanes that train: their rows, and per lane label, fold and size, [S]."""

    samples: Tensor
    rows: Tensor
    labels: Tensor
    folds: Tensor
    sizes: Tensor

    def batch(self, round_number: int, size: int) -> Tensor:
        turn = torch.arange(round_number * size, (round_number + 1) * size, device=self.rows.device)
        place = turn % self.sizes[:, None]
        return self.samples[torch.where(self.folds[:, None] > 0, len(self.samples) - 1 - place, place)]

    def held_out(self, at_most: int) -> Tensor:
        place = torch.arange(len(self.samples), device=self.rows.device)
        place = torch.where(self.folds[:, None] > 0, len(self.samples) - 1 - place, place)
        return (place >= self.sizes[:, None]) & (place < self.sizes[:, None] + at_most)


@dataclass(frozen=True)
class PairTraining:
    """State that the discriminators of one call share."""

    samples: dict[int, Tensor]  #: of the clients of this process, in order, float32 [n, d + 1]
    first: Tensor  #: the server's initial weights
    sizes: list[int]  #: all clients' numbers of samples
    apart: set[tuple[int, int]]  #: pairs whose clients are in different processes
    settings: DiscriminatorSettings
    reduce: Reduce

    def chunks(self, lanes: Sequence[Lane]) -> Iterator[tuple[list[Lane], int]]:
        """Lanes with batches of the same size, as many as the memory limit allows; the same in all processes."""
        limit = _CPU_CHUNK_BYTES if self.first.device.type == "cpu" else _GPU_CHUNK_BYTES
        batch_size = {lane: min(lane.size, self.settings.batch_size) for lane in lanes}
        for size in sorted(set(batch_size.values())):
            alike = [lane for lane in lanes if batch_size[lane] == size]
            room = max(1, limit // (4 * (3 * len(self.first) + 4 * size * self.settings.hidden)))
            yield from ((alike[start : start + room], size) for start in range(0, len(alike), room))

    @torch.no_grad()
    def train(self, lanes: list[Lane], batch_size: int) -> dict[Lane, Outcome]:
        outcomes = {lane: Outcome() for lane in lanes}
        weights, rounds = self.first.repeat(len(lanes), 1), 0
        while lanes:
            sides = self._sides(lanes)
            for number in range(rounds, rounds + self.settings.eval_every):
                weights = self._round(weights, lanes, sides, number, batch_size)
            rounds += self.settings.eval_every
            kept = [
                row
                for row, (lane, evaluated) in enumerate(zip(lanes, self._evaluate(weights, lanes, sides), strict=True))
                if not outcomes[lane].add(*evaluated, rounds, self.settings)
            ]
            lanes, weights = [lanes[row] for row in kept], weights[kept]
        return outcomes

    def num_held_out(self, lane: Lane) -> tuple[int, int]:
        first, second = (min(self.sizes[client] - lane.size, self.settings.max_validation) for client in lane[:2])
        return first, second

    def _sides(self, lanes: list[Lane]) -> list[_Side]:
        sides = []
        for client in sorted({client for lane in lanes for client in lane[:2]} & self.samples.keys()):
            own = [(row, client == lane.first, *lane[2:]) for row, lane in enumerate(lanes) if client in lane[:2]]
            rows, labels, folds, sizes = torch.tensor(own, device=self.first.device).unbind(1)
            sides.append(_Side(self.samples[client], rows, labels.float(), folds, sizes))
        return sides

    def _round(self, weights: Tensor, lanes: list[Lane], sides: list[_Side], number: int, batch_size: int) -> Tensor:
        """A step of every client in all of its lanes, and each lane's average."""
        total = torch.zeros_like(weights)
        for side in sides:
            local = weights.index_select(0, side.rows)
            batch = side.batch(number, batch_size)
            local_step_(local, batch, side.labels, self.settings.hidden, self.settings.learning_rate)
            total.index_add_(0, side.rows, local)
        if crossing := [row for row, lane in enumerate(lanes) if lane[:2] in self.apart]:
            total[crossing] = self.reduce(total[crossing])
        return total.mul_(0.5)

    def _evaluate(
        self, weights: Tensor, lanes: list[Lane], sides: list[_Side]
    ) -> list[tuple[tuple[float, float], float]]:
        """Both sides' accuracies, and the mean loss, of each lane on its validation samples."""
        table = weights.new_zeros(len(lanes), 2, 2)  # results of ``evaluate`` for both sides
        for side in sides:
            held_out = side.held_out(self.settings.max_validation)
            local = weights.index_select(0, side.rows)
            for fold in side.folds.unique().tolist():  # the other half trains
                own = (side.folds == fold).nonzero().squeeze(1)
                used = held_out[own].any(0).nonzero().squeeze(1).tolist()
                span = slice(used[0], used[-1] + 1)
                labels = side.labels[own]
                counted = evaluate(local[own], side.samples[span], labels, held_out[own, span], self.settings.hidden)
                table[side.rows[own], 1 - labels.long()] = counted
        found = []
        for lane, ((first, first_loss), (second, second_loss)) in zip(lanes, self.reduce(table).tolist(), strict=True):
            counts = self.num_held_out(lane)
            loss = (first_loss / counts[0] + second_loss / counts[1]) / 2
            found.append(((first / counts[0], second / counts[1]), loss))
        return found
