"""Callbacks that write down what happens in a run, or let nobody take part in a round."""

from collections.abc import Callable
from typing import Any

from lightning_fl import FederatedTrainer
from lightning_fl.callbacks import Callback
from lightning_fl.engine.weights.flat import Weights


class AfterRounds(Callback):
    """What a function finds of the run at the end of every round."""

    def __init__(self, find: Callable[[FederatedTrainer], Any]) -> None:
        self.find = find
        self.found: list[Any] = []

    def on_round_end(self, run: FederatedTrainer) -> None:
        self.found.append(self.find(run))


class Learned(Callback):
    """The weights of each client at the end of its latest turn."""

    def __init__(self) -> None:
        self.weights: dict[int, Weights] = {}

    def on_client_end(self, run: FederatedTrainer, client: int) -> None:
        self.weights[client] = run.client_weights().clone()


class Resting(Callback):
    """Nobody takes part in one round, counted from 1."""

    def __init__(self, round_number: int) -> None:
        self.round_number = round_number

    def on_round_start(self, run: FederatedTrainer) -> None:
        run.resting_clients = set(range(run.num_clients)) if run.current_round + 1 == self.round_number else set()
