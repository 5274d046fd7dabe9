"""Distances between clients' data, estimated federatedly: FedCollab's first step.

Bao et al., "Optimizing the Collaboration Structure in Cross-Silo Federated Learning", ICML 2023,
https://arxiv.org/abs/2306.06508, algorithm 1. Every pair of clients trains a discriminator federatedly; then
``D_ij = 2 BalAcc − 1`` with its balanced accuracy on validation samples.

Differs from the paper: LocalUpdate, which it does not specify, is one step on a batch. D is the mean of two
discriminators, one trained on the first m_train samples of each side and one on the last (cross-fitting), so all
samples of the smaller client train and validate. m_train is half of the smaller client of each pair; the authors' code
takes half of the smallest of all (``shared_size=True``), so that one tiny client leaves few training samples to all.
The paper evaluates the last round's discriminator; here the round with the lowest validation loss counts, or with
``monitor="balanced_accuracy"`` the one with the best balanced accuracy, which is optimistic.

D is not clipped at 0 (the authors clip it before they form coalitions): the objective is linear in D, so errors around
0 may cancel. Its standard error is that of one fold's validation samples: the errors of the two folds correlate, and
training adds an error of its own.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lightning_fl.callbacks.collaboration.discriminators import networks
from lightning_fl.core.errors import ConfigurationError, TrainingError
from lightning_fl.core.seeding import generator

Pair = tuple[int, int]

_MIN_SAMPLES = 4
_PURPOSE = "client discriminator"


@dataclass(frozen=True)
class PairwiseDistances:
    """Measured distances, symmetric, on the CPU. Pairs that were not measured have NaN, or -1 for a count."""

    distances: Tensor  #: D, float64 [N, N], 0 on the diagonal
    standard_errors: Tensor  #: of D, from one fold's validation samples, float64 [N, N]
    rounds: Tensor  #: trained in all folds, int64 [N, N]
    best_rounds: Tensor  #: chosen rounds, summed over folds, int64 [N, N]
    bytes_each_way: Tensor  #: of float32 weights that each client receives, and sends, int64 [N]


def distance(accuracies: tuple[float, float]) -> float:
    """``2 BalAcc − 1`` of the accuracies on both clients' samples: 0 for guessing, 1 for a perfect discriminator."""
    return accuracies[0] + accuracies[1] - 1.0


def distance_error(accuracies: tuple[float, float], counts: tuple[int, int]) -> float:
    """Standard error of :func:`distance` with ``counts`` samples: var D = var p + var q of two binomial shares.

    One right and one wrong sample are added to each (Agresti and Coull 1998), so that a share of 1 is not certain.
    """
    shares = [(share * count + 1) / (count + 2) for share, count in zip(accuracies, counts, strict=True)]
    return math.sqrt(sum(p * (1 - p) / (count + 2) for p, count in zip(shares, counts, strict=True)))


def training_size(sizes: Iterable[int], max_train: int | None = None) -> int:
    """m_train: half of the smallest of these clients, at most ``max_train``."""
    half = min(sizes) // 2
    return half if max_train is None else min(half, max_train)


def spread_order(groups: Tensor, draws: torch.Generator) -> Tensor:
    """A random order of samples that spreads every group evenly, so that any prefix is stratified.

    The k-th of a group's n samples is placed at ``(k + u) / n``, k from 0, with one u in [0, 1) per group. ``groups``
    are the samples' classes, integers [n]; returned are positions, int64 [n], on the CPU.
    """
    shuffled = torch.randperm(len(groups), generator=draws)
    _, labels, counts = groups.cpu()[shuffled].unique(return_inverse=True, return_counts=True)
    by_group = labels.argsort(stable=True)
    first = counts.cumsum(0) - counts
    rank = torch.arange(len(groups)) - first.repeat_interleave(counts)
    sizes = counts.repeat_interleave(counts)
    place = (rank + torch.rand(len(counts), generator=draws).repeat_interleave(counts)) / sizes
    return shuffled[by_group[place.argsort(stable=True)]]


