"""Training and evaluation from a recipe: ``lightning-fl fit``, ``validate``, ``test`` and ``predict``."""

import multiprocessing
import os
import shlex
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jsonargparse import ArgumentParser, Namespace
from torch.nn.parameter import is_lazy

from lightning_fl.core.environment import usable_cores
from lightning_fl.data.module import FederatedDataModule, known_clients
from lightning_fl.files.user_file import near
from lightning_fl.recipe.file import flat_settings, load_recipe
from lightning_fl.recipe.instantiate import instantiate
from lightning_fl.recipe.parser import USAGE, add_arguments, parse
from lightning_fl.version import __version__

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule

    from lightning_fl.trainer.trainer import FederatedTrainer

__all__ = ["USAGE", "add_arguments", "parse", "run"]

#: A failed rank waits so long for its machine's first rank to end it; then it reports the error itself.
_FIRST_RANK_SECONDS = 5.0
#: Parameters. A process needs about 32 bytes for each (model, gradient, momentum, the two halves of an exact sum).
_SMALL_MODEL = 20_000_000


def run(command: str, config: Namespace, parser: ArgumentParser, arguments: Sequence[str]) -> int:
    """Instantiate and run; returns the exit code."""
    from lightning import seed_everything

    from lightning_fl.engine.interrupt import end_fork
    from lightning_fl.strategies.fork_launcher import ForkLauncher

    seed_everything(int(config.seed_everything), verbose=False)
    here = os.getcwd()
    made = instantiate(parser, config)
    trainer: FederatedTrainer = made.trainer
    trainer.run_log.root = Path(here, trainer.default_root_dir)  # a class of the recipe may have changed the folder
    if command == "fit":
        notice = choose_processes(trainer, made.model, made.data, config.trainer.devices, arguments)
        if notice is not None:
            print(notice, file=sys.stderr)
    kept = config.clone()
    kept.ckpt_path = None if command == "fit" else config.ckpt_path  # a resumed run's recipe starts the whole run
    trainer.run_log.recipe = f"# lightning-fl {__version__}\n{parser.dump(kept, skip_unset=False)}"
    trainer.run_log.hyperparameters = _hyperparameters(config.as_dict())
    try:
        code = _COMMANDS[command](made, config.ckpt_path, arguments)
    except BaseException as error:
        trainer.strategy.disconnect(error)  # where no run has done so
        _end_together(trainer, error)
        raise
    if isinstance(trainer.strategy.launcher, ForkLauncher) and not trainer.is_global_zero:
        end_fork(int(code))
    return int(code)


