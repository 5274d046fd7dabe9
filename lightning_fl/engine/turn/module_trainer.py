"""The trainer as a module sees it: ``self.trainer`` inside an unchanged ``LightningModule``.

Lightning's ``self.log``, ``self.optimizers()``, ``self.manual_backward`` and ``self.clip_gradients`` talk to a Trainer.
This object answers them for the one client whose turn it is. A client's local work in one round is an epoch:
``current_epoch`` is the round, ``global_step`` counts the client's own optimiser steps.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from lightning.fabric import Fabric
from lightning.fabric.plugins import Precision
from lightning.fabric.utilities.rank_zero import rank_zero_only
from lightning.pytorch import LightningModule
from lightning.pytorch.core.optimizer import LightningOptimizer
from lightning.pytorch.loggers.logger import DummyLogger
from lightning.pytorch.trainer.states import RunningStage, TrainerFn, TrainerState, TrainerStatus
from lightning.pytorch.utilities import GradClipAlgorithmType
from lightning.pytorch.utilities.model_helpers import is_overridden
from lightning.pytorch.utilities.types import LRSchedulerConfig
from torch import Tensor
from torch.optim import Optimizer
from torchmetrics import Metric

from lightning_fl.engine.federation import Federation
from lightning_fl.engine.processes import Processes
from lightning_fl.engine.settings import Settings
from lightning_fl.engine.turn.results import LogCollector
from lightning_fl.engine.turn.surroundings import Surroundings
from lightning_fl.errors import ConfigurationError

__all__ = ["ModuleTrainer", "keep_metrics_local"]


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


class _ModulePrecision:
    """``trainer.precision_plugin``: Fabric's plugin with Lightning's ``clip_gradients``."""

    def __init__(self, precision: Precision) -> None:
        self.plugin = precision

    def clip_gradients(
        self,
        optimizer: Optimizer,
        clip_val: float = 0.0,
        gradient_clip_algorithm: GradClipAlgorithmType = GradClipAlgorithmType.NORM,
    ) -> None:
        """Clip the gradients of the optimiser's parameters by norm or by value; 0 leaves them alone."""
        if clip_val <= 0:
            return
        parameters = list(self.plugin.main_params(optimizer))
        if gradient_clip_algorithm == GradClipAlgorithmType.VALUE:
            torch.nn.utils.clip_grad_value_(parameters, clip_val)
        else:
            torch.nn.utils.clip_grad_norm_(parameters, clip_val)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.plugin, name)


class _ModuleStrategy:
    """``trainer.strategy``: one client, one process."""

    def __init__(self, trainer: "ModuleTrainer") -> None:
        self._trainer = trainer
        self._wrapped: list[LightningOptimizer] | None = None

    @property
    def lightning_module(self) -> LightningModule:
        return self._trainer.model

    @property
    def root_device(self) -> torch.device:
        return self._trainer.model.device

    @property
    def optimizers(self) -> list[Optimizer]:
        return self._trainer.optimizers

    @property
    def _lightning_optimizers(self) -> list[LightningOptimizer]:
        if self._wrapped is None:
            self._wrapped = []
            for optimizer in self._trainer.optimizers:
                wrapped = LightningOptimizer._to_lightning_optimizer(optimizer, self)  # type: ignore[arg-type]
                if not self._trainer.model.automatic_optimization:
                    wrapped._on_after_step = self._trainer.count_step
                self._wrapped.append(wrapped)
        return self._wrapped

    def forget_optimizers(self) -> None:
        self._wrapped = None

    def backward(self, loss: Tensor, optimizer: Optimizer | None = None, *args: Any, **kwargs: Any) -> Tensor:
        trainer = self._trainer
        trainer.call_hook("on_before_backward", loss)
        trainer.call_hook("backward", loss, *args, **kwargs)
        trainer.call_hook("on_after_backward")
        return loss

    def optimizer_step(self, optimizer: Optimizer, closure: Callable[[], Any], model: Any = None, **kwargs: Any) -> Any:
        def closure_then_hooks() -> Any:
            result = closure()
            self._trainer.before_optimizer_step(optimizer)
            return result

        return self._trainer.precision_plugin.optimizer_step(optimizer, closure=closure_then_hooks, **kwargs)

    def reduce(self, tensor: Any, *args: Any, **kwargs: Any) -> Any:
        return tensor

    def all_gather(self, tensor: Tensor, group: Any = None, sync_grads: bool = False) -> Tensor:
        return tensor

    def barrier(self, name: str | None = None) -> None:
        """Clients wait for each other between rounds only."""

    def broadcast(self, obj: Any, src: int = 0) -> Any:
        return obj


def keep_metrics_local(module: LightningModule) -> None:
    """Let no ``torchmetrics.Metric`` synchronise over processes: what other ranks hold are other clients' values."""
    for submodule in module.modules():
        if isinstance(submodule, Metric):
            submodule.distributed_available_fn = _never


