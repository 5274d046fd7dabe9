"""The base of all federated strategies: Fabric's distributed strategy, synchronising once a round between clients."""

import atexit
import inspect
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from math import isfinite
from typing import Any, Literal, TypeVar

import numpy as np
import torch
import torch.distributed
from lightning.fabric.accelerators import CPUAccelerator
from lightning.fabric.plugins.environments import LightningEnvironment
from lightning.fabric.strategies import STRATEGY_REGISTRY, DDPStrategy
from lightning.fabric.strategies.registry import _StrategyRegistry
from lightning.fabric.utilities.distributed import _destroy_dist_connection
from lightning.fabric.utilities.rank_zero import rank_zero_warn
from lightning.pytorch.profilers import PassThroughProfiler, Profiler
from torch import Tensor, nn
from torch.distributed import GroupMember, ProcessGroup, Store

from lightning_fl.core.errors import ConfigurationError, FederatedError, TrainingError
from lightning_fl.core.validation import check_numbers
from lightning_fl.core.wire_format import MessageError, decode, encode
from lightning_fl.engine.learner import Learner, ModelUpdate
from lightning_fl.engine.profile import WAITING
from lightning_fl.engine.weights.flat import FlatModule
from lightning_fl.engine.weights.local_parameters import averaged_spans
from lightning_fl.engine.weights.weighted_sum import WeightedSum
from lightning_fl.strategies.backends import backends_of, default_backend, shared_device
from lightning_fl.strategies.fork_launcher import ForkLauncher
from lightning_fl.strategies.peers import Peers
from lightning_fl.strategies.rendezvous import LOOPBACK, Place, meet

__all__ = ["FederatedStrategy"]

T = TypeVar("T")

#: Entries, over all ranks, that are gathered and added up by everybody.
_GATHERED = 1 << 18


#: Bytes of a message that go with its length, and of all ranks' messages that are gathered at once.
_FIRST_BYTES = 1 << 12
_AT_ONCE = 1 << 26
_LENGTH_BYTES = 8


