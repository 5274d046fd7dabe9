"""How a round's time and memory grow: with clients, with parameters, and over processes.

    uv run --group bench python benchmarks/scaling.py [clients|many|parameters|processes|all] [--repeats 3]

"clients": LeNet, 20,000 random images in all and as many steps for every number of clients. A process trains all of
them, one federation after another within each repeat, and gives the ratios of their rounds; memory is the peak resident
set of a process of its own. "many": up to 1,000,000 clients of ten samples, 100 of which take part in a round, each
number in a process of its own: set-up, a round, peak memory, the checkpoint, and how they grow. "parameters": fully
connected networks; the time of a turn outside the data, forward and backward passes and the optimiser's steps, per
client and parameter, beside copying as many weights. "processes": 20 clients on one process and on two forked ones.

Rounds after the first count. Ratios are taken within a repeat; their median and range are printed, as Markdown.
"""

import argparse
import contextlib
import io
import itertools
import logging
import math
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import overhead
import torch
import torch.nn.functional as F
from arms.federations import FEDERATIONS
from lightning.pytorch import LightningModule
from overhead import RoundTimes
from torch import Tensor, nn
from torch.utils.data import TensorDataset
from workloads import Clients, ImageModule, images

from lightning_fl import FederatedTrainer, Partitioned
from lightning_fl.callbacks import Callback, DROClientSampling, ModelCheckpoint, UniformSampling
from lightning_fl.data import IID
from lightning_fl.engine import profile
from lightning_fl.runtime.surface import TrainerSurface

#: The federations "few" and "many" of the comparison with peers, and one between them.
NUM_IMAGES, BATCH_SIZE = FEDERATIONS["few"].num_clients * FEDERATIONS["few"].samples, FEDERATIONS["few"].batch_size
STEPS = (profile.FORWARD, profile.BACKWARD, profile.OPTIMIZER, profile.DATA)


class Layers(LightningModule):
    """A fully connected network with about as many parameters as asked for, and few enough operations on them."""

    def __init__(self, num_parameters: int) -> None:
        super().__init__()
        width = round(num_parameters**0.5)
        self.layers = nn.Sequential(nn.Linear(16, width), nn.ReLU(), nn.Linear(width, width - 16), nn.ReLU())
        self.head = nn.Linear(width - 16, 2)

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        return F.cross_entropy(self.head(self.layers(batch[0])), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01)


def fit(
    module: LightningModule, data: Clients, rounds: int, **settings: object
) -> tuple[list[float], FederatedTrainer]:
    """Seconds of every round after the first, and the trainer."""
    times = RoundTimes()
    with tempfile.TemporaryDirectory() as root:
        trainer = FederatedTrainer(
            max_rounds=rounds, optimizer_state="fresh",
            callbacks=[times], default_root_dir=root, enable_progress_bar=False, logger=False,
            enable_checkpointing=False, log_per_client=False, **settings,
        )  # fmt: skip
        with contextlib.redirect_stdout(io.StringIO()):  # the table of a profiled run
            trainer.fit(module, data)
    return [after - before for before, after in itertools.pairwise(times.ends)], trainer


def lenet(num_clients: int, rounds: int) -> list[float]:
    torch.manual_seed(7)
    return fit(ImageModule(), Clients(images(NUM_IMAGES), num_clients, BATCH_SIZE, True), rounds)[0]


def peak_mib(num_clients: int) -> float:
    """The peak resident set of a process that trains two rounds."""
    command = [sys.executable, __file__, "--one", str(num_clients)]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[-1])


def clients(counts: list[int], rounds: int, repeats: int) -> None:
    seconds: dict[int, list[float]] = {count: [] for count in counts}
    memory: dict[int, list[float]] = {count: [] for count in counts}
    for repeat in range(repeats + 1):
        for count in counts:
            measured = statistics.median(lenet(count, rounds))
            if repeat:  # the first one warms up
                seconds[count].append(measured)
                memory[count].append(peak_mib(count))
    print(f"\n| clients | s per round | x {counts[0]} clients (range) | peak MiB | x {counts[0]} clients (range) |")
    print("|---|---|---|---|---|")
    for count in counts:
        of_time, of_memory = against(seconds[count], seconds[counts[0]]), against(memory[count], memory[counts[0]])
        print(f"| {count:,} | {statistics.median(seconds[count]):.3f} | {of_time} ", end="")
        print(f"| {statistics.median(memory[count]):,.0f} | {of_memory} |")


