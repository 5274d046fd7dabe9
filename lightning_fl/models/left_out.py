"""Warning of targets without metrics, once for each split."""

import warnings
from collections.abc import Mapping
from typing import Any

from lightning_fl.core.errors import listed

__all__ = ["LeftOut"]

_SHOWN = 8


class LeftOut:
    """Targets without metrics, collected over the clients of a pass and reported after the first pass of a split."""

    # No ``__dict__``: clients share the content on purpose, unlike the attributes of modules, which are watched.
    __slots__ = ("_found", "_reported")

    def __init__(self) -> None:
        self._found: dict[str, dict[tuple[str, str], list[str]]] = {}
        self._reported: set[str] = set()

    def add(self, trainer: Any, split: str, targets: Mapping[str, str]) -> None:
        """Add a client's targets.

        Args:
            trainer: the module's trainer.
            split: "val" or "test".
            targets: target -> reason why it has no metrics.
        """
        if split in self._reported:
            return
        client = _client(trainer)
        for target, reason in targets.items():
            clients = self._found.setdefault(split, {}).setdefault((target, reason), [])
            if client not in clients:  # a client may be evaluated with several models
                clients.append(client)

    def warn(self, trainer: Any, split: str) -> None:
        """Warn on each process of the targets of its clients, if there are any."""
        if split in self._reported:
            return
        self._reported.add(split)
        found = self._found.pop(split, {})
        if not found:
            return
        words = []
        for (target, reason), clients in list(found.items())[:_SHOWN]:
            place = f" at {listed(clients, 3)}" if clients != [""] else ""
            words.append(f"{target} ({reason}{place})")
        rest = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
        rank = f"rank {trainer.global_rank}: " if getattr(trainer, "world_size", 1) > 1 else ""
        warnings.warn(
            f"{rank}{split}: targets without metrics, left out of the means: {', '.join(words)}{rest}.", stacklevel=2
        )


def _client(trainer: Any) -> str:
    """Name of the client whose turn it is; "" in a run without clients."""
    client = getattr(trainer, "client", None)
    return "" if client is None else str(trainer.datamodule.client_names()[client])
