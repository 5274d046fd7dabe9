"""Who of three clients of CIFAR-10 should train together: DPFL's appendix A and HCCT's table II.

    LIGHTNING_FL_DATA=DATA uv run python benchmarks/three_clients.py dpfl|hcct [--seeds 0 1 2]

Every group of clients trains with FedAvg, the model and its settings from the recipe. Printed in Markdown: accuracy of
the last round on test images of each client's classes, mean and standard deviation over seeds, and how much better a
client is in a group than alone, paired by seed, with 95 % t-intervals.

dpfl: client 1 has 50 images each of the classes 0, 4, 6 and 8, client 2 has 300 of 0 and 6 and 200 of 1 and 3, client 3
has 300 of 4 and 8 and 200 of 5 and 7; tested also after fine-tuning. hcct: clients 1 and 2 have 5 % and 10 % of the
classes 0 to 4 (the paper's shares are not at hand), client 3 has all of the classes 5 to 9.
"""

import argparse
import logging
import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import yaml
from tier_study import interval, spread
from torch import Tensor
from torch.utils.data import Dataset

from lightning_fl import FederatedTrainer
from lightning_fl.callbacks import FineTuning
from lightning_fl.core.seeding import seeded_as
from lightning_fl.data import ImageData
from lightning_fl.data.partition.classes import read_classes
from lightning_fl.data.partition.labels import deal_classes
from lightning_fl.data.partition.partitioner import JointPartitioner
from lightning_fl.models import ClassificationModel

TEST_IMAGES = 150  # of each of a client's classes; at most two clients share a class
EPOCHS, ROUNDS = {"dpfl": 5, "hcct": 1}, 20
COUNTS = {
    "dpfl": torch.tensor(
        [
            [50, 0, 0, 0, 50, 0, 50, 0, 50, 0],
            [300, 200, 0, 200, 0, 0, 300, 0, 0, 0],
            [0, 0, 0, 0, 300, 200, 0, 200, 300, 0],
        ]
    ),
    "hcct": torch.tensor([[150] * 5 + [0] * 5, [300] * 5 + [0] * 5, [0] * 5 + [3000] * 5]),
}
GROUPS: dict[str, list[tuple[int, ...]]] = {
    "dpfl": [(0,), (0, 1), (0, 2), (0, 1, 2)],
    "hcct": [(0,), (1,), (2,), (0, 1, 2), (0, 1), (0, 2), (1, 2)],
}


class ClassCounts(JointPartitioner):
    """Some clients of a table of images by client and class; a client's images do not depend on the others."""

    def __init__(self, counts: Tensor, clients: tuple[int, ...]) -> None:
        self.counts, self.clients = counts, clients
        self.num_clients = len(clients)

    def partition_splits(self, datasets: Mapping[Any, Dataset], seed: int) -> Mapping[Any, list[Tensor]]:
        classes = read_classes(datasets, num_bins=2, remedy="choose a data set with classes")
        counts = {"train": self.counts, "test": TEST_IMAGES * (self.counts > 0)}
        parts = {split: deal_classes(classes[split], counts[split].T, seed) for split in datasets}
        return {split: [of_split[client] for client in self.clients] for split, of_split in parts.items()}

    def describe(self) -> dict[str, Any]:
        return {"name": "ClassCounts", "counts": self.counts[list(self.clients)].tolist()}


def recipe(name: str) -> dict[str, Any]:
    """The settings of a shipped recipe."""
    return yaml.safe_load((Path(__file__).parents[1] / "recipes" / f"{name}.yaml").read_text())


def fit(settings: dict[str, Any], data: Any, callbacks: list[Any], seed: int, **options: Any) -> dict[int, float]:
    """Each client's test accuracy in percent after the last round of a recipe's model; options are the trainer's."""
    with seeded_as(seed), tempfile.TemporaryDirectory() as scratch:
        trainer = FederatedTrainer(
            **options,
            callbacks=callbacks,
            seed=seed,
            devices=1,
            default_root_dir=scratch,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
        )
        model = ClassificationModel(**settings["model"]["init_args"])
        trainer.fit(model, data)
        return {client: 100 * value for client, value in trainer.test(model, data)["test/acc"].clients.items()}


def accuracies(task: str, group: tuple[int, ...], seed: int, fine_tuning: bool) -> dict[int, float]:
    """Each client's accuracy in percent, of the group's model or of its own after fine-tuning."""
    settings = recipe({"dpfl": "dpfl_cifar10_patho", "hcct": "hcct_cifar10"}[task])
    batches = {name: settings["data"]["init_args"][name] for name in ("batch_size", "eval_batch_size")}
    partitioner = ClassCounts(COUNTS[task], group)
    data = ImageData(name="cifar10", source="real", partitioner=partitioner, split=[1.0, 0.0, 0.0], **batches)
    callbacks = [FineTuning(epochs=EPOCHS[task])] if fine_tuning else []
    found = fit(settings, data, callbacks, seed, max_rounds=ROUNDS, local_epochs=EPOCHS[task])
    return {client: found[place] for place, client in enumerate(group)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=list(COUNTS))
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(10)))
    parser.add_argument(
        "--clients", type=int, nargs="+", choices=[1, 2, 3], default=[1, 2, 3], help="only groups of these"
    )
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    print("| model | clients | accuracy: 1 | 2 | 3 | better than alone: 1 | 2 | 3 |\n|---|---|---|---|---|---|---|---|")
    for fine_tuning in (False, True) if arguments.task == "dpfl" else (False,):
        alone: dict[int, list[float]] = {}
        for group in (one for one in GROUPS[arguments.task] if {client + 1 for client in one} <= {*arguments.clients}):
            runs = [accuracies(arguments.task, group, seed, fine_tuning) for seed in arguments.seeds]
            of_clients = {client: [run[client] for run in runs] for client in group}
            if len(group) == 1:
                alone |= of_clients
            figures, gains = [""] * 3, [""] * 3
            for client, values in of_clients.items():
                figures[client] = spread(values)
                if len(group) > 1 and client in alone:
                    gains[client] = interval([a - b for a, b in zip(values, alone[client], strict=True)])
            kind, named = "fine-tuned" if fine_tuning else "shared", "+".join(str(client + 1) for client in group)
            print(f"| {kind} | {named} | {' | '.join(figures + gains)} |", flush=True)


if __name__ == "__main__":
    main()
