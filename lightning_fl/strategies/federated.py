"""The base of all federated strategies: Fabric's distributed strategy, synchronising once a round between clients."""

import atexit
import inspect
import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from math import isfinite
from typing import Any, Literal, TypeVar

import torch
import torch.distributed
from lightning.fabric.accelerators import CPUAccelerator
from lightning.fabric.strategies import STRATEGY_REGISTRY, DDPStrategy
from lightning.fabric.strategies.registry import _StrategyRegistry
from lightning.fabric.utilities.distributed import _destroy_dist_connection
from lightning_utilities.core import rank_zero
from torch import Tensor, nn

from lightning_fl.engine.learner import Learner, ModelUpdate
from lightning_fl.engine.weights.flat import FlatModule
from lightning_fl.engine.weights.local_parameters import averaged_spans
from lightning_fl.engine.weights.weighted_sum import WeightedSum
from lightning_fl.errors import ConfigurationError, TrainingError
from lightning_fl.strategies.fork_launcher import ForkLauncher

__all__ = ["FederatedStrategy"]

T = TypeVar("T")

#: Entries, over all ranks, that are gathered and added up by everybody.
_GATHERED = 1 << 18


@contextmanager
def _quiet() -> Iterator[None]:
    """Without Fabric's five lines on processes that nobody asked for."""
    loggers = [logging.getLogger("lightning.fabric.utilities.distributed"), rank_zero.log]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.WARNING)
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


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
        process_group_backend: "gloo", "nccl", ...; ``None`` chooses by device.
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

    def setup_environment(self) -> None:
        """Start the process group where there is more than one process."""
        if self.num_nodes * self.num_processes > 1:
            with _quiet() if isinstance(self._launcher, ForkLauncher) else nullcontext():
                super().setup_environment()
            # Fabric does this for NCCL alone; a Gloo group left to the interpreter's exit can abort the process.
            atexit.unregister(_destroy_dist_connection)
            atexit.register(_destroy_dist_connection)
        else:
            assert self.accelerator is not None
            self.accelerator.setup_device(self.root_device)

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

    def exchange(self, of_hosted_clients: Mapping[int, T]) -> dict[int, T]:
        """What every rank knows of the clients it hosts, brought together on all ranks in the order of clients.

        Values are plain numbers, strings, lists, dicts or CPU tensors: small things, never samples.
        """
        merged = dict(of_hosted_clients)
        if self.world_size > 1:
            gathered: list[dict[int, T]] = [{} for _ in range(self.world_size)]
            torch.distributed.all_gather_object(gathered, dict(of_hosted_clients))
            merged = {client: value for part in gathered for client, value in part.items()}
        return dict(sorted(merged.items()))

    def all_reduce(self, tensor: Tensor, group: Any | None = None, reduce_op: Any = "mean") -> Tensor:
        """Fabric's, without the barrier before it: a sum or maximum waits for all ranks by itself.

        Small tensors are gathered by Gloo, which takes one message where its sum takes several.
        """
        if reduce_op not in ("sum", "max") or not torch.distributed.is_initialized():
            return super().all_reduce(tensor, group, reduce_op)
        size = torch.distributed.get_world_size(group)
        if torch.distributed.get_backend(group) == "gloo" and size * tensor.numel() <= _GATHERED:
            gathered = [torch.empty_like(tensor) for _ in range(size)]
            torch.distributed.all_gather(gathered, tensor.contiguous(), group=group)
            together = torch.stack(gathered)
            return together.sum(0) if reduce_op == "sum" else together.amax(0)
        operation = torch.distributed.ReduceOp.SUM if reduce_op == "sum" else torch.distributed.ReduceOp.MAX
        torch.distributed.all_reduce(tensor, op=operation, group=group)
        return tensor

    def broadcast_bytes_(self, vector: Tensor, src: int) -> None:
        """Overwrite a vector on every rank by that of rank ``src``, bit for bit, whatever its dtype."""
        torch.distributed.broadcast(vector.view(torch.uint8), src=src)  # bytes: no backend knows all dtypes

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
