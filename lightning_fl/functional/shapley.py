"""Shapley values: what each client is worth to the model built from all of them.

Khan et al., "PI-FL: Personalized and Incentivized Federated Learning", 2023, https://arxiv.org/abs/2304.07514,
algorithm 2 and appendix A (first order); Shapley, "A value for n-person games", 1953 (exact); Castro, Gómez, Tejada,
"Polynomial calculation of the Shapley value based on sampling", Computers & Operations Research 2009 (permutations);
Ghorbani, Zou, "Data Shapley", ICML 2019, algorithm 1 (truncation).

==========================  ======================================================  =============
paper                       here                                                    shape
==========================  ======================================================  =============
γ_M, ∇L(W_M)                ``gradient`` of the loss at the aggregate               [P]
λ_i                         ``weights``                                             [N]
W_i                         ``contributions``, what the clients hand over           [P] each
W_M = Σ_i λ_i W_i           never formed, only ⟨∇L, W_M⟩ = Σ_i λ_i ⟨∇L, W_i⟩        number
shap(i → [M]), ψ_i          returned                                                [N]
v(C)                        ``value`` of a coalition of players                     number
==========================  ======================================================  =============

First order, ψ_i says by how much client i lowers the loss L, from one gradient and N inner products:

- normalised (equation 2), ``ψ_i = -⟨∇L, λ_i (W_i - W_M)⟩``: against the average client. Σ_i ψ_i = 0. The λ are divided
  by their sum (equation 23), so that sample counts will do. Models and updates since a common model give the same ψ.
- unnormalised (equation 1), ``ψ_i = -⟨∇L, λ_i W_i⟩``: against not being there at all, where Σ_i ψ_i = -⟨∇L, W_M⟩. Of
  updates ``w_i - w`` this is the drop of the loss in the round, L(w) - L(W_M), to first order, exactly for a linear
  loss. Of models it is the drop from the model with all weights zero, what equation 1 says to the letter.

The paper writes v({S ∪ {m}}) and S ∈ A - {m} in equation 18 for v(S ∪ {m}) and S ⊆ A - {m}.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from lightning_fl.core.errors import ConfigurationError, DataError

__all__ = ["FirstOrderShapley", "ShapleyEstimate", "shapley_exact", "shapley_first_order", "shapley_permutations"]

#: One vector, or the vectors of one model, floating-point, one per dtype.
Model = Tensor | Sequence[Tensor]
#: The value of a coalition; larger is better.
Value = Callable[[frozenset[int]], float]

# Entries converted to float64 at a time: no second copy of a client's vectors is made.
_CHUNK = 1 << 20
# 2^16 coalitions: what enumeration may ask for.
_MOST_PLAYERS = 16


class ShapleyEstimate(NamedTuple):
    """Shapley values from sampled permutations."""

    values: Tensor
    """float64, shape [N]."""
    standard_errors: Tensor
    """Standard error of each value, float64, shape [N]."""


class FirstOrderShapley:
    """First-order Shapley values of clients that come one at a time; one number is kept for each.

    Sums are in float64 and do not depend on the order in which the clients come.

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
        """Take one client in.

        Args:
            client: its number, each once.
            weight: λ_i >= 0; with normalised values any multiple of it.
            contribution: W_i, model or update, in the shapes of the gradient, in any floating dtype.
        """
        if client in self._products:
            raise ConfigurationError(f"client {client} was added twice: add each client once.")
        if not 0 <= weight < math.inf:
            raise ConfigurationError(f"client {client} has weight {weight}: give a finite weight of at least 0.")
        vectors = _vectors(f"the contribution of client {client}", contribution)
        wanted, got = ([list(vector.shape) for vector in one] for one in (self._gradient, vectors))
        if wanted != got:
            raise ConfigurationError(
                f"the contribution of client {client} has shapes {got}, but the gradient has {wanted}: give vectors of"
                " the same parameters."
            )
        product = math.fsum(
            float(left @ right.double())
            for gradient, vector in zip(self._gradient, vectors, strict=True)
            for left, right in zip(gradient.split(_CHUNK), vector.split(_CHUNK), strict=True)
        )
        if not math.isfinite(product):
            raise DataError(
                f"the contribution of client {client} is not finite: drop the client from the round or lower its"
                " learning rate."
            )
        self._products[client] = (float(weight), product)

    def values(self) -> dict[int, float]:
        """ψ of the clients added so far, clients in ascending order.

        Raises:
            ConfigurationError: if no client with a positive weight was added and the values are normalised.
        """
        clients = sorted(self._products)
        if not self._normalized:
            return {i: -self._products[i][0] * self._products[i][1] for i in clients}
        total = math.fsum(weight for weight, _ in self._products.values())
        if total <= 0:
            raise ConfigurationError("no client has a positive weight: normalised values need one.")
        mean = math.fsum(weight / total * product for weight, product in self._products.values())
        return {i: -self._products[i][0] / total * (self._products[i][1] - mean) for i in clients}


