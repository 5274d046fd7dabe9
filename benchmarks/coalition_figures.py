"""Coalitions, distances, graphs: HCCT's figures 3 and 5, FedCollab's 5 and 7 and table 5, DPFL's appendix G.2.

    LIGHTNING_FL_DATA=DATA uv run python benchmarks/coalition_figures.py FIGURE [--seeds 0 1 2]

Model, data and settings are the recipes'. Printed in Markdown: accuracy of the last round on test images, mean and
standard deviation over seeds, and differences paired by seed with 95 % t-intervals.

hcct3: ten clients, and none, one or two more after 10 and after 20 of 30 rounds. hcct5: HCCT's merging goes on, or
stops, at a given number of groups, in every round. fedcollab5: distances between clients of rotated images by four
methods, within and between the four angles. fedcollab7: a large client (0) joins after half of the rounds, or never, or
trains alone. fedcollab_costs: multiplications and parameters of a discriminator and of a model (table 5). ifca: the
clusters that IFCA ends with, label shift (FedCollab's section 5.3). dpfl_graph: how much DPFL's graph changes from one
round to the next (appendix G.2) and how symmetric it is (figure 16), 40 clients, 98 rounds.
"""

import argparse
import logging
import warnings
from collections.abc import Mapping, Sequence
from itertools import combinations, pairwise
from typing import Any

import torch
from scipy.stats import spearmanr
from sklearn.metrics import adjusted_rand_score, roc_auc_score  # type: ignore[import-untyped]
from three_clients import fit, recipe
from tier_study import interval, spread
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode
from torchvision.models import resnet18
from torchvision.transforms import CenterCrop

from lightning_fl.callbacks import (
    CFL,
    HCCT,
    IFCA,
    Callback,
    ClientArrivals,
    CollaborationGraph,
    FedCollab,
    FeSEM,
    LocalTraining,
)
from lightning_fl.callbacks.collaboration.discriminators.networks import DiscriminatorSettings
from lightning_fl.data import FedCollabLabelShift, ImageData, ImageDomains, Pathological, Rotation, Sizes
from lightning_fl.functional import cosine_similarities, partition_utility
from lightning_fl.models import ClassificationModel

NEVER = 10**6
DOMAINS = [5, 4, 5]  # clients of MNIST, USPS and MNIST-M
#: Rounds of which DPFL's graphs are taken together.
TURNS = {"1": slice(1)} | {
    f"{first + 1} to {end}": slice(first, end) for first, end in ((1, 21), (20, 41), (40, 61), (60, 81), (80, 98))
}
#: First rounds of the last client of MNIST (4), of USPS (8) and the last two of MNIST-M (12, 13).
JOINING = {
    "nobody": {4: NEVER, 8: NEVER, 12: NEVER, 13: NEVER},
    "one": {13: 11, 4: 21, 8: NEVER, 12: NEVER},
    "two": {13: 11, 8: 11, 4: 21, 12: 21},
}


class MeasuredModels(Callback):
    """Distances between clients' own models, of which KMeans makes clusters."""

    def on_fit_end(self, trainer: Any) -> None:
        self.distances = euclidean(trainer.federation.models)


class MeasuredFeSEM(FeSEM):
    """FeSEM that keeps the distances between clients' weights after their turns."""

    def assign(self, trainer: Any, weights: Mapping[int, Any], clients: Sequence[int]) -> dict[int, int]:
        self.distances = euclidean([weights[client] for client in clients])
        return super().assign(trainer, weights, clients)


class MeasuredCFL(CFL):
    """CFL that keeps 1 minus the cosines of clients' updates."""

    def assign(self, trainer: Any, weights: Mapping[int, Any], clients: Sequence[int]) -> dict[int, int] | None:
        self.distances = 1 - cosine_similarities(self.gram(trainer, weights, clients))
        return super().assign(trainer, weights, clients)


class GivenGroups(HCCT):
    """HCCT whose merging ends at a number of groups: of all pairs the one with the greatest utility merges."""

    def __init__(self, num_groups: int, relative_trade_off: float) -> None:
        super().__init__(relative_trade_off=relative_trade_off, memory=0.0, hysteresis=0.0)
        self.num_groups = num_groups
        self.utilities: list[float] = []

    def assign(self, trainer: Any, weights: Mapping[int, Any], clients: Sequence[int]) -> dict[int, int]:
        gram = self.gram(trainer, weights, clients, self._spans(trainer))
        samples = [trainer.federation.num_samples[client] for client in clients]

        def utility(labels: list[int]) -> float:
            return partition_utility(gram, samples, self.tradeoff, labels)

        labels = list(range(len(clients)))
        while len(set(labels)) > self.num_groups:
            pairs = combinations(sorted(set(labels)), 2)
            labels = max(([a if label == b else label for label in labels] for a, b in pairs), key=utility)
        self.utilities.append(utility(labels))
        unused = max(self.clusters) + 1
        return {client: unused + label for client, label in zip(clients, labels, strict=True)}


