"""Client discriminators of all pairs: trained together against one pair after another, at the same accuracy.

    [LIGHTNING_FL_DATA=...] uv run --group bench python benchmarks/distances.py [--clients 20] [--repeats 3]

Fashion-MNIST (784 pixels, projected to 128, and a one-hot label) in two label-shifted halves of clients, or random
images of that shape where LIGHTNING_FL_DATA does not have ``fashionmnist.npz``. The references are plain loops over
pairs with ``nn.Module``, autograd and ``torch.optim.SGD``: "clients averaged" trains a copy of the server's network for
each client and averages them, as the algorithm is written; "joint step" takes one step on the mean of both clients'
losses, which is the same and the cheapest way to do it pair by pair. All arms start from the same weights, use the same
samples and stop by the same rule; they take turns in one process with one thread, every repeat with another seed.
"""

import argparse
import copy
import os
import statistics
import time
from collections.abc import Callable
from itertools import combinations
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lightning_fl.callbacks.collaboration.discriminators.distances import (
    PairwiseDistances,
    distance,
    pairwise_distances,
    spread_order,
    training_size,
)
from lightning_fl.callbacks.collaboration.discriminators.inputs import random_projection
from lightning_fl.callbacks.collaboration.discriminators.networks import DiscriminatorSettings, first_weights, layers
from lightning_fl.core.seeding import generator

NUM_CLASSES = 10

#: Makes a round of a network, given both clients' batches, from the learning rate.
Step = Callable[[nn.Module, float], Callable[[Tensor, Tensor], None]]


def pool(num_samples: int) -> tuple[Tensor, Tensor, str]:
    """Images [n, 784] from 0 to 1 and their classes [n]."""
    path = Path(os.environ.get("LIGHTNING_FL_DATA", ".")) / "fashionmnist.npz"
    if path.is_file():
        with np.load(path) as content:
            images, labels = content["train_images"][:num_samples], content["train_labels"][:num_samples]
        return torch.tensor(images).flatten(1) / 255, torch.tensor(labels).flatten().long(), "Fashion-MNIST"
    draws = generator(0, "images")
    labels = torch.randint(NUM_CLASSES, (num_samples,), generator=draws)
    centres = torch.rand(NUM_CLASSES, 784, generator=draws)
    noise = torch.rand(num_samples, 784, generator=draws)
    return (centres[labels] + noise) / 2, labels, "random images"


