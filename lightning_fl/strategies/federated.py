"""Base of all federated strategies: Fabric's distributed strategy, synchronised once a round."""

import atexit
import inspect
import os
import sys
import threading
import time
from collections.abc import Sequence
from datetime import timedelta
from math import isfinite
from typing import Annotated, Any, Literal

import torch
import torch.distributed
from annotated_types import Gt, Lt, doc
from lightning.fabric.accelerators import Accelerator, CPUAccelerator
from lightning.fabric.plugins.environments import ClusterEnvironment, LightningEnvironment
from lightning.fabric.strategies import STRATEGY_REGISTRY
from lightning.fabric.strategies.registry import _StrategyRegistry
from lightning.fabric.utilities.rank_zero import rank_zero_warn
from torch import nn
from torch.distributed import GroupMember

from lightning_fl.core.errors import ConfigurationError, TrainingError
from lightning_fl.core.lightning_private import destroy_process_group
from lightning_fl.core.validation import checked
from lightning_fl.engine.interrupt import end_process
from lightning_fl.engine.learner import Learner, ModelUpdate
from lightning_fl.engine.profile import WAITING
from lightning_fl.engine.weights.flat import FlatModule
from lightning_fl.engine.weights.local_parameters import averaged_spans
from lightning_fl.engine.weights.weighted_sum import WeightedSum
from lightning_fl.strategies.fork_launcher import ForkLauncher, ScriptLauncher
from lightning_fl.strategies.peers import LOOPBACK, RankAddress, connect_ranks
from lightning_fl.strategies.rank_exchange import RankExchange, backends_of, default_backend, shared_device


