"""IFCA's mathematics: different initial models.

Ghosh, Chung, Yin, Ramchandran, "An Efficient Framework for Clustered Federated Learning", NeurIPS 2020,
https://arxiv.org/abs/2006.04088, algorithm 1.

==========================  ==========================================  ======
paper                       here                                        shape
==========================  ==========================================  ======
theta_j^(0)                 :func:`perturbed`, or a fresh draw of the   [P]
                            module's own (the callback)
==========================  ==========================================  ======

Differs from the paper: nothing here.
"""

import torch
from torch import Tensor

from lightning_fl.core.errors import ConfigurationError
from lightning_fl.core.validation import Positive, checked

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
    if weights.ndim != 1 or not weights.is_floating_point():
        raise ConfigurationError(
            f"weights of shape {list(weights.shape)} and type {weights.dtype}: give a floating vector [P]."
        )
    if not len(weights):
        return weights.clone()
    noise = torch.randn(len(weights), generator=generator, dtype=torch.float64).to(weights.device)
    values = weights.detach().double()
    return (values + scale * values.square().mean().sqrt() * noise).to(weights.dtype)
