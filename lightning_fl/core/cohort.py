"""Who takes part in a round."""

from dataclasses import dataclass
from math import isfinite

from lightning_fl.core.errors import ConfigurationError

__all__ = ["Cohort", "Participant"]


@dataclass(frozen=True)
class Participant:
    """One client's part in one round.

    Args:
        client: which client trains.
        model: the shared model it trains and contributes to. ``None``: it trains what it uses (its row of P) and
            contributes to every model whose row of A names it.
        weight: its weight in that model's average, before weights are normalised over the cohort; ``None`` for its
            entry in A.
        feeds: where ``model`` is ``None``, the models that it contributes to in place of those whose row of A names it.
        own: where ``model`` is ``None``, it goes on from its own model (``client_store("own_models")``), which nobody
            sends it.
        draw: tells turns of one client with one model apart, where it was drawn several times: each trains from the
            same start with batches of its own, counted from 0.

    Raises:
        ConfigurationError: the weight is negative or not finite, there is a model beside ``feeds`` or ``own``, or
            ``draw`` is no number of at least 0 or has no model beside it.
    """

    client: int
    model: int | None = None
    weight: float | None = None
    feeds: tuple[int, ...] | None = None
    own: bool = False
    draw: int = 0

    def __post_init__(self) -> None:
        if self.weight is not None and not (isfinite(self.weight) and self.weight >= 0):
            raise ConfigurationError(
                f"client {self.client} takes part with weight={self.weight}: give a finite number of at least 0."
            )
        if self.model is not None and (self.feeds is not None or self.own):
            raise ConfigurationError(
                f"client {self.client} takes part with model={self.model} and feeds or own: a model is both what it"
                " trains and what it contributes to; give model=None."
            )
        if self.draw and (self.draw < 0 or self.model is None):
            raise ConfigurationError(
                f"client {self.client} takes part with draw={self.draw} and model={self.model}: draws are counted from"
                " 0, and name the model that is trained again."
            )


@dataclass(frozen=True)
class Cohort:
    """The participants of a round, in a fixed order. Where there are none, the round leaves all models as they are.

    Raises:
        ConfigurationError: an entry is no participant, or somebody takes part twice in the same model with the same
            ``draw``.
    """

    participants: tuple[Participant, ...]

    def __post_init__(self) -> None:
        for participant in self.participants:
            if not isinstance(participant, Participant):
                raise ConfigurationError(
                    f"a cohort has {participant!r} in place of a Participant: give Participant(client), or make it by"
                    " Cohort.of(clients)."
                )
        keys = [(participant.client, participant.model, participant.draw) for participant in self.participants]
        if len(set(keys)) < len(keys):
            twice = next(key for key in keys if keys.count(key) > 1)
            what = "" if twice[1] is None else f" in model {twice[1]}"
            raise ConfigurationError(
                f"client {twice[0]} takes part twice{what}: name it once and give the sum as its weight, or"
                " number its turns (Participant.draw)."
            )

    @classmethod
    def of(cls, clients: "list[int] | range") -> "Cohort":
        """These clients, each training the model it uses."""
        return cls(tuple(Participant(client) for client in clients))

    @property
    def clients(self) -> list[int]:
        """The distinct clients, in order."""
        return list(dict.fromkeys(participant.client for participant in self.participants))
