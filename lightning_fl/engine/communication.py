"""What clients receive and send: an account of a run in bytes, whatever processes simulate it."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from lightning_fl.core.cohort import Participant
from lightning_fl.core.collaboration import Collaboration
from lightning_fl.engine.weights.flat import Weights

__all__ = ["CommunicationAccount"]


@dataclass(eq=False)
class _Known:
    """What is known of one of the server's models: who holds it, and whether it is what the run began with."""

    holders: set[int] = field(default_factory=set)
    initial: bool = False


class _Structure:
    """Who makes and who uses which model, read off a collaboration once.

    Attributes:
        model_of: the one model that a client uses, length N; -1 for a mixture.
        maker_of: the one client that a model is made by, length K; -1 for several.
        sends: whether what a client learns is of use to somebody else, length N.
    """

    def __init__(self, collaboration: Collaboration) -> None:
        makes, uses = collaboration.aggregation > 0, collaboration.personalisation > 0
        makers = torch.where(makes.sum(1) == 1, collaboration.aggregation.argmax(1), -1)
        own_use = uses[makers.clamp(0), torch.arange(len(makers))]
        private = (makers >= 0) & (uses.sum(0) == own_use)
        self.collaboration = collaboration
        self.model_of: list[int] = torch.where(uses.sum(1) == 1, collaboration.personalisation.argmax(1), -1).tolist()
        self.maker_of: list[int] = makers.tolist()
        self.sends: list[bool] = (makes & ~private.unsqueeze(1)).any(0).tolist()


