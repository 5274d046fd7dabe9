"""How client and server learn: the steps of a round that a strategy may change."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import fsum
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from lightning_fl.core.errors import ConfigurationError
from lightning_fl.engine.client import ClientReport, ClientTurn, ClientUpdate, Phase
from lightning_fl.engine.hooks import overrides
from lightning_fl.engine.weights.flat import Span, Weights, inner_product, linear_combination

__all__ = ["Contribution", "Learner", "ModelUpdate", "changes"]


@dataclass(frozen=True)
class Contribution:
    """A client's part in a new shared model.

    Args:
        client: whose.
        weight: by the collaboration, the cohort or its own update; before the client scaled it and before weights are
            normalised over those who contribute.
        report: what the client told, its ``scale`` and ``numbers`` among it.
        current: it trained this model. Not so where it trained a mixture, or the model's clients or their weights were
            changed after its turn.
    """

    client: int
    weight: float
    report: ClientReport
    current: bool = True


@dataclass
class ModelUpdate:
    """What the server knows when it makes a new shared model; the same on every rank.

    Args:
        model: which, 0..K-1.
        start: the model before the round; never to be changed.
        average: of what the clients handed over, each weighted by ``contribution.weight * report.scale``.
        vectors: name -> the average of a further vector, with the same weights.
        contributions: of the clients whose turns did not fail, in the cohort's order.
        num_clients: N.
        spans: the shared parameters that are trained; where they lie in weights.
        state: what the server keeps for this model: plain values, tensors and :class:`Weights`. Starts empty, and
            anew when the model's clients (those that have joined and use it alone) or their weights change. Entries
            are replaced, never changed in place.
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
        """The share of those who took part in the weights of all the model's clients: 1 where all did.

        0 where nobody trained the model as it is now: its clients, or their weights, were changed after the turns.

        Raises:
            ConfigurationError: somebody's weight in the average is not its own in the collaboration.
        """
        if not any(one.current for one in self.contributions):
            return 0.0
        own = [self.shares.get(one.client, 0.0) for one in self.contributions]
        share, total = fsum(own), fsum(one.weight for one in self.contributions)
        for one, weight in zip(self.contributions, own, strict=True):
            if abs(weight * total - one.weight * share) > 1e-6 * share * total:
                raise ConfigurationError(
                    f"the strategy needs every client's own weight in model {self.model}, and a callback gives client"
                    f" {one.client} another one. Do without that callback, or take another strategy."
                )
        return share / fsum(self.shares.values())

    def combine(self, *terms: tuple[float, Weights], elsewhere: Weights | None = None) -> Weights:
        """``sum_k a_k v_k`` in the shared parameters that are trained; a new object.

        Args:
            *terms: a_k and v_k.
            elsewhere: what all other entries are of (statistics of BatchNorm, frozen parameters); the average unless
                given.
        """
        return linear_combination(self.average if elsewhere is None else elsewhere, terms, self.spans)

    def dot(self, first: Weights, second: Weights) -> float:
        """The inner product over the shared parameters that are trained, in double precision."""
        return inner_product(first, second, self.spans)


