"""Computing something for every client where its data are."""

from collections.abc import Callable, Collection
from typing import TypeVar

from lightning_fl.core.errors import ConfigurationError, DataError, TrainingError
from lightning_fl.data.module import Split
from lightning_fl.engine.processes import Processes
from lightning_fl.engine.turn.loop import LocalLoop

__all__ = ["check_samples", "check_split", "clients_without", "compute_on_hosts"]

T = TypeVar("T")

_OURS = {kind.__name__: kind for kind in (ConfigurationError, DataError, TrainingError)}


def compute_on_hosts(
    processes: Processes, clients: Collection[int], compute: Callable[[int], T], problem: str
) -> dict[int, T]:
    """What each client's rank computes for it, on all ranks; to be called on every rank.

    Args:
        processes: say who is hosted here.
        clients: who is wanted, on whatever rank.
        compute: of a hosted client; plain values or CPU tensors. It may not wait for other ranks.
        problem: what to say before an error.

    Returns:
        client -> value, in ascending order.

    Raises:
        ConfigurationError, DataError, TrainingError: ``compute`` raised it for a client; any other error becomes a
            ``TrainingError``. It is raised on all ranks, so that none waits for another.
    """
    found: dict[int, tuple[T | None, str, str]] = {}
    failure: Exception | None = None
    for client in sorted(clients):
        if processes.client_ranks[client] != processes.rank:
            continue
        try:
            found[client] = (compute(client), "", "")
        except Exception as error:  # the other ranks wait for this one
            kind = type(error).__name__
            text = str(error) if kind in _OURS else f"{kind}: {error}"
            found[client], failure = (None, kind, text), error
            break
    everyone = processes.exchange(found)
    for client, (_, kind, text) in everyone.items():
        if kind:
            raise _OURS.get(kind, TrainingError)(f"{problem}, client {client}: {text}") from failure
    return {client: value for client, (value, _, _) in everyone.items()}  # type: ignore[misc]


def clients_without(loop: LocalLoop, split: Split, clients: Collection[int]) -> list[str]:
    """The names of those clients that have no samples in a split, in the clients' order; to be called on every rank."""
    have = compute_on_hosts(
        loop.processes, clients, lambda client: loop.factory.batches(client, split) is not None, "data cannot be read"
    )
    names = loop.data.client_names()
    return [names[client] for client, has in have.items() if not has]


def check_split(argument: str, split: str) -> None:
    """Refuse a split that models may not be chosen or valued by."""
    if split not in ("train", "val"):
        raise ConfigurationError(f"{argument}={split!r}: choose train or val; test samples are for the end.")


def check_samples(loop: LocalLoop, argument: str, split: Split) -> None:
    """Refuse data in which a client has no samples in a split; to be called on every rank.

    Raises:
        ConfigurationError: naming the argument that chose the split.
    """
    count = loop.processes.num_clients
    missing = clients_without(loop, split, range(count))
    if missing:
        raise ConfigurationError(
            f"{argument}={split!r}: {len(missing)} of {count} clients have no such data (the first is"
            f" {missing[0]}); set it to train."
        )
