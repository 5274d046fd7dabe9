"""Processes of a run: the clients that each hosts, and exchanges between them."""

from collections.abc import Mapping
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from lightning_fl.core.seeding import generator, shuffled

T = TypeVar("T")


class Transport(Protocol):
    """Exchanges between ranks, through which all bytes between clients pass. ``FederatedStrategy`` implements it."""

    @property
    def world_size(self) -> int:
        """Number of ranks."""

    @property
    def global_rank(self) -> int:
        """Rank of this process."""

    @property
    def message_device(self) -> torch.device:
        """Device of small tensors that are sent between connected ranks."""

    def exchange(self, of_hosted_clients: Mapping[int, T]) -> dict[int, T]:
        """Gather values of hosted clients on all ranks, in the order of clients."""

    def all_reduce(self, tensor: Tensor, group: Any | None = None, reduce_op: Any = "mean") -> Tensor:
        """Sum or maximum over ranks."""

    def broadcast_bytes_(self, vector: Tensor, src: int) -> None:
        """Overwrite a vector on every rank with that of rank ``src``."""


class Processes:
    """The ranks and their hosted clients."""

    def __init__(self, transport: Transport, device: torch.device) -> None:
        self.transport = transport
        self.device = device
        self.client_ranks = []
        self.panel: list[int] = []  #: hosted clients that a fit validates
        self.pinned = False  #: clients' data are available only on their ranks

    @property
    def client_ranks(self) -> list[int]:
        """The rank of every client, known when the data are set up."""
        return self._client_ranks

    @client_ranks.setter
    def client_ranks(self, ranks: list[int]) -> None:
        self._client_ranks = ranks
        #: Clients with data on this rank.
        self.hosted = [client for client, host in enumerate(ranks) if host == self.rank] if ranks else []

    @property
    def num_clients(self) -> int:
        return len(self.client_ranks)

    @property
    def rank(self) -> int:
        return self.transport.global_rank

    @property
    def several(self) -> bool:
        return self.transport.world_size > 1

    @property
    def private(self) -> bool:
        """Whether clients' states stay on their ranks, because there are several and data are pinned."""
        return self.several and self.pinned

    def hosts(self, client: int) -> bool:
        return self.client_ranks[client : client + 1] == [self.rank]

    def sample(self, most: int | None, seed: int) -> list[int]:
        """Hosted ones of at most ``most`` clients that the seed draws; ``None`` for all."""
        if most is None or self.num_clients <= most:
            return self.hosted
        drawn = shuffled(range(self.num_clients), generator(seed, "validated clients"), most)
        return [client for client in sorted(drawn) if self.hosts(client)]

    def exchange(self, of_hosted_clients: Mapping[int, T]) -> dict[int, T]:
        return self.transport.exchange(of_hosted_clients)

    def of_ranks(self, value: T) -> list[T]:
        """Gather a value of every rank, in the order of ranks."""
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
