"""What valuing contributions costs: time of first-order Shapley values against one evaluation pass over the same data.

    uv run --group bench python benchmarks/contributions.py [--repeats 8]

LeNet, 20 clients of 250 training and 600 validation images, batches of 400 in both passes, one thread. An arm is a fit
of its own; in each, every round is evaluated and valued right after another, and the median over rounds of the ratio of
the two times is given.
"""

import argparse
import logging
import statistics
import tempfile
import time
import warnings

from workloads import JudgedClients, JudgedImageModule

from lightning_fl import FederatedTrainer
from lightning_fl.callbacks import ShapleyRewards

NUM_CLIENTS, TRAIN, VALIDATION, BATCH = 20, 250, 600, 100


class Timed(ShapleyRewards):
    """Times its own work and an evaluation of the same models."""

    def __init__(self, num_samples: int | None) -> None:
        super().__init__(num_samples=num_samples)
        self.ratios: list[float] = []
        self.milliseconds: list[float] = []

    def on_aggregate_end(self, trainer) -> None:  # type: ignore[no-untyped-def]
        before = time.perf_counter()
        trainer.evaluate_split("val")
        between = time.perf_counter()
        super().on_aggregate_end(trainer)
        after = time.perf_counter()
        self.ratios.append((after - between) / (between - before))
        self.milliseconds.append(1e3 * (after - between))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=8)
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")
    logging.getLogger("lightning").setLevel(logging.ERROR)
    data = JudgedClients(NUM_CLIENTS, TRAIN, VALIDATION, BATCH)
    print("| samples of each client's 600 | ms per round | x evaluation pass |\n|---|---|---|")
    for num_samples in (None, 256, 128):
        timed = Timed(num_samples)
        with tempfile.TemporaryDirectory() as root:
            trainer = FederatedTrainer(
                max_rounds=arguments.repeats + 1,
                optimizer_state="fresh",
                local_steps=1,
                callbacks=[timed],
                accelerator="cpu",
                logger=False,
                enable_checkpointing=False,
                enable_progress_bar=False,
                check_val_every_n_rounds=0,
                default_root_dir=root,
            )
            trainer.fit(JudgedImageModule(), data)
        ratio, spent = (statistics.median(times[1:]) for times in (timed.ratios, timed.milliseconds))
        print(f"| {num_samples or 'all'} | {spent:.1f} | {ratio:.2f} |")


if __name__ == "__main__":
    main()
