"""IFCA's different initial models.

Ghosh, Chung, Yin, Ramchandran, "An Efficient Framework for Clustered Federated Learning", NeurIPS 2020,
https://arxiv.org/abs/2006.04088, algorithm 1.
"""

import torch
from torch import Tensor

from lightning_fl.core.validation import Positive, checked
from lightning_fl.functional.shapes import check_floating

__all__ = ["perturbed"]


@checked
def perturbed(weights: Tensor, scale: Positive, generator: torch.Generator) -> Tensor:
    """Add normal noise in proportion to the size of weights: ``w + scale * rms(w) * z``, ``z ~ N(0, 1)``.

    Args:
        weights: entries of one parameter, floating, shape [P].
        scale: standard deviation of the noise relative to the root mean square of ``weights``.
        generator: on the CPU, so that the noise is the same on every device.

    Returns:
        Shape [P], in the type and on the device of ``weights``; weights that are all zero stay so.
    """
    check_floating("weights", weights, weights.numel())
    if not len(weights):
        return weights.clone()
    noise = torch.randn(len(weights), generator=generator, dtype=torch.float64).to(weights.device)
    values = weights.detach().double()
    return (values + scale * values.square().mean().sqrt() * noise).to(weights.dtype)
