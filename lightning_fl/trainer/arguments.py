"""Checks of the trainer's arguments before any data are read; Fabric and callbacks made from them."""

import os
import warnings
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import fields
from importlib import import_module
from inspect import signature
from itertools import combinations
from typing import Any, TypeGuard

import torch
from lightning.fabric import Fabric
from lightning.fabric.accelerators import CUDAAccelerator
from lightning.fabric.strategies import STRATEGY_REGISTRY
from lightning.fabric.utilities.imports import _IS_INTERACTIVE
from lightning.fabric.utilities.rank_zero import rank_zero_warn

from lightning_fl.callbacks.callback import RENAMED_HOOKS, Callback
from lightning_fl.callbacks.figures.figures import FigureCallback
from lightning_fl.callbacks.model_checkpoint import ModelCheckpoint
from lightning_fl.callbacks.progress import ProgressDisplay
from lightning_fl.core.environment import usable_cores
from lightning_fl.core.errors import ConfigurationError, did_you_mean, page
from lightning_fl.core.lightning_types import AnyLightningCallback, AnyModule, is_overridden
from lightning_fl.core.validation import faults_of
from lightning_fl.data.module import FederatedDataModule
from lightning_fl.engine.hooks import overrides
from lightning_fl.engine.learner import Learner
from lightning_fl.engine.settings import Settings
from lightning_fl.engine.turn.compilation import compile_faults
from lightning_fl.engine.turn.module_callbacks import check_callback
from lightning_fl.strategies.federated import FederatedStrategy
from lightning_fl.strategies.rank_exchange import check_shared_devices

AnyCallback = Callback | AnyLightningCallback

#: How several processes run where the program cannot be started again for each.
IN_NOTEBOOKS = (
    "in a notebook several processes are forked for the time of lightning_fl.federate(..., devices=2,"
    " accelerator='cpu'), on Linux and one machine. Elsewhere set devices=1, or write a script or a recipe and start it"
    " with `!python script.py` or `!lightning-fl fit --config recipe.yaml --trainer.devices 2`."
)


def make_fabric(trainer: Any, strategy: str | FederatedStrategy) -> Fabric:
    """Fabric with a federated strategy and the trainer's arguments; refuses devices that are not there."""
    strategy = _strategy(strategy)
    accelerator, devices, per_device = trainer.accelerator, trainer.devices, trainer.processes_per_device
    if accelerator == "auto" and not torch.cuda.is_available():
        accelerator = "cpu"
    if devices == "auto" and accelerator == "cpu":
        devices = 1
    if accelerator == "cpu" and str(devices).isdigit():
        _check_processes(int(str(devices)), "trainer.devices")
    check_shared_devices(strategy.process_group_backend, accelerator, devices, per_device)
    count = devices if isinstance(devices, int) else len(devices) if isinstance(devices, list) else 1
    if trainer.num_nodes > 1 or count > 1 or per_device > 1:
        if _IS_INTERACTIVE:
            raise ConfigurationError(f"trainer.devices={devices}, num_nodes={trainer.num_nodes}: {IN_NOTEBOOKS}")
        if strategy._start_method != "popen":
            raise ConfigurationError(f"trainer.strategy: omit start_method={strategy._start_method!r} in a trainer.")
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*can be significantly better.*")
            if per_device > 1:
                asked = CUDAAccelerator.auto_device_count() if devices == "auto" else devices
                numbers = CUDAAccelerator.parse_devices(asked) or []
                strategy.parallel_devices = CUDAAccelerator.get_parallel_devices(numbers) * per_device
                _check_processes(strategy.num_processes, "trainer.devices and trainer.processes_per_device")
            return Fabric(
                strategy=strategy,
                accelerator=accelerator,
                devices=devices,
                num_nodes=trainer.num_nodes,
                precision=trainer.precision,
                plugins=trainer.plugins,
            )
    except ConfigurationError:
        raise
    except Exception as error:
        available = f"{torch.cuda.device_count()} CUDA device(s)" if torch.cuda.is_available() else "no CUDA device"
        given = f"trainer.accelerator={accelerator}, trainer.devices={devices}: {' '.join(str(error).split())}"
        raise ConfigurationError(f"{given} This machine has {available} and {usable_cores()} CPU cores.") from error


