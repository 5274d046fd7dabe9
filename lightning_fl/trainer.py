"""The federated trainer: Lightning's Trainer for many clients. The round loop is :meth:`FederatedTrainer._fit_round`."""

import os
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from lightning.fabric import Fabric
from lightning.fabric.loggers.logger import Logger
from lightning.fabric.utilities.rank_zero import rank_zero_warn
from lightning.fabric.utilities.seed import _collect_rng_states, _set_rng_states
from lightning.pytorch import LightningModule
from torch import Tensor

from lightning_fl import __version__
from lightning_fl.callbacks.callback import Callback, overrides
from lightning_fl.callbacks.model_checkpoint import ModelCheckpoint
from lightning_fl.checkpoint import load_checkpoint, resolve_checkpoint
from lightning_fl.cohort import Cohort, Participant
from lightning_fl.collaboration import Collaboration
from lightning_fl.data.module import FederatedDataModule, Split
from lightning_fl.engine.batches import BatchFactory, ClientBatches
from lightning_fl.engine.interrupt import InterruptGuard
from lightning_fl.engine.local import ClientReport, LocalLoop
from lightning_fl.engine.module_trainer import ModuleTrainer, keep_metrics_local
from lightning_fl.engine.optimization import ClientState
from lightning_fl.engine.statistics import target_statistics
from lightning_fl.engine.weights import FlatModule, WeightedSum, Weights
from lightning_fl.errors import ConfigurationError, TrainingError
from lightning_fl.run_log import RunLog
from lightning_fl.metrics import ClientMetrics, summarize
from lightning_fl.seeding import generator, run_seed
from lightning_fl.strategies.federated import FederatedStrategy

__all__ = ["FederatedTrainer"]

PrecisionName = Literal["32", "32-true", "bf16-mixed", "bf16-true", "64", "64-true"]


