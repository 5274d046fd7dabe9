"""Clients' turns with the steps of strategy and callbacks."""

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

from torch.nn.modules.batchnorm import _NormBase

from lightning_fl.core.cohort import Participant
from lightning_fl.core.errors import ConfigurationError
from lightning_fl.core.metrics import LoggedValue
from lightning_fl.engine.client import ClientReport, ClientState, ClientTurn, Correction, LocalWork, Phase, unpacked
from lightning_fl.engine.federation import IDENTITY, MIXTURE, OF_MODEL, STRATEGY, Federation
from lightning_fl.engine.hooks import Hooks
from lightning_fl.engine.learner import Learner
from lightning_fl.engine.turn.callback_states import averaged_weights
from lightning_fl.engine.turn.evaluation import Evaluator
from lightning_fl.engine.turn.flat_optimizer import SecondOptimizer
from lightning_fl.engine.turn.gradients import HeldOutLoss, TurnGradients
from lightning_fl.engine.turn.metric_states import preserve_metrics
from lightning_fl.engine.turn.services import TurnServices
from lightning_fl.engine.turn.training import TrainingLoop
from lightning_fl.engine.weights.flat import Span, Weights
from lightning_fl.engine.weights.local_parameters import averaged_spans
from lightning_fl.engine.weights.weighted_sum import mixture


