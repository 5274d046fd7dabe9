"""Distances between clients' data, estimated federatedly: FedCollab's first step.

Bao et al., "Optimizing the Collaboration Structure in Cross-Silo Federated Learning", ICML 2023,
https://arxiv.org/abs/2306.06508, algorithm 1. For every pair of clients a discriminator is trained without bringing
their data together (:mod:`lightning_fl.functional.client_discriminator`); then ``D_ij = max(0, 2 BalAcc − 1)`` with its
balanced accuracy on samples that were not trained on. Pairs with the same number of training samples train together,
as many as memory is meant to hold.

| paper | here | shape |
|---|---|---|
| (x, y), a sample's features and encoded label | a row of ``features[client]`` | [n_i, d] |
| m_train, training samples of each side | ``training_size`` | m |
| D̂ | ``PairwiseDistances.distances`` | [N, N] |

Differs from the paper: LocalUpdate, which it leaves open, is one full-batch step. m_train is read as half of the
smaller client of each pair, and capped; with half of the smallest of all clients (``shared_size=True``) one tiny client
leaves a handful of training samples to all. The paper evaluates the last round's discriminator; here it is the round
with the lowest validation loss, or with ``monitor="balanced_accuracy"`` the one with the best balanced accuracy, which
flatters it: on Fashion-MNIST two clients with the same distribution got D = 0.23 on average with 7 validation samples a
side and 0.025 with 500, by the lowest loss 0.14 and 0.012. D of a handful of samples is coarse (multiples of 1/v) and
above 0 on average whatever is done, for it is cut off at 0.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lightning_fl.errors import ConfigurationError, DataError, TrainingError
from lightning_fl.functional.client_discriminator import (
    DiscriminatorSettings,
    evaluate,
    first_weights,
    local_step_,
)
from lightning_fl.seeding import generator

__all__ = [
    "DiscriminatorSettings",
    "PairwiseDistances",
    "distance",
    "pairwise_distances",
    "spread_order",
    "training_size",
]

Pair = tuple[int, int]
#: Adds a tensor over all processes and returns the sum to each.
Reduce = Callable[[Tensor], Tensor]

_MIN_SAMPLES = 4
_PURPOSE = "client discriminator"
# Memory of the pairs trained at once: what a CPU's cache holds, or what keeps an accelerator busy.
_CPU_CHUNK_BYTES, _GPU_CHUNK_BYTES = 2**23, 2**30


@dataclass(frozen=True)
class PairwiseDistances:
    """What was measured, symmetric, on the CPU. Pairs that were not asked for have NaN, or -1 for a count.

    Attributes:
        distances: D, float64 [N, N], 0 on the diagonal.
        balanced_accuracies: of each pair's discriminator in the round that counts, float64 [N, N].
        rounds: rounds trained, int64 [N, N].
        best_rounds: the rounds that count, int64 [N, N].
        bytes_received: of weights in single precision that each client gets from the server, int64 [N].
        bytes_sent: of those that it gives to the server, int64 [N].
    """

    distances: Tensor
    balanced_accuracies: Tensor
    rounds: Tensor
    best_rounds: Tensor
    bytes_received: Tensor
    bytes_sent: Tensor


def distance(balanced_accuracy: float) -> float:
    """``max(0, 2 BalAcc − 1)``: 0 for a discriminator that guesses, 1 for one that is never wrong."""
    return max(0.0, 2.0 * balanced_accuracy - 1.0)


def training_size(sizes: Iterable[int], max_train: int) -> int:
    """m_train: half of the smallest of these clients, at most ``max_train``."""
    return min(min(sizes) // 2, max_train)


def spread_order(groups: Tensor, draws: torch.Generator) -> Tensor:
    """A random order of samples in which every group is spread evenly, so that any beginning is stratified.

    The k-th of a group's n samples is placed at ``(k + u) / n`` of the way, k from 0, with one u in [0, 1) per group.

    Args:
        groups: the group of each sample (its class; all alike for a plain random order), integers [n].
        draws: source of the randomness, on the CPU.

    Returns:
        The positions of the samples in that order, int64 [n], on the CPU.
    """
    shuffled = torch.randperm(len(groups), generator=draws)
    _, labels, counts = groups.cpu()[shuffled].unique(return_inverse=True, return_counts=True)
    by_group = labels.argsort(stable=True)
    first = counts.cumsum(0) - counts
    rank = torch.arange(len(groups)) - first.repeat_interleave(counts)
    place = (rank + torch.rand(len(counts), generator=draws).repeat_interleave(counts)) / counts.repeat_interleave(
        counts
    )
    return shuffled[by_group[place.argsort(stable=True)]]


def pairwise_distances(
    features: Sequence[Tensor] | Mapping[int, Tensor],
    settings: DiscriminatorSettings | None = None,
    *,
    groups: Sequence[Tensor] | Mapping[int, Tensor] | None = None,
    num_clients: int | None = None,
    pairs: Iterable[Pair] | None = None,
    seed: int = 0,
    reduce: Reduce | None = None,
) -> PairwiseDistances:
    """Train a discriminator for every pair of clients, all pairs together.

    A client's samples are in the same random order in all of its pairs: the first m train, those that follow validate.

    Args:
        features: features and encoded labels of each client's samples, floating, [n_i, d] with n_i >= 4, all on one
            device; one entry per client, or with ``reduce`` those of the clients that this process holds, by client.
        settings: how to train; ``None`` for the defaults.
        groups: the class of each sample, integers [n_i]; training and validation samples are then stratified.
        num_clients: N; needed with ``reduce``.
        pairs: the pairs to measure, ``None`` for all; for a client that joins, its pairs with the others.
        seed: of the first weights and the order of samples.
        reduce: sums a tensor over processes. Every process calls this function with the same arguments but
            ``features`` and ``groups``, each client in one process.

    Returns:
        Distances and how they came about, the same in all processes.

    Raises:
        ConfigurationError: clients, pairs or shapes do not go together, or a client has fewer than 4 samples.
        DataError: a client's features are not all finite.
        TrainingError: a discriminator's loss is not finite.
    """
    settings = settings or DiscriminatorSettings()
    held = dict(features) if isinstance(features, Mapping) else dict(enumerate(features))
    classes = None if groups is None else dict(groups) if isinstance(groups, Mapping) else dict(enumerate(groups))
    if reduce is not None and num_clients is None:
        raise ConfigurationError("num_clients=None with reduce: say how many clients there are in all processes.")
    count = len(held) if num_clients is None else num_clients
    sizes, num_features = _agree(held, classes, count, reduce)
    plan = {
        pair: training_size(sizes if settings.shared_size else [sizes[client] for client in pair], settings.max_train)
        for pair in _checked_pairs(pairs, count)
    }
    device = _device_of(held)
    survey = _Survey(
        samples={
            client: _prepared(x, None if classes is None else classes[client], generator(seed, client, _PURPOSE))
            for client, x in held.items()
        },
        first=first_weights(num_features, settings.hidden, generator(seed, _PURPOSE)).to(device),
        sizes=sizes,
        apart=_pairs_apart(plan, held, reduce),
        settings=settings,
        reduce=reduce,
    )
    found: dict[Pair, _Outcome] = {}
    for chunk, size in survey.chunks(plan):
        found |= survey.train(chunk, size)
    return _summarize(found, count, settings, 4 * len(survey.first))


def _prepared(x: Tensor, groups: Tensor | None, draws: torch.Generator) -> Tensor:
    """A client's samples in the order of :func:`spread_order`, each followed by a 1 for b1, float32 [n, d + 1]."""
    order = spread_order(torch.zeros(len(x)) if groups is None else groups, draws).to(x.device)
    return torch.nn.functional.pad(x.index_select(0, order).float(), (0, 1), value=1.0)


