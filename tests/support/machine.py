"""A script that is one machine of several: started by tests in a folder of its own, which no other machine sees.

Its only silo, some samples and personal layers, is made by its rank. What ends it is one line on standard error.
"""

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed
from meeting import Meeting
from tiny import FolderSilo, TinyClients, TinyModule, digest

from lightning_fl import FederatedTrainer, Silos
from lightning_fl.callbacks import Callback, FineTuning, LocalReference, ModelCheckpoint, PersonalLayers
from lightning_fl.recipe.error_messages import exit_code
from lightning_fl.strategies import peers


def refuse_objects() -> None:
    """Torch's collectives of pickled objects all end here."""

    def unpickle(*of_message: Any) -> None:
        raise AssertionError("a rank's message is unpickled")

    torch.distributed.distributed_c10d._tensor_to_object = unpickle


GONE = "the disk of this machine is gone"


class Failing(Callback):
    """On all machines; raises in one hook on this one, where it is told to."""

    def __init__(self, hook: str | None) -> None:
        self._hook = hook

    def _raise_in(self, hook: str) -> None:
        if hook == self._hook:
            raise OSError(GONE)

    def setup(self, trainer: FederatedTrainer, stage: str) -> None:
        self._raise_in("setup")

    def on_round_start(self, trainer: FederatedTrainer) -> None:
        self._raise_in("on_round_start")

    def on_client_end(self, trainer: FederatedTrainer, client: int) -> None:
        if self._hook == "busy":
            print("at work", file=sys.stderr, flush=True)
        while self._hook == "busy":  # and never comes to an exchange
            time.sleep(0.05)

    def on_evaluate_end(self, trainer: FederatedTrainer, split: str, metrics: Any) -> None:
        self._raise_in("on_evaluate_end")

    def on_fit_end(self, trainer: FederatedTrainer) -> None:
        self._raise_in("on_fit_end")

    def teardown(self, trainer: FederatedTrainer, stage: str) -> None:
        self._raise_in("teardown")


class FailingStep(TinyModule):
    """Raises in a client's first step."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        raise OSError(GONE)


class FailingModule(TinyModule):
    """Raises in one hook."""

    def on_validation_start(self) -> None:
        raise OSError(GONE)


FailingModule.__name__ = FailingStep.__name__ = TinyModule.__name__


def failing_in(hook: str, kind: type[Any]) -> type[Any]:
    """A class of the same name, of which one method raises."""

    def fails(*_: Any, **__: Any) -> None:
        raise OSError(GONE)

    return type(kind.__name__, (kind,), {hook: fails})


class FailingSilo(FolderSilo):
    """Cannot be opened."""

    def setup(self, stage: str) -> None:
        raise OSError(GONE)


def silos(number: int, failing: bool = False) -> Silos:
    """One for each machine; each finds its own file only."""
    kind = FailingSilo if failing else FolderSilo
    return Silos([kind(f"silo_{i}.pt") for i in range(number)])


def failing(where: str | None) -> Callback:
    """The callback that all machines have; ``callback:HOOK`` names any hook of it."""
    owner, _, hook = (where or "").partition(":")
    return failing_in(hook, Failing)(None) if owner == "callback" else Failing(where)


def trainer_of(arguments: argparse.Namespace) -> FederatedTrainer:
    """What all machines agree on, unless they are told otherwise."""
    callbacks: list[Callback] = [
        PersonalLayers(layers=["linear.bias"]),
        LocalReference(),
        FineTuning(steps=2),
        failing(arguments.fail),
    ]
    met = [Meeting(arguments.meet_in_round)] if arguments.meet_in_round else []
    return FederatedTrainer(
        accelerator="cpu",
        devices=1,
        num_nodes=arguments.num_nodes,
        callbacks=[*callbacks, ModelCheckpoint(every_n_rounds=1), *met],
        max_rounds=arguments.rounds,
        local_steps=3,
        optimizer_state="keep",
        enable_progress_bar=False,
        seed=arguments.seed,
        timeout=arguments.timeout,
    )


def main(arguments: argparse.Namespace) -> int:
    refuse_objects()
    peers._LINES, peers._LOST = arguments.lines, arguments.lost
    trainer = trainer_of(arguments)
    owner, _, hook = (arguments.fail or "").partition(":")
    kind = {"module": FailingModule, "step": FailingStep}.get(arguments.fail, TinyModule)
    if owner == "module" and hook:
        kind = failing_in(hook, TinyModule)
    module = kind(dropout=0.2, norm=True, learning_rate=arguments.learning_rate)
    data: Any = silos(arguments.silos, arguments.fail == "data")
    if arguments.sizes:
        data = TinyClients(tuple(arguments.sizes))
    if arguments.command == "test":
        trainer.test(module, data, ckpt_path=arguments.ckpt_path)
    else:
        trainer.fit(module, data, ckpt_path=arguments.ckpt_path)
        trainer.test(module, data, ckpt_path=trainer.trained_checkpoint)
    record = {
        "weights": digest(trainer.models[0]),
        "test": {str(k): v for k, v in next(iter(trainer.metrics["test"].values())).clients.items()},
        "gains": {name: gain.clients for name, gain in trainer.gains.get("test", {}).items()},
        "best_round": trainer.checkpoint_callback.best_round,
        "log_dir": trainer.log_dir,
    }
    Path("record.json").write_text(json.dumps(record))
    return 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("command", choices=["fit", "test"])
    parser.add_argument("--num-nodes", type=int, default=3)
    parser.add_argument("--silos", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--seed", type=int, default=5)
    parser.add_argument("--learning-rate", type=float, default=0.05)
    parser.add_argument("--timeout", type=float, default=600.0)
    parser.add_argument("--lines", type=float, default=5.0, help="seconds between lines about missing machines")
    parser.add_argument("--lost", type=float, default=peers._LOST, help="seconds without a sign of a machine")
    parser.add_argument("--ckpt-path")
    parser.add_argument("--meet-in-round", type=int)
    parser.add_argument("--fail", help="'data', 'module', 'step', 'module:HOOK', 'callback:HOOK', or one of Failing's")
    parser.add_argument("--sizes", type=int, nargs="*", help="samples of clients whose data all machines have")
    code = exit_code(lambda: main(parser.parse_args()))
    print(os.environ.get("NODE_RANK"), "ends with", code, flush=True)
    sys.exit(code)
