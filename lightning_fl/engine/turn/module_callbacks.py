"""Lightning's callbacks in a federated run: those of ``trainer.callbacks`` and of a module's ``configure_callbacks``.

Hooks of batches, steps and epochs are called in each client's turn, the others once for all clients, with Lightning's
arguments. A callback with a state is of the clients, each of which has its own, or of the run.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.fabric.utilities.rank_zero import rank_zero_warn
from lightning.pytorch import LightningModule
from torch import Tensor, as_tensor

from lightning_fl.core.errors import ConfigurationError
from lightning_fl.core.lightning_types import is_overridden
from lightning_fl.engine.turn.shared_averages import SharedAverages

#: Lightning's classes that a federated run replaces, and those that change Lightning's loops -> what to do instead.
_REPLACED = {
    "Checkpoint": "lightning_fl.callbacks.ModelCheckpoint keeps the best and the last round",
    "ThroughputMonitor": "set trainer.profile",
    "ProgressBar": "set trainer.enable_progress_bar",
    "BasePredictionWriter": "trainer.predict returns every client's outputs",
}
_REFUSED = {
    "BackboneFinetuning": "unfreeze and add_param_group in on_train_epoch_start, or derive from BaseFinetuning",
    "ModelPruning": "prune before fit",
    "BatchSizeFinder": "set the batch size",
    "LearningRateFinder": "set the rate",
    "SpikeDetection": "set trainer.gradient_clip_val, or return None from training_step to leave a batch out",
}
_SWA = "StochasticWeightAveraging"
#: Those that are of the run, although they have hooks of a turn.
_OF_RUN = ("EarlyStopping", "Timer")
#: Those that do not change what is learned in a round.
_WATCH = (*_OF_RUN, "LearningRateMonitor", "DeviceStatsMonitor", "ModelSummary")
#: Hooks of callbacks with a state.
OF_STATE = ("state_dict", "load_state_dict", "on_save_checkpoint", "on_load_checkpoint")
LIGHTNING = ("lightning.", "pytorch_lightning.")

_EVALUATION = [f"on_{word}_{moment}" for word in ("validation", "test", "predict") for moment in ("start", "end")]
#: Hooks that are called once for all clients.
_ONCE = {"setup", "teardown", "on_exception", "on_fit_start", "on_fit_end", "on_train_start", "on_train_end"}
_ONCE |= {*_EVALUATION, *OF_STATE, "state_key", "on_sanity_check_start", "on_sanity_check_end"}
#: Those that a callback of the run gets apart from the module's: around all evaluations, before and after the round.
_APART = {*_EVALUATION, "on_train_epoch_start", "on_train_epoch_end"}


class RunCallbacks:
    """Lightning's callbacks of a run by their hooks; the module's own replace given ones of their class."""

    def __init__(self, module: LightningModule, given: Sequence[Any]) -> None:
        own = _of_module(module)
        every = [one for one in given if not any(issubclass(type(each), type(one)) for each in own)] + own
        self.all = [one if _class_of(one, [_SWA]) is None else SharedAverages(one) for one in every]
        self.averages = next((one for one in self.all if isinstance(one, SharedAverages)), None)
        self.watching: dict[str, list[Any]] = {}
        self.apart: dict[str, list[Any]] = {}
        for callback in self.all:
            of_run = is_of_run(callback)
            for hook in _hooks(callback):
                hooks = self.apart if of_run and hook in _APART else self.watching
                hooks.setdefault(hook, []).append(callback)

    @property
    def with_run_state(self) -> dict[str, Any]:
        """Callbacks with one state for all clients, by unique names for a checkpoint."""
        stateful = [one for one in self.all if is_of_run(one)]
        keys = [one.state_key for one in stateful]
        return {f"{key} {keys[:n].count(key)}": one for n, (key, one) in enumerate(zip(keys, stateful, strict=True))}


def call_callbacks(callbacks: Iterable[Any], hook: str, trainer: Any, *args: Any, **kwargs: Any) -> None:
    """Call a hook of some callbacks; a refusal by one of Lightning's, outside of turns, is a ``ConfigurationError``."""
    for callback in callbacks:
        try:
            getattr(callback, hook)(trainer, trainer.lightning_module, *args, **kwargs)
        except Exception as error:
            refuses = type(error) in (MisconfigurationException, RuntimeError, ValueError)  # no lack of memory
            if trainer.client is not None or not refuses or not type(callback).__module__.startswith(LIGHTNING):
                raise
            raise ConfigurationError(f"{type(callback).__name__}: {error}") from error