def pairwise_distances(
    features: Mapping[int, Tensor],
    settings: networks.DiscriminatorSettings,
    *,
    groups: Mapping[int, Tensor],
    num_clients: int,
    pairs: Iterable[Pair],
    seed: int,
    reduce: networks.Reduce,
    names: Sequence[str] = (),
) -> PairwiseDistances:
    """Train a discriminator for every one of some pairs, all together; the same result in all processes.

    A client's samples have the same random order in all of its pairs; :class:`.Lane` defines the folds.

    Args:
        features: hosted client -> features and encoded labels, floating, [n_i, d] with n_i >= 4, all on one device.
        groups: client -> the class of each sample, integers [n_i], to stratify training and validation samples.
        num_clients: N.
        seed: of the initial weights and the order of samples.
        reduce: sums a tensor over processes, which all call this function with their clients' samples.
        names: of the clients, for errors.

    Raises:
        ConfigurationError: a client has fewer than 4 samples.
        TrainingError: a discriminator's loss is not finite.
    """
    sizes, num_features = _sizes(features, num_clients, reduce)
    if sizes[least := min(range(num_clients), key=sizes.__getitem__)] < _MIN_SAMPLES:
        what = f"{names[least] if names else f'client {least}'} has {sizes[least]} training samples"
        raise ConfigurationError(f"{what}: a discriminator needs at least {_MIN_SAMPLES}. Leave the client out.")
    asked = sorted({(min(pair), max(pair)) for pair in pairs})
    lanes = [
        networks.Lane(
            *pair, fold, training_size(sizes if settings.shared_size else [sizes[i] for i in pair], settings.max_train)
        )
        for pair in asked
        for fold in range(settings.folds)
    ]
    device = _device_of(features)
    together = torch.tensor([float(i in features and j in features) for i, j in asked] + [1.0], device=device)
    in_one_process = reduce(together).tolist()
    training = networks.PairTraining(
        samples={
            client: _prepared(x, groups[client], generator(seed, client, _PURPOSE)) for client, x in features.items()
        },
        first=networks.first_weights(num_features, settings.hidden, generator(seed, _PURPOSE)).to(device),
        sizes=sizes,
        apart={pair for pair, flag in zip(asked, in_one_process, strict=False) if not flag},
        settings=settings,
        reduce=reduce,
    )
    found: dict[networks.Lane, networks.Outcome] = {}
    for chunk, batch_size in training.chunks(lanes):
        found |= training.train(chunk, batch_size)
    return _summarize(found, training)


def _prepared(x: Tensor, groups: Tensor, draws: torch.Generator) -> Tensor:
    """Samples in the order of :func:`spread_order`, each followed by a 1 for b1, float32 [n, d + 1]."""
    order = spread_order(groups, draws).to(x.device)
    return torch.nn.functional.pad(x.index_select(0, order).float(), (0, 1), value=1.0)


def _sizes(held: Mapping[int, Tensor], count: int, reduce: networks.Reduce) -> tuple[list[int], int]:
    """Every client's number of samples, and the number of features."""
    table = torch.zeros(count, 2, dtype=torch.int64)
    for client, x in held.items():
        table[client] = torch.tensor(x.shape)
    table = reduce(table.to(_device_of(held))).cpu()
    return table[:, 0].tolist(), int(table[:, 1].max())


def _device_of(held: Mapping[int, Tensor]) -> torch.device:
    return next((x.device for x in held.values()), torch.device("cpu"))


def _summarize(found: dict[networks.Lane, networks.Outcome], training: networks.PairTraining) -> PairwiseDistances:
    count = len(training.sizes)
    distances = torch.full((count, count), math.nan, dtype=torch.float64).fill_diagonal_(0.0)
    errors = distances.clone()
    rounds = torch.full((count, count), -1, dtype=torch.int64)
    best_rounds = rounds.clone()
    by_pair: dict[Pair, dict[networks.Lane, networks.Outcome]] = {}
    for lane, outcome in found.items():
        by_pair.setdefault(lane[:2], {})[lane] = outcome
    for (i, j), folds in by_pair.items():
        if not all(outcome.best_round for outcome in folds.values()):
            what = f"the loss of the discriminator of clients {i} and {j} is not finite"
            rate = training.settings.learning_rate
            raise TrainingError(f"{what}: lower FedCollab.discriminator.learning_rate={rate}, or scale the features.")
        first, second = (sum(outcome.accuracies[side] for outcome in folds.values()) / len(folds) for side in (0, 1))
        counts = training.num_held_out(next(iter(folds)))  # the same in both folds, which are not independent
        for where in ((i, j), (j, i)):
            distances[where] = distance((first, second))
            errors[where] = distance_error((first, second), counts)
            rounds[where] = sum(outcome.rounds for outcome in folds.values())
            best_rounds[where] = sum(outcome.best_round for outcome in folds.values())
    traffic = 4 * len(training.first) * rounds.clamp(min=0).sum(1)
    return PairwiseDistances(distances, errors, rounds, best_rounds, traffic)
