"""Shapley values: contributions of clients to the model averaged from them.

Khan et al., "PI-FL: Personalized and Incentivized Federated Learning", 2023, https://arxiv.org/abs/2304.07514,
algorithm 2 and appendix A (first order); Shapley, "A value for n-person games", 1953 (exact); Castro, Gómez, Tejada,
"Polynomial calculation of the Shapley value based on sampling", Computers & Operations Research 2009 (permutations).

First order, ψ_i is the decrease of the loss L due to client i, from one gradient ∇L at the aggregate W_M = Σ_i λ_i W_i
and N inner products:

- normalised (equation 2), ``ψ_i = -⟨∇L, λ_i (W_i - W_M)⟩``: relative to the average client. Σ_i ψ_i = 0. The λ are
  divided by their sum (equation 23), so sample counts are allowed. Models and updates from a common model agree.
- unnormalised (equation 1), ``ψ_i = -⟨∇L, λ_i W_i⟩``: relative to absence, with Σ_i ψ_i = -⟨∇L, W_M⟩. For updates
  ``w_i - w`` this is the first-order decrease of the loss in the round, L(w) - L(W_M), exact for a linear loss. For
  models it is the decrease from the model with all weights zero, literally equation 1.

The paper writes v({S ∪ {m}}) and S ∈ A - {m} in equation 18 for v(S ∪ {m}) and S ⊆ A - {m}.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from itertools import zip_longest
from typing import Annotated, NamedTuple

import numpy as np
import torch
from annotated_types import Ge, Interval, doc
from torch import Tensor

from lightning_fl.core.errors import ConfigurationError, DataError
from lightning_fl.core.validation import Count, checked
from lightning_fl.functional.shapes import check_floating

#: One vector, or the vectors of one model, floating-point, one per dtype.
Model = Tensor | Sequence[Tensor]
#: The value of a coalition; larger is better.
Value = Callable[[frozenset[int]], float]
Permutations = Annotated[int, Ge(4), doc("an even number")]

# Entries converted to float64 at a time.
_CHUNK = 1 << 20
# 2^16 coalitions at most.
_MOST_PLAYERS = 16


class ShapleyEstimate(NamedTuple):
    """Shapley values from sampled permutations."""

    values: Tensor
    """float64, shape [N]."""
    standard_errors: Tensor
    """Standard error of each value, float64, shape [N]."""


class FirstOrderShapley:
    """First-order Shapley values from a stream of clients, in memory of one number per client.

    Sums are in float64 and do not depend on the order of the clients.

    Args:
        gradient: ∇L at the aggregate of all clients, floating, shape [P] or a list of such vectors.
        normalized: equation 2, else equation 1.

    Example:
        >>> shapley = FirstOrderShapley(torch.tensor([1.0, 0.0]))
        >>> shapley.add(7, 1, torch.tensor([-2.0, 5.0]))
        >>> shapley.add(3, 3, torch.tensor([2.0, 5.0]))
        >>> shapley.values()
        {3: -0.75, 7: 0.75}
    """

    def __init__(self, gradient: Model, *, normalized: bool = True) -> None:
        vectors = _vectors("gradient", gradient)
        if not all(bool(vector.isfinite().all()) for vector in vectors):
            raise DataError("the gradient is not finite: evaluate the loss on data on which the aggregate is finite.")
        self._gradient = [vector.double() for vector in vectors]
        self._normalized = normalized
        self._products: dict[int, tuple[float, float]] = {}

    def add(self, client: int, weight: float, contribution: Model) -> None:
        """Add one client with its weight λ_i >= 0 and contribution W_i, in the shapes of the gradient."""
        if client in self._products:
            raise ConfigurationError(f"client {client} was added twice: add each client once.")
        if not 0 <= weight < math.inf:
            raise ConfigurationError(f"client {client} has weight {weight}: give a finite weight of at least 0.")
        vectors = _vectors(f"the contribution of client {client}", contribution)
        wanted, got = ([list(vector.shape) for vector in one] for one in (self._gradient, vectors))
        if wanted != got:
            raise ConfigurationError(f"the contribution of client {client} has shapes {got}, the gradient {wanted}.")
        product = math.fsum(
            float(left @ right.double())
            for gradient, vector in zip(self._gradient, vectors, strict=True)
            for left, right in zip(gradient.split(_CHUNK), vector.split(_CHUNK), strict=True)
        )
        if not math.isfinite(product):
            raise DataError(f"the contribution of client {client} is not finite: lower its learning rate.")
        self._products[client] = (float(weight), product)

    def values(self) -> dict[int, float]:
        """ψ of the clients added so far, clients in ascending order; normalised ones need a positive weight."""
        clients = sorted(self._products)
        if not self._normalized:
            return {i: -self._products[i][0] * self._products[i][1] for i in clients}
        total = math.fsum(weight for weight, _ in self._products.values())
        if total <= 0:
            raise ConfigurationError("no client has a positive weight: add one, or set normalized=False.")
        mean = math.fsum(weight / total * product for weight, product in self._products.values())
        return {i: -self._products[i][0] / total * (self._products[i][1] - mean) for i in clients}


def shapley_first_order(
    gradient: Model,
    weights: Sequence[float] | Tensor,
    contributions: Tensor | Iterable[Model],
    *,
    normalized: bool = True,
) -> Tensor:
    """First-order Shapley values (algorithm 2), in the units of the loss, float64, shape [N].

    Args:
        weights: λ >= 0, length N; any multiple of them for normalised values.
        contributions: W_1 to W_N, models or updates: a matrix [N, P] or an iterable of each client's vector or vectors.
    """
    shapley = FirstOrderShapley(gradient, normalized=normalized)
    lambdas = torch.as_tensor(weights, dtype=torch.float64).flatten().tolist()
    for client, (weight, contribution) in enumerate(zip_longest(lambdas, contributions)):
        if weight is None or contribution is None:
            raise ConfigurationError(f"{len(lambdas)} weights: give as many contributions, one of each per client.")
        shapley.add(client, weight, contribution)
    return torch.tensor(list(shapley.values().values()), dtype=torch.float64)


@checked
def shapley_exact(
    value: Value, num_players: Annotated[int, Interval(ge=1, le=_MOST_PLAYERS), doc("shapley_permutations takes more")]
) -> Tensor:
    """Shapley values by enumeration (equation 18), float64, shape [N]; they sum to v(all players) - v(empty set).

    ``value`` is v of a coalition, a set of players 0..N-1; called once for each of the 2^N coalitions, N at most 16.

    Example:
        >>> shapley_exact(lambda coalition: float({0, 1} <= coalition), num_players=3)
        tensor([0.5000, 0.5000, 0.0000], dtype=torch.float64)
    """
    value_of = _values(value)
    values = np.array([value_of(coalition) for coalition in range(1 << num_players)])
    coalitions = np.arange(1 << num_players)
    sizes = np.bitwise_count(coalitions)
    shares = np.array([1 / (num_players * math.comb(num_players - 1, size)) for size in range(num_players)])
    found = []
    for player in range(num_players):
        without = coalitions[coalitions >> player & 1 == 0]
        found.append(math.fsum(shares[sizes[without]] * (values[without | 1 << player] - values[without])))
    return torch.tensor(found, dtype=torch.float64)


@checked
def shapley_permutations(
    value: Value, num_players: Count, generator: torch.Generator, *, num_permutations: Permutations = 1000
) -> ShapleyEstimate:
    """Estimate Shapley values from random orders, an even number of 4 or more, in which the players 0..N-1 join.

    Every order comes with its reverse; these pairs' means give the standard errors. Each coalition is evaluated once.
    """
    if num_permutations % 2:
        raise ConfigurationError(f"num_permutations={num_permutations}: must be even.")
    value_of = _values(value)
    orders = [torch.randperm(num_players, generator=generator).tolist() for _ in range(num_permutations // 2)]
    pairs = np.array([(_marginals(value_of, order) + _marginals(value_of, order[::-1])) / 2 for order in orders])
    errors = pairs.std(0, ddof=1) / math.sqrt(len(pairs))
    return ShapleyEstimate(torch.from_numpy(pairs.mean(0)), torch.from_numpy(errors))


def _values(value: Value) -> Callable[[int], float]:
    """The value of a coalition given as an integer with a bit per player, each computed once."""

    @cache
    def value_of(coalition: int) -> float:
        players = frozenset(player for player in range(coalition.bit_length()) if coalition >> player & 1)
        found = float(value(players))
        if not math.isfinite(found):
            raise DataError(f"the value of coalition {sorted(players)} is {found}: give a finite, bounded one.")
        return found

    return value_of


def _marginals(value_of: Callable[[int], float], order: list[int]) -> np.ndarray:
    """Marginal value of each player after those before it, shape [N]."""
    added, coalition = np.zeros(len(order)), 0
    for player in order:
        before, coalition = value_of(coalition), coalition | 1 << player
        added[player] = value_of(coalition) - before
    return added


def _vectors(name: str, model: Model) -> list[Tensor]:
    vectors = [model] if isinstance(model, Tensor) else list(model)
    for vector in vectors:
        check_floating(name, vector, vector.numel())
    return [vector.detach() for vector in vectors]
