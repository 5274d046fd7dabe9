"""What the server pays to find coalitions: FedCollab's solver, and HCCT's partition of large updates.

    uv run python benchmarks/coalitions.py [fedcollab|hcct|all] [--instances 4] [--repeats 7]
    uv run python benchmarks/coalitions.py searches RUN [RUN ...]

FedCollab: median time of ``solve_coalitions`` with 20 restarts, and its objective against the paper's algorithm 2
(single moves from all alone) run 100 times, over random instances of four kinds. HCCT: the Gram matrix and the merging
for 100 clients and a million parameters against one float32 product of that size, and beside it what the mean of
cosines, hysteresis and leaving a client out of its group cost; the arms alternate within a repeat,
and the medians of their times and of the ratios within a repeat are printed. Searches: for runs of a FedCollab recipe
how many clients 100 runs of algorithm 2 visit until the last one moves (the paper's figure 8), and with how many
coalitions those end that do not find the least L. One thread.
"""

import argparse
import math
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # NumPy reads it when it is imported

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from lightning_fl.functional import (
    coalition_objective,
    cosine_similarities,
    gram_matrix,
    hierarchical_partition,
    partition_from_gram,
    partition_utility,
    remembered_cosines,
    solve_coalitions,
    with_cosines,
)

KINDS = ("points in space", "unrelated", "blocks", "noisy blocks")
Array = NDArray[np.float64]
clock = time.perf_counter


