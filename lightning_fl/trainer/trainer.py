"""The federated trainer: Lightning's Trainer for many clients. ``FederatedTrainer._fit_round`` is the round loop."""

import os
import time
from collections.abc import Mapping
from datetime import timedelta
from html import escape
from signal import Signals
from typing import Any, Literal

import torch
from lightning.fabric.utilities.rank_zero import rank_zero_warn
from lightning.pytorch import LightningModule
from lightning.pytorch.profilers import Profiler

from lightning_fl.callbacks.callback import Callback
from lightning_fl.callbacks.model_checkpoint import ModelCheckpoint
from lightning_fl.core.cohort import Cohort
from lightning_fl.core.errors import ConfigurationError
from lightning_fl.core.escaping import csv_table
from lightning_fl.core.lightning_types import AnyLogger
from lightning_fl.core.metrics import ClientMetrics, lightning_names, summarize
from lightning_fl.core.seeding import run_seed
from lightning_fl.core.terminal import terminal
from lightning_fl.data.module import FederatedDataModule, Split
from lightning_fl.engine.client import ClientReport
from lightning_fl.engine.federation import Federation
from lightning_fl.engine.hooks import Hook, Hooks
from lightning_fl.engine.interrupt import InterruptGuard
from lightning_fl.engine.profile import (
    AGGREGATION,
    EVALUATION,
    LOGGERS,
    RoundProfiler,
    Unprofiled,
    profile_of_ranks,
    profile_table,
    timed_rounds,
)
from lightning_fl.engine.round.training import train_round
from lightning_fl.engine.settings import Settings
from lightning_fl.engine.stacked.loop import StackedLoop
from lightning_fl.runtime.run_log import RunLog
from lightning_fl.runtime.surface import TrainerSurface
from lightning_fl.strategies.federated import FederatedStrategy
from lightning_fl.trainer.arguments import check_composition, check_settings, complete_callbacks, make_fabric
from lightning_fl.trainer.session import Run

__all__ = ["FederatedTrainer"]

_INTERRUPTED = "finishing the round, then saving a checkpoint (once more stops at once)."

PrecisionName = Literal["32", "32-true", "bf16-mixed", "bf16-true", "64", "64-true"]


