"""Draws from a symmetric Dirichlet distribution, exact for very small concentrations too."""

from collections.abc import Sequence

import torch
from torch import Tensor

from lightning_fl.core.validation import Positive, checked


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
    gamma = torch._standard_gamma(
        torch.full(shape, concentration + 1.0, dtype=torch.float64, device=generator.device), generator=generator
    )
    uniform = 1 - torch.rand(shape, dtype=torch.float64, device=generator.device, generator=generator)  # in (0, 1]
    return torch.softmax(gamma.log() + uniform.log() / concentration, dim=-1)
