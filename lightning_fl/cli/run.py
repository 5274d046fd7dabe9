"""``lightning-fl fit``, ``validate``, ``test`` and ``predict``: from a recipe to a trainer that runs.

Recipes follow the conventions of LightningCLI: ``seed_everything``, ``trainer``, ``model``, ``data`` and
``ckpt_path``; classes by ``class_path`` and ``init_args``, with the short name for those of this package; several
``--config``, the later over the earlier, and single values on the command line after them.
"""

import atexit
import gc
import os
import shlex
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any

from jsonargparse import ActionConfigFile, ArgumentError, ArgumentParser, Namespace
from jsonargparse.typing import restricted_number_type

from lightning_fl.cli.diagnosis import collect_settings, compact, find_faults, load_recipe
from lightning_fl.errors import ConfigurationError, FederatedError
from lightning_fl.shipped import find_recipe

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule

    from lightning_fl.data.module import FederatedDataModule
    from lightning_fl.trainer import FederatedTrainer

__all__ = ["USAGE", "add_arguments", "explain", "instantiate", "run"]

#: The first line of the help; a list of all keys would be a page.
USAGE = "%(prog)s --config RECIPE [--config OVERRIDES ...] [--KEY VALUE ...]"

#: How long a rank that failed waits for rank zero to end it, before it reports its own error.
_RANK_ZERO_SECONDS = 10.0

Seed = restricted_number_type("Seed", int, [(">=", 0), ("<=", 2**32 - 1)], docstring="What NumPy takes as a seed.")


class _RecipeFile(ActionConfigFile):
    """``--config``: a file, or the name of a shipped recipe."""

    def __call__(self, parser: ArgumentParser, cfg: Namespace, values: str, option_string: str | None = None) -> None:
        path = find_recipe(values)
        load_recipe(path)  # refuses what is not YAML, with file and line
        super().__call__(parser, cfg, os.fspath(path), option_string)


def add_arguments(parser: ArgumentParser, command: str) -> None:
    """Add the keys of a recipe. Imports torch."""
    _import_short_names()
    from lightning.pytorch import LightningModule

    from lightning_fl.data.module import FederatedDataModule
    from lightning_fl.trainer import FederatedTrainer

    parser.add_argument(
        "--config", action=_RecipeFile, help="A recipe: a file, or the name of a shipped one. May be given repeatedly."
    )
    parser.add_argument("--seed_everything", type=Seed, default=0, help="Seed of everything that is random.")
    parser.add_class_arguments(FederatedTrainer, "trainer", fail_untyped=False)
    parser.add_subclass_arguments(LightningModule, "model", required=True, fail_untyped=False)
    parser.add_subclass_arguments(FederatedDataModule, "data", required=True, fail_untyped=False)
    if command == "fit":
        parser.add_argument("--ckpt_path", type=str | None, default=None, help="Go on from last, best or a file.")
    else:
        parser.add_argument("--ckpt_path", type=str, required=True, help="last, best or a file.")


def _import_short_names() -> None:
    """Import what recipes may name without its module: a class is known by its short name once it is imported."""
    # Modules of the user's own, beside the recipe; `python -m` looks there too.
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    # Imports make a million objects and next to no garbage: a fifth of their time would go into looking for it.
    with warnings.catch_warnings(), _collector_at_rest():
        # Dependencies warn of what they import from each other; no user of ours can mend that.
        warnings.simplefilter("ignore", FutureWarning)
        warnings.simplefilter("ignore", DeprecationWarning)
        for name in ("callbacks", "data", "models", "strategies"):
            package = import_module(f"lightning_fl.{name}")
            for exported in package.__all__:
                getattr(package, exported)
    # The same of PyG, which is imported when a recipe's class that needs it is made.
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"torch\.jit\.")


@contextmanager
def _collector_at_rest() -> Iterator[None]:
    """Without garbage collection; what is imported meanwhile, later collections pass by."""
    if "torch" in sys.modules or not gc.isenabled():  # imported already, and this process may be somebody's notebook
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        atexit.register(gc.unfreeze)  # libraries complain of instances that are left when Python ends
        gc.enable()


def explain(error: ArgumentError, command: str, parser: ArgumentParser, arguments: Sequence[str]) -> str:
    """What is wrong with the settings: all that can be told apart, one fault a line."""
    from lightning.fabric.loggers.logger import Logger
    from lightning.pytorch import LightningModule

    from lightning_fl.callbacks import BiddingPolicy, Callback
    from lightning_fl.data import FederatedDataModule, Partitioner
    from lightning_fl.strategies import FederatedStrategy

    settings = collect_settings(arguments)
    keys = [*parser.get_defaults(skip_validation=True).keys(branches=False), "config", "print_config", "help"]
    bases = {
        "model": LightningModule,
        "data": FederatedDataModule,
        "data.init_args.partitioner": Partitioner,
        "trainer.callbacks": Callback,
        "trainer.callbacks.init_args.policy": BiddingPolicy,
        "trainer.callbacks.init_args.policies": BiddingPolicy,
        "trainer.strategy": FederatedStrategy,
        "trainer.logger": Logger,
    }
    faults = find_faults(settings, keys, bases)
    missing = [key for key in ("model", "data") if not settings.get(key)]
    if missing and not faults:
        faults.append(
            f"{' and '.join(missing)} not given: name a recipe with --config (`lightning-fl recipes` lists the shipped"
            " ones), or give the classes with --model and --data."
        )
    if command != "fit" and not settings.get("ckpt_path"):
        faults.append(f"ckpt_path not given: add --ckpt_path with last, best or a file, for lightning-fl {command}.")
    return "\n".join(faults) or compact(str(error))


