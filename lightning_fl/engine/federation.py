"""The state of a federation (what a round changes and a checkpoint keeps), and of the present round."""

import copy
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from lightning_fl.core.cohort import Participant
from lightning_fl.core.collaboration import Collaboration
from lightning_fl.core.errors import ConfigurationError
from lightning_fl.core.metrics import ClientMetrics, GainSummary, MetricSummary, lightning_names
from lightning_fl.data.module import SPLITS, Split
from lightning_fl.engine.client import ClientReport, ClientState, LocalWork, packed, unpacked
from lightning_fl.engine.communication import CommunicationAccount, SavedAccount
from lightning_fl.engine.processes import Processes
from lightning_fl.engine.saved_fields import from_plain, get_entry, saved, saved_fields, set_entry, to_plain
from lightning_fl.engine.weights.flat import FlatModule, Weights, copy_spans_
from lightning_fl.engine.weights.local_parameters import LocalParameters, shared_bytes
from lightning_fl.engine.weights.weighted_sum import mixture

#: Client stores that the engine reads: state of the strategy, models that clients keep in place of mixtures, models
#: that they have at the end of a fit, and personal layers.
STRATEGY = "strategy"
OWN_MODELS, FINAL_MODELS, PERSONAL_LAYERS = "own_models", "final_models", "personal_layers"
#: Keys of the identity of the model to which a state of server or client belongs.
IDENTITY, OF_MODEL = "identity of the model", "model"
#: Identity of the model of a client that uses several.
MIXTURE = "mixture"


@dataclass
class _SavedMetrics:
    of: dict[str, MetricSummary]
    clients: Any = None  # of files of earlier versions


def _load_metrics(state: dict[Split, Any], names: Sequence[str]) -> dict[Split, ClientMetrics]:
    return {
        split: ClientMetrics({name: MetricSummary(**one).named(names) for name, one in kept["of"].items()}, names)
        for split, kept in state.items()
    }


def _of_models(name: str, **options: Any) -> dict[str, Any]:
    return saved(
        save=lambda self: {model: packed(kept) for model, kept in getattr(self, name).items()},
        load=lambda self, state, flat, names: {k: unpacked(kept, flat.device) for k, kept in state.items()},
        **options,
    )


