"""The state of a round, which is not saved."""

from dataclasses import dataclass, field

from lightning_fl.core.cohort import Participant
from lightning_fl.engine.client import ClientReport, LocalWork
from lightning_fl.engine.weights.flat import Weights

__all__ = ["Round"]


@dataclass
class Round:
    """The present round.

    Attributes:
        fitting: a fit is running.
        work: length of the turns of this round, if a callback set it.
        logged: numbers that callbacks logged.
        trained: participant of the latest cohort -> identity of the model that it trains.
        participant: of the present turn.
        reports: client of the latest cohort -> its report.
        survivors: clients without failed turns.
        starts: the shared models before the average, until ``on_aggregate_end`` has been called.
        shares: model -> client that contributed to it -> its weight, summing to 1 over the model's clients. Empty if
            every client has a model of its own.
        evaluated: the round ended with an evaluation.
    """

    fitting: bool = False
    work: LocalWork | None = None
    logged: dict[str, float] = field(default_factory=dict)
    trained: dict[Participant, str] = field(default_factory=dict)
    participant: Participant | None = None
    reports: dict[int, ClientReport] = field(default_factory=dict)
    survivors: set[int] = field(default_factory=set)
    starts: list[Weights] = field(default_factory=list)
    shares: dict[int, dict[int, float]] = field(default_factory=dict)
    evaluated: bool = False

    def begin(self) -> None:
        """Reset what callbacks set in the round before."""
        self.logged, self.work = {}, None