class FederatedTrainer:
    """Trains a ``LightningModule`` across clients, with the names and habits of Lightning's Trainer.

    Args:
        strategy: how clients and server learn: a registered name ("fedavg") or a ``FederatedStrategy``.
        accelerator: "cpu", "cuda" or "auto".
        devices: processes on this machine: a number, a list of device indices, or "auto" (one on CPU, all GPUs).
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
        deterministic: let torch use deterministic algorithms only (needed for equal bits on GPUs).

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
        optimizer_state: Literal["fresh", "keep"] = "fresh",
        scheduler_interval: Literal["auto", "step", "round"] = "auto",
        on_client_error: Literal["fail", "skip"] = "fail",
        log_every_n_steps: int = 0,
        log_per_client: bool | None = None,
        enable_progress_bar: bool = True,
        enable_checkpointing: bool = True,
        seed: int | None = None,
        num_threads: int | None = 1,
        deterministic: bool = False,
    ) -> None:
        _check_settings(locals())
        self.max_rounds = max_rounds
        self.local_steps = local_steps
        self.local_epochs = local_epochs or 1
        self.check_val_every_n_rounds = check_val_every_n_rounds
        self.gradient_clip_val = gradient_clip_val
        self.gradient_clip_algorithm = gradient_clip_algorithm
        self.accumulate_grad_batches = accumulate_grad_batches
        self.optimizer_state = optimizer_state
        self.scheduler_interval = scheduler_interval
        self.on_client_error = on_client_error
        self.log_every_n_steps = log_every_n_steps
        self.log_per_client = log_per_client
        self.seed = run_seed() if seed is None else seed
        self.num_threads = num_threads
        self.deterministic = deterministic
        self.default_root_dir = os.fspath(default_root_dir or "runs")
        self.callbacks: list[Callback] = _complete_callbacks(callbacks, enable_progress_bar, enable_checkpointing)
        self.fabric = _make_fabric(strategy, accelerator, devices, num_nodes, precision, plugins)
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
        self.metrics: dict[Split, ClientMetrics] = {}
        self.round_metrics: dict[str, Any] = {}
        self.has_validated = False
        self.fitting = False
        self.should_stop = False
        self.interrupted_by: int | None = None
        self.ckpt_path: str | None = None
        self.wall_time_seconds = 0.0
        self._collaboration: Collaboration | None = None
        self._client_states: dict[int, ClientState] = {}
        self._changed_batches: dict[tuple[int, Split], ClientBatches | None] = {}
        self._loop: LocalLoop | None = None

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
        """Who collaborates with whom. Assigning another one takes effect at once; new models start as client mixtures."""
        assert self._collaboration is not None, "the collaboration is known after on_fit_start"
        return self._collaboration

    @collaboration.setter
    def collaboration(self, collaboration: Collaboration) -> None:
        if collaboration.num_clients != self.num_clients:
            raise ConfigurationError(
                f"the collaboration has {collaboration.num_clients} clients, the data have {self.num_clients}."
            )
        if collaboration.num_models != len(self.models):
            starts = [self.client_model(client) for client in range(self.num_clients)]
            self.models = [self._mixture(row, starts) for row in collaboration.aggregation]
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

    def callbacks_with(self, hook: str) -> list[Callback]:
        """The callbacks that define a hook, in order."""
        return [callback for callback in self.callbacks if overrides(callback, hook)]

    def generator(self, *path: int | str) -> torch.Generator:
        """Randomness for one purpose in the current round, the same on every rank."""
        return generator(self.seed, self.current_round, *path)

    def client_weights(self) -> Weights:
        """The live weights of the client whose turn it is (not a copy)."""
        assert self._loop is not None
        return self._loop.flat.collect()

    def client_model(self, client: int) -> Weights:
        """What a client uses: ``sum_k P_ik w_k``."""
        if self._collaboration is None or (model := self._collaboration.model_of(client)) is not None:
            return self.models[0 if self._collaboration is None else model]  # type: ignore[index]
        return self._mixture(self._collaboration.personalisation[client], self.models)

    def training_loss(self, client: int, weights: Weights, num_batches: int, purpose: str) -> float:
        """The training loss of a hosted client at some weights, over its first batches; nothing is trained."""
        assert self._loop is not None
        return self._loop.training_loss(client, weights, num_batches, purpose)

    def client_batches(self, client: int, split: Split) -> ClientBatches | None:
        """The batches of a hosted client, as callbacks (label noise) left them."""
        key = (client, split)
        if key not in self._changed_batches:
            batches = self._factory.batches(client, split)
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
            module: any LightningModule.
            datamodule: the clients' data.
            ckpt_path: go on from a checkpoint: "last", "best", or a file.

        Raises:
            FederatedError: what is wrong and the mend.
        """
        with self._run("fit", module, datamodule, ckpt_path) as resumed:
            self.fitting = True
            assert self._loop is not None
            self._loop.call("on_train_start")
            self._call("on_fit_start") if not resumed else None
            started = time.perf_counter() - self.wall_time_seconds
            with InterruptGuard() as guard:
                while self.current_round < self.max_rounds and not self.should_stop:
                    self._fit_round()
                    self.wall_time_seconds = time.perf_counter() - started
                    self.interrupted_by = self._anybody(guard.signal_number or 0) or None
                    if self.interrupted_by:
                        break
            self._loop.call("on_train_end")
            self._loop.call("on_fit_end")
            self._call("on_fit_end")
            self.fitting = False

    def _fit_round(self) -> None:
        """One round: choose, train, average, evaluate, log."""
        self.round_metrics = {}
        self._call("on_round_start")
        cohort = self._select_clients()
        sums = {model: WeightedSum(self.models[0]) for model in self._models_trained(cohort)}
        self.client_reports = self._train_cohort(cohort, sums)
        self._aggregate(cohort, sums)
        self._call("on_aggregate_end")
        self.metrics["train"] = summarize({client: report.metrics for client, report in self.client_reports.items()})
        self.current_round += 1
        self.evaluated_this_round = self._due_for_evaluation()
        if self.evaluated_this_round:
            self.metrics["val"] = self._evaluate("val")
        self.run_log.log_round(self)
        self._call("on_round_end")
        assert self._loop is not None
        self.should_stop |= self._loop.module_trainer.should_stop
        self.should_stop = bool(self._anybody(int(self.should_stop)))

    def _select_clients(self) -> Cohort:
        chosen = self.callbacks_with("select_clients")
        return chosen[0].select_clients(self) if chosen else Cohort.of(range(self.num_clients))

    def _targets_of(self, participant: Participant) -> dict[int, float]:
        """The models a participant contributes to, with its weight in each."""
        column = self.collaboration.aggregation[:, participant.client]
        if participant.model is not None:
            weight = float(column[participant.model]) if participant.weight is None else participant.weight
            return {participant.model: weight} if weight > 0 else {}
        scale = participant.weight
        return {k: float(a) if scale is None else scale for k, a in enumerate(column) if a > 0}

    def _models_trained(self, cohort: Cohort) -> list[int]:
        return sorted({model for participant in cohort.participants for model in self._targets_of(participant)})

    def _train_cohort(self, cohort: Cohort, sums: dict[int, WeightedSum]) -> dict[int, ClientReport]:
        """Every hosted participant's turn; what it hands over is added up at once. Reports of all clients."""
        assert self._loop is not None
        hosted = set(self.hosted_clients)
        reports: dict[int, ClientReport] = {}
        failure: Exception | None = None
        for participant in cohort.participants:
            client = participant.client
            if client not in hosted or failure is not None:
                continue
            start = self.client_model(client) if participant.model is None else self.models[participant.model]
            state = self._client_states.setdefault(client, ClientState())
            try:
                for callback in self.callbacks_with("on_client_start"):
                    callback.on_client_start(self, client)
                reports[client] = self._loop.train(client, start, state)
                weights = self.client_weights()
                for model, weight in self._targets_of(participant).items():
                    sums[model].add_(weights, weight)
                for callback in self.callbacks_with("on_client_end"):
                    callback.on_client_end(self, client)
            except Exception as error:
                reports[client] = ClientReport(error=f"{type(error).__name__}: {error}")
                failure = error if self.on_client_error == "fail" else None
        reports = self.strategy.exchange(reports)
        self._judge_failures(reports, failure)
        self.survivors = {client for client, report in reports.items() if report.error is None}
        return reports

    def _judge_failures(self, reports: dict[int, ClientReport], own: Exception | None) -> None:
        failed = {client: report.error for client, report in reports.items() if report.error is not None}
        if not failed:
            return
        names = self.datamodule.client_names() if self.datamodule else []
        client, reason = next(iter(failed.items()))
        text = f"client {client} ({names[client]}) failed in round {self.current_round + 1}: {reason}"
        if self.on_client_error == "fail":
            raise TrainingError(
                f"{text} Nothing is lost: the last checkpoint is untouched. Set trainer.on_client_error=skip to leave"
                " failing clients out of a round."
            ) from own
        if len(failed) == len(reports):
            raise TrainingError(f"every client of the round failed; the first: {text}")
        for client, reason in failed.items():
            rank_zero_warn(
                f"client {client} ({names[client]}) is left out of round {self.current_round + 1}: {reason}"
            )

    def _aggregate(self, cohort: Cohort, sums: dict[int, WeightedSum]) -> None:
        totals = dict.fromkeys(sums, 0.0)
        for participant in cohort.participants:
            if participant.client in self.survivors:
                for model, weight in self._targets_of(participant).items():
                    totals[model] += weight
        models = list(self.models)
        for model, total in sums.items():
            if self.fabric.world_size > 1:
                total.reduce_(self.strategy)
            if totals[model] > 0:
                models[model] = self.strategy.aggregate(self.models[model], total.value(totals[model]))
        self.models = models

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
        with self._run("predict", module, datamodule, ckpt_path):
            assert self._loop is not None
            self._loop.call("on_predict_start")
            outputs = {client: self.predict_client(client, split) for client in self.hosted_clients}
            self._loop.call("on_predict_end")
        return outputs

    def predict_client(self, client: int, split: Split = "test") -> list[Any]:
        """``predict_step``'s outputs for one hosted client, inside a run."""
        assert self._loop is not None
        return self._loop.predict(client, self.client_model(client), split)

    def _evaluate_only(self, stage: str, split: Split, module: Any, datamodule: Any, ckpt_path: Any) -> ClientMetrics:
        with self._run(stage, module, datamodule, ckpt_path):
            self.metrics[split] = self._evaluate(split)
            if not self.metrics[split]:
                rank_zero_warn(
                    f"nothing was evaluated: {type(module).__name__} defines no {stage.removesuffix('ate')} step, or no"
                    f" client has {split} data."
                )
            self.run_log.log_evaluation(self, split)
        return self.metrics[split]

    def _due_for_evaluation(self) -> bool:
        every = self.check_val_every_n_rounds
        return every > 0 and (self.current_round % every == 0 or self.current_round == self.max_rounds)

    def _evaluate(self, split: Split) -> ClientMetrics:
        assert self._loop is not None
        if not self._loop.evaluates(split):
            return {}
        word = "validation" if split == "val" else split
        self._loop.call(f"on_{word}_start")
        reports: dict[int, ClientReport] = {}
        for client in self.hosted_clients:
            report = self._loop.evaluate(client, self.client_model(client), split)
            if report is not None:
                reports[client] = report
        self._loop.call(f"on_{word}_end")
        metrics = summarize({client: report.metrics for client, report in self.strategy.exchange(reports).items()})
        shim = self._loop.module_trainer
        shim.callback_metrics.update({name: torch.tensor(metric.mean) for name, metric in metrics.items()})
        self.has_validated = True
        for callback in self.callbacks_with("on_evaluate_end"):
            callback.on_evaluate_end(self, split, metrics)
        return metrics

    # -- setting up ----------------------------------------------------------------------------------------------

    def _run(self, stage: str, module: Any, datamodule: Any, ckpt_path: Any) -> "_Run":
        return _Run(self, stage, module, datamodule, ckpt_path)

    def launch(self) -> None:
        """Start the processes (once). ``fit`` and the others do it; call it earlier to share the work before them."""
        if not self._launched:
            if self.num_threads is not None and self.fabric.device.type == "cpu":
                os.environ["OMP_NUM_THREADS"] = str(self.num_threads)  # Fabric's launcher leaves a set value alone
                torch.set_num_threads(self.num_threads)
            self.fabric.launch()
            self._launched = True

    def _set_up(self, stage: str, module: LightningModule, datamodule: FederatedDataModule) -> None:
        self._factory = BatchFactory(datamodule, self.fabric.device)
        self.client_ranks, self.num_samples = [], []
        _check_arguments(module, datamodule)
        self._call("setup", stage)
        datamodule.trainer = self  # type: ignore[assignment]
        with self.fabric.rank_zero_first(local=True):
            if self.fabric.local_rank == 0:
                datamodule.prepare_data()
                module.prepare_data()
        datamodule.setup(stage)
        self.client_ranks = self.strategy.place_clients(
            datamodule.num_clients, datamodule.client_sizes(), pinned=bool(getattr(datamodule, "pinned", False))
        )
        self._warn_of_idle_ranks()
        shim = ModuleTrainer(self, module)
        module._trainer = shim  # type: ignore[assignment]
        module.configure_model()
        module.setup(stage)
        self.module, self.datamodule = module, datamodule
        self.num_samples = self._exchange_sizes() if stage == "fit" else []
        keep_metrics_local(module)
        module.to(self.fabric.device)
        self.fabric._precision.convert_module(module)
        if stage == "fit":
            module.on_fit_start()
        self._collaboration = None
        flat = FlatModule(module)
        self._agree_on(flat.weights)
        self.models = [flat.weights.clone()]
        self._loop = LocalLoop(self, module, shim, flat, self._factory)
        clients = self.num_samples or [1] * self.num_clients
        self._collaboration = Collaboration.fedavg(clients)

    def _exchange_sizes(self) -> list[int]:
        sizes: dict[int, int] = {}
        for client in self.hosted_clients:
            batches = self.client_batches(client, "train")
            assert batches is not None
            if not batches.num_samples:
                raise ConfigurationError(
                    f"client {client}'s training data have no length: define __len__ on its data set, since a"
                    " client's weight in the average is its number of samples."
                )
            sizes[client] = batches.num_samples
        return list(self.strategy.exchange(sizes).values())

    def _warn_of_idle_ranks(self) -> None:
        idle = self.fabric.world_size - len(set(self.client_ranks))
        if idle > 0:
            rank_zero_warn(
                f"{idle} of {self.fabric.world_size} processes host no client: there are {self.num_clients} clients."
                " Lower trainer.devices."
            )

    def _agree_on(self, weights: Weights) -> None:
        """Rank zero's initial weights on every rank: a module may have been made with another seed there."""
        if self.fabric.world_size > 1:
            for vector in weights.vectors.values():
                wide = vector.float() if vector.dtype == torch.bfloat16 else vector
                vector.copy_(self.fabric.broadcast(wide.cpu()))

    def _mixture(self, row: Tensor, models: Sequence[Weights]) -> Weights:
        total = WeightedSum(models[0])
        for weight, model in zip(row.tolist(), models, strict=True):
            if weight > 0:
                total.add_(model, weight)
        return total.value(float(row.sum()))

    def _anybody(self, value: int) -> int:
        """The largest value on any rank."""
        return max(self.strategy.exchange({self.fabric.global_rank: value}).values())

    def _call(self, hook: str, *args: Any) -> None:
        for callback in self.callbacks_with(hook):
            getattr(callback, hook)(self, *args)

    # -- state ---------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """All that a run needs to go on: plain values and tensors. To be called on every rank."""
        states = self.strategy.exchange(
            {client: state.state_dict() for client, state in self._client_states.items()}
        )
        return {
            "lightning_fl_version": __version__,
            "module": _class_path(self.module),
            "round": self.current_round,
            "seed": self.seed,
            "num_clients": self.num_clients,
            "wall_time_seconds": self.wall_time_seconds,
            "models": [model.state_dict() for model in self.models],
            "collaboration": self.collaboration.state_dict(),
            "clients": states,
            "callback_metrics": {
                name: float(value) for name, value in self._loop.module_trainer.callback_metrics.items()
            }
            if self._loop
            else {},
            "callbacks": {name: callback.state_dict() for name, callback in self._named_callbacks()},
        }

    def load_state_dict(self, state: dict[str, Any], *, weights_only: bool = False) -> None:
        """Take up a state; ``weights_only`` takes the models and the collaboration, for an evaluation."""
        template = self.models[0]
        self.models = []
        for saved in state["models"]:
            model = template.clone()
            model.load_state_dict(saved)
            self.models.append(model)
        self._collaboration = Collaboration.from_state_dict(state["collaboration"])
        self.current_round = state["round"]
        if weights_only:
            return
        self.wall_time_seconds = state["wall_time_seconds"]
        hosted = set(self.hosted_clients)
        self._client_states = {
            client: ClientState(**saved) for client, saved in state["clients"].items() if client in hosted
        }
        assert self._loop is not None
        self._loop.module_trainer.callback_metrics.update(
            {name: torch.tensor(value) for name, value in state["callback_metrics"].items()}
        )
        self.has_validated = bool(state["callback_metrics"])
        for name, callback in self._named_callbacks():
            if name in state["callbacks"]:
                callback.load_state_dict(state["callbacks"][name])

    def _named_callbacks(self) -> list[tuple[str, Callback]]:
        seen: dict[str, int] = {}
        named = []
        for callback in self.callbacks:
            name = type(callback).__name__
            seen[name] = seen.get(name, 0) + 1
            named.append((name if seen[name] == 1 else f"{name}-{seen[name]}", callback))
        return named


