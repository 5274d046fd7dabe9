"""The state of a round, which is not saved."""

from dataclasses import dataclass, field

from lightning_fl.core.cohort import Participant
from lightning_fl.engine.client import ClientReport, LocalWork
from lightning_fl.engine.weights.flat import Weights

__all__ = ["Round"]


@dataclass
class Round:
    """The present round."""

    fitting: bool = False  #: a fit is running
    work: LocalWork | None = None  #: length of the turns of this round, if a callback set it
    logged: dict[str, float] = field(default_factory=dict)  #: numbers that callbacks logged
    #: participant of the latest cohort -> identity of the model that it trains.
    trained: dict[Participant, str] = field(default_factory=dict)
    participant: Participant | None = None  #: of the present turn
    reports: dict[int, ClientReport] = field(default_factory=dict)  #: client of the latest cohort -> its report
    survivors: set[int] = field(default_factory=set)  #: clients without failed turns
    #: the shared models before the average, until ``on_aggregate_end`` has been called.
    starts: list[Weights] = field(default_factory=list)
    #: model -> client that contributed to it -> its weight, summing to 1 over the model's clients. Empty if every
    #: client has a model of its own.
    shares: dict[int, dict[int, float]] = field(default_factory=dict)
    evaluated: bool = False  #: the round ended with an evaluation

    def begin(self) -> None:
        """Reset what callbacks set in the round before."""
        self.logged, self.work = {}, None