def many(counts: list[int], rounds: int, repeats: int, forks: int, algorithm: str) -> None:
    """Cohorts of 100 of ever more clients, with loggers and checkpoints as by default."""
    found: dict[int, list[list[float]]] = {count: [] for count in counts}
    for _, count in itertools.product(range(repeats), counts):
        command = [sys.executable, __file__, "--many-one", str(count), "--rounds", str(rounds)]
        command += ["--forks", str(forks), "--algorithm", algorithm]
        command += ["--cpu-time"] * (overhead.clock is time.process_time)
        with tempfile.TemporaryDirectory() as folder:
            output = subprocess.run(command, capture_output=True, text=True, check=True, cwd=folder).stdout
        found[count].append([float(word) for word in output.splitlines()[-1].split()])
        print(count, output.splitlines()[-1], file=sys.stderr, flush=True)
    print(
        f"\n| clients ({algorithm}, processes: {forks}) | set-up s | s per round | x {counts[0]:,} clients | peak MiB"
        " | checkpoint KiB |"
    )
    print("|---|---|---|---|---|---|")
    medians = {count: [statistics.median(of) for of in zip(*found[count], strict=True)] for count in counts}
    for count, (setup, of_round, peak, kept) in medians.items():
        print(f"| {count:,} | {setup:.2f} | {of_round:.3f} | {of_round / medians[counts[0]][1]:.2f} ", end="")
        print(f"| {peak:,.0f} | {kept:,.0f} |")
    logs = [math.log(count) for count in counts]
    slopes = [statistics.linear_regression(logs, [math.log(medians[c][k]) for c in counts]).slope for k in range(4)]
    print("| log-log slope | {:.2f} | {:.2f} | | {:.2f} | {:.2f} |".format(*slopes))


class _Starts(Callback):
    """When rounds begin."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def on_round_start(self, trainer: TrainerSurface) -> None:
        self.times.append(overhead.clock())


def many_one(num_clients: int, rounds: int, forks: int, algorithm: str) -> None:
    """Print the seconds of the set-up and of a round, the peak in MiB, and the size of a checkpoint in KiB."""
    draws = torch.Generator().manual_seed(0)
    samples = torch.randn(10 * num_clients, 16, generator=draws), torch.arange(10 * num_clients) % 2
    data = Partitioned(TensorDataset(*samples), IID(num_clients=num_clients), batch_size=10)
    drawn: Callback = UniformSampling(cohort_size=100)
    if algorithm == "drfa":
        drawn = DROClientSampling(cohort_size=100, step_size=0.01)
    starts = _Starts()
    trainer = FederatedTrainer(
        strategy="scaffold" if algorithm == "scaffold" else "fedavg", max_rounds=rounds, optimizer_state="fresh",
        local_steps=1,
        callbacks=[drawn, starts, ModelCheckpoint(save_models=False)], enable_progress_bar=False,
        accelerator="cpu", devices=1,
    )  # fmt: skip
    if forks > 1:
        trainer.strategy.fork_processes(forks)
    began = overhead.clock()
    trainer.fit(Linear(), data)
    if trainer.is_global_zero:
        first, second, *rest = starts.times
        later = [after - before for before, after in itertools.pairwise([second, *rest])]
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        kept = (Path(trainer.log_dir) / "checkpoints" / "last.ckpt").stat().st_size / 1024
        print(first - began, statistics.median(later), peak, kept)


class Linear(LightningModule):
    """Logistic regression, validated too."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 2)

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        return F.cross_entropy(self.layer(batch[0]), batch[1])

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        self.log("val_loss", F.cross_entropy(self.layer(batch[0]), batch[1]))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01)


def parameters(sizes: list[int], rounds: int, repeats: int) -> None:
    """Per client and parameter, in nanoseconds: all of a round that is not the steps, and a copy of the weights."""
    num_clients = 10
    draws = torch.Generator().manual_seed(0)
    samples = torch.randn(8 * num_clients, 16, generator=draws), torch.arange(8 * num_clients) % 2
    data = Clients(torch.utils.data.TensorDataset(*samples), num_clients, 8, False)
    print("\n| parameters | ms per client and round | of it outside the steps | ns per parameter | x copy (range) |")
    print("|---|---|---|---|---|")
    for size in sizes:
        whole, outside, copies = [], [], []
        for repeat in range(repeats + 1):
            module = Layers(size)
            count = sum(parameter.numel() for parameter in module.parameters())
            times, trainer = fit(module, data, rounds, local_steps=2, profile=True)
            copied = copy_seconds(count)
            assert isinstance(trainer.profiler, profile.RoundProfiler)
            later = [of_round for number, of_round in trainer.profiler.rounds.items() if number > 1]
            rest = [sum(s for what, s in of_round.items() if what not in STEPS) for of_round in later]
            if repeat:
                whole.append(statistics.median(times) / num_clients)
                outside.append(statistics.median(rest) / num_clients)
                copies.append(copied)
        print(
            f"| {count:,} | {1e3 * statistics.median(whole):.3g} | {1e3 * statistics.median(outside):.3g}"
            f" | {1e9 * statistics.median(outside) / count:.3g} | {against(outside, copies)} |",
            flush=True,
        )


