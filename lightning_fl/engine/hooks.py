"""Hook registry, so that the engine does not import callbacks."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from lightning.pytorch.profilers import PassThroughProfiler, Profiler


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
        return type(self.listener).__name__

    def __call__(self, *args: Any) -> Any:
        with self.profiler.profile(f"[Callback]{self.owner}.{self.name}"):
            return getattr(self.listener, self.name)(self.run, *args)


@dataclass(eq=False, repr=False)
class Hooks:
    """The hooks of a run, in the listeners' order; methods of their base class do nothing."""

    listeners: Sequence[Any] = ()
    base: type = object
    run: Any = None
    profiler: Profiler = field(default_factory=PassThroughProfiler)

    def of(self, name: str) -> list[Hook]:
        """The hooks of this name that listeners define."""
        return [Hook(one, name, self.run, self.profiler) for one in self.listeners if overrides(one, name, self.base)]

    def call(self, name: str, *args: Any) -> None:
        for hook in self.of(name):
            hook(*args)
