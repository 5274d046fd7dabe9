"""The mathematics of PI-FL: which tiers clients bid for, who trains them, and in what shares they are paid.

Khan et al., "PI-FL: Personalized and Incentivized Federated Learning", 2023, https://arxiv.org/abs/2304.07514,
algorithms 1 and 3, equations 3 to 14. Contributions are in ``functional/shapley.py``, payments in
``functional/tokens.py``.

=================================  ==================================================  ===============
paper                              here                                                shape
=================================  ==================================================  ===============
n_ck, samples of client c that     ``correct``                                         [N, K] or [K]
tier model k predicts correctly
υ_ck, importance weight            ``ImportanceWeights.raw`` and ``.shares``           [N, K] or [K]
T_h                                ``threshold`` of the raw importance weight          number in [0, 1]
τ_i, τ_p                           ``balance`` of a client, ``price`` of a bid         units of tokens
ψ_ki                               ``contributions``, client -> Shapley value          numbers
Ω_ki                               ``participations``, client -> rounds in the tier    counts
N_p, N_r                           ``num_best``, ``num_random``                        counts
δ_util                             :func:`improvement`                                 number >= 0
θ (equation 9), η, γ               :func:`reimbursement_share`, ``eta``, ``gamma``     numbers in [0, 1]
α / β (equations 12 to 14)         :func:`rank_shares`                                 fractions
ξ, ρ                               ``f1`` and ``rho``, how many classes are compared   [N, C], count
=================================  ==================================================  ===============

Differs from the paper:

- Equation 3 divides n_ck by n_k, a count of the tier; its range [0, 1] and the weighted average of equation 4 need a
  division by the client's samples m_c (raw, which the threshold is about) and weights that sum to 1 over the tiers
  (shares, which the personal model is averaged with).
- Equation 10 bounds θ by γ; equation 9 by η. It is η here.
- N_r is the number of clients drawn at random in equation 7 and the number of providers in equation 13; β here is
  n (n + 1) / 2 with n providers, so that the shares sum to 1.
- Equation 5 defines ρ as a variance; the text takes the ρ most varying classes, as here.
- The paper does not say in which order a client prefers its tiers, nor how ties are broken; both are stated below.
"""

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from lightning_fl.errors import ConfigurationError, DataError
from lightning_fl.functional.dpfl import shuffled

__all__ = [
    "ImportanceWeights",
    "TierCohort",
    "choose_bids",
    "f1_scores",
    "importance_weights",
    "importance_weights_from_losses",
    "importance_weights_from_metric",
    "improvement",
    "initial_tiers",
    "rank_shares",
    "reimbursement_share",
    "schedule",
]


#: A mean over batches of a share that is 1 in each may be off in its last digit.
_ROUNDING = 1e-6


class ImportanceWeights(NamedTuple):
    """How well each tier model fits each client's data."""

    raw: Tensor
    """υ to bid by: accuracy or score in [0, 1], float64, shape [N, K] or [K]."""
    shares: Tensor
    """υ to average the tier models with (equation 4): the raw ones over their sum, float64, rows sum to 1."""


class TierCohort(NamedTuple):
    """Who trains a tier model in a round; nobody twice."""

    best: list[int]
    """Bidders with the largest contributions, largest first."""
    random: list[int]
    """Clients drawn at random, ascending."""

    @property
    def clients(self) -> list[int]:
        """All of them, ascending."""
        return sorted(self.best + self.random)


def importance_weights(correct: Tensor, num_samples: int | Sequence[int] | Tensor) -> ImportanceWeights:
    """Importance weights of the tier models from their accuracy on the clients' data (equation 3).

    A client for whom no tier model predicts anything correctly gives all tiers the same share, 1/K.

    Args:
        correct: n, samples that each tier model predicts correctly, shape [N, K], or [K] for one client; or any score
            from 0 to 1, with one sample.
        num_samples: m, positive, length N, or a number for one client.

    Raises:
        ConfigurationError: if a shape does not fit or a count is out of range.

    Example:
        >>> weights = importance_weights(torch.tensor([30, 10, 0]), 80)
        >>> weights.raw.tolist(), weights.shares.tolist()
        ([0.375, 0.125, 0.0], [0.75, 0.25, 0.0])
    """
    hits = _rows("correct", correct)
    counts = torch.as_tensor(num_samples, dtype=torch.float64, device=hits.device)
    if counts.shape != hits.shape[:-1]:
        raise ConfigurationError(
            f"num_samples of shape {list(counts.shape)} for correct of shape {list(hits.shape)}: give one count per"
            " client."
        )
    if not ((counts > 0).all() and ((hits >= 0) & (hits <= counts.unsqueeze(-1))).all()):
        raise ConfigurationError(
            f"num_samples={counts.tolist()}, correct={hits.tolist()}: clients need samples, and at most all of them"
            " can be predicted correctly."
        )
    total = hits.sum(-1, keepdim=True)
    shares = torch.where(total > 0, hits / total.masked_fill(total == 0, 1.0), 1 / hits.shape[-1])
    return ImportanceWeights(hits / counts.unsqueeze(-1), shares)


