"""The processes of a run: which clients each hosts, and what they do together."""

from collections.abc import Mapping
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

__all__ = ["Processes", "Transport"]

T = TypeVar("T")


class Transport(Protocol):
    """What all ranks do together: every byte between clients passes here. ``FederatedStrategy`` is one."""

    @property
    def world_size(self) -> int:
        """Number of ranks."""

    @property
    def global_rank(self) -> int:
        """This process's."""

    @property
    def message_device(self) -> torch.device:
        """Where small tensors lie on their way between ranks, once these are connected."""

    def exchange(self, of_hosted_clients: Mapping[int, T]) -> dict[int, T]:
        """What every rank knows of its clients, brought together on all ranks in the order of clients."""

    def all_reduce(self, tensor: Tensor, group: Any | None = None, reduce_op: Any = "mean") -> Tensor:
        """Sum or maximum over ranks."""

    def broadcast_bytes_(self, vector: Tensor, src: int) -> None:
        """Overwrite a vector on every rank by that of rank ``src``."""


class Processes:
    """The ranks and who hosts whom.

    Args:
        transport: between the ranks.
        device: this rank's.

    Attributes:
        hosted: the clients whose data this rank opens.
        panel: those of them that a fit validates.
        pinned: clients' data belong to their ranks, which no other opens.
    """

    def __init__(self, transport: Transport, device: torch.device) -> None:
        self.transport = transport
        self.device = device
        self.client_ranks = []
        self.panel: list[int] = []
        self.pinned = False

    @property
    def client_ranks(self) -> list[int]:
        """The rank of every client, known when the data are set up."""
        return self._client_ranks

    @client_ranks.setter
    def client_ranks(self, ranks: list[int]) -> None:
        self._client_ranks = ranks
        self.hosted = [client for client, host in enumerate(ranks) if host == self.rank] if ranks else []

    @property
    def num_clients(self) -> int:
        """N."""
        return len(self.client_ranks)

    @property
    def rank(self) -> int:
        """This process's rank."""
        return self.transport.global_rank

    @property
    def several(self) -> bool:
        """Whether there are other ranks."""
        return self.transport.world_size > 1

    @property
    def private(self) -> bool:
        """Whether what a client keeps for itself stays on its rank: there are others, and its data are its own."""
        return self.several and self.pinned

    def hosts(self, client: int) -> bool:
        """Whether this rank opens a client's data."""
        return self.client_ranks[client : client + 1] == [self.rank]

    def exchange(self, of_hosted_clients: Mapping[int, T]) -> dict[int, T]:
        """What every rank knows of its clients, on all ranks: client -> value, in the order of clients."""
        return self.transport.exchange(of_hosted_clients)

    def of_ranks(self, value: T) -> list[T]:
        """What every rank has to say, in the order of ranks."""
        return list(self.transport.exchange({self.rank: value}).values())

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum over ranks; ``tensor`` may be overwritten."""
        return self.transport.all_reduce(tensor, reduce_op="sum") if self.several else tensor

    def largest(self, *values: int) -> list[int]:
        """The largest of each value on any rank."""
        if not self.several:
            return list(values)
        found = torch.tensor(values, device=self.transport.message_device)
        return self.transport.all_reduce(found, reduce_op="max").tolist()
