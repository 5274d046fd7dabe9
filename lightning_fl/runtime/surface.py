"""Interface of the trainer for callbacks: state of federation and round, settings, and the engine's parts."""

import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import fields
from typing import Any, TypeVar

import torch
from lightning.fabric import Fabric
from lightning.fabric.utilities.rank_zero import rank_zero_warn
from lightning.pytorch import LightningModule
from lightning.pytorch.profilers import Profiler
from torch import Tensor

from lightning_fl.core.client_names import curve_names
from lightning_fl.core.errors import CheckpointError, ConfigurationError, TrainingError
from lightning_fl.core.escaping import csv_table
from lightning_fl.core.seeding import generator
from lightning_fl.data.module import FederatedDataModule, Split
from lightning_fl.engine.batches.client import ClientBatches
from lightning_fl.engine.batches.factory import BatchFactory
from lightning_fl.engine.federation import Federation, Round
from lightning_fl.engine.hooks import Hooks
from lightning_fl.engine.interrupt import end_with_this_process
from lightning_fl.engine.probes.on_hosts import compute_on_hosts
from lightning_fl.engine.probes.statistics import descriptor_statistics, target_statistics, target_summaries
from lightning_fl.engine.processes import Processes
from lightning_fl.engine.settings import Settings
from lightning_fl.engine.stacked.loop import StackedLoop
from lightning_fl.engine.turn.callback_states import load_states, saved_states
from lightning_fl.engine.turn.loop import LocalLoop
from lightning_fl.engine.turn.module_trainer import ModuleTrainer
from lightning_fl.engine.weights.flat import Weights
from lightning_fl.files.user_file import near
from lightning_fl.runtime.checkpoint_fields import class_path, plain_hyper_parameters
from lightning_fl.runtime.run_log import RunLog
from lightning_fl.strategies.federated import FederatedStrategy
from lightning_fl.strategies.fork_launcher import ForkLauncher
from lightning_fl.version import __version__

T = TypeVar("T")

#: Above this many clients their own curves are left out unless asked for.
_MANY_CLIENTS = 100
#: What a run makes, and the next run replaces.
_PARTS = ("module", "datamodule", "loop", "batch_factory")
#: Attributes of the trainer with another name than those of the round.
_OF_ROUND = {"logged": "round_metrics", "reports": "client_reports", "evaluated": "evaluated_this_round"}
#: Attribute of the trainer -> the part that has it, and its name there.
_FORWARDED = {
    **{field.name.lstrip("_"): ("federation", field.name.lstrip("_")) for field in fields(Federation)},
    **{_OF_ROUND.get(field.name, field.name): ("round", field.name) for field in fields(Round)},
    "client_ranks": ("processes", "client_ranks"),
    "num_clients": ("processes", "num_clients"),
    "hosted_clients": ("processes", "hosted"),
    "is_global_zero": ("fabric", "is_global_zero"),
    "loggers": ("run_log", "loggers"),
}


@contextmanager
def _refusing(what: str, state: Mapping[str, Any]) -> Iterator[None]:
    """Context in which a state that cannot be restored is a CheckpointError."""
    try:
        yield
    except CheckpointError:
        raise
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        fault = f"was saved by an incompatible version ({type(error).__name__}: {error})"
        versions = f"lightning-fl {state['lightning_fl_version']}, this is {__version__}"
        advice = "Resume with that version, or start a new run."
        raise CheckpointError(f"the checkpoint's state of {what} {fault}: {versions}. {advice}") from error


def _without(clients: Sequence[int], others: Collection[int]) -> Sequence[int]:
    return [client for client in clients if client not in others] if others else clients


