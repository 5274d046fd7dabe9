"""The trainer as a module sees it: ``self.trainer`` inside an unchanged ``LightningModule``.

Lightning's ``self.log``, ``self.optimizers()``, ``self.manual_backward`` and ``self.clip_gradients`` talk to a Trainer.
This object answers them for the one client whose turn it is. A client's local work in one round is an epoch:
``current_epoch`` is the round, ``global_step`` counts the client's own optimiser steps.
"""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import torch
from lightning.fabric.plugins import Precision
from lightning.fabric.utilities.rank_zero import rank_zero_only
from lightning.pytorch import LightningModule
from lightning.pytorch.core.optimizer import LightningOptimizer
from lightning.pytorch.trainer.states import RunningStage, TrainerFn, TrainerState, TrainerStatus
from lightning.pytorch.utilities import GradClipAlgorithmType
from lightning.pytorch.utilities.types import LRSchedulerConfig
from torch import Tensor
from torch.optim import Optimizer
from torchmetrics import Metric

from lightning_fl.engine.results import LogCollector

if TYPE_CHECKING:
    from lightning_fl.trainer import FederatedTrainer

__all__ = ["ModuleTrainer", "keep_metrics_local"]


class _Distributed:
    """Inside a client's turn nothing is distributed: ``sync_dist`` and ``all_gather`` see one process."""

    is_distributed = False


class _LoggerConnector:
    _current_fx: str | None = None

    def should_reset_tensors(self, fx: str) -> bool:
        return False


class _ModulePrecision:
    """``trainer.precision_plugin``: Fabric's plugin with Lightning's ``clip_gradients``."""

    def __init__(self, precision: Precision) -> None:
        self._precision = precision

    def clip_gradients(
        self,
        optimizer: Optimizer,
        clip_val: float = 0.0,
        gradient_clip_algorithm: GradClipAlgorithmType = GradClipAlgorithmType.NORM,
    ) -> None:
        """Clip the gradients of the optimiser's parameters by norm or by value; 0 leaves them alone."""
        if clip_val <= 0:
            return
        parameters = list(self._precision.main_params(optimizer))
        if gradient_clip_algorithm == GradClipAlgorithmType.VALUE:
            torch.nn.utils.clip_grad_value_(parameters, clip_val)
        else:
            torch.nn.utils.clip_grad_norm_(parameters, clip_val)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._precision, name)


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
        module, precision = self._trainer.model, self._trainer.precision_plugin
        module.on_before_backward(loss)
        precision.backward(loss, module, *args, **kwargs)
        module.on_after_backward()
        return loss

    def optimizer_step(self, optimizer: Optimizer, closure: Callable[[], Any], model: Any = None, **kwargs: Any) -> Any:
        return self._trainer.precision_plugin.optimizer_step(optimizer, closure=closure, **kwargs)

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


class ModuleTrainer:
    """What ``LightningModule.trainer`` refers to during a federated run.

    Attributes that a federated run has no meaning for raise an ``AttributeError`` that says so.

    Args:
        trainer: the federated trainer.
        module: the user's module.
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
    progress_bar_callback = None
    progress_bar_metrics: dict[str, Tensor] = {}  # noqa: RUF012 - a module only reads it

    def __init__(self, trainer: "FederatedTrainer", module: LightningModule) -> None:
        self.federated = trainer
        self.model = module
        self.lightning_module = module
        self.state = TrainerState(status=TrainerStatus.RUNNING)
        self.precision_plugin = _ModulePrecision(trainer.fabric._precision)
        self.strategy = _ModuleStrategy(self)
        self.collector = LogCollector(trainer.log_every_n_steps)
        self.optimizers: list[Optimizer] = []
        self.lr_scheduler_configs: list[LRSchedulerConfig] = []
        self.client: int | None = None
        self.global_step = 0
        self.batch_idx = 0
        self.is_last_batch = False
        self.num_training_batches: float = 0
        self.num_val_batches: list[float] = []
        self.num_test_batches: list[float] = []
        self.num_predict_batches: list[float] = []
        self.estimated_stepping_batches: float = 0
        self.callback_metrics: dict[str, Tensor] = {}
        self.logged_metrics: dict[str, Tensor] = {}
        self.should_stop = False
        self._logger_connector = _LoggerConnector()
        self._accelerator_connector = _Distributed()

    # -- what the run is -----------------------------------------------------------------------------------------

    @property
    def _results(self) -> LogCollector | None:
        return None if self.predicting else self.collector

    @property
    def current_epoch(self) -> int:
        return self.federated.current_round

    @property
    def current_round(self) -> int:
        return self.federated.current_round

    @property
    def max_epochs(self) -> int:
        return self.federated.max_rounds

    @property
    def check_val_every_n_epoch(self) -> int:
        return self.federated.check_val_every_n_rounds

    val_check_interval = 1.0

    @property
    def datamodule(self) -> Any:
        return self.federated.datamodule

    @property
    def logger(self) -> Any:
        return self.loggers[0] if self.loggers else None

    @property
    def loggers(self) -> list[Any]:
        return self.federated.loggers

    @property
    def log_dir(self) -> str | None:
        return self.federated.log_dir

    @property
    def default_root_dir(self) -> str:
        return self.federated.default_root_dir

    @property
    def callbacks(self) -> list[Any]:
        return self.federated.callbacks

    @property
    def checkpoint_callback(self) -> Any:
        return self.federated.checkpoint_callback

    @property
    def checkpoint_callbacks(self) -> list[Any]:
        return [] if self.checkpoint_callback is None else [self.checkpoint_callback]

    early_stopping_callback = None
    early_stopping_callbacks: list[Any] = []  # noqa: RUF012

    @property
    def num_clients(self) -> int:
        return self.federated.num_clients

    def target_statistics(self) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation of the training targets over all clients; see ``FederatedTrainer``."""
        return self.federated.target_statistics()

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
        return self.federated.fabric.world_size

    num_devices = property(lambda self: self.federated.strategy.num_processes)
    num_nodes = property(lambda self: self.federated.strategy.num_nodes)
    global_rank = property(lambda self: self.federated.fabric.global_rank)
    local_rank = property(lambda self: self.federated.fabric.local_rank)
    node_rank = property(lambda self: self.federated.fabric.node_rank)
    is_global_zero = property(lambda self: self.federated.fabric.is_global_zero)
    accelerator = property(lambda self: self.federated.fabric.accelerator)
    precision = property(lambda self: self.federated.fabric._precision.precision)
    gradient_clip_val = property(lambda self: self.federated.gradient_clip_val)
    accumulate_grad_batches = property(lambda self: self.federated.accumulate_grad_batches)
    log_every_n_steps = property(lambda self: self.federated.log_every_n_steps)
    ckpt_path = property(lambda self: self.federated.ckpt_path)

    @property
    def gradient_clip_algorithm(self) -> GradClipAlgorithmType | None:
        name = self.federated.gradient_clip_algorithm
        return None if name is None else GradClipAlgorithmType(name)

    @property
    def device_ids(self) -> list[int]:
        return [device.index or 0 for device in self.federated.strategy.parallel_devices or []]

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
