"""Who wants to hear of what: the engine knows that there are hooks, not what a callback is."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lightning.pytorch.profilers import PassThroughProfiler, Profiler

__all__ = ["Hook", "Hooks", "overrides"]


def overrides(listener: object, hook: str, base: type) -> bool:
    """Whether an object's class has a method of its own where its base has a neutral one."""
    return getattr(type(listener), hook) is not getattr(base, hook)


@dataclass(frozen=True)
class Hook:
    """One listener's method.

    Args:
        listener: whose.
        name: of the method.
        run: the method's first argument.
        profiler: is told of every call.
    """

    listener: object
    name: str
    run: Any
    profiler: Profiler

    @property
    def owner(self) -> str:
        """The name of the listener's class."""
        return type(self.listener).__name__

    def __call__(self, *args: Any) -> Any:
        """Tell the listener."""
        with self.profiler.profile(f"[Callback]{self.owner}.{self.name}"):
            return getattr(self.listener, self.name)(self.run, *args)


class Hooks:
    """The hooks of a run, in the listeners' order.

    Args:
        listeners: the objects that define hooks; the list is looked at anew at every question.
        base: their class, whose methods are neutral.
        run: what every hook is given first.
        profiler: is told of every call.
    """

    def __init__(
        self, listeners: Sequence[Any] = (), base: type = object, run: Any = None, profiler: Profiler | None = None
    ) -> None:
        self._profiler = profiler or PassThroughProfiler()
        self._listeners = listeners
        self._base = base
        self._run = run

    def of(self, name: str) -> list[Hook]:
        """Those that define a hook."""
        return [
            Hook(one, name, self._run, self._profiler) for one in self._listeners if overrides(one, name, self._base)
        ]

    def call(self, name: str, *args: Any) -> None:
        """Tell all that define a hook."""
        for hook in self.of(name):
            hook(*args)
