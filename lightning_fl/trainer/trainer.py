"""The federated trainer: Lightning's Trainer for many clients. ``FederatedTrainer._fit_round`` is the round loop."""

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import InitVar, dataclass
from datetime import timedelta
from html import escape
from signal import Signals
from typing import Annotated, Any, Literal, cast

from annotated_types import Interval, doc
from lightning.fabric.utilities.rank_zero import rank_zero_info, rank_zero_warn
from lightning.pytorch import LightningModule

from lightning_fl.callbacks.callback import Callback
from lightning_fl.callbacks.model_checkpoint import ModelCheckpoint
from lightning_fl.callbacks.progress import ProgressDisplay
from lightning_fl.core.cohort import Cohort
from lightning_fl.core.errors import ConfigurationError
from lightning_fl.core.escaping import csv_table, terminal
from lightning_fl.core.lightning_types import AnyLogger
from lightning_fl.core.metrics import ClientMetrics, default_metric, summarize
from lightning_fl.core.validation import Count, documented
from lightning_fl.data.module import SPLITS, FederatedDataModule, Split
from lightning_fl.engine.client import ClientReport
from lightning_fl.engine.federation import FINAL_MODELS, Federation
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
from lightning_fl.engine.stacked.loop import StackedLoop
from lightning_fl.runtime.run_log import RunLog
from lightning_fl.runtime.surface import TrainerSurface
from lightning_fl.strategies.federated import FederatedStrategy
from lightning_fl.trainer.arguments import (
    AnyCallback,
    check_composition,
    check_settings,
    complete_callbacks,
    make_fabric,
)
from lightning_fl.trainer.session import session

_INTERRUPTED = "finishing the round, then saving a checkpoint (once more stops at once)."

PrecisionName = Literal["32", "32-true", "bf16-mixed", "bf16-true", "64", "64-true", 32, 64]