def copy_seconds(num_parameters: int) -> float:
    """Of copying a float32 vector, one of several that do not fit in the cache together."""
    vectors = [torch.zeros(num_parameters) for _ in range(max(4, 2**27 // (4 * num_parameters)))]
    buffer = torch.zeros(num_parameters)
    seconds = []
    for _ in range(3):
        began = time.perf_counter()
        for vector in vectors:
            buffer.copy_(vector)
        seconds.append((time.perf_counter() - began) / len(vectors))
    return min(seconds)


def processes(rounds: int, repeats: int) -> None:
    """Wall time of one and of two forked processes, each with one thread."""
    seconds: dict[int, list[float]] = {1: [], 2: []}
    for repeat in range(repeats + 1):
        for count, measured in seconds.items():
            command = [sys.executable, __file__, "--forked", str(count), "--rounds", str(rounds)]
            with tempfile.TemporaryDirectory() as folder:  # until the last process has written to it
                output = subprocess.run(command, capture_output=True, text=True, check=True, cwd=folder).stdout
            if repeat:
                measured.append(float(output.split()[-1]))
    print("\n| processes | s per round | x one process (range) |\n|---|---|---|")
    for count, measured in seconds.items():
        print(f"| {count} | {statistics.median(measured):.3f} | {against(measured, seconds[1])} |")


def forked(num_processes: int, rounds: int) -> None:
    """Train on this many processes and print the median of the rounds after the first."""
    federation, times = FEDERATIONS["cnn"], RoundTimes()
    data = Clients(images(federation.num_clients * federation.samples), federation.num_clients, 16, True)
    trainer = FederatedTrainer(
        max_rounds=rounds, optimizer_state="fresh",
        callbacks=[times], enable_progress_bar=False, logger=False, enable_checkpointing=False,
        accelerator="cpu", devices=1,
    )  # fmt: skip
    trainer.strategy.fork_processes(num_processes)
    trainer.fit(ImageModule(), data)
    if trainer.is_global_zero:
        print(statistics.median([after - before for before, after in itertools.pairwise(times.ends)]))


def against(values: list[float], others: list[float]) -> str:
    ratios = [a / b for a, b in zip(values, others, strict=True)]
    return f"{statistics.median(ratios):.3g} ({min(ratios):.3g} to {max(ratios):.3g})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", default="all", choices=["clients", "many", "parameters", "processes", "all"])
    parser.add_argument("--clients", type=int, nargs="+", default=[10, 100, 1000])
    parser.add_argument("--many", type=int, nargs="+", default=[1000, 10_000, 100_000, 1_000_000])
    parser.add_argument("--forks", type=int, default=1, help="of many clients: processes")
    parser.add_argument("--algorithm", default="fedavg", choices=["fedavg", "scaffold", "drfa"], help="of many clients")
    parser.add_argument("--parameters", type=int, nargs="+", default=[60_000, 1_000_000, 10_000_000])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--cpu-time", action="store_true", help="of clients and many: process time, on a busy machine")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--many-one", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--forked", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")
    logging.getLogger("lightning").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    if arguments.cpu_time:
        overhead.clock = time.process_time
    if arguments.one:
        lenet(arguments.one, rounds=2)
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
        return
    if arguments.many_one:
        many_one(arguments.many_one, arguments.rounds, arguments.forks, arguments.algorithm)
        return
    if arguments.forked:
        forked(arguments.forked, arguments.rounds)
        return
    tables: dict[str, Callable[[], None]] = {
        "clients": lambda: clients(arguments.clients, arguments.rounds, arguments.repeats),
        "many": lambda: many(
            arguments.many, max(arguments.rounds, 6), arguments.repeats, arguments.forks, arguments.algorithm
        ),
        "parameters": lambda: parameters(arguments.parameters, arguments.rounds, arguments.repeats),
        "processes": lambda: processes(arguments.rounds, arguments.repeats),
    }
    for name, table in tables.items():
        if arguments.what in (name, "all"):
            table()


if __name__ == "__main__":
    main()