def run(command: str, config: Namespace, parser: ArgumentParser, arguments: Sequence[str]) -> int:
    """Instantiate and run; returns the exit code."""
    from lightning import seed_everything

    from lightning_fl.cli.processes import choose_processes
    from lightning_fl.cli.saved_config import SaveConfig, flat_hyperparameters
    from lightning_fl.strategies.fork_launcher import ForkLauncher, end_fork

    seed_everything(int(config.seed_everything), verbose=False)
    made = instantiate(parser, config)
    trainer: FederatedTrainer = made.trainer
    if command == "fit":
        said = choose_processes(trainer, made.model, made.data, config.trainer.devices, arguments)
        if said is not None:
            print(said, file=sys.stderr)
    trainer.callbacks.insert(0, SaveConfig(parser.dump(config, skip_unset=False)))
    trainer.run_log.hyperparameters = flat_hyperparameters(config.as_dict())
    try:
        code = _COMMANDS[command](trainer, made.model, made.data, config.ckpt_path, arguments)
    except BaseException as error:
        _end_together(trainer, error)
        raise
    if isinstance(trainer.strategy.launcher, ForkLauncher) and not trainer.is_global_zero:
        end_fork(int(code))
    return int(code)


class _ConstructorError(BaseException):
    """Carries a constructor's error past the parser, which takes any ``Exception`` for a value of the wrong type."""

    def __init__(self, error: Exception) -> None:
        self.error = error


def instantiate(parser: ArgumentParser, config: Namespace) -> Namespace:
    """The trainer, the model and the data of a recipe.

    Raises:
        FederatedError: an argument is refused; the message names the class.
    """
    try:
        return parser.instantiate(config, instantiators=[(_construct, object, True)])
    except _ConstructorError as carrier:
        raise carrier.error from carrier.error.__cause__


def _construct(class_type: type, *args: Any, **kwargs: Any) -> Any:
    try:
        return class_type(*args, **kwargs)
    except FederatedError as error:
        name, text = class_type.__name__, str(error)
        named = error if name in text or text.startswith("trainer.") else type(error)(f"{name}: {text}")
        named.__cause__ = error.__cause__
        raise _ConstructorError(named) from error
    except Exception as error:
        raise _ConstructorError(error) from error


def _fit(
    trainer: "FederatedTrainer",
    module: "LightningModule",
    data: "FederatedDataModule",
    ckpt_path: str | None,
    arguments: Sequence[str],
) -> int:
    from lightning.pytorch.utilities.model_helpers import is_overridden

    trainer.fit(module, data, ckpt_path=ckpt_path)
    if trainer.interrupted_by is not None:
        # The other ranks end well, or Fabric's launcher would kill rank zero for their exit code.
        if not trainer.is_global_zero:
            return 0
        if trainer.checkpoint_callback is not None:
            print(f"To go on from round {trainer.current_round}: {_resume_command(arguments)}", file=sys.stderr)
        return 128 + trainer.interrupted_by
    if is_overridden("test_step", module):
        trainer.test(module, data, ckpt_path=trainer.trained_checkpoint)
    _print_report(trainer)
    return 0


def _resume_command(arguments: Sequence[str]) -> str:
    words = []
    rest = iter(arguments)
    for word in rest:
        if word == "--ckpt_path":
            next(rest, None)
        elif not word.startswith("--ckpt_path="):
            words.append(word)
    return shlex.join(["lightning-fl", "fit", *words, "--ckpt_path", "last"])


def _validate(
    trainer: "FederatedTrainer",
    module: "LightningModule",
    data: "FederatedDataModule",
    ckpt_path: str,
    arguments: Sequence[str],
) -> int:
    trainer.validate(module, data, ckpt_path=ckpt_path)
    _print_report(trainer)
    return 0


def _test(
    trainer: "FederatedTrainer",
    module: "LightningModule",
    data: "FederatedDataModule",
    ckpt_path: str,
    arguments: Sequence[str],
) -> int:
    trainer.test(module, data, ckpt_path=ckpt_path)
    _print_report(trainer)
    return 0


def _predict(
    trainer: "FederatedTrainer",
    module: "LightningModule",
    data: "FederatedDataModule",
    ckpt_path: str,
    arguments: Sequence[str],
) -> int:
    from lightning.pytorch.utilities.model_helpers import is_overridden

    from lightning_fl.cli.predictions import write_predictions

    if not is_overridden("predict_step", module) and not is_overridden("forward", module):
        raise ConfigurationError(
            f"{type(module).__name__} defines neither predict_step nor forward: lightning-fl predict needs one."
        )
    outputs = trainer.predict(module, data, ckpt_path=ckpt_path)
    folder = write_predictions(trainer, outputs)
    if trainer.is_global_zero:
        print(f"predictions: {folder}")
    return 0


_COMMANDS: dict[str, Any] = {"fit": _fit, "validate": _validate, "test": _test, "predict": _predict}


def _print_report(trainer: "FederatedTrainer") -> None:
    from lightning_fl.report import print_report

    if trainer.is_global_zero:
        print_report(trainer)


def _end_together(trainer: "FederatedTrainer", error: BaseException) -> None:
    """See that all ranks end, with one report of the error: rank zero's, or that of the rank that has it alone."""
    if trainer.is_global_zero:
        # Processes that this one started would wait for it in vain; under torchrun or SLURM the launcher ends them.
        for process in getattr(trainer.strategy.launcher, "procs", []):
            process.kill()
    elif isinstance(error, Exception):
        # If rank zero failed too, it ends this process meanwhile: the same error, or a broken connection, goes unsaid.
        time.sleep(_RANK_ZERO_SECONDS)
        print(f"on rank {trainer.fabric.global_rank}:", file=sys.stderr)
