"""The hooks of a federated run."""

import copy
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from lightning.pytorch.utilities.types import STEP_OUTPUT

from lightning_fl.core.cohort import Cohort
from lightning_fl.core.collaboration import Collaboration
from lightning_fl.core.metrics import ClientMetrics
from lightning_fl.data.module import Split
from lightning_fl.engine.batches.client import ClientBatches
from lightning_fl.engine.client import ClientTurn
from lightning_fl.engine.weights.flat import Weights

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Names of figures, each with the function that draws it.
Drawings = Iterable[tuple[str, "Callable[[], Figure]"]]

#: Former names of hooks -> names.
RENAMED_HOOKS = {
    "gradient_correction": "correct_gradient_",
    "on_average_end": "on_aggregate_end",
    "select_collaborators": "select_collaboration, with model_per_client in its traits",
}
#: Hooks get a ``FederatedTrainer``; most callbacks annotate it as ``TrainerSurface``, the part that they use.
_Trainer = Any


class Callback:
    """Base of all callbacks: every hook does nothing until it is overridden. ``docs/extending.md`` has their order.

    Hooks of clients run on the rank that hosts the client, all others on every rank. What must be known on all ranks
    goes through ``trainer.strategy.exchange``. What clients on machines of their own would receive and send besides the
    models of their turns goes into the account ``trainer.communication``.
    """

    #: Callbacks that share a role exclude each other, unless they may be :attr:`several`: "arrival", "initial weights",
    #: "personal layers", "contribution", "collaboration", "best models", "participation", "fine-tuning", "calibration".
    #: Hooks of the first six are called before others, in this order; a calibration's after.
    role: str | None = None
    #: Effects on a round that some strategies exclude: "model_per_client" (every client has a model of its own, an
    #: average of others'), "soft_assignment" (clients use or build several models), "mixed_starts" (clients start with
    #: mixtures of them), "drawn_weights" (how often a client is drawn is its weight), "pooled" (one client trains on
    #: all samples). See ``Learner.excludes``. And "personal_layers", see ``requires`` there, and "own_samples" (of each
    #: client): pooled training excludes both.
    traits: tuple[str, ...] = ()
    #: Only records or draws, changes no model: a run may be resumed with or without it.
    only_shows: bool = False
    #: With the trait "model_per_client": a server averages the clients' models, so that a client sends its model once
    #: and receives its next one; otherwise clients send their models to one another.
    by_server = False
    #: What a run with it is called in place of FedAvg, such as "DPFL"; with "+ " before it, beside its other names.
    method_name: str | None = None
    #: Names of a run with this callback and another one, by the other's ``method_name``.
    joint_names: ClassVar[Mapping[str, str]] = {}
    #: What predictions from the run's files lack, for a warning: "mixed with neighbours, which are not in a file".
    prediction_note: str | None = None
    #: Attributes that cross a round; checkpoints keep them under these names without a leading underscore.
    saved: ClassVar[tuple[str, ...]] = ()
    #: A run may have several of this class with different settings; otherwise it may have one only.
    several = False

    def setup(self, trainer: _Trainer, stage: str) -> None:
        """Before data are prepared. ``stage`` is "fit", "validate", "test" or "predict"."""

    def teardown(self, trainer: _Trainer, stage: str) -> None:
        """After everything, also after an exception."""

    def on_client_data(self, trainer: _Trainer, client: int, split: Split, batches: ClientBatches) -> None:
        """A client's data were opened, once per run: the place to change its targets."""

    def on_fit_start(self, trainer: _Trainer) -> None:
        """Clients are placed, their sizes known, the initial models made; nothing is trained.

        A resumed run (``trainer.resumes_fit``) calls it too, before :meth:`load_state_dict`.
        """

    def on_fit_end(self, trainer: _Trainer) -> None:
        """After the last round."""

    def on_round_start(self, trainer: _Trainer) -> None:
        """Before clients are chosen."""

    def select_clients(self, trainer: _Trainer) -> Cohort:
        """Select the round's participants, the same on every rank: draw from ``trainer.generator``."""
        raise NotImplementedError

    def assign_models(self, trainer: _Trainer, cohort: Cohort) -> Cohort:
        """The cohort, absent clients left out, with the shared model that each participant trains in this round.

        Called on every rank, and the same on every rank. A model that no participant names stays as it is.
        """
        raise NotImplementedError

    def on_client_start(self, trainer: _Trainer, client: int) -> None:
        """Before a client's local steps; ``trainer.client_weights()`` are those that it starts from.

        The module holds them; what is changed in them is undone before the first step.
        """

    def correct_gradient_(self, trainer: _Trainer, turn: ClientTurn, gradient: Weights, weights: Weights) -> None:
        """Change the gradient of a step, in place, after the strategy (:meth:`Learner.correct_gradient_`).

        Only entries of shared parameters in the optimiser have an effect. ``weights`` are the client's present ones,
        read only; ``turn.steps`` is 0 in the first step of a turn.
        """

    def around_evaluation(self, trainer: _Trainer, client: int, weights: Weights) -> AbstractContextManager[None]:
        """What surrounds a hosted client's evaluation and prediction with some weights, inside and outside of a fit."""
        return nullcontext()

    def evaluated(self, trainer: _Trainer, model: str) -> str:
        """Description of the evaluated models for tables and summaries, from that without this callback."""
        return model

    def evaluation_weights(self, trainer: _Trainer, turn: ClientTurn) -> Weights:
        """The weights that a client is evaluated and predicts with, and gets at the end, in and outside of a fit.

        ``turn.start`` are the weights by the collaboration and the strategy (:meth:`Learner.evaluation_weights`), with
        the client's personal layers; read only.
        """
        return turn.start

    def around_training_step(
        self, trainer: _Trainer, batch: Any, compute: Callable[[Any], STEP_OUTPUT], generator: torch.Generator
    ) -> STEP_OUTPUT:
        """Run ``compute(batch)``, the module's ``training_step``, on a changed batch or with a changed result.

        ``generator`` belongs to this callback, round and client.
        """
        return compute(batch)

    def on_client_step_end(self, trainer: _Trainer, client: int, num_steps: int) -> None:
        """A client took its ``num_steps``-th local optimiser step of the round."""

    def on_client_end(self, trainer: _Trainer, client: int) -> None:
        """A client's turn is over; ``trainer.client_weights()`` are its weights, ``trainer.participant`` its part."""

    def select_collaboration(self, trainer: _Trainer, weights: Mapping[int, Weights]) -> Collaboration | None:
        """Choose whose weights of this round are averaged with whose; ``None`` leaves the collaboration unchanged.

        Called on every rank, with the same result. It costs memory: all hosted clients' weights are kept.

        With the trait "model_per_client", every client has a model of its own, which the callback sets up in
        ``on_fit_start``, and row k of A has the weights of the models that client k averages. All ranks then get the
        weights of all participants. They are overwritten in every round: clone those to keep.

        ``weights`` are those of hosted participants after their turns, without their personal layers.
        ``trainer.shared_model(i)`` is the model from which client i started the round, unless it is its own.
        """
        raise NotImplementedError

    def on_aggregate_end(self, trainer: _Trainer) -> None:
        """The models are averaged.

        ``trainer.round.shares`` are the participants' shares in them, ``trainer.round.starts`` the models before.
        """

    def on_evaluate_end(self, trainer: _Trainer, split: Split, metrics: ClientMetrics) -> None:
        """Every client's model was evaluated on its own held-out data. What is added to ``metrics`` is logged too."""

    def on_round_end(self, trainer: _Trainer) -> None:
        """The round is over and logged."""

    def figures(self, trainer: _Trainer, stage: Literal["fit", "val", "test"]) -> Drawings:
        """Figures of the run, which the callback ``Figures`` draws. Called on every rank.

        ``stage`` is "fit" after a fit, "val" after ``validate``, "test" after ``test``. Each figure is a name, for
        ``figures/NAME.png``, and a function that draws it from data.
        """
        return ()

    def on_exception(self, trainer: _Trainer, exception: BaseException) -> None:
        """The run ends with an exception."""

    def state_dict(self) -> dict[str, Any]:
        """State that crosses a round, as plain values and tensors: that of :attr:`saved`."""
        values = {name.removeprefix("_"): getattr(self, name) for name in self.saved}
        return {name: sorted(value) if isinstance(value, set) else value for name, value in values.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what :meth:`state_dict` returned."""
        for name in self.saved:
            present, value = getattr(self, name), copy.deepcopy(state[name.removeprefix("_")])
            kind = list if isinstance(present, set) else type(present)
            if present is not None and value is not None and not isinstance(value, kind):
                raise TypeError(f"{name} is a {type(value).__name__}, not a {kind.__name__}")
            setattr(self, name, set(value) if isinstance(present, set) else value)


def method_of(strategy: str, callbacks: Iterable[Callback]) -> str:
    """What a run is called: "DRFLM", "FedProx + FedCollab", "FedAvg + fine-tuning".

    Args:
        strategy: its class's name; FedAvg's is left out where a callback has a name for the whole.
        callbacks: of the run, each with its ``method_name``.

    Example:
        >>> method_of("FedAvg", [])
        'FedAvg'
    """
    named = {callback.method_name: callback for callback in callbacks if callback.method_name}
    for name, callback in list(named.items()):
        for other, joint in callback.joint_names.items():
            if other in named:
                named = {joint if key == other else key: one for key, one in named.items() if key != name}
    whole = [name for name in named if not name.startswith("+ ")]
    besides = [name.removeprefix("+ ") for name in named if name.startswith("+ ")]
    return " + ".join([*([] if whole and strategy == "FedAvg" else [strategy]), *whole, *besides])