@dataclass
class Federation:
    """State from which a resumed run continues; :func:`.saved` marks the fields that checkpoints keep."""

    models: list[Weights] = field(default_factory=list, metadata=saved(evaluates=True, required=True))
    """the K shared models, flat."""
    _collaboration: Collaboration = field(
        default=None,  # type: ignore[assignment]
        metadata=saved(key="collaboration", evaluates=True, required=True),
    )
    """see :attr:`collaboration`."""
    current_round: int = field(default=0, metadata=saved(key="round", evaluates=True, required=True))
    """rounds done."""
    global_step: int = field(default=0, metadata=saved())
    """optimiser steps of the longest turn of each round, summed over the rounds done."""
    of_clients: list[str] = field(default_factory=list)
    """names of the clients that the models are of."""
    num_samples: list[int] = field(default_factory=list)
    """training samples per client, length N; known in a fit."""
    personal: LocalParameters | None = field(
        default=None,
        metadata=saved(
            key="personal_layers",
            evaluates=True,
            plain=list[str],
            save=lambda self: [] if self.personal is None else self.personal.patterns,
            load=lambda self, patterns, flat, names: LocalParameters(flat, patterns) if patterns else None,
        ),
    )
    """parameters and buffers that are never averaged; set by :meth:`keep_local`."""
    trainable: dict[str, bool] = field(default_factory=dict, metadata=saved(evaluates=True))
    """parameters that the module's hooks have frozen (``False``) or unfrozen in clients' turns."""
    constant: frozenset[str] = field(default=frozenset(), metadata=saved(evaluates=True))
    """parameters that are frozen and equal on all clients; set by :meth:`keep_constant`."""
    client_states: dict[int, ClientState] = field(
        default_factory=dict, metadata=saved(key="clients", per_client=True, trains=True)
    )
    """hosted client -> state of its optimisers and schedulers."""
    client_stores: dict[str, dict[int, Any]] = field(
        default_factory=dict, metadata=saved(per_client=True, evaluates=True)
    )
    """name -> hosted client -> what it keeps for a callback or the strategy."""
    model_states: dict[int, dict[str, Any]] = field(
        default_factory=dict, metadata=_of_models("model_states", evaluates=True)
    )
    """shared model -> what the server keeps for it."""
    optimizer_states: dict[int, dict[str, Any]] = field(
        default_factory=dict, metadata=_of_models("optimizer_states", trains=True)
    )
    """shared model -> averaged states of its clients' optimisers."""
    absent_clients: set[int] = field(default_factory=set, metadata=saved(evaluates=True))
    """clients that have not joined yet."""
    resting_clients: set[int] = field(default_factory=set, metadata=saved(trains=True))
    """clients that have joined and do not train at present."""
    wall_time_seconds: float = field(default=0.0, metadata=saved())
    """duration of the rounds done."""
    communication: CommunicationAccount = field(
        default_factory=CommunicationAccount,
        metadata=saved(
            plain=SavedAccount,
            save=lambda self: self.communication.state_dict(self.models),
            load=lambda self, state, flat, names: self.communication.load_state_dict(state, self.models),
        ),
    )
    """bytes that clients received and sent."""
    metrics: dict[Split, ClientMetrics] = field(
        default_factory=dict,
        metadata=saved(
            key="measured.metrics",
            plain=dict[str, _SavedMetrics],
            save=lambda self: {split: {"of": to_plain(of)} for split, of in self.metrics.items()},
            load=lambda self, state, flat, names: _load_metrics(state, names),
        ),
    )
    """split -> the latest metrics."""
    gains: dict[Split, dict[str, GainSummary]] = field(default_factory=dict, metadata=saved(key="measured.gains"))
    """split -> what clients gain over a reference."""
    evaluated_samples: dict[Split, dict[int, int]] = field(
        default_factory=dict, metadata=saved(key="measured.evaluated_samples")
    )
    """split -> client -> samples of its latest evaluation."""
    means: dict[str, Tensor] = field(
        default_factory=dict,
        metadata=saved(
            key="callback_metrics",
            trains=True,
            plain=dict[str, float],
            save=lambda self: {name: float(value) for name, value in self.means.items()},
            load=lambda self, state, flat, names: {name: torch.tensor(value) for name, value in state.items()},
        ),
    )
    """metric -> its latest mean over clients, as modules and schedulers read it."""
    models_are_final: bool = False
    """the models are not those of a round (fine-tuned ones, each client's best)."""
    interrupted_by: int | None = None
    """the signal that ended the fit early."""

    def begin(self, flat: FlatModule, num_clients: int) -> None:
        """Start with one model for all clients, the module's weights, unless there are models already."""
        if not self.models:
            self.models = [flat.weights.clone()]
            self._collaboration = Collaboration.fedavg(self.num_samples or [1] * num_clients)
            self.communication.begin(self.models[0])
        self.to_(flat.device)
        self._count_bytes(flat)

    def to_(self, device: torch.device) -> None:
        states = [*self.model_states.values(), *self.optimizer_states.values()]
        for one in (*self.models, *(value for state in states for value in state.values())):
            if isinstance(one, Weights):
                one.to_(device)

    def add_late_parameters(self, flat: FlatModule, moved: Callable[[Weights], Weights] | None) -> None:
        """Add parameters created before the first turn; ``moved`` converts weights to a new layout."""
        if moved is not None:
            self.models = [moved(model) for model in self.models]
            self.communication.begin(self.models[0])
        self.keep_local(flat, [] if self.personal is None else self.personal.patterns)

    def adopt(self, flat: FlatModule) -> None:
        """Copy to all models what a hook changed in the module, which held the first model."""
        weights, first = flat.collect(), self.models[0]
        changed = [span for span in flat.spans() if not torch.equal(weights.part(span), first.part(span))]
        for model in self.models:
            copy_spans_(model, weights, changed)

    def freeze(self, flat: FlatModule, turns: Sequence[Mapping[str, bool]]) -> None:
        """Freeze what hooks froze in every turn of a round; what ended any turn trainable is trainable from now on."""
        flags = {name: flag for changed in turns for name, flag in changed.items()}
        now = {name: flag or any(name not in changed for changed in turns) for name, flag in sorted(flags.items())}
        flat.set_trainable(now)
        self.trainable |= now

    def for_evaluation(self) -> "Federation":
        """The state for an evaluation of these models, without that of training; the latest metrics stay."""
        fresh = Federation()
        reset = [one.name for one, _, how in saved_fields(Federation) if how.trains]
        return replace(self, **{name: getattr(fresh, name) for name in reset})

    def with_models(
        self, models: list[Weights], collaboration: Collaboration, stores: dict[str, dict[int, Any]], current_round: int
    ) -> "Federation":
        """This federation at another time."""
        return replace(
            self, models=models, _collaboration=collaboration, client_stores=stores, current_round=current_round
        )

    @property
    def collaboration(self) -> Collaboration:
        """Which clients build and use which models; with another K, models start as their clients' mixtures."""
        return self._collaboration

    @collaboration.setter
    def collaboration(self, collaboration: Collaboration) -> None:
        if (given := collaboration.num_clients) != (count := self.collaboration.num_clients):
            raise ConfigurationError(f"the collaboration has {given} clients, the data have {count}.")
        if collaboration.num_models != len(self.models):
            self.regroup(collaboration)
        self._collaboration = collaboration

    def regroup(self, collaboration: Collaboration) -> None:
        """Set a collaboration whose models start as the mixtures of their clients' models."""
        needed = (collaboration.aggregation > 0).any(0).tolist()
        starts = [self.shared_model(client) if use else self.models[0] for client, use in enumerate(needed)]
        self.models = [mixture(row, starts) for row in collaboration.aggregation.tolist()]
        self._collaboration = collaboration

    def shares(self, model: int) -> dict[int, float]:
        """Weights in a model's average of its clients: those that have joined and use it alone, also if not drawn."""
        row = self.collaboration.aggregation[model] * (self.collaboration.personalisation[:, model] == 1)
        row[sorted(self.absent_clients)] = 0.0
        clients = row.nonzero()[:, 0]
        return dict(zip(clients.tolist(), row[clients].tolist(), strict=True))

    def identities(self) -> list[str]:
        """Identity of each model by its clients and their shares; its number if no client uses it alone."""
        return self.collaboration.identities(self.absent_clients)

    def forget_changed(self, names: Collection[str]) -> None:
        """Forget the states, on server and clients, of models whose clients or shares have changed; others move."""
        now = self.identities()
        for name in ("model_states", "optimizer_states"):
            states = {state.get(IDENTITY, now[k % len(now)]): state for k, state in getattr(self, name).items()}
            setattr(self, name, {k: states[own] for k, own in enumerate(now) if own in states})
        present = {MIXTURE, *now, None, *range(len(now))}  # numbers in checkpoints of earlier versions
        kept = self.client_stores.get(STRATEGY, {}) if names else {}
        for client, values in kept.items():
            if values.get(OF_MODEL) not in present:
                kept[client] = {name: value for name, value in values.items() if name not in names}

    def shared_model(self, client: int) -> Weights:
        alone = len(self.models) == 1
        return self.models[0] if alone else mixture(self.collaboration.personalisation[client].tolist(), self.models)

    def own_model(self, client: int, device: torch.device) -> Weights | None:
        """A hosted client's own model, which a callback keeps instead of a mixture of shared ones."""
        own = self.own_models.get(client)
        return None if own is None else Weights.from_state_dict(own, device)

    def client_model(self, client: int, device: torch.device) -> Weights:
        """A client's model: its mixture of the shared models, with its personal layers if this rank hosts it."""
        if (final := self.final_models.get(client)) is not None:
            return Weights.from_state_dict(final, device)
        shared, own = self.own_model(client, device) or self.shared_model(client), self.personal_layers.get(client)
        return shared if self.personal is None or own is None else self.personal.insert_(shared.clone(), own)

    @property
    def own_models(self) -> dict[int, dict[str, Tensor]]:
        """Hosted client -> the model that it keeps in place of a mixture of shared ones."""
        return self.client_stores.get(OWN_MODELS, {})

    @property
    def final_models(self) -> dict[int, dict[str, Tensor]]:
        """Hosted client -> the model that it has at the end of a fit (fine-tuned, or of its best round)."""
        return self.client_stores.get(FINAL_MODELS, {})

    @property
    def personal_layers(self) -> dict[int, dict[str, Tensor]]:
        """Hosted client -> its personal layers, for those that have trained them."""
        return self.client_stores.get(PERSONAL_LAYERS, {})

    def curve_name(self, name: str, split: Split) -> str:
        """A metric's name among all curves: with its split if an earlier split has a metric of the same name."""
        earlier = SPLITS[: SPLITS.index(split)]
        return f"{split}/{name}" if any(name in self.metrics.get(one, {}) for one in earlier) else name

    def client_store(self, name: str) -> dict[int, Any]:
        return self.client_stores.setdefault(name, {})

    def snapshot_client(self, client: int) -> Callable[[], None]:
        """Return a function that restores what a hosted client keeps now, after a failed turn."""
        state = copy.deepcopy(self.client_states.get(client))
        kept = {name: of[client] for name, of in self.client_stores.items() if client in of}

        def restore() -> None:
            for name, of in self.client_stores.items():
                of.pop(client, None)
                of.update({client: kept[name]} if name in kept else {})
            self.client_states.pop(client, None)
            self.client_states.update({} if state in (None, ClientState()) else {client: state})

        return restore

    def keep_local(self, flat: FlatModule, patterns: Sequence[str]) -> None:
        self.personal = LocalParameters(flat, patterns) if patterns else None
        self._count_bytes(flat)

    def keep_constant(self, flat: FlatModule, names: Collection[str]) -> None:
        """Freeze parameters that all clients have, so that no round sends them; unfreeze those frozen before."""
        changes = dict.fromkeys(self.constant, True) | dict.fromkeys(names, False)
        flat.set_trainable(changes)
        self.trainable |= changes
        self.constant = frozenset(names)
        self._count_bytes(flat)

    def _count_bytes(self, flat: FlatModule) -> None:
        self.communication.model_bytes = shared_bytes(flat, self.personal, self.constant)

    def take_metrics(self, split: Split, metrics: ClientMetrics) -> None:
        """Keep a split's metrics as its latest, and their means as the latest values of their names in any split."""
        self.metrics[split] = metrics
        means = lightning_names(metrics, steps=split == "train")
        self.means.update({name: torch.tensor(mean) for name, mean in means.items()})

    def state_dict(self, processes: Processes) -> dict[str, Any]:
        """Plain values and tensors for a checkpoint; every rank must call it, and gets private clients' own states."""
        state = {"num_clients": self.collaboration.num_clients, **self.common_state()}
        kept = {"": {client: one.state_dict() for client, one in self.client_states.items()}, **self.client_stores}
        of_clients: dict[int, dict[str, Any]] = {
            client: {name: of[client] for name, of in kept.items() if client in of}
            for client in sorted(set().union(*kept.values()))
        }
        if not processes.private:
            of_clients = processes.exchange(of_clients)
        stores: dict[str, dict[int, Any]] = {
            name: {client: found[name] for client, found in of_clients.items() if name in found}
            for name in sorted({name for found in of_clients.values() for name in found})
        }
        return state | {"clients": stores.pop("", {}), "client_stores": stores}

    def common_state(self, beginning: str = "") -> dict[str, Any]:
        """The part of a checkpoint that is not of single clients, for keys that start with ``beginning``."""
        state: dict[str, Any] = {}
        for one, key, how in saved_fields(Federation):
            if key.startswith(beginning) and not how.per_client:
                set_entry(state, key, to_plain(getattr(self, one.name)) if how.save is None else how.save(self))
        return state

    def restore_validation(self, measured: Mapping[str, Any], names: Sequence[str]) -> None:
        """Restore the latest validation from the "val" entries of a checkpoint's ``measured``."""
        self.metrics |= _load_metrics({"val": measured["metrics"]["val"]}, names)
        if "gains" in measured:
            self.gains["val"] = {name: GainSummary(**one) for name, one in measured["gains"]["val"].items()}
        self.evaluated_samples["val"] = measured["evaluated_samples"]["val"]

    def load_state_dict(
        self, state: dict[str, Any], flat: FlatModule, processes: Processes, *, weights_only: bool = False
    ) -> None:
        """Restore what :meth:`state_dict` returned; ``weights_only`` restores what an evaluation needs."""
        names = state.get("client_names") or ()
        self.models_are_final = weights_only and bool(state.get("client_stores", {}).get(FINAL_MODELS))

        def of_hosted(values: Mapping[int, Any]) -> dict[int, Any]:
            return {client: one for client, one in values.items() if processes.hosts(client)}

        stores = {name: of_hosted(values) for name, values in state.get("client_stores", {}).items()}
        state = {**state, "clients": of_hosted(state.get("clients", {})), "client_stores": stores}
        for one, key, how in saved_fields(Federation):
            plain = get_entry(state, key)
            if plain is MISSING or (weights_only and not how.evaluates):
                continue
            value = from_plain(plain, one.type, flat.device) if how.load is None else how.load(self, plain, flat, names)
            setattr(self, one.name, value)
        flat.set_trainable(self.trainable)
        self._count_bytes(flat)


@dataclass
class Round:
    """The state of the present round, which is not saved."""

    fitting: bool = False  #: a fit is running
    first_work: LocalWork | None = None  #: length of the turns of the first round, if a callback set it
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
        self.logged = {}