def _strategy(strategy: object) -> FederatedStrategy:
    """Make the strategy of a registered name or an import path, with its default arguments."""
    if isinstance(strategy, FederatedStrategy):
        if strategy.accelerator is not None:
            name = type(strategy).__name__
            raise ConfigurationError(f"trainer.strategy: this {name} is another trainer's: make a new {name}.")
        return strategy
    kind: Any
    module, _, cls = str(strategy).rpartition(".")
    if (found := registered_strategy(strategy)) is not None:
        kind, arguments = found
    else:
        try:
            kind, arguments = getattr(import_module(module), cls) if module else None, {}
        except (ImportError, AttributeError) as error:
            raise ConfigurationError(f"trainer.strategy={strategy!r} cannot be imported: {error}.") from error
    if not _is_federated(kind):
        names = [name for name in sorted(STRATEGY_REGISTRY) if registered_strategy(name)]
        names = [name for name in names if not name.endswith(("_fork", "_spawn"))]
        known = f"{did_you_mean(str(strategy), names)}. Registered are: {', '.join(names)}"
        own = "name your own with its module, as in my_package.MyStrategy"
        raise ConfigurationError(f"trainer.strategy={strategy!r} is not a federated strategy{known}; {own}.")
    try:
        return kind(**arguments)
    except TypeError as error:
        remedy = f"Give its arguments: {{class_path: {strategy}, init_args: {{...}}}}, in Python the strategy itself"
        raise ConfigurationError(f"trainer.strategy={strategy!r}: {error}. {remedy}.") from error


def registered_strategy(name: object) -> tuple[type[FederatedStrategy], dict[str, Any]] | None:
    """The class registered with Fabric under a strategy's name, and the arguments that the name implies."""
    entry = dict(STRATEGY_REGISTRY).get(str(name).lower())
    if entry is None or not _is_federated(entry["strategy"]):
        return None
    return entry["strategy"], dict(entry["init_params"])


def _is_federated(kind: object) -> TypeGuard[type[FederatedStrategy]]:
    return isinstance(kind, type) and issubclass(kind, FederatedStrategy)


def _check_processes(number: int, names: str) -> None:
    """Refuse far more processes than this machine's cores can run at once, before they are started."""
    if number > _most() and "LOCAL_RANK" not in os.environ:
        raise ConfigurationError(f"{names}: {number} processes are too many for {usable_cores()} CPU cores. Use fewer.")


def _most() -> int:
    """The most processes, and the most threads of a process, that are accepted."""
    return max(4 * usable_cores(), 8)


def complete_callbacks(
    callbacks: AnyCallback | Sequence[AnyCallback] | None, progress: bool, checkpointing: bool
) -> tuple[list[Callback], list[AnyLightningCallback]]:
    """Callbacks of this package in order, with the default progress display and checkpoints; and Lightning's."""
    everything: Any = [] if callbacks is None else callbacks if isinstance(callbacks, list | tuple) else [callbacks]
    given = [one for one in everything if isinstance(one, Callback)]
    of_lightning = [one for one in everything if not isinstance(one, Callback)]
    for one in of_lightning:
        check_callback(one, "trainer.callbacks")
    known = [name for name, value in vars(Callback).items() if callable(value)]
    decided: dict[str, list[str]] = defaultdict(list)
    for callback in given:
        for name in dir(type(callback)):
            if new := RENAMED_HOOKS.get(name):
                hook = f"{type(callback).__name__}.{name}"
                raise ConfigurationError(f"{hook} is now called {new}: see {page('extending#which-hook')}.")
            if name.startswith("on_") and name not in known and callable(getattr(callback, name)):
                what = f"{type(callback).__name__}.{name} is not a hook and is never called"
                rank_zero_warn(f"{what}{did_you_mean(name, known)}. {page('extending#which-hook')} lists all hooks.")
        if callback.role and not callback.several:
            decided[f"decide the {callback.role} of clients"].append(type(callback).__name__)
        if overrides(callback, "select_clients", Callback):
            decided["select the clients of a round"].append(type(callback).__name__)
    for what, names in decided.items():
        if len(names) > 1:
            raise ConfigurationError(f"{' and '.join(names)} both {what}: keep one of them in trainer.callbacks.")
    _refuse_twice(given)
    if progress and not any(isinstance(callback, ProgressDisplay) for callback in given):
        given.append(ProgressDisplay())
    present = [callback for callback in given if isinstance(callback, ModelCheckpoint)]
    if present and not checkpointing:
        raise ConfigurationError("trainer.enable_checkpointing=False, but callbacks hold a ModelCheckpoint: drop one.")
    if checkpointing and not present:
        given.append(ModelCheckpoint())
    # Arrivals are known first, then what all initial models begin with; contributions are valued before others change
    # the models. Checkpoints come last, when every other callback's state is that of the round's end, and before them
    # what measures and draws the final models.
    first = ("arrival", "initial weights", "personal layers", "contribution", "collaboration", "best models")
    places = {**{role: place for place, role in enumerate(first, -len(first))}, "calibration": 1}
    last = (ModelCheckpoint, FigureCallback)
    order = sorted(given, key=lambda one: (*(isinstance(one, kind) for kind in last), places.get(one.role or "", 0)))
    return order, of_lightning


