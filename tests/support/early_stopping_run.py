"""A run that Lightning's ``EarlyStopping`` ends, in a process of its own: rounds done and the callback's state."""

import json
import os
import sys
from pathlib import Path
from typing import Any

from lightning.pytorch.callbacks import EarlyStopping
from tiny import TinyClients, TinyModule

from lightning_fl import FederatedTrainer
from lightning_fl.callbacks import Callback


class StopAt(Callback):
    """Ends the run after a round, on rank zero alone."""

    def __init__(self, last: int) -> None:
        self.last = last

    def on_round_end(self, trainer: Any) -> None:
        if trainer.current_round == self.last and trainer.is_global_zero:
            trainer.should_stop = True


def run(root: Path, last: int = 0, ckpt_path: str | None = None, devices: int = 1) -> dict[str, Any]:
    """What is known when the run has ended, with EarlyStopping or before, after round ``last``."""
    stopping = EarlyStopping("val_loss", min_delta=0.05, patience=2)
    trainer = FederatedTrainer(
        max_rounds=30,
        accelerator="cpu",
        devices=devices,
        logger=False,
        enable_progress_bar=False,
        default_root_dir=root,
        callbacks=[stopping, StopAt(last)],
    )
    trainer.fit(TinyModule(), TinyClients((16, 10, 18)), ckpt_path=ckpt_path)
    kept = {name: float(value) for name, value in stopping.state_dict().items() if name != "stopping_reason_message"}
    return {"rounds": trainer.current_round, "stopped": trainer.should_stop, **kept}


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    runs = [("two", 0, None), ("cut", 3, None), ("cut", 0, "last")]
    found = [run(folder / name, last, path, devices=2) for name, last, path in runs]
    (folder / f"rank_{os.environ['LOCAL_RANK']}.json").write_text(json.dumps(found))
