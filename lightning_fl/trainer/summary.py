"""Content of ``summary.json`` besides the metrics."""

from typing import Any

from lightning_fl.callbacks.callback import method_of
from lightning_fl.callbacks.model_checkpoint import ModelCheckpoint
from lightning_fl.core.lightning_types import is_overridden
from lightning_fl.data.module import FederatedDataModule
from lightning_fl.runtime.run_log import versions
from lightning_fl.runtime.surface import TrainerSurface

__all__ = ["about"]


def _predicts(trainer: TrainerSurface) -> str | None:
    """What ``lightning-fl predict`` can read: "new samples", only the run's own "test data", or nothing."""
    if not is_overridden("predict_step", trainer.module) and not is_overridden("forward", trainer.module):
        return None
    reads = type(trainer.datamodule).unlabelled_data is not FederatedDataModule.unlabelled_data
    return "new samples" if reads else "test data"


def about(trainer: TrainerSurface, stage: str) -> dict[str, Any]:
    """Entries of the summary for a stage."""
    source, names = trainer.datamodule.source, trainer.client_names
    title = trainer.run_log.summary.get("title", f"{type(trainer.module).__name__} on {source} data")
    about = {
        "title": title,
        "data_source": source,
        "data": dict(trainer.datamodule.describe()),
        "method": method_of(type(trainer.strategy).__name__, trainer.callbacks),
        "strategy": type(trainer.strategy).__name__,
        "evaluated": trainer.evaluated_model,
        "predicts": _predicts(trainer),
        "callbacks": [type(callback).__name__ for callback in trainer.callbacks],
        "seed": trainer.seed,
        "num_clients": trainer.num_clients,
        "client_names": names,
        "num_processes": trainer.fabric.world_size,
        "device": str(trainer.fabric.device),
        "versions": versions(),
    }
    if trainer.differs:
        before = trainer.run_log.summary.get("differs_from_checkpoint", {})
        about["differs_from_checkpoint"] = {**before, **trainer.differs}
    if stage != "fit":
        return about
    checkpoint = trainer.callback(ModelCheckpoint)
    about |= {
        "rounds": trainer.federation.current_round,
        "wall_time_seconds": round(trainer.federation.wall_time_seconds, 3),
        "communication": trainer.federation.communication.summary(names),
        "interrupted": trainer.federation.interrupted_by is not None,
        "resumed_from": trainer.ckpt_path,
    }
    if checkpoint is not None:
        about |= {"best_round": checkpoint.best_round, "best_value": checkpoint.best_value}
    return about
