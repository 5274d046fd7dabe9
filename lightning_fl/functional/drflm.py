"""The mathematics of DRFA and DRFLM: worst-case sampling weights and local mixup.

DRFA: Deng, Kamani, Mahdavi, "Distributionally Robust Federated Averaging", NeurIPS 2020, algorithm 1.
DRFLM: Wu et al., "DRFLM: Distributionally Robust Federated Learning with Inter-client Noise via Local Mixup",
https://arxiv.org/abs/2204.07742. Both solve ``min_w max_{λ ∈ Δ_N} Σ_i λ_i f_i(w)``; DRFLM takes ``f_i`` on mixed
samples. Differs from the paper: the weights may have a floor, ``λ_i >= floor`` (0 gives the paper's simplex).
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from lightning_fl.core.errors import ConfigurationError
from lightning_fl.core.validation import Count, NonNegative, Positive, checked
from lightning_fl.functional.shapes import check_floating


def project_simplex(values: Tensor, floor: float = 0.0) -> Tensor:
    """The Euclidean projection on ``{λ : λ_i >= floor, Σ λ_i = 1}``, shape [N], computed in float64.

    By sorting: ``λ = max(values − θ, floor)`` with the θ that makes the sum 1 (Duchi et al., "Efficient projections
    onto the l1-ball", ICML 2008, figure 1).

    Args:
        values: any finite numbers, floating, shape [N], N >= 1.
        floor: least value of an entry, ``0 <= floor <= 1/N``.
    """
    check_floating("values", values, None)
    if not torch.isfinite(values).all():
        raise ConfigurationError(f"values={values.tolist()}: every entry must be finite to be projected.")
    count = len(values)
    if not 0 <= floor <= 1 / count + 1e-12:
        raise ConfigurationError(f"floor={floor} for {count} entries that sum to 1: must be 0 to {1 / count:.6g}.")
    total = max(0.0, 1.0 - count * floor)
    shifted = values.double() - values.double().max()  # a common shift changes nothing and keeps digits
    ordered = shifted.sort(descending=True).values
    ranks = torch.arange(1, count + 1, dtype=torch.float64, device=values.device)
    thresholds = (ordered.cumsum(0) - total) / ranks
    support = max(1, int((ordered > thresholds).sum()))
    return ((shifted - thresholds[support - 1]).clamp_min(0.0) + floor).to(values.dtype)


@checked
def sampling_weights_update(
    weights: Tensor, losses: Tensor, step_size: NonNegative, num_local_steps: Count, floor: float = 0.0
) -> Tensor:
    """One ascent step of the sampling weights: ``λ ← Π_Δ(λ + η_λ τ v)``, [N], in the type of ``weights``.

    Args:
        losses: v, the (estimated) losses of all clients, shape [N]; see :func:`loss_estimate`.
        step_size: η_λ.
        num_local_steps: τ, local steps since the last update.
    """
    check_floating("losses", losses, *weights.shape)
    ascended = weights.double() + step_size * num_local_steps * losses.to(weights.device, torch.float64)
    return project_simplex(ascended, floor).to(weights.dtype)


def loss_estimate(losses: Tensor, clients: Sequence[int], num_clients: int) -> Tensor:
    """Unbiased estimate [N] of all clients' losses from a uniformly drawn subset: ``v_i = (N/c) loss_i``, else 0.

    Args:
        losses: the losses of the drawn clients, shape [c].
        clients: the c distinct clients they belong to, each in ``0..N-1``.
    """
    count = len(clients)
    check_floating("losses", losses, max(1, count))
    if len(set(clients)) < count or not all(0 <= client < num_clients for client in clients):
        raise ConfigurationError(f"clients={list(clients)}: give distinct clients from 0 to {num_clients - 1}.")
    estimate = losses.new_zeros(num_clients)
    estimate[torch.tensor(clients, device=losses.device)] = losses * (num_clients / count)
    return estimate


@checked
def draw_cohort(weights: Tensor, cohort_size: Count, generator: torch.Generator) -> Tensor:
    """Draw a cohort with replacement by weights λ [N], normalised here: draws of each client, int64, shape [N]."""
    check_floating("weights", weights, None)
    if not torch.isfinite(weights).all() or (weights < 0).any() or not weights.sum() > 0:
        raise ConfigurationError(f"weights={weights.tolist()}: give finite numbers >= 0, at least one above 0.")
    draws = torch.multinomial(weights.double(), cohort_size, replacement=True, generator=generator)
    return torch.bincount(draws, minlength=len(weights))


def draw_subset(num_clients: int, size: int, generator: torch.Generator) -> Tensor:
    """Draw ``size`` distinct clients uniformly; ascending, int64, shape [size]."""
    if not 1 <= size <= num_clients:
        raise ConfigurationError(f"size={size}: must be 1 to {num_clients}, the number of clients.")
    return torch.randperm(num_clients, generator=generator, device=generator.device)[:size].sort().values


def mix(values: Tensor, permutation: Tensor, gamma: float | Tensor) -> Tensor:
    """Mix every sample with a partner from the same batch: ``γ a + (1 − γ) a[permutation]``.

    For inputs, embeddings and targets (one-hot or real). A missing target (NaN) makes the mixed target missing.

    Args:
        values: a, floating, shape [B, ...], as are the mixed samples.
        permutation: the partner of each sample, int64, shape [B].
        gamma: γ in [0, 1], a number, a tensor [] or one share per sample [B].
    """
    if not (values.is_floating_point() or values.is_complex()):
        raise ConfigurationError(f"values of type {values.dtype} cannot be mixed: give one_hot(...).float().")
    if permutation.shape != values.shape[:1]:
        raise ConfigurationError(f"permutation of shape {list(permutation.shape)}: give {list(values.shape[:1])}.")
    if isinstance(gamma, Tensor):
        if gamma.ndim > 0:
            check_floating("gamma", gamma, *permutation.shape)
            gamma = gamma.reshape(-1, *[1] * (values.ndim - 1))
        gamma = gamma.to(values)
    elif not 0 <= gamma <= 1:
        raise ConfigurationError(f"gamma={gamma}: give a share from 0 to 1.")
    return gamma * values + (1 - gamma) * values[permutation]


@checked
def sample_gamma(alpha: NonNegative, generator: torch.Generator, size: Sequence[int] = ()) -> Tensor:
    """Draw mixing shares γ ~ Beta(α, α) of shape ``size``, torch's default type; α = 0 means no mixing, γ = 1.

    α = 1 is the uniform distribution, small values mix little, large ones half and half.
    """
    if alpha == 0:
        return torch.ones(tuple(size), device=generator.device)
    return sample_dirichlet(alpha, 2, generator, size)[..., 0].to(torch.get_default_dtype())


@checked
def sample_dirichlet(
    concentration: Positive, num_categories: int, generator: torch.Generator, size: Sequence[int] = ()
) -> Tensor:
    """Independent draws from Dir(α, ..., α), float64, [*size, K], each row >= 0 with sum 1.

    Gamma draws of a small shape underflow float64, and their quotient is then 0/0 (at α = 0.001 torch's own sampler
    returns equal shares for a quarter of all pairs). The draws are therefore made as logarithms:
    ``log G(α) = log G(α + 1) + log(U) / α`` (Marsaglia and Tsang, ACM TOMS 26, 2000, section 6).
    """
    shape = (*size, num_categories)
    raised = torch.full(shape, concentration + 1.0, dtype=torch.float64, device=generator.device)
    gamma = torch._standard_gamma(raised, generator=generator)
    uniform = 1 - torch.rand(shape, dtype=torch.float64, device=generator.device, generator=generator)  # in (0, 1]
    return torch.softmax(gamma.log() + uniform.log() / concentration, dim=-1)