def options(settings: dict[str, Any]) -> dict[str, Any]:
    """The recipe's length, for the trainer; nothing is validated."""
    names = ("max_rounds", "local_epochs", "optimizer_state")
    kept = {name: settings["trainer"][name] for name in names if name in settings["trainer"]}
    return {**kept, "check_val_every_n_rounds": 0}


def mean(found: Mapping[int, float], clients: Sequence[int]) -> float:
    return sum(found[client] for client in clients) / len(clients)


def by_seed(first: Sequence[float], second: Sequence[float]) -> str:
    return interval([a - b for a, b in zip(first, second, strict=True)])


def hcct3(seeds: Sequence[int]) -> None:
    settings = recipe("hcct_digit_domains")
    data = settings["data"]["init_args"] | {"clients_per_domain": DOMAINS, "source": "real"}
    trainer = {**options(settings), "max_rounds": 30}
    first = [client for client in range(sum(DOMAINS)) if client not in JOINING["nobody"]]
    before: list[float] = []
    print("| join | first ten clients | better than with nobody | those who joined |\n|---|---|---|---|")
    for joining, rounds in JOINING.items():
        arrivals = {str(client): start for client, start in rounds.items()}
        runs = []
        for seed in seeds:
            groups = HCCT(**settings["trainer"]["callbacks"][0]["init_args"])
            callbacks = [ClientArrivals(rounds=arrivals), groups]
            runs.append(fit(settings, ImageDomains(**data), callbacks, seed, **trainer))
        values = [mean(run, first) for run in runs]
        before = before or values
        joined = [client for client, start in rounds.items() if start < NEVER]
        others = [spread([mean(run, joined) for run in runs]), by_seed(values, before)] if joined else ["", ""]
        print(f"| {joining} | {spread(values)} | {others[1]} | {others[0]} |", flush=True)


def hcct5(seeds: Sequence[int]) -> None:
    settings = recipe("hcct_digit_domains")
    data = settings["data"]["init_args"] | {"source": "real"}
    domains = [place for place, count in enumerate(data["clients_per_domain"]) for _ in range(count)]
    trade_off = settings["trainer"]["callbacks"][0]["init_args"]["relative_trade_off"]
    three: list[float] = []
    print("| groups | mean | three are better by | worst client | utility, mean of the rounds | adjusted Rand index |")
    print("|---|---|---|---|---|---|")
    for num_groups in (3, 1, 2, 4, 5, 10):
        runs, utilities, indices = [], [], []
        for seed in seeds:
            groups = GivenGroups(num_groups, trade_off)
            runs.append(fit(settings, ImageDomains(**data), [groups], seed, **options(settings)))
            utilities.append(sum(groups.utilities) / len(groups.utilities))
            indices.append(100 * adjusted_rand_score(domains, groups.clusters))
        values = [mean(run, list(run)) for run in runs]
        three = three or values
        worst = spread([min(run.values()) for run in runs])
        cells = [str(num_groups), spread(values), by_seed(three, values) if num_groups != 3 else "", worst]
        print(f"| {' | '.join([*cells, spread(utilities), spread(indices)])} |", flush=True)


def euclidean(weights: Sequence[Any]) -> Tensor:
    """Distances between models, [N, N]."""
    vectors = torch.stack([torch.cat([vector for _, vector in one.floating()]) for one in weights]).double()
    return torch.cdist(vectors, vectors)


def rotated_images(settings: dict[str, Any]) -> ImageData:
    images = dict(settings["data"]["init_args"])
    partitioner, (shift,) = images.pop("partitioner"), images.pop("shifts")
    shifts: list[Any] = [Rotation(**shift["init_args"])]
    return ImageData(**images, partitioner=Sizes(**partitioner["init_args"]), shifts=shifts)


def fedcollab(settings: dict[str, Any]) -> FedCollab:
    found = settings["trainer"]["callbacks"][0]["init_args"]
    return FedCollab(**{**found, "encoder": CenterCrop(**found["encoder"]["init_args"])})


