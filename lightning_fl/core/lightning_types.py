"""Lightning under both of its names: ``lightning.pytorch`` and ``pytorch_lightning`` hold one code twice.

A class of the one is no subclass of the other's, and what the users' packages import is theirs to choose. What counts
as a module, a data module or a logger is therefore asked here. ``pytorch_lightning`` is never imported for it: where
nobody has, nothing can derive from it.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from lightning.fabric.loggers.logger import Logger
from lightning.fabric.utilities.rank_zero import rank_zero_only
from lightning.pytorch import LightningDataModule, LightningModule
from lightning_utilities.core.overrides import is_overridden as _is_overridden

__all__ = ["EITHER_NAME", "AnyDataModule", "AnyLogger", "AnyModule", "is_overridden", "own_lightning", "rank_seen"]

_RANK_ZERO: Any = rank_zero_only  # has the process's rank as an attribute


class _Counts(type):
    """The metaclass of a class that stands for one of ``pytorch_lightning`` in ``isinstance`` and annotations."""

    place: str
    name: str

    def __subclasscheck__(cls, kind: type) -> bool:
        base = getattr(sys.modules.get(cls.place), cls.name, None)
        return kind is cls or (base is not None and issubclass(kind, base))

    def __instancecheck__(cls, instance: object) -> bool:
        return issubclass(type(instance), cls)


class PytorchLightningModule(metaclass=_Counts):
    """``pytorch_lightning.LightningModule``."""

    place, name = "pytorch_lightning.core.module", "LightningModule"


class PytorchLightningDataModule(metaclass=_Counts):
    """``pytorch_lightning.LightningDataModule``."""

    place, name = "pytorch_lightning.core.datamodule", "LightningDataModule"


class PytorchLightningLogger(metaclass=_Counts):
    """``lightning_fabric``'s ``Logger``, from which those of ``pytorch_lightning`` derive."""

    place, name = "lightning_fabric.loggers.logger", "Logger"


if TYPE_CHECKING:  # the two are one code, so that one stands for both
    AnyModule = LightningModule
    AnyDataModule = LightningDataModule
    AnyLogger = Logger
else:
    AnyModule = LightningModule | PytorchLightningModule
    AnyDataModule = LightningDataModule | PytorchLightningDataModule
    AnyLogger = Logger | PytorchLightningLogger

#: A class of ``lightning.pytorch`` -> what else counts as it.
EITHER_NAME = {LightningModule: AnyModule, LightningDataModule: AnyDataModule, Logger: AnyLogger}


def own_lightning(module: object, name: str) -> ModuleType:
    """A submodule, such as ``core.optimizer``, of the Lightning that a module is built on."""
    root = "pytorch_lightning" if isinstance(module, PytorchLightningModule) else "lightning.pytorch"
    return import_module(f"{root}.{name}")


@contextmanager
def rank_seen(rank: int) -> Iterator[None]:
    """Lightning's functions, which do some things on rank zero alone, take this process for a rank."""
    before, _RANK_ZERO.rank = _RANK_ZERO.rank, rank
    try:
        yield
    finally:
        _RANK_ZERO.rank = before


def is_overridden(method: str, instance: object) -> bool:
    """Whether a module or data module defines a hook of Lightning's itself.

    Raises:
        TypeError: it is neither.
    """
    for name, kind in (("LightningModule", AnyModule), ("LightningDataModule", AnyDataModule)):
        if isinstance(instance, kind):
            root = "lightning.pytorch" if isinstance(instance, LightningModule | LightningDataModule) else None
            parent = getattr(sys.modules[root or "pytorch_lightning"], name)
            return _is_overridden(method, instance, parent)
    raise TypeError(f"{type(instance).__name__} is neither a LightningModule nor a LightningDataModule.")
