"""Coalitions that are given or that change: HCCT's figures 3 and 5, FedCollab's figure 7.

    LIGHTNING_FL_DATA=DATA uv run python benchmarks/coalition_figures.py hcct3|hcct5|fedcollab7 [--seeds 0 1 2]

Model, data and settings are the recipes' (``hcct_digit_domains``, ``fedcollab_feature_shift``). Printed in Markdown:
accuracy of the last round on test images, mean and standard deviation over seeds, and differences paired by seed with
95 % t-intervals.

hcct3: ten clients, and none, one or two more after 10 and after 20 of 30 rounds. hcct5: HCCT's merging goes on, or
stops, at a given number of groups, in every round. fedcollab7: a large client (0) joins after half of the rounds, or
never, or trains alone.
"""

import argparse
import logging
import warnings
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

import torch
from sklearn.metrics import adjusted_rand_score  # type: ignore[import-untyped]
from three_clients import fit, recipe
from tier_study import interval, spread
from torchvision.transforms import CenterCrop

from lightning_fl.callbacks import HCCT, ClientArrivals, FedCollab
from lightning_fl.data import ImageData, ImageDomains, Rotation, Sizes
from lightning_fl.functional import partition_utility

NEVER = 10**6
DOMAINS = [5, 4, 5]  # clients of MNIST, USPS and MNIST-M
#: First rounds of the last client of MNIST (4), of USPS (8) and the last two of MNIST-M (12, 13).
JOINING = {
    "nobody": {4: NEVER, 8: NEVER, 12: NEVER, 13: NEVER},
    "one": {13: 11, 4: 21, 8: NEVER, 12: NEVER},
    "two": {13: 11, 8: 11, 4: 21, 12: 21},
}


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


def fedcollab7(seeds: Sequence[int]) -> None:
    settings = recipe("fedcollab_feature_shift")
    images = dict(settings["data"]["init_args"])
    partitioner, (shift,) = images.pop("partitioner"), images.pop("shifts")
    found = settings["trainer"]["callbacks"][0]["init_args"]
    coalition_settings = {**found, "encoder": CenterCrop(**found["encoder"]["init_args"])}
    print(
        "| seed | client 0 joins | client 0 | alone | the others there | without client 0 |\n|---|---|---|---|---|---|"
    )
    own_gains: list[float] = []
    gains_of_others: list[float] = []
    for seed in seeds:

        def run(arrivals: dict[str, int], seed: int = seed, coalitions: bool = True) -> tuple[Any, Any]:
            shifts: list[Any] = [Rotation(**shift["init_args"])]
            data = ImageData(**images, partitioner=Sizes(**partitioner["init_args"]), shifts=shifts)
            callback = FedCollab(**coalition_settings)
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("figure", choices=["hcct3", "hcct5", "fedcollab7"])
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(5)))
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    {"hcct3": hcct3, "hcct5": hcct5, "fedcollab7": fedcollab7}[arguments.figure](arguments.seeds)


if __name__ == "__main__":
    main()
