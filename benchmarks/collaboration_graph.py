"""What DPFL's graph costs: time per round against the same local steps in a bare loop, and memory against N models.

    uv run --group bench python benchmarks/collaboration_graph.py [time|memory|all] [--repeats 3]

Time: 100 clients of 240 training and 60 validation images, LeNet, batch 16, five epochs a round, at most 10
collaborators; the arms run one after another inside every repeat, one thread, median over rounds after the first.
Memory: 100 clients, a perceptron of a million weights, two steps a round; the peak resident set of a process of its own
with the graph, minus that of FedAvg (both evaluate every round), over the size of 100 models.
"""

import argparse
import itertools
import logging
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import warnings

import torch
import torch.nn.functional as F
from torch import nn
from workloads import JudgedClients, JudgedImageModule

from lightning_fl import FederatedTrainer
from lightning_fl.callbacks import Callback, CollaborationGraph

NUM_CLIENTS, TRAIN, VALIDATION, BATCH, EPOCHS, BUDGET = 100, 240, 60, 16, 5, 10


class Wide(JudgedImageModule):
    """A million weights."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Flatten()  # type: ignore[assignment]
        self.classifier = nn.Sequential(nn.Linear(3072, 325), nn.ReLU(), nn.Linear(325, 10))


class RoundTimes(Callback):
    """When every round ended."""

    def __init__(self) -> None:
        self.ends = [time.perf_counter()]

    def on_round_end(self, trainer: FederatedTrainer) -> None:
        self.ends.append(time.perf_counter())


def ours(
    callbacks: list[Callback], data: JudgedClients, rounds: int, module: JudgedImageModule, **settings: int
) -> list[float]:
    """Seconds per round."""
    times = RoundTimes()
    with tempfile.TemporaryDirectory() as root:
        trainer = FederatedTrainer(
            max_rounds=rounds,
            optimizer_state="fresh",
            callbacks=[*callbacks, times],
            default_root_dir=root,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            **{"check_val_every_n_rounds": 0, **settings},  # type: ignore[arg-type]
        )
        trainer.fit(module, data)
    return [after - before for before, after in itertools.pairwise(times.ends)]


def bare(data: JudgedClients, rounds: int) -> list[float]:
    """Every client alone, batches cut once."""
    cut = []
    for train, _ in data.parts:
        x, y = (tensor[train] for tensor in data.dataset.tensors)
        cut.append(list(zip(x.split(BATCH), y.split(BATCH), strict=True)))
    torch.manual_seed(7)
    module = JudgedImageModule()
    states = [{name: value.clone() for name, value in module.state_dict().items()} for _ in range(NUM_CLIENTS)]
    seconds = []
    for _ in range(rounds):
        started = time.perf_counter()
        for client, state in enumerate(states):
            module.load_state_dict(state)
            optimizer = module.configure_optimizers()
            for _ in range(EPOCHS):
                for x, y in cut[client]:
                    optimizer.zero_grad()
                    F.cross_entropy(module(x), y).backward()
                    optimizer.step()
            states[client] = {name: value.clone() for name, value in module.state_dict().items()}
        seconds.append(time.perf_counter() - started)
    return seconds


def measure_time(repeats: int, rounds: int = 3) -> None:
    """Print milliseconds per round and ratios."""
    data = JudgedClients(NUM_CLIENTS, TRAIN, VALIDATION, BATCH)
    arms = {
        "bare loop, nobody collaborates": lambda: bare(data, rounds),
        "lightning-fl, nobody collaborates": lambda: ours(
            [CollaborationGraph(budget=0)], data, rounds, JudgedImageModule(), local_epochs=EPOCHS
        ),
        "lightning-fl, full graph": lambda: ours(
            [CollaborationGraph(graph="full")], data, rounds, JudgedImageModule(), local_epochs=EPOCHS
        ),
        f"lightning-fl, DPFL, budget {BUDGET}": lambda: ours(
            [CollaborationGraph(budget=BUDGET)], data, rounds, JudgedImageModule(), local_epochs=EPOCHS
        ),
    }
    found: dict[str, list[float]] = {name: [] for name in arms}
    for _ in range(repeats):
        for name, arm in arms.items():
            found[name].append(statistics.median(arm()[1:]))
    first = next(iter(found.values()))
    print("| arm | s per round | x bare loop |\n|---|---|---|")
    for name, seconds in found.items():
        ratio = statistics.median(a / b for a, b in zip(seconds, first, strict=True))
        print(f"| {name} | {statistics.median(seconds):.2f} | {ratio:.2f} |")


def peak(algorithm: str) -> float:
    """MiB of a process that does nothing else."""
    words = [sys.executable, __file__, "--one", algorithm]
    return float(subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()[-1])


def measure_memory() -> None:
    """Print peaks and the ratio to N models."""
    fedavg, graph = peak("fedavg"), peak("graph")
    models = NUM_CLIENTS * sum(p.numel() * 4 for p in Wide().parameters()) / 2**20
    print(
        f"\n{models:.0f} MiB are {NUM_CLIENTS} models; peak {fedavg:.0f} MiB with FedAvg, {graph:.0f} MiB with a graph"
    )
    print(f"of budget {BUDGET}: {(graph - fedavg) / models:.2f} times the models more")


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", nargs="?", default="all", choices=["time", "memory", "all"])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--one", choices=["fedavg", "graph"], help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")
    logging.getLogger("lightning").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    if arguments.one:
        callbacks: list[Callback] = [CollaborationGraph(budget=BUDGET)] if arguments.one == "graph" else []
        ours(
            callbacks,
            JudgedClients(NUM_CLIENTS, TRAIN, VALIDATION, BATCH),
            3,
            Wide(),
            local_steps=2,
            check_val_every_n_rounds=1,
        )
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
        return
    if arguments.task != "memory":
        measure_time(arguments.repeats)
    if arguments.task != "time":
        measure_memory()


if __name__ == "__main__":
    main()
