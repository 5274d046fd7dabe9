"""lightning-fl: federate an ordinary ``LightningModule``.

Importing this package is cheap: what needs torch is loaded on first use. ``import lightning_fl.strategies`` registers
the strategies' names with Fabric; the trainer does so itself.
"""

import sys
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, Any

from lightning_fl.core.errors import CheckpointError, ConfigurationError, DataError, FederatedError, TrainingError
from lightning_fl.version import __version__

_EXPORTS = {
    "Cohort": "lightning_fl.core.cohort",
    "Collaboration": "lightning_fl.core.collaboration",
    "FederatedDataModule": "lightning_fl.data.module",
    "FederatedTrainer": "lightning_fl.trainer.trainer",
    "Participant": "lightning_fl.core.cohort",
    "Partitioned": "lightning_fl.data.partitioned",
    "Silos": "lightning_fl.data.silos",
    "advise": "lightning_fl.study.advise",
    "federate": "lightning_fl.trainer.federate",
    "predict": "lightning_fl.inference.predict",
}
_SUBPACKAGES = ("callbacks", "data", "functional", "metrics", "models", "strategies")
#: Documented module paths, and where the modules are: ``from lightning_fl.metrics import ClientMetrics`` keeps working.
_ALIASES = {
    "lightning_fl.cohort": "lightning_fl.core.cohort",
    "lightning_fl.errors": "lightning_fl.core.errors",
    "lightning_fl.metrics": "lightning_fl.core.metrics",
    "lightning_fl.options": "lightning_fl.core.validation",
    "lightning_fl.personalization": "lightning_fl.inference.personalization",
    "lightning_fl.seeding": "lightning_fl.core.seeding",
    "lightning_fl.surface": "lightning_fl.runtime.surface",
}

__all__ = [
    "CheckpointError",
    "Cohort",
    "Collaboration",
    "ConfigurationError",
    "DataError",
    "FederatedDataModule",
    "FederatedError",
    "FederatedTrainer",
    "Participant",
    "Partitioned",
    "Silos",
    "TrainingError",
    "__version__",
    "advise",
    "callbacks",
    "data",
    "federate",
    "functional",
    "metrics",
    "models",
    "predict",
    "strategies",
]

if TYPE_CHECKING:
    from lightning_fl import callbacks, data, functional, models, strategies
    from lightning_fl.core import metrics
    from lightning_fl.core.cohort import Cohort, Participant
    from lightning_fl.core.collaboration import Collaboration
    from lightning_fl.data.module import FederatedDataModule
    from lightning_fl.data.partitioned import Partitioned
    from lightning_fl.data.silos import Silos
    from lightning_fl.inference.predict import predict
    from lightning_fl.study.advise import advise
    from lightning_fl.trainer.federate import federate
    from lightning_fl.trainer.trainer import FederatedTrainer


def __getattr__(name: str) -> Any:
    if name in _EXPORTS:
        return getattr(import_module(_EXPORTS[name]), name)
    if name in _SUBPACKAGES:
        return import_module(f"lightning_fl.{name}")
    raise AttributeError(f"module 'lightning_fl' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__


class _Aliases(MetaPathFinder, Loader):
    """Import a module under its documented path; both names are the same module."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        return ModuleSpec(name, self) if name in _ALIASES else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = import_module(_ALIASES[spec.name])
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        spec = module.__spec__
        module.__spec__ = spec and spec.loader_state


sys.meta_path.append(_Aliases())
