"""IFCA's different initial models.

Ghosh, Chung, Yin, Ramchandran, "An Efficient Framework for Clustered Federated Learning", NeurIPS 2020,
https://arxiv.org/abs/2006.04088, algorithm 1.
"""

import torch
from torch import Tensor

from lightning_fl.core.validation import Positive, checked
from lightning_fl.functional.shapes import check_floating


@checked
def perturbed(weights: Tensor, scale: Positive, generator: torch.Generator) -> Tensor:
    """Add normal noise to the entries of a parameter, [P]: ``w + scale * rms(w) * z``, ``z ~ N(0, 1)``.

    The generator is on the CPU, so that the noise is the same on every device. Weights that are all zero stay so.
    """
    check_floating("weights", weights, weights.numel())
    if not len(weights):
        return weights.clone()
    noise = torch.randn(len(weights), generator=generator, dtype=torch.float64).to(weights.device)
    values = weights.detach().double()
    return (values + scale * values.square().mean().sqrt() * noise).to(weights.dtype)