def fedcollab5(seeds: Sequence[int]) -> None:
    settings = recipe("fedcollab_feature_shift")
    shift = settings["data"]["init_args"]["shifts"][0]["init_args"]
    angles = torch.tensor(shift["degrees"]).repeat_interleave(shift["clients_per_value"])
    turned = (angles[:, None] - angles).abs()
    turned = torch.minimum(turned, 360 - turned)
    pairs = torch.triu(torch.ones_like(turned), 1).bool()
    angle = turned[pairs]
    print("| method | rounds | within over between | AUROC, FedCollab better by | rank correlation with the angle |")
    print("|---|---|---|---|---|")
    reference: list[float] = []
    methods: list[tuple[str, int, Any]] = [
        ("FedCollab", 1, lambda: [fedcollab(settings)]),
        ("KMeans", 1, lambda: [MeasuredModels(), LocalTraining()]),
        ("KMeans", 20, lambda: [MeasuredModels(), LocalTraining()]),
        ("FeSEM", 5, lambda: [MeasuredFeSEM(num_clusters=4)]),
        ("FedCluster", 5, lambda: [MeasuredCFL(warm_up_rounds=5)]),
    ]
    for name, rounds, callbacks in methods:
        ratios, areas, correlations = [], [], []
        for seed in seeds:
            measured, *others = callbacks()
            trainer = {**options(settings), "max_rounds": rounds}
            fit(settings, rotated_images(settings), [measured, *others], seed, **trainer)
            distances = measured.distances[pairs]
            ratios.append(float(distances[angle == 0].mean() / distances[angle > 0].mean()))
            areas.append(100 * roc_auc_score(angle > 0, distances))
            correlations.append(100 * spearmanr(distances, angle).statistic)
        reference = reference or areas
        less = by_seed(reference, areas) if areas is not reference else ""
        cells = [name, str(rounds), spread(ratios), f"{spread(areas)}, {less}", spread(correlations)]
        print(f"| {' | '.join(cells)} |", flush=True)


