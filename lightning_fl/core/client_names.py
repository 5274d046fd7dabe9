"""Unique names of clients in records and curves."""

from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache

from lightning_fl.core.errors import ConfigurationError, listed

#: Names of aggregates in curves and tables, such as ``NAME/worst``.
_AGGREGATES = {
    *("average", "best", "cumulated", "gain", "harmed", "ipr", "local", "max", "mean", "min", "pool", "rsd"),
    *("standard_error", "std", "step", "sum", "total", "worst"),
}
_MOST_LISTED = 1_000


def are_many(num_clients: int) -> bool:
    """Whether a run's files do not list so many clients one by one, but have percentiles and the worst hundred."""
    return num_clients > _MOST_LISTED


@lru_cache(maxsize=4)
def default_names(num_clients: int) -> tuple[str, ...]:
    """Default client names."""
    width = len(str(num_clients - 1))
    return tuple(f"client_{client:0{width}d}" for client in range(num_clients))


def recorded_names(names: Sequence[str]) -> list[str]:
    """The names as files keep them: none for default names of many clients."""
    return [] if are_many(len(names)) and tuple(names) == default_names(len(names)) else list(names)


def rows_of(names: Sequence[str], values: Iterable[Collection[str]]) -> list[str]:
    """Clients with a row in a table: all, or of many those that have one of the values."""
    found = dict.fromkeys(name for of_clients in values for name in of_clients)
    return list(found if not names or are_many(len(names)) else names)


def check_distinct(names: Sequence[str]) -> None:
    """Refuse clients with the same name: records could not tell them apart."""
    if len(set(names)) < len(names):
        places: dict[str, list[str]] = {}
        for client, name in enumerate(names):
            places.setdefault(name, []).append(str(client))
        clients = [f"{name!r} (clients {', '.join(of_name)})" for name, of_name in places.items() if len(of_name) > 1]
        raise ConfigurationError(f"several clients have the same name: {listed(clients, 5)}. Give each its own.")


def curve_names(names: Sequence[str], noun: str = "client") -> list[str]:
    """Names of clients (or targets) as part of curve names, as in ``val/loss/lab0``.

    A name stays as it is unless it equals an aggregate's (``worst``) or holds ``/`` or unprintable characters. Such a
    name is cleaned and followed by the client's (or target's) number: ``worst (client 2)``.
    """
    return list(_curve_names(tuple(names), noun))


@lru_cache(maxsize=8)
def _curve_names(names: tuple[str, ...], noun: str) -> tuple[str, ...]:
    found = list(names)
    used = set(names)
    for client, name in enumerate(names):
        if name.strip() and name.isprintable() and "/" not in name and name.lower() not in _AGGREGATES:
            continue
        clean = "".join(c if c.isprintable() and c != "/" else "_" for c in name).strip()
        own = f"{clean} ({noun} {client})".strip()
        while own in used:
            own += "'"
        used.add(own)
        found[client] = own
    return tuple(found)
