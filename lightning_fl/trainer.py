"""The federated trainer: Lightning's Trainer for many clients. ``FederatedTrainer._fit_round`` is the round loop."""

import os
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import torch
from lightning.fabric.loggers.logger import Logger
from lightning.fabric.utilities.rank_zero import rank_zero_warn
from lightning.pytorch import LightningModule
from lightning.pytorch.profilers import PassThroughProfiler, Profiler
from torch import Tensor

from lightning_fl.callbacks.callback import Callback, overrides
from lightning_fl.callbacks.model_checkpoint import ModelCheckpoint
from lightning_fl.cohort import Cohort, Participant
from lightning_fl.collaboration import Collaboration
from lightning_fl.data.module import FederatedDataModule, Split
from lightning_fl.engine.batches.client import BatchFactory, ClientBatches
from lightning_fl.engine.interrupt import InterruptGuard
from lightning_fl.engine.probes.statistics import target_statistics
from lightning_fl.engine.profile import AGGREGATION, RoundProfiler, report_profile, timed_rounds
from lightning_fl.engine.round.communication import CommunicationAccount
from lightning_fl.engine.round.training import mixture, regroup, train_round
from lightning_fl.engine.run import Run
from lightning_fl.engine.settings import check_settings, complete_callbacks, make_fabric
from lightning_fl.engine.stacked.loop import StackedLoop
from lightning_fl.engine.stages import Stages
from lightning_fl.engine.state import load_run_state, run_state
from lightning_fl.engine.turn.loop import ClientReport, LocalLoop, LocalWork
from lightning_fl.engine.turn.optimization import ClientState
from lightning_fl.engine.weights.flat import Weights
from lightning_fl.engine.weights.local_parameters import LocalParameters
from lightning_fl.errors import ConfigurationError, TrainingError
from lightning_fl.metrics import ClientMetrics, summarize
from lightning_fl.run_log import RunLog
from lightning_fl.seeding import generator, run_seed
from lightning_fl.strategies.federated import FederatedStrategy

if TYPE_CHECKING:
    from lightning_fl.metrics import GainSummary

__all__ = ["FederatedTrainer"]

PrecisionName = Literal["32", "32-true", "bf16-mixed", "bf16-true", "64", "64-true"]


