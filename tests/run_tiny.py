"""A script that federates the tiny module: started by tests as one or several real processes.

It writes the final weights of rank zero, as a hash of their bits, and every rank's opened files to ``--out``.
"""

import argparse
import hashlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
from tiny import FolderSilo, TinyClients, TinyModule

from lightning_fl import FederatedTrainer, Silos
from lightning_fl.callbacks import (
    HCCT,
    Callback,
    ClientArrivals,
    CollaborationGraph,
    DROClientSampling,
    FedCollab,
    FineTuning,
    LocalMixup,
    LocalReference,
    PersonalLayers,
    ShapleyRewards,
)


class Slowly(Callback):
    """Takes its time over a round, so that a test can kill the run in the middle of one."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def on_client_step_end(self, trainer: FederatedTrainer, client: int, num_steps: int) -> None:
        time.sleep(self.seconds)


def callbacks(seconds: float = 0.0, algorithm: str = "drflm") -> list[Any]:
    """An algorithm with state that crosses rounds."""
    slow = [Slowly(seconds)] if seconds else []
    if algorithm == "drflm":
        return [DROClientSampling(step_size=0.05), LocalMixup(alpha=0.4), *slow]
    if algorithm == "fedcollab":
        small = {"capacity": 1.0, "hidden": 8, "max_rounds": 40, "learning_rate": 0.5}
        return [FedCollab(**small, warm_up_rounds=1, layer="before"), ClientArrivals(rounds={"client_1": 3}), *slow]
    if algorithm == "graph":
        return [CollaborationGraph(budget=2, init_epochs=2), PersonalLayers(layers=["linear.bias"]), *slow]
    if algorithm.startswith("shapley"):
        method = algorithm.removeprefix("shapley_")
        return [ShapleyRewards(method=method, num_samples=4), PersonalLayers(layers=["linear.bias"]), *slow]
    late = [ClientArrivals(rounds={"client_1": 3}), PersonalLayers(layers=["linear.bias"]), LocalReference()]
    return [HCCT(tradeoff=1.0, layer="auto", every_n_rounds=2), *late, FineTuning(steps=2), *slow]


def settings(root: str, rounds: int) -> dict[str, Any]:
    """What all runs that are compared have in common."""
    return {
        "max_rounds": rounds,
        "local_steps": 3,
        "optimizer_state": "keep",
        "default_root_dir": root,
        "enable_progress_bar": False,
        "seed": 5,
    }


def digest(model: Any) -> str:
    """A hash of a model's bits."""
    vectors = sorted(model.state_dict().items())
    return hashlib.sha256(b"".join(vector.numpy().tobytes() for _, vector in vectors)).hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--root", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--num-nodes", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=0.0)
    parser.add_argument("--algorithm", default="drflm")
    parser.add_argument("--silos", help="a folder with rank_R/silo_I.pt for the silos that rank R may open")
    arguments = parser.parse_args()

    from lightning_fl.callbacks import ModelCheckpoint

    trainer = FederatedTrainer(
        accelerator="cpu",
        devices=arguments.devices,
        num_nodes=arguments.num_nodes,
        callbacks=[*callbacks(arguments.seconds, arguments.algorithm), ModelCheckpoint(every_n_rounds=1)],
        **settings(arguments.root, arguments.rounds),
    )
    module = TinyModule(dropout=0.2, norm=True)
    opened: set[str] = set()
    if arguments.silos:
        sys.addaudithook(lambda event, details: opened.add(str(details[0])) if event == "open" else None)
        trainer.launch()
        folder = Path(arguments.silos) / f"rank_{trainer.fabric.global_rank}"
        data: Any = Silos([FolderSilo(str(folder / f"silo_{i}.pt")) for i in range(4)])
    else:
        data = TinyClients()
    trainer.fit(module, data)
    trainer.test(module, data)
    record = {
        "weights": digest(trainer.models[0]),
        "test": trainer.metrics["test"]["test_loss"].clients,
        "distances": [c.distances.tolist() for c in trainer.callbacks if isinstance(c, FedCollab)],
        "chosen": [c.chosen for c in trainer.callbacks if isinstance(c, CollaborationGraph)],
        "contributions": [c.by_model for c in trainer.callbacks if isinstance(c, ShapleyRewards)],
        "models": [digest(trainer.models[client]) for client in range(len(trainer.models))],
        "gains": {name: gain.clients for name, gain in trainer.gains.get("test", {}).items()},
        "num_processes": trainer.fabric.world_size,
        "hosted": trainer.hosted_clients,
        "opened": sorted(Path(name).name for name in opened if "silo_" in name),
    }
    out = Path(arguments.out)
    out.with_name(f"{out.stem}_{trainer.fabric.global_rank}.json").write_text(json.dumps(record))
    print(os.getpid(), record["weights"], torch.get_num_threads())


if __name__ == "__main__":
    main()
