"""What training several clients at once costs or saves: time per round, by ``trainer.stacked_clients``.

    uv run --group bench python benchmarks/stacking.py [mlp|logistic|cnn|cnn100|all] [--repeats 5] [--accelerator cuda]
        [--strategy scaffold]

Arms run one after another inside every repeat, in one process with one thread; the ratio to a bare loop over the
clients, on batches that were cut once and lie on the device, and to ``stacked_clients=1`` are taken within a repeat and
their medians and ranges are printed, so that a busy machine disturbs them little. All arms of a task take as many local
steps on the same samples; those of ``stacked_clients`` take them in the same order, so that their weights differ by
rounding alone (the last column). "cnn100" is meant for GPUs.
"""

import argparse
import itertools
import logging
import statistics
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import overhead
import torch
import torch.nn.functional as F
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.utils.data import TensorDataset
from workloads import Clients, ImageModule, images

from lightning_fl import FederatedTrainer
from lightning_fl.engine.weights.flat import Weights


class Classifier(LightningModule):
    """64 pixels, ten classes: an MLP with one hidden layer, or logistic regression."""

    def __init__(self, hidden: int | None) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.net = (
            nn.Linear(64, 10)
            if hidden is None
            else nn.Sequential(nn.Linear(64, hidden), nn.ReLU(), nn.Linear(hidden, 10))
        )

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        return F.cross_entropy(self.net(batch[0]), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


@dataclass(frozen=True)
class Task:
    """A federation: its name, module, data and rounds per arm and repeat."""

    title: str
    module: Callable[[], LightningModule]
    data: Callable[[], Clients]
    rounds: int
    sizes: tuple[int, ...] = (1, 4, 16, 64)


def pixels(num_samples: int) -> TensorDataset:
    """Random pixels [n, 64] between 0 and 1, as those of scikit-learn's digits, and labels of ten classes."""
    draws = torch.Generator().manual_seed(0)
    labels = torch.randint(0, 10, (num_samples,), generator=draws)
    return TensorDataset(torch.rand(num_samples, 64, generator=draws), labels)


TASKS = {
    "mlp": Task(
        "MLP 64-32-10, 100 clients x 20 samples, batch 10",
        lambda: Classifier(32),
        lambda: Clients(pixels(2000), 100, 10, True),
        12,
    ),
    "logistic": Task(
        "Logistic regression, 1,000 clients x 20 samples, batch 10",
        lambda: Classifier(None),
        lambda: Clients(pixels(20000), 1000, 10, True),
        4,
    ),
    "cnn": Task(
        "LeNet, 20 clients x 250 images, batch 16", ImageModule, lambda: Clients(images(5000), 20, 16, True), 4
    ),
    "cnn100": Task(
        "LeNet, 100 clients x 250 images, batch 16",
        ImageModule,
        lambda: Clients(images(25000), 100, 16, True),
        4,
        (1, 25, 100),
    ),
}


def gap(ends: list[float]) -> float:
    """Seconds of a round after the first, in the median."""
    return statistics.median(after - before for before, after in itertools.pairwise(ends))


def one_after_another(task: Task, accelerator: str) -> float:
    """Seconds of a round of the bare loop."""
    torch.manual_seed(7)
    device = torch.device(accelerator)
    data = task.data()
    tensors = [tensor.to(device) for tensor in data.dataset.tensors]
    cut = [
        list(zip(*(tensor[share.to(device)].split(data.batch_size) for tensor in tensors), strict=True))
        for share in data.shares
    ]
    ends, _ = overhead.bare(task.module().to(device), lambda client, _: cut[client], len(cut), task.rounds)
    return gap(ends)


def run(task: Task, stacked: int, accelerator: str, strategy: str) -> tuple[float, Weights]:
    """Seconds of a round, and the last weights."""
    torch.manual_seed(7)
    times = overhead.RoundTimes()
    trainer = FederatedTrainer(
        max_rounds=task.rounds,
        optimizer_state="fresh",
        stacked_clients=stacked,
        strategy=strategy,
        callbacks=[times],
        accelerator=accelerator,
        devices=1,
        logger=False,
        enable_progress_bar=False,
        enable_checkpointing=False,
    )
    trainer.fit(task.module(), task.data())
    return gap(times.ends), trainer.models[0]


def measure(task: Task, repeats: int, accelerator: str, strategy: str) -> None:
    """Run the arms and print a Markdown table."""
    floor: list[float] = []
    seconds: dict[int, list[float]] = {stacked: [] for stacked in task.sizes}
    models: dict[int, Weights] = {}
    memory: dict[int, float] = {}
    for repeat in range(repeats + 1):
        took = one_after_another(task, accelerator)
        if repeat:  # the first one warms up
            floor.append(took)
        for stacked in task.sizes:
            if accelerator == "cuda":
                torch.cuda.reset_peak_memory_stats()
            took, models[stacked] = run(task, stacked, accelerator, strategy)
            if repeat:
                seconds[stacked].append(took)
            if accelerator == "cuda":
                memory[stacked] = torch.cuda.max_memory_allocated() / 2**20
    print(
        f"\n### {task.title}, {accelerator}, {strategy}\n\n| stacked_clients | ms per round | x bare loop, median"
        " (range) | x one after another, median (range) | largest difference of a weight | peak MiB on the GPU |\n"
        "|---|---|---|---|---|---|"
    )
    print(f"| bare loop | {1e3 * statistics.median(floor):.1f} | 1 | | | |")
    for stacked, times in seconds.items():
        difference = max(
            float((vector - models[1].vectors[dtype]).abs().max()) for dtype, vector in models[stacked].floating()
        )
        print(
            f"| {stacked} | {1e3 * statistics.median(times):.1f} | {ratio(times, floor)} | {ratio(times, seconds[1])} |"
            f" {difference:.1e} | {f'{memory[stacked]:.0f}' if memory else ''} |"
        )


def ratio(times: list[float], others: list[float]) -> str:
    """The median of the ratios of a repeat, and their range."""
    ratios = [own / other for own, other in zip(times, others, strict=True)]
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", nargs="?", default="all", choices=[*TASKS, "all"])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--cpu-time", action="store_true", help="process time instead of wall time, on a busy machine")
    parser.add_argument("--accelerator", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--strategy", default="fedavg", help="of all arms but the bare loop, such as scaffold")
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")
    logging.getLogger("lightning").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    if arguments.cpu_time:
        overhead.clock = time.process_time
    for name, task in TASKS.items():
        if arguments.task in (name, "all"):
            measure(task, arguments.repeats, arguments.accelerator, arguments.strategy)


if __name__ == "__main__":
    main()
