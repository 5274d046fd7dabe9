"""Account of the bytes that clients receive and send, whatever processes simulate them."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from lightning_fl.core.client_names import are_many
from lightning_fl.core.cohort import Participant
from lightning_fl.core.collaboration import Collaboration
from lightning_fl.engine.weights.flat import Weights


@dataclass
class SavedAccount:
    """Saved form of a :class:`CommunicationAccount`; ``models`` are places in ``holders`` and ``initial``."""

    bytes_received: dict[int, int] = field(default_factory=dict)
    bytes_sent: dict[int, int] = field(default_factory=dict)
    models: list[int] = field(default_factory=list)
    holders: list[list[int]] = field(default_factory=list)
    initial: list[bool] = field(default_factory=list)


@dataclass(eq=False)
class _Known:
    holders: set[int] = field(default_factory=set)
    initial: bool = False


class _Structure:
    """Contributors and users of each model in a collaboration."""

    def __init__(self, collaboration: Collaboration) -> None:
        makes, uses = collaboration.aggregation > 0, collaboration.personalisation > 0
        makers = torch.where(makes.sum(1) == 1, collaboration.aggregation.argmax(1), -1)
        own_use = uses[makers.clamp(0), torch.arange(len(makers))]
        private = (makers >= 0) & (uses.sum(0) == own_use)
        self.collaboration = collaboration
        #: The single model that a client uses, length N; -1 for a mixture.
        self.model_of: list[int] = torch.where(uses.sum(1) == 1, collaboration.personalisation.argmax(1), -1).tolist()
        #: The single client that contributes to a model, length K; -1 for several.
        self.maker_of: list[int] = makers.tolist()
        #: Whether other clients use what a client learns, length N.
        self.sends: list[bool] = (makes & ~private.unsqueeze(1)).any(0).tolist()


class CommunicationAccount:
    """Bytes that each client has received and sent in a run, as if server and clients were separate machines.

    Parameter vectors count: weights, gradients, weights of discriminators. Numbers, evaluations and the delivery of
    final models do not. A model's size is that of its shared parameters and buffers, each once.

    A turn receives its start model (a mixture counts as one model) and sends its result, unless it fails. A client does
    not receive what it already holds: an unchanged model that it received before, all parts of a mixture, or a model
    that it contributes to alone. A client sends nothing if it contributes to its model alone and no other client uses
    it. Callbacks record additional transfers here, the same on every rank.
    """

    def __init__(self) -> None:
        self.model_bytes = 0  #: size of the shared part of a model
        self.extra_vectors = 0  #: further vectors of that size that go with a model in both directions
        self.bytes_received: Counter[int] = Counter()  #: client -> bytes
        self.bytes_sent: Counter[int] = Counter()  #: client -> bytes
        #: Weak keys, so that a new model at the address of a deleted one is not confused with it.
        self._known: WeakKeyDictionary[Weights, _Known] = WeakKeyDictionary()
        self._structure: _Structure | None = None

    def receive(self, clients: Iterable[int], models: Iterable[Weights]) -> None:
        """Record that clients receive models, unless they hold them."""
        wanted, size = set(clients), self.model_bytes
        for model in models:
            known = self._of(model)
            for client in wanted - known.holders:
                self.bytes_received[client] += size
            known.holders |= wanted

    def send(self, clients: Iterable[int], num_bytes: int | None = None) -> None:
        """Record that each client sends a vector, by default of the model's size."""
        size = self.model_bytes if num_bytes is None else num_bytes
        for client in clients:
            self.bytes_sent[client] += size

    def between_clients(self, counts: Tensor) -> None:
        """Record that client k receives ``counts[k, j]`` models directly from client j; integers [N, N]."""
        size = self.model_bytes
        self.add(
            {client: count * size for client, count in enumerate(counts.sum(1).tolist()) if count},
            {client: count * size for client, count in enumerate(counts.sum(0).tolist()) if count},
        )

    def add(self, received: Mapping[int, int], sent: Mapping[int, int]) -> None:
        """Record other vectors that clients receive and send: client -> bytes."""
        self.bytes_received.update(received)
        self.bytes_sent.update(sent)

    def begin(self, initial: Weights) -> None:
        """Record the initial model, which clients that train alone do not receive."""
        self._known[initial] = _Known(initial=True)

    def begin_turns(
        self, participants: Iterable[Participant], models: Sequence[Weights], collaboration: Collaboration
    ) -> None:
        structure, size = self._matrices(collaboration), self.model_bytes * (1 + self.extra_vectors)
        for participant in participants:
            client, given = participant.client, participant.model
            if participant.own:
                continue
            model = structure.model_of[client] if given is None else given
            used = [model] if model >= 0 else collaboration.personalisation[client].nonzero().flatten().tolist()
            parts = {self._of(models[k]) for k in used}
            if all(client in part.holders for part in parts):
                continue
            if len(parts) == 1:
                (part,) = parts
                part.holders.add(client)
                if part.initial and given is None and model >= 0 and structure.maker_of[model] == client:
                    continue
            self.bytes_received[client] += size

    def end_turns(
        self, arrived: Sequence[Participant], models: Sequence[Weights], collaboration: Collaboration, *, all_send: bool
    ) -> None:
        """Record that participants without failed turns send their updates: those that count, or if told, all."""
        structure = self._matrices(collaboration)
        senders = [
            one.client
            for one in arrived
            if all_send or (one.weight != 0 and (one.assigned or structure.sends[one.client]))
        ]
        self.send(senders, self.model_bytes * (1 + self.extra_vectors))
        free = {one.client for one in arrived if not one.assigned}
        for model, maker in zip(models, structure.maker_of, strict=True):
            if maker in free:
                self._of(model).holders.add(maker)

    def end_personal_turns(
        self, clients: Collection[int], models: Sequence[Weights], collaboration: Collaboration, *, by_server: bool
    ) -> None:
        """Record that clients receive the models that they average with their own, which is model i of client i.

        Args:
            collaboration: a row of A names the models that a client averages.
            by_server: clients sent their models to a server, which averaged them.
        """
        rows = sorted(clients)
        if by_server:
            self.send(rows, self.model_bytes * (1 + self.extra_vectors))
        else:
            counts = torch.zeros(collaboration.aggregation.shape, dtype=torch.int64)
            counts[rows] = (collaboration.aggregation[rows] > 0).long()
            self.between_clients(counts.fill_diagonal_(0))
        alone = ((collaboration.aggregation > 0).sum(1) == 1).tolist()
        for client in rows:
            self._known[models[client]] = _Known({client} if alone[client] or not by_server else set())

    def _of(self, model: Weights) -> _Known:
        return self._known.setdefault(model, _Known())

    def _matrices(self, collaboration: Collaboration) -> _Structure:
        if self._structure is None or self._structure.collaboration is not collaboration:
            self._structure = _Structure(collaboration)
        return self._structure

    def curves(self) -> dict[str, float]:
        return {
            "communication/megabytes_received": self.bytes_received.total() / 1e6,
            "communication/megabytes_sent": self.bytes_sent.total() / 1e6,
        }

    def summary(self, names: Sequence[str]) -> dict[str, Any]:
        """The bytes in all and of each client; of many clients, of those that took part."""
        listed = sorted({*self.bytes_received, *self.bytes_sent}) if are_many(len(names)) else range(len(names))
        return {
            "bytes_received": self.bytes_received.total(),
            "bytes_sent": self.bytes_sent.total(),
            "clients": {
                names[client]: {"bytes_received": self.bytes_received[client], "bytes_sent": self.bytes_sent[client]}
                for client in listed
            },
        }

    def state_dict(self, models: Sequence[Weights]) -> dict[str, Any]:
        known = [self._of(model) for model in models]
        places = {one: place for place, one in enumerate(dict.fromkeys(known))}
        holders, initial = [sorted(one.holders) for one in places], [one.initial for one in places]
        received, sent = dict(self.bytes_received), dict(self.bytes_sent)
        return vars(SavedAccount(received, sent, [places[one] for one in known], holders, initial))

    def load_state_dict(self, state: dict[str, Any], models: list[Weights]) -> "CommunicationAccount":
        """Restore a :meth:`state_dict`, for the models of that time; an empty one starts at 0. Returns the account."""
        saved = SavedAccount(**state)
        self.bytes_received, self.bytes_sent = Counter(saved.bytes_received), Counter(saved.bytes_sent)
        known = [_Known(set(holders), initial) for holders, initial in zip(saved.holders, saved.initial, strict=True)]
        firsts: dict[int, Weights] = {}
        for number, (place, model) in enumerate(zip(saved.models, models, strict=bool(state))):
            if (first := firsts.setdefault(place, model)).equal(model):
                models[number] = first  # what was one object is one again
        self._known.clear()
        self._known.update((model, known[place]) for model, place in zip(models, saved.models, strict=bool(state)))
        return self
