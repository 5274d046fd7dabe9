"""``self.trainer.strategy`` and ``precision_plugin``: one client, in one process."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from lightning.fabric import Fabric
from lightning.fabric.plugins import Precision
from lightning.pytorch import LightningModule
from lightning.pytorch.core.optimizer import LightningOptimizer
from lightning.pytorch.plugins.precision import Precision as LightningPrecision
from lightning.pytorch.strategies import SingleDeviceStrategy
from torch import Tensor
from torch.optim import Optimizer

from lightning_fl.core.lightning_types import own_lightning
from lightning_fl.engine.profile import BACKWARD, OPTIMIZER

__all__ = ["ModulePrecision", "ModuleStrategy", "make_strategy"]


class ModulePrecision:
    """``trainer.precision_plugin``: Fabric's plugin with the clipping of Lightning's."""

    clip_gradients: Any = LightningPrecision.clip_gradients
    clip_grad_by_norm: Any = LightningPrecision.clip_grad_by_norm
    clip_grad_by_value: Any = LightningPrecision.clip_grad_by_value

    def __init__(self, precision: Precision) -> None:
        self.plugin = precision

    def __getattr__(self, name: str) -> Any:
        return getattr(self.plugin, name)


class ModuleStrategy(SingleDeviceStrategy if TYPE_CHECKING else object):  # type: ignore[misc]
    """Mixin of Lightning's strategy of one device, whose steps run the hooks of module and strategy.

    Args:
        fabric: of the run.
    """

    def __init__(self, fabric: Fabric) -> None:
        self._precision = ModulePrecision(fabric.strategy.precision)
        self._wrapped: list[LightningOptimizer] | None = None
        self._is_global_zero = fabric.is_global_zero
        super().__init__(fabric.device)
        self.local_rank, self.node_rank = fabric.local_rank, fabric.node_rank

    @property
    def is_global_zero(self) -> bool:
        return self._is_global_zero

    @property
    def precision_plugin(self) -> Any:
        return self._precision

    @precision_plugin.setter
    def precision_plugin(self, precision: Any) -> None:
        """Keep Fabric's."""

    @property
    def optimizers(self) -> list[Optimizer]:
        return self._optimizers

    @optimizers.setter
    def optimizers(self, optimizers: list[Optimizer]) -> None:
        self._optimizers, self._wrapped = optimizers, None

    @property
    def _lightning_optimizers(self) -> list[LightningOptimizer]:
        """The optimisers as ``self.optimizers()`` returns them, made when asked for."""
        if self._wrapped is None:
            module: Any = self.lightning_module
            kind = own_lightning(module, "core.optimizer").LightningOptimizer
            self._wrapped = [kind._to_lightning_optimizer(optimizer, self) for optimizer in self._optimizers]
            if not module.automatic_optimization:
                for wrapped in self._wrapped:
                    wrapped._on_after_step = module.trainer.count_step
        return self._wrapped

    @_lightning_optimizers.setter
    def _lightning_optimizers(self, wrapped: list[LightningOptimizer]) -> None:
        """Make them when asked for."""

    def backward(self, loss: Tensor, optimizer: Optimizer | None = None, *args: Any, **kwargs: Any) -> Tensor:
        """The module's hooks of a backward pass, and the pass."""
        trainer: Any = self.lightning_module.trainer
        with trainer.profiler.profile(BACKWARD):
            trainer.call_hook("on_before_backward", loss)
            trainer.call_hook("backward", loss, *args, **kwargs)
            trainer.call_hook("on_after_backward")
        return loss

    def optimizer_step(self, optimizer: Optimizer, closure: Callable[[], Any], model: Any = None, **kwargs: Any) -> Any:
        """The optimiser's step, in the run's precision."""
        trainer: Any = self.lightning_module.trainer

        def closure_then_hooks() -> Any:
            result = closure()
            trainer.before_optimizer_step(optimizer)
            return result

        with trainer.profiler.profile(OPTIMIZER):
            return self._precision.optimizer_step(optimizer, closure=closure_then_hooks, **kwargs)


def make_strategy(module: LightningModule, fabric: Fabric) -> Any:
    """The strategy of a module's trainer, from the package that the module is built on."""
    kind = own_lightning(module, "strategies").SingleDeviceStrategy
    return type("ModuleStrategy", (ModuleStrategy, kind), {"strategy_name": type(fabric.strategy).__name__.lower()})(
        fabric
    )