class FederatedStrategy(Learner, RankExchange):
    """Fabric's multi-process strategy, synchronised between clients once a round.

    Process group, launcher, devices, precision and checkpoint IO are Fabric's. Gradients are never synchronised;
    clients are placed on ranks and averaged once a round, to the same bits on any number of devices of one kind.

    An algorithm is a subclass with a :attr:`name` that overrides the steps of
    :class:`~lightning_fl.engine.learner.Learner` that it changes, such as :meth:`correct_gradient_` on the client or
    :meth:`aggregate` on the server.

    In a custom training loop, with one client per process::

        import lightning_fl.strategies  # registers the names with Fabric

        fabric = Fabric(strategy="fedavg", devices=2)
        fabric.launch()
        model, optimizer = fabric.setup(model, optimizer)
        for _ in range(rounds):
            ...                                              # local steps, never synchronised
            fabric.strategy.average(model, num_samples=len(dataset))

    Args:
        start_method: how Fabric starts the other processes: "popen" runs the script again, the others a function.
        process_group_backend: "gloo", "nccl", ...; ``None`` chooses by device: Gloo between CPUs, and between processes
            that share a GPU; else "cpu:gloo,cuda:nccl", weights by NCCL and all else by Gloo.
        timeout: longest wait of ranks for each other, at the start and in every exchange: seconds or a ``timedelta``.
        **unknown: refused.

    Raises:
        ConfigurationError: there is no such argument, or ``timeout`` is not above 0.
    """

    #: Name under which the class registers with Fabric when it is defined, in lower case.
    name: str | None = None
    # Fabric sets these before any method below runs.
    accelerator: Accelerator
    cluster_environment: ClusterEnvironment
    parallel_devices: list[torch.device]
    _process_group_backend: str

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Register a class that has a name, which must be in lower case and free."""
        super().__init_subclass__(**kwargs)
        if cls.__dict__.get("name") is not None:
            cls.register_strategies(STRATEGY_REGISTRY)

    def __init__(
        self,
        *,
        start_method: Literal["popen", "spawn", "fork", "forkserver"] = "popen",
        process_group_backend: str | None = None,
        timeout: float | timedelta = 1800.0,
        **unknown: Any,
    ) -> None:
        # Not passed to DDPStrategy, whose options a recipe would otherwise fill in with their defaults.
        if unknown:
            names = ", ".join(map(repr, unknown))
            raise ConfigurationError(f"{type(self).__name__} has no argument {names}: correct or omit it.")
        super().__init__(start_method=start_method, process_group_backend=process_group_backend)
        self._backward_sync_control = None
        self.timeout = timeout
        self._launched = False

    @classmethod
    def register_strategies(cls, strategy_registry: _StrategyRegistry) -> None:
        """Register ``name`` and, where the constructor takes a ``start_method``, ``name_spawn`` and ``name_fork``."""
        name = cls.name
        if name is None or name != name.lower():
            raise ConfigurationError(f"{cls.__name__}.name={name!r}: must be a name in lower case.")
        present = strategy_registry[name]["strategy"] if name in strategy_registry else cls
        if (present.__module__, present.__qualname__) != (cls.__module__, cls.__qualname__):
            owner = f"{present.__module__}.{present.__qualname__}"
            raise ConfigurationError(f"{cls.__name__}.name={name!r}: taken by {owner}; choose another name.")
        parameters = inspect.signature(cls.__init__).parameters
        takes = "start_method" in parameters or any(one.kind is one.VAR_KEYWORD for one in parameters.values())
        methods = {"": "popen", "_spawn": "spawn", "_fork": "fork"} if takes else {"": "popen"}
        for suffix, start_method in methods.items():
            strategy_registry.register(
                name + suffix,
                cls,
                description=f"{cls.__name__}: {start_method}",
                override=True,  # a class that is defined again, as in a notebook
                **({"start_method": start_method} if takes else {}),
            )

    @property
    def distributed_sampler_kwargs(self) -> None:  # type: ignore[override]
        """``None``: a client's data belong to one rank, so Fabric must not shard its loaders."""
        return None

    def setup_module(self, module: nn.Module) -> nn.Module:  # type: ignore[override]
        """Return the module itself: gradients are local."""
        return module

    def _configure_launcher(self) -> None:
        """Leave the environment alone if there is only one process."""
        if self.num_nodes * self.num_processes > 1:
            super()._configure_launcher()
            if self._start_method == "popen":
                self._launcher = ScriptLauncher(self.cluster_environment, self.num_processes, self.num_nodes)

    @property
    def can_fork(self) -> bool:
        """Whether processes may be forked: on the CPUs of one Linux machine, without an external launcher."""
        return (
            sys.platform == "linux"
            and self.root_device.type == "cpu"
            and self.num_nodes == 1
            and self._start_method in ("popen", "fork")
            and isinstance(self.cluster_environment, ClusterEnvironment)
            and not self.cluster_environment.creates_processes_externally
        )

    def fork_processes(self, num_processes: int) -> None:
        """Run on several CPU processes, forked when Fabric launches; call it before that.

        Each continues the script from there, as if it had been started as one of several devices, but has everything
        imported and instantiated already and shares its memory. No other thread may run at that time.

        Raises:
            ConfigurationError: processes cannot be forked here (:attr:`can_fork`).
        """
        if not self.can_fork:
            where = "on the CPUs of one Linux machine, without a launcher such as torchrun"
            raise ConfigurationError(f"processes can be forked only {where}: set devices={num_processes} instead.")
        self.parallel_devices = CPUAccelerator.get_parallel_devices(num_processes)
        self._launcher = ForkLauncher(self.cluster_environment, num_processes, 1) if num_processes > 1 else None

    @property
    def timeout(self) -> timedelta:
        """Longest wait of ranks for each other, at the start and in every exchange; assigned in seconds as well."""
        return self._timeout

    @timeout.setter
    def timeout(self, value: float | timedelta) -> None:
        self._set_timeout(timeout=value.total_seconds() if isinstance(value, timedelta) else value)

    @checked
    def _set_timeout(self, *, timeout: Annotated[float, Gt(0), Lt(10**9), doc("seconds")]) -> None:
        self._timeout = timedelta(seconds=timeout)

    def limit_processes(self, most: int, reason: str) -> None:
        """Lower the number of processes on this machine, with a warning of the reason, before Fabric launches."""
        environment, number = self.cluster_environment, self.num_processes
        if self.num_nodes > 1 or not isinstance(environment, LightningEnvironment) or self._launched:
            return
        if environment.creates_processes_externally:  # by this package elsewhere, which has warned, or by hand
            most = int(os.environ.get("WORLD_SIZE", number))
        elif most < number:
            shared = shared_device(self.parallel_devices) is not None
            what = f"{number} processes, several to a GPU, are" if shared else f"trainer.devices={number} is"
            rank_zero_warn(f"{what} lowered to {most}: {reason}.")
        if most < number:
            forks = isinstance(self._launcher, ForkLauncher)
            self.parallel_devices, self._launcher = self.parallel_devices[:most], None
            if not forks:
                self._configure_launcher()
            elif most > 1:
                self._launcher = ForkLauncher(environment, most, 1)
            self._set_world_ranks()

    def setup_environment(self) -> None:
        """Start the process group if there are several processes."""
        self._launched = True
        if self.num_nodes * self.num_processes > 1:
            super().setup_environment()
        else:
            self.accelerator.setup_device(self.root_device)

    def _get_process_group_backend(self) -> str:
        return self._process_group_backend or default_backend(self.parallel_devices)

    def _setup_distributed(self) -> None:
        """Meet the other ranks and start the process group."""
        self._set_world_ranks()
        self._process_group_backend = self._get_process_group_backend()
        environment = self.cluster_environment
        if torch.distributed.is_initialized():  # by the script
            return
        os.environ["MASTER_ADDR"] = environment.main_address
        os.environ["MASTER_PORT"] = str(environment.main_port)
        served = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        own = RankAddress(
            address=environment.main_address if served or self.num_nodes > 1 else LOOPBACK,
            port=environment.main_port,
            rank=self.global_rank,
            world_size=self.world_size,
            num_nodes=self.num_nodes,
            served=served,
        )
        # While the process that serves the store is stopped, torch's calls of it do not return.
        limit = self.timeout.total_seconds() + 10
        late = threading.Timer(limit, end_process, (2, f"error: rank 0 at {own} does not answer"))
        late.daemon = True
        late.start()
        try:
            store, self._peers = connect_ranks(own, self.timeout, getattr(self._launcher, "procs", ()))
            # Registered before the group's own end, so that it runs after it: a rank leaves once its group has ended.
            atexit.register(self._peers.leave)
            with self._together():
                torch.distributed.init_process_group(
                    self._process_group_backend,
                    store=store,
                    rank=self.global_rank,
                    world_size=self.world_size,
                    timeout=self.timeout,
                    device_id=self.root_device if self._connects_gpus else None,
                )
        finally:
            late.cancel()
        # Fabric does this for NCCL alone; a Gloo group left to the interpreter's exit can abort the process.
        atexit.unregister(destroy_process_group)
        atexit.register(destroy_process_group)

    @property
    def _connects_gpus(self) -> bool:
        """Whether the backend connects GPUs with each other, and so must know them when the group starts."""
        return backends_of(self._process_group_backend).get(self.root_device.type, "gloo") not in ("gloo", "mpi")

    def disconnect(self, error: BaseException | None = None) -> None:
        """Leave the other ranks, which end with this rank's error, if there is one; a later run meets them again."""
        peers, self._peers = self._peers, None
        if peers is None:
            return
        if error is not None:
            peers.publish_error(error)
        GroupMember.WORLD, self._group = self._group or GroupMember.WORLD, None
        if GroupMember.WORLD is not None:
            if self._connects_gpus:  # collectives that this rank's GPU waits in would last until the time-out
                GroupMember.WORLD._get_backend(self.root_device).abort()
            torch.distributed.destroy_process_group()
        peers.leave()
        atexit.unregister(peers.leave)

    def wait_for_all(self) -> None:
        """Wait for all ranks without a time limit, for a download; the error of another rank ends it."""
        peers = self._peers
        if peers is None:
            self.barrier()
            return
        peers.enter_barrier()
        with self.profiler.profile(WAITING):
            while peers.missing_ranks():
                time.sleep(0.002)

    def place_clients(
        self, num_clients: int, sizes: Sequence[int] | None = None, pinned: bool = False, block: int = 1
    ) -> list[int]:
        """Assign every client to a rank.

        Args:
            num_clients: N.
            sizes: training samples per client if known, to balance the ranks (largest first, to the rank with the
                fewest samples); ``None`` assigns clients in turn.
            pinned: put client i on rank ``i % world_size``, whatever its size: one silo per rank.
            block: number of consecutive clients that share a rank; the last block may have fewer.

        Raises:
            ConfigurationError: there is not one size per client, or blocks of several clients are pinned.
        """
        if pinned and block > 1:
            what = f"trainer.stacked_clients={block}: silos are pinned to processes one by one"
            raise ConfigurationError(f"{what}. Set trainer.stacked_clients=1.")
        if pinned or sizes is None:
            return [client // block % self.world_size for client in range(num_clients)]
        if len(sizes) != num_clients:
            raise ConfigurationError(f"{len(sizes)} client sizes for {num_clients} clients: give one each, or None.")
        if self.world_size == 1:
            return [0] * num_clients
        of_blocks = [sum(sizes[begin : begin + block]) for begin in range(0, num_clients, block)]
        load, ranks = [0] * self.world_size, [0] * len(of_blocks)
        for place in sorted(range(len(of_blocks)), key=lambda i: -of_blocks[i]):
            ranks[place] = load.index(min(load))
            load[ranks[place]] += of_blocks[place]
        return [ranks[client // block] for client in range(num_clients)]

    def average(self, module: nn.Module, num_samples: float = 1.0) -> None:
        """Replace the module's weights, on every rank, with the average over ranks weighted by ``num_samples``.

        Every rank must call it; an error on one rank is raised on all. For FedAvg: other strategies need a trainer.

        Raises:
            ConfigurationError: ``num_samples`` is negative or not finite on a rank, or zero on all ranks.
            TrainingError: a weight on a rank is not finite.
        """
        counts = self.exchange({self.global_rank: float(num_samples)})
        for rank, count in counts.items():
            if not (isfinite(count) and count >= 0):
                raise ConfigurationError(f"num_samples={count} on rank {rank}: must be finite and at least 0.")
        if not sum(counts.values()):
            raise ConfigurationError("num_samples is 0 on every rank: give at least one rank samples.")
        flat = FlatModule(module)
        reference = flat.weights.clone()
        if self.world_size > 1:
            for vector in reference.vectors.values():
                self.broadcast_bytes_(vector, 0)
        total, problem = WeightedSum(reference), None
        try:
            total.add_(flat.weights, num_samples / sum(counts.values()))
        except TrainingError as error:
            problem = str(error)
        for rank, text in self.exchange({self.global_rank: problem}).items():
            if text is not None:
                raise TrainingError(f"rank {rank}: {text}")
        if self.world_size > 1:
            total.reduce_(self)
        average, spans = total.value(1.0), averaged_spans(flat, None)
        update = ModelUpdate(0, flat.weights, average, num_clients=self.world_size, spans=spans)
        flat.load(self.aggregate(update))