@dataclass(eq=False, repr=False)
class LocalLoop(TurnServices):
    """Runs clients' turns one after another on one module, with the steps of strategy and callbacks."""

    hooks: Hooks
    learner: Learner

    def __post_init__(self) -> None:
        super().__post_init__()
        self.training = TrainingLoop(self, self.hooks, self.learner)
        self.evaluator = Evaluator(self, self.training)
        self.own_steps = self.training.own_steps
        #: Model (``None`` for mixtures) -> client -> its measurements in this round.
        self.measured: dict[int | None, dict[int, dict[str, float]]] = {}
        self._second: dict[str, SecondOptimizer] = {}
        self.gradients = TurnGradients(self, self.training, self.learner)

    def model_of(self, participant: Participant) -> int | None:
        """The model that a participant trains; ``None`` for a mixture of several."""
        given = participant.model
        return self.federation.collaboration.model_of(participant.client) if given is None else given

    def identity_of(self, model: int | None) -> str:
        """Identity of a model that a client trains, or of a mixture (:meth:`Federation.identities`)."""
        return MIXTURE if model is None else self.federation.identities()[model]

    def start_of(self, participant: Participant) -> Weights:
        """The shared model, or mixture, that a participant's turn starts from."""
        given, federation = participant.model, self.federation
        return federation.shared_model(participant.client) if given is None else federation.models[given]

    def measure(self, participant: Participant) -> dict[str, float]:
        """Measurements of the strategy for a hosted participant, before the round's turns."""
        state = self.federation.client_states.get(participant.client) or ClientState()
        turn = self._turn(participant.client, participant.model, self.start_of(participant), state)
        return self.learner.measure_client(turn)

    def begin_turn(self, participant: Participant) -> ClientTurn:
        client, federation = participant.client, self.federation
        start = self.start_of(participant)
        if participant.own:
            start = federation.own_model(client, self.processes.device) or start
        state = federation.client_states.setdefault(client, ClientState())
        self.round.participant = participant
        watchers = self.hooks.of("on_client_start")
        if watchers:
            self.load(client, start, own=True)
        for hook in watchers:
            hook(client)
        turn = self._turn(client, participant.model, start, state)
        if self.optimizer_state == "average":
            turn.moments = self._moments(participant)
        if participant.draw:
            turn.purpose = f"train, draw {participant.draw}"
        if "begin_client" in self.own_steps:
            self.learner.begin_client(turn)
        return turn

    def _moments(self, participant: Participant) -> dict[str, Weights]:
        """The averaged optimiser state of the model that a participant trains; of a mixture, that of its models."""
        states, given = self.federation.optimizer_states, participant.model
        row = self.federation.collaboration.personalisation[participant.client].tolist()
        shares = {given: 1.0} if given is not None else {model: share for model, share in enumerate(row) if share > 0}
        used = [states.get(model, {}) for model in shares]
        names = [name for name in used[0] if name != IDENTITY and all(name in one for one in used)]
        return {name: mixture([*shares.values()], [one[name] for one in used]) for name in names}

    def _turn(self, client: int, model: int | None, start: Weights, state: ClientState) -> ClientTurn:
        """Create a turn, with the states of client and server if the strategy overrides steps."""
        federation = self.federation
        kept: dict[str, Any] = {}
        model_state: dict[str, Any] = {}
        spans: list[Span] = []
        buffers: list[Span] = []
        if self.own_steps:
            kept = unpacked(federation.client_stores.get(STRATEGY, {}).get(client, {}), self.processes.device)
            model = federation.collaboration.model_of(client) if model is None else model
            model_state = {} if model is None else dict(federation.model_states.get(model, {}))
            model_state.pop(IDENTITY, None)
            names = self.learner.kept_for_model
            if names and kept.pop(OF_MODEL, None) not in (self.identity_of(model), model):
                kept = {name: value for name, value in kept.items() if name not in names}
            spans, buffers = self.averaged_spans(), self.flat.buffers()
        samples = federation.num_samples[client] if federation.num_samples else 0
        return ClientTurn(
            client, model, start, state, samples, kept, model_state, spans, buffers, self, self.measured.get(model, {})
        )

    def averaged_spans(self) -> list[Span]:
        return averaged_spans(self.flat, self.federation.personal)

    def client_model(self, client: int, federation: Federation | None = None) -> Weights:
        """The model that a client uses, now or in another ``federation``, with what its host adapts."""
        federation = federation or self.federation
        model = federation.client_model(client, self.processes.device)
        if client in federation.final_models or not self.processes.hosts(client):
            return model
        steps: list[Any] = [self.learner.evaluation_weights] if "evaluation_weights" in self.own_steps else []
        average = {} if steps else averaged_weights(federation, client)
        if average:
            model = model.clone()
            for span in self.flat.spans():
                if span.name in average:
                    model.part(span).copy_(average[span.name].flatten())
        steps += self.hooks.of("evaluation_weights")
        if not steps:
            return model
        device, home = self.processes.device, self.flat.device
        if home != device:  # the run has ended and moved everything to the host
            self.flat.to(device)
            model = model.clone().to_(device)
        present, self.federation = self.federation, federation  # for its states, and draws of its round
        try:
            for step in steps:
                model = step(self._turn(client, None, model, ClientState()))
            return model if home == device else model.clone().to_(home)
        finally:
            self.federation = present
            if home != device:
                self.flat.to(home)

    @property
    def evaluates_own_weights(self) -> bool:
        """Whether clients are evaluated with other weights than those of the collaboration."""
        own = "evaluation_weights" in self.own_steps or self.callback_states.averages
        return own or bool(self.hooks.of("evaluation_weights"))

    def train_aside(
        self,
        client: int,
        start: Weights,
        purpose: str,
        work: LocalWork | None,
        state: ClientState | None = None,
        correct_: Correction | None = None,
    ) -> Weights:
        """Train a client outside of its turns, from weights with its personal layers; changes nothing but ``state``."""
        with self.flat.preserved():
            state = state or self.training.state_aside(client)
            self.training.train(client, start, state, purpose=purpose, own=False, work=work, correct_=correct_)
            return self.flat.collect().clone()

    def take_turn(self, turn: ClientTurn) -> ClientReport:
        """Train the client of a turn; leaves its new weights in ``flat``."""
        self._second, self.module_trainer.rates = {}, []
        report = self._train_in_phases(turn, self.learner.phases(turn) if "phases" in self.own_steps else ())
        if self.keeps_states:
            turn.kept |= {second.key: second.state() for second in self._second.values()}
        if report.trainable and self.own_steps:  # the parameters that were trainable at the end of the turn
            before = self.flat.set_trainable(report.trainable)
            turn.spans = self.averaged_spans()
            self.flat.set_trainable(before)
        turn.optimizers = list(self.module_trainer.optimizers)
        turn.rates, self.module_trainer.rates = self.module_trainer.rates or [], None
        return report

    def end_fit(self) -> None:
        """Call the hooks at the end of a fit, with the first model; what they change in it is lost."""
        models = self.federation.models
        for hook in ("on_train_end", "on_fit_end"):
            self.flat.load(models[0])
            self.call(hook)
            if self.overridden(hook) and not self.callback_states.averages:
                self.evaluator.warn_of_change(self.flat.differing(models[0]), f"in {hook}")

    def _correction(self, turn: ClientTurn) -> Correction | None:
        """The corrections of a turn's gradients, the strategy's first; ``None`` without any."""
        parts: list[Any] = [self.learner.correct_gradient_] if "correct_gradient_" in self.own_steps else []
        parts += self.hooks.of("correct_gradient_")

        def all_(gradient: Weights, weights: Weights) -> None:
            if not turn.optimizers:
                turn.optimizers = list(self.module_trainer.optimizers)
            for correct_ in parts:
                correct_(turn, gradient, weights)
            turn.steps += 1

        return all_ if parts else None

    def _train_in_phases(self, turn: ClientTurn, phases: Sequence[Phase]) -> ClientReport:
        """Train in phases, each with optimisers of its own, or all at once; returns the report of the last one."""
        start: Weights | None = turn.start
        last = phases[-1] if phases else None
        for phase in phases[:-1]:
            purpose = f"the {phase.trained} part"
            draws = purpose if turn.purpose == "train" else f"{purpose}, {turn.purpose}"
            # its optimisers are stepped in place, and the turn may fail
            state = ClientState(**copy.deepcopy(turn.kept.get(f"training for {purpose}", {})))
            with self._frozen_but(phase.trained):
                self.training.train(turn.client, start, state, purpose=draws, work=phase.work)
            turn.kept[f"training for {purpose}"], start = state.state_dict(), None
        with nullcontext() if last is None else self._frozen_but(last.trained):
            return self.training.train(
                *(turn.client, start, turn.state),
                purpose=turn.purpose,
                work=None if last is None else last.work,
                correct_=self._correction(turn),
                moments=turn.moments,
            )

    @contextmanager
    def _frozen_but(self, trained: str) -> Iterator[None]:
        """Freeze the other part of the model, including the statistics of its normalisation layers."""
        personal = self.federation.personal
        own = set() if personal is None else set(personal.names)
        frozen = {span.name for span in self.flat.spans() if (span.name in own) != (trained == "personal")}
        norms = [
            part
            for name, part in self.module.named_modules()
            if isinstance(part, _NormBase)
            and part.training
            and any(f"{name}.{key}" in frozen for key in (*part._parameters, *part._buffers))
        ]
        before = self.flat.set_trainable(dict.fromkeys(frozen, False))
        for part in norms:
            part.eval()
        try:
            yield
        finally:
            self.flat.set_trainable(before)
            for part in norms:
                part.train()

    def train_again(
        self, turn: ClientTurn, start: Weights, purpose: str, work: LocalWork | None, correct_: Correction | None
    ) -> Weights:
        name = f"training for {purpose}"
        state = ClientState(**copy.deepcopy(turn.kept.get(name, {})))
        start = self.with_personal_layers(turn, start)
        # turns of a client that is drawn several times in a round differ
        draws = purpose if turn.purpose == "train" else f"{purpose}, {turn.purpose}"
        trained = self.train_aside(turn.client, start, draws, work, state, correct_)
        turn.kept[name] = state.state_dict()
        return trained

    def with_personal_layers(self, turn: ClientTurn, weights: Weights) -> Weights:
        personal, own = self.federation.personal, self.federation.personal_layers.get(turn.client)
        if personal is None or own is None or not personal.same(weights, turn.start):
            return weights
        return personal.insert_(weights.clone(), own)

    def loss_at(self, turn: ClientTurn, weights: Weights) -> float:
        weights = self.with_personal_layers(turn, weights)
        with self.flat.preserved():
            return HeldOutLoss(self, "train", None, "training loss", own=False).value(turn.client, weights)

    def metrics_at(self, turn: ClientTurn, weights: Weights) -> dict[str, LoggedValue]:
        if not self.evaluator.evaluates("val"):
            what = f"{type(self.learner).__name__} measures models by what validation_step logs"
            raise ConfigurationError(f"{what}: define it in {type(self.module).__name__}.")
        weights, path = self.with_personal_layers(turn, weights), self.path(turn.client, "training metrics")
        with self.flat.preserved(), preserve_metrics(self.module):
            report = self.evaluator.evaluate(turn.client, weights, "train", lambda loader: loader.some(path, None))
        assert report is not None
        return report.metrics

    def learning_rate(self, turn: ClientTurn) -> float:
        if not turn.optimizers:
            self.training.set_length_of(turn.client)  # which schedulers may need
        optimizers = turn.optimizers or self.training.optimization.configure()[0]
        return float(optimizers[0].param_groups[0]["lr"])

    def second_step(self, turn: ClientTurn, name: str, gradient: Weights) -> None:
        if name not in self._second:
            self._second[name] = SecondOptimizer(turn, name, self.flat, self.settings, type(self.learner).__name__)
        self._second[name].step(gradient)
