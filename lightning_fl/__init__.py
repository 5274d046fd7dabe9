"""lightning-fl: federate an ordinary ``LightningModule``.

Importing this package is cheap: what needs torch is loaded on first use. ``import lightning_fl.strategies`` registers
the strategies' names with Fabric; the trainer does so itself.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from lightning_fl.errors import CheckpointError, ConfigurationError, DataError, FederatedError, TrainingError
from lightning_fl.version import __version__

_EXPORTS = {
    "Cohort": "lightning_fl.cohort",
    "Collaboration": "lightning_fl.collaboration",
    "FederatedDataModule": "lightning_fl.data.module",
    "FederatedTrainer": "lightning_fl.trainer",
    "Participant": "lightning_fl.cohort",
    "Partitioned": "lightning_fl.data.partitioned",
    "Silos": "lightning_fl.data.silos",
    "federate": "lightning_fl.shortcut",
    "predict": "lightning_fl.prediction.predict",
}
_SUBPACKAGES = ("callbacks", "data", "functional", "metrics", "models", "strategies")

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
    from lightning_fl import callbacks, data, functional, metrics, models, strategies
    from lightning_fl.cohort import Cohort, Participant
    from lightning_fl.collaboration import Collaboration
    from lightning_fl.data.module import FederatedDataModule
    from lightning_fl.data.partitioned import Partitioned
    from lightning_fl.data.silos import Silos
    from lightning_fl.prediction.predict import predict
    from lightning_fl.shortcut import federate
    from lightning_fl.trainer import FederatedTrainer


def __getattr__(name: str) -> Any:
    if name in _EXPORTS:
        return getattr(import_module(_EXPORTS[name]), name)
    if name in _SUBPACKAGES:
        return import_module(f"lightning_fl.{name}")
    raise AttributeError(f"module 'lightning_fl' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
