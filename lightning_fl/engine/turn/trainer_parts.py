"""Parts of a module's ``self.trainer``: loops that it may only read, one client's data module, what is refused."""

from collections.abc import Callable
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NoReturn, cast

from lightning.fabric import Fabric
from lightning.fabric.plugins import Precision
from lightning.pytorch import LightningModule
from lightning.pytorch.core.optimizer import LightningOptimizer
from lightning.pytorch.loops.loop import _Loop
from lightning.pytorch.plugins.precision import Precision as LightningPrecision
from lightning.pytorch.strategies import SingleDeviceStrategy
from lightning.pytorch.utilities.combined_loader import CombinedLoader
from lightning.pytorch.utilities.types import LRSchedulerConfig
from torch import Tensor
from torch.optim import Optimizer

from lightning_fl.core.errors import ConfigurationError, page
from lightning_fl.core.lightning_types import own_lightning
from lightning_fl.engine.profile import BACKWARD, OPTIMIZER

_WITHIN = "a run is under way, and its clients share this one module"

#: Attribute of ``self.trainer`` -> why it is refused, and the alternative.
REFUSED = {
    "fit": f"{_WITHIN}. Train another model with a Trainer of its own",
    "validate": f"{_WITHIN}. trainer.check_val_every_n_rounds says when models are validated; validation_step does it",
    "test": f"{_WITHIN}. Call FederatedTrainer.test after fit",
    "predict": f"{_WITHIN}. Call FederatedTrainer.predict after fit, or the module itself on a batch",
    "save_checkpoint": "every client would overwrite the file of the one before. The run keeps checkpoints/ itself"
    " (lightning_fl.callbacks.ModelCheckpoint) and writes each client's model to models/ after fit",
}

_LOOPS = ("fit_loop", "validate_loop", "test_loop", "predict_loop")


def refusal(name: str, federated: object = None) -> str:
    """Message that ``self.trainer.NAME`` is refused; the federated trainer may have an attribute of this name."""
    text = f"self.trainer.{name} has no meaning in a federated run"
    if name in REFUSED:
        return f"{text}: {REFUSED[name]}."
    if name.startswith(_LOOPS):
        what = "clients' turns replace Lightning's loops, which a module may read, but neither run nor change"
        return f"{text}: {what}. {page('lightning-support#selftrainer')} lists what it may read."
    if not name.startswith("_") and hasattr(type(federated), name):
        return f"{text}: {type(federated).__name__}'s own is self.trainer.federated.{name}."
    return f"{text}, and Lightning's Trainer does not have it either. See {page('lightning-support#selftrainer')}."


def refuse_outside_of_a_turn(name: str) -> NoReturn:
    """Refuse an attribute that differs between clients."""
    where = "configure_optimizers, or later in a client's turn"
    raise ConfigurationError(f"self.trainer.{name} belongs to a client: read it in {where}.")


class Refused:
    """An attribute of Lightning that raises an ``AttributeError``, whose message comes from ``__getattr__``."""

    def __get__(self, owner: Any, kind: type) -> NoReturn:
        raise AttributeError


class FixedList(list[Any]):
    """The run's callbacks, which a module can only read."""

    def _refuse(self, *_: object) -> NoReturn:
        raise AttributeError("self.trainer.callbacks cannot be changed within a run: give them to FederatedTrainer.")

    append = extend = insert = remove = pop = clear = __setitem__ = __delitem__ = __iadd__ = _refuse


#: Place of a loop below ``self.trainer`` -> stage of its loader.
_WORDS = {
    "fit_loop": "train",
    "fit_loop.epoch_loop": "train",
    "fit_loop.epoch_loop.val_loop": "val",
    "validate_loop": "val",
    "test_loop": "test",
    "predict_loop": "predict",
}


class _DataSource:
    def __init__(self, loop: Any) -> None:
        self._loop = loop
        self.name = f"{loop._word}_dataloader"

    @property
    def instance(self) -> Any:
        return self._loop.trainer.datamodule

    def is_module(self) -> bool:
        return True

    def is_defined(self) -> bool:
        return self._loop.trainer.reads(self._loop._word) and self.dataloader() is not None

    def dataloader(self) -> Any:
        return self._loop.trainer.loader(self._loop._word, f"{self.name}()")


