"""What ``torch.compile`` gains: time per round, compiled / plain, and how long it is from fit to the end of round 1.

    uv run --group bench python benchmarks/compiled.py [cnn|mlp|all] [--repeats 5]

Both arms run in turn in every repeat, in one process with one thread; ratios are taken within a repeat and leave the
first round out. The compiler's cache on the disk is empty at the start of a task. What the first task waits for holds
the import of the compiler; the first round is always wall time, of the first repeat.
"""

import argparse
import itertools
import logging
import os
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.utils.data import TensorDataset
from workloads import Clients, ImageModule, checksum, images

from lightning_fl import FederatedTrainer
from lightning_fl.callbacks import Callback


class LoggingImageModule(ImageModule):
    """LeNet that logs its loss."""

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        loss = self.loss(batch)
        self.log("loss", loss)
        return loss


class TableModule(LightningModule):
    """Three layers over 64 features: 26 thousand weights; logs its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10), nn.LogSoftmax(1)
        )

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        loss = nn.functional.nll_loss(self.net(batch[0]), batch[1])
        self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01, momentum=0.9)


class RoundTimes(Callback):
    """When every round ended, and how long after this was made the first one did."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.ends: list[float] = []
        self.first_round = -time.perf_counter()

    def on_round_end(self, trainer: FederatedTrainer) -> None:
        if not self.ends:
            self.first_round += time.perf_counter()
        self.ends.append(self.clock())


def table(num_samples: int) -> TensorDataset:
    """Random features [n, 64] with random labels of ten classes."""
    draws = torch.Generator().manual_seed(0)
    features = torch.randn(num_samples, 64, generator=draws)
    return TensorDataset(features, torch.randint(0, 10, (num_samples,), generator=draws))


def rounds(
    module: Callable[[], LightningModule], data: Clients, count: int, compiled: bool, clock: Callable[[], float]
) -> tuple[float, list[float], float]:
    """Seconds to the end of the first round and of every later one, and a checksum of the final weights."""
    torch.manual_seed(7)
    made, times = module(), RoundTimes(clock)
    quiet: dict[str, Any] = {"enable_progress_bar": False, "logger": False, "enable_checkpointing": False}
    with tempfile.TemporaryDirectory() as root:
        trainer = FederatedTrainer(
            max_rounds=count,
            optimizer_state="fresh",
            callbacks=[times],
            default_root_dir=root,
            compile=compiled,
            accelerator="cpu",
            **quiet,
        )
        trainer.fit(made, data)
    later = [after - before for before, after in itertools.pairwise(times.ends)]
    return times.first_round, later, checksum(made)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", nargs="?", default="all", choices=["cnn", "mlp", "all"])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=4, help="per run; the first is not in the ratio")
    parser.add_argument("--cpu-time", action="store_true", help="process time instead of wall time, on a busy machine")
    arguments = parser.parse_args()
    clock = time.process_time if arguments.cpu_time else time.perf_counter
    warnings.filterwarnings("ignore")
    logging.getLogger("lightning").setLevel(logging.ERROR)
    tasks: dict[str, tuple[str, Callable[[], LightningModule], Clients]] = {
        "cnn": ("LeNet, 20 clients x 256 images, batch 16", LoggingImageModule, Clients(images(5120), 20, 16, False)),
        "mlp": ("MLP, 20 clients x 1024 rows, batch 32", TableModule, Clients(table(20480), 20, 32, False)),
    }
    print(
        "| | plain, ms per round | compiled, ms per round | ratio | its range | to the end of round 1, s: plain |"
        " compiled |"
    )
    print("|---|---|---|---|---|---|---|")
    for name, (title, module, data) in tasks.items():
        if arguments.task not in (name, "all"):
            continue
        with tempfile.TemporaryDirectory() as cache:
            os.environ["TORCHINDUCTOR_CACHE_DIR"] = cache
            first: dict[bool, float] = {}
            steady: dict[bool, list[float]] = {False: [], True: []}
            for _ in range(arguments.repeats):
                sums = []
                for compiled in (False, True):
                    waited, seconds, weights = rounds(module, data, arguments.rounds, compiled, clock)
                    first.setdefault(compiled, waited)
                    steady[compiled].append(statistics.median(seconds))
                    sums.append(weights)
                assert abs(sums[0] / sums[1] - 1) < 1e-3, sums
        ratios = [after / before for before, after in zip(steady[False], steady[True], strict=True)]
        plain, fast = (1e3 * statistics.median(times) for times in steady.values())
        print(
            f"| {title} | {plain:.1f} | {fast:.1f} | {statistics.median(ratios):.2f} | {min(ratios):.2f} to"
            f" {max(ratios):.2f} | {first[False]:.1f} | {first[True]:.1f} |"
        )


if __name__ == "__main__":
    main()