def _checked_pairs(pairs: Iterable[Pair] | None, count: int) -> list[Pair]:
    if pairs is None:
        return [(i, j) for i in range(count) for j in range(i + 1, count)]
    given = list(pairs)
    for i, j in given:
        if i == j or not 0 <= min(i, j) <= max(i, j) < count:
            raise ConfigurationError(f"pairs has ({i}, {j}): give two different clients from 0 to {count - 1}.")
    return sorted({(min(pair), max(pair)) for pair in given})


def _agree(
    held: dict[int, Tensor], classes: dict[int, Tensor] | None, count: int, reduce: Reduce | None
) -> tuple[list[int], int]:
    """All clients' numbers of samples, and the number of features. Every process finds the same faults."""
    table = torch.zeros(count + 1, 5, dtype=torch.int64)
    for client, x in held.items():
        if not 0 <= client < count:
            table[count, 0] = 1 + abs(client)
            continue
        matrix = x.ndim == 2 and x.is_floating_point() and x.shape[1] > 0
        told = classes is None or (client in classes and classes[client].shape == x.shape[:1])
        table[client] = torch.tensor(
            [1, len(x) if matrix else 0, x.shape[1] if matrix else 0, int(torch.isfinite(x).all()), int(told)]
        )
    if reduce is not None:
        table = reduce(table.to(_device_of(held))).cpu()
    if table[count, 0]:
        raise ConfigurationError(f"features are keyed by client, from 0 to {count - 1}: got {sorted(held)} here.")
    for client, (holders, size, width, finite, told) in enumerate(table[:count].tolist()):
        if holders != 1:
            raise ConfigurationError(
                f"the features of client {client} are given {holders} times: each client needs exactly one process that"
                " gives them."
            )
        if not width or width != table[0, 2]:
            found = f"{width} features, client 0 has {int(table[0, 2])}" if width else "no floating matrix [n, d]"
            raise ConfigurationError(f"client {client} has {found}: encode all clients' samples alike.")
        if size < _MIN_SAMPLES:
            raise ConfigurationError(
                f"client {client} has {size} training samples: a discriminator trains on half of them and is tested on"
                f" the others, so a client needs at least {_MIN_SAMPLES}. Give it more data, or leave it out."
            )
        if not finite:
            raise DataError(f"the features of client {client} have values that are NaN or infinite: mend its data.")
        if not told:
            raise ConfigurationError(f"groups of client {client}: give one class per sample, [{size}].")
    return table[:count, 1].tolist(), int(table[0, 2])