class FederatedTrainer(TrainerSurface):
    """Trains a ``LightningModule`` across clients, with the names and habits of Lightning's Trainer.

    Args:
        strategy: how clients and server learn: a registered name ("fedavg") or a ``FederatedStrategy``.
        accelerator: "cpu", "cuda" or "auto".
        devices: processes on this machine: a number, a list of device indices, or "auto": all GPUs; on CPU one, under
            ``lightning-fl fit`` one per core where the model is small.
        processes_per_device: processes that share each GPU, where clients are too small to keep it busy; their messages
            and weights go by Gloo. On a CPU set ``devices``.
        num_nodes: machines.
        precision: "32", "bf16-mixed", "bf16-true" or "64".
        plugins: Fabric plugins (cluster environment, checkpoint IO).
        timeout: seconds that processes wait for each other, at the start and in every exchange (a client's turn or an
            evaluation of another process may lie between); ``None`` for the strategy's, 1800.
        max_rounds: rounds of the run.
        local_epochs: passes over a client's data per round (E). 1 if neither this nor ``local_steps`` is given.
        local_steps: optimiser steps per client and round (tau), instead of epochs.
        callbacks: who collaborates, who takes part, on what data, for what reward; logging and pictures.
        logger: True for TensorBoard and CSV, False for none, or loggers of Lightning's; in a list True adds those two.
        default_root_dir: where runs are written, each in a folder ``version_N`` of its own; default ``./runs``.
        check_val_every_n_rounds: evaluate every client's model on its validation data every n rounds and after the
            last; 0 for never.
        limit_val_clients: fit validates at most so many clients, of more a sample drawn once by the seed; ``None`` for
            all. ``validate`` and ``test`` take all.
        gradient_clip_val: clip gradients at this norm or value.
        gradient_clip_algorithm: "norm" (default) or "value".
        accumulate_grad_batches: batches per optimiser step.
        stacked_clients: clients that a process trains at once, as rows of stacked weights: blocks of so many
            consecutive ones. Pays for small models; docs/lightning-support.md says what it needs.
        optimizer_state: "fresh" optimisers every round, or "keep" a client's from its last turn.
        scheduler_interval: step learning-rate schedulers as their ``interval`` says ("auto": "epoch" is a round), or
            all per local "step" or per "round".
        on_client_error: "fail" stops the run when a client's turn fails; "skip" leaves the client out of the round,
            with a warning, and renormalises the rest.
        log_every_n_steps: also log single local steps of what is logged with ``on_step=True``; 0 for rounds only.
        log_per_client: log every client's own curve; default up to 100 clients.
        enable_progress_bar: show progress (plain lines when the output is not a terminal).
        enable_checkpointing: keep ``last.ckpt`` and ``best.ckpt`` (see ``ModelCheckpoint`` for its settings).
        seed: the run's seed; default what ``seed_everything`` set, else 0.
        num_threads: torch threads per process, on CPUs and beside GPUs. 1 by default: small models gain from
            processes, not from threads, and the same number of threads gives the same bits on any number of processes.
        channels_last: give images to the module in torch's channels-last memory format, which convolutions and pooling
            work faster on; a module that takes ``view`` of what is made of images needs ``reshape`` or ``flatten``
            instead. Results are those without it up to rounding.
        deterministic: let torch use deterministic algorithms only, and cuDNN none that it has timed (needed for equal
            bits on GPUs).
        profile: show at the end of fit where the time of a round went, and keep it as ``profile.csv``.
        compile: compile the module's steps with ``torch.compile``: true, or its keyword arguments. A module that went
            through ``torch.compile`` may be given to fit and the others instead.
        fused_optimizers: take the steps of SGD, Adam, AdamW and Adagrad by torch's fused kernels, one for all weights.
            Results are those without it up to rounding.

    Example:
        >>> from lightning_fl import FederatedTrainer
        >>> trainer = FederatedTrainer(max_rounds=10, local_steps=5)  # then trainer.fit(module, datamodule)
    """

    def __init__(
        self,
        *,
        strategy: str | FederatedStrategy = "fedavg",
        accelerator: str = "auto",
        devices: int | str | list[int] = "auto",
        processes_per_device: int = 1,
        num_nodes: int = 1,
        precision: PrecisionName = "32",
        plugins: list[Any] | None = None,
        timeout: float | None = None,
        max_rounds: int = 100,
        local_epochs: int | None = None,
        local_steps: int | None = None,
        callbacks: list[Callback] | Callback | None = None,
        logger: bool | AnyLogger | list[bool | AnyLogger] = True,
        default_root_dir: str | os.PathLike[str] | None = None,
        check_val_every_n_rounds: int = 1,
        limit_val_clients: int | None = 1000,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: Literal["norm", "value"] | None = None,
        accumulate_grad_batches: int = 1,
        stacked_clients: int = 1,
        optimizer_state: Literal["fresh", "keep"] = "fresh",
        scheduler_interval: Literal["auto", "step", "round"] = "auto",
        on_client_error: Literal["fail", "skip"] = "fail",
        log_every_n_steps: int = 0,
        log_per_client: bool | None = None,
        enable_progress_bar: bool = True,
        enable_checkpointing: bool = True,
        seed: int | None = None,
        num_threads: int | None = 1,
        channels_last: bool = False,
        deterministic: bool = False,
        profile: bool = False,
        compile: bool | dict[str, Any] = False,
        fused_optimizers: bool = False,
    ) -> None:
        check_settings(locals())
        self.settings = Settings(
            max_rounds=max_rounds,
            local_steps=local_steps,
            local_epochs=local_epochs or 1,
            check_val_every_n_rounds=check_val_every_n_rounds,
            limit_val_clients=limit_val_clients,
            gradient_clip_val=gradient_clip_val,
            gradient_clip_algorithm=gradient_clip_algorithm,
            accumulate_grad_batches=accumulate_grad_batches,
            stacked_clients=stacked_clients,
            optimizer_state=optimizer_state,
            scheduler_interval=scheduler_interval,
            on_client_error=on_client_error,
            log_every_n_steps=log_every_n_steps,
            log_per_client=log_per_client,
            seed=run_seed() if seed is None else seed,
            num_threads=num_threads,
            channels_last=channels_last,
            deterministic=deterministic,
            compile=compile,
            fused_optimizers=fused_optimizers,
            default_root_dir=os.fspath(default_root_dir or "runs"),
        )
        self.profiler: Profiler = RoundProfiler() if profile else Unprofiled()
        self.callbacks: list[Callback] = complete_callbacks(callbacks, enable_progress_bar, enable_checkpointing)
        self.fabric = make_fabric(strategy, accelerator, devices, num_nodes, precision, plugins, processes_per_device)
        self.strategy: FederatedStrategy = self.fabric.strategy  # type: ignore[assignment]
        self.strategy.profiler = self.profiler
        if timeout is not None:
            self.strategy.timeout = timedelta(seconds=timeout)
        self.run_log = RunLog(logger, self.default_root_dir)
        self.begin(Federation())

    def begin(self, federation: Federation) -> None:
        """A run begins, with the callbacks that the trainer has by now."""
        super().begin(federation)
        check_composition(self.strategy, self.callbacks)
        self.hooks = Hooks(self.callbacks, Callback, self, self.profiler)

    @property
    def checkpoint_callback(self) -> ModelCheckpoint | None:
        """The callback that keeps the run, if there is one."""
        return self.callback(ModelCheckpoint)

    @property
    def trained_checkpoint(self) -> str | None:
        """What to evaluate after fit: "best" if a best round was kept, else ``None``, the models as fit left them."""
        checkpoint = self.checkpoint_callback
        if self.models_are_final or checkpoint is None or checkpoint.best_round is None:
            return None
        return "best"

    # -- fit -----------------------------------------------------------------------------------------------------

    def fit(
        self, module: LightningModule, datamodule: FederatedDataModule, ckpt_path: str | os.PathLike[str] | None = None
    ) -> None:
        """Train.

        Args:
            module: any LightningModule, or what ``torch.compile`` made of one.
            datamodule: the clients' data.
            ckpt_path: go on from a checkpoint: "last", "best", or a file.

        Raises:
            FederatedError: what is wrong and the mend.
            KeyboardInterrupt: a signal ended the fit; its last round is finished and saved. On other ranks SystemExit.
        """
        with Run(self, "fit", module, datamodule, ckpt_path):
            self.fitting = True
            self.loop.call("on_train_start")
            self.loop.add_late_parameters()
            self.stacked = StackedLoop(self.loop) if self.stacked_clients > 1 else None
            started = time.perf_counter() - self.wall_time_seconds
            checkpoint = self.run_log.directory / "checkpoints" / "last.ckpt"
            timed = timed_rounds(self.profiler, self.fabric.device)
            with InterruptGuard(_INTERRUPTED, checkpoint) as guard, timed as begin_round:
                while self.current_round < self.max_rounds and not self.should_stop:
                    begin_round(self.current_round + 1)
                    self._fit_round()
                    self.wall_time_seconds = time.perf_counter() - started
                    stop, signal_number = self.processes.largest(int(self.should_stop), guard.signal_number or 0)
                    self.should_stop, self.interrupted_by = bool(stop), signal_number or None
                    if self.interrupted_by:
                        break
            self.loop.call("on_train_end")
            self.loop.call("on_fit_end")
            self.run_log.hold()
            self.call("on_fit_end")
            self._report_profile()
            self.fitting = False
        if self.interrupted_by:
            if not self.is_global_zero:
                raise SystemExit(0)  # with another code Fabric would end rank zero before it says this
            done = f"after round {self.current_round} of {self.max_rounds}; the run is in {self.log_dir}"
            kept = "it has no checkpoint to go on from"
            if self.checkpoint_callback is not None:
                kept = "fit(..., ckpt_path='last') goes on from there"
            raise KeyboardInterrupt(f"{Signals(self.interrupted_by).name} {done}, {kept}")

    def _fit_round(self) -> None:
        """One round: choose, train, average, evaluate, log."""
        self.round.begin()
        self.call("on_round_start")
        cohort = self._select_clients()
        with self.profiler.profile(AGGREGATION):  # less what happens in the clients' turns, which is timed there
            train_round(self.loop, cohort, self.stacked)
        self.call("on_aggregate_end")
        self.metrics["train"] = self._summary(self.client_reports)
        self.current_round += 1
        self.evaluated_this_round = self.evaluates_after(self.current_round)
        if self.evaluated_this_round:
            self.metrics["val"] = self._evaluate("val")
        names = self._curve_names()
        with self.profiler.profile(LOGGERS):
            self.run_log.log_round(
                self.federation, self.round_metrics, evaluated=self.evaluated_this_round, names=names
            )
            if self.log_every_n_steps:
                self.run_log.log_steps(self.client_reports, self.client_names)
        self.call("on_round_end")
        self.should_stop |= self.loop.module_trainer.should_stop

    def _select_clients(self) -> Cohort:
        chosen = self.hooks.of("select_clients")
        cohort = self._checked(chosen[0], chosen[0]()) if chosen else Cohort.of(range(self.num_clients))
        idle = self.absent_clients | self.resting_clients
        active = tuple(participant for participant in cohort.participants if participant.client not in idle)
        if not active:
            rank_zero_warn(
                f"nobody takes part in round {self.current_round + 1}, which leaves all models as they are: no client"
                " was selected, or those that were are absent or rest."
            )
            return Cohort(())
        cohort = Cohort(active) if idle else cohort
        assigning = self.hooks.of("assign_models")
        return self._checked(assigning[0], assigning[0](cohort)) if assigning else cohort

    def _checked(self, hook: Hook, cohort: Any) -> Cohort:
        """A callback's cohort, if it is one of this run's clients and models."""
        name = f"{hook.owner}.{hook.name}"
        if not isinstance(cohort, Cohort):
            raise ConfigurationError(
                f"{name} returned {type(cohort).__name__}: return a Cohort, such as Cohort.of(clients)."
            )
        for one in cohort.participants:
            models = self.collaboration.num_models
            named = (one.model,) if one.feeds is None else one.feeds
            if one.client not in range(self.num_clients) or not {None, *range(models)}.issuperset(named):
                raise ConfigurationError(
                    f"{name} names client {one.client} and model {', '.join(map(str, named))}: there are"
                    f" {self.num_clients} clients and {models} models, counted from 0."
                )
        return cohort

    # -- evaluation ----------------------------------------------------------------------------------------------

    def validate(
        self, module: LightningModule, datamodule: FederatedDataModule, ckpt_path: str | os.PathLike[str] | None = None
    ) -> ClientMetrics:
        """Evaluate every client's model on its validation data."""
        return self._evaluate_only("validate", "val", module, datamodule, ckpt_path)

    def test(
        self, module: LightningModule, datamodule: FederatedDataModule, ckpt_path: str | os.PathLike[str] | None = None
    ) -> ClientMetrics:
        """Evaluate every client's model on its test data; after ``fit`` the best round's, with ``ckpt_path="best"``."""
        return self._evaluate_only("test", "test", module, datamodule, ckpt_path)

    def predict(
        self,
        module: LightningModule,
        datamodule: FederatedDataModule,
        ckpt_path: str | os.PathLike[str] | None = None,
        split: Split = "test",
    ) -> dict[int, list[Any]]:
        """``predict_step``'s outputs, batch by batch, for the clients that this rank hosts."""
        with Run(self, "predict", module, datamodule, ckpt_path), self.loop.evaluations("predict"):
            return {client: self.predict_client(client, split) for client in self.hosted_clients}

    def _evaluate_only(self, stage: str, split: Split, module: Any, datamodule: Any, ckpt_path: Any) -> ClientMetrics:
        with Run(self, stage, module, datamodule, ckpt_path):
            self.metrics[split] = self._evaluate(split)
            if not self.metrics[split]:
                step = "validation" if split == "val" else split
                rank_zero_warn(
                    f"nothing was evaluated: {type(self.module).__name__} defines no {step} step, or no client has"
                    f" {split} data."
                )
            self.run_log.log_evaluation(self.federation, split, self._curve_names())
        return self.metrics[split]

    def _evaluate(self, split: Split) -> ClientMetrics:
        with self.profiler.profile(EVALUATION):
            if not self.loop.evaluates(split):
                return ClientMetrics()
            reports: dict[int, ClientReport] = {}
            with self.loop.evaluations("validation" if split == "val" else split):
                for client in self.processes.panel if self.fitting else self.hosted_clients:
                    if client in self.absent_clients:
                        continue
                    weights = self.client_model(client)
                    with self.around_evaluation(client, weights):
                        report = self.loop.evaluate(client, weights, split, own=True)
                    if report is not None:
                        reports[client] = report
            reports = self.processes.exchange(reports)
            self.evaluated_samples[split] = {client: report.num_samples for client, report in reports.items()}
            metrics = self._summary(reports)
            means = self.federation.latest_means()
            found = lightning_names(metrics, steps=False)
            means.update({name: torch.tensor(mean) for name, mean in found.items()})
            self.call("on_evaluate_end", split, metrics)
            return metrics

    def _summary(self, reports: Mapping[int, ClientReport]) -> ClientMetrics:
        return summarize({client: report.metrics for client, report in reports.items()}, self.client_names)

    def _curve_names(self) -> list[str] | None:
        """The clients' names where each has curves of its own."""
        return self.client_names if self.logs_clients else None

    def _repr_html_(self) -> str:
        """In a notebook: what was run, how far, the latest metrics of every client, and the run's folder."""
        strategy, done = type(self.strategy).__name__, self.current_round
        what = f"{type(self.module).__name__} by " if self.is_set_up else ""
        on = f" on {self.num_clients} clients" if self.num_clients else ""
        lines = [f"<b>FederatedTrainer</b>: {what}{strategy}{on}, round {done} of {self.max_rounds}"]
        words: dict[Split, str] = {"test": "test", "val": "validation", "train": "training"}
        measured = next((split for split in words if self.metrics.get(split)), None)
        if measured is not None:
            lines.append(f"{words[measured]}: {self.metrics[measured]._repr_html_()}")
        if self.run_log.started:
            lines.append(f"run: <code>{escape(self.log_dir)}</code>")
        return "<br>".join(lines)

    def _report_profile(self) -> None:
        """Print where the time went and write ``profile.csv`` on rank zero, where rounds were timed."""
        frame = profile_of_ranks(self.profiler, self.processes)
        if frame is not None and self.is_global_zero:
            self.run_log.write("profile.csv", csv_table(frame, float_format="%.9f"))
            terminal().print(profile_table(frame))
