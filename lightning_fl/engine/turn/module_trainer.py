"""The trainer as a module sees it: ``self.trainer`` inside an unchanged ``LightningModule``.

Lightning's ``self.log``, ``self.optimizers()``, ``self.manual_backward`` and ``self.clip_gradients`` talk to a Trainer.
This object answers them for the one client whose turn it is. A client's local work in one round is an epoch:
``current_epoch`` is the round, ``global_step`` counts the client's own optimiser steps.
"""

import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from lightning.fabric import Fabric
from lightning.fabric.utilities.data import sized_len
from lightning.pytorch import LightningModule
from lightning.pytorch.loggers.logger import DummyLogger
from lightning.pytorch.trainer.states import RunningStage, TrainerFn, TrainerState, TrainerStatus
from lightning.pytorch.utilities import GradClipAlgorithmType
from lightning.pytorch.utilities.combined_loader import CombinedLoader
from lightning.pytorch.utilities.types import LRSchedulerConfig
from torch import Tensor
from torch.optim import Optimizer

from lightning_fl.core.lightning_types import is_overridden, rank_seen
from lightning_fl.core.metrics import lightning_names
from lightning_fl.data.module import Split
from lightning_fl.engine.federation import Federation
from lightning_fl.engine.processes import Processes
from lightning_fl.engine.settings import Settings
from lightning_fl.engine.turn.client_datamodule import ClientDataModule
from lightning_fl.engine.turn.module_loops import EvaluationLoop, FitLoop
from lightning_fl.engine.turn.module_strategy import ModulePrecision, ModuleStrategy
from lightning_fl.engine.turn.results import LogCollector
from lightning_fl.engine.turn.surroundings import Surroundings
from lightning_fl.engine.turn.trainer_attributes import FixedList, Setting, refusal, refuse_outside_of_a_turn

__all__ = ["ModuleTrainer"]


class _Distributed:
    """Inside a client's turn nothing is distributed: ``sync_dist`` and ``all_gather`` see one process."""

    is_distributed = False


class _LoggerConnector:
    _current_fx: str | None = None

    def should_reset_tensors(self, fx: str) -> bool:
        return False


class _BetweenTurns:
    """Keeps what ``on_train_start``, ``on_validation_start`` and ``on_test_start`` log for the turns that follow."""

    def __init__(self) -> None:
        self._moment: tuple[RunningStage | None, int] | None = None
        self._calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    def begin(self, moment: tuple[RunningStage | None, int]) -> None:
        self._moment, self._calls = moment, []

    def log(self, *args: Any, **kwargs: Any) -> None:
        self._calls.append((args, kwargs))

    def replay(self, moment: tuple[RunningStage | None, int], collector: LogCollector) -> None:
        if moment == self._moment:
            for args, kwargs in self._calls:
                collector.log(*args, **kwargs)


def _no_loader(client: int, split: Split) -> None:
    """No client has its turn yet."""


def _nothing(optimizer: Optimizer) -> None:
    """No optimiser is at work before the first turn."""