class CommunicationAccount:
    """Bytes that each client received and sent since the run began, were server and clients on machines of their own.

    Parameter vectors count: weights, gradients, weights of discriminators. Numbers and lists of numbers do not, nor
    does anything that an evaluation or the delivery of the finished models would take. A model's size is that of its
    shared parameters and buffers, each once: personal layers never move.

    A turn receives the model that it starts from, a mixture as one model, and sends what it learned; a turn that fails
    sends nothing. A client does not receive what it holds: a model that it received and that is still the same, all
    parts of a mixture, or a model that it makes alone. A client that makes its model alone, and whose model nobody else
    uses, sends nothing. Between clients, what one receives another sends.

    A callback that makes clients receive or send more than their turns do says so here, alike on every rank:
    :meth:`receive` and :meth:`send`, :meth:`between_clients` where there is no server, :meth:`add` for other vectors.

    Attributes:
        model_bytes: size of the shared part of a model.
        extra_vectors: further vectors of that size that go with a model in both directions.
        bytes_received: client -> bytes.
        bytes_sent: client -> bytes.
    """

    def __init__(self) -> None:
        self.model_bytes = 0
        self.extra_vectors = 0
        self.bytes_received: Counter[int] = Counter()
        self.bytes_sent: Counter[int] = Counter()
        #: By identity, and as long as a model lives: another one at its address is not taken for it.
        self._known: WeakKeyDictionary[Weights, _Known] = WeakKeyDictionary()
        self._structure: _Structure | None = None

    # -- what callbacks declare ----------------------------------------------------------------------------------

    def receive(self, clients: Iterable[int], models: Iterable[Weights]) -> None:
        """Clients receive those of some models that they do not hold."""
        wanted, size = set(clients), self.model_bytes
        for model in models:
            known = self._of(model)
            for client in wanted - known.holders:
                self.bytes_received[client] += size
            known.holders |= wanted

    def send(self, clients: Iterable[int], num_bytes: int | None = None) -> None:
        """Each of some clients sends a vector, of the model's size unless another one is given."""
        size = self.model_bytes if num_bytes is None else num_bytes
        for client in clients:
            self.bytes_sent[client] += size

    def between_clients(self, counts: Tensor) -> None:
        """Clients exchange models directly.

        Args:
            counts: how many models client k receives from client j, integers [N, N].
        """
        size = self.model_bytes
        self.add(
            {client: count * size for client, count in enumerate(counts.sum(1).tolist()) if count},
            {client: count * size for client, count in enumerate(counts.sum(0).tolist()) if count},
        )

    def add(self, received: Mapping[int, int], sent: Mapping[int, int]) -> None:
        """Clients receive and send other vectors: client -> bytes."""
        self.bytes_received.update(received)
        self.bytes_sent.update(sent)

    # -- what the engine counts ----------------------------------------------------------------------------------

    def begin(self, initial: Weights) -> None:
        """The model that a run begins with; who never meets others makes it by itself."""
        self._known[initial] = _Known(initial=True)

    def begin_turns(
        self, participants: Iterable[Participant], models: Sequence[Weights], collaboration: Collaboration
    ) -> None:
        """Participants receive those of the models that they start from."""
        structure, size = self._matrices(collaboration), self.model_bytes * (1 + self.extra_vectors)
        for participant in participants:
            client, given = participant.client, participant.model
            if participant.own:
                continue
            model = structure.model_of[client] if given is None else given
            if model >= 0:
                parts = {self._of(models[model])}
            else:
                row = structure.collaboration.personalisation[client].nonzero().flatten().tolist()
                parts = {self._of(models[k]) for k in row}
            if all(client in part.holders for part in parts):
                continue
            if len(parts) == 1:
                (part,) = parts
                part.holders.add(client)
                if part.initial and given is None and model >= 0 and structure.maker_of[model] == client:
                    continue
            self.bytes_received[client] += size

    def end_turns(
        self,
        arrived: Sequence[Participant],
        models: Sequence[Weights],
        collaboration: Collaboration,
        *,
        judged: bool = False,
    ) -> None:
        """The models are averaged from what participants sent, those whose turns did not fail.

        Args:
            arrived: the participants.
            models: after the average.
            collaboration: by which it was taken.
            judged: who collaborates was decided from what they learned, so that all of them had to send it.
        """
        structure = self._matrices(collaboration)
        senders = [
            participant.client
            for participant in arrived
            if judged or (participant.weight != 0 and (_is_told(participant) or structure.sends[participant.client]))
        ]
        self.send(senders, self.model_bytes * (1 + self.extra_vectors))
        free = {participant.client for participant in arrived if not _is_told(participant)}
        for model, maker in zip(models, structure.maker_of, strict=True):
            if maker in free:
                self._of(model).holders.add(maker)

    def end_personal_turns(
        self,
        clients: Collection[int],
        models: Sequence[Weights],
        collaboration: Collaboration,
        *,
        by_server: bool = False,
    ) -> None:
        """Clients received from others what their own models were averaged with; nobody else holds these.

        Args:
            clients: who took part.
            models: model i is client i's.
            collaboration: a row of A says whose models a client took in.
            by_server: clients sent their models to a server, which made the new ones; who is not averaged with others
                holds its own already.
        """
        rows = sorted(clients)
        if by_server:
            self.send(rows, self.model_bytes * (1 + self.extra_vectors))
            alone = ((collaboration.aggregation > 0).sum(1) == 1).tolist()
            for client in rows:
                self._known[models[client]] = _Known({client} if alone[client] else set())
            return
        counts = torch.zeros(collaboration.aggregation.shape, dtype=torch.int64)
        counts[rows] = (collaboration.aggregation[rows] > 0).long()
        self.between_clients(counts.fill_diagonal_(0))
        for client in rows:
            self._known[models[client]] = _Known({client})

    def _of(self, model: Weights) -> _Known:
        known = self._known.get(model)
        if known is None:
            known = self._known[model] = _Known()
        return known

    def _matrices(self, collaboration: Collaboration) -> _Structure:
        if self._structure is None or self._structure.collaboration is not collaboration:
            self._structure = _Structure(collaboration)
        return self._structure

    # -- the record ----------------------------------------------------------------------------------------------

    def curves(self) -> dict[str, float]:
        """The totals of all clients since the run began."""
        return {
            "communication/megabytes_received": self.bytes_received.total() / 1e6,
            "communication/megabytes_sent": self.bytes_sent.total() / 1e6,
        }

    def summary(self, names: Sequence[str]) -> dict[str, Any]:
        """Totals, and what each client received and sent.

        Args:
            names: the clients'.
        """
        return {
            "bytes_received": self.bytes_received.total(),
            "bytes_sent": self.bytes_sent.total(),
            "clients": {
                name: {"bytes_received": self.bytes_received[client], "bytes_sent": self.bytes_sent[client]}
                for client, name in enumerate(names)
            },
        }

    def state_dict(self, models: Sequence[Weights]) -> dict[str, Any]:
        """Bytes, and who holds which of the run's models; several of them may still be one."""
        known = [self._of(model) for model in models]
        places = {one: place for place, one in enumerate(dict.fromkeys(known))}
        return {
            "bytes_received": dict(self.bytes_received),
            "bytes_sent": dict(self.bytes_sent),
            "models": [places[one] for one in known],
            "holders": [sorted(one.holders) for one in places],
            "initial": [one.initial for one in places],
        }

    def load_state_dict(self, state: dict[str, Any], models: Sequence[Weights]) -> None:
        """Take up what :meth:`state_dict` returned, for the models as they were then; an empty one starts at 0."""
        self.bytes_received, self.bytes_sent = Counter(state.get("bytes_received")), Counter(state.get("bytes_sent"))
        self._known.clear()
        if not state:
            return
        known = [
            _Known(set(holders), initial) for holders, initial in zip(state["holders"], state["initial"], strict=True)
        ]
        for model, place in zip(models, state["models"], strict=True):
            self._known[model] = known[place]


def _is_told(participant: Participant) -> bool:
    """Whether a callback says which models it contributes to, whatever the collaboration."""
    return participant.model is not None or participant.feeds is not None