def choose_processes(
    trainer: "FederatedTrainer",
    module: "LightningModule",
    data: FederatedDataModule,
    devices: int | str | list[int],
    words: Sequence[str],
) -> str | None:
    """Fork processes, with ``devices="auto"`` as cores and clients allow; returns a line about the choice.

    Each has one thread, because small models gain from processes and not from threads. Forks are safe on Linux, without
    an accelerator, in a process that runs nothing but the command.
    """
    strategy = trainer.strategy
    owned = sys.argv[1:] == ["fit", *words] and multiprocessing.parent_process() is None
    if strategy.root_device.type == "cuda" or not owned or threading.active_count() > 1 or not strategy.can_fork:
        return None
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # torch's optimisers would open a GPU to ask whether it is captured
    if devices != "auto":
        strategy.fork_processes(strategy.num_processes)
        return None
    cores, clients = usable_cores(), known_clients(data)
    size = sum(parameter.numel() for parameter in module.parameters() if not is_lazy(parameter))
    blocks = clients and -(-clients // trainer.stacked_clients)  # of clients that train at once
    processes = min(cores, blocks or cores)
    if processes < 2 or not 0 < size <= _SMALL_MODEL:
        return None
    strategy.fork_processes(processes)
    whom = "" if clients is None else f" for {clients} clients"
    why = f"there are {cores} cores and the model is small ({size:,} parameters)"
    advice = "--trainer.devices 1 keeps to one; the results are the same."
    return f"{processes} processes of one thread each{whom}: {why}. {advice}"


def _hyperparameters(config: Mapping[str, Any]) -> dict[str, bool | int | float | str]:
    """Settings for the loggers' tables of runs, where lists are texts and null is left out."""
    flat = flat_settings({key: value for key, value in config.items() if key not in ("config", "ckpt_path")})
    plain = (bool, int, float, str)
    return {
        path: next((kind(value) for kind in plain if isinstance(value, kind)), str(value))  # not a subclass of them
        for path, value in flat
        if value is not None
    }


def _fit(made: Namespace, ckpt_path: str | None, arguments: Sequence[str]) -> int:
    from lightning_fl.core.lightning_types import is_overridden

    trainer: FederatedTrainer = made.trainer
    try:
        trainer.fit(made.model, made.data, ckpt_path=ckpt_path)
    except (KeyboardInterrupt, SystemExit):
        if trainer.federation.interrupted_by is None:
            raise
        if not trainer.is_global_zero:
            return 0
        print(f"run: {trainer.log_dir}", file=sys.stderr)
        if trainer.checkpoint_callback is not None:
            done = trainer.federation.current_round
            last = near(trainer.log_dir) / "checkpoints" / "last.ckpt"
            print(f"To resume from round {done}: {_resume_command(arguments, last)}", file=sys.stderr)
        return 128 + trainer.federation.interrupted_by
    if is_overridden("test_step", made.model):
        trainer.test(made.model, made.data, ckpt_path=trainer.trained_checkpoint)
    _print_report(trainer)
    return 0


def _resume_command(arguments: Sequence[str], checkpoint: Path) -> str:
    words = []
    rest = iter(arguments)
    for word in rest:
        if word == "--ckpt_path":
            next(rest, None)
        elif not word.startswith("--ckpt_path="):
            words.append(word)
    return shlex.join(["lightning-fl", "fit", *words, "--ckpt_path", str(checkpoint)])


def _evaluate(method: str, made: Namespace, ckpt_path: str, arguments: Sequence[str]) -> int:
    getattr(made.trainer, method)(made.model, made.data, ckpt_path=ckpt_path)
    _print_report(made.trainer)
    return 0


def _predict(made: Namespace, ckpt_path: str, arguments: Sequence[str]) -> int:
    from lightning_fl.recipe.predictions import write_predictions

    folder = write_predictions(made.trainer, made.trainer.predict(made.model, made.data, ckpt_path=ckpt_path))
    made.trainer.processes.of_ranks(None)  # every rank's files are there
    if made.trainer.is_global_zero:
        print(f"predictions: {folder}")
    return 0


_COMMANDS: dict[str, Any] = {
    "fit": _fit,
    "validate": partial(_evaluate, "validate"),
    "test": partial(_evaluate, "test"),
    "predict": _predict,
}


def _print_report(trainer: "FederatedTrainer") -> None:
    from lightning_fl.recipe.trust import predict_command
    from lightning_fl.trainer.report import print_report

    if trainer.is_global_zero:
        folder = Path(trainer.log_dir)
        recipe = load_recipe(folder / "config.yaml")
        print_report(trainer, predict=predict_command(folder, recipe, trainer.run_log.summary))


def _end_together(trainer: "FederatedTrainer", error: BaseException) -> None:
    """End all ranks, with one report of the error on every machine, by its first rank."""
    if trainer.fabric.local_rank == 0:
        # Kills processes that this one started; under torchrun or SLURM the launcher does.
        for process in getattr(trainer.strategy.launcher, "procs", []):
            process.kill()
    elif isinstance(error, Exception):
        time.sleep(_FIRST_RANK_SECONDS)
        print(f"on rank {trainer.fabric.global_rank}:", file=sys.stderr)
