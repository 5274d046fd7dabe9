"""Participants of a round."""

from dataclasses import dataclass
from math import isfinite

from lightning_fl.core.errors import ConfigurationError


@dataclass(frozen=True)
class Participant:
    """One client's part in one round.

    Args:
        client: which client trains.
        model: shared model that the client trains and contributes to. ``None``: it trains the model it uses (its row
            of P) and contributes to every model with a non-zero entry in its column of A.
        weight: weight in that model's average, before normalisation over the cohort; ``None``: the entry in A.
        feeds: without ``model``, the models that it contributes to instead of those of A.
        own: without ``model``, continue from its own model (``client_store("own_models")``), which is not sent.
        draw: number, from 0, of this turn if the client was drawn several times for one model. Every turn starts from
            the same weights and has its own batches.

    Raises:
        ConfigurationError: the weight is negative or not finite, ``model`` is given with ``feeds`` or ``own``, or
            ``draw`` is negative or given without ``model``.
    """

    client: int
    model: int | None = None
    weight: float | None = None
    feeds: tuple[int, ...] | None = None
    own: bool = False
    draw: int = 0

    @property
    def assigned(self) -> bool:
        """Whether a callback chose the models that it contributes to, independent of the collaboration."""
        return self.model is not None or self.feeds is not None

    def __post_init__(self) -> None:
        if self.weight is not None and not (isfinite(self.weight) and self.weight >= 0):
            raise ConfigurationError(f"weight={self.weight} of client {self.client}: must be finite and at least 0.")
        if self.model is not None and (self.feeds is not None or self.own):
            raise ConfigurationError(f"client {self.client} has model={self.model} and feeds or own: set model=None.")
        if self.draw and (self.draw < 0 or self.model is None):
            what = f"client {self.client} has draw={self.draw} and model={self.model}"
            raise ConfigurationError(f"{what}: count draws from 0 and name the model that is trained again.")


@dataclass(frozen=True)
class Cohort:
    """Participants of a round, in a fixed order. An empty cohort leaves all models unchanged.

    Raises:
        ConfigurationError: an entry is not a participant, or a client occurs twice with the same model and ``draw``.
    """

    participants: tuple[Participant, ...]

    def __post_init__(self) -> None:
        if strange := [one for one in self.participants if not isinstance(one, Participant)]:
            raise ConfigurationError(f"{strange[0]!r} in a cohort is not a Participant: use Cohort.of(clients).")
        keys = [(participant.client, participant.model, participant.draw) for participant in self.participants]
        if len(set(keys)) < len(keys):
            twice = next(key for key in keys if keys.count(key) > 1)
            what = "" if twice[1] is None else f" in model {twice[1]}"
            raise ConfigurationError(f"client {twice[0]} takes part twice{what}: number its turns (Participant.draw).")

    @classmethod
    def of(cls, clients: "list[int] | range") -> "Cohort":
        """Cohort of clients that each train the model they use."""
        return cls(tuple(Participant(client) for client in clients))

    @property
    def clients(self) -> list[int]:
        """Distinct clients, in order."""
        return list(dict.fromkeys(participant.client for participant in self.participants))

    def refuse_models(self, owner: str) -> None:
        """Refuse participants with a model, which the callback ``owner`` chooses."""
        if any(one.model is not None for one in self.participants):
            other = "the callback that selects clients, which assigns models to them"
            raise ConfigurationError(f"{owner} conflicts with {other}: remove one of the two from trainer.callbacks.")
