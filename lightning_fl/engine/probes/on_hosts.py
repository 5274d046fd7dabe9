"""Computations for clients on the ranks that host them."""

from collections.abc import Callable, Collection
from typing import Any, TypeVar

import torch
from torch import Tensor

from lightning_fl.core.errors import ConfigurationError, DataError, FederatedError, TrainingError
from lightning_fl.data.module import Split
from lightning_fl.engine.probes.layer_records import exact_targets
from lightning_fl.engine.processes import Processes
from lightning_fl.engine.turn.loop import LocalLoop

T = TypeVar("T")

_ERRORS = {kind.__name__: kind for kind in (ConfigurationError, DataError, TrainingError)}


def compute_on_hosts(
    processes: Processes, clients: Collection[int], compute: Callable[[int], T], problem: str
) -> dict[int, T]:
    """Compute plain values or CPU tensors for clients on their ranks, and send them to all ranks: client -> value.

    Every rank must call it; ``compute`` must not wait for other ranks. An error is raised on all ranks.
    """
    found: dict[int, tuple[T | None, str, str]] = {}
    failure: Exception | None = None
    for client in sorted(clients):
        if not processes.hosts(client):
            continue
        try:
            found[client] = (compute(client), "", "")
        except Exception as error:  # the other ranks wait for this one
            kind = type(error).__name__
            text = str(error) if kind in _ERRORS else f"{kind}: {error}"
            found[client], failure = (None, kind, text), error
            break
    everyone = processes.exchange(found)
    for client, (_, kind, text) in everyone.items():
        if kind:
            raise _ERRORS.get(kind, TrainingError)(f"{problem}, client {client}: {text}") from failure
    return {client: value for client, (value, _, _) in everyone.items()}  # type: ignore[misc]


def beside_targets(
    loop: LocalLoop, client: int, split: Split, predict: Callable[[], list[Any]], pair: Callable[[list[Any], Tensor], T]
) -> T | str | None:
    """``pair(outputs, targets)`` of a hosted client, an error's text for all ranks, or ``None`` without data.

    An error in the user's ``predict_step`` must not end a run with trained models.
    """
    batches = loop.factory.batches(client, split)
    if batches is None:
        return None
    try:
        outputs = predict()
        targets = [exact_targets(batch).detach().cpu() for batch, _ in batches.once(loop.path(client, split))]
        return pair(outputs, torch.cat(targets))
    except FederatedError as error:
        return str(error)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def clients_without(loop: LocalLoop, split: Split, clients: Collection[int]) -> list[str]:
    """Names of the clients without samples in a split, in the clients' order. Every rank must call it."""
    have = compute_on_hosts(
        loop.processes, clients, lambda client: loop.factory.batches(client, split) is not None, "data cannot be read"
    )
    names = loop.data.client_names()
    return [names[client] for client, has in have.items() if not has]


def check_validation_data(loop: LocalLoop, owner: str) -> None:
    """Refuse data without validation samples at any client. Every rank must call it."""
    if len(clients_without(loop, "val", range(count := loop.processes.num_clients))) == count:
        raise ConfigurationError(f"{owner} needs validation data, and no client has any: set data.split.")


def check_samples(loop: LocalLoop, argument: str, split: Split) -> None:
    """Refuse data with a client without samples in a split. Every rank must call it."""
    count = loop.processes.num_clients
    if missing := clients_without(loop, split, range(count)):
        lack = f"{len(missing)} of {count} clients have no such data (the first is {missing[0]})"
        raise ConfigurationError(f"{argument}={split!r}: {lack}; set it to train.")
