"""Exchanges between the ranks of a run: the only way in for bytes of other ranks, which are never unpickled."""

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed
from lightning.fabric.strategies import DDPStrategy
from lightning.fabric.utilities.distributed import _get_default_process_group_backend_for_device
from lightning.pytorch.profilers import PassThroughProfiler, Profiler
from torch import Tensor
from torch.distributed import GroupMember, ProcessGroup
from torch.distributed.distributed_c10d import BackendConfig

from lightning_fl.core.errors import ConfigurationError, FederatedError, TrainingError
from lightning_fl.core.wire_format import MessageError, decode, encode
from lightning_fl.engine.profile import WAITING
from lightning_fl.strategies.peers import Peers

T = TypeVar("T")

#: A group with a backend for each kind of device: NCCL for weights, Gloo for messages, outside the GPUs' queues.
BOTH = "cpu:gloo,cuda:nccl"

#: Most entries, over all ranks, that are gathered and then summed on every rank.
_GATHERED = 1 << 18
#: Bytes of a message that travel with its length, and bytes of all messages that are gathered at once.
_FIRST_BYTES = 1 << 14
_AT_ONCE = 1 << 26
_LENGTH_BYTES = 8


class RankExchange(DDPStrategy):
    """Messages, sums and broadcasts between ranks, over a process group that user code does not see."""

    #: Longest wait of ranks for each other.
    _timeout: timedelta

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.profiler: Profiler = PassThroughProfiler()
        self._peers: Peers | None = None
        self._group: ProcessGroup | None = None

    @property
    def connected(self) -> bool:
        """Whether the ranks can exchange messages; a single rank always can."""
        return self.world_size == 1 or self._group is not None or torch.distributed.is_initialized()

    @contextmanager
    def hidden_group(self) -> Iterator[None]:
        """Hide the process group during a run, so that modules, data and callbacks see a single process.

        Collectives in user code would mix clients, and wait for ranks that take another number of steps. Exchanges
        of this object restore the group for their duration.
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

    @contextmanager
    def _together(self) -> Iterator[None]:
        """Restore the process group for an exchange of all ranks; if it breaks, raise the reason."""
        peers, hidden, seen, begin = self._peers, self._group, GroupMember.WORLD, time.monotonic()
        if peers is not None:
            peers.check()
            peers.waits = True
        if hidden is not None:
            GroupMember.WORLD = hidden
        try:
            with self.profiler.profile(WAITING):
                yield
        except (RuntimeError, ValueError) as error:
            if peers is None or isinstance(error, FederatedError):
                raise
            raise peers.reason(error, time.monotonic() - begin >= self._timeout.total_seconds()) from None
        finally:
            if hidden is not None:
                GroupMember.WORLD = seen
            if peers is not None:
                peers.waits = False

    def exchange(self, of_hosted_clients: Mapping[int, T]) -> dict[int, T]:
        """Gather values of hosted clients on all ranks, in the order of clients.

        Values are small, never samples: plain numbers, strings, lists, dicts or CPU tensors; other types are refused.
        """
        merged = dict(of_hosted_clients)
        if self.world_size > 1:
            messages, own = self._gathered(_message(merged)), self.global_rank
            parts = [merged if rank == own else self._read(sent, rank) for rank, sent in enumerate(messages)]
            for rank, part in enumerate(parts):
                if not isinstance(part, dict) or not all(isinstance(client, int) for client in part):
                    raise TrainingError(f"{self.rank_names[rank]} sent a message without values of clients.")
            merged = {client: value for part in parts for client, value in part.items()}
        return dict(sorted(merged.items()))

    def broadcast(self, obj: T, src: int = 0) -> T:
        """Send a value of one rank to all: plain values and CPU tensors, as in :meth:`exchange`."""
        if self.world_size == 1:
            return obj
        own = self.global_rank == src
        content = self._gathered(_message(obj) if own else b"")[src]
        return obj if own else self._read(content, src)

    def all_reduce(self, tensor: Tensor, group: Any | None = None, reduce_op: Any = "mean") -> Tensor:
        """Reduce as Fabric does, without its barrier: a sum or maximum waits for all ranks by itself.

        Gloo gathers small tensors, which takes one message where its sum takes several.
        """
        with self._together():
            if not torch.distributed.is_initialized() or not isinstance(tensor, Tensor):
                return super().all_reduce(tensor, group, reduce_op)
            gloo = backends_of(group).get(tensor.device.type) == "gloo"
            mean = gloo and reduce_op in ("mean", "avg")  # Gloo has no mean
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
        with self._together():
            return super().all_gather(tensor, group, sync_grads)

    def broadcast_bytes_(self, vector: Tensor, src: int) -> None:
        """Overwrite a vector on every rank with that of rank ``src``, bit for bit."""
        with self._together():
            torch.distributed.broadcast(vector.view(torch.uint8), src=src)  # bytes: no backend knows all dtypes

    def barrier(self, *args: Any, **kwargs: Any) -> None:
        """Wait for all ranks, on the backend of messages if they have their own, so as not to wait for GPUs."""
        with self._together():
            if torch.distributed.is_initialized() and len(set(backends_of().values())) > 1:
                torch.distributed.all_reduce(torch.zeros(1, device=self.message_device))
            else:
                super().barrier(*args, **kwargs)

    @property
    def message_device(self) -> torch.device:
        """Device of messages between ranks: the host, unless NCCL is the only backend."""
        return torch.device("cpu") if "cpu" in backends_of(self._group) else self.root_device

    def _gathered(self, message: bytes) -> list[np.ndarray]:
        """The messages of all ranks: small ones together with their lengths, larger ones in a second exchange."""
        head = np.frombuffer(len(message).to_bytes(_LENGTH_BYTES, "little") + message[:_FIRST_BYTES], np.uint8)
        heads = self._gathered_rows(head, _LENGTH_BYTES + _FIRST_BYTES)
        lengths = [int.from_bytes(row[:_LENGTH_BYTES].tobytes(), "little") for row in heads]
        # Half of this machine's memory; checked before any is allocated.
        most = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2 if hasattr(os, "sysconf") else 1 << 33
        for rank, length in enumerate(lengths):
            if not 0 <= length <= most:
                name = self.rank_names[rank]
                raise TrainingError(f"{name} announced a message of {length} bytes; this machine takes at most {most}.")
        if max(lengths) <= _FIRST_BYTES:
            rows = [row[_LENGTH_BYTES:] for row in heads]
        elif self.world_size * max(lengths) <= _AT_ONCE:
            rows = self._gathered_rows(np.frombuffer(message, np.uint8), max(lengths))
        else:
            rows = [
                self._broadcast_message(message, length, rank) if length else heads[rank]
                for rank, length in enumerate(lengths)
            ]
        return [row[:length] for row, length in zip(rows, lengths, strict=True)]

    def _gathered_rows(self, content: np.ndarray, width: int) -> list[np.ndarray]:
        """The bytes of all ranks, padded to one width."""
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
        self.broadcast_bytes_(content, src)
        return content.cpu().numpy()

    def _read(self, message: np.ndarray, rank: int) -> Any:
        try:
            return decode(message.data)
        except MessageError as error:
            raise TrainingError(f"{self.rank_names[rank]} sent a message that cannot be read: {error}") from error


def _message(value: Any) -> bytes:
    try:
        return encode(value)
    except MessageError as error:
        raise ConfigurationError(str(error)) from error


def default_backend(devices: Sequence[torch.device]) -> str:
    """The backend of ranks on these devices of this machine."""
    first = devices[0]
    if first.type != "cuda" or not torch.distributed.is_gloo_available():
        return _get_default_process_group_backend_for_device(first)
    if shared_device(devices) is not None:
        return "gloo"
    return BOTH if torch.distributed.is_nccl_available() else "gloo"


def backends_of(group: torch.distributed.ProcessGroup | str | None = None) -> dict[str, str]:
    """The backend of each device type, of some or all ranks or of a name such as ``"cpu:gloo,cuda:nccl"``."""
    name = group if isinstance(group, str) else torch.distributed.get_backend_config(group)
    return BackendConfig(name).get_device_backend_map()


def shared_device(devices: Sequence[torch.device]) -> torch.device | None:
    """The first GPU that several ranks use, if there is one."""
    gpus = [device for device in devices if device.type != "cpu"]
    return next((device for place, device in enumerate(gpus) if device in gpus[:place]), None)


def check_shared_devices(
    backend: str | None, accelerator: str, devices: int | str | list[int], processes_per_device: int
) -> None:
    """Refuse processes that cannot share a GPU, before NCCL fails late with an obscure message."""
    named = devices if isinstance(devices, list | tuple) else str(devices).strip(" ,").split(",")
    numbers = [int(number) for number in named if str(number).strip().isdecimal()]
    twice = next((number for place, number in enumerate(numbers) if number in numbers[:place]), None)
    if twice is not None:
        instead = f"set trainer.processes_per_device={numbers.count(twice)}"
        raise ConfigurationError(f"trainer.devices={devices} names GPU {twice} more than once: {instead} instead.")
    if processes_per_device == 1:
        return
    if accelerator not in ("auto", "cuda", "gpu"):
        option = f"trainer.processes_per_device={processes_per_device}"
        what = f"{option} is for processes that share a GPU, and the accelerator is {accelerator}"
        raise ConfigurationError(f"{what}: set trainer.devices to the number of processes.")
    if backend is not None and backends_of(backend).get("cuda") == "nccl":
        given = f"trainer.processes_per_device={processes_per_device} with process_group_backend={backend!r}"
        raise ConfigurationError(f"{given}: NCCL cannot connect two processes on one GPU. Use gloo, or one process.")
