"""The state of a federation: what a round changes and a checkpoint keeps."""

import copy
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from hashlib import blake2b
from typing import Any

import torch
from torch import Tensor

from lightning_fl.core.cohort import Participant
from lightning_fl.core.collaboration import Collaboration
from lightning_fl.core.errors import ConfigurationError
from lightning_fl.core.metrics import ClientMetrics, GainSummary, MetricSummary, lightning_names
from lightning_fl.data.module import Split
from lightning_fl.engine.client import ClientReport, ClientState, LocalWork, packed, unpacked
from lightning_fl.engine.communication import CommunicationAccount
from lightning_fl.engine.processes import Processes
from lightning_fl.engine.weights.flat import FlatModule, Weights
from lightning_fl.engine.weights.local_parameters import LocalParameters, shared_bytes
from lightning_fl.engine.weights.weighted_sum import mixture

__all__ = ["IDENTITY", "MIXTURE", "OF_MODEL", "STRATEGY", "Federation", "Round"]

#: Whose client store holds what clients keep for the strategy.
STRATEGY = "strategy"
#: Under what server and clients keep the identity of the model that their state belongs to.
IDENTITY, OF_MODEL = "identity of the model", "model"
#: Identity of what a client trains where it uses several models.
MIXTURE = "mixture"


