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

from lightning_fl.core.lazy import lazy_exports

if TYPE_CHECKING:
    from lightning_fl import callbacks as callbacks
    from lightning_fl import data as data
    from lightning_fl import functional as functional
    from lightning_fl import models as models
    from lightning_fl import strategies as strategies
    from lightning_fl.core import metrics as metrics
    from lightning_fl.core.cohort import Cohort as Cohort
    from lightning_fl.core.cohort import Participant as Participant
    from lightning_fl.core.collaboration import Collaboration as Collaboration
    from lightning_fl.core.errors import CheckpointError as CheckpointError
    from lightning_fl.core.errors import ConfigurationError as ConfigurationError
    from lightning_fl.core.errors import DataError as DataError
    from lightning_fl.core.errors import FederatedError as FederatedError
    from lightning_fl.core.errors import TrainingError as TrainingError
    from lightning_fl.data.module import FederatedDataModule as FederatedDataModule
    from lightning_fl.data.partitioned import Partitioned as Partitioned
    from lightning_fl.data.silos import Silos as Silos
    from lightning_fl.inference.predict import predict as predict
    from lightning_fl.study.advise import advise as advise
    from lightning_fl.trainer.federate import federate as federate
    from lightning_fl.trainer.trainer import FederatedTrainer as FederatedTrainer
    from lightning_fl.version import __version__ as __version__
else:
    __getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)

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