class _Run:
    """Everything around a run: processes, data, module, checkpoint; and putting back what was there before."""

    def __init__(self, trainer: FederatedTrainer, stage: str, module: Any, datamodule: Any, ckpt_path: Any) -> None:
        self._trainer = trainer
        self._stage = stage
        self._arguments = (module, datamodule)
        self._ckpt_path = ckpt_path

    def __enter__(self) -> bool:
        trainer, stage = self._trainer, self._stage
        trainer.launch()
        trainer.run_log.start(trainer, stage)
        path = resolve_checkpoint(trainer, self._ckpt_path)
        state = None if path is None else load_checkpoint(path)
        fitted = None
        if state is None and stage != "fit" and trainer.module is self._arguments[0]:
            fitted = trainer.models, trainer._collaboration, trainer.current_round
        trainer._reset()
        self._rng = _collect_rng_states()
        self._deterministic = torch.are_deterministic_algorithms_enabled()
        if trainer.deterministic:
            torch.use_deterministic_algorithms(True)
        try:
            trainer._set_up(stage, *self._arguments)
            if state is not None:
                assert path is not None
                _check_fits(trainer, state, path)
                trainer.load_state_dict(state, weights_only=stage != "fit")
                trainer.ckpt_path = os.fspath(path)
                trainer.resumes_fit = stage == "fit"
                trainer.run_log.replay(trainer, path)
            elif fitted is not None:
                trainer.models, trainer._collaboration, trainer.current_round = fitted
        except BaseException as error:
            self.__exit__(type(error), error, None)
            raise
        return state is not None

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        trainer = self._trainer
        if error is not None:
            trainer._call("on_exception", error)
        if trainer.datamodule is not None:
            trainer.datamodule.teardown(self._stage)
        if trainer.module is not None:
            trainer.module.teardown(self._stage)
            if error is None and trainer.num_clients:
                assert trainer._loop is not None
                trainer._loop.flat.load(trainer.client_model(0))
        trainer.run_log.finish(trainer, self._stage, error)
        trainer._call("teardown", self._stage)
        trainer.fitting = False
        torch.use_deterministic_algorithms(self._deterministic)
        _set_rng_states(self._rng)