def clients(sizes: list[int]) -> tuple[list[Tensor], list[Tensor], str]:
    """Inputs of discriminators and classes: the first half of the clients has no class 0, the second no class 1."""
    images, labels, source = pool(60_000)
    images = random_projection(images / images.square().sum(1).mean().sqrt(), generator(0, "feature projection"))
    inputs = torch.cat([images, F.one_hot(labels, NUM_CLASSES).float()], 1)
    order = torch.randperm(len(labels), generator=generator(0, "clients"))
    features, groups = [], []
    for client, size in enumerate(sizes):
        fits = labels[order] != (0 if client < len(sizes) // 2 else 1)
        chosen = order[fits][:size]
        order = order[~torch.isin(order, chosen)]
        features.append(inputs[chosen])
        groups.append(labels[chosen])
    return features, groups, source


def one_by_one(
    features: list[Tensor], groups: list[Tensor], settings: DiscriminatorSettings, seed: int, step: Step
) -> tuple[Tensor, int]:
    """Distances, and the rounds of all pairs."""
    count = len(features)
    ordered = [
        x[spread_order(classes, generator(seed, client, "client discriminator"))]
        for client, (x, classes) in enumerate(zip(features, groups, strict=True))
    ]
    first = first_weights(features[0].shape[1], settings.hidden, generator(seed, "client discriminator"))
    distances, total = torch.zeros(count, count, dtype=torch.float64), 0
    for i in range(count):
        for j in range(i + 1, count):
            pair = ordered[i], ordered[j]
            folds = [one_pair(*pair, first, settings, step)]
            folds.append(one_pair(*(x.flip(0) for x in pair), first, settings, step))
            distances[i, j] = distances[j, i] = statistics.fmean(distance(accuracies) for accuracies, _ in folds)
            total += sum(rounds for _, rounds in folds)
    return distances, total


def one_pair(
    x: Tensor, y: Tensor, first: Tensor, settings: DiscriminatorSettings, step: Step
) -> tuple[tuple[float, float], int]:
    """Both clients' accuracies in the round with the lowest validation loss, and the rounds trained."""
    network = nn.Sequential(nn.Linear(x.shape[1], settings.hidden), nn.ReLU(), nn.Linear(settings.hidden, 1))
    inner, output, bias = (part[0] for part in layers(first.unsqueeze(0), settings.hidden))
    for parameter, value in zip(network.parameters(), (inner[:-1].T, inner[-1], output, bias), strict=True):
        parameter.data.copy_(value)
    m = training_size((len(x), len(y)), settings.max_train)
    size = min(m, settings.batch_size)
    one_round = step(network, settings.learning_rate)
    held = [part[m : m + settings.max_validation] for part in (x, y)]
    validation = torch.cat(held)
    lowest, best, stale = float("inf"), (0.0, 0.0), 0
    for number in range(1, settings.max_rounds + 1):
        rows = torch.arange((number - 1) * size, number * size) % m
        one_round(x[rows], y[rows])
        if number % settings.eval_every:
            continue
        with torch.no_grad():
            first_logits, second_logits = network(validation).squeeze(1).split([len(part) for part in held])
        loss = float(F.softplus(-first_logits).mean() + F.softplus(second_logits).mean())
        accuracies = float((first_logits > 0).double().mean()), float((second_logits <= 0).double().mean())
        stale += 1
        if loss < lowest or min(accuracies) == 1:
            lowest, best, stale = loss, accuracies, 0
        if min(accuracies) == 1 or stale == settings.patience:
            break
    return best, number


def joint_step(network: nn.Module, learning_rate: float) -> Callable[[Tensor, Tensor], None]:
    """A round as one step on both clients' samples."""
    optimizer = torch.optim.SGD(network.parameters(), lr=learning_rate)

    def one_round(first: Tensor, second: Tensor) -> None:
        targets = torch.cat([torch.ones(len(first)), torch.zeros(len(second))])
        optimizer.zero_grad()
        F.binary_cross_entropy_with_logits(network(torch.cat([first, second])).squeeze(1), targets).backward()
        optimizer.step()

    return one_round


def clients_averaged(network: nn.Module, learning_rate: float) -> Callable[[Tensor, Tensor], None]:
    """A round as a step of each client on its own copy of the network, and their average."""
    copies = [copy.deepcopy(network) for _ in range(2)]
    optimizers = [torch.optim.SGD(local.parameters(), lr=learning_rate) for local in copies]

    def one_round(*batches: Tensor) -> None:
        for local, optimizer, inputs, label in zip(copies, optimizers, batches, (1.0, 0.0), strict=True):
            local.load_state_dict(network.state_dict())
            optimizer.zero_grad()
            target = torch.full((len(inputs),), label)
            F.binary_cross_entropy_with_logits(local(inputs).squeeze(1), target).backward()
            optimizer.step()
        with torch.no_grad():
            for shared, first, second in zip(network.parameters(), *(c.parameters() for c in copies), strict=True):
                torch.add(first, second, out=shared.data).mul_(0.5)

    return one_round


def measured(
    features: list[Tensor], settings: DiscriminatorSettings, groups: list[Tensor], seed: int
) -> PairwiseDistances:
    """The package's distances between all clients, in this process."""
    return pairwise_distances(
        dict(enumerate(features)),
        settings,
        groups=dict(enumerate(groups)),
        num_clients=len(features),
        pairs=combinations(range(len(features)), 2),
        seed=seed,
        reduce=lambda tensor: tensor,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--max-train", type=int, default=None, help="m_train at most")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    count, settings = arguments.clients, DiscriminatorSettings(max_train=arguments.max_train)
    large, small = [2100 * 20 // max(20, count)], [14]
    cases = {
        "equal clients": large * count,
        "half of them with 14 samples": large * (count - count // 2) + small * (count // 2),
    }
    measured([torch.rand(20, 8) for _ in range(3)], settings, [torch.zeros(20)] * 3, 0)  # load what is loaded once
    references = {"clients averaged": clients_averaged, "joint step": joint_step}
    columns = "".join(f" {name}, s | ratio |" for name in references)
    print(f"| clients | pairs | rounds | together, s |{columns} largest difference of D |\n|{'---|' * 9}")
    for name, sizes in cases.items():
        features, groups, source = clients(sizes)
        times: dict[str, list[float]] = {arm: [] for arm in ("together", *references)}
        differences, rounds = [], []
        for seed in range(arguments.repeats):
            begin = time.perf_counter()
            found = measured(features, settings, groups, seed)
            times["together"].append(time.perf_counter() - begin)
            for arm, step in references.items():
                begin = time.perf_counter()
                reference, total = one_by_one(features, groups, settings, seed, step)
                times[arm].append(time.perf_counter() - begin)
                differences.append(float((found.distances - reference).abs().max()))
            rounds.append(total)
        cells = [f"{name}, {source}", f"{count * (count - 1) // 2}", f"{statistics.median(rounds):.0f}"]
        cells.append(f"{statistics.median(times['together']):.1f}")
        for arm in references:
            ratios = [slow / fast for slow, fast in zip(times[arm], times["together"], strict=True)]
            cells += [f"{statistics.median(times[arm]):.1f}", f"{statistics.median(ratios):.1f}"]
        print(f"| {' | '.join(cells)} | {max(differences):.4f} |", flush=True)


if __name__ == "__main__":
    main()
