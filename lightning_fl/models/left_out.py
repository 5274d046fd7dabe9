"""Which targets are in no mean of a client's metrics, said once for each split."""

import warnings
from collections.abc import Mapping
from typing import Any

from lightning_fl.core.errors import listed

__all__ = ["LeftOut"]

_SHOWN = 8


class LeftOut:
    """Collects over the clients of a pass what was left out, and says it after the first pass of a split."""

    # No ``__dict__``: what it holds is of all clients on purpose, unlike the attributes of modules that are watched.
    __slots__ = ("_found", "_said")

    def __init__(self) -> None:
        self._found: dict[str, dict[tuple[str, str], list[str]]] = {}
        self._said: set[str] = set()

    def add(self, trainer: Any, split: str, targets: Mapping[str, str]) -> None:
        """Note a client's.

        Args:
            trainer: what the module sees.
            split: "val" or "test".
            targets: name of a target -> why it has no metrics.
        """
        if split in self._said:
            return
        client = _client(trainer)
        for target, why in targets.items():
            clients = self._found.setdefault(split, {}).setdefault((target, why), [])
            if client not in clients:  # a client may be judged with several models
                clients.append(client)

    def say(self, trainer: Any, split: str) -> None:
        """One warning on each process, of the clients that it hosts, where there is something to say."""
        if split in self._said:
            return
        self._said.add(split)
        found = self._found.pop(split, {})
        if not found:
            return
        words = []
        for (target, why), clients in list(found.items())[:_SHOWN]:
            who = f" at {listed(clients, 3)}" if clients != [""] else ""
            words.append(f"{target} ({why}{who})")
        rest = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
        rank = f"rank {trainer.global_rank}: " if getattr(trainer, "world_size", 1) > 1 else ""
        warnings.warn(
            f"{rank}{split}: targets without metrics, left out of the means: {', '.join(words)}{rest}.", stacklevel=2
        )


def _client(trainer: Any) -> str:
    """The name of the client whose turn it is; "" in a run without clients."""
    client = getattr(trainer, "client", None)
    return "" if client is None else str(trainer.datamodule.client_names()[client])