def _check_fits(trainer: FederatedTrainer, state: dict[str, Any], path: Path) -> None:
    for what, own in (("module", _class_path(trainer.module)), ("num_clients", trainer.num_clients)):
        if state[what] != own:
            raise CheckpointError(
                f"{path}: the checkpoint's {what} is {state[what]}, this run's is {own}: give the checkpoint of a run"
                " with the same recipe."
            )
    if state["seed"] != trainer.seed:
        rank_zero_warn(f"{path} was made with seed {state['seed']}; this run goes on with seed {trainer.seed}.")
    own_layout = {name: tuple(vector.shape) for name, vector in trainer.models[0].state_dict().items()}
    layout = {name: tuple(vector.shape) for name, vector in state["models"][0].items()}
    if layout != own_layout:
        raise CheckpointError(
            f"{path}: the checkpoint's weights have the layout {layout}, this module's have {own_layout}: give the"
            " checkpoint of a run with the same model."
        )


def _make_fabric(
    strategy: str | FederatedStrategy,
    accelerator: str,
    devices: int | str | list[int],
    num_nodes: int,
    precision: str,
    plugins: list[Any] | None,
) -> Fabric:
    from lightning.fabric.strategies import STRATEGY_REGISTRY

    if isinstance(strategy, str):
        ours = [
            name
            for name in STRATEGY_REGISTRY.available_strategies()
            if issubclass(STRATEGY_REGISTRY[name]["strategy"], FederatedStrategy)
        ]
        if strategy.lower() not in ours:
            raise ConfigurationError(
                f"trainer.strategy={strategy!r} is not a federated strategy. Registered are: {', '.join(sorted(ours))}."
            )
    elif not isinstance(strategy, FederatedStrategy):
        raise ConfigurationError(
            f"trainer.strategy is a {type(strategy).__name__}: give a name or a subclass of FederatedStrategy."
        )
    if accelerator == "auto" and not torch.cuda.is_available():
        accelerator = "cpu"
    if devices == "auto" and accelerator == "cpu":
        devices = 1
    if accelerator in ("cuda", "gpu") and not torch.cuda.is_available():
        raise ConfigurationError(
            f"trainer.accelerator={accelerator}: this machine has no CUDA device that torch can use. Set"
            " trainer.accelerator=cpu, or install a torch built for CUDA and check nvidia-smi."
        )
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*can be significantly better.*")
            return Fabric(
                strategy=strategy,
                accelerator=accelerator,
                devices=devices,
                num_nodes=num_nodes,
                precision=precision,  # type: ignore[arg-type]
                plugins=plugins,
            )
    except Exception as error:
        available = f"{torch.cuda.device_count()} CUDA device(s)" if torch.cuda.is_available() else "no CUDA device"
        raise ConfigurationError(
            f"trainer.accelerator={accelerator}, trainer.devices={devices}: {error} This machine has {available} and"
            f" {os.cpu_count()} CPU cores."
        ) from error


