"""Steps of clients and server in a round that a strategy may override."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import fsum
from typing import Any, Literal

from torch import Tensor, nn
from torch.optim import Optimizer

from lightning_fl.core.errors import ConfigurationError
from lightning_fl.engine.client import ClientReport, ClientTurn, ClientUpdate, Phase
from lightning_fl.engine.weights.flat import Span, Weights, inner_product, linear_combination


@dataclass(frozen=True)
class Contribution:
    """A client's contribution to a new shared model.

    Args:
        weight: by the collaboration, the cohort or its own update, before scaling and normalisation.
        current: whether it trained this model; ``False`` if it trained a mixture, or the model's clients or their
            weights changed after its turn.
    """

    client: int
    weight: float
    report: ClientReport
    current: bool = True


@dataclass
class ModelUpdate:
    """Input of the server's step for a shared model; the same on every rank.

    Args:
        model: number of the model, 0..K-1; ``num_clients`` are all clients of the run.
        start: the model before the round; read only.
        average: of the clients' updates, each weighted by ``contribution.weight * report.scale``.
        vectors: name -> the average of a further vector, with the same weights.
        contributions: of the clients without failed turns, in the cohort's order.
        spans: entries of the shared parameters that are trained.
        state: the server's state of this model: plain values, tensors and :class:`Weights`. It is empty at first, and
            again when the model's clients (those that have joined and use it alone) or their weights change. Replace
            entries, do not change them in place.
        shares: each of the model's clients -> its weight by the collaboration, whether or not it took part.
    """

    model: int
    start: Weights
    average: Weights
    vectors: Mapping[str, Weights] = field(default_factory=dict)
    contributions: list[Contribution] = field(default_factory=list)
    num_clients: int = 1
    spans: list[Span] = field(default_factory=list)
    state: dict[str, Any] = field(default_factory=dict)
    shares: Mapping[int, float] = field(default_factory=dict)

    @property
    def share(self) -> float:
        """The participants' share in the weights of all the model's clients, 1 if all took part.

        It is 0 if no client trained the present model, because its clients or their weights changed after the turns. A
        client's weight that differs from that of the collaboration is a ``ConfigurationError``.
        """
        if not any(one.current for one in self.contributions):
            return 0.0
        own = [self.shares.get(one.client, 0.0) for one in self.contributions]
        share, total = fsum(own), fsum(one.weight for one in self.contributions)
        for one, weight in zip(self.contributions, own, strict=True):
            if abs(weight * total - one.weight * share) > 1e-6 * share * total:
                what = f"a callback changed the weight of client {one.client} in model {self.model}"
                raise ConfigurationError(f"{what}, which the strategy needs: remove the callback or the strategy.")
        return share / fsum(self.shares.values())

    def combine(self, *terms: tuple[float, Weights], elsewhere: Weights | None = None) -> Weights:
        """``sum_k a_k v_k`` in the shared parameters that are trained, else ``elsewhere`` (the average); a new one."""
        return linear_combination(self.average if elsewhere is None else elsewhere, terms, self.spans)

    def direction(self, *terms: tuple[float, Weights]) -> Weights:
        """:meth:`combine` with zero elsewhere: for differences that are kept, as frozen parameters may be unfrozen."""
        return linear_combination(None, terms, self.spans)

    def dot(self, first: Weights, second: Weights) -> float:
        """The inner product over the shared parameters that are trained, in double precision."""
        return inner_product(first, second, self.spans)


class Learner:
    """Federated averaging; a strategy overrides the steps that it changes. Other steps cost nothing.

    The engine keeps all state that crosses rounds, and saves it in checkpoints: ``turn.kept`` of the client,
    ``update.state`` of the server for each model. A strategy object has no state.
    """

    #: Trait of a callback (``Callback.traits``) -> the reason why a run with both is refused.
    excludes: Mapping[str, str] = {}
    #: Trait of a callback -> the reason for a warning in a run with both.
    cautions: Mapping[str, str] = {}
    #: Trait that one of the callbacks must have -> the reason.
    requires: Mapping[str, str] = {}
    #: Number of parts of every batch; a step's own gradient is that of the first.
    batch_parts: int = 1
    #: Least number of samples in a part; a smaller batch is left out.
    smallest_part: int = 1
    #: Whether the strategy uses losses or gradients of its own (``ClientTurn.training_loss``, ``step_gradient``,
    #: ``batch_gradient``), which modules that optimise manually do not have.
    needs_losses: bool = False
    #: Whether :meth:`correct_gradient_` is elementwise, so that it may get some entries of several clients at once: the
    #: gradient, the weights, the turn's start and its kept :class:`Weights` as rows [n, P'], the model's state as [P'].
    #: All other attributes of the turn are then those of one of these clients.
    elementwise: bool = False
    #: Values of ``optimizer_state`` refused with momentum, because that of earlier turns would count as steps.
    without_states: tuple[str, ...] = ()
    #: Names of further vectors, in the layout of the weights, that clients send and the server averages.
    extra_vectors: tuple[str, ...] = ()
    #: Names in ``turn.kept`` of state that belongs to the trained shared model. It is dropped when the client trains
    #: another model, and together with ``update.state`` when the model's clients or weights change.
    kept_for_model: tuple[str, ...] = ()

    def check_optimizers(self, optimizers: Sequence[Optimizer]) -> None:
        """Check a client's optimisers before training, on every rank; raise a ``ConfigurationError`` to refuse them."""

    def client_loss(self, loss: Tensor, module: nn.Module) -> Tensor:
        """The training loss of a client, from the module's own.

        Losses by which callbacks choose or weigh clients are not affected. A term that pulls towards weights is cheaper
        in :meth:`correct_gradient_`.
        """
        return loss

    def measure_client(self, turn: ClientTurn) -> dict[str, float]:
        """Measure numbers before the round's training, for the turns of all clients of the same model.

        Nothing in ``turn`` is kept, and ``turn.measured`` is empty.
        """
        return {}

    def begin_client(self, turn: ClientTurn) -> None:
        """Called at the beginning of a client's turn."""

    def phases(self, turn: ClientTurn) -> Sequence[Phase]:
        """Phases of a turn that train parts of the model one after another; empty for the whole model at once."""
        return ()

    def correct_gradient_(self, turn: ClientTurn, gradient: Weights, weights: Weights) -> None:
        """Change the gradient of an optimiser's step, in place, before it is clipped.

        Args:
            gradient: in the layout of the weights. Only entries of shared parameters in the optimiser have an effect.
            weights: the client's present weights; read only.
        """

    def end_client(self, turn: ClientTurn, weights: Weights) -> None:
        """Called after local training with the trained weights and personal layers; read only."""

    def client_update(self, turn: ClientTurn, weights: Weights) -> ClientUpdate:
        """The update that a client sends, from its trained weights without personal layers; read only."""
        return ClientUpdate(weights)

    def weigh_cohort(self, contributions: Sequence[Contribution], state: Mapping[str, Any]) -> Sequence[float]:
        """New weights of the contributions to a model's average; the server's state of the model is read only.

        Overriding it costs memory, because all clients' updates are kept until all have trained. It is not called if
        every client has a model of its own.
        """
        return [one.weight for one in contributions]

    def aggregate(self, update: ModelUpdate) -> Weights:
        """The next shared model. Called on every rank for every model with contributions."""
        return update.average

    def evaluated(self, model: str) -> str:
        """Description of :meth:`evaluation_weights` for tables; ``model`` is one such as "the shared model"."""
        return model

    def evaluation_weights(self, turn: ClientTurn) -> Weights:
        """The weights that a client is evaluated and predicts with, and gets at the end.

        Args:
            turn: outside of a round. ``turn.start`` is the client's model by the collaboration, with its personal
                layers; ``turn.kept`` is its state. Both are read only.
        """
        return turn.start

    def figures(self, trainer: Any, stage: Literal["fit", "val", "test"]) -> Iterable[tuple[str, Callable[[], Any]]]:
        """Figures of the run, which the callback ``Figures`` draws, as ``Callback.figures``. Called on every rank."""
        return ()
