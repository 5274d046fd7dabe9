"""Keeping a run: the last round, the best round, and the models as ordinary checkpoints."""

import contextlib
import math
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch

from lightning_fl.callbacks.callback import Callback
from lightning_fl.core.collaboration import Collaboration
from lightning_fl.core.errors import CheckpointError, ConfigurationError, listed
from lightning_fl.core.metrics import ClientMetrics, curve_name, default_metric
from lightning_fl.core.validation import check_counts
from lightning_fl.data.module import Split
from lightning_fl.engine.federation import Federation
from lightning_fl.engine.weights.flat import Weights
from lightning_fl.runtime.checkpoint import export_models, keep_as, load_state, remove_old_client_files, save_state
from lightning_fl.runtime.surface import TrainerSurface

__all__ = ["ModelCheckpoint"]

#: What clients kept in the best round: client -> name -> value.
_STORE = "best_round"


class ModelCheckpoint(Callback):
    """Saves ``checkpoints/last.ckpt`` every n rounds and at the end, and it and ``best.ckpt`` when validation improves.

    A run goes on from either with ``ckpt_path="last"`` or ``"best"``, to the same result as if it had not stopped; its
    own folder then has the best round's checkpoint from the start.
    After fit the best round's models (the last round's where nothing is monitored) are written to ``models/``, one
    ordinary Lightning checkpoint per shared model and per client (of more than 1,000 clients, of those alone that have
    a model of their own). Where clients' data belong to their ranks (``Silos`` in several processes), what a client
    keeps for itself, and its model, are written by its own rank.

    Args:
        every_n_rounds: rounds between two ``last.ckpt``; 0 for improvements and the end only.
        monitor: a validation metric, its mean over clients ("val/rmse") or the worst client's ("val/rmse/worst").
            ``None`` takes the first logged metric whose name contains "loss", else the first.
        mode: "min", "max", or "auto" for the metric's own direction.
        save_models: write ``models/`` after fit.
    """

    def __init__(
        self,
        *,
        every_n_rounds: int = 10,
        monitor: str | None = None,
        mode: Literal["auto", "min", "max"] = "auto",
        save_models: bool = True,
    ) -> None:
        check_counts(self, every_n_rounds=every_n_rounds, at_least=0)
        if mode not in ("auto", "min", "max"):
            raise ConfigurationError(f"ModelCheckpoint.mode={mode!r}: choose one of auto, min, max.")
        self.every_n_rounds = every_n_rounds
        self.monitor = monitor
        self.mode = mode
        self.save_models = save_models
        self.best_value: float | None = None
        self.best_round: int | None = None
        self.last_round: int | None = None
        self._best: dict[str, Any] | None = None
        self._improved = self._resumed = False

    def setup(self, trainer: TrainerSurface, stage: str) -> None:
        """A new fit starts without a best round."""
        if stage == "fit":
            self.best_value = self.best_round = self._best = self.last_round = None
            self._improved = self._resumed = False

    def on_round_start(self, trainer: TrainerSurface) -> None:
        """Before a resumed run has anything of its own to go on from, take up the best round's checkpoint."""
        self._take_up_best(trainer)

    def on_evaluate_end(self, trainer: TrainerSurface, split: Split, metrics: ClientMetrics) -> None:
        """Compare the round with the best one so far."""
        if not trainer.round.fitting or split != "val" or not metrics:
            return
        value, higher = self._monitored(metrics)
        if math.isnan(value):
            return
        if self.best_value is None or (value > self.best_value if higher else value < self.best_value):
            self.best_value, self.best_round = value, trainer.federation.current_round
            self._improved = True

    def on_round_end(self, trainer: TrainerSurface) -> None:
        """Save what is due."""
        due = self.every_n_rounds and trainer.federation.current_round % self.every_n_rounds == 0
        if not (due or self._improved):
            return
        improved, self._improved = self._improved, False
        if improved:
            self._best = {
                "models": [model.clone().state_dict() for model in trainer.federation.models],
                "collaboration": trainer.federation.collaboration.state_dict(),
                "absent_clients": sorted(trainer.federation.absent_clients),
            }
            stores = {name: of for name, of in trainer.federation.client_stores.items() if name != _STORE}
            clients = sorted({client for of in stores.values() for client in of})
            trainer.federation.client_stores[_STORE] = {
                client: {name: of[client] for name, of in stores.items() if client in of} for client in clients
            }
        self._save(trainer, trainer.state_dict(), best=improved)

    def on_fit_end(self, trainer: TrainerSurface) -> None:
        """Save the end of the run and its models."""
        self._take_up_best(trainer)
        state = trainer.state_dict()
        if trainer.federation.current_round:
            self._save(trainer, state)
            self._remove_old_files(trainer)
        if not self.save_models:
            return
        exported = self.kept(trainer, state["client_stores"])
        trainer.run_log.summary["num_models"] = len(exported.models)
        exported.client_stores = {**exported.client_stores, "final_models": self._final_models(trainer, exported)}
        private = trainer.processes.private
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
        """The federation whose models ``models/`` gets: the best round's, or the last one's where those are final.

        Args:
            trainer: at the end of its fit.
            stores: what clients keep, under names; of all clients or of some.
        """
        models, collaboration, number = (
            trainer.federation.models,
            trainer.federation.collaboration,
            trainer.federation.current_round,
        )
        absent: Collection[int] = trainer.federation.absent_clients
        if self.best_round is not None and self._best is not None and not trainer.federation.models_are_final:
            models, collaboration = self.best_models(trainer)
            stores, number = self._stores_of_best(stores), self.best_round
            absent = self._best.get("absent_clients", absent)
        of_round = trainer.federation.with_models(models, collaboration, stores, number)
        return replace(of_round, absent_clients=set(absent))

    def _stores_of_best(self, stores: dict[str, dict[int, Any]]) -> dict[str, dict[int, Any]]:
        """Name -> client -> what it kept in the best round."""
        assert self._best is not None
        if "client_stores" in self._best:  # from a checkpoint of before; no round since has been better
            return self._best["client_stores"]
        of_best: dict[str, dict[int, Any]] = {}
        for client, kept in stores.get(_STORE, {}).items():
            for name, value in kept.items():
                of_best.setdefault(name, {})[client] = value
        return of_best

    @staticmethod
    def _remove_old_files(trainer: TrainerSurface) -> None:
        """Nobody goes on from clients' files that rank zero's checkpoints, whole by now, do not name."""
        if trainer.processes.private:
            trainer.processes.of_ranks(None)
            for name in ("last", "best"):
                remove_old_client_files(Path(trainer.log_dir) / "checkpoints", name, trainer.processes)

    @staticmethod
    def _final_models(trainer: TrainerSurface, exported: Federation) -> dict[int, Any]:
        """What all clients are given at the end where it is not what the collaboration says, from their own ranks."""
        final = exported.client_stores.get("final_models", {})
        if not trainer.loop.evaluates_own_weights:
            return final
        own = {client: trainer.loop.client_model(client, exported).state_dict() for client in trainer.hosted_clients}
        return (own if trainer.processes.private else trainer.strategy.exchange(own)) | final

    def best_models(self, trainer: TrainerSurface) -> tuple[list[Weights], Collaboration]:
        """The shared models of the best round and who used which."""
        assert self._best is not None
        models = []
        for saved in self._best["models"]:
            model = trainer.federation.models[0].clone()
            model.load_state_dict(saved)
            models.append(model)
        return models, Collaboration.from_state_dict(self._best["collaboration"])

    def state_dict(self) -> dict[str, Any]:
        """The best round so far, with its models: a resumed run must not forget it."""
        return {"best_value": self.best_value, "best_round": self.best_round, "best": self._best}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up the best round so far."""
        if state.get("only_evaluates"):
            raise CheckpointError(
                "the checkpoint is of a best round that is past, for evaluations only: go on from last.ckpt."
            )
        self.best_value, self.best_round = state["best_value"], state["best_round"]
        self._best = state["best"]
        self._resumed = True

    def _save(self, trainer: TrainerSurface, state: dict[str, Any], *, best: bool = False) -> None:
        """Save the run as it is; where that is its best round, ``best.ckpt`` is the same once more.

        In this order, so that a kill in between leaves no best round that is later than the last one.
        """
        names, folder = trainer.client_names, self._folder(trainer)
        state = {**state, "record": trainer.run_log.state_dict()}
        saved = save_state(state, folder, "last", trainer.processes, names, trainer.run_log.token)
        self.last_round = trainer.federation.current_round
        if best:
            keep_as(folder / "last.ckpt", saved, folder, "best", trainer.processes)
        trainer.run_log.checkpoint_written()

    @staticmethod
    def _folder(trainer: TrainerSurface) -> Path:
        return Path(trainer.log_dir) / "checkpoints"

    # -- the best round of the run that this one goes on from ------------------------------------------------------

    def _take_up_best(self, trainer: TrainerSurface) -> None:
        """Have ``best.ckpt`` in this run's folder, once after a checkpoint was loaded."""
        resumed, self._resumed = self._resumed, False
        if not resumed or self.best_round is None or self._best is None:
            return
        assert trainer.ckpt_path is not None
        path, folder = Path(trainer.ckpt_path), self._folder(trainer)
        # What lies beside it may be of a round that it knows nothing of, or of another run; it may be the best itself.
        for source in (path.with_name("best.ckpt"), path):
            with contextlib.suppress(CheckpointError):  # there need not be one
                state = load_state(source, trainer.fabric)
                if self._is_best(state):
                    keep_as(source, state, folder, "best", trainer.processes)
                    return
        state = trainer.state_dict()
        of_best = {
            **self._best,
            "round": self.best_round,
            "client_stores": self._stores_of_best(state["client_stores"]),
            "callbacks": {**state["callbacks"], type(self).__name__: {"only_evaluates": True}},
        }
        save_state({**state, **of_best}, folder, "best", trainer.processes, trainer.client_names, trainer.run_log.token)

    def _is_best(self, state: dict[str, Any]) -> bool:
        """Whether a checkpoint is that of the best round."""
        assert self._best is not None
        kept, found = self._best["models"], state["models"]
        return (
            state["round"] == self.best_round
            and len(kept) == len(found)
            and all(
                one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)
                for one, other in zip(kept, found, strict=True)
            )
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
            raise ConfigurationError(
                f"ModelCheckpoint.monitor={self.monitor!r} is not logged in validation. Logged are:"
                f" {listed(metrics, near=base or name)} (each also as NAME/worst)."
            )
        return value, metric.higher_is_better if self.mode == "auto" else self.mode == "max"