class ModuleTrainer:
    """What ``LightningModule.trainer`` refers to during a federated run.

    Attributes that a federated run has no meaning for raise an ``AttributeError`` that says so.

    Args:
        module: the user's module.
        fabric: of the run.
        settings: of the run.
        federation: which round it is, and what was measured.
        processes: of the run.
        around: what else is known of the run.
    """

    barebones = Setting(False)
    sanity_checking = False
    fast_dev_run = Setting(False, "max_rounds")
    min_epochs = Setting(0, "max_rounds")
    min_steps = Setting(None, "max_rounds")
    max_steps = Setting(-1, "max_rounds")
    max_time = Setting(None, "max_rounds")
    max_epochs = Setting(lambda self: self._settings.max_rounds, "max_rounds")
    reload_dataloaders_every_n_epochs = Setting(0)
    limit_train_batches = Setting(1.0, "local_steps")
    limit_val_batches = Setting(1.0, "check_val_every_n_rounds")
    limit_test_batches = limit_predict_batches = Setting(1.0)
    overfit_batches = Setting(0.0, "local_steps")
    num_sanity_val_steps = Setting(0)
    num_sanity_val_batches = Setting(lambda self: [])
    val_check_interval = Setting(1.0, "check_val_every_n_rounds")
    check_val_every_n_epoch = Setting(lambda self: self._settings.check_val_every_n_rounds, "check_val_every_n_rounds")
    gradient_clip_val = Setting(lambda self: self._settings.gradient_clip_val, "gradient_clip_val")
    accumulate_grad_batches = Setting(lambda self: self._settings.accumulate_grad_batches, "accumulate_grad_batches")
    # Modules divide by it: where no steps are logged (0), Lightning's default.
    log_every_n_steps = Setting(lambda self: self._settings.log_every_n_steps or 50, "log_every_n_steps")
    enable_autolog_hparams = Setting(False)  # loggers show the recipe
    distributed_sampler_kwargs = Setting(None)  # a client's loader is read by one process
    progress_bar_callback = None
    scaler = None
    interrupted = False
    received_sigterm = False

    def __init__(
        self,
        module: LightningModule,
        fabric: Fabric,
        settings: Settings,
        federation: Federation,
        processes: Processes,
        around: Surroundings,
    ) -> None:
        self._fabric = fabric
        self._settings = settings
        self._federation = federation
        self._processes = processes
        self._around = around
        self.model = module
        self.lightning_module = module
        module.trainer = self  # type: ignore[assignment]  # reaches modules inside the module, too
        self.state = TrainerState(status=TrainerStatus.RUNNING)
        self.precision_plugin = ModulePrecision(fabric._precision)
        self.strategy = ModuleStrategy(self, fabric)
        self.collector = LogCollector(settings.log_every_n_steps)
        self.optimizers: list[Optimizer] = []
        #: Of the first optimiser, in each step of the turn; ``None`` where nobody asks.
        self.rates: list[float] | None = None
        self.lr_scheduler_configs: list[LRSchedulerConfig] = []
        self.client: int | None = None
        self.global_step = 0
        self.batch_idx = 0
        self.is_last_batch = False
        self.num_training_batches: float = float("inf")
        self._num_val_batches: list[float] | None = []
        self.num_test_batches: list[float] = []
        self.num_predict_batches: list[float] = []
        self._estimated_stepping_batches: float | None = None
        self._between_turns = _BetweenTurns()
        self.fit_loop = FitLoop(self)
        self.validate_loop = EvaluationLoop(self, "validate_loop", "val", "val")
        self.test_loop = EvaluationLoop(self, "test_loop", "test", "test")
        self.predict_loop = EvaluationLoop(self, "predict_loop", "test", "predict")
        #: A client's loader of a split, ``None`` where it has none; the engine's loop, which takes turns, says how.
        self.find_loader: Callable[[int, Split], Any] = _no_loader
        self._took_turns = False
        self._evaluated_split: Split = "test"
        #: Batches that the client trained on in the turns before.
        self.batches_before = 0
        self.should_stop = False
        #: What happens between the gradients and the optimiser's step: the module's hook and clipping.
        self.before_optimizer_step: Callable[[Optimizer], None] = _nothing
        #: Hook -> the module's own callbacks that define it.
        self.watching: dict[str, list[Any]] = {}
        self._logger_connector = _LoggerConnector()
        self._accelerator_connector = _Distributed()

    # -- what the run is -----------------------------------------------------------------------------------------

    @property
    def current_epoch(self) -> int:
        # Lightning validates inside an epoch; here the round's number has moved on by then.
        within = self.validating and self.state.fn == TrainerFn.FITTING
        return self._federation.current_round - int(within)

    @property
    def enable_validation(self) -> bool:
        return self._settings.check_val_every_n_rounds > 0 and is_overridden("validation_step", self.model)

    @property
    def estimated_stepping_batches(self) -> float:
        if self._estimated_stepping_batches is None:
            refuse_outside_of_a_turn("estimated_stepping_batches")
        return self._estimated_stepping_batches

    @estimated_stepping_batches.setter
    def estimated_stepping_batches(self, steps: float) -> None:
        self._estimated_stepping_batches = steps

    @property
    def current_round(self) -> int:
        return self._federation.current_round

    @property
    def federated(self) -> Any:
        return self._around.federated

    @property
    def datamodule(self) -> Any:
        federated = self._around.datamodule
        if federated is None or not self._processes.client_ranks:
            return federated
        client = self.client if self.client is not None else next(iter(self._processes.hosted), None)
        fit = self.state.fn in (TrainerFn.FITTING, TrainerFn.VALIDATING)
        return ClientDataModule(federated.client_datamodule(client, "fit" if fit else "test"), federated, self)

    # -- a client's loaders --------------------------------------------------------------------------------------

    def loader(self, split: Split, name: str) -> Any:
        """The client's own loader of a split; ``None`` where it has no such data.

        Args:
            split: whose samples.
            name: what the module asked for below ``self.trainer``, for the message.
        """
        if self.client is None:
            refuse_outside_of_a_turn(name)
        return self.find_loader(self.client, split)

    def _loader_of_stage(self, split: Split, name: str, *stages: TrainerFn) -> Any:
        if self.state.fn not in stages or (self.client is None and not self._took_turns):
            return None
        return self.loader(split, name)

    @property
    def train_dataloader(self) -> Any:
        return self._loader_of_stage("train", "train_dataloader", TrainerFn.FITTING)

    @property
    def val_dataloaders(self) -> Any:
        if self.state.fn == TrainerFn.FITTING and not self.uses("val"):
            return None
        split = self._evaluated_split if self.validating and self.client is not None else "val"
        return self._loader_of_stage(split, "val_dataloaders", TrainerFn.FITTING, TrainerFn.VALIDATING)

    @property
    def test_dataloaders(self) -> Any:
        return self._loader_of_stage("test", "test_dataloaders", TrainerFn.TESTING)

    @property
    def predict_dataloaders(self) -> Any:
        return self._loader_of_stage(self.predicted_split, "predict_dataloaders", TrainerFn.PREDICTING)

    @property
    def predicted_split(self) -> Split:
        """The split that the client predicts; its test data unless it does."""
        return self._evaluated_split if self.predicting else "test"

    def uses(self, split: Split) -> bool:
        """Whether the run reads data of a split: a fit reads validation data where it validates."""
        return split != "val" or self.state.fn != TrainerFn.FITTING or self.enable_validation

    @property
    def num_val_batches(self) -> list[float]:
        if self._num_val_batches is None:
            loader = self.val_dataloaders if self.in_training_turn else None
            found = [] if loader is None else CombinedLoader(loader, "sequential").flattened
            self._num_val_batches = [sized_len(each) or float("inf") for each in found]
        return self._num_val_batches

    @num_val_batches.setter
    def num_val_batches(self, batches: list[float]) -> None:
        self._num_val_batches = batches

    @property
    def in_training_turn(self) -> bool:
        """A client has its turn to train."""
        return self.client is not None and self.training

    @property
    def val_check_batch(self) -> float | None:
        return self.num_training_batches if self.in_training_turn else None

    def init_module(self, empty_init: bool | None = None) -> AbstractContextManager:
        return self._fabric.init_module(empty_init)

    @property
    def logger(self) -> Any:
        return self.loggers[0] if self.loggers else None

    @property
    def loggers(self) -> list[Any]:
        # Others than rank zero have none: what user code writes there goes nowhere, as in Lightning.
        return self._around.loggers if self._fabric.is_global_zero else [DummyLogger()]

    @property
    def log_dir(self) -> str | None:
        return self._around.log_dir

    @property
    def default_root_dir(self) -> str:
        return os.fspath(self._settings.default_root_dir)

    @property
    def callbacks(self) -> list[Any]:
        return FixedList(self._around.callbacks)

    @property
    def checkpoint_callback(self) -> Any:
        return self._around.checkpoint_callback

    @property
    def checkpoint_callbacks(self) -> list[Any]:
        return [] if self.checkpoint_callback is None else [self.checkpoint_callback]

    early_stopping_callback = None
    early_stopping_callbacks: list[Any] = []  # noqa: RUF012

    @property
    def num_clients(self) -> int:
        return self._processes.num_clients

    def target_statistics(self) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation of the training targets over all clients; see ``FederatedTrainer``."""
        assert self._around.target_statistics is not None
        return self._around.target_statistics()

    def descriptor_statistics(self) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation of molecules' descriptors over all clients; see ``FederatedTrainer``."""
        assert self._around.descriptor_statistics is not None
        return self._around.descriptor_statistics()

    def target_summaries(self, summarize: Callable[[Tensor], Tensor], split: Split = "train") -> Tensor:
        """What every client says of its targets; see ``FederatedTrainer``."""
        assert self._around.target_summaries is not None
        return self._around.target_summaries(summarize, split)

    @property
    def checkpoint_hyper_parameters(self) -> Mapping[str, Any]:
        """Of the module whose weights the checkpoint holds that the run goes on from; empty where there is none."""
        return self._around.checkpoint_hyper_parameters

    # -- what was logged -----------------------------------------------------------------------------------------

    @property
    def _results(self) -> "LogCollector | _BetweenTurns | None":
        if self.predicting:
            return None
        return self._between_turns if self.client is None else self.collector

    @property
    def callback_metrics(self) -> dict[str, Tensor]:
        """The latest means over clients; within a turn, what the client logged until now comes first."""
        means = self._federation.latest_means()
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
        ended = (self.model._current_fx_name or "").endswith("_epoch_end")
        return self.collector.so_far(training=self.training, ended=ended, destination=destination)

    def begin_turn(
        self, client: int, global_step: int, *, batches_before: int = 0, evaluated: Split | None = None
    ) -> None:
        """A client's turn begins: what is logged from now on is its own.

        Args:
            client: whose.
            global_step: its optimiser steps so far.
            batches_before: that it trained on so far.
            evaluated: the split that it is evaluated on, where it is.
        """
        self.client, self.global_step, self.batches_before = client, global_step, batches_before
        self.batch_idx, self.is_last_batch, self._took_turns = -1, False, True
        self._evaluated_split = evaluated or "test"
        if evaluated is None:
            self._num_val_batches = None  # counted when asked for
        self.collector.begin()
        self.replay(self.collector)

    def replay(self, collector: LogCollector) -> None:
        """Log into a turn's collector what hooks of the run logged for the turns that follow."""
        self._between_turns.replay(self._moment, collector)

    def end_turn(self) -> None:
        """The client's turn is over."""
        self.client = None

    def begin_hook_of_run(self) -> None:
        """A hook of the run (``on_validation_start``) begins: what it logs is kept for the turns that follow."""
        self.client, self._took_turns = None, True
        self._between_turns.begin(self._moment)

    @property
    def _moment(self) -> tuple[RunningStage | None, int]:
        return self.state.stage, self._federation.current_round

    # -- the stage -----------------------------------------------------------------------------------------------

    @property
    def training(self) -> bool:
        return self.state.stage == RunningStage.TRAINING

    @property
    def validating(self) -> bool:
        return self.state.stage == RunningStage.VALIDATING

    @property
    def testing(self) -> bool:
        return self.state.stage == RunningStage.TESTING

    @property
    def predicting(self) -> bool:
        return self.state.stage == RunningStage.PREDICTING

    @property
    def evaluating(self) -> bool:
        return self.validating or self.testing

    def set_stage(self, fn: TrainerFn, stage: RunningStage | None) -> None:
        """Enter a stage, as Lightning's loops do."""
        self.state.fn, self.state.stage = fn, stage

    # -- devices and settings ------------------------------------------------------------------------------------

    # A client's turn takes place in one process. Modules scale learning rates by these numbers and cut data by them,
    # which must not depend on how many processes there are; the others tell the process.
    world_size = num_devices = num_nodes = 1
    global_rank = 0
    local_rank = property(lambda self: self._fabric.local_rank)
    node_rank = property(lambda self: self._fabric.node_rank)
    is_global_zero = property(lambda self: self._fabric.is_global_zero)
    accelerator = property(lambda self: self._fabric.accelerator)
    precision = property(lambda self: self._fabric._precision.precision)
    ckpt_path = property(lambda self: self._around.ckpt_path)
    profiler = property(lambda self: self._around.profiler)

    @property
    def gradient_clip_algorithm(self) -> GradClipAlgorithmType | None:
        name = self._settings.gradient_clip_algorithm
        return None if name is None else GradClipAlgorithmType(name)

    @property
    def device_ids(self) -> list[int]:
        return [device.index or 0 for device in getattr(self._fabric.strategy, "parallel_devices", None) or []]

    def call_hook(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Run a method of the module's, after its callbacks'; ``self.log`` knows where it is called from.

        In a client's turn this process is rank zero to the module, since it is alone there.
        """
        before, self.model._current_fx_name = self.model._current_fx_name, name
        try:
            with nullcontext() if self.client is None else rank_seen(0):
                for callback in self.watching.get(name, ()):
                    getattr(callback, name)(self, self.model, *args, **kwargs)
                return getattr(self.model, name)(*args, **kwargs)
        finally:
            self.model._current_fx_name = before

    def count_step(self) -> None:
        """One optimiser step was taken."""
        self.global_step += 1
        if self.rates is not None and (groups := self.optimizers[0].param_groups):  # none where nothing is trained
            rate = groups[0].get("lr")
            self.rates.append(1.0 if rate is None else float(rate))

    def print(self, *args: Any, **kwargs: Any) -> None:
        """Print once, on rank zero."""
        if self.is_global_zero:
            print(*args, **kwargs)

    def take_optimizers(self, optimizers: Iterable[Optimizer], schedulers: Iterable[LRSchedulerConfig]) -> None:
        """The optimisers and schedulers of the client whose turn begins."""
        self.optimizers, self.lr_scheduler_configs = list(optimizers), list(schedulers)
        self.strategy.forget_optimizers()

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(refusal(name, vars(self).get("_around") and self._around.federated))
