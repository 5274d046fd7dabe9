"""Lightning's callbacks in a federated run: those of ``trainer.callbacks`` and of a module's ``configure_callbacks``.

Hooks of batches, steps and epochs are called in each client's turn, the others once for all clients, with Lightning's
arguments. A callback with a state is of the clients, each of which has its own, or of the run.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.fabric.utilities.rank_zero import rank_zero_warn
from lightning.pytorch import Callback, LightningModule
from lightning.pytorch.utilities.types import LRSchedulerConfig
from torch import Tensor, as_tensor
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim.swa_utils import SWALR

from lightning_fl.core.errors import ConfigurationError
from lightning_fl.core.lightning_types import is_overridden
from lightning_fl.engine.weights.flat import Weights, copy_spans_
from lightning_fl.engine.weights.weighted_sum import WeightedSum

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
        if hook.startswith("on_train_") and vars(callback).get("_average_model", callback) is None:
            continue  # WeightAveraging in a fine-tuning of an evaluation by itself: it is set up in fits
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
        given = repr(callback) if isinstance(callback, str | type) else name
        raise ConfigurationError(f"{where} has {given}, not a callback: give an instance of Lightning's Callback.")
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


class SharedAverages(Callback):
    """Averages each shared model over rounds, by the settings of Lightning's ``StochasticWeightAveraging``.

    From ``swa_epoch_start`` on the models at the start of each round enter the averages, and clients' learning rates
    anneal to ``swa_lrs``. After the last round the averages replace the models, with BatchNorm's statistics of one pass
    over the training data. Caldarola, Caputo and Ciccone 2022, "Improving Generalization in Federated Learning by
    Seeking Flat Minima" (https://arxiv.org/abs/2203.11834), average the server's model like this.

    Args:
        given: Lightning's callback.
    """

    def __init__(self, given: Any) -> None:
        self.given = given
        self.start = 0  #: round of the first average, from 0
        self.count = 0  #: averaged rounds
        self.averages: list[Weights] = []
        self.trained: list[Weights] = []  #: of the last round, once the averages have replaced them

    def on_fit_start(self, trainer: Any, pl_module: LightningModule) -> None:
        if not pl_module.automatic_optimization:
            what = f"{_SWA} sets the learning rate, and {type(pl_module).__name__} optimises manually"
            raise ConfigurationError(f"{what}: use lightning.pytorch.callbacks.WeightAveraging.")
        start = self.given._swa_epoch_start
        self.start = max((int(trainer.max_epochs * start) if isinstance(start, float) else start) - 1, 0)

    def on_train_epoch_start(self, trainer: Any, pl_module: LightningModule) -> None:
        models = trainer.federated.federation.models
        for model, trained in zip(models, self.trained, strict=False):  # after the end of a run with fewer rounds
            model.copy_(trained)
        self.trained = []
        if trainer.current_epoch < self.start:
            return
        if len(self.averages) != len(models):
            self.averages, self.count = [model.clone() for model in models], 0
        for average, model in zip(self.averages, models, strict=True):
            for dtype, vector in average.floating():
                new = model.vectors[dtype].to(vector.device)
                vector.copy_(self.given._avg_fn(vector, new, torch.tensor(self.count)) if self.count else new)
        self.count += 1

    def replace_schedulers(self, trainer: Any) -> None:
        """Anneal the learning rates of the client in turn, in place of its scheduler."""
        given, (optimizer,), configs = self.given, trainer.optimizers, trainer.lr_scheduler_configs
        if len(configs) > 1:
            raise ConfigurationError(f"{_SWA} replaces one learning-rate scheduler: this module has {len(configs)}.")
        annealing = SWALR(optimizer, given._swa_lrs, given._annealing_epochs, given._annealing_strategy)
        configs[:] = [LRSchedulerConfig(annealing)]

    def on_train_end(self, trainer: Any, pl_module: LightningModule) -> None:
        """Replace the models by their averages, unless the run ended early."""
        federation, flat = trainer.federated.federation, trainer.federated.loop.flat
        if not self.count or federation.current_round < trainer.max_epochs or federation.interrupted_by:
            return
        self.trained = [model.clone() for model in federation.models]
        buffers = set(flat.buffers())
        parameters = [span for span in flat.spans() if span not in buffers]
        for number, (average, model) in enumerate(zip(self.averages, federation.models, strict=True)):
            _renew_statistics(trainer.federated, number, copy_spans_(model, average, parameters))
        flat.load(federation.models[0])  # for the hooks that follow
        federation.models_are_final = True

    def state_dict(self) -> dict[str, Any]:
        kept = {name: [one.state_dict() for one in getattr(self, name)] for name in ("averages", "trained")}
        return {"count": self.count, **kept}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.count = state_dict["count"]
        for name in ("averages", "trained"):
            models = [Weights({getattr(torch, key): one for key, one in of.items()}) for of in state_dict[name]]
            setattr(self, name, models)


def _renew_statistics(trainer: Any, number: int, model: Weights) -> None:
    """Set BatchNorm's statistics in a shared model to those of one pass over its clients' training data."""
    loop, shares = trainer.loop, trainer.federation.shares(number)
    norms = [part for part in loop.module.modules() if isinstance(part, _BatchNorm) and part.running_mean is not None]
    momenta = {part: part.momentum for part in norms if part.training}
    if not (momenta and shares):  # without shares its clients use other models, too
        return
    loop.flat.load(model)
    try:
        for part in momenta:
            part.reset_running_stats()
            part.momentum = None  # the mean over batches
        start = loop.flat.collect().clone()
        total = WeightedSum(start)
        for client in [client for client in trainer.hosted_clients if client in shares]:
            batches = trainer.client_batches(client, "train")
            length = batches.epoch_length() or loop.training.turn_length(batches, None).total
            loop.training.mean_loss(client, start, length, "statistics of BatchNorm")
            total.add_(loop.flat.collect(), shares[client])
    finally:
        for part, momentum in momenta.items():
            part.momentum = momentum
    if trainer.processes.several:
        total.reduce_(trainer.processes.transport)
    model.copy_(total.value(sum(shares.values())))
