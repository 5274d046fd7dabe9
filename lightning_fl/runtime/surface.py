"""What callbacks see of a trainer: the state of the federation, the round, the settings, and the engine's parts."""

import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import fields
from typing import Any, TypeVar

import torch
from lightning.fabric import Fabric
from lightning.pytorch import LightningModule
from lightning.pytorch.profilers import Profiler
from torch import Tensor

from lightning_fl.core.client_names import curve_names
from lightning_fl.core.errors import CheckpointError, ConfigurationError
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
from lightning_fl.engine.turn.loop import LocalLoop
from lightning_fl.engine.weights.flat import Weights
from lightning_fl.files.user_file import near
from lightning_fl.runtime.checkpoint_fields import class_path, plain_hyper_parameters
from lightning_fl.runtime.run_log import RunLog
from lightning_fl.strategies.federated import FederatedStrategy
from lightning_fl.strategies.fork_launcher import ForkLauncher
from lightning_fl.version import __version__

__all__ = ["TrainerSurface"]

T = TypeVar("T")

#: Above this many clients their own curves are left out unless asked for.
_MANY_CLIENTS = 100
#: What a run makes, and the next run replaces.
_PARTS = ("module", "datamodule", "loop", "batch_factory")
#: Attributes of the trainer that differ in name from those of the round.
_OF_ROUND = {
    "work": "round_work",
    "logged": "round_metrics",
    "reports": "client_reports",
    "evaluated": "evaluated_this_round",
}
#: Attribute of the trainer -> the part that has it, and its name there.
_FORWARDED = {
    **{field.name.lstrip("_"): ("federation", field.name.lstrip("_")) for field in fields(Federation)},
    **{_OF_ROUND.get(field.name, field.name): ("round", field.name) for field in fields(Round)},
}


@contextmanager
def _refusing(what: str, state: dict[str, Any]) -> Iterator[None]:
    """Say of what in a checkpoint the state cannot be taken up."""
    try:
        yield
    except CheckpointError:
        raise
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"the checkpoint's state of {what} is not one of this version's ({type(error).__name__}: {error}): it was"
            f" made by lightning-fl {state['lightning_fl_version']}, this is {__version__}. Go on with that version, or"
            " begin anew."
        ) from error


