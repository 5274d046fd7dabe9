"""A run with Lightning's ``StochasticWeightAveraging``, in a process of its own: the averaged weights."""

import os
import sys
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.callbacks import StochasticWeightAveraging
from tiny import TinyClients, TinyModule

from lightning_fl import FederatedTrainer


def run(root: Path, devices: int = 1) -> dict[str, torch.Tensor]:
    """The weights after four rounds, of which three are averaged."""
    options: dict[str, Any] = {"accelerator": "cpu", "logger": False, "enable_progress_bar": False}
    averaging = StochasticWeightAveraging(0.02, swa_epoch_start=2)
    trainer = FederatedTrainer(max_rounds=4, devices=devices, default_root_dir=root, callbacks=averaging, **options)
    module = TinyModule(norm=True)
    trainer.fit(module, TinyClients((16, 10, 18)))
    return module.state_dict()


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    torch.save(run(folder / "two", devices=2), folder / f"rank_{os.environ['LOCAL_RANK']}.pt")