@documented
@dataclass(kw_only=True, eq=False, repr=False)
class FederatedTrainer(TrainerSurface):
    """Trains a ``LightningModule`` across clients, with the names and habits of Lightning's Trainer.

    Example:
        >>> from lightning_fl import FederatedTrainer
        >>> trainer = FederatedTrainer(max_rounds=10, local_steps=5)  # then trainer.fit(module, datamodule)
    """

    strategy: InitVar[str | FederatedStrategy] = "fedavg"
    """how clients and server learn: a registered name ("fedavg") or a ``FederatedStrategy``."""
    accelerator: str = "auto"
    """"cpu", "cuda" or "auto"."""
    devices: Annotated[int, Interval(ge=-1)] | str | list[int] = "auto"
    """processes on this machine: a number, a list of device indices, or "auto": all GPUs; on CPU one, under
    ``lightning-fl fit`` one per core where the model is small."""
    processes_per_device: Count = 1
    """processes that share each GPU, where clients are too small to keep it busy; their messages and weights go by
    Gloo. On a CPU set ``devices``."""
    num_nodes: Count = 1
    """machines."""
    precision: PrecisionName = "32"
    """"32", "bf16-mixed", "bf16-true" or "64"."""
    plugins: list[Any] | None = None
    """Fabric plugins (cluster environment, checkpoint IO)."""
    timeout: Annotated[float, Interval(gt=0, lt=10**9), doc("seconds")] | None = None
    """seconds that processes wait for each other, at the start and in every exchange (which may include a client's turn
    or an evaluation of another process); ``None`` for the strategy's, 1800."""
    callbacks: InitVar[list[AnyCallback] | AnyCallback | None] = None
    """who collaborates, who takes part, on what data, for what reward; logging and pictures; Lightning's, such as
    ``EarlyStopping``."""
    logger: bool | AnyLogger | list[bool | AnyLogger] = True
    """True for TensorBoard and CSV, False for none, or loggers of Lightning's; in a list True adds those two."""
    enable_progress_bar: bool = True
    """show progress (plain lines when the output is not a terminal)."""
    enable_checkpointing: bool = True
    """keep ``last.ckpt`` and ``best.ckpt`` (see ``ModelCheckpoint`` for its settings)."""
    profile: bool = False
    """show at the end of fit where the time of a round went, and keep it as ``profile.csv``."""

    def __post_init__(
        self, strategy: str | FederatedStrategy, callbacks: list[AnyCallback] | AnyCallback | None
    ) -> None:
        self.precision = cast(PrecisionName, str(self.precision))
        check_settings(self)
        super().__post_init__()
        self.profiler = RoundProfiler() if self.profile else Unprofiled()
        self.callbacks, self.lightning_callbacks = complete_callbacks(
            callbacks, self.enable_progress_bar, self.enable_checkpointing
        )
        self.fabric = make_fabric(self, strategy)
        self.strategy = cast(FederatedStrategy, self.fabric.strategy)
        self.strategy.profiler = self.profiler
        if self.timeout is not None:
            self.strategy.timeout = timedelta(seconds=self.timeout)
        self.run_log = RunLog(self.logger, os.fspath(self.default_root_dir))
        self.begin(Federation())

    def begin(self, federation: Federation) -> None:
        """Start a run, with the present callbacks."""
        super().begin(federation)
        check_composition(self.strategy, self.callbacks)
        self.hooks = Hooks(self.callbacks, Callback, self, self.profiler)

    @property
    def checkpoint_callback(self) -> ModelCheckpoint | None:
        """The callback that writes checkpoints, if there is one."""
        return self.callback(ModelCheckpoint)

    @property
    def trained_checkpoint(self) -> str | None:
        """Checkpoint to evaluate after fit: "best" if a best round was kept, else ``None`` for the last models."""
        checkpoint = self.checkpoint_callback
        is_kept = checkpoint is not None and checkpoint.best_round is not None
        return "best" if is_kept and not self.federation.models_are_final else None

    def fit(
        self, module: LightningModule, datamodule: FederatedDataModule, ckpt_path: str | os.PathLike[str] | None = None
    ) -> None:
        """Train.

        Args:
            module: any LightningModule, or what ``torch.compile`` made of one.
            datamodule: the clients' data.
            ckpt_path: checkpoint to resume from: "last", "best", or a file.

        Raises:
            FederatedError: what is wrong and what to do.
            KeyboardInterrupt: a signal ended the fit; the round is finished and saved. On other ranks SystemExit.
        """
        with session(self, "fit", module, datamodule, ckpt_path):
            self.round.fitting = True
            self.loop.training.begin()
            self.stacked = StackedLoop(self.loop) if self.stacked_clients > 1 else None
            started = time.perf_counter() - self.federation.wall_time_seconds
            checkpoint = self.run_log.directory / "checkpoints" / "last.ckpt"
            timed = timed_rounds(self.profiler, self.fabric.device)
            with InterruptGuard(_INTERRUPTED, checkpoint) as guard, timed as begin_round:
                self.should_stop = bool(*self.processes.largest(int(self.should_stop)))  # on_fit_start may have set it
                while self.federation.current_round < self.max_rounds and not self.should_stop:
                    begin_round(self.federation.current_round + 1)
                    self._fit_round()
                    self.federation.wall_time_seconds = time.perf_counter() - started
                    stop, signal_number = self.processes.largest(int(self.should_stop), guard.signal_number or 0)
                    self.should_stop, self.federation.interrupted_by = bool(stop), signal_number or None
                    if self.federation.interrupted_by:
                        break
            self._report_end()
            self.loop.end_fit()
            self.run_log.hold()
            self.call("on_fit_end")
            frame = profile_of_ranks(self.profiler, self.processes)
            if frame is not None and self.is_global_zero:  # rounds were timed
                self.run_log.write("profile.csv", csv_table(frame, float_format="%.9f"))
                terminal().print(profile_table(frame))
            self.round.fitting = False
            self._validate_trained()
        if self.federation.interrupted_by:
            if not self.is_global_zero:
                raise SystemExit(0)  # with another code Fabric would end rank zero before it says this
            done = f"after round {self.federation.current_round} of {self.max_rounds}; the run is in {self.log_dir}"
            no_checkpoint = self.checkpoint_callback is None
            kept = "it has no checkpoint to resume from" if no_checkpoint else "fit(..., ckpt_path='last') resumes it"
            raise KeyboardInterrupt(f"{Signals(self.federation.interrupted_by).name} {done}, {kept}")

    def _validate_trained(self) -> None:
        """Make the latest validation that of the kept models: validate final ones, else restore the best round's."""
        checkpoint = self.checkpoint_callback
        if self.federation.models_are_final:
            if self.federation.metrics.get("val"):
                self.evaluate_split("val", self.processes.panel)
        elif checkpoint is not None:
            checkpoint.restore_measured(self)

    def _report_end(self) -> None:
        """Say why a fit stopped early, where no progress display does, or that more rounds may be better."""
        done, checkpoint = self.federation.current_round, self.checkpoint_callback
        if self.should_stop and self.callback(ProgressDisplay) is None:
            rank_zero_info(f"stopped after round {done} of {self.max_rounds}. {self.stop_reason}".strip())
        if checkpoint is None or checkpoint.best_round is None or self.should_stop or not 1 < done == self.max_rounds:
            return
        if checkpoint.best_round > done - max(1, done // 10):
            monitor = checkpoint.monitor or default_metric(self.federation.metrics["val"])
            stopping = f"the callback EarlyStopping of {monitor} ends the run in time"
            also = "" if self.loop.module_trainer.early_stopping_callbacks else f"; {stopping}"
            best = f"best in round {checkpoint.best_round} of {done}"
            rank_zero_info(f"validation was still improving ({best}): raise trainer.max_rounds{also}.")

    def _fit_round(self) -> None:
        """One round: choose, train, average, evaluate, log."""
        self.round.begin()
        self.federation.client_stores.pop(FINAL_MODELS, None)  # of a finished run that goes on
        self.loop.call_apart("on_train_epoch_start")
        self.call("on_round_start")
        cohort = self._select_clients()
        with self.profiler.profile(AGGREGATION):  # less what happens in the clients' turns, which is timed there
            train_round(self.loop, cohort, self.stacked)
        self.call("on_aggregate_end")
        self.round.starts = []
        self.federation.take_metrics("train", self._summary(self.round.reports))
        self.federation.current_round += 1
        self.federation.global_step += max((report.num_steps for report in self.round.reports.values()), default=0)
        self.round.evaluated = self.evaluates_after(self.federation.current_round)
        if self.round.evaluated:
            self.evaluate_split("val")
        self.loop.call_apart("on_train_epoch_end")
        names = self._curve_names()
        with self.profiler.profile(LOGGERS):
            self.run_log.log_round(self.federation, self.round.logged, evaluated=self.round.evaluated, names=names)
            if self.log_every_n_steps:
                self.run_log.log_steps(self.round.reports, self.client_names)
        self.call("on_round_end")

    def _select_clients(self) -> Cohort:
        chosen = self.hooks.of("select_clients")
        cohort = self._checked(chosen[0], chosen[0]()) if chosen else Cohort.of(range(self.num_clients))
        idle = self.federation.absent_clients | self.federation.resting_clients
        active = tuple(participant for participant in cohort.participants if participant.client not in idle)
        if not active:
            number = self.federation.current_round + 1
            rank_zero_warn(f"no client takes part in round {number}: all are absent, rest, or were not selected.")
            return Cohort(())
        cohort = Cohort(active) if idle else cohort
        assigning = self.hooks.of("assign_models")
        return self._checked(assigning[0], assigning[0](cohort)) if assigning else cohort

    def _checked(self, hook: Hook, cohort: Any) -> Cohort:
        """Return a callback's cohort, after checking its clients and models."""
        name = f"{hook.owner}.{hook.name}"
        if not isinstance(cohort, Cohort):
            raise ConfigurationError(f"{name} returned {type(cohort).__name__}: return a Cohort (Cohort.of(clients)).")
        for one in cohort.participants:
            models = self.federation.collaboration.num_models
            named = (one.model,) if one.feeds is None else one.feeds
            if one.client not in range(self.num_clients) or not {None, *range(models)}.issuperset(named):
                what = f"{name} names client {one.client} and model {', '.join(map(str, named))}"
                raise ConfigurationError(f"{what}: there are {self.num_clients} clients and {models} models.")
        return cohort

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
        """``predict_step``'s outputs, batch by batch, for a split of the clients that this rank hosts."""
        if split not in SPLITS:
            raise ConfigurationError(f"split={split!r}: choose one of {', '.join(SPLITS)}.")
        with session(self, "predict", module, datamodule, ckpt_path), self.loop.evaluator.evaluations("predict"):
            found = {client: self.predict_client(client, split) for client in self.hosted_clients}
            if not any(self.processes.of_ranks(any(found.values()))):  # another rank's error ends this one, too
                rank_zero_warn(f"nothing was predicted: no client has {split} data.")
            return found

    def _evaluate_only(self, stage: str, split: Split, module: Any, datamodule: Any, ckpt_path: Any) -> ClientMetrics:
        with session(self, stage, module, datamodule, ckpt_path):
            if not self.evaluate_split(split):
                step = "validation" if split == "val" else split
                why = f"{type(self.module).__name__} defines no {step} step, or no client has {split} data"
                rank_zero_warn(f"nothing was evaluated: {why}.")
            self.run_log.log_evaluation(self.federation, split, self._curve_names())
        return self.federation.metrics[split]

    def evaluate_split(self, split: Split, clients: Sequence[int] | None = None) -> ClientMetrics:
        """Evaluate the models of hosted ``clients``, by default those that the run evaluates, on a split."""
        with self.profiler.profile(EVALUATION):
            if clients is None:
                sampled = self.processes.sample(self.limit_test_clients if split == "test" else None, self.seed)
                clients = self.processes.panel if self.round.fitting else sampled
            clients = [client for client in clients if client not in self.federation.absent_clients]
            has_data = (self.client_batches(client, split) is not None for client in clients)
            if not (self.loop.evaluator.evaluates(split) and any(self.processes.of_ranks(any(has_data)))):
                self.federation.gains.pop(split, None)
                self.federation.evaluated_samples.pop(split, None)
                metrics = self.federation.metrics[split] = ClientMetrics()
                return metrics
            reports: dict[int, ClientReport] = {}
            with self.loop.evaluator.evaluations("validation" if split == "val" else split):
                for client in clients:
                    weights = self.client_model(client)
                    with self.around_evaluation(client, weights):
                        report = self.loop.evaluator.evaluate(client, weights, split, own=True)
                    if report is not None:
                        reports[client] = report
                reports = self.processes.exchange(reports)
                if self.round.fitting:
                    self.federation.freeze(self.loop.flat, [report.trainable for report in reports.values()])
                samples = {client: report.num_samples for client, report in reports.items()}
                self.federation.evaluated_samples[split] = samples
                metrics = self._summary(reports)
                self.federation.take_metrics(split, metrics)
            self.call("on_evaluate_end", split, metrics)
            return metrics

    def _summary(self, reports: Mapping[int, ClientReport]) -> ClientMetrics:
        return summarize({client: report.metrics for client, report in reports.items()}, self.client_names)

    def _curve_names(self) -> list[str] | None:
        """The clients' names where each has curves of its own."""
        return self.client_names if self.logs_clients else None

    def _repr_html_(self) -> str:
        """In a notebook: what was run, how far, the latest metrics of every client, and the run's folder."""
        strategy, done = type(self.strategy).__name__, self.federation.current_round
        what = f"{type(self.module).__name__} by " if self.is_set_up else ""
        on = f" on {self.num_clients} clients" if self.num_clients else ""
        lines = [f"<b>FederatedTrainer</b>: {what}{strategy}{on}, round {done} of {self.max_rounds}"]
        words: dict[Split, str] = {"test": "test", "val": "validation", "train": "training"}
        if (measured := next((split for split in words if self.federation.metrics.get(split)), None)) is not None:
            lines.append(f"{words[measured]}: {self.federation.metrics[measured]._repr_html_()}")
        if self.run_log.started:
            lines.append(f"run: <code>{escape(self.log_dir)}</code>")
        return "<br>".join(lines)
