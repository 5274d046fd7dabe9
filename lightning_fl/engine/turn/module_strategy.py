"""``self.trainer.strategy`` and ``precision_plugin``: one client, in one process."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from lightning.fabric import Fabric
from lightning.fabric.plugins import Precision
from lightning.fabric.utilities.apply_func import move_data_to_device
from lightning.pytorch.core.optimizer import LightningOptimizer
from lightning.pytorch.utilities import GradClipAlgorithmType
from torch import Tensor
from torch.optim import Optimizer

from lightning_fl.core.lightning_types import own_lightning
from lightning_fl.engine.profile import BACKWARD, OPTIMIZER
from lightning_fl.engine.turn.trainer_attributes import refusal

__all__ = ["ModulePrecision", "ModuleStrategy"]


class ModulePrecision:
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


class ModuleStrategy:
    """``trainer.strategy``: one client, one process. Ranks are those that ``self.trainer`` has.

    Args:
        trainer: the module's.
        fabric: of the run.
    """

    handles_gradient_accumulation = False

    def __init__(self, trainer: Any, fabric: Fabric) -> None:
        self._trainer = trainer
        self._fabric = fabric
        self._wrapped: list[LightningOptimizer] | None = None

    lightning_module = property(lambda self: self._trainer.model)
    model = property(lambda self: self._trainer.model)
    root_device = property(lambda self: self._trainer.model.device)
    precision_plugin = property(lambda self: self._trainer.precision_plugin)
    optimizers = property(lambda self: self._trainer.optimizers)
    lr_scheduler_configs = property(lambda self: self._trainer.lr_scheduler_configs)
    accelerator = property(lambda self: self._fabric.accelerator)
    world_size = property(lambda self: self._trainer.world_size)
    num_nodes = property(lambda self: self._trainer.num_nodes)
    num_processes = property(lambda self: self._trainer.num_devices)
    global_rank = property(lambda self: self._trainer.global_rank)
    local_rank = property(lambda self: self._fabric.local_rank)
    node_rank = property(lambda self: self._fabric.node_rank)
    is_global_zero = property(lambda self: self._fabric.is_global_zero)
    launcher = property(lambda self: self._fabric.strategy.launcher)
    checkpoint_io = property(lambda self: self._fabric.strategy.checkpoint_io)
    strategy_name = property(lambda self: type(self._fabric.strategy).__name__.lower())

    @property
    def _lightning_optimizers(self) -> list[LightningOptimizer]:
        if self._wrapped is None:
            kind = own_lightning(self._trainer.model, "core.optimizer").LightningOptimizer
            self._wrapped = []
            for optimizer in self._trainer.optimizers:
                wrapped = kind._to_lightning_optimizer(optimizer, self)
                if not self._trainer.model.automatic_optimization:
                    wrapped._on_after_step = self._trainer.count_step
                self._wrapped.append(wrapped)
        return self._wrapped

    def forget_optimizers(self) -> None:
        """The optimisers are others from now on."""
        self._wrapped = None

    def backward(self, loss: Tensor, optimizer: Optimizer | None = None, *args: Any, **kwargs: Any) -> Tensor:
        """The module's hooks of a backward pass, and the pass."""
        trainer = self._trainer
        with trainer.profiler.profile(BACKWARD):
            trainer.call_hook("on_before_backward", loss)
            trainer.call_hook("backward", loss, *args, **kwargs)
            trainer.call_hook("on_after_backward")
        return loss

    def optimizer_step(self, optimizer: Optimizer, closure: Callable[[], Any], model: Any = None, **kwargs: Any) -> Any:
        """The optimiser's step, in the run's precision."""

        def closure_then_hooks() -> Any:
            result = closure()
            self._trainer.before_optimizer_step(optimizer)
            return result

        with self._trainer.profiler.profile(OPTIMIZER):
            return self._trainer.precision_plugin.optimizer_step(optimizer, closure=closure_then_hooks, **kwargs)

    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        """The optimiser's state."""
        return optimizer.state_dict()

    def lightning_module_state_dict(self) -> dict[str, Any]:
        """The module's parameters and buffers: those of the client whose turn it is."""
        return self._trainer.model.state_dict()

    def batch_to_device(self, batch: Any, device: torch.device | None = None, dataloader_idx: int = 0) -> Any:
        """The batch on the module's device."""
        return move_data_to_device(batch, device or self.root_device)

    def model_to_device(self) -> None:
        """The module is where it belongs."""

    def process_dataloader(self, dataloader: Any) -> Any:
        """The loader as it is."""
        return dataloader

    def tensor_init_context(self, empty_init: bool | None = None) -> AbstractContextManager:
        """Where the run makes its weights: on its device, in its precision."""
        return self._fabric.init_module(empty_init)

    def reduce(self, tensor: Any, *args: Any, **kwargs: Any) -> Any:
        """What is given: within a turn there is one process."""
        return tensor

    def reduce_boolean_decision(self, decision: bool, all: bool = True) -> bool:
        """What is given."""
        return decision

    def all_gather(self, tensor: Tensor, group: Any = None, sync_grads: bool = False) -> Tensor:
        """What is given."""
        return tensor

    def barrier(self, name: str | None = None) -> None:
        """Clients wait for each other between rounds only."""

    def broadcast(self, obj: Any, src: int = 0) -> Any:
        """What is given."""
        return obj

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(refusal(f"strategy.{name}"))