def importance_weights_from_losses(losses: Tensor) -> ImportanceWeights:
    """Importance weights of the tier models where nothing is correct or wrong, as in regression: exp(-loss).

    The scores depend on the units of the loss: let a loss of 1 be a large one (standardise the targets). A loss that is
    infinite or NaN scores 0; a client with no other loss gives all tiers the same share.

    Args:
        losses: mean loss >= 0 of each tier model on the client's data, shape [N, K], or [K] for one client.

    Raises:
        ConfigurationError: if the shape does not fit or a loss is negative.
    """
    values = _rows("losses", losses)
    if (values < 0).any():
        raise ConfigurationError(f"losses={values.tolist()}: the score exp(-loss) is bounded for losses >= 0 only.")
    values = values.nan_to_num(nan=math.inf, posinf=math.inf)
    hopeless = values.isinf().all(-1, keepdim=True)
    return ImportanceWeights((-values).exp(), (-values.masked_fill(hopeless, 0.0)).softmax(-1))


def importance_weights_from_metric(name: str, values: Tensor, higher_is_better: bool) -> ImportanceWeights:
    """Importance weights of the tier models from any metric: a share as it is, a loss as exp(-loss).

    Args:
        name: the metric's, for messages.
        values: of each tier model on one client's data, shape [K]; NaN, of a model that diverged, is the worst.
        higher_is_better: then they are shares in [0, 1], such as accuracies; else losses >= 0.

    Raises:
        ConfigurationError: if a value is out of its range.
    """
    known = values[~values.isnan()]
    if (known < 0).any() or (higher_is_better and (known > 1 + _ROUNDING).any()):
        raise ConfigurationError(
            f"{name} is {', '.join(f'{value:.6g}' for value in values.tolist())}, and cannot be made a score from 0 to"
            " 1: set monitor to a share, such as an accuracy, or to a loss of at least 0."
        )
    if not higher_is_better:
        return importance_weights_from_losses(values)
    return importance_weights(values.nan_to_num(0.0).clamp(max=1.0), 1)


