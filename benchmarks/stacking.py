"""What training several clients at once costs or saves: time per round, by ``trainer.stacked_clients``.

    uv run --group bench python benchmarks/stacking.py [mlp|logistic|cnn|all] [--repeats 5]

Arms run one after another inside every repeat, in one process with one thread; the ratio to ``stacked_clients=1`` is
taken within a repeat and its median and range are printed, so that a busy machine disturbs it little. All arms of a
task take the same local steps on the same samples, so that their weights differ by rounding alone (the last column).
"""

import argparse
import itertools
import logging
import statistics
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.utils.data import TensorDataset
from workloads import Clients, ImageModule, images

from lightning_fl import FederatedTrainer
from lightning_fl.callbacks import Callback
from lightning_fl.engine.weights import Weights

SIZES = (1, 4, 16, 64)


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
}


class RoundTimes(Callback):
    """The time at the end of every round."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.ends: list[float] = []

    def on_round_end(self, trainer: FederatedTrainer) -> None:
        self.ends.append(self.clock())


def run(task: Task, stacked: int, clock: Callable[[], float]) -> tuple[float, Weights]:
    """Seconds of a round after the first, in the median, and the last weights."""
    torch.manual_seed(7)
    times = RoundTimes(clock)
    trainer = FederatedTrainer(
        max_rounds=task.rounds,
        stacked_clients=stacked,
        callbacks=[times],
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_checkpointing=False,
    )
    trainer.fit(task.module(), task.data())
    gaps = [after - before for before, after in itertools.pairwise(times.ends)]
    return statistics.median(gaps), trainer.models[0]


def measure(task: Task, repeats: int, clock: Callable[[], float]) -> None:
    """Run the arms and print a Markdown table."""
    seconds: dict[int, list[float]] = {stacked: [] for stacked in SIZES}
    models: dict[int, Weights] = {}
    for repeat in range(repeats + 1):
        for stacked in SIZES:
            took, models[stacked] = run(task, stacked, clock)
            if repeat:  # the first one warms up
                seconds[stacked].append(took)
    print(
        f"\n### {task.title}\n\n| stacked_clients | ms per round | x one after another, median (range) | largest"
        " difference of a weight |\n|---|---|---|---|"
    )
    for stacked, times in seconds.items():
        ratios = [own / plain for own, plain in zip(times, seconds[1], strict=True)]
        difference = max(
            float((vector - models[1].vectors[dtype]).abs().max()) for dtype, vector in models[stacked].floating()
        )
        print(
            f"| {stacked} | {1e3 * statistics.median(times):.1f} | {statistics.median(ratios):.2f}"
            f" ({min(ratios):.2f} to {max(ratios):.2f}) | {difference:.1e} |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", nargs="?", default="all", choices=[*TASKS, "all"])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--cpu-time", action="store_true", help="process time instead of wall time, on a busy machine")
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")
    logging.getLogger("lightning").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    clock = time.process_time if arguments.cpu_time else time.perf_counter
    for name, task in TASKS.items():
        if arguments.task in (name, "all"):
            measure(task, arguments.repeats, clock)


if __name__ == "__main__":
    main()