def _device_of(held: dict[int, Tensor]) -> torch.device:
    return next((x.device for x in held.values()), torch.device("cpu"))


def _pairs_apart(pairs: Iterable[Pair], held: dict[int, Tensor], reduce: Reduce | None) -> set[Pair]:
    """The pairs whose clients are in different processes."""
    if reduce is None:
        return set()
    asked = list(pairs)
    together = torch.tensor([float(i in held and j in held) for i, j in asked] + [1.0], device=_device_of(held))
    return {pair for pair, flag in zip(asked, reduce(together).tolist(), strict=False) if not flag}


@dataclass
class _Outcome:
    """A pair's discriminator: its balanced accuracy in the round that counts, that round (0: none yet), and rounds."""

    accuracy: float = math.nan
    best_round: int = 0
    rounds: int = 0
    score: float = -math.inf
    stale: int = 0

    def stops(self, accuracy: float, loss: float, rounds: int, settings: DiscriminatorSettings) -> bool:
        """Take note of an evaluation; whether it was the last."""
        score = -loss if settings.monitor == "loss" else accuracy
        self.rounds, perfect = rounds, accuracy == 1
        self.stale += 1
        if math.isfinite(loss) and (score > self.score or perfect):
            self.score, self.stale, self.accuracy, self.best_round = score, 0, accuracy, rounds
        # Nothing is better than never to be wrong: going on could only use up the patience.
        return perfect or rounds + settings.eval_every > settings.max_rounds or self.stale >= settings.patience