class Learner:
    """Federated averaging; a strategy overrides the steps that it changes. Steps that it leaves cost nothing.

    What crosses rounds is kept by the engine, in checkpoints and where it belongs: ``turn.kept`` by the client,
    ``update.state`` by the server for each model. A strategy has no state of its own.
    """

    #: Trait of a callback (``Callback.traits``) -> the reason why the two do not go together.
    excludes: Mapping[str, str] = {}
    #: Trait of a callback -> why the two rather do not: a run with both is warned of.
    cautions: Mapping[str, str] = {}
    #: Trait that one of the callbacks must have -> the reason why.
    requires: Mapping[str, str] = {}
    #: Into how many parts every batch of a turn is divided; a step's own gradient is that of the first.
    batch_parts: int = 1
    #: Samples that a part has at least; a batch with fewer is left out.
    smallest_part: int = 1
    #: Asks for losses or gradients of its own (``ClientTurn.training_loss``, ``step_gradient``, ``batch_gradient``):
    #: modules that optimise manually have none.
    needs_losses: bool = False
    #: :meth:`correct_gradient_` treats every entry by itself, so that it may be given some entries of several clients
    #: at once: the gradient, the weights, the turn's start and the :class:`Weights` that it keeps as rows [n, P'], the
    #: model's state as [P']. What else the turn has is then that of one of these clients.
    elementwise: bool = False
    #: Names of further vectors, laid out as the weights are, that clients hand over and the server averages.
    extra_vectors: tuple[str, ...] = ()
    #: Names in ``turn.kept`` of what belongs to the shared model that the client trains. They are forgotten when the
    #: client comes to another model, and together with ``update.state`` when the model's clients or weights change.
    kept_for_model: tuple[str, ...] = ()

    def check_optimizers(self, optimizers: Sequence[Optimizer]) -> None:
        """Refuse, before anybody trains, what the module's ``configure_optimizers`` gives a client; on every rank.

        Args:
            optimizers: fresh ones; to be read only.

        Raises:
            ConfigurationError: the strategy does not work with them.
        """

    def client_loss(self, loss: Tensor, module: nn.Module) -> Tensor:
        """The loss that a client descends, from the module's own.

        Losses by which callbacks choose or weigh clients stay the module's own. A term that pulls towards weights is
        cheaper in :meth:`correct_gradient_`.
        """
        return loss

    def measure_client(self, turn: ClientTurn) -> dict[str, float]:
        """What a client of the cohort finds out before anybody trains; all of its model know it in their turns.

        Args:
            turn: that is to come, nothing of which is kept. ``turn.measured`` is empty as yet.
        """
        return {}

    def begin_client(self, turn: ClientTurn) -> None:
        """A client's turn begins."""

    def phases(self, turn: ClientTurn) -> Sequence[Phase]:
        """What is trained in a turn, one part of the model after another; nothing for the whole model at once."""
        return ()

    def correct_gradient_(self, turn: ClientTurn, gradient: Weights, weights: Weights) -> None:
        """Change the gradient of an optimiser's step, in place, before it is clipped.

        Args:
            turn: whose step it is.
            gradient: in the layout of the weights. Only the entries of shared parameters that the optimiser steps
                count; what others hold, or are given, changes nothing.
            weights: the client's present ones; to be read only.
        """

    def end_client(self, turn: ClientTurn, weights: Weights) -> None:
        """A client has trained: the place of a further training, by :meth:`ClientTurn.train`.

        Args:
            turn: its turn.
            weights: what it has learned, with its personal layers; to be read only.
        """

    def client_update(self, turn: ClientTurn, weights: Weights) -> ClientUpdate:
        """What a client hands over.

        Args:
            turn: its turn.
            weights: what it has learned, without its personal layers; to be read only.
        """
        return ClientUpdate(weights)

    def weigh_cohort(self, contributions: Sequence[Contribution], state: Mapping[str, Any]) -> Sequence[float]:
        """The weights of those whose turns did not fail in a model's average, in place of those they have.

        A strategy that has it costs memory: what clients learned is kept until all have trained. Not asked where every
        client has a model of its own.

        Args:
            contributions: to the model.
            state: what the server keeps for it; to be read only.
        """
        return [one.weight for one in contributions]

    def aggregate(self, update: ModelUpdate) -> Weights:
        """The next shared model. Called on every rank for every model that somebody contributed to."""
        return update.average

    def evaluated(self, model: str) -> str:
        """What :meth:`evaluation_weights` gives, in words for tables and summaries.

        Args:
            model: what the collaboration gives, such as "the shared model".
        """
        return model

    def evaluation_weights(self, turn: ClientTurn) -> Weights:
        """What a client is evaluated with, predicts with and is given at the end, inside and outside of a fit.

        Args:
            turn: of no round: ``turn.start`` is the client's model by the collaboration, with its personal layers,
                ``turn.kept`` what the client keeps, neither to be changed.
        """
        return turn.start


def changes(learner: Learner, step: str) -> bool:
    """Whether a learner does a step in its own way, so that what only serves that step may be left out."""
    return overrides(learner, step, Learner)
