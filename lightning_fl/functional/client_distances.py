"""Distances between clients' data, estimated federatedly: FedCollab's first step.

Bao et al., "Optimizing the Collaboration Structure in Cross-Silo Federated Learning", ICML 2023,
https://arxiv.org/abs/2306.06508, algorithm 1. For every pair of clients a discriminator is trained without bringing
their data together (:mod:`lightning_fl.functional.client_discriminator`); then ``D_ij = max(0, 2 BalAcc − 1)`` with its
balanced accuracy on samples that were not trained on. All pairs of the same shape are trained together.

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
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch
from torch import Tensor

from lightning_fl.errors import ConfigurationError, DataError, TrainingError
from lightning_fl.functional.client_discriminator import (
    Discriminator,
    DiscriminatorBatch,
    DiscriminatorSettings,
    FirstWeights,
    Reduce,
    Side,
)
from lightning_fl.seeding import generator

__all__ = [
    "DiscriminatorSettings",
    "PairwiseDistances",
    "distance",
    "pairwise_distances",
    "span_basis",
    "spread_order",
    "training_size",
]

Pair = tuple[int, int]

_MIN_SAMPLES = 4
# Memory of the pairs trained at once: what a CPU's cache holds, or what keeps an accelerator (or a network) busy.
_CACHE_BYTES, _BULK_BYTES = 2**22, 2**29


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


def span_basis(samples: Tensor, draws: torch.Generator) -> tuple[Tensor, Tensor]:
    """An orthonormal basis that tells of samples what they span and nothing else.

    The basis of a plain QR decomposition begins with the first sample itself. Here it is the Q of the projections of
    m random vectors, the same ones for all clients, onto the span: a function of the span, whatever samples span it.

    Args:
        samples: X, floating [m, d], m <= d.
        draws: source of the random vectors, on the CPU.

    Returns:
        Qᵀ [m, d] and R [m, m] with ``X = (Q R)ᵀ``, in the type of ``samples``; computed in float64.
    """
    size, width = samples.shape
    vectors = torch.randn(width, size, dtype=torch.float64, generator=draws).to(samples.device)
    basis, factor = torch.linalg.qr(samples.double().T)
    turn, triangle = torch.linalg.qr(basis.T @ vectors)
    turn = turn * torch.where(triangle.diagonal() < 0, -1.0, 1.0)  # signs would depend on the samples
    return (basis @ turn).T.to(samples.dtype).contiguous(), (turn.T @ factor).to(samples.dtype)


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
    plan = [
        (pair, training_size(sizes if settings.shared_size else [sizes[client] for client in pair], settings.max_train))
        for pair in _checked_pairs(pairs, count)
    ]
    threads = torch.get_num_threads()
    # Matrices this small gain nothing from more threads and could differ in bits: threads share the pairs instead.
    torch.set_num_threads(1)
    try:
        survey = _Survey(held, classes, sizes, num_features, plan, settings, seed, reduce)
        found = survey.measure(threads)
    finally:
        torch.set_num_threads(threads)
    return _summarize(found, plan, sizes, settings, survey.traffic(found))


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


class _Survey:
    """The discriminators of one call: which samples, which coordinates, which process."""

    @torch.no_grad()
    def __init__(
        self,
        held: dict[int, Tensor],
        classes: dict[int, Tensor] | None,
        sizes: list[int],
        num_features: int,
        plan: list[tuple[Pair, int]],
        settings: DiscriminatorSettings,
        seed: int,
        reduce: Reduce | None,
    ) -> None:
        self.sizes, self.num_features, self.plan = sizes, num_features, plan
        self.settings, self.reduce, self.device = settings, reduce, _device_of(held)
        self.first = FirstWeights(num_features, settings.hidden, seed, self.device)
        wanted: dict[int, set[int]] = {}  # the numbers of training samples in a client's pairs
        for pair, size in plan:
            for client in pair:
                wanted.setdefault(client, set()).add(size)
        self.samples: dict[int, Tensor] = {}
        self.starts: dict[int, Tensor] = {}
        self.bases: dict[tuple[int, int], Tensor] = {}  # by client and m: Qᵀ [m, d]
        self.factors: dict[tuple[int, int], Tensor] = {}  # R [m, m]
        self.coordinates: dict[tuple[int, int], Tensor] = {}  # the client's samples in its own basis, [n, m]
        for client in sorted(held.keys() & wanted.keys()):
            groups = torch.zeros(sizes[client]) if classes is None else classes[client]
            order = spread_order(groups, generator(seed, client, "client discriminator"))
            used = order[: max(wanted[client]) + settings.max_validation].to(self.device)
            x = self.samples[client] = held[client].index_select(0, used).float()
            self.starts[client] = torch.addmm(self.first.hidden_bias, x, self.first.weight)
            for size in sorted(filter(self.spans, wanted[client])):
                basis, self.factors[client, size] = span_basis(x[:size], generator(seed, size, "basis"))
                self.bases[client, size] = basis
                self.coordinates[client, size] = x @ basis.T
        self.apart = set() if reduce is None else self._exchange_bases(reduce)

    def spans(self, size: int) -> bool:
        """Whether coordinates in the span of the training samples are cheaper than the features themselves."""
        return 3 * size < 2 * self.num_features

    def _exchange_bases(self, reduce: Reduce) -> set[Pair]:
        """The pairs whose clients are in different processes; these get each other's bases."""
        together = torch.tensor([int(i in self.samples and j in self.samples) for (i, j), _ in self.plan] + [1])
        flags = reduce(together.to(self.device)).tolist()
        apart = [(pair, size) for (pair, size), flag in zip(self.plan, flags, strict=False) if not flag]
        for client, size in sorted({(client, size) for pair, size in apart if self.spans(size) for client in pair}):
            own = client in self.samples
            sent = self.bases[client, size] if own else torch.zeros(size, self.num_features, device=self.device)
            received = reduce(sent.clone())
            if not own:
                self.bases[client, size] = received
        return {pair for pair, _ in apart}

    def measure(self, num_threads: int) -> dict[Pair, list[int]]:
        """Samples of either side told rightly in the round that counts, that round, and the rounds trained."""
        found: dict[Pair, list[int]] = {}
        workers = num_threads if self.device.type == "cpu" else 1
        with ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            for size in sorted({size for _, size in self.plan}):
                pairs = [pair for pair, own in self.plan if own == size]
                here = [pair for pair in pairs if pair not in self.apart and pair[0] in self.samples]
                shares = [here[worker::workers] for worker in range(workers)]
                for part in pool.map(lambda share, size=size: self._train(share, size, None), shares):
                    found |= part
                found |= self._train([pair for pair in pairs if pair in self.apart], size, self.reduce)
        if self.reduce is None:
            return found
        # A pair that two processes trained is reported by the one that holds its first client.
        rows = [found[pair] if pair[0] in self.samples else [0, 0, 0, 0] for pair, _ in self.plan]
        table = self.reduce(torch.tensor([*rows, [0, 0, 0, 0]], device=self.device)).tolist()
        return {pair: row for (pair, _), row in zip(self.plan, table, strict=False)}

    def traffic(self, found: dict[Pair, list[int]]) -> tuple[Tensor, Tensor]:
        """Bytes that each client receives and sends, [N] each: bases once, then either side's changes of a round."""
        received = torch.zeros(len(self.sizes), dtype=torch.int64)
        sent, shown = received.clone(), set[tuple[int, int]]()
        for pair, size in self.plan:
            width = (size if self.spans(size) else self.num_features) + 1
            changes = found[pair][3] * ((width + 1) * self.settings.hidden + 1)
            basis = size * self.num_features if self.spans(size) else 0
            for client in pair:
                received[client] += changes + basis
                sent[client] += changes + (0 if (client, size) in shown else basis)
                shown.add((client, size))
        return 4 * received, 4 * sent

    @torch.no_grad()  # which holds in one thread
    def _train(self, pairs: list[Pair], size: int, reduce: Reduce | None) -> dict[Pair, list[int]]:
        """Train pairs of the same shape, as many at once as fit; one that stops makes room for the next."""
        hidden, width = self.settings.hidden, (size if self.spans(size) else self.num_features) + 1
        floats = 2 * size * (2 * width + 3 * hidden) + 2 * width * (size + 2 * hidden)
        bulk = reduce is not None or self.device.type != "cpu"
        room = max(2, (_BULK_BYTES if bulk else _CACHE_BYTES) // (4 * floats))
        waiting, active, found = deque(pairs), list[Discriminator](), dict[Pair, list[int]]()
        while waiting or active:
            while waiting and len(active) < room:
                active.append(self._discriminator(waiting.popleft(), size, width))
            batch = DiscriminatorBatch(active, size, width, self.settings, reduce)
            while not (stopped := batch.advance()):
                pass
            batch.write_back()
            found |= {item.pair: [*item.record, item.rounds] for item in active if item.pair in stopped}
            active = [item for item in active if item.pair not in stopped]
        return found

    def _discriminator(self, pair: Pair, size: int, width: int) -> Discriminator:
        first, second = (self._side(client, pair, size) if client in self.samples else None for client in pair)
        i, j = (min(self.sizes[client] - size, self.settings.max_validation) for client in pair)
        coordinates = 2 * width if self.spans(size) else width
        unchanged = torch.zeros(coordinates, self.settings.hidden, device=self.device)
        return Discriminator(pair, (first, second), (i, j), unchanged, self.first.output, self.first.bias)

    def _side(self, client: int, pair: Pair, size: int) -> Side:
        rows = size + min(self.sizes[client] - size, self.settings.max_validation)
        x, one = self.samples[client][:rows], torch.ones(rows, 1, device=self.device)  # one: the bias b1
        if self.spans(size):
            ours = self.coordinates[client, size][:rows]
            parts = [ours if other == client else x @ self.bases[other, size].T for other in pair]
            design = torch.cat([parts[0], one, parts[1], one], 1)
            spread = self.factors[client, size]
        else:
            design, spread = torch.cat([x, one], 1), x[:size].T
        return Side(design, self.starts[client][:rows], torch.cat([spread, one[:size].T]))


def _summarize(
    found: dict[Pair, list[int]],
    plan: list[tuple[Pair, int]],
    sizes: list[int],
    settings: DiscriminatorSettings,
    traffic: tuple[Tensor, Tensor],
) -> PairwiseDistances:
    count = len(sizes)
    accuracies = torch.full((count, count), math.nan, dtype=torch.float64)
    distances = accuracies.clone().fill_diagonal_(0.0)
    rounds = torch.full((count, count), -1, dtype=torch.int64)
    best_rounds = rounds.clone()
    for (i, j), size in plan:
        first, second, best_round, trained = found[i, j]
        if not best_round:
            raise TrainingError(
                f"the discriminator of clients {i} and {j} has a loss that is not finite:"
                f" learning_rate={settings.learning_rate} is too high for these features. Lower it, or scale them."
            )
        held_out = [min(sizes[client] - size, settings.max_validation) for client in (i, j)]
        accuracy = (first / held_out[0] + second / held_out[1]) / 2
        for where in ((i, j), (j, i)):
            accuracies[where], distances[where] = accuracy, distance(accuracy)
            rounds[where], best_rounds[where] = trained, best_round
    return PairwiseDistances(distances, accuracies, rounds, best_rounds, *traffic)
