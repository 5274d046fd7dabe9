"""Who wants to hear of what: the engine knows that there are hooks, not what a callback is."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["Hook", "Hooks", "overrides"]


def overrides(listener: object, hook: str, base: type) -> bool:
    """Whether an object's class has a method of its own where its base has a neutral one."""
    return getattr(type(listener), hook) is not getattr(base, hook)


@dataclass(frozen=True)
class Hook:
    """One listener's method, looked up when it is called: a profiler may have put a timed one in its place.

    Args:
        listener: whose.
        name: of the method.
        run: the method's first argument.
    """

    listener: object
    name: str
    run: Any

    @property
    def owner(self) -> str:
        """The name of the listener's class."""
        return type(self.listener).__name__

    def __call__(self, *args: Any) -> Any:
        """Tell the listener."""
        return getattr(self.listener, self.name)(self.run, *args)


class Hooks:
    """The hooks of a run, in the listeners' order.

    Args:
        listeners: the objects that define hooks; the list is looked at anew at every question.
        base: their class, whose methods are neutral.
        run: what every hook is given first.
    """

    def __init__(self, listeners: Sequence[Any] = (), base: type = object, run: Any = None) -> None:
        self._listeners = listeners
        self._base = base
        self._run = run

    def of(self, name: str) -> list[Hook]:
        """Those that define a hook."""
        return [Hook(one, name, self._run) for one in self._listeners if overrides(one, name, self._base)]

    def call(self, name: str, *args: Any) -> None:
        """Tell all that define a hook."""
        for hook in self.of(name):
            hook(*args)

    def every(self) -> Iterator[Hook]:
        """All public methods that listeners define anew."""
        names = [name for name, value in vars(self._base).items() if callable(value) and not name.startswith("_")]
        for one in self._listeners:
            yield from (Hook(one, name, self._run) for name in names if overrides(one, name, self._base))
