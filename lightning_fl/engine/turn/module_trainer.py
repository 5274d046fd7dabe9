"""The trainer as a module sees it: ``self.trainer`` inside an unchanged ``LightningModule``.

It is Lightning's own Trainer, which nothing runs: the engine takes clients' turns, and the trainer answers for the one
client whose turn it is. A client's local work in one round is an epoch: ``current_epoch`` is the round, ``global_step``
counts the client's own optimiser steps.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from lightning.fabric import Fabric
from lightning.fabric.utilities.data import sized_len
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.loggers.logger import DummyLogger
from lightning.pytorch.trainer.states import RunningStage, TrainerFn, TrainerStatus
from lightning.pytorch.utilities.combined_loader import CombinedLoader
from lightning.pytorch.utilities.types import LRSchedulerConfig
from torch import Tensor
from torch.optim import Optimizer

from lightning_fl.core.errors import OF_LIGHTNING
from lightning_fl.core.lightning_types import is_overridden, own_lightning, rank_seen
from lightning_fl.core.metrics import lightning_names
from lightning_fl.core.seeding import derive_seed
from lightning_fl.data.module import Split
from lightning_fl.engine.batches.factory import BatchFactory
from lightning_fl.engine.batches.packs import PackedBatches
from lightning_fl.engine.federation import Federation
from lightning_fl.engine.processes import Processes
from lightning_fl.engine.settings import Settings
from lightning_fl.engine.turn.module_callbacks import RunCallbacks, TurnLogger, call_callbacks
from lightning_fl.engine.turn.results import EarlyLog, LogCollector
from lightning_fl.engine.turn.trainer_parts import (
    ClientDataModule,
    FixedList,
    Refused,
    make_strategy,
    refusal,
    refuse_outside_of_a_turn,
    restrict_loops,
)

_FIT, _VALIDATE = TrainerFn.FITTING, TrainerFn.VALIDATING
#: Stage of a run -> function and stage of the Trainer.
STAGES = {
    "fit": (_FIT, RunningStage.TRAINING),
    "validate": (_VALIDATE, RunningStage.VALIDATING),
    "test": (TrainerFn.TESTING, RunningStage.TESTING),
    "predict": (TrainerFn.PREDICTING, RunningStage.PREDICTING),
}
#: Attributes that are the federated trainer's.
_OF_FEDERATED = ("target_statistics", "descriptor_statistics", "target_summaries")
#: Stage of a loader -> functions of the Trainer that read it, and its attribute.
_LOADERS = {
    "train": ((_FIT,), "train_dataloader"),
    "val": ((_FIT, _VALIDATE), "val_dataloaders"),
    "test": ((TrainerFn.TESTING,), "test_dataloaders"),
    "predict": ((TrainerFn.PREDICTING,), "predict_dataloaders"),
}


class ModuleTrainer(Trainer if TYPE_CHECKING else object):  # type: ignore[misc]
    """Mixin of Lightning's Trainer with what a federated run answers otherwise, see :func:`make_module_trainer`."""

    fit = validate = test = predict = save_checkpoint = Refused()
    checkpoint_callback: Any = None
    log_dir: str | None = None
    global_step = 0
    _took_turns = False
    _rounds_ago = 0

    def __init__(
        self,
        module: LightningModule,
        fabric: Fabric,
        factory: BatchFactory,
        settings: Settings,
        federation: Federation,
        processes: Processes,
        *,
        federated: Any,
        stage: str = "fit",
        log_dir: str | None = None,
        checkpoint_callback: Any = None,
        checkpoint_hyper_parameters: Mapping[str, Any] | None = None,
    ) -> None:
        self.federated = federated
        self._module, self._factory, self._settings = module, factory, settings
        self._federation, self._processes = federation, processes
        with rank_seen(1):  # rank zero would print its devices
            super().__init__(
                accelerator=fabric.device.type,
                devices=1 if fabric.device.index is None else [fabric.device.index],
                strategy=make_strategy(module, fabric),
                plugins=[own_lightning(module, "plugins.environments").LightningEnvironment()],
                logger=False,
                enable_checkpointing=False,
                enable_progress_bar=False,
                enable_model_summary=False,
                max_epochs=settings.max_rounds,
                min_epochs=0,
                check_val_every_n_epoch=settings.check_val_every_n_rounds or 1,  # as where nothing is validated
                gradient_clip_val=settings.gradient_clip_val,
                gradient_clip_algorithm=settings.gradient_clip_algorithm,
                accumulate_grad_batches=settings.accumulate_grad_batches,
                # Modules divide by it: where no steps are logged (0), Lightning's default.
                log_every_n_steps=settings.log_every_n_steps or 50,
                num_sanity_val_steps=0,
                profiler=federated.profiler,
                default_root_dir=os.fspath(settings.default_root_dir),
            )
        self.strategy.connect(module)
        self._data_connector.attach_datamodule(module)
        module.trainer = self  # reaches modules inside the module, too
        restrict_loops(self)
        self.checkpoint_callback, self.log_dir = checkpoint_callback, log_dir
        # Others than rank zero have none: what user code writes there goes nowhere, as in Lightning.
        self.loggers = list(federated.loggers) if fabric.is_global_zero else [DummyLogger()]
        self.state.status = TrainerStatus.RUNNING
        self.set_stage(*STAGES[stage])
        self.is_made = True
        self.checkpoint_hyper_parameters: Mapping[str, Any] = checkpoint_hyper_parameters or {}
        self.collector = LogCollector(settings.log_every_n_steps)
        #: Learning rate of the first optimiser in each step of the turn; ``None`` if not recorded.
        self.rates: list[float] | None = None
        self.client: int | None = None
        self.progress: Any = self.fit_loop.epoch_loop.batch_progress
        self._between_turns = EarlyLog()
        #: Batches of the client's turn and its optimiser steps in the whole run, or a function that sets this pair.
        self.length: tuple[float | None, float | None] | Callable[[], None] = (None, None)
        self._evaluated_split: Split = "test"
        self._num_batches: dict[str, list[float] | None] = {"val": [], "test": [], "predict": []}
        #: Called between the gradients and the optimiser's step: the module's hook, and clipping.
        self.before_optimizer_step: Callable[[Optimizer], None] = lambda optimizer: None
        #: The loggers as callbacks see them in a client's turn, which may be on any rank; the first keeps the values.
        keeps = [lambda name, value: self.collector.keep(name, value), *[None] * len(self.loggers)]
        self._turn_loggers: list[Any] = [TurnLogger(one, keep) for one, keep in zip(self.loggers, keeps, strict=False)]
        self.watching: dict[str, list[Any]] = {}  # hook -> Lightning's callbacks that are called before the module
        self.lightning_callbacks = RunCallbacks(module, federated.lightning_callbacks)
        self.callbacks = FixedList([*federated.callbacks, *self.lightning_callbacks.all])
        self.watching = self.lightning_callbacks.watching

    @property
    def current_round(self) -> int:
        return self._federation.current_round

    @property
    def current_epoch(self) -> int:
        # Lightning validates and ends an epoch inside of it; here the round's number has moved on by then.
        validates = self.state.stage is RunningStage.VALIDATING and self.state.fn is _FIT
        return self._federation.current_round - (validates or self._rounds_ago)

    @contextmanager
    def in_round(self, number: int) -> Iterator[None]:
        """Context in which a finished round is the present epoch."""
        self._rounds_ago = self._federation.current_round - number
        try:
            yield
        finally:
            self._rounds_ago = 0

    @property
    def should_stop(self) -> bool:
        return self.federated.should_stop

    @should_stop.setter
    def should_stop(self, stop: bool) -> None:
        if vars(self).get("is_made"):
            self.federated.should_stop = stop

    @property
    def num_clients(self) -> int:
        return self._processes.num_clients

    @property
    def enable_validation(self) -> bool:
        return self._settings.check_val_every_n_rounds > 0 and is_overridden("validation_step", self._module)

    @property
    def estimated_stepping_batches(self) -> float:
        return self._lengths()[1] or refuse_outside_of_a_turn("estimated_stepping_batches")

    def _lengths(self) -> Any:
        if callable(self.length):
            self.length()
        return self.length

    #: Lightning sets it to ``None`` at first.
    val_check_batch: Any = property(lambda self: self._lengths()[0], lambda self, batches: None)

    @property
    def datamodule(self) -> Any:
        federated = self._factory.data
        if not self._processes.client_ranks:  # clients are not placed yet
            return federated
        client = self.client if self.client is not None else next(iter(self._processes.hosted), None)
        fit = self.state.fn in (_FIT, _VALIDATE)
        return ClientDataModule(federated.client_datamodule(client, "fit" if fit else "test"), federated, self)

    @datamodule.setter
    def datamodule(self, datamodule: Any) -> None:
        if "is_made" in vars(self):
            raise AttributeError("self.trainer.datamodule belongs to the whole run and cannot be set.")

    @property
    def checkpoint_callbacks(self) -> list[Any]:
        return [callback for callback in (self.checkpoint_callback,) if callback is not None]

    @property
    def _results(self) -> Any:
        if self.predicting:
            return None
        return self._between_turns if self.client is None else self.collector

    # The latest means over clients; in a client's turn what it logged until now comes first.

    @property
    def callback_metrics(self) -> dict[str, Tensor]:
        means = self._federation.means
        return means if self.client is None else means | self._so_far()

    @property
    def logged_metrics(self) -> dict[str, Tensor]:
        return self._logged_with("to_logger")

    @property
    def progress_bar_metrics(self) -> dict[str, float]:
        return {name: float(value) for name, value in self._logged_with("prog_bar").items()}

    def _logged_with(self, destination: str) -> dict[str, Tensor]:
        found: dict[str, Tensor] = {}
        for metrics in self._federation.metrics.values():
            wanted = {name: metric for name, metric in metrics.items() if getattr(metric, destination)}
            means = lightning_names(wanted, steps=True, single=True)
            found |= {name: torch.tensor(mean) for name, mean in means.items()}
        return found if self.client is None else found | self._so_far(destination)

    def _so_far(self, destination: str | None = None) -> dict[str, Tensor]:
        ended = (self._module._current_fx_name or "").endswith("_epoch_end")
        return self.collector.so_far(training=self.training, ended=ended, destination=destination)

    def set_stage(self, fn: TrainerFn, stage: RunningStage | None) -> None:
        self.state.fn, self.state.stage = fn, stage

    def loader(self, word: str, name: str) -> Any:
        """The client's loader of a split ("predict": the evaluated one), with a turn's draws; ``None`` without data."""
        if self.client is None:
            refuse_outside_of_a_turn(name)
        split: Any = self._evaluated_split if word == "predict" else word
        loader = self._factory.loader(self.client, split)
        draws = getattr(loader, "generator", None)
        if isinstance(draws, torch.Generator) and isinstance(self._factory.batches(self.client, split), PackedBatches):
            draws.manual_seed(derive_seed(self._settings.seed, self.current_round, self.client, f"{split} loader"))
        return loader

    def loader_of(self, word: str) -> Any:
        """The client's loader for a stage ("train", "val", "test", "predict"); ``None`` if the run is not in it."""
        functions, name = _LOADERS[word]
        if self.state.fn not in functions or not self.reads(word) or (self.client is None and not self._took_turns):
            return None
        evaluated = word == "val" and self.validating and self.client is not None
        return self.loader("predict" if evaluated else word, name)

    def reads(self, word: str) -> bool:
        """Whether the run reads data of a stage: a fit reads validation data if it validates."""
        return word != "val" or self.state.fn != _FIT or self.enable_validation

    def batches_of(self, word: str) -> Any:
        """Batches of a stage in the client's turn; of evaluation a list with an entry per loader."""
        if word == "train":
            total = self._lengths()[0]
            if total is None and self._module._current_fx_name == "on_train_start":
                refuse_outside_of_a_turn("num_training_batches")
            return total or float("inf")
        found = self._num_batches[word]
        if found is None:  # asked for in a training turn
            loader = self.val_dataloaders if self.client is not None and self.training else None
            loaders = [] if loader is None else CombinedLoader(loader, "sequential").flattened
            found = self._num_batches[word] = [sized_len(each) or float("inf") for each in loaders]
        return found

    def begin_turn(
        self,
        client: int,
        global_step: int,
        *,
        batches_before: int = 0,
        evaluated: Split | None = None,
        num_batches: Sequence[float] = (),
    ) -> None:
        """Begin a client's turn, of training or on an ``evaluated`` split: what is logged from now on is its own."""
        self.client, self.global_step, self._took_turns = client, global_step, True
        self.__dict__["accumulate_grad_batches"] = self._settings.accumulate_grad_batches
        self._evaluated_split = evaluated or "test"
        if evaluated is None:
            self._num_batches["val"] = None
        else:
            self._num_batches[self.state.stage.dataloader_prefix] = list(num_batches)
        loop: Any = self.fit_loop.epoch_loop if self.state.stage is RunningStage.TRAINING else self._active_loop
        self.progress, epoch, done = loop.batch_progress, self.fit_loop.epoch_progress, self.current_epoch
        self.progress.is_last_batch = False
        of_training = self.fit_loop.epoch_loop.batch_progress
        parts = (self.progress.current, self.progress.total, of_training.current, of_training.total)
        for part, before in zip(parts, (0, 0, 0, batches_before), strict=True):
            part.ready = part.started = part.processed = part.completed = before
        for part in (epoch.current, epoch.total):
            part.started = part.processed = part.completed = done
            part.ready = done + 1
        self.collector.begin()
        self.replay(self.collector)

    def end_turn(self) -> None:
        self.client = None

    def begin_hook_of_run(self) -> None:
        """Begin a hook of the run (``on_validation_start``), whose logs are kept for the turns that follow."""
        self.client, self._took_turns, self.global_step = None, True, self._federation.global_step
        self._between_turns.begin(self._moment)

    def replay(self, collector: LogCollector) -> None:
        """Log into a turn's collector what hooks of the run logged for the turns that follow."""
        self._between_turns.replay(self._moment, collector)

    @property
    def _moment(self) -> tuple[RunningStage | None, int]:
        return self.state.stage, self._federation.current_round

    def call_hook(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method of the module, after its callbacks'; in a client's turn this process is rank zero to it."""
        return self.call_of(self._module, name, *args, **kwargs)

    def call_of(self, module: LightningModule, name: str, *args: Any, **kwargs: Any) -> Any:
        own = vars(module)  # a module takes microseconds to set an attribute
        before, own["_current_fx_name"] = own["_current_fx_name"], name
        try:
            with nullcontext() if self.client is None or self.is_global_zero else rank_seen(0):
                if name in self.watching:
                    self.call_callbacks(self.watching, name, *args, **kwargs)
                return getattr(module, name)(*args, **kwargs)
        finally:
            own["_current_fx_name"] = before

    def call_callbacks(self, hooks: Mapping[str, Sequence[Any]], name: str, *args: Any, **kwargs: Any) -> None:
        own: list[Any] = self.loggers
        self.loggers = own if self.client is None else self._turn_loggers
        try:
            call_callbacks(hooks.get(name, ()), name, self, *args, **kwargs)
        finally:
            self.loggers = own

    def call_apart(self, name: str) -> None:
        """Call a hook of the callbacks of the run: ``on_train_epoch_end`` when the round is over."""
        self.client, self.global_step = None, self._federation.global_step
        with self.in_round(self.current_round - (name == "on_train_epoch_end")):
            self.call_callbacks(self.lightning_callbacks.apart, name)

    def take_optimizers(self, optimizers: Iterable[Optimizer], schedulers: Iterable[LRSchedulerConfig]) -> None:
        self.strategy.optimizers, self.strategy.lr_scheduler_configs = list(optimizers), list(schedulers)

    def count_step(self) -> None:
        self.global_step += 1
        if self.rates is not None and (groups := self.optimizers[0].param_groups):  # none where nothing is trained
            rate = groups[0].get("lr")
            self.rates.append(1.0 if rate is None else float(rate))

    def __getattr__(self, name: str) -> Any:
        if name in _OF_FEDERATED:
            return getattr(self.federated, name)
        if isinstance(getattr(type(self), name, None), property):
            return object.__getattribute__(self, name)  # raises the property's own error
        raise AttributeError(refusal(name, vars(self).get("federated")))

    def __setattr__(self, name: str, value: object) -> None:
        if name in OF_LIGHTNING and "is_made" in vars(self):
            # GradientAccumulationScheduler sets it at the start of an epoch, which is a turn here.
            begins = self._module._current_fx_name == "on_train_epoch_start"
            if not (begins and name == "accumulate_grad_batches"):
                instead = OF_LIGHTNING[name]
                remedy = f"set trainer.{instead} of the run instead" if instead else "leave it as it is"
                what = f"self.trainer.{name} = {value!r} would change nothing: it belongs to the whole run"
                raise AttributeError(f"{what}; {remedy}.")
        super().__setattr__(name, value)


def make_module_trainer(module: LightningModule, *args: Any, **options: Any) -> ModuleTrainer:
    """The ``self.trainer`` of a module, from the package that the module is built on; arguments as in the class."""
    kind = own_lightning(module, "trainer").Trainer
    return type("ModuleTrainer", (ModuleTrainer, kind), {})(module, *args, **options)
