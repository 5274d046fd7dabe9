"""The federated trainer: the round loop, its set-up and checks, resuming, and the report at the end of a run."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lightning_fl.trainer.trainer import FederatedTrainer

__all__ = ["FederatedTrainer"]


def __getattr__(name: str) -> Any:
    if name == "FederatedTrainer":
        from lightning_fl.trainer.trainer import FederatedTrainer

        return FederatedTrainer
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
