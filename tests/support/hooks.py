"""Callbacks that tests write in one line: some hooks as functions, chosen cohorts, an early end."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from lightning_fl.callbacks import Callback
from lightning_fl.core.cohort import Cohort


def hooks(role: str | None = None, **functions: Callable[..., Any]) -> Callback:
    """A callback whose hooks are functions, such as ``hooks(on_round_end=lambda trainer: ...)``."""
    members: dict[str, Any] = {name: staticmethod(function) for name, function in functions.items()}
    return type("Hooks", (Callback,), members if role is None else {"role": role, **members})()


class Cohorts(Callback):
    """Some clients in each round, counted from 1; all in the other rounds."""

    role = "participation"

    def __init__(self, cohorts: Mapping[int, Iterable[int]], num_clients: int) -> None:
        self.cohorts, self.num_clients = cohorts, num_clients

    def select_clients(self, trainer: Any) -> Cohort:
        return Cohort.of(self.cohorts.get(trainer.current_round + 1, range(self.num_clients)))


class StopAfter(Callback):
    """Ends the run after some rounds."""

    def __init__(self, rounds: int) -> None:
        self.rounds = rounds

    def on_round_end(self, trainer: Any) -> None:
        trainer.should_stop |= trainer.current_round == self.rounds