class TrainerSurface(Settings):
    """The part of :class:`~lightning_fl.FederatedTrainer` that callbacks are written against.

    Attributes:
        federation: what a round changes and a checkpoint keeps.
        round: what belongs to the present round alone.
        fabric: Fabric, with the federated ``strategy``.
        processes: the ranks and who hosts whom.
        hooks: the callbacks, as the engine calls them.
        callbacks: in the order in which they are called.
        run_log: the run's folder, curves and summary.
        profiler: of the run.
        module: the user's, from the first run on.
        datamodule: the data, from the first run on.
        client_names: of the data, once they are set up.
        batch_factory: makes clients' batches.
        loop: takes clients' turns.
        stacked: takes several at once, where ``stacked_clients`` says so.
        resumes_fit: the fit goes on from a checkpoint.
        ckpt_path: that checkpoint.
        should_stop: set it to end the fit after the round.
        identity: what decides the run's result, in words, for its checkpoints.
        data_digests: client -> split -> what its data are, of hosted clients or, where it may be told, of all.
        differs: what differs from the run whose checkpoint this one took up: name -> what it was and is.
    """

    federation: Federation
    round: Round
    fabric: Fabric
    strategy: FederatedStrategy
    processes: Processes
    hooks: Hooks
    callbacks: list[Any]
    run_log: RunLog
    profiler: Profiler
    module: LightningModule
    datamodule: FederatedDataModule
    client_names: list[str]
    batch_factory: BatchFactory
    loop: LocalLoop
    stacked: StackedLoop | None
    resumes_fit: bool
    ckpt_path: str | None
    should_stop: bool
    identity: dict[str, str]
    data_digests: dict[int, dict[Split, str]]
    differs: dict[str, list[str]]
    _launched = False

    # -- the settings, and what federation and round hold: engine/federation.py describes each ---------------------

    @property
    def settings(self) -> Settings:
        """The settings, which are attributes of the trainer."""
        return self

    def __getattr__(self, name: str) -> Any:
        if name in _FORWARDED:
            part, own = _FORWARDED[name]
            return getattr(getattr(self, part), own)
        if name in _PARTS:
            raise AttributeError(
                f"trainer.{name} exists from a run on: read it in a hook, or after fit, validate, test or predict."
            )
        return object.__getattribute__(self, name)  # raises the error of a missing name, or of a property

    def __setattr__(self, name: str, value: Any) -> None:
        part, own = _FORWARDED.get(name, ("", name))
        object.__setattr__(getattr(self, part) if part else self, own, value)

    @property
    def is_set_up(self) -> bool:
        """Whether a run has begun, so that ``module`` and ``datamodule`` are known."""
        return "datamodule" in vars(self)

    # -- clients and processes -----------------------------------------------------------------------------------

    @property
    def client_ranks(self) -> list[int]:
        """Client -> the rank that hosts it."""
        return self.processes.client_ranks

    @property
    def num_clients(self) -> int:
        """N."""
        return self.processes.num_clients

    @property
    def hosted_clients(self) -> list[int]:
        """The clients whose data this rank opens."""
        return self.processes.hosted

    @property
    def present_clients(self) -> list[int]:
        """The clients that have joined."""
        return sorted(set(range(self.num_clients)) - self.federation.absent_clients)

    @property
    def active_clients(self) -> list[int]:
        """The clients that have joined and do not rest at present."""
        return sorted(set(range(self.num_clients)) - self.federation.absent_clients - self.federation.resting_clients)

    @property
    def is_global_zero(self) -> bool:
        """Whether this is the rank that logs."""
        return self.fabric.is_global_zero

    # -- models and data -----------------------------------------------------------------------------------------

    def client_weights(self) -> Weights:
        """The live weights of the client whose turn it is (not a copy)."""
        return self.loop.flat.collect()

    def shared_model(self, client: int) -> Weights:
        """What a client uses of the shared models: ``sum_k P_ik w_k``."""
        return self.federation.shared_model(client)

    def client_model(self, client: int) -> Weights:
        """What a client uses: its mixture of the shared models with its personal layers, or what the strategy says.

        The latter two where this rank hosts it.
        """
        return self.loop.client_model(client)

    @property
    def evaluated_model(self) -> str:
        """What clients are evaluated with, in words: the collaboration's, the strategy's, the callbacks'."""
        model = self.strategy.evaluated(self.federation.collaboration.describe_use())
        for hook in self.hooks.of("evaluated"):
            model = hook(model)
        return model

    def client_store(self, name: str) -> dict[int, Any]:
        """What hosted clients keep for a callback: client -> plain values and tensors, saved in checkpoints."""
        return self.federation.client_store(name)

    def keep_local(self, patterns: Sequence[str]) -> None:
        """Never average the parameters and buffers that match these names; each client keeps its own."""
        self.federation.keep_local(self.loop.flat, patterns)

    def client_batches(self, client: int, split: Split) -> ClientBatches | None:
        """The batches of a hosted client, as callbacks (label noise) left them."""
        return self.batch_factory.batches(client, split)

    def training_loss(self, client: int, weights: Weights, num_batches: int, purpose: str) -> float:
        """The training loss of a hosted client at some weights, over its first batches; nothing is trained."""
        return self.loop.training_loss(client, weights, num_batches, purpose)

    def predict_client(self, client: int, split: Split = "test") -> list[Any]:
        """``predict_step``'s outputs for one hosted client, inside a run."""
        weights = self.client_model(client)
        with self.around_evaluation(client, weights):
            return self.loop.predict(client, weights, split)

    @contextmanager
    def around_evaluation(self, client: int, weights: Weights) -> Iterator[None]:
        """What callbacks put around a hosted client's evaluation with some weights."""
        with ExitStack() as stack:
            for hook in self.hooks.of("around_evaluation"):
                stack.enter_context(hook(client, weights))
            yield

    def target_statistics(self) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation [T] of the training targets over all clients' samples, NaN entries left out.

        Only sums leave a client.
        """
        return target_statistics(self.batch_factory, self.processes, self.seed)

    def descriptor_statistics(self) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation [F] of the ``descriptors`` of all clients' training molecules.

        Only sums leave a client.
        """
        return descriptor_statistics(self.batch_factory, self.processes, self.seed)

    def target_summaries(self, summarize: Callable[[Tensor], Tensor], split: Split = "train") -> Tensor:
        """Every client's ``summarize(targets [n, T])`` of a split, stacked [N, ...]; on every rank.

        Counts, sums and ranges are what it is for: they leave the client.
        """
        return target_summaries(self.batch_factory, self.processes, self.seed, summarize, split)

    def on_hosts(self, clients: Collection[int], compute: Callable[[int], T], problem: str) -> dict[int, T]:
        """What each client's rank computes for it, on all ranks; to be called on every rank.

        Args:
            clients: any, on whatever rank.
            compute: of a hosted client; plain values or CPU tensors. It may not wait for other ranks.
            problem: what to say before an error, which is raised on all ranks.

        Returns:
            client -> value, in ascending order.
        """
        return compute_on_hosts(self.processes, clients, compute, problem)

    def generator(self, *path: int | str) -> torch.Generator:
        """Randomness for one purpose in the current round, the same on every rank."""
        return generator(self.seed, self.federation.current_round, *path)

    # -- the run -------------------------------------------------------------------------------------------------

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
        """All that a run needs to go on: plain values and tensors. To be called on every rank."""
        return {
            "lightning_fl_version": __version__,
            "module": class_path(self.module),
            "seed": self.seed,
            "client_names": self.client_names,
            "recipe": dict(self.identity),
            "hyper_parameters": plain_hyper_parameters(self.module),
            "data": dict(self.data_digests),
            **self.federation.state_dict(self.processes),
            "layout": self.loop.flat.layout() if self.loop.flat.late_names else [],
            "callbacks": {name: callback.state_dict() for name, callback in self.named_callbacks()},
        }

    def load_state_dict(self, state: dict[str, Any], *, weights_only: bool = False) -> None:
        """Take up a state; ``weights_only`` takes the models and the collaboration, for an evaluation."""
        with _refusing("its models and clients", state):
            self.federation.load_state_dict(state, self.loop.flat, self.processes, weights_only=weights_only)
        if weights_only:
            return
        for name, callback in self.named_callbacks():
            if name in state["callbacks"]:
                with _refusing(name, state):
                    callback.load_state_dict(state["callbacks"][name])

    def named_callbacks(self) -> list[tuple[str, Any]]:
        """Each callback with the name of its state: its class's, numbered where there are several."""
        seen: Counter[str] = Counter()
        named = []
        for callback in self.callbacks:
            name = type(callback).__name__
            seen[name] += 1
            named.append((name if seen[name] == 1 else f"{name}-{seen[name]}", callback))
        return named

    # -- what is logged ------------------------------------------------------------------------------------------

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
    def loggers(self) -> list[Any]:
        """The loggers; they write on rank zero only."""
        return self.run_log.loggers

    @property
    def log_dir(self) -> str:
        """The run's folder; from the working directory, where ``default_root_dir`` is given so."""
        directory = self.run_log.directory
        return os.fspath(directory if os.path.isabs(self.default_root_dir) else near(directory))

    @property
    def logs_clients(self) -> bool:
        """Whether every client has curves of its own."""
        return self.num_clients <= _MANY_CLIENTS if self.log_per_client is None else self.log_per_client

    # -- setting up ----------------------------------------------------------------------------------------------

    def launch(self) -> None:
        """Start the processes (once). ``fit`` and the others do it; call it earlier to share the work before them."""
        launcher = self.strategy.launcher
        if isinstance(launcher, ForkLauncher) and launcher.ended:
            raise ConfigurationError(
                "this trainer's other processes ended with lightning_fl.federate: make another trainer for a further"
                " run. What it measured and its models are there."
            )
        if not self._launched:
            if self.num_threads is not None:  # beside a GPU too, where sums over clients are the host's
                os.environ["OMP_NUM_THREADS"] = str(self.num_threads)  # Fabric's launcher leaves a set value alone
                torch.set_num_threads(self.num_threads)
            end_with_this_process(getattr(launcher, "procs", []))
            self.fabric.launch()
            self._launched = True
        elif not self.strategy.connected:  # a run that failed took leave of the other ranks
            self.strategy.setup_environment()

    def begin(self, federation: Federation) -> None:
        """A run begins: what it knows is a federation's state; module, data and the engine's parts follow."""
        self.federation = federation
        self.round = Round()
        self.processes = Processes(self.strategy, self.fabric.device)
        for part in _PARTS:
            self.__dict__.pop(part, None)
        self.stacked = None
        self.resumes_fit, self.should_stop, self.ckpt_path = False, False, None
        self.identity, self.data_digests, self.differs = {}, {}, {}
