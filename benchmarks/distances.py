"""Client discriminators of all pairs: trained together against one pair after another, at the same accuracy.

    [LIGHTNING_FL_DATA=...] uv run --group bench python benchmarks/distances.py [--clients 20] [--repeats 3]

Fashion-MNIST (784 pixels and a one-hot label) in two label-shifted halves of clients, or random images of that shape
where LIGHTNING_FL_DATA does not have ``fashionmnist.npz``. The reference is a plain loop: per pair an ``nn.Module``,
``torch.optim.SGD`` and autograd, both sides' losses averaged in one step, which is the same as averaging two clients'
weights after a step each and cheaper. Both start from the same weights, use the same samples and stop by the same
rule. The arms take turns in one process with one thread, every repeat with another seed.
"""

import argparse
import os
import statistics
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lightning_fl.functional.client_discriminator import FirstWeights
from lightning_fl.functional.client_distances import (
    DiscriminatorSettings,
    distance,
    pairwise_distances,
    spread_order,
    training_size,
)
from lightning_fl.seeding import generator

NUM_CLASSES = 10


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
    images = images / images.square().sum(1).mean().sqrt()
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
    features: list[Tensor], groups: list[Tensor], settings: DiscriminatorSettings, seed: int
) -> tuple[Tensor, int]:
    """Distances, and the rounds of all pairs."""
    count = len(features)
    ordered = [
        x[spread_order(classes, generator(seed, client, "client discriminator"))]
        for client, (x, classes) in enumerate(zip(features, groups, strict=True))
    ]
    first = FirstWeights(features[0].shape[1], settings.hidden, seed, torch.device("cpu"))
    distances, total = torch.zeros(count, count, dtype=torch.float64), 0
    for i in range(count):
        for j in range(i + 1, count):
            accuracy, rounds = one_pair(ordered[i], ordered[j], first, settings)
            distances[i, j] = distances[j, i] = distance(accuracy)
            total += rounds
    return distances, total


def one_pair(x: Tensor, y: Tensor, first: FirstWeights, settings: DiscriminatorSettings) -> tuple[float, int]:
    """Balanced accuracy in the round with the lowest validation loss, and the rounds trained."""
    network = nn.Sequential(nn.Linear(x.shape[1], settings.hidden), nn.ReLU(), nn.Linear(settings.hidden, 1))
    for parameter, value in zip(
        network.parameters(),
        (first.weight.T, first.hidden_bias, first.output.unsqueeze(0), first.bias),
        strict=True,
    ):
        parameter.data.copy_(value)
    optimizer = torch.optim.SGD(network.parameters(), lr=settings.learning_rate)
    m = training_size((len(x), len(y)), settings.max_train)
    train = torch.cat([x[:m], y[:m]])
    held = [part[m : m + settings.max_validation] for part in (x, y)]
    validation = torch.cat(held)
    targets = torch.cat([torch.ones(m), torch.zeros(m)])
    lowest, best, stale = float("inf"), 0.0, 0
    for step in range(1, settings.max_rounds + 1):
        optimizer.zero_grad()
        F.binary_cross_entropy_with_logits(network(train).squeeze(1), targets).backward()
        optimizer.step()
        if step % settings.eval_every:
            continue
        with torch.no_grad():
            first_logits, second_logits = network(validation).squeeze(1).split([len(part) for part in held])
        loss = float(F.softplus(-first_logits).mean() + F.softplus(second_logits).mean())
        accuracy = float((first_logits > 0).double().mean() + (second_logits <= 0).double().mean()) / 2
        stale += 1
        if loss < lowest or accuracy == 1:
            lowest, best, stale = loss, accuracy, 0
        if accuracy == 1 or stale == settings.patience:
            break
    return best, step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--max-train", type=int, default=DiscriminatorSettings.max_train, help="m_train at most")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    count, settings = arguments.clients, DiscriminatorSettings(max_train=arguments.max_train)
    large, small = [2100 * 20 // max(20, count)], [14]
    cases = {
        "equal clients": large * count,
        "half of them with 14 samples": large * (count - count // 2) + small * (count // 2),
    }
    pairwise_distances([torch.rand(20, 8) for _ in range(3)])  # load what is loaded once
    print("| clients | pairs | rounds | together, s | one by one, s | ratio | largest difference of D |")
    print("|---|---|---|---|---|---|---|")
    for name, sizes in cases.items():
        features, groups, source = clients(sizes)
        ours, theirs, differences, rounds = [], [], [], []
        for seed in range(arguments.repeats):
            begin = time.perf_counter()
            found = pairwise_distances(features, settings, groups=groups, seed=seed)
            middle = time.perf_counter()
            reference, total = one_by_one(features, groups, settings, seed)
            ours.append(middle - begin)
            theirs.append(time.perf_counter() - middle)
            differences.append(float((found.distances - reference).abs().max()))
            rounds.append(total)
        ratio = statistics.median(slow / fast for slow, fast in zip(theirs, ours, strict=True))
        figures = f"{statistics.median(ours):.1f} | {statistics.median(theirs):.1f} | {ratio:.1f}"
        pairs = count * (count - 1) // 2
        print(
            f"| {name}, {source} | {pairs} | {statistics.median(rounds):.0f} | {figures} | {max(differences):.4f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
