"""The federated trainer: the round loop, its set-up and checks, resuming, and the report at the end of a run."""

from typing import TYPE_CHECKING

from lightning_fl.core.lazy import lazy_exports

if TYPE_CHECKING:
    from lightning_fl.trainer.trainer import FederatedTrainer as FederatedTrainer

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