@dataclass
class Federation:
    """Models, who uses them, and what everybody keeps. Going on with a run is going on with this object.

    Attributes:
        models: the K shared models, flat.
        num_samples: training samples per client, length N; known in a fit.
        personal: the parameters and buffers that are never averaged; set by :meth:`keep_local`.
        client_states: hosted client -> what its turns go on from.
        client_stores: name -> hosted client -> what it keeps for a callback, or for the :data:`STRATEGY`.
        model_states: shared model -> what the server keeps for it.
        absent_clients: those that have not joined yet.
        resting_clients: those that have joined and do not train at present.
        current_round: rounds done.
        wall_time_seconds: of these rounds.
        communication: what clients received and sent.
        metrics: split -> the latest metrics.
        evaluated_samples: split -> client -> samples of its latest evaluation.
        gains: split -> what clients gain over a reference.
        means: metric -> its latest mean over clients, as modules and schedulers read it.
        models_are_final: the models are not those of a round (fine-tuned ones, each client's best).
        interrupted_by: the signal that ended the fit early.
        trainable: parameters that the module's hooks have frozen (``False``) or unfrozen in clients' turns.
        constant: parameters that are frozen and that everybody has; set by :meth:`keep_constant`.
    """

    models: list[Weights] = field(default_factory=list)
    _collaboration: Collaboration | None = None
    num_samples: list[int] = field(default_factory=list)
    personal: LocalParameters | None = None
    client_states: dict[int, ClientState] = field(default_factory=dict)
    client_stores: dict[str, dict[int, Any]] = field(default_factory=dict)
    model_states: dict[int, dict[str, Any]] = field(default_factory=dict)
    _identities: tuple[Collaboration, frozenset[int], list[str]] | None = None
    absent_clients: set[int] = field(default_factory=set)
    resting_clients: set[int] = field(default_factory=set)
    current_round: int = 0
    wall_time_seconds: float = 0.0
    communication: CommunicationAccount = field(default_factory=CommunicationAccount)
    metrics: dict[Split, ClientMetrics] = field(default_factory=dict)
    evaluated_samples: dict[Split, dict[int, int]] = field(default_factory=dict)
    gains: dict[Split, dict[str, GainSummary]] = field(default_factory=dict)
    means: dict[str, Tensor] = field(default_factory=dict)
    models_are_final: bool = False
    interrupted_by: int | None = None
    trainable: dict[str, bool] = field(default_factory=dict)
    constant: frozenset[str] = frozenset()

    def begin(self, flat: FlatModule, num_clients: int) -> None:
        """One model for all clients, the module's present weights; where there are models already, they stay."""
        if not self.models:
            self.models = [flat.weights.clone()]
            self._collaboration = Collaboration.fedavg(self.num_samples or [1] * num_clients)
            self.communication.begin(self.models[0])
        self.to_(next(iter(flat.weights.vectors.values())).device)
        self._count_bytes(flat)

    def to_(self, device: torch.device) -> None:
        """Move the shared models, and what the server keeps for them."""
        kept = [value for of_model in self.model_states.values() for value in of_model.values()]
        for one in (*self.models, *kept):
            if isinstance(one, Weights):
                one.to_(device)

    def lay_out(self, flat: FlatModule, moved: Callable[[Weights], Weights] | None) -> None:
        """Take up what the module got before the first turn.

        Args:
            flat: the module.
            moved: makes weights of the new layout of those of the old one; ``None`` where a checkpoint's layout, which
                the run goes on from, had room for it.
        """
        if moved is not None:
            self.models = [moved(model) for model in self.models]
            self.communication.begin(self.models[0])
        self.keep_local(flat, [] if self.personal is None else self.personal.patterns)

    def freeze(self, flat: FlatModule, turns: Sequence[Mapping[str, bool]]) -> None:
        """Freeze and unfreeze for all what hooks did so to in the turns of a round.

        A parameter is trained from now on if somebody trained it at the end of its turn.

        Args:
            flat: the module.
            turns: for each turn of the round, on whatever rank, what it changed.
        """
        flags = {name: flag for changed in turns for name, flag in changed.items()}
        now = {name: flag or any(name not in changed for changed in turns) for name, flag in sorted(flags.items())}
        flat.set_trainable(now)
        self.trainable |= now

    def for_evaluation(self) -> "Federation":
        """What an evaluation of these models goes on with: the same, without what only further training reads."""
        return replace(self, client_states={}, resting_clients=set(), means={})

    def with_models(
        self,
        models: list[Weights],
        collaboration: Collaboration,
        client_stores: dict[str, dict[int, Any]],
        current_round: int,
    ) -> "Federation":
        """This federation as it was at another time.

        Args:
            models: of that time.
            collaboration: of that time.
            client_stores: what clients kept.
            current_round: rounds done by then.
        """
        return replace(
            self,
            models=models,
            _collaboration=collaboration,
            client_stores=client_stores,
            current_round=current_round,
        )

    # -- who uses which model --------------------------------------------------------------------------------------

    @property
    def collaboration(self) -> Collaboration:
        """Who makes and who uses which of the models.

        Another one takes effect when it is assigned; if it has another number of models, each starts as the mixture
        of its clients' models.
        """
        assert self._collaboration is not None, "the collaboration is known after on_fit_start"
        return self._collaboration

    @collaboration.setter
    def collaboration(self, collaboration: Collaboration) -> None:
        if collaboration.num_clients != self.collaboration.num_clients:
            raise ConfigurationError(
                f"the collaboration has {collaboration.num_clients} clients, the data have"
                f" {self.collaboration.num_clients}."
            )
        if collaboration.num_models != len(self.models):
            self.regroup(collaboration)
        self._collaboration = collaboration

    def regroup(self, collaboration: Collaboration) -> None:
        """Change who collaborates; each model starts as the mixture of its clients' models."""
        needed = (collaboration.aggregation > 0).any(0).tolist()
        starts = [self.shared_model(client) if use else self.models[0] for client, use in enumerate(needed)]
        self.models = [mixture(row, starts) for row in collaboration.aggregation.tolist()]
        self._collaboration = collaboration

    def shares(self, model: int) -> dict[int, float]:
        """Weights in a model's average, drawn or not, of its clients: those that have joined and use it alone."""
        row = self.collaboration.aggregation[model] * (self.collaboration.personalisation[:, model] == 1)
        return {
            client: float(row[client])
            for client in row.nonzero().flatten().tolist()
            if client not in self.absent_clients
        }

    def identities(self) -> list[str]:
        """What tells each model from others by its clients and their shares; its number where nobody uses it alone."""
        known, absent = self._identities, frozenset(self.absent_clients)
        if known is None or known[0] is not self.collaboration or known[1] != absent:
            rows = self.collaboration.aggregation * (self.collaboration.personalisation.T == 1)
            rows[:, sorted(absent)] = 0.0
            rows = (rows / rows.sum(1, keepdim=True)).mul_(1e9).round_()  # whatever the rounding of A
            texts = [blake2b(row.numpy().tobytes(), digest_size=12).hexdigest() for row in rows]
            alone = rows.isfinite().all(1).tolist()
            found = [text if alone[k] else f"{k} of {len(rows)}" for k, text in enumerate(texts)]
            known = self._identities = self.collaboration, absent, found
        return known[2]

    def forget_changed(self, names: Collection[str]) -> None:
        """Forget what belongs to models whose clients or their shares have changed, here and at hosted clients.

        What belongs to clients that stay together goes with them to the model's new number.

        Args:
            names: of what clients keep for the model that they train.
        """
        now = self.identities()
        states = {state.get(IDENTITY, now[k % len(now)]): state for k, state in self.model_states.items()}
        self.model_states = {k: states[own] for k, own in enumerate(now) if own in states}
        present = {MIXTURE, *now, None, *range(len(now))}  # numbers in checkpoints of earlier versions
        kept = self.client_stores.get(STRATEGY, {}) if names else {}
        for client, values in kept.items():
            if values.get(OF_MODEL) not in present:
                kept[client] = {name: value for name, value in values.items() if name not in names}

    def shared_model(self, client: int) -> Weights:
        """What a client uses of the shared models: ``sum_k P_ik w_k``."""
        return mixture(self.collaboration.personalisation[client].tolist(), self.models)

    def own_model(self, client: int, device: torch.device) -> Weights | None:
        """The model of its own that a callback keeps for a hosted client, in place of a mixture of shared ones."""
        own = self.client_stores.get("own_models", {}).get(client)
        return None if own is None else Weights.from_state_dict(own, device)

    def client_model(self, client: int, device: torch.device) -> Weights:
        """What a client uses: its mixture of the shared models with its personal layers, where this rank hosts it."""
        final = self.client_stores.get("final_models", {}).get(client)
        if final is not None:
            return Weights.from_state_dict(final, device)
        shared, own = self.own_model(client, device) or self.shared_model(client), self.personal_layers.get(client)
        return shared if self.personal is None or own is None else self.personal.insert_(shared.clone(), own)

    @property
    def personal_layers(self) -> dict[int, dict[str, Tensor]]:
        """Hosted client -> its personal layers, for those that have trained them."""
        return self.client_stores.get("personal_layers", {})

    def client_store(self, name: str) -> dict[int, Any]:
        """What hosted clients keep under a name: client -> plain values and tensors."""
        return self.client_stores.setdefault(name, {})

    def remember(self, client: int) -> Callable[[], None]:
        """A function that gives a hosted client back what it keeps now, whatever a turn that fails makes of it."""
        state = copy.deepcopy(self.client_states.get(client))
        kept = {name: of[client] for name, of in self.client_stores.items() if client in of}

        def give_back() -> None:
            for name, of in self.client_stores.items():
                of.pop(client, None)
                of.update({client: kept[name]} if name in kept else {})
            self.client_states.pop(client, None)
            self.client_states.update({} if state in (None, ClientState()) else {client: state})

        return give_back

    def keep_local(self, flat: FlatModule, patterns: Sequence[str]) -> None:
        """Never average the parameters and buffers that match these names; each client keeps its own."""
        self.personal = LocalParameters(flat, patterns) if patterns else None
        self._count_bytes(flat)

    def keep_constant(self, flat: FlatModule, names: Collection[str]) -> None:
        """Freeze parameters that everybody has, so that no round sends them; no names unfreeze those of before."""
        changes = dict.fromkeys(self.constant, True) | dict.fromkeys(names, False)
        flat.set_trainable(changes)
        self.trainable |= changes
        self.constant = frozenset(names)
        self._count_bytes(flat)

    def _count_bytes(self, flat: FlatModule) -> None:
        self.communication.model_bytes = shared_bytes(flat, self.personal, self.constant)

    # -- what was measured -----------------------------------------------------------------------------------------

    def latest_means(self) -> dict[str, Tensor]:
        """Metric -> its latest mean over clients, in training and in evaluations."""
        means = lightning_names(self.metrics.get("train", {}), steps=True)
        self.means.update({name: torch.tensor(mean) for name, mean in means.items()})
        return self.means

    # -- the checkpoint --------------------------------------------------------------------------------------------

    def state_dict(self, processes: Processes) -> dict[str, Any]:
        """All that training goes on from, as plain values and tensors. Called on every rank.

        It is the same on all, except for what clients keep where that is private to their ranks.
        """
        clients, stores = self._of_clients(processes)
        return {
            "round": self.current_round,
            "num_clients": self.collaboration.num_clients,
            "wall_time_seconds": self.wall_time_seconds,
            "models": [model.state_dict() for model in self.models],
            "collaboration": self.collaboration.state_dict(),
            "personal_layers": [] if self.personal is None else self.personal.patterns,
            "absent_clients": sorted(self.absent_clients),
            "resting_clients": sorted(self.resting_clients),
            "clients": clients,
            "client_stores": stores,
            "model_states": {model: packed(kept) for model, kept in self.model_states.items()},
            "communication": self.communication.state_dict(self.models),
            "trainable": dict(self.trainable),
            "constant": sorted(self.constant),
            "callback_metrics": {name: float(value) for name, value in self.latest_means().items()},
            "measured": self._measured(),
        }

    def _measured(self) -> dict[str, Any]:
        """The latest figures, which a run that has no round left to take them again still reports."""
        return {
            "metrics": {
                split: {"of": {name: one.state_dict() for name, one in metrics.items()}}
                for split, metrics in self.metrics.items()
            },
            "gains": {
                split: {name: asdict(gain) for name, gain in gains.items()} for split, gains in self.gains.items()
            },
            "evaluated_samples": {split: dict(samples) for split, samples in self.evaluated_samples.items()},
        }

    def _load_measured(self, state: dict[str, Any], names: Sequence[str]) -> None:
        self.metrics = {
            split: ClientMetrics({name: MetricSummary(**one).named(names) for name, one in kept["of"].items()}, names)
            for split, kept in state.get("metrics", {}).items()
        }
        self.gains = {
            split: {name: GainSummary(**gain) for name, gain in gains.items()}
            for split, gains in state.get("gains", {}).items()
        }
        self.evaluated_samples = {split: dict(samples) for split, samples in state.get("evaluated_samples", {}).items()}

    def _of_clients(self, processes: Processes) -> tuple[dict[int, Any], dict[str, dict[int, Any]]]:
        """Client -> its state, and name -> client -> what it keeps: of hosted clients, or of all where that is told."""
        hosted = sorted({*self.client_states, *(client for of in self.client_stores.values() for client in of)})
        kept: dict[int, dict[str, Any]] = {}
        for client in hosted:
            state = self.client_states.get(client)
            stores = {name: of[client] for name, of in self.client_stores.items() if client in of}
            kept[client] = {"state": None if state is None else state.state_dict(), "stores": stores}
        if not processes.private:
            kept = processes.exchange(kept)
        names = sorted({name for of_client in kept.values() for name in of_client["stores"]})
        return (
            {client: found["state"] for client, found in kept.items() if found["state"] is not None},
            {
                name: {c: found["stores"][name] for c, found in kept.items() if name in found["stores"]}
                for name in names
            },
        )

    def load_state_dict(
        self, state: dict[str, Any], flat: FlatModule, processes: Processes, *, weights_only: bool = False
    ) -> None:
        """Take up what :meth:`state_dict` returned.

        Args:
            state: of a run with as many clients and a module of this layout.
            flat: the module.
            processes: each rank takes what its clients keep.
            weights_only: take what an evaluation needs: the models, who uses which, and what clients keep of their own.
        """
        template = self.models[0]
        self.models = []
        for saved in state["models"]:
            model = template.clone()
            model.load_state_dict(saved)
            self.models.append(model)
        self._collaboration = Collaboration.from_state_dict(state["collaboration"])
        self.current_round = state["round"]
        self.keep_local(flat, state.get("personal_layers", []))
        self.trainable = dict(state.get("trainable", {}))
        flat.set_trainable(self.trainable)
        self.constant = frozenset(state.get("constant", ()))
        self._count_bytes(flat)
        self.absent_clients = set(state.get("absent_clients", ()))
        hosted = set(processes.hosted)
        self.client_stores = {
            name: {client: value for client, value in values.items() if client in hosted}
            for name, values in state.get("client_stores", {}).items()
        }
        self.model_states = {
            model: unpacked(kept, processes.device) for model, kept in state.get("model_states", {}).items()
        }
        if weights_only:
            return
        self.resting_clients = set(state.get("resting_clients", ()))
        self.wall_time_seconds = state["wall_time_seconds"]
        self.communication.load_state_dict(state.get("communication", {}), self.models)
        self.client_states = {
            client: ClientState(**saved) for client, saved in state["clients"].items() if client in hosted
        }
        self._load_measured(state.get("measured", {}), state.get("client_names") or ())
        self.latest_means().update({name: torch.tensor(value) for name, value in state["callback_metrics"].items()})


@dataclass
class Round:
    """The present round; nothing of it is in a checkpoint.

    Attributes:
        fitting: a fit is under way.
        work: how much clients train in this round, where a callback says so.
        logged: what callbacks logged.
        trained: participant of the latest cohort -> identity of the model that it trains.
        participant: whose turn it is, and its part.
        reports: client -> its report of the latest cohort.
        survivors: the clients whose turns did not fail.
        evaluated: the round ended with an evaluation.
    """

    fitting: bool = False
    work: LocalWork | None = None
    logged: dict[str, float] = field(default_factory=dict)
    trained: dict[Participant, str] = field(default_factory=dict)
    participant: Participant | None = None
    reports: dict[int, ClientReport] = field(default_factory=dict)
    survivors: set[int] = field(default_factory=set)
    evaluated: bool = False

    def begin(self) -> None:
        """Forget what callbacks said in the round before."""
        self.logged, self.work = {}, None