class TrainerSurface(Settings):
    """The part of :class:`~lightning_fl.FederatedTrainer` that callbacks are written against."""

    federation: Federation  #: state that rounds change and checkpoints keep
    round: Round  #: state of the present round
    fabric: Fabric  #: Fabric, with the federated ``strategy``
    strategy: FederatedStrategy
    processes: Processes  #: the ranks and their clients
    client_ranks: list[int]  #: client -> the rank that hosts it
    num_clients: int  #: N
    hosted_clients: list[int]  #: clients whose data this rank opens
    is_global_zero: bool  #: whether this is the rank that logs
    hooks: Hooks  #: hooks of the callbacks
    callbacks: list[Any]  #: this package's, in the order of their calls
    lightning_callbacks: list[Any]  #: those of Lightning
    run_log: RunLog  #: the run's folder, curves and summary
    loggers: list[Any]  #: they write on rank zero only
    profiler: Profiler  #: of the run
    module: LightningModule  #: the user's, from the first run on
    datamodule: FederatedDataModule  #: the data, from the first run on
    client_names: list[str]  #: of the data, after their set-up
    recorded_names: list[str]  #: these as files keep them, see :func:`.recorded_names`
    batch_factory: BatchFactory  #: makes clients' batches
    loop: LocalLoop  #: runs clients' turns
    stacked: StackedLoop | None  #: runs several at once, with ``stacked_clients`` above 1
    resumes_fit: bool  #: whether the fit resumes from a checkpoint
    ckpt_path: str | None  #: that checkpoint
    should_stop: bool  #: set it to end the fit after the round
    identity: dict[str, str]  #: settings that decide the run's result, as text, for its checkpoints
    #: client -> split -> digest of its data; of hosted clients if these are private, else of all
    data_digests: dict[int, dict[Split, str]]
    differs: dict[str, list[str]]  #: differences from the run of the checkpoint: name -> value before and now
    left: tuple[Any, Any] | None = None  #: the module's flat form and the marks of its tensors when the last run ended
    _launched = False

    @property
    def settings(self) -> Settings:
        """The settings, which are attributes of the trainer."""
        return self

    def __getattr__(self, name: str) -> Any:
        if name in _FORWARDED:
            part, own = _FORWARDED[name]
            return getattr(getattr(self, part), own)
        if name in _PARTS:
            raise AttributeError(f"trainer.{name} exists from a run on: read it in a hook, or after fit or test.")
        return object.__getattribute__(self, name)  # raises the error of a missing name, or of a property

    def __setattr__(self, name: str, value: Any) -> None:
        part, own = _FORWARDED.get(name, ("", name))
        object.__setattr__(getattr(self, part) if part else self, own, value)

    @property
    def is_set_up(self) -> bool:
        """Whether a run has begun, so that ``module`` and ``datamodule`` are known."""
        return "datamodule" in vars(self)

    @property
    def present_clients(self) -> Sequence[int]:
        """Clients that have joined."""
        return _without(range(self.num_clients), self.federation.absent_clients)

    @property
    def active_clients(self) -> Sequence[int]:
        """Clients that have joined and do not rest."""
        return _without(self.present_clients, self.federation.resting_clients)

    @property
    def stop_reason(self) -> str:
        """What Lightning's callbacks, such as ``EarlyStopping``, say about the end that they asked for."""
        messages = [getattr(one, "stopping_reason_message", None) for one in self.loop.module_trainer.callbacks]
        return " ".join(text.removesuffix(" Signaling Trainer to stop.") for text in messages if text)

    def client_weights(self) -> Weights:
        """Live weights of the present client (not a copy)."""
        return self.loop.flat.collect()

    def shared_model(self, client: int) -> Weights:
        """A client's mixture of the shared models: ``sum_k P_ik w_k``."""
        return self.federation.shared_model(client)

    def client_model(self, client: int) -> Weights:
        """A client's mixture of the shared models, on its host with its personal layers or the strategy's own model."""
        return self.loop.client_model(client)

    @property
    def evaluated_model(self) -> str:
        """Text about the model that clients are evaluated with."""
        model = self.strategy.evaluated(self.federation.collaboration.describe_use())
        for hook in self.hooks.of("evaluated"):
            model = hook(model)
        return model

    def client_store(self, name: str) -> dict[int, Any]:
        """State of hosted clients for a callback: client -> plain values and tensors, saved in checkpoints."""
        return self.federation.client_store(name)

    def keep_local(self, patterns: Sequence[str]) -> None:
        """Exclude parameters and buffers whose names match from averaging; each client keeps its own."""
        self.federation.keep_local(self.loop.flat, patterns)

    def client_batches(self, client: int, split: Split) -> ClientBatches | None:
        """Batches of a hosted client, after changes of callbacks (label noise)."""
        return self.batch_factory.batches(client, split)

    def training_loss(self, client: int, weights: Weights, num_batches: int, purpose: str) -> float:
        """Training loss of a hosted client for some weights, over its first batches; nothing is trained."""
        return self.loop.training.mean_loss(client, weights, num_batches, purpose)

    def predict_client(self, client: int, split: Split = "test", federation: Federation | None = None) -> list[Any]:
        """``predict_step``'s outputs for one hosted client, inside a run, also with its model in another federation."""
        weights = self.loop.client_model(client, federation)
        with self.around_evaluation(client, weights):
            return self.loop.evaluator.predict(client, weights, split)

    def around_evaluation(self, client: int, weights: Weights) -> ExitStack:
        """Enter the contexts of callbacks around a hosted client's evaluation; the result leaves them."""
        with ExitStack() as stack:
            for hook in self.hooks.of("around_evaluation"):
                stack.enter_context(hook(client, weights))
            return stack.pop_all()

    def target_statistics(self) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation [T] of all clients' training targets without NaN; only sums leave a client."""
        return target_statistics(self.batch_factory, self.processes, self.seed)

    def descriptor_statistics(self) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation [F] of all clients' training ``descriptors``; only sums leave a client."""
        return descriptor_statistics(self.batch_factory, self.processes, self.seed)

    def target_summaries(self, summarize: Callable[[Tensor], Tensor], split: Split = "train") -> Tensor:
        """Every client's ``summarize(targets [n, T])`` of a split, stacked [N, ...], which leaves it; on every rank."""
        return target_summaries(self.batch_factory, self.processes, self.seed, summarize, split)

    def on_hosts(self, clients: Collection[int], compute: Callable[[int], T], problem: str) -> dict[int, T]:
        """Compute a value for each client on its rank, and exchange these; see :func:`.compute_on_hosts`."""
        return compute_on_hosts(self.processes, clients, compute, problem)

    def fail_or_warn(self, problem: str, otherwise: str, advice: str = "", cause: Exception | None = None) -> None:
        """Raise an error about clients, or with ``on_client_error="skip"`` warn, with what happens instead."""
        if self.on_client_error == "fail":
            raise TrainingError(f"{problem} {advice}".strip()) from cause
        rank_zero_warn(f"{problem} {otherwise}")

    def generator(self, *path: int | str) -> torch.Generator:
        """Generator for one purpose in the current round, the same on every rank."""
        return generator(self.seed, self.federation.current_round, *path)

    def callback(self, kind: type[T]) -> T | None:
        """The first callback of a class, if there is one."""
        return next((callback for callback in self.callbacks if isinstance(callback, kind)), None)

    def callbacks_with(self, hook: str) -> list[Any]:
        """The callbacks that define a hook, in order."""
        return [found.listener for found in self.hooks.of(hook)]

    def call(self, hook: str, *args: Any) -> None:
        """Run a hook of all callbacks, in order."""
        self.hooks.call(hook, *args)

    def state_dict(self) -> dict[str, Any]:
        """State to resume from: plain values and tensors. Called on every rank."""
        module_trainer = self.loop.module_trainer
        of_run = module_trainer.lightning_callbacks.with_run_state
        return {
            "lightning_fl_version": __version__,
            "module": class_path(self.module),
            "seed": self.seed,
            "client_names": self.recorded_names,
            "recipe": dict(self.identity),
            "hyper_parameters": plain_hyper_parameters(self.module),
            "data": dict(self.data_digests),
            **self.federation.state_dict(self.processes),
            "layout": self.loop.flat.layout() if self.loop.flat.late_names else [],
            "callbacks": {name: callback.state_dict() for name, callback in self.named_callbacks()},
            "lightning_callbacks": saved_states(module_trainer, of_run) if of_run else {},
        }

    def load_state_dict(self, state: dict[str, Any], *, weights_only: bool = False) -> None:
        """Restore a state; with ``weights_only`` the models and the collaboration, for an evaluation."""
        with _refusing("its models and clients", state):
            self.federation.load_state_dict(state, self.loop.flat, self.processes, weights_only=weights_only)
        if weights_only:
            return
        for name, callback in self.named_callbacks():
            if name in state["callbacks"]:
                with _refusing(name, state):
                    callback.load_state_dict(state["callbacks"][name])

    def load_lightning_callbacks(self, trainer: ModuleTrainer, state: Mapping[str, Any]) -> None:
        """Restore the states of Lightning's callbacks that all clients share, before ``on_fit_start``."""
        kept = state.get("lightning_callbacks", {})
        known = trainer.lightning_callbacks.with_run_state.items()
        if callbacks := {name: one for name, one in known if name in kept.get("callbacks", {})}:
            patience = {name: one.patience for name, one in callbacks.items() if hasattr(one, "patience")}
            with _refusing(", ".join(callbacks), state):
                load_states(trainer, callbacks, kept)
            for name, own in patience.items():  # EarlyStopping's state has that of the earlier run
                callbacks[name].patience = own
            if ended := [one for one in callbacks.values() if getattr(one, "stopping_reason_message", None)]:
                self.should_stop = True
                name = type(ended[0]).__name__
                rank_zero_warn(f"nothing is left to train: {name} ended this run. Leave it out to train on.")

    def named_callbacks(self, callbacks: Sequence[Any] | None = None) -> list[tuple[str, Any]]:
        """Each callback, of this package by default, with its class's name, numbered where there are several."""
        seen: Counter[str] = Counter()
        named = []
        for callback in self.callbacks if callbacks is None else callbacks:
            name = type(callback).__name__
            seen[name] += 1
            named.append((name if seen[name] == 1 else f"{name}-{seen[name]}", callback))
        return named

    def log(self, name: str, value: float) -> None:
        """Log one number of the round, for a callback."""
        self.round.logged[name] = float(value)

    def log_clients(self, name: str, values: Mapping[int, float]) -> None:
        """Log the mean, least and largest of some clients' numbers, and each where clients have curves of their own."""
        numbers = list(values.values())
        for word, value in (("mean", sum(numbers) / len(numbers)), ("min", min(numbers)), ("max", max(numbers))):
            self.log(f"{name}/{word}", value)
        self.log_each_client(name, values)

    def log_each_client(self, name: str, values: Mapping[int, float]) -> None:
        """Log some clients' numbers where clients have curves of their own."""
        if self.logs_clients:
            names = curve_names(self.client_names)
            for client, value in values.items():
                self.log(f"{name}/{names[client]}", value)

    def write_table(self, file: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        """Write a CSV file into the run's folder, on the rank that logs."""
        if self.is_global_zero:
            import pandas as pd  # takes a second to import

            self.run_log.write(file, csv_table(pd.DataFrame(list(rows), columns=list(columns))))

    @property
    def log_dir(self) -> str:
        """The run's folder, relative if ``default_root_dir`` is."""
        directory = self.run_log.directory
        return os.fspath(directory if os.path.isabs(self.default_root_dir) else near(directory))

    @property
    def logs_clients(self) -> bool:
        """Whether every client has its own curves."""
        return self.num_clients <= _MANY_CLIENTS if self.log_per_client is None else self.log_per_client

    def launch(self) -> None:
        """Start the processes (once), as ``fit`` does; call it earlier to share the work before it."""
        launcher = self.strategy.launcher
        if isinstance(launcher, ForkLauncher) and launcher.ended:
            raise ConfigurationError("this trainer's processes ended with lightning_fl.federate: make another trainer.")
        if self.num_threads is not None:  # also with a GPU, as sums over clients are computed on the host
            os.environ["OMP_NUM_THREADS"] = str(self.num_threads)  # Fabric's launcher leaves a set value alone
            torch.set_num_threads(self.num_threads)
        if not self._launched:
            end_with_this_process(getattr(launcher, "procs", []))
            self.fabric.launch()
            self._launched = True
        elif not self.strategy.connected:  # a failed run left the other ranks
            self.strategy.setup_environment()

    def begin(self, federation: Federation) -> None:
        """Start a run with a federation's state, without module, data and the engine's parts."""
        self.federation = federation
        self.round = Round()
        self.processes = Processes(self.strategy, self.fabric.device)
        for part in _PARTS:
            self.__dict__.pop(part, None)
        self.stacked = None
        self.resumes_fit, self.should_stop, self.ckpt_path = False, False, None
        self.identity, self.data_digests, self.differs = {}, {}, {}
