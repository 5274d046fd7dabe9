"""Lightning's classes under both package names, ``lightning.pytorch`` and ``pytorch_lightning``.

The two packages hold the same code, but their classes are unrelated. The unions here accept either.
``pytorch_lightning`` is not imported: unless someone else has, nothing derives from its classes.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from lightning.fabric.loggers.logger import Logger
from lightning.fabric.utilities.rank_zero import rank_zero_only
from lightning.pytorch import Callback, LightningDataModule, LightningModule
from lightning_utilities.core.overrides import is_overridden as _is_overridden

_RANK_ZERO: Any = rank_zero_only  # has the process's rank as an attribute


class _StandsFor(type):
    """Metaclass of stand-ins for classes of ``pytorch_lightning`` in ``isinstance`` and annotations."""

    place: str
    name: str

    def __subclasscheck__(cls, kind: type) -> bool:
        base = getattr(sys.modules.get(cls.place), cls.name, None)
        return kind is cls or (base is not None and issubclass(kind, base))

    def __instancecheck__(cls, instance: object) -> bool:
        return issubclass(type(instance), cls)


def _stand_in(place: str, stands_for: str) -> Any:
    name = f"PytorchLightning{stands_for.removeprefix('Lightning')}"
    return _StandsFor(name, (), {"__module__": __name__, "place": place, "name": stands_for})


PytorchLightningModule = _stand_in("pytorch_lightning.core.module", "LightningModule")
PytorchLightningDataModule = _stand_in("pytorch_lightning.core.datamodule", "LightningDataModule")
PytorchLightningLogger = _stand_in("lightning_fabric.loggers.logger", "Logger")
PytorchLightningCallback = _stand_in("pytorch_lightning.callbacks.callback", "Callback")

if TYPE_CHECKING:  # the code is the same
    AnyModule = LightningModule
    AnyDataModule = LightningDataModule
    AnyLogger = Logger
    AnyLightningCallback = Callback
else:
    AnyModule = LightningModule | PytorchLightningModule
    AnyDataModule = LightningDataModule | PytorchLightningDataModule
    AnyLogger = Logger | PytorchLightningLogger
    AnyLightningCallback = Callback | PytorchLightningCallback

#: Class of ``lightning.pytorch`` -> union of both.
EITHER_NAME = {
    LightningModule: AnyModule,
    LightningDataModule: AnyDataModule,
    Logger: AnyLogger,
    Callback: AnyLightningCallback,
}


def own_lightning(module: object, name: str) -> ModuleType:
    """Import a submodule, such as ``core.optimizer``, of the package that a module is built on."""
    root = "pytorch_lightning" if isinstance(module, PytorchLightningModule) else "lightning.pytorch"
    return import_module(f"{root}.{name}")


@contextmanager
def rank_seen(rank: int) -> Iterator[None]:
    """Make Lightning's ``rank_zero_only`` functions see this process as another rank."""
    before, _RANK_ZERO.rank = _RANK_ZERO.rank, rank
    try:
        yield
    finally:
        _RANK_ZERO.rank = before


def is_overridden(method: str, instance: object) -> bool:
    """Whether a module or data module (else a TypeError) overrides a hook of Lightning."""
    for kind in (LightningModule, LightningDataModule):
        if isinstance(instance, EITHER_NAME[kind]):
            own = kind if isinstance(instance, kind) else getattr(sys.modules["pytorch_lightning"], kind.__name__)
            return _is_overridden(method, instance, own)
    raise TypeError(f"{type(instance).__name__} is neither a LightningModule nor a LightningDataModule.")