def instance(kind: str, num_clients: int, seed: int) -> tuple[Array, Array, float]:
    """Distances, counts from 14 to 3,000 (or all 500) and a capacity from 1 to 30."""
    random = np.random.default_rng([num_clients, KINDS.index(kind), seed])
    if kind == "points in space":
        points = random.normal(size=(num_clients, 3)) / 4
        distances = np.linalg.norm(points[:, None] - points, axis=-1)
    elif kind == "unrelated":
        distances = random.uniform(size=(num_clients, num_clients))
    else:
        types = random.integers(random.integers(2, max(3, num_clients // 3) + 1), size=num_clients)
        distances = random.uniform(size=(num_clients, num_clients))[types][:, types]
        distances[np.equal.outer(types, types)] = 0.05
        if kind == "noisy blocks":
            distances = np.clip(distances + random.normal(size=distances.shape) / 7, 0, 1)
    distances = (distances + distances.T) / 2
    np.fill_diagonal(distances, 0)
    counts = np.exp(random.uniform(math.log(14), math.log(3000), size=num_clients)).round()
    if random.random() < 0.3:
        counts[:] = 500
    return distances, counts, math.exp(random.uniform(0, math.log(30)))


def single_moves(distances: Array, counts: Array, capacity: float, runs: int) -> list[tuple[float, int, int]]:
    """Runs of algorithm 2: L, the visits until the last client moved, and the number of coalitions.

    Coalitions are rows of a 0/1 matrix, their sums taken anew per client.
    """
    random = np.random.default_rng(0)
    size = len(counts)
    pairs = np.add.outer(counts, counts) * distances
    found = []

    def costs(member: Array, links: Array) -> Array:
        masses = member @ counts
        filled = np.where(masses > 0, masses, 1)
        return member.sum(1) * capacity / np.sqrt(filled) + (links * member).sum(1) / 2 / filled

    for _ in range(runs):
        member = np.eye(size)
        links = pairs.copy()
        moved = True
        visits = last = 0
        while moved:
            moved = False
            for client in random.permutation(size):
                own = int(member[:, client].argmax())
                member[own, client] = 0
                links[own] -= pairs[client]
                without = costs(member, links)
                masses, sizes = member @ counts + counts[client], member.sum(1) + 1
                sums = (links * member).sum(1) / 2 + links[:, client]
                change = sizes * capacity / np.sqrt(masses) + sums / masses - without
                change[own] -= 1e-12 * change.max()
                chosen = int(change.argmin())
                visits += 1
                if chosen != own:
                    moved, last = True, visits
                member[chosen, client] = 1
                links[chosen] += pairs[client]
        found.append((float(costs(member, member @ pairs).sum()) / size, last, int(member.any(1).sum())))
    return found


def fedcollab(instances: int) -> None:
    print("\n### FedCollab: 20 restarts against 100 runs of single moves\n")
    print(
        "| clients | solver, median s | slowest s | 100 runs, median s | L / L of runs, mean | least | worse | better |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for num_clients in (20, 50, 100, 200):
        times, reference_times, ratios = [], [], []
        for kind in KINDS:
            for seed in range(instances):
                distances, counts, capacity = instance(kind, num_clients, seed)
                matrix, samples = torch.from_numpy(distances), torch.from_numpy(counts)
                start = clock()
                labels = solve_coalitions(matrix, samples, capacity)
                solved = clock()
                reference = single_moves(distances, counts, capacity, 100 if num_clients <= 100 else 5)
                times.append(solved - start)
                reference_times.append(clock() - solved)
                ratios.append(coalition_objective(labels, matrix, samples, capacity) / min(reference)[0])
        worse, better = (sum(sign * (ratio - 1) > 1e-9 for ratio in ratios) for sign in (1, -1))
        runs = "" if num_clients <= 100 else " (5 runs)"
        print(
            f"| {num_clients} | {statistics.median(times):.3f} | {max(times):.3f} |"
            f" {statistics.median(reference_times):.2f}{runs} | {statistics.mean(ratios):.5f} | {min(ratios):.5f} |"
            f" {worse} of {len(ratios)} | {better} |",
            flush=True,
        )


def searches(runs: list[Path], capacity: float) -> None:
    print("\n### FedCollab: 100 searches of algorithm 2, clients visited until the last one that moved\n")
    print("| run | visits, median | most | at most 60 | found the least L | coalitions otherwise |")
    print("|---|---|---|---|---|---|")
    for run in runs:
        table = pd.read_csv(run / "coalitions.csv")
        distances = pd.read_csv(run / "distances.csv", index_col=0).to_numpy()
        found = single_moves(distances, table["samples"].to_numpy(float), capacity, 100)
        least = min(found)[0]
        best = [math.isclose(objective, least, rel_tol=1e-9) for objective, _, _ in found]
        others = {count for (_, _, count), reached in zip(found, best, strict=True) if not reached}
        visits, where = [last for _, last, _ in found], ", ".join(map(str, sorted(others)))
        shown = f"{statistics.median(visits):g} | {max(visits)} | {sum(count <= 60 for count in visits)}"
        print(f"| {run} | {shown} | {sum(best)} of {len(found)} | {where} |")


def hcct(repeats: int, num_clients: int = 100, num_parameters: int = 1_000_000) -> None:
    draws = torch.Generator().manual_seed(0)
    centres = torch.randn(8, num_parameters, generator=draws)
    updates = centres[torch.arange(num_clients) % 8].add_(torch.randn(num_clients, num_parameters, generator=draws))
    counts = [500] * num_clients
    gram = gram_matrix(updates)
    cosines, labels = cosine_similarities(gram), hierarchical_partition(updates, counts, 15.0)
    weight = torch.ones_like(cosines)

    def averaged() -> float:
        mean, _ = remembered_cosines(cosines, weight, cosine_similarities(gram), 1.0)
        return partition_utility(with_cosines(gram, mean), counts, 15.0, labels)

    arms: dict[str, Callable[[], object]] = {
        "float32 product": lambda: updates @ updates.T,
        "HCCT: Gram and merging": lambda: hierarchical_partition(updates, counts, 15.0),
        "of which merging": lambda: partition_from_gram(gram, counts, 15.0),
        "merging, each compared with the others": lambda: partition_from_gram(gram, counts, 60.0, leave_one_out=True),
        "mean of cosines over rounds, old partition": averaged,
    }
    times: dict[str, list[float]] = {name: [] for name in arms}
    for repeat in range(repeats + 1):
        for name, arm in arms.items():
            start = clock()
            arm()
            if repeat:  # the first one warms up
                times[name].append(clock() - start)
    groups = max(labels) + 1
    print(f"\n### HCCT: {num_clients} clients x {num_parameters:,} parameters, {groups} groups found\n")
    print("| arm | ms | x product |\n|---|---|---|")
    for name, measured in times.items():
        ratio = statistics.median(a / b for a, b in zip(measured, times["float32 product"], strict=True))
        print(f"| {name} | {1e3 * statistics.median(measured):.1f} | {ratio:.3f} |")


def main() -> None:
    global clock
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", nargs="?", default="all", choices=["fedcollab", "hcct", "all", "searches"])
    parser.add_argument("runs", nargs="*", type=Path, help="folders of runs with FedCollab, for searches")
    parser.add_argument("--capacity", type=float, default=10.0, help="C of the searches")
    parser.add_argument("--instances", type=int, default=4, help="instances of each of the four kinds and each size")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--cpu-time", action="store_true", help="process time instead of wall time, on a busy machine")
    arguments = parser.parse_args()
    if arguments.cpu_time:
        clock = time.process_time
    torch.set_num_threads(1)
    if arguments.task == "searches":
        searches(arguments.runs, arguments.capacity)
    if arguments.task in ("fedcollab", "all"):
        fedcollab(arguments.instances)
    if arguments.task in ("hcct", "all"):
        hcct(arguments.repeats)


if __name__ == "__main__":
    main()