def check_callback(callback: object, where: str) -> None:
    """Refuse what is not a callback of Lightning, or is not supported."""
    name = type(callback).__name__
    if _class_of(callback, ["Callback"]) is None:
        raise ConfigurationError(
            f"{where} has {name}, which is no callback: derive it from Lightning's Callback or from"
            " lightning_fl.callbacks.Callback."
        )
    remedies = _REFUSED | _REPLACED
    if type(callback).__name__ != _SWA or not type(callback).__module__.startswith(LIGHTNING):
        remedies |= {_SWA: "use Lightning's own class; avg_fn averages in another way"}
    if (kind := _class_of(callback, remedies)) is not None:
        remedy = remedies[kind.__name__]
        raise ConfigurationError(f"{where} has {name}, which is not supported in a federated run: {remedy}.")


def is_of_run(callback: object) -> bool:
    """Whether all clients share a callback's state: it has no hook of a turn, or is one of Lightning's that stop."""
    hooks = set(_hooks(callback))
    if isinstance(callback, SharedAverages) or _class_of(callback, _OF_RUN) is not None:
        return True
    return not hooks.isdisjoint(OF_STATE) and hooks <= _ONCE


def only_watches(callback: object) -> bool:
    """Whether a run can be resumed with or without a callback to the same models."""
    return _class_of(callback, _WATCH) is not None


def _of_module(module: LightningModule) -> list[Any]:
    """Callbacks of a module's ``configure_callbacks``, without those that a federated run replaces."""
    if not is_overridden("configure_callbacks", module):
        return []
    made: Any = module.configure_callbacks()
    callbacks = list(made) if isinstance(made, Sequence) else [made]
    where = f"{type(module).__name__}.configure_callbacks"
    replaced = [(one, kind.__name__) for one in callbacks if (kind := _class_of(one, _REPLACED)) is not None]
    kept = [one for one in callbacks if _class_of(one, _REPLACED) is None]
    for callback in kept:
        check_callback(callback, where)
    if replaced:
        names = ", ".join(f"{type(one).__name__} ({_REPLACED[name]})" for one, name in replaced)
        rank_zero_warn(f"{where} returns {names}: left out, because a federated run has its own replacement.")
    return kept


def _hooks(callback: object) -> list[str]:
    base, own = _class_of(callback, ["Callback"]), vars(callback)  # LambdaCallback has them in attributes
    defined = (hook for hook in vars(base) if hook in own or getattr(type(callback), hook) is not getattr(base, hook))
    return [hook for hook in defined if not hook.startswith("_")]


def _class_of(callback: object, names: Collection[str]) -> type | None:
    """The first class of one of these names, from either of Lightning's packages, that a callback derives from."""
    own = (kind for kind in type(callback).__mro__ if kind.__module__.startswith(LIGHTNING))
    return next((kind for kind in own if kind.__name__ in names), None)


class TurnLogger:
    """A logger as callbacks see it in a client's turn: ``log_metrics`` logs like ``self.log``, for every client."""

    def __init__(self, logger: Any, log: Callable[[str, Tensor], object] | None) -> None:
        self._logger, self._log = logger, log

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return type(self._logger)

    def log_metrics(self, metrics: Mapping[str, float | Tensor], step: int | None = None) -> None:
        if self._log is not None:
            for name, value in metrics.items():
                self._log(name, as_tensor(value))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._logger, name)