@dataclass(frozen=True)
class _Survey:
    """What the discriminators of one call share.

    Attributes:
        samples: those of the clients that this process holds, in order, float32 [n, d + 1].
        first: the server's first weights.
        sizes: all clients' numbers of samples.
        apart: pairs whose clients are in different processes.
        settings: how to train.
        reduce: sums over processes.
    """

    samples: dict[int, Tensor]
    first: Tensor
    sizes: list[int]
    apart: set[Pair]
    settings: DiscriminatorSettings
    reduce: Reduce | None

    def chunks(self, plan: dict[Pair, int]) -> Iterator[tuple[list[Pair], int]]:
        """Pairs with the same number of training samples, as many as memory is meant to hold: the same everywhere."""
        limit = _CPU_CHUNK_BYTES if self.first.device.type == "cpu" else _GPU_CHUNK_BYTES
        for size in sorted(set(plan.values())):
            pairs = [pair for pair, own in plan.items() if own == size]
            room = max(1, limit // (4 * (3 * len(self.first) + 4 * size * self.settings.hidden)))
            yield from ((pairs[start : start + room], size) for start in range(0, len(pairs), room))

    @torch.no_grad()
    def train(self, pairs: list[Pair], size: int) -> dict[Pair, _Outcome]:
        """Train pairs with ``size`` training samples of each side until each has stopped."""
        outcomes = {pair: _Outcome() for pair in pairs}
        weights, rounds = self.first.repeat(len(pairs), 1), 0
        while pairs:
            sides = self._sides(pairs)
            for _ in range(self.settings.eval_every):
                weights = self._round(weights, pairs, sides, size)
            rounds += self.settings.eval_every
            kept = [
                row
                for row, (pair, judged) in enumerate(zip(pairs, self._judged(weights, pairs, sides, size), strict=True))
                if not outcomes[pair].stops(*judged, rounds, self.settings)
            ]
            pairs, weights = [pairs[row] for row in kept], weights[kept]
        return outcomes

    def _sides(self, pairs: list[Pair]) -> list[tuple[Tensor, Tensor, Tensor]]:
        """Of each client here: its samples, the rows of its pairs, int64 [S], and its labels in them, float32 [S]."""
        sides = []
        for client in sorted({client for pair in pairs for client in pair} & self.samples.keys()):
            own = [
                (row, float(client == first)) for row, (first, second) in enumerate(pairs) if client in (first, second)
            ]
            rows, labels = torch.tensor(own, device=self.first.device).unbind(1)
            sides.append((self.samples[client], rows.long(), labels))
        return sides

    def _round(
        self, weights: Tensor, pairs: list[Pair], sides: list[tuple[Tensor, Tensor, Tensor]], size: int
    ) -> Tensor:
        """A step of every client in all of its pairs, and each pair's average."""
        total = torch.zeros_like(weights)
        for samples, rows, labels in sides:
            local = weights.index_select(0, rows)
            local_step_(local, samples[:size], labels, self.settings.hidden, self.settings.learning_rate)
            total.index_add_(0, rows, local)
        if crossing := [row for row, pair in enumerate(pairs) if pair in self.apart]:
            assert self.reduce is not None
            total[crossing] = self.reduce(total[crossing])
        return total.mul_(0.5)

    def _judged(
        self, weights: Tensor, pairs: list[Pair], sides: list[tuple[Tensor, Tensor, Tensor]], size: int
    ) -> list[tuple[float, float]]:
        """Balanced accuracy and loss of each pair on its validation samples."""
        most = self.settings.max_validation
        table = weights.new_zeros(len(pairs), 2, 2)  # of either side, what ``evaluate`` returns
        for samples, rows, labels in sides:
            found = evaluate(weights.index_select(0, rows), samples[size : size + most], labels, self.settings.hidden)
            table[rows, 1 - labels.long()] = found
        if self.reduce is not None:
            table = self.reduce(table)
        judged = []
        for (i, j), ((first, first_loss), (second, second_loss)) in zip(pairs, table.tolist(), strict=True):
            first, second = first / min(self.sizes[i] - size, most), second / min(self.sizes[j] - size, most)
            judged.append(((first + second) / 2, (first_loss + second_loss) / 2))
        return judged


def _summarize(
    found: dict[Pair, _Outcome], count: int, settings: DiscriminatorSettings, network_bytes: int
) -> PairwiseDistances:
    accuracies = torch.full((count, count), math.nan, dtype=torch.float64)
    distances = accuracies.clone().fill_diagonal_(0.0)
    rounds = torch.full((count, count), -1, dtype=torch.int64)
    best_rounds = rounds.clone()
    for (i, j), outcome in found.items():
        if not outcome.best_round:
            raise TrainingError(
                f"the discriminator of clients {i} and {j} has a loss that is not finite:"
                f" FedCollab.discriminator.learning_rate={settings.learning_rate} is too high for these features. Lower"
                " it, or scale them."
            )
        for where in ((i, j), (j, i)):
            accuracies[where], distances[where] = outcome.accuracy, distance(outcome.accuracy)
            rounds[where], best_rounds[where] = outcome.rounds, outcome.best_round
    traffic = network_bytes * rounds.clamp(min=0).sum(1)
    return PairwiseDistances(distances, accuracies, rounds, best_rounds, traffic, traffic)