class _ReadOnlyLoop(_Loop if TYPE_CHECKING else object):  # type: ignore[misc]
    _path: str
    _word: str
    run: Any = Refused()

    @property
    def _combined_loader(self) -> CombinedLoader | None:
        loader: Any = self.trainer.loader_of(self._word)
        if loader is None or isinstance(loader, CombinedLoader):
            return loader
        return CombinedLoader(loader, "max_size_cycle" if self._word == "train" else "sequential")

    def setup_data(self) -> None:
        """Do nothing in a client's turn, whose loaders exist."""
        if self.trainer.client is None:
            refuse_outside_of_a_turn(f"{self._path}.setup_data()")

    @property
    def max_batches(self) -> Any:
        return self.trainer.batches_of(self._word)

    _max_batches = max_batches

    @property
    def global_step(self) -> int:
        return self.trainer.global_step

    _batches_that_stepped = global_step

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(refusal(f"{self._path}.{name}"))

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"{refusal(f'{self._path}.{name}')} It cannot be set.")


_kinds: dict[type, type] = {}


def restrict_loops(trainer: Any) -> None:
    """Make the loops of a new trainer read-only, with the client's loaders and counts."""
    for path, word in _WORDS.items():
        loop: Any = attrgetter(path)(trainer)
        kind = type(loop)
        vars(loop).update(_path=path, _word=word)
        vars(loop)["_data_source"] = _DataSource(loop)
        if kind not in _kinds:
            _kinds[kind] = type(kind.__name__, (_ReadOnlyLoop, kind), {})
        loop.__class__ = _kinds[kind]


_LOADERS = ("train_dataloader", "val_dataloader", "test_dataloader", "predict_dataloader")


class ClientDataModule:
    """An ordinary data module with one client's loaders, which counts as one of the class that they come from.

    Attributes and methods are those of that data module (the client's own in ``Silos``, the divided one in
    ``Partitioned``), then the federated data module's.
    """

    def __init__(self, own: Any, federated: Any, trainer: Any) -> None:
        vars(self).update(_own=own, _federated=federated, _trainer=trainer)

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return type(self._own)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self._own.__reduce_ex__(protocol)  # a copy is one of the data module

    def __getattr__(self, name: str) -> Any:
        if "_own" not in vars(self):
            raise AttributeError(name)
        if name in _LOADERS:
            return lambda: self._trainer.loader(name.partition("_")[0], f"datamodule.{name}()")
        own, federated = self._own, self._federated
        if own is not federated and not hasattr(own, name) and hasattr(federated, name):
            return getattr(federated, name)
        return getattr(own, name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self._own, name, value)


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
    """Mixin of Lightning's strategy of one device, whose steps run the hooks of module and strategy."""

    def __init__(self, fabric: Fabric) -> None:
        self._precision = ModulePrecision(fabric.strategy.precision)
        self._wrapped: list[LightningOptimizer] | None = None
        #: Makes the optimisers and schedulers of the client that is validated, when they are first asked for.
        self.make: Callable[[], None] | None = None
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
        if self.make is not None:
            self.make()
        return self._optimizers

    @optimizers.setter
    def optimizers(self, optimizers: list[Optimizer]) -> None:
        self._optimizers, self._wrapped = optimizers, None

    @property
    def lr_scheduler_configs(self) -> list[LRSchedulerConfig]:
        if self.make is not None:
            self.make()
        return self._schedulers

    @lr_scheduler_configs.setter
    def lr_scheduler_configs(self, configs: list[LRSchedulerConfig]) -> None:
        self._schedulers = configs

    @property
    def _lightning_optimizers(self) -> list[LightningOptimizer]:
        """The optimisers as ``self.optimizers()`` returns them, made when asked for."""
        optimizers, module = self.optimizers, cast(Any, self.lightning_module)
        if not optimizers and module._current_fx_name == "on_train_start":
            refuse_outside_of_a_turn("optimizers")
        if self._wrapped is None:
            kind = own_lightning(module, "core.optimizer").LightningOptimizer
            self._wrapped = [kind._to_lightning_optimizer(optimizer, self) for optimizer in optimizers]
            if not module.automatic_optimization:
                for wrapped in self._wrapped:
                    wrapped._on_after_step = module.trainer.count_step
        return self._wrapped

    @_lightning_optimizers.setter
    def _lightning_optimizers(self, wrapped: list[LightningOptimizer]) -> None:
        """Make them when asked for."""

    def backward(self, loss: Tensor, optimizer: Optimizer | None = None, *args: Any, **kwargs: Any) -> Tensor:
        trainer: Any = self.lightning_module.trainer
        with trainer.profiler.profile(BACKWARD):
            trainer.call_hook("on_before_backward", loss)
            trainer.call_hook("backward", loss, *args, **kwargs)
            trainer.call_hook("on_after_backward")
        return loss

    def optimizer_step(self, optimizer: Optimizer, closure: Callable[[], Any], model: Any = None, **kwargs: Any) -> Any:
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