def _complete_callbacks(
    callbacks: list[Callback] | Callback | None, progress: bool, checkpointing: bool
) -> list[Callback]:
    given = [callbacks] if isinstance(callbacks, Callback) else list(callbacks or [])
    for callback in given:
        if not isinstance(callback, Callback):
            raise ConfigurationError(
                f"trainer.callbacks: {type(callback).__name__} is not a lightning_fl.callbacks.Callback. Callbacks of"
                " Lightning's Trainer do not run in a federated round; see docs/lightning-support.md."
            )
    for role in {callback.role for callback in given if callback.role}:
        same = [type(callback).__name__ for callback in given if callback.role == role]
        if len(same) > 1:
            raise ConfigurationError(
                f"{' and '.join(same)} both decide the {role} of clients: keep one of them in trainer.callbacks."
            )
    if progress:
        from lightning_fl.callbacks.progress import ProgressDisplay

        if not any(isinstance(callback, ProgressDisplay) for callback in given):
            given.append(ProgressDisplay())
    present = [callback for callback in given if isinstance(callback, ModelCheckpoint)]
    if present and not checkpointing:
        raise ConfigurationError("trainer.enable_checkpointing=False, but callbacks hold a ModelCheckpoint: drop one.")
    if checkpointing and not present:
        given.append(ModelCheckpoint())
    # Checkpoints come last, when every other callback's state is that of the round's end.
    return sorted(given, key=lambda callback: isinstance(callback, ModelCheckpoint))