def check_composition(learner: Learner, callbacks: Sequence[Callback]) -> None:
    """Refuse callbacks that the strategy excludes, naming both and the reason, before anything is trained."""
    for callback in callbacks:
        for trait in callback.traits:
            if (reason := learner.excludes.get(trait)) is not None:
                both = f"trainer.strategy={type(learner).__name__} does not go with {type(callback).__name__}"
                raise ConfigurationError(f"{both}: {reason}. Leave one of the two out.")
            if (reason := learner.cautions.get(trait)) is not None:
                rank_zero_warn(f"trainer.strategy={type(learner).__name__} with {type(callback).__name__}: {reason}.")
    given = {trait for callback in callbacks for trait in callback.traits}
    for trait, reason in learner.requires.items():
        if trait not in given:
            raise ConfigurationError(f"trainer.strategy={type(learner).__name__}: {reason}.")


def _refuse_twice(callbacks: Sequence[Callback]) -> None:
    """Refuse callbacks of one class, or of a class and its base; those that may be several need other settings."""
    for (first, one), (second, other) in combinations(enumerate(callbacks), 2):
        kinds = type(one), type(other)
        if Callback in kinds or not (isinstance(one, kinds[1]) or isinstance(other, kinds[0])):
            continue
        names = signature(kinds[0]).parameters
        same = kinds[0] is kinds[1]
        alike = same and all(repr(getattr(one, name, None)) == repr(getattr(other, name, None)) for name in names)
        if one.several and other.several and not alike:
            continue
        shown = f"both {kinds[0].__name__}" if same else " and ".join(kind.__name__ for kind in kinds)
        more = " with the same settings" if one.several else ""
        both = f"trainer.callbacks[{first}] and trainer.callbacks[{second}]"
        raise ConfigurationError(f"{both} are {shown}{more}: all would be done twice. Keep one.")


def check_settings(settings: Settings) -> None:
    """Report every fault of the trainer's arguments in one message."""
    given = {field.name: field.type for field in fields(settings) if getattr(settings, field.name) is not field.default}
    faults = faults_of(given, vars(settings), "trainer.")
    for name, hint in given.items():
        if hint is bool and not isinstance(value := getattr(settings, name), bool):
            faults.append(f"trainer.{name}={value!r}: must be True or False.")
    if isinstance(settings.num_threads, int) and settings.num_threads > _most():
        what = f"trainer.num_threads={settings.num_threads}: too many for this machine's {usable_cores()} CPU cores"
        faults.append(f"{what}. Set trainer.num_threads to {usable_cores()} or less.")
    if settings.local_epochs is not None and settings.local_steps is not None:
        faults.append("trainer.local_epochs and trainer.local_steps are both set: a turn has one length; drop one.")
    faults += compile_faults(settings.compile)
    if faults:
        raise ConfigurationError(" ".join(faults))


def check_arguments(module: object, datamodule: object, stage: str) -> None:
    """Refuse a model or data of the wrong kind, with the way to wrap them, and to fit a module that is not complete."""
    if not isinstance(module, AnyModule):
        given = f"the class {module.__name__}" if isinstance(module, type) else f"a {type(module).__name__}"
        raise ConfigurationError(f"the model is {given}: give an instance of lightning.pytorch.LightningModule.")
    if not isinstance(datamodule, FederatedDataModule):
        remedy = "use lightning_fl.Partitioned, or lightning_fl.Silos with a data module, loader or data set per silo"
        raise ConfigurationError(f"the data are a {type(datamodule).__name__}: {remedy}.")
    for name in ("training_step", "configure_optimizers") if stage == "fit" else ():
        if not is_overridden(name, module):
            raise ConfigurationError(f"{type(module).__name__} defines no {name}, which training needs: define it.")
    if stage == "predict" and not is_overridden("predict_step", module) and not is_overridden("forward", module):
        raise ConfigurationError(f"{type(module).__name__} must define predict_step or forward for predictions.")