def fedcollab7(seeds: Sequence[int]) -> None:
    settings = recipe("fedcollab_feature_shift")
    print(
        "| seed | client 0 joins | client 0 | alone | the others there | without client 0 |\n|---|---|---|---|---|---|"
    )
    own_gains: list[float] = []
    gains_of_others: list[float] = []
    for seed in seeds:

        def run(arrivals: dict[str, int], seed: int = seed, coalitions: bool = True) -> tuple[Any, Any]:
            data, callback = rotated_images(settings), fedcollab(settings)
            callbacks = [ClientArrivals(rounds=arrivals), *([callback] if coalitions else [])]
            return fit(settings, data, callbacks, seed, **options(settings)), callback

        joins, coalitions = run({"0": settings["trainer"]["max_rounds"] // 2 + 1})
        never, _ = run({"0": NEVER})
        alone, _ = run({str(client): NEVER for client in range(1, 20)}, coalitions=False)
        others = [client for client in range(1, 20) if coalitions.clusters[client] == coalitions.clusters[0]]
        own_gains.append(joins[0] - alone[0])
        there = [mean(found, others) for found in (joins, never) if others]
        gains_of_others += [there[0] - there[1]] if others else []
        cells = [", ".join(map(str, others)) or "nobody", f"{joins[0]:.2f}", f"{alone[0]:.2f}"]
        print(f"| {' | '.join([str(seed), *cells, *(f'{value:.2f}' for value in there)])} |", flush=True)
    print(f"\nClient 0 gains {interval(own_gains)}.")
    if gains_of_others:
        print(f"The others of its coalition gain {interval(gains_of_others)}.")


def fedcollab_costs(seeds: Sequence[int]) -> None:
    hidden = DiscriminatorSettings().hidden
    side = recipe("fedcollab_feature_shift")["trainer"]["callbacks"][0]["init_args"]["encoder"]["init_args"]["size"]
    print(
        "| model | features | multiplications | parameters | 19 discriminators: more of each |\n|---|---|---|---|---|"
    )
    cnn = ClassificationModel(**recipe("fedcollab_feature_shift")["model"]["init_args"])
    for name, model, features in (("ResNet-18", resnet18(num_classes=10), 512), ("cnn5", cnn, 3 * side**2)):
        counts = []
        for network, inputs in (
            (model, torch.zeros(1, 3, 32, 32)),
            (nn.Sequential(nn.Linear(features + 10, hidden), nn.Linear(hidden, 1)), torch.zeros(1, features + 10)),
        ):
            with FlopCounterMode(display=False) as counter, torch.no_grad():
                network.eval()(inputs)
            counts.append((counter.get_total_flops() // 2, sum(part.numel() for part in network.parameters())))
        shares = [f"{1900 * small / large:.1f} %" for large, small in zip(*counts, strict=True)]
        cells = [name, f"{features} and 10", *(f"{large:,}; {small:,}" for large, small in zip(*counts, strict=True))]
        print(f"| {' | '.join([*cells, ', '.join(shares)])} |")


def ifca(seeds: Sequence[int]) -> None:
    settings = recipe("fedcollab_label_shift")
    images = dict(settings["data"]["init_args"])
    partitioner = images.pop("partitioner")["init_args"]
    print("| seed | accuracy | clusters at the end | since round |\n|---|---|---|---|")
    for seed in seeds:
        groups = IFCA(num_clusters=4)
        data = ImageData(**images, partitioner=FedCollabLabelShift(**partitioner))
        found = fit(settings, data, [groups], seed, **options(settings))
        last = groups.assignments[-1]
        since = next(i for i in range(len(groups.rounds)) if all(one == last for one in groups.assignments[i:]))
        members = [[client for client, own in enumerate(last) if own == label] for label in sorted(set(last))]
        named = "; ".join(", ".join(map(str, clients)) for clients in members)
        print(f"| {seed} | {mean(found, list(found)):.2f} | {named} | {groups.rounds[since]} |", flush=True)


def dpfl_graph(seeds: Sequence[int]) -> None:
    settings = recipe("dpfl_cifar10_patho")
    images = dict(settings["data"]["init_args"]) | {"source": "real", "max_samples": 14400}
    classes = images.pop("partitioner")["init_args"]["classes_per_client"]
    trainer = {**options(settings), "max_rounds": 98}
    changes: dict[str, list[float]] = {}
    symmetry: dict[str, list[list[float]]] = {}
    for seed in seeds:
        graph = CollaborationGraph(budget=0.1, init_epochs=10)
        data = ImageData(**images, partitioner=Pathological(num_clients=40, classes_per_client=classes))
        fit(settings, data, [graph], seed, **trainer)
        edges = [{(k, j) for k, others in chosen.items() for j in others} for chosen in graph.chosen]
        for name, turns in TURNS.items():
            shares = torch.tensor([_symmetry(found, 40) for found in edges[turns]])
            symmetry.setdefault(name, []).append(shares.mean(dim=0).tolist())
            if gone := [100 * (1 - len(a & b) / max(len(a | b), 1)) for a, b in pairwise(edges[turns])]:
                changes.setdefault(name, []).append(sum(gone) / len(gone))
        print(seed, [len(found) for found in edges][::10], flush=True)
    before, earlier = changes["21 to 41"], [found[1] for found in symmetry["1"]]
    print(
        "| rounds | edges that changed from one round to the next, % | less than in rounds 21 to 41 by |\n|---|---|---|"
    )
    for rounds, values in changes.items():
        print(f"| {rounds} | {spread(values)} | {by_seed(before, values)} |")
    print("\n| rounds | one-sided edges, % | pairs alike, % | by chance | more than in the first round by |")
    print("|---|---|---|---|---|")
    for rounds, parts in symmetry.items():
        one_sided, pairs, chance = (list(part) for part in zip(*parts, strict=True))
        print(f"| {rounds} | {spread(one_sided)} | {spread(pairs)} | {spread(chance)} | {by_seed(pairs, earlier)} |")


def _symmetry(edges: set[tuple[int, int]], clients: int) -> tuple[float, float, float]:
    """One-sided edges, and pairs of clients alike in both directions (also where neither chooses), in %; by chance.

    By chance: expected where every client chooses as many others as it does, at random.
    """
    one_sided = sum((j, k) not in edges for k, j in edges)
    pairs = list(combinations(range(clients), 2))
    share = [sum(k == client for k, _ in edges) / (clients - 1) for client in range(clients)]
    differ = sum(share[k] * (1 - share[j]) + share[j] * (1 - share[k]) for k, j in pairs)
    return 100 * one_sided / max(len(edges), 1), 100 - 100 * one_sided / len(pairs), 100 - 100 * differ / len(pairs)


FIGURES = {
    function.__name__: function
    for function in (hcct3, hcct5, fedcollab5, fedcollab7, fedcollab_costs, ifca, dpfl_graph)
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("figure", choices=list(FIGURES))
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(5)))
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    FIGURES[arguments.figure](arguments.seeds)


if __name__ == "__main__":
    main()