def _check_settings(settings: dict[str, Any]) -> None:
    faults = []
    for name in ("max_rounds", "local_epochs", "local_steps", "accumulate_grad_batches", "num_nodes", "num_threads"):
        if settings[name] is not None and settings[name] < 1:
            faults.append(f"trainer.{name}={settings[name]}: give a number of at least 1.")
    for name in ("check_val_every_n_rounds", "log_every_n_steps"):
        if settings[name] < 0:
            faults.append(f"trainer.{name}={settings[name]}: give a number of at least 0.")
    if settings["local_epochs"] is not None and settings["local_steps"] is not None:
        faults.append("trainer.local_epochs and trainer.local_steps are both set: a turn has one length; drop one.")
    if settings["gradient_clip_val"] is not None and settings["gradient_clip_val"] <= 0:
        faults.append(f"trainer.gradient_clip_val={settings['gradient_clip_val']}: give a positive number.")
    allowed = {
        "optimizer_state": ("fresh", "keep"),
        "scheduler_interval": ("auto", "step", "round"),
        "on_client_error": ("fail", "skip"),
        "gradient_clip_algorithm": (None, "norm", "value"),
        "precision": ("32", "32-true", "bf16-mixed", "bf16-true", "64", "64-true"),
    }
    for name, values in allowed.items():
        if settings[name] not in values:
            choices = ", ".join(str(value) for value in values if value)
            faults.append(f"trainer.{name}={settings[name]!r}: choose one of {choices}.")
    if faults:
        raise ConfigurationError(" ".join(faults))


def _check_arguments(module: object, datamodule: object) -> None:
    if not isinstance(module, LightningModule):
        raise ConfigurationError(
            f"the model is a {type(module).__name__}: give a lightning.pytorch.LightningModule (import it as"
            " lightning.pytorch, not pytorch_lightning)."
        )
    if not isinstance(datamodule, FederatedDataModule):
        raise ConfigurationError(
            f"the data are a {type(datamodule).__name__}: wrap a LightningDataModule or data set in"
            " lightning_fl.Partitioned, or one data module per silo in lightning_fl.Silos."
        )


def _class_path(module: object) -> str:
    return f"{type(module).__module__}.{type(module).__qualname__}"