def shapley_first_order(
    gradient: Model,
    weights: Sequence[float] | Tensor,
    contributions: Tensor | Iterable[Model],
    *,
    normalized: bool = True,
) -> Tensor:
    """First-order Shapley values (algorithm 2).

    Args:
        gradient: ∇L at the aggregate, floating, shape [P] or a list of such vectors.
        weights: λ >= 0, length N; with normalised values any multiple of them.
        contributions: W_1 to W_N, models or updates: a matrix [N, P], or one client's vector or vectors after the
            other, which may be made as they are asked for.
        normalized: ``-⟨∇L, λ_i (W_i - W_M)⟩``, else ``-⟨∇L, λ_i W_i⟩``.

    Returns:
        ψ, in the units of the loss, larger is better, float64, shape [N].

    Example:
        >>> updates = torch.tensor([[-2.0, 5.0], [2.0, 5.0]])
        >>> shapley_first_order(torch.tensor([1.0, 0.0]), [0.25, 0.75], updates)
        tensor([ 0.7500, -0.7500], dtype=torch.float64)
    """
    shapley = FirstOrderShapley(gradient, normalized=normalized)
    lambdas = torch.as_tensor(weights, dtype=torch.float64).flatten().tolist()
    count = 0
    for client, contribution in enumerate(contributions):
        if client < len(lambdas):
            shapley.add(client, lambdas[client], contribution)
        count += 1
    if count != len(lambdas) or not count:
        raise ConfigurationError(f"{len(lambdas)} weights for {count} contributions: give one weight per client.")
    return torch.tensor(list(shapley.values().values()), dtype=torch.float64)


def shapley_exact(value: Value, num_players: int) -> Tensor:
    """Shapley values by enumeration (equation 18).

    Args:
        value: v of a coalition, a set of players 0..N-1; asked for each of the 2^N coalitions once.
        num_players: N, from 1 to 16.

    Returns:
        Values, float64, shape [N]; they sum to v(everybody) - v(nobody).

    Example:
        >>> shapley_exact(lambda coalition: float({0, 1} <= coalition), num_players=3)
        tensor([0.5000, 0.5000, 0.0000], dtype=torch.float64)
    """
    if not 1 <= num_players <= _MOST_PLAYERS:
        raise ConfigurationError(
            f"num_players={num_players}: enumeration takes 1 to {_MOST_PLAYERS} players, 2^N values; take"
            " shapley_permutations for more."
        )
    game = _Game(value, num_players)
    values = np.array([game(coalition) for coalition in range(1 << num_players)])
    coalitions = np.arange(1 << num_players)
    sizes = np.bitwise_count(coalitions)
    shares = np.array([1 / (num_players * math.comb(num_players - 1, size)) for size in range(num_players)])
    found = []
    for player in range(num_players):
        without = coalitions[coalitions >> player & 1 == 0]
        found.append(math.fsum(shares[sizes[without]] * (values[without | 1 << player] - values[without])))
    return torch.tensor(found, dtype=torch.float64)


def shapley_permutations(
    value: Value,
    num_players: int,
    generator: torch.Generator,
    *,
    num_permutations: int = 1000,
) -> ShapleyEstimate:
    """Shapley values estimated from random orders in which the players join.

    Permutations come in antithetic pairs, one and its reverse; the standard errors are those of the pairs' means. No
    coalition is valued twice.

    Args:
        value: v of a coalition, a set of players 0..N-1.
        num_players: N >= 1.
        generator: of the permutations, on the CPU.
        num_permutations: even, at least 4.

    Example:
        >>> estimate = shapley_permutations(lambda c: float(len(c)), 3, torch.Generator(), num_permutations=4)
        >>> estimate.values.tolist(), estimate.standard_errors.tolist()
        ([1.0, 1.0, 1.0], [0.0, 0.0, 0.0])
    """
    if num_players < 1:
        raise ConfigurationError(f"num_players={num_players}: give at least one player.")
    if num_permutations < 4 or num_permutations % 2:
        raise ConfigurationError(f"num_permutations={num_permutations}: they come in pairs, give an even number >= 4.")
    game = _Game(value, num_players)
    orders = [torch.randperm(num_players, generator=generator).tolist() for _ in range(num_permutations // 2)]
    pairs = np.array([(game.marginals(order) + game.marginals(order[::-1])) / 2 for order in orders])
    errors = pairs.std(0, ddof=1) / math.sqrt(len(pairs))
    return ShapleyEstimate(torch.from_numpy(pairs.mean(0)), torch.from_numpy(errors))


class _Game:
    """Values of coalitions, each asked for once; a coalition is a number whose bits are its players."""

    def __init__(self, value: Value, num_players: int) -> None:
        self._value = value
        self._known: dict[int, float] = {}

    def __call__(self, coalition: int) -> float:
        if coalition not in self._known:
            players = frozenset(player for player in range(coalition.bit_length()) if coalition >> player & 1)
            value = float(self._value(players))
            if not math.isfinite(value):
                raise DataError(
                    f"the value of coalition {sorted(players)} is {value}: give a bounded value, such as an accuracy"
                    " or a clipped loss."
                )
            self._known[coalition] = value
        return self._known[coalition]

    def marginals(self, order: list[int]) -> np.ndarray:
        """What each player adds to those before it, shape [N]."""
        added = np.zeros(len(order))
        coalition, value = 0, self(0)
        for player in order:
            coalition |= 1 << player
            joined = self(coalition)
            added[player] = joined - value
            value = joined
        return added


def _vectors(name: str, model: Model) -> list[Tensor]:
    vectors = [model] if isinstance(model, Tensor) else list(model)
    for vector in vectors:
        if vector.ndim != 1 or not vector.is_floating_point():
            raise ConfigurationError(
                f"{name} has shape {list(vector.shape)} and type {vector.dtype}: give floating vectors [P]."
            )
    return [vector.detach() for vector in vectors]
