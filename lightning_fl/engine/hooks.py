"""Hook registry, so that the engine does not import callbacks."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lightning.pytorch.profilers import PassThroughProfiler, Profiler

__all__ = ["Hook", "Hooks", "overrides"]


def overrides(listener: object, hook: str, base: type) -> bool:
    """Whether an object's class overrides a method of its base."""
    return getattr(type(listener), hook) is not getattr(base, hook)


@dataclass(frozen=True)
class Hook:
    """A listener's method."""

    listener: object
    name: str
    run: Any
    profiler: Profiler

    @property
    def owner(self) -> str:
        """Name of the listener's class."""
        return type(self.listener).__name__

    def __call__(self, *args: Any) -> Any:
        """Call the method."""
        with self.profiler.profile(f"[Callback]{self.owner}.{self.name}"):
            return getattr(self.listener, self.name)(self.run, *args)


class Hooks:
    """The hooks of a run, in the listeners' order.

    Args:
        listeners: the objects with hooks; the list may change later.
        base: their base class, whose methods do nothing.
        run: first argument of every hook.
    """

    def __init__(
        self, listeners: Sequence[Any] = (), base: type = object, run: Any = None, profiler: Profiler | None = None
    ) -> None:
        self._profiler = profiler or PassThroughProfiler()
        self._listeners = listeners
        self._base = base
        self._run = run

    def of(self, name: str) -> list[Hook]:
        """The hooks of this name that listeners define."""
        return [
            Hook(one, name, self._run, self._profiler) for one in self._listeners if overrides(one, name, self._base)
        ]

    def call(self, name: str, *args: Any) -> None:
        """Call the hooks of this name."""
        for hook in self.of(name):
            hook(*args)
