"""A script whose run is killed at a chosen moment: started by tests, and imported for the runs that they compare."""

import argparse
import os
import signal
from pathlib import Path
from typing import Any, Literal

from tiny import TinyClients, TinyModule

import lightning_fl.files.atomic
from lightning_fl import FederatedTrainer
from lightning_fl.callbacks import (
    Callback,
    DROClientSampling,
    FineTuning,
    GainFigure,
    LearningCurves,
    LocalMixup,
    LocalReference,
    ModelCheckpoint,
    PersonalLayers,
    SamplingWeightsFigure,
)

ROUNDS = 4


class LoggingModule(TinyModule):
    """Logs single steps too."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = super().training_step(batch, batch_idx)
        self.log("train/loss", loss, on_step=True, on_epoch=True)
        return loss


class NamedClients(TinyClients):
    """Clients with names of all kinds."""

    def client_names(self) -> list[str]:
        return ["worst", "a/b", "λ"]


class KillInRound(Callback):
    """Kills its process in the middle of a round."""

    only_shows = True  # the run that goes on without it is the same

    def __init__(self, number: int) -> None:
        self.number = number

    def on_client_end(self, trainer: FederatedTrainer, client: int) -> None:
        if trainer.current_round + 1 == self.number:
            os.kill(os.getpid(), signal.SIGKILL)


def run(
    root: Path,
    ckpt_path: str | Path | None = None,
    extra: list[Callback] | None = None,
    mode: Literal["min", "max"] = "min",
    rounds: int = ROUNDS,
) -> Path:
    """Train, test the best round, and return the run's folder."""
    trainer = FederatedTrainer(
        callbacks=[
            *(extra or []),
            DROClientSampling(step_size=0.05),
            LocalMixup(alpha=0.4),
            PersonalLayers(layers=["linear.bias"]),
            LocalReference(),
            FineTuning(steps=2),
            LearningCurves(),
            SamplingWeightsFigure(),
            GainFigure(),
            ModelCheckpoint(every_n_rounds=2, mode=mode),
        ],
        default_root_dir=root,
        enable_progress_bar=False,
        seed=5,
        max_rounds=rounds,
        local_steps=3,
        log_every_n_steps=1,
        optimizer_state="keep",
    )
    module, data = LoggingModule(dropout=0.2, norm=True), NamedClients()
    trainer.fit(module, data, ckpt_path=ckpt_path)
    trainer.test(module, data, ckpt_path=trainer.trained_checkpoint)
    return Path(trainer.log_dir)


def kill_at_file(name: str, number: int, when: str) -> None:
    """Kill this process before or after a file of some name is there, or is another one, for the n-th time."""
    seen = 0
    replace = os.replace

    def counted(source: Path, target: Path) -> None:
        nonlocal seen
        seen += target.name == name
        dies = target.name == name and seen == number
        if dies and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        replace(source, target)
        if dies:
            os.kill(os.getpid(), signal.SIGKILL)

    lightning_fl.files.atomic.os.replace = counted  # type: ignore[assignment]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--ckpt-path")
    parser.add_argument("--round", type=int, help="killed in the middle of it")
    parser.add_argument("--file", help="NAME NUMBER before|after", nargs=3)
    arguments = parser.parse_args()
    if arguments.file:
        name, number, when = arguments.file
        kill_at_file(name, int(number), when)
    run(arguments.root, arguments.ckpt_path, [KillInRound(arguments.round)] if arguments.round else [])


if __name__ == "__main__":
    import killed_run  # whose classes bear its name, as those of the test's own runs

    killed_run.main()