class FederatedStrategy(Learner, DDPStrategy):
    """Fabric's multi-process strategy, except for what it synchronises and when.

    Process group, launcher, devices, precision and checkpoint IO are Fabric's. Gradients are never synchronised;
    clients are placed on ranks and their weights averaged once a round, with the same bits on any number of processes
    of the same kind of device.

    An algorithm is a subclass that gives itself a :attr:`name` and overrides the steps of
    :class:`~lightning_fl.engine.learner.Learner` that it changes: :meth:`correct_gradient_` on the client, say, or
    :meth:`aggregate` on the server.

    In a loop of one's own, with one client per process::

        import lightning_fl.strategies  # registers the names with Fabric

        fabric = Fabric(strategy="fedavg", devices=2)
        fabric.launch()
        model, optimizer = fabric.setup(model, optimizer)
        for _ in range(rounds):
            ...                                              # local steps, never synchronised
            fabric.strategy.average(model, num_samples=len(dataset))

    Args:
        start_method: how Fabric starts the other processes: "popen" runs the script again, "spawn" and "fork" start
            the function that was launched.
        process_group_backend: "gloo", "nccl", ...; ``None`` chooses by device: Gloo between CPUs, and between processes
            that share a GPU; else "cpu:gloo,cuda:nccl", weights by NCCL and all else by Gloo.
        timeout: how long ranks wait for each other, at the start and in every exchange: seconds or a ``timedelta``.
        **unknown: refused.

    Raises:
        ConfigurationError: there is no such argument.
    """

    #: The name under which the strategy registers with Fabric as soon as it is defined, lower case.
    name: str | None = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Register a class that gives itself a name.

        Raises:
            ConfigurationError: the name is not in lower case, or another strategy has it.
        """
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
        # Not handed on to DDPStrategy, whose options a recipe would otherwise fill in with their defaults.
        if unknown:
            raise ConfigurationError(
                f"{type(self).__name__} has no argument {', '.join(map(repr, unknown))}: gradients are not"
                " synchronised, so options of DistributedDataParallel have no meaning; leave it out or correct its"
                " name."
            )
        super().__init__(start_method=start_method, process_group_backend=process_group_backend)
        self._backward_sync_control = None
        self.timeout = timeout
        self.profiler: Profiler = PassThroughProfiler()
        self._peers: Peers | None = None
        self._store: Store | None = None
        self._group: ProcessGroup | None = None
        self._barriers = 0
        self._launched = False

    @classmethod
    def register_strategies(cls, strategy_registry: _StrategyRegistry) -> None:
        """Register ``name`` and, where the constructor takes a ``start_method``, ``name_spawn`` and ``name_fork``."""
        name = cls.name
        if name is None or name != name.lower():
            raise ConfigurationError(f"{cls.__name__}.name={name!r}: give the strategy a name in lower case.")
        present = strategy_registry[name]["strategy"] if name in strategy_registry else cls
        if (present.__module__, present.__qualname__) != (cls.__module__, cls.__qualname__):
            raise ConfigurationError(
                f"{cls.__name__}.name={name!r}: {present.__module__}.{present.__qualname__} has this name; choose"
                " another one."
            )
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

    # -- Fabric's side: nothing is synchronised inside a client's steps -------------------------------------------

    @property
    def distributed_sampler_kwargs(self) -> None:  # type: ignore[override]
        """A client's data belong to one rank: Fabric must not shard its loaders."""
        return None

    def setup_module(self, module: nn.Module) -> nn.Module:  # type: ignore[override]
        """The module itself: gradients are local."""
        return module

    def _configure_launcher(self) -> None:
        """One process starts no others, and leaves the environment that other processes read alone."""
        if self.num_nodes * self.num_processes > 1:
            super()._configure_launcher()

    @property
    def can_fork(self) -> bool:
        """Whether further processes may be forks of this one: on one CPU machine with Linux, started by nobody else."""
        return (
            sys.platform == "linux"
            and self.root_device.type == "cpu"
            and self.num_nodes == 1
            and self._start_method in ("popen", "fork")
            and self.cluster_environment is not None
            and not self.cluster_environment.creates_processes_externally
        )

    def fork_processes(self, num_processes: int) -> None:
        """Run on so many CPU processes, which are forked when Fabric launches; to be called before that.

        Each goes on from there with the script, as if it had been started as one of several devices, but has imported
        and instantiated everything already and shares its memory. No other thread may be at work by then.

        Args:
            num_processes: with this one.

        Raises:
            ConfigurationError: processes cannot be forked here (:attr:`can_fork`).
        """
        if not self.can_fork:
            raise ConfigurationError(
                "processes are forked on Linux, on the CPUs of one machine, where no launcher such as torchrun starts"
                f" them: set devices={num_processes} instead."
            )
        assert self.cluster_environment is not None, "Fabric gives the strategy one before"
        self.parallel_devices = CPUAccelerator.get_parallel_devices(num_processes)
        self._launcher = ForkLauncher(self.cluster_environment, num_processes) if num_processes > 1 else None

    def share_devices(self, devices: Sequence[torch.device], processes_per_device: int) -> None:
        """Have several processes on each device of this machine; to be called before Fabric is made.

        Args:
            devices: each once.
            processes_per_device: on each of them.
        """
        self.parallel_devices = [*devices] * processes_per_device

    # -- who else is there ----------------------------------------------------------------------------------------

    @property
    def timeout(self) -> timedelta:
        """How long ranks wait for each other, at the start and in every exchange. It is assigned in seconds as well.

        Raises:
            ConfigurationError: what is assigned is not positive.
        """
        assert self._timeout is not None
        return self._timeout

    @timeout.setter
    def timeout(self, value: float | timedelta) -> None:
        seconds = value.total_seconds() if isinstance(value, timedelta) else value
        check_numbers(self, timeout=seconds, above=0, below=10**9, mend=" seconds")
        self._timeout = timedelta(seconds=seconds)

    @property
    def connected(self) -> bool:
        """Whether the ranks can speak with each other; one alone can."""
        return self.world_size == 1 or self._group is not None or torch.distributed.is_initialized()

    @contextmanager
    def hidden_group(self) -> Iterator[None]:
        """Hide the process group during a run, so that modules, data and callbacks see a single process.

        Collectives in user code would mix clients, and wait for ranks that take another number of steps. Exchanges
        between ranks go through this object, which restores the group for their duration (:meth:`_together`).
        """
        self._group, GroupMember.WORLD = GroupMember.WORLD, None
        try:
            yield
        finally:
            if self._group is not None:
                GroupMember.WORLD, self._group = self._group, None

    @property
    def rank_names(self) -> list[str]:
        """Every rank and its machine, as errors name them."""
        if self._peers is None:
            return [f"rank {rank}" for rank in range(self.world_size)]
        return [self._peers.name(rank) for rank in range(self.world_size)]

    def limit_processes(self, most: int, reason: str) -> None:
        """Start no more processes on this machine than are of use; to be called before Fabric launches.

        Args:
            most: processes.
            reason: to be said, where there would be more.
        """
        environment, number = self.cluster_environment, self.num_processes
        if self.num_nodes > 1 or not isinstance(environment, LightningEnvironment) or self._launched:
            return
        if environment.creates_processes_externally:  # by this package elsewhere, which has said so, or by hand
            most = int(os.environ.get("WORLD_SIZE", number))
        elif most < number:
            assert self.parallel_devices is not None
            shared = shared_device(self.parallel_devices) is not None
            what = f"{number} processes, several to a GPU, are" if shared else f"trainer.devices={number} is"
            rank_zero_warn(f"{what} lowered to {most}: {reason}.")
        if most < number:
            assert self.parallel_devices is not None
            forks = isinstance(self._launcher, ForkLauncher)
            self.parallel_devices, self._launcher = self.parallel_devices[:most], None
            if forks and most > 1:
                self._launcher = ForkLauncher(environment, most)
            elif not forks:
                self._configure_launcher()
            self._set_world_ranks()

    def setup_environment(self) -> None:
        """Start the process group where there is more than one process."""
        self._launched = True
        if self.num_nodes * self.num_processes > 1:
            super().setup_environment()
        else:
            assert self.accelerator is not None
            self.accelerator.setup_device(self.root_device)

    def _get_process_group_backend(self) -> str:
        assert self.parallel_devices is not None
        return self._process_group_backend or default_backend(self.parallel_devices)

    def _setup_distributed(self) -> None:
        """Wait for the other ranks, saying for whom, and start the process group."""
        self._set_world_ranks()
        self._process_group_backend = self._get_process_group_backend()
        environment = self.cluster_environment
        if torch.distributed.is_initialized():  # by the script
            return
        assert environment is not None
        os.environ["MASTER_ADDR"] = environment.main_address
        os.environ["MASTER_PORT"] = str(environment.main_port)
        served = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        place = Place(
            address=environment.main_address if served or self.num_nodes > 1 else LOOPBACK,
            port=environment.main_port,
            rank=self.global_rank,
            world_size=self.world_size,
            num_nodes=self.num_nodes,
            local_rank=self.local_rank,
            served=served,
        )
        self._store, self._peers = meet(place, self.timeout)
        self._barriers = 0
        # Registered before the group's own end, so that it comes after it: a rank is there until its group has ended.
        atexit.register(self._peers.leave)
        with self._together():
            torch.distributed.init_process_group(
                self._process_group_backend,
                store=self._store,
                rank=self.global_rank,
                world_size=self.world_size,
                timeout=self.timeout,
                device_id=self.root_device if self._connects_gpus else None,
            )
        if self._connects_gpus:
            self._peers.abort = self._abort
        # Fabric does this for NCCL alone; a Gloo group left to the interpreter's exit can abort the process.
        atexit.unregister(_destroy_dist_connection)
        atexit.register(_destroy_dist_connection)

    @property
    def _connects_gpus(self) -> bool:
        """Whether GPUs are connected with each other, and so are to be known when the group starts."""
        assert self._process_group_backend is not None
        return backends_of(self._process_group_backend).get(self.root_device.type, "gloo") not in ("gloo", "mpi")

    def _abort(self) -> None:
        """End what this rank's GPU waits for of others, which it would do until the time-out."""
        group = self._group or GroupMember.WORLD
        if group is not None:
            group._get_backend(self.root_device).abort()

    @contextmanager
    def _together(self) -> Iterator[None]:
        """Restore the process group around an exchange of all ranks; if it breaks, say why, as far as that is known."""
        peers, hidden, seen = self._peers, self._group, GroupMember.WORLD
        try:
            if hidden is not None:
                GroupMember.WORLD = hidden
            if peers is not None:
                peers.waits = True
            with self.profiler.profile(WAITING):
                yield
        except (RuntimeError, ValueError) as error:
            if peers is None or isinstance(error, FederatedError):
                raise
            raise peers.reason(error) from None
        finally:
            if hidden is not None:
                GroupMember.WORLD = seen
            if peers is not None:
                peers.waits = False

    def fail(self, error: BaseException) -> None:
        """Tell all other ranks what ends this one, and leave them: whoever waits for this rank gets the error.

        A later run of this process meets them anew.
        """
        peers, self._peers = self._peers, None
        if peers is None:
            return
        peers.end_work()
        peers.tell(error)
        GroupMember.WORLD, self._group = self._group or GroupMember.WORLD, None
        if torch.distributed.is_initialized():
            if self._connects_gpus:
                self._abort()
            torch.distributed.destroy_process_group()
        peers.leave()
        atexit.unregister(peers.leave)

    def begin_work(self) -> None:
        """This thread computes from now on: an error of another rank ends that too, not only what ranks do together."""
        if self._peers is not None:
            self._peers.begin_work()

    def end_work(self) -> None:
        """This thread has computed what it had to: another rank's error leaves it alone."""
        if self._peers is not None:
            self._peers.end_work()

    def wait_for_all(self) -> None:
        """A barrier for what may take hours on some rank: a download, say. It has no time limit.

        Raises:
            FederatedError: another rank failed meanwhile.
        """
        if self._peers is None or self._store is None:
            return self.barrier()
        self._barriers += 1
        key, pause = f"barrier/{self._barriers}", 0.001
        self._store.add(key, 1)
        while True:
            if self._peers.error is not None:
                raise self._peers.error
            with self._together():
                if self._store.add(key, 0) >= self.world_size:
                    return None
            time.sleep(pause)
            pause = min(2 * pause, 0.2)

    # -- placing clients on ranks --------------------------------------------------------------------------------

    def place_clients(
        self, num_clients: int, sizes: Sequence[int] | None = None, pinned: bool = False, block: int = 1
    ) -> list[int]:
        """The rank of every client.

        Args:
            num_clients: N.
            sizes: training samples per client where known, to balance the ranks (largest first, to the rank with the
                fewest samples); ``None`` deals the clients out in turn.
            pinned: client i lives on rank ``i % world_size``, whatever its size: one silo per rank.
            block: so many consecutive clients (the last block may have fewer) share a rank.

        Raises:
            ConfigurationError: there is not one size per client, or blocks of several clients are pinned.
        """
        if pinned and block > 1:
            raise ConfigurationError(
                f"trainer.stacked_clients={block}: silos are pinned to processes one by one, so their clients cannot be"
                " trained together. Set trainer.stacked_clients=1."
            )
        if pinned or sizes is None:
            return [client // block % self.world_size for client in range(num_clients)]
        if len(sizes) != num_clients:
            raise ConfigurationError(f"{len(sizes)} client sizes for {num_clients} clients: give one each, or None.")
        of_blocks = [sum(sizes[begin : begin + block]) for begin in range(0, num_clients, block)]
        load = [0] * self.world_size
        ranks = [0] * len(of_blocks)
        for place in sorted(range(len(of_blocks)), key=lambda i: (-of_blocks[i], i)):
            rank = min(range(self.world_size), key=lambda r: (load[r], r))
            ranks[place] = rank
            load[rank] += of_blocks[place]
        return [ranks[client // block] for client in range(num_clients)]

    # -- what ranks tell each other: the only doors, and nothing that comes in by them is unpickled ---------------

    def exchange(self, of_hosted_clients: Mapping[int, T]) -> dict[int, T]:
        """What every rank knows of the clients it hosts, brought together on all ranks in the order of clients.

        Values are plain numbers, strings, lists, dicts or CPU tensors: small things, never samples.

        Raises:
            ConfigurationError: a value is of another kind.
            TrainingError: another rank's message cannot be read.
        """
        merged = dict(of_hosted_clients)
        if self.world_size > 1:
            messages, own = self._gathered(_message(merged)), self.global_rank
            parts = [merged if rank == own else self._read(sent, rank) for rank, sent in enumerate(messages)]
            for rank, part in enumerate(parts):
                if not isinstance(part, dict) or not all(isinstance(client, int) for client in part):
                    raise TrainingError(f"{self.rank_names[rank]} sent something else than values of clients.")
            merged = {client: value for part in parts for client, value in part.items()}
        return dict(sorted(merged.items()))

    def broadcast(self, obj: T, src: int = 0) -> T:
        """A value of one rank's on all ranks: plain values and CPU tensors, as in :meth:`exchange`.

        Raises:
            ConfigurationError: the value is of another kind.
            TrainingError: the message cannot be read.
        """
        if self.world_size == 1:
            return obj
        own = self.global_rank == src
        message = _message(obj) if own else b""
        length = torch.tensor([len(message)], device=self.message_device)
        with self._together():
            torch.distributed.broadcast(length, src=src)
        count = int(length.item())
        self._check_length(count, src)
        content = self._broadcast_message(message, count, src)
        return obj if own else self._read(content, src)

    def all_reduce(self, tensor: Tensor, group: Any | None = None, reduce_op: Any = "mean") -> Tensor:
        """Fabric's, without the barrier before it: a sum or maximum waits for all ranks by itself.

        Small tensors are gathered by Gloo, which takes one message where its sum takes several.
        """
        with self._together():
            if not torch.distributed.is_initialized() or not isinstance(tensor, Tensor):
                return super().all_reduce(tensor, group, reduce_op)
            gloo = backends_of(group).get(tensor.device.type) == "gloo"
            mean = gloo and reduce_op in ("mean", "avg")  # which Gloo has no operation for
            if reduce_op not in ("sum", "max") and not mean:
                return super().all_reduce(tensor, group, reduce_op)
            size = torch.distributed.get_world_size(group)
            if gloo and not mean and size * tensor.numel() <= _GATHERED:
                gathered = [torch.empty_like(tensor) for _ in range(size)]
                torch.distributed.all_gather(gathered, tensor.contiguous(), group=group)
                together = torch.stack(gathered)
                return together.sum(0) if reduce_op == "sum" else together.amax(0)
            operation = torch.distributed.ReduceOp.MAX if reduce_op == "max" else torch.distributed.ReduceOp.SUM
            torch.distributed.all_reduce(tensor, op=operation, group=group)
            return tensor.copy_(tensor / size) if mean else tensor

    def all_gather(self, tensor: Tensor, group: Any | None = None, sync_grads: bool = False) -> Tensor:
        """Fabric's."""
        with self._together():
            return super().all_gather(tensor, group, sync_grads)

    def broadcast_bytes_(self, vector: Tensor, src: int) -> None:
        """Overwrite a vector on every rank by that of rank ``src``, bit for bit, whatever its dtype."""
        with self._together():
            torch.distributed.broadcast(vector.view(torch.uint8), src=src)  # bytes: no backend knows all dtypes

    def barrier(self, *args: Any, **kwargs: Any) -> None:
        """Fabric's; where messages have a backend of their own it is theirs, and does not wait for GPUs."""
        with self._together():
            if torch.distributed.is_initialized() and len(set(backends_of().values())) > 1:
                torch.distributed.all_reduce(torch.zeros(1, device=self.message_device))
            else:
                super().barrier(*args, **kwargs)

    @property
    def message_device(self) -> torch.device:
        """Where the tensors lie by which ranks tell each other something: on the host, unless NCCL is all there is."""
        return torch.device("cpu") if "cpu" in backends_of(self._group) else self.root_device

    def _gathered(self, message: bytes) -> list[np.ndarray]:
        """The messages of all ranks: small ones with their lengths, once more where one is larger."""
        head = np.frombuffer(len(message).to_bytes(_LENGTH_BYTES, "little") + message[:_FIRST_BYTES], np.uint8)
        heads = self._gathered_rows(head, _LENGTH_BYTES + _FIRST_BYTES)
        lengths = [int.from_bytes(row[:_LENGTH_BYTES].tobytes(), "little") for row in heads]
        for rank, length in enumerate(lengths):
            self._check_length(length, rank)
        if max(lengths) <= _FIRST_BYTES:
            rows = [row[_LENGTH_BYTES:] for row in heads]
        elif self.world_size * max(lengths) <= _AT_ONCE:
            rows = self._gathered_rows(np.frombuffer(message, np.uint8), max(lengths))
        else:
            rows = [self._broadcast_message(message, length, rank) for rank, length in enumerate(lengths)]
        return [row[:length] for row, length in zip(rows, lengths, strict=True)]

    def _gathered_rows(self, content: np.ndarray, width: int) -> list[np.ndarray]:
        """The bytes of all ranks, filled up to one width."""
        own = torch.zeros(width, dtype=torch.uint8)
        own.numpy()[: len(content)] = content
        rows = torch.empty(self.world_size, width, dtype=torch.uint8, device=self.message_device)
        with self._together():
            torch.distributed.all_gather(list(rows.unbind()), own.to(rows.device))
        return list(rows.cpu().numpy())

    def _broadcast_message(self, message: bytes, length: int, src: int) -> np.ndarray:
        content = torch.empty(length, dtype=torch.uint8)
        if self.global_rank == src:
            content.numpy()[:] = np.frombuffer(message, np.uint8)
        content = content.to(self.message_device)
        with self._together():
            torch.distributed.broadcast(content, src=src)
        return content.cpu().numpy()

    def _check_length(self, length: int, rank: int) -> None:
        """Refuse what would not fit into this machine, before any memory is taken for it."""
        most = _most_bytes()
        if not 0 <= length <= most:
            raise TrainingError(
                f"{self.rank_names[rank]} announced a message of {length} bytes; this machine takes at most {most}."
            )

    def _read(self, message: np.ndarray, rank: int) -> Any:
        try:
            return decode(message.data)
        except MessageError as error:
            raise TrainingError(f"{self.rank_names[rank]} sent a message that cannot be read: {error}") from error

    # -- for a loop of one's own ---------------------------------------------------------------------------------

    def average(self, module: nn.Module, num_samples: float = 1.0) -> None:
        """Replace the module's weights, on every rank, by the average over ranks weighted by ``num_samples``.

        Every rank calls it, and an error on one is raised on all, so that none waits for another.

        Raises:
            ConfigurationError: ``num_samples`` is negative or not finite on a rank, or zero on all ranks.
            TrainingError: a weight on a rank is not finite.
        """
        counts = self.exchange({self.global_rank: float(num_samples)})
        for rank, count in counts.items():
            if not (isfinite(count) and count >= 0):
                raise ConfigurationError(f"num_samples={count} on rank {rank}: give its number of samples, at least 0.")
        if not sum(counts.values()):
            raise ConfigurationError("num_samples is 0 on every rank: there is nothing to average.")
        flat = FlatModule(module)
        reference = flat.weights.clone()
        if self.world_size > 1:
            for vector in reference.vectors.values():
                self.broadcast_bytes_(vector, 0)
        total = WeightedSum(reference)
        problem: str | None = None
        try:
            total.add_(flat.weights, num_samples / sum(counts.values()))
        except TrainingError as error:
            problem = str(error)
        for rank, text in self.exchange({self.global_rank: problem}).items():
            if text is not None:
                raise TrainingError(f"rank {rank}: {text}")
        if self.world_size > 1:
            total.reduce_(self)
        update = ModelUpdate(
            0, flat.weights, total.value(1.0), num_clients=self.world_size, spans=averaged_spans(flat, None)
        )
        flat.load(self.aggregate(update))


def _message(value: Any) -> bytes:
    try:
        return encode(value)
    except MessageError as error:
        raise ConfigurationError(str(error)) from error


def _most_bytes() -> int:
    """Half of this machine's memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2 if hasattr(os, "sysconf") else 1 << 33
