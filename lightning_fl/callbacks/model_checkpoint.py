"""Checkpoints of the last and the best round, and export of the models."""

import contextlib
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch
from lightning.fabric.utilities.rank_zero import rank_zero_warn

from lightning_fl.callbacks.callback import Callback
from lightning_fl.core.collaboration import Collaboration
from lightning_fl.core.errors import CheckpointError, ConfigurationError, listed
from lightning_fl.core.metrics import ClientMetrics, curve_name, default_metric
from lightning_fl.core.validation import Size, checked_fields
from lightning_fl.data.module import Split
from lightning_fl.engine.federation import FINAL_MODELS, Federation
from lightning_fl.engine.weights.flat import Weights
from lightning_fl.runtime.checkpoint import copy_checkpoint, load_state, remove_old_client_files, save_state
from lightning_fl.runtime.model_file import export_models
from lightning_fl.runtime.surface import TrainerSurface

#: What clients kept in the best round: client -> name -> value.
_STORE = "best_round"


@checked_fields
class ModelCheckpoint(Callback):
    """Saves ``checkpoints/last.ckpt`` every n rounds and at the end, and also ``best.ckpt`` when validation improves.

    ``ckpt_path="last"`` or ``"best"`` resumes a run, with the same result as without the interruption; the new run's
    folder gets the best round's checkpoint at its start.
    After fit the models of the best round (of the last round without validation) are written to ``models/``, one
    Lightning checkpoint per shared model and per client (for more than 1,000 clients, only for those with a model of
    their own). If clients' data stay on their ranks (``Silos`` in several processes), each rank writes its clients'
    personal state and models.

    Args:
        every_n_rounds: rounds between two ``last.ckpt``; 0 for improvements and the end only.
        monitor: a validation metric, its mean over clients ("val/rmse") or the worst client's ("val/rmse/worst").
            ``None`` for the first with "loss" in its name, else the first. One not logged is a ``ConfigurationError``.
        mode: "min", "max", or "auto" for the metric's own direction.
        save_models: write ``models/`` after fit.
    """

    saved = ("best_value", "best_round", "_best")

    every_n_rounds: Size = 10
    monitor: str | None = None
    mode: Literal["auto", "min", "max"] = "auto"
    save_models: bool = True

    def __post_init__(self) -> None:
        self.best_value: float | None = None
        self.best_round: int | None = None
        self.last_round: int | None = None
        self._best: dict[str, Any] | None = None
        self._improved = self._resumed = False

    def setup(self, trainer: TrainerSurface, stage: str) -> None:
        if stage == "fit":
            self.__post_init__()

    def on_round_start(self, trainer: TrainerSurface) -> None:
        self._restore_best(trainer)

    def on_evaluate_end(self, trainer: TrainerSurface, split: Split, metrics: ClientMetrics) -> None:
        if not trainer.round.fitting or split != "val" or not metrics:
            return
        value, higher = self._monitored(metrics)
        if math.isnan(value):
            return
        if self.best_value is None or (value > self.best_value if higher else value < self.best_value):
            self.best_value, self.best_round = value, trainer.federation.current_round
            self._improved = True

    def on_round_end(self, trainer: TrainerSurface) -> None:
        due = self.every_n_rounds and trainer.federation.current_round % self.every_n_rounds == 0
        if not (due or self._improved):
            return
        improved, self._improved = self._improved, False
        if improved:
            self._best = {
                "models": [model.clone().state_dict() for model in trainer.federation.models],
                "collaboration": trainer.federation.collaboration.state_dict(),
                "absent_clients": sorted(trainer.federation.absent_clients),
                "measured": _validated(trainer.federation.common_state("measured")),
            }
            stores = {name: of for name, of in trainer.federation.client_stores.items() if name != _STORE}
            clients = sorted({client for of in stores.values() for client in of})
            trainer.federation.client_stores[_STORE] = {
                client: {name: of[client] for name, of in stores.items() if client in of} for client in clients
            }
        self._save(trainer, trainer.state_dict(), best=improved)

    def on_fit_end(self, trainer: TrainerSurface) -> None:
        if self.monitor is not None and self.best_round is None:
            rank_zero_warn(f"ModelCheckpoint.monitor={self.monitor!r} had no effect: no validation gave it a value.")
        self._restore_best(trainer)
        state = trainer.state_dict()
        if trainer.federation.current_round:
            self._save(trainer, state)
            if trainer.processes.private:  # remove clients' files that no checkpoint refers to
                trainer.processes.of_ranks(None)
                for name in ("last", "best"):
                    remove_old_client_files(self._folder(trainer), name, trainer.processes)
        if not self.save_models:
            return
        exported = self.kept(trainer, state["client_stores"])
        trainer.run_log.summary["num_models"] = len(exported.models)
        final, private = exported.final_models, trainer.processes.private
        if trainer.loop.evaluates_own_weights:
            own = {one: trainer.loop.client_model(one, exported).state_dict() for one in trainer.hosted_clients}
            final = (own if private else trainer.strategy.exchange(own)) | final
        exported.client_stores = {**exported.client_stores, FINAL_MODELS: final}
        if not (private or trainer.is_global_zero):
            return
        export_models(
            exported,
            trainer.module,
            trainer.loop.flat,
            trainer.client_names,
            Path(trainer.log_dir) / "models",
            shared=trainer.is_global_zero,
            clients=trainer.hosted_clients if private else None,
        )

    def kept(self, trainer: TrainerSurface, stores: dict[str, dict[int, Any]]) -> Federation:
        """The federation to export, with ``stores``: of the best round, or of the last if its models are final."""
        last = trainer.federation
        if self.best_round is None or self._best is None or last.models_are_final:
            return last.with_models(last.models, last.collaboration, stores, last.current_round)
        models, collaboration = self.best_models(trainer)
        of_best = last.with_models(models, collaboration, self._stores_of_best(stores), self.best_round)
        return replace(of_best, absent_clients=set(self._best.get("absent_clients", last.absent_clients)))

    def _stores_of_best(self, stores: dict[str, dict[int, Any]]) -> dict[str, dict[int, Any]]:
        """Name -> client -> value in the best round."""
        assert self._best is not None
        if "client_stores" in self._best:  # from a checkpoint of an older version
            return self._best["client_stores"]
        of_best: dict[str, dict[int, Any]] = {}
        for client, kept in stores.get(_STORE, {}).items():
            for name, value in kept.items():
                of_best.setdefault(name, {})[client] = value
        return of_best

    def best_models(self, trainer: TrainerSurface) -> tuple[list[Weights], Collaboration]:
        """Shared models and collaboration of the best round."""
        assert self._best is not None
        models = [Weights.from_state_dict(saved, trainer.fabric.device) for saved in self._best["models"]]
        return models, Collaboration.from_state_dict(self._best["collaboration"])

    def restore_measured(self, trainer: TrainerSurface) -> None:
        """Restore the best round's validation as the latest one, unless an older version's checkpoint lacks it."""
        if self._best is not None and self._best.get("measured"):
            trainer.federation.restore_validation(self._best["measured"], trainer.client_names)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state.get("only_evaluates"):
            raise CheckpointError("the checkpoint of the best round is for evaluations only: resume from last.ckpt.")
        super().load_state_dict(state)
        self._resumed = True

    def _save(self, trainer: TrainerSurface, state: dict[str, Any], *, best: bool = False) -> None:
        """Save ``last.ckpt`` and then, for the best round, ``best.ckpt``, which must never be the later one."""
        folder = self._folder(trainer)
        state = {**state, "record": trainer.run_log.state_dict()}
        saved = save_state(state, folder, "last", trainer.processes, trainer.run_log.token)
        self.last_round = trainer.federation.current_round
        if best:
            copy_checkpoint(folder / "last.ckpt", saved, folder, "best", trainer.processes)
        trainer.run_log.checkpoint_written()

    @staticmethod
    def _folder(trainer: TrainerSurface) -> Path:
        return Path(trainer.log_dir) / "checkpoints"

    def _restore_best(self, trainer: TrainerSurface) -> None:
        """Write ``best.ckpt`` into this run's folder, once after a checkpoint was loaded."""
        resumed, self._resumed = self._resumed, False
        if not resumed or self.best_round is None or self._best is None:
            return
        assert trainer.ckpt_path is not None
        path, folder = Path(trainer.ckpt_path), self._folder(trainer)
        # The neighbouring best.ckpt may belong to another round or run; the loaded checkpoint may be the best itself.
        for source in (path.with_name("best.ckpt"), path):
            with contextlib.suppress(CheckpointError):  # it may be missing
                state = load_state(source, trainer.fabric)
                if self._is_best(state):
                    self._best.setdefault("measured", _validated(state))  # an older version's checkpoint lacks it
                    copy_checkpoint(source, state, folder, "best", trainer.processes)
                    return
        state = trainer.state_dict()
        of_best = {
            **self._best,
            "round": self.best_round,
            "client_stores": self._stores_of_best(state["client_stores"]),
            "callbacks": {**state["callbacks"], type(self).__name__: {"only_evaluates": True}},
        }
        save_state({**state, **of_best}, folder, "best", trainer.processes, trainer.run_log.token)

    def _is_best(self, state: dict[str, Any]) -> bool:
        assert self._best is not None
        kept, found = self._best["models"], state["models"]
        return (
            state["round"] == self.best_round
            and [one.keys() for one in kept] == [one.keys() for one in found]
            and all(torch.equal(one[key], other[key]) for one, other in zip(kept, found, strict=True) for key in one)
        )

    def _monitored(self, metrics: ClientMetrics) -> tuple[float, bool]:
        name = self.monitor or default_metric(metrics) or ""
        base, _, aggregate = name.rpartition("/")
        name, base = curve_name(metrics, name), curve_name(metrics, base)
        if name in metrics:
            metric, value = metrics[name], metrics[name].mean
        elif aggregate in ("mean", "worst") and base in metrics:
            metric = metrics[base]
            value = metric.mean if aggregate == "mean" else metric.worst
        else:
            what = f"ModelCheckpoint.monitor={self.monitor!r} is not logged in validation"
            known = f"{listed(metrics, near=base or name)} (each also as NAME/worst)"
            raise ConfigurationError(f"{what}. Choose one of {known}.")
        return value, metric.higher_is_better if self.mode == "auto" else self.mode == "max"


def _validated(state: Mapping[str, Any]) -> dict[str, Any]:
    """What a checkpoint's state keeps of the latest validation."""
    return {name: {"val": of["val"]} for name, of in state.get("measured", {}).items() if "val" in of}