class FederatedTrainer(Stages):
    """Trains a ``LightningModule`` across clients, with the names and habits of Lightning's Trainer.

    Args:
        strategy: how clients and server learn: a registered name ("fedavg") or a ``FederatedStrategy``.
        accelerator: "cpu", "cuda" or "auto".
        devices: processes on this machine: a number, a list of device indices, or "auto": all GPUs; on CPU one, under
            ``lightning-fl fit`` one per core where the model is small.
        num_nodes: machines.
        precision: "32", "bf16-mixed", "bf16-true" or "64".
        plugins: Fabric plugins (cluster environment, checkpoint IO).
        max_rounds: rounds of the run.
        local_epochs: passes over a client's data per round (E). 1 if neither this nor ``local_steps`` is given.
        local_steps: optimiser steps per client and round (tau), instead of epochs.
        callbacks: who collaborates, who takes part, on what data, for what reward; logging and pictures.
        logger: True for TensorBoard and CSV, False for none, or loggers of Lightning's.
        default_root_dir: where runs are written, each in a folder ``version_N`` of its own; default ``./runs``.
        check_val_every_n_rounds: evaluate every client's model on its validation data every n rounds and after the
            last; 0 for never.
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
        num_threads: torch threads per process on CPU. 1 by default: small models gain from processes, not from
            threads, and the same number of threads gives the same bits on any number of processes.
        channels_last: give images to the module in torch's channels-last memory format, which convolutions and pooling
            work faster on; a module that takes ``view`` of what is made of images needs ``reshape`` or ``flatten``
            instead. Results are those without it up to rounding.
        deterministic: let torch use deterministic algorithms only (needed for equal bits on GPUs).
        profile: show at the end of fit where the time of a round went, and keep it as ``profile.csv``.
        compile: compile the module's steps with ``torch.compile``: true, or its keyword arguments. A module that went
            through ``torch.compile`` may be given to fit and the others instead.

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
        num_nodes: int = 1,
        precision: PrecisionName = "32",
        plugins: list[Any] | None = None,
        max_rounds: int = 100,
        local_epochs: int | None = None,
        local_steps: int | None = None,
        callbacks: list[Callback] | Callback | None = None,
        logger: bool | Logger | list[Logger] = True,
        default_root_dir: str | os.PathLike[str] | None = None,
        check_val_every_n_rounds: int = 1,
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
    ) -> None:
        check_settings(locals())
        self.max_rounds = max_rounds
        self.local_steps = local_steps
        self.local_epochs = local_epochs or 1
        self.check_val_every_n_rounds = check_val_every_n_rounds
        self.gradient_clip_val = gradient_clip_val
        self.gradient_clip_algorithm = gradient_clip_algorithm
        self.accumulate_grad_batches = accumulate_grad_batches
        self.stacked_clients = stacked_clients
        self.optimizer_state = optimizer_state
        self.scheduler_interval = scheduler_interval
        self.on_client_error = on_client_error
        self.log_every_n_steps = log_every_n_steps
        self.log_per_client = log_per_client
        self.seed = run_seed() if seed is None else seed
        self.num_threads = num_threads
        self.channels_last = channels_last
        self.deterministic = deterministic
        self.compile = compile
        self.profiler: Profiler = RoundProfiler() if profile else PassThroughProfiler()
        self.default_root_dir = os.fspath(default_root_dir or "runs")
        self.callbacks: list[Callback] = complete_callbacks(callbacks, enable_progress_bar, enable_checkpointing)
        self.fabric = make_fabric(strategy, accelerator, devices, num_nodes, precision, plugins)
        self.strategy: FederatedStrategy = self.fabric.strategy  # type: ignore[assignment]
        self.run_log = RunLog(logger, self.default_root_dir)
        self._launched = False
        self._reset()

    def _reset(self) -> None:
        self.current_round = 0
        self.module: LightningModule | None = None
        self.datamodule: FederatedDataModule | None = None
        self.client_ranks: list[int] = []
        self.num_samples: list[int] = []
        self.survivors: set[int] = set()
        self.client_reports: dict[int, ClientReport] = {}
        self.evaluated_this_round = False
        self.resumes_fit = False
        self.models: list[Weights] = []
        self.communication = CommunicationAccount(self)
        self.metrics: dict[Split, ClientMetrics] = {}
        self.evaluated_samples: dict[Split, dict[int, int]] = {}
        self.gains: dict[Split, dict[str, GainSummary]] = {}
        self.round_metrics: dict[str, Any] = {}
        self.has_validated = False
        self.fitting = False
        self.should_stop = False
        self.interrupted_by: int | None = None
        self.ckpt_path: str | None = None
        self.wall_time_seconds = 0.0
        self._collaboration: Collaboration | None = None
        self.client_states: dict[int, ClientState] = {}
        self.client_stores: dict[str, dict[int, Any]] = {}
        self.personal: LocalParameters | None = None
        self.absent_clients: set[int] = set()
        self.resting_clients: set[int] = set()
        self.models_are_final = False
        self.round_work: LocalWork | None = None
        self.participant: Participant | None = None
        self._changed_batches: dict[tuple[int, Split], ClientBatches | None] = {}
        self.stacked: StackedLoop | None = None
        self.loop: LocalLoop  # both are made when a run is set up
        self.batch_factory: BatchFactory

    # -- what callbacks and modules see --------------------------------------------------------------------------

    @property
    def num_clients(self) -> int:
        """N."""
        return len(self.client_ranks)

    @property
    def hosted_clients(self) -> list[int]:
        """The clients whose data this rank opens."""
        return [client for client, rank in enumerate(self.client_ranks) if rank == self.fabric.global_rank]

    @property
    def collaboration(self) -> Collaboration:
        """Who collaborates with whom.

        Another one takes effect when it is assigned; if it has another number of models, each starts as the mixture
        of its clients' models.
        """
        assert self._collaboration is not None, "the collaboration is known after on_fit_start"
        return self._collaboration

    @collaboration.setter
    def collaboration(self, collaboration: Collaboration) -> None:
        if collaboration.num_clients != self.num_clients:
            raise ConfigurationError(
                f"the collaboration has {collaboration.num_clients} clients, the data have {self.num_clients}."
            )
        if collaboration.num_models != len(self.models):
            regroup(self, collaboration)
        self._collaboration = collaboration

    @property
    def is_global_zero(self) -> bool:
        """Whether this is the rank that logs."""
        return self.fabric.is_global_zero

    @property
    def loggers(self) -> list[Any]:
        """The loggers; they write on rank zero only."""
        return self.run_log.loggers

    @property
    def log_dir(self) -> str:
        """The run's folder."""
        return os.fspath(self.run_log.directory)

    @property
    def checkpoint_callback(self) -> ModelCheckpoint | None:
        """The callback that keeps the run, if there is one."""
        return next((callback for callback in self.callbacks if isinstance(callback, ModelCheckpoint)), None)

    @property
    def trained_checkpoint(self) -> str | None:
        """What to evaluate after fit: "best" if a best round was kept, else ``None``, the models as fit left them."""
        checkpoint = self.checkpoint_callback
        if self.models_are_final or checkpoint is None or checkpoint.best_round is None:
            return None
        return "best"

    def callbacks_with(self, hook: str) -> list[Callback]:
        """The callbacks that define a hook, in order."""
        return [callback for callback in self.callbacks if overrides(callback, hook)]

    def generator(self, *path: int | str) -> torch.Generator:
        """Randomness for one purpose in the current round, the same on every rank."""
        return generator(self.seed, self.current_round, *path)

    def client_weights(self) -> Weights:
        """The live weights of the client whose turn it is (not a copy)."""
        return self.loop.flat.collect()

    def shared_model(self, client: int) -> Weights:
        """What a client uses of the shared models: ``sum_k P_ik w_k``."""
        if self._collaboration is None:
            return self.models[0]
        return mixture(self._collaboration.personalisation[client].tolist(), self.models)

    def client_model(self, client: int) -> Weights:
        """What a client uses: its mixture of the shared models with its personal layers, where this rank hosts it."""
        final = self.client_stores.get("final_models", {}).get(client)
        if final is not None:
            return Weights.from_state_dict(final, self.fabric.device)
        shared, own = self.shared_model(client), self.client_stores.get("personal_layers", {}).get(client)
        return shared if self.personal is None or own is None else self.personal.insert_(shared.clone(), own)

    def client_store(self, name: str) -> dict[int, Any]:
        """What hosted clients keep for a callback: client -> plain values and tensors, saved in checkpoints."""
        return self.client_stores.setdefault(name, {})

    def keep_local(self, patterns: Sequence[str]) -> None:
        """Never average the parameters and buffers that match these names; each client keeps its own."""
        self.personal = LocalParameters(self.loop.flat, patterns) if patterns else None

    @property
    def present_clients(self) -> list[int]:
        """The clients that have joined."""
        return [client for client in range(self.num_clients) if client not in self.absent_clients]

    def training_loss(self, client: int, weights: Weights, num_batches: int, purpose: str) -> float:
        """The training loss of a hosted client at some weights, over its first batches; nothing is trained."""
        return self.loop.training_loss(client, weights, num_batches, purpose)

    def client_batches(self, client: int, split: Split) -> ClientBatches | None:
        """The batches of a hosted client, as callbacks (label noise) left them."""
        key = (client, split)
        if key not in self._changed_batches:
            batches = self.batch_factory.batches(client, split)
            if batches is not None:
                for callback in self.callbacks_with("on_client_data"):
                    callback.on_client_data(self, client, split, batches)
            self._changed_batches[key] = batches
        return self._changed_batches[key]

    def target_statistics(self) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation [T] of the training targets over all clients' samples, NaN entries left out.

        Only sums leave a client.
        """
        return target_statistics(self)

    def log(self, name: str, value: float) -> None:
        """Log one number of the round, for a callback."""
        self.round_metrics[name] = float(value)

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
        """
        with Run(self, "fit", module, datamodule, ckpt_path):
            self.fitting = True
            self.loop.call("on_train_start")
            self.stacked = StackedLoop(self) if self.stacked_clients > 1 else None
            started = time.perf_counter() - self.wall_time_seconds
            with InterruptGuard() as guard, timed_rounds(self):
                while self.current_round < self.max_rounds and not self.should_stop:
                    self._fit_round()
                    self.wall_time_seconds = time.perf_counter() - started
                    stop, signal_number = self._of_any_rank(int(self.should_stop), guard.signal_number or 0)
                    self.should_stop, self.interrupted_by = bool(stop), signal_number or None
                    if self.interrupted_by:
                        break
            self.loop.call("on_train_end")
            self.loop.call("on_fit_end")
            self.call("on_fit_end")
            report_profile(self)
            self.fitting = False

    def _fit_round(self) -> None:
        """One round: choose, train, average, evaluate, log."""
        self.round_metrics, self.round_work = {}, None
        self.call("on_round_start")
        cohort = self._select_clients()
        with self.profiler.profile(AGGREGATION):  # less what happens in the clients' turns, which is timed there
            train_round(self, cohort)
        self.call("on_aggregate_end")
        self.metrics["train"] = summarize({client: report.metrics for client, report in self.client_reports.items()})
        self.current_round += 1
        self.evaluated_this_round = self.evaluates_after(self.current_round)
        if self.evaluated_this_round:
            self.metrics["val"] = self._evaluate("val")
        self.run_log.log_round(self)
        self.call("on_round_end")
        self.should_stop |= self.loop.module_trainer.should_stop

    def _select_clients(self) -> Cohort:
        chosen = self.callbacks_with("select_clients")
        cohort = chosen[0].select_clients(self) if chosen else Cohort.of(range(self.num_clients))
        idle = self.absent_clients | self.resting_clients
        active = tuple(participant for participant in cohort.participants if participant.client not in idle)
        if not active:
            raise TrainingError(
                f"nobody takes part in round {self.current_round + 1}: the clients that were selected are absent or"
                " rest. Select more clients in a round."
            )
        cohort = Cohort(active) if idle else cohort
        assigning = self.callbacks_with("assign_models")
        return assigning[0].assign_models(self, cohort) if assigning else cohort

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
        with Run(self, "predict", module, datamodule, ckpt_path):
            self.loop.call("on_predict_start")
            outputs = {client: self.predict_client(client, split) for client in self.hosted_clients}
            self.loop.call("on_predict_end")
        return outputs

    def predict_client(self, client: int, split: Split = "test") -> list[Any]:
        """``predict_step``'s outputs for one hosted client, inside a run."""
        return self.loop.predict(client, self.client_model(client), split)

    def _evaluate_only(self, stage: str, split: Split, module: Any, datamodule: Any, ckpt_path: Any) -> ClientMetrics:
        with Run(self, stage, module, datamodule, ckpt_path):
            self.metrics[split] = self._evaluate(split)
            if not self.metrics[split]:
                step = "validation" if split == "val" else split
                rank_zero_warn(
                    f"nothing was evaluated: {type(self.module).__name__} defines no {step} step, or no client has"
                    f" {split} data."
                )
            self.run_log.log_evaluation(self, split)
        return self.metrics[split]

    def evaluates_after(self, num_rounds: int) -> bool:
        """Whether clients' models are evaluated when so many rounds are done."""
        every = self.check_val_every_n_rounds
        return every > 0 and (num_rounds % every == 0 or num_rounds == self.max_rounds)

    def _evaluate(self, split: Split) -> ClientMetrics:
        if not self.loop.evaluates(split):
            return {}
        word = "validation" if split == "val" else split
        self.loop.call(f"on_{word}_start")
        reports: dict[int, ClientReport] = {}
        for client in self.hosted_clients:
            if client in self.absent_clients:
                continue
            report = self.loop.evaluate(client, self.client_model(client), split)
            if report is not None:
                reports[client] = report
        self.loop.call(f"on_{word}_end")
        reports = self.strategy.exchange(reports)
        self.evaluated_samples[split] = {client: report.num_samples for client, report in reports.items()}
        metrics = summarize({client: report.metrics for client, report in reports.items()})
        shim = self.loop.module_trainer
        shim.callback_metrics.update({name: torch.tensor(metric.mean) for name, metric in metrics.items()})
        self.has_validated = True
        for callback in self.callbacks_with("on_evaluate_end"):
            callback.on_evaluate_end(self, split, metrics)
        return metrics

    # -- setting up ----------------------------------------------------------------------------------------------

    def launch(self) -> None:
        """Start the processes (once). ``fit`` and the others do it; call it earlier to share the work before them."""
        if not self._launched:
            if self.num_threads is not None and self.fabric.device.type == "cpu":
                os.environ["OMP_NUM_THREADS"] = str(self.num_threads)  # Fabric's launcher leaves a set value alone
                torch.set_num_threads(self.num_threads)
            self.fabric.launch()
            self._launched = True

    def _of_any_rank(self, *values: int) -> list[int]:
        """The largest of each value on any rank."""
        largest = torch.tensor(values, device=self.fabric.device)
        if self.fabric.world_size > 1:
            largest = self.strategy.all_reduce(largest, reduce_op="max")
        return largest.tolist()

    def call(self, hook: str, *args: Any) -> None:
        """Run a hook of all callbacks, in order."""
        for callback in self.callbacks_with(hook):
            getattr(callback, hook)(self, *args)

    # -- state ---------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """All that a run needs to go on: plain values and tensors. To be called on every rank."""
        return run_state(self)

    def load_state_dict(self, state: dict[str, Any], *, weights_only: bool = False) -> None:
        """Take up a state; ``weights_only`` takes the models and the collaboration, for an evaluation."""
        load_run_state(self, state, weights_only=weights_only)