def choose_bids(
    raw: Sequence[float] | Tensor, past_rewards: Sequence[float] | Tensor, threshold: float, balance: int, price: int
) -> list[int]:
    """The tiers one client bids for (algorithm 1): those worth it and within its means, in order of preference.

    Where it was rewarded best before comes first; of equals (in the first rounds nobody was rewarded) the tier with the
    larger importance weight, then the one with the smaller number.

    Args:
        raw: υ of each tier, shape [K].
        past_rewards: what each tier brought the client so far, shape [K], in any one unit, larger is better; 0 for
            tiers that it never joined. With the price taken off, a tier that cost more than it brought comes after
            those never tried.
        threshold: T_h in [0, 1]; a tier needs a larger υ.
        balance: what the client has >= 0, units of tokens.
        price: of one bid >= 0, units of tokens.

    Returns:
        Distinct tiers, as many as the balance pays for; empty if no υ is above the threshold.

    Raises:
        ConfigurationError: if the lengths differ, an entry is not finite or an argument is out of range.

    Example:
        >>> choose_bids([0.9, 0.1, 0.6], [0.0, 50.0, 20.0], threshold=0.5, balance=250, price=100)
        [2, 0]
    """
    values, rewards = (torch.as_tensor(one, dtype=torch.float64).tolist() for one in (raw, past_rewards))
    if len(values) != len(rewards) or not all(map(math.isfinite, values + rewards)):
        raise ConfigurationError(f"raw={values}, past_rewards={rewards}: give one finite number per tier in both.")
    if not 0 <= threshold <= 1:
        raise ConfigurationError(f"threshold={threshold}: importance weights lie between 0 and 1, so must it.")
    if balance < 0 or price < 0:
        raise ConfigurationError(f"balance={balance}, price={price}: neither may be negative.")
    wanted = [tier for tier, value in enumerate(values) if value > threshold]
    wanted.sort(key=lambda tier: (-rewards[tier], -values[tier], tier))
    return wanted[: balance // price] if price else wanted


def schedule(
    bidders: Sequence[int],
    contributions: Mapping[int, float],
    num_best: int,
    num_random: int,
    generator: torch.Generator,
    *,
    available: Sequence[int] | None = None,
) -> TierCohort:
    """Who trains a tier (algorithm 3): N_p bidders by contribution, and N_r clients at random.

    Equal contributions are put in a random order, so that no client is favoured for its number. The result depends on
    the generator, not on the order in which clients are given. Without contributions and with ``num_best=0`` this is
    FedAvg's sampling, as in the first round.

    Args:
        bidders: clients that bid for the tier.
        contributions: ψ of clients in this tier, larger is better; a client without one counts as 0, which is the
            average of normalised contributions.
        num_best: N_p >= 0; all bidders if there are fewer.
        num_random: N_r >= 0; as many as there are left if they are fewer.
        generator: of ties and of the draw, on the CPU.
        available: ζ_a, whom the random ones are drawn from besides the bidders. ``None`` for nobody: then everybody
            chosen has bid, which equation 7 takes for granted when N_p + N_r clients pay.

    Raises:
        ConfigurationError: if a number is negative, a client is named twice or a contribution is NaN.
    """
    if num_best < 0 or num_random < 0:
        raise ConfigurationError(f"num_best={num_best}, num_random={num_random}: give numbers of at least 0.")
    for name, clients in (("bidders", bidders), ("available", available or ())):
        if len(set(clients)) != len(clients):
            raise ConfigurationError(f"{name}={list(clients)}: name each client once.")
    psi = {client: contributions.get(client, 0.0) for client in bidders}
    if any(map(math.isnan, psi.values())):
        raise ConfigurationError(f"contributions={psi}: leave out clients whose contribution is not known.")
    best = sorted(shuffled(bidders, generator), key=lambda client: -psi[client])[:num_best]
    others = {*bidders, *(available or ())}.difference(best)
    return TierCohort(best, sorted(shuffled(list(others), generator)[:num_random]))


def improvement(accuracy: float, best_accuracy: float) -> float:
    """``δ = max(0, (accuracy - best) / best)`` (equation 8), relative to the best of past rounds.

    From nothing (best 0, as before the first round) to something is an infinite improvement, the limit; from nothing
    to nothing is none.

    Args:
        accuracy: of the tier model, mean over its clients' data, >= 0; or another score of which more is better.
        best_accuracy: the largest of the rounds before, >= 0.

    Raises:
        ConfigurationError: if one is negative or not finite.
    """
    if not (0 <= accuracy < math.inf and 0 <= best_accuracy < math.inf):
        raise ConfigurationError(
            f"accuracy={accuracy}, best_accuracy={best_accuracy}: give finite scores of at least 0, larger is better."
        )
    if best_accuracy == 0:
        return math.inf if accuracy > 0 else 0.0
    return max(0.0, (accuracy - best_accuracy) / best_accuracy)


def reimbursement_share(accuracy: float, best_accuracy: float, eta: float, gamma: float) -> float:
    """The share of the pool that goes back to the payers, ``θ = η (γ - min(γ, δ)) / γ`` (equation 9).

    Without improvement the payers get η back, with an improvement of γ or more nothing. In the first round
    (``best_accuracy=0``) any accuracy above 0 is improvement enough.

    Args:
        accuracy: see :func:`improvement`.
        best_accuracy: see :func:`improvement`.
        eta: η in [0, 1], the most that is paid back.
        gamma: γ in (0, 1], the improvement from which on nothing is paid back.

    Returns:
        θ in [0, η].

    Raises:
        ConfigurationError: if an argument is out of range.

    Example:
        >>> reimbursement_share(0.75, 0.5, eta=0.8, gamma=1.0)  # δ = 0.5
        0.4
    """
    if not (0 <= eta <= 1 and 0 < gamma <= 1):
        raise ConfigurationError(f"eta={eta}, gamma={gamma}: give an eta from 0 to 1, and a gamma above 0, at most 1.")
    return eta * (1 - min(gamma, improvement(accuracy, best_accuracy)) / gamma)


def rank_shares(contributions: Mapping[int, float], participations: Mapping[int, int]) -> dict[int, Fraction]:
    """Each provider's share of the reward: its rank over β = n (n + 1) / 2 (equations 12 to 14).

    The provider with the largest contribution has rank n. Of equal contributions the one that took part more often
    ranks higher, then the one with the smaller number.

    Args:
        contributions: ψ of each of the n providers.
        participations: Ω, in how many rounds a client has trained the tier; 0 for those not named.

    Returns:
        Shares by client, ascending; exact, they sum to 1.

    Raises:
        ConfigurationError: if a contribution is NaN.

    Example:
        >>> rank_shares({4: 0.1, 7: -0.2}, {})
        {4: Fraction(2, 3), 7: Fraction(1, 3)}
    """
    if any(map(math.isnan, contributions.values())):
        raise ConfigurationError(f"contributions={dict(contributions)}: leave out providers whose updates failed.")
    order = sorted(contributions, key=lambda i: (contributions[i], participations.get(i, 0), -i))
    beta = len(order) * (len(order) + 1) // 2
    shares = {client: Fraction(rank, beta) for rank, client in enumerate(order, start=1)}
    return dict(sorted(shares.items()))


def f1_scores(true_positives: Tensor, false_positives: Tensor, false_negatives: Tensor) -> Tensor:
    """F1 of every class from counts, ``2 TP / (2 TP + FP + FN)``; 0 for a class that nobody has or predicts.

    Args:
        true_positives: samples of the class that are predicted as such, shape [..., C].
        false_positives: other samples predicted as the class, shape [..., C].
        false_negatives: samples of the class predicted as another, shape [..., C].

    Returns:
        float64, shape [..., C].

    Raises:
        ConfigurationError: if a count is negative.
    """
    counts = torch.stack([true_positives, false_positives, false_negatives]).double()
    if (counts < 0).any():
        raise ConfigurationError("true_positives, false_positives, false_negatives: counts are at least 0.")
    hits, others = 2 * counts[0], counts[1] + counts[2]
    return hits / (hits + others).clamp_min(1)


def initial_tiers(f1: Tensor, num_tiers: int, rho: int, seed: int) -> list[int]:
    """Tiers to start with: k-means on the classes in which the clients' models differ most (equation 5).

    Args:
        f1: F1 score per class of each client's model on one common set, shape [N, C].
        num_tiers: K, from 1 to N.
        rho: ρ, from 1 to C; of classes that vary equally the first ones are taken.
        seed: >= 0; the same seed gives the same tiers.

    Returns:
        Tier of each client, 0..K-1 in order of first appearance, length N.

    Raises:
        ConfigurationError: if a shape does not fit or an argument is out of range.
        DataError: if a score is not finite, or fewer than K clients differ.
    """
    from sklearn.cluster import KMeans  # type: ignore[import-untyped]  # takes seconds to import

    scores = np.asarray(torch.as_tensor(f1, dtype=torch.float64, device="cpu"))
    if scores.ndim != 2 or not 1 <= num_tiers <= len(scores) or not 1 <= rho <= scores.shape[1]:
        raise ConfigurationError(
            f"num_tiers={num_tiers}, rho={rho} for scores of shape {list(scores.shape)}: give a matrix [N, C], up to N"
            " tiers and up to C classes."
        )
    if seed < 0:
        raise ConfigurationError(f"seed={seed}: give a seed of at least 0.")
    if not np.isfinite(scores).all():
        raise DataError("f1: every score must be finite; leave clients out whose model has none.")
    columns = scores[:, np.argsort(-scores.var(0), kind="stable")[:rho]]
    distinct = len(np.unique(columns, axis=0))
    if distinct < num_tiers:
        raise DataError(
            f"the scores of {len(scores)} clients are of {distinct} kinds, too few for {num_tiers} tiers: train longer"
            " before, or lower num_tiers."
        )
    found = KMeans(num_tiers, n_init=10, random_state=seed & 0xFFFF_FFFF).fit(columns).labels_.tolist()
    labels = {label: tier for tier, label in enumerate(dict.fromkeys(found))}
    return [labels[label] for label in found]


def _rows(name: str, values: Tensor) -> Tensor:
    rows = torch.as_tensor(values).double()
    if rows.ndim not in (1, 2) or not rows.numel():
        raise ConfigurationError(f"{name} of shape {list(rows.shape)}: give [N, K], or [K] for one client.")
    return rows
