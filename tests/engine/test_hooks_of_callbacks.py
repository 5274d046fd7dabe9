"""Who is told of what, in which order, and through which method."""

from lightning.pytorch.profilers import SimpleProfiler

from lightning_fl.engine.hooks import Hooks


class Base:
    def on_start(self, run: str, client: int) -> None:
        """Neutral."""

    def on_end(self, run: str) -> None:
        """Neutral."""

    def _private(self) -> None:
        """Not a hook."""


class Starts(Base):
    def __init__(self, name: str, heard: list) -> None:
        self.name, self.heard = name, heard

    def on_start(self, run: str, client: int) -> None:
        self.heard.append((self.name, run, client))


class Ends(Base):
    def on_end(self, run: str) -> str:
        return f"end of {run}"

    def _private(self) -> None:
        """Its own, and no hook."""


def test_those_that_define_a_hook_are_told_in_their_order() -> None:
    heard: list = []
    hooks = Hooks([Starts("a", heard), Ends(), Starts("b", heard)], Base, "run")
    hooks.call("on_start", 3)
    assert heard == [("a", "run", 3), ("b", "run", 3)]
    assert [hook.owner for hook in hooks.of("on_end")] == ["Ends"]
    assert hooks.of("on_end")[0]() == "end of run"


def test_listeners_that_join_later_are_told_too() -> None:
    listeners: list = []
    hooks = Hooks(listeners, Base, "run")
    assert hooks.of("on_end") == []
    listeners.append(Ends())
    assert len(hooks.of("on_end")) == 1


def test_a_profiler_is_told_of_every_call_by_class_and_method() -> None:
    profiler = SimpleProfiler()
    Hooks([Ends()], Base, "run", profiler).call("on_end")
    assert list(profiler.recorded_durations) == ["[Callback]Ends.on_end"]


def test_nobody_listens_by_default() -> None:
    Hooks().call("anything", 1, 2)