def _never() -> bool:
    return False


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

    barebones = False
    sanity_checking = False
    fast_dev_run = False
    min_epochs = None
    min_steps = None
    max_steps = -1
    max_time = None
    reload_dataloaders_every_n_epochs = 0
    limit_train_batches = limit_val_batches = limit_test_batches = limit_predict_batches = 1.0
    overfit_batches = 0.0
    num_sanity_val_steps = 0
    num_sanity_val_batches: list[float] = []  # noqa: RUF012 - a module only reads it
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
        self.precision_plugin = _ModulePrecision(fabric._precision)
        self.strategy = _ModuleStrategy(self)
        self.collector = LogCollector(settings.log_every_n_steps)
        self.optimizers: list[Optimizer] = []
        self.lr_scheduler_configs: list[LRSchedulerConfig] = []
        self.client: int | None = None
        self.global_step = 0
        self.batch_idx = 0
        self.is_last_batch = False
        self.num_training_batches: float = float("inf")
        self.num_val_batches: list[float] = []
        self.num_test_batches: list[float] = []
        self.num_predict_batches: list[float] = []
        self._estimated_stepping_batches: float | None = None
        self._between_turns = _BetweenTurns()
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
            raise ConfigurationError(
                "self.trainer.estimated_stepping_batches belongs to a client: read it in configure_optimizers, or later"
                " in a client's turn."
            )
        return self._estimated_stepping_batches

    @estimated_stepping_batches.setter
    def estimated_stepping_batches(self, steps: float) -> None:
        self._estimated_stepping_batches = steps

    @property
    def current_round(self) -> int:
        return self._federation.current_round

    @property
    def max_epochs(self) -> int:
        return self._settings.max_rounds

    @property
    def check_val_every_n_epoch(self) -> int:
        return self._settings.check_val_every_n_rounds

    val_check_interval = 1.0

    @property
    def federated(self) -> Any:
        return self._around.federated

    @property
    def datamodule(self) -> Any:
        return self._around.datamodule

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
        return self._settings.default_root_dir

    @property
    def callbacks(self) -> list[Any]:
        return self._around.callbacks

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
        return means if self.client is None else means | self.collector.so_far()

    @property
    def logged_metrics(self) -> dict[str, Tensor]:
        return self._logged_with("to_logger")

    @property
    def progress_bar_metrics(self) -> dict[str, float]:
        return {name: float(value) for name, value in self._logged_with("prog_bar").items()}

    def _logged_with(self, destination: str) -> dict[str, Tensor]:
        every = [item for metrics in self._federation.metrics.values() for item in metrics.items()]
        return {name: torch.tensor(metric.mean) for name, metric in every if getattr(metric, destination)}

    def begin_turn(self, client: int, global_step: int) -> None:
        """A client's turn begins: what is logged from now on is its own."""
        self.client, self.global_step = client, global_step
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
        self.client = None
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

    @property
    def world_size(self) -> int:
        return self._fabric.world_size

    num_devices = property(lambda self: self._fabric.strategy.num_processes)
    num_nodes = property(lambda self: self._fabric.strategy.num_nodes)
    global_rank = property(lambda self: self._fabric.global_rank)
    local_rank = property(lambda self: self._fabric.local_rank)
    node_rank = property(lambda self: self._fabric.node_rank)
    is_global_zero = property(lambda self: self._fabric.is_global_zero)
    accelerator = property(lambda self: self._fabric.accelerator)
    precision = property(lambda self: self._fabric._precision.precision)
    gradient_clip_val = property(lambda self: self._settings.gradient_clip_val)
    accumulate_grad_batches = property(lambda self: self._settings.accumulate_grad_batches)
    # Modules divide by it: where no steps are logged (0), Lightning's default.
    log_every_n_steps = property(lambda self: self._settings.log_every_n_steps or 50)
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
        """Run a method of the module's, after its callbacks'; ``self.log`` knows where it is called from."""
        before, self.model._current_fx_name = self.model._current_fx_name, name
        try:
            for callback in self.watching.get(name, ()):
                getattr(callback, name)(self, self.model, *args, **kwargs)
            return getattr(self.model, name)(*args, **kwargs)
        finally:
            self.model._current_fx_name = before

    def count_step(self) -> None:
        """One optimiser step was taken."""
        self.global_step += 1

    @rank_zero_only
    def print(self, *args: Any, **kwargs: Any) -> None:
        """Print once, on rank zero."""
        print(*args, **kwargs)

    def take_optimizers(self, optimizers: Iterable[Optimizer], schedulers: Iterable[LRSchedulerConfig]) -> None:
        """The optimisers and schedulers of the client whose turn begins."""
        self.optimizers, self.lr_scheduler_configs = list(optimizers), list(schedulers)
        self.strategy.forget_optimizers()

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"self.trainer.{name} has no meaning in a federated run. docs/lightning-support.md lists what a module"
            " may read; test for it with hasattr(self.trainer, ...) if the module also runs under Lightning's Trainer."
        )
