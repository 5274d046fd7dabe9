"""Integrated gradients: attribution of a prediction to the entries of an input.

Sundararajan, Taly, Yan, "Axiomatic Attribution for Deep Networks", ICML 2017, https://arxiv.org/abs/1703.01365,
equation 1. Differs from the paper: the integral uses the Gauss-Legendre rule instead of a Riemann sum (equation 3),
which needs more points for the same accuracy if F is smooth.
"""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from lightning_fl.core.errors import ConfigurationError
from lightning_fl.core.validation import Count, checked
from lightning_fl.functional.shapes import check_floating


@checked
def integrated_gradients(
    compute: Callable[[Tensor], Tensor], inputs: Tensor, baseline: Tensor | None = None, *, num_points: Count = 64
) -> Tensor:
    """``(x - x') * integral over a in [0, 1] of dF(x' + a (x - x')) / dx``, entry by entry, in the units of F.

    Completeness: the entries sum to ``F(x) - F(x')``, up to the accuracy of the quadrature.

    Args:
        compute: F, differentiable, from a tensor shaped like ``inputs`` to one number; called ``num_points`` times.
        inputs: x, floating, any shape; of a molecule the atoms' features [V, A].
        baseline: x', of the shape of ``inputs``; zeros by default.
    """
    if not inputs.is_floating_point():
        raise ConfigurationError(f"inputs of type {inputs.dtype}: give floating numbers.")
    start = torch.zeros_like(inputs) if baseline is None else baseline.to(inputs)
    check_floating("baseline", start, *inputs.shape)
    start, difference = start.detach(), (inputs - start).detach()
    nodes, weights = np.polynomial.legendre.leggauss(num_points)  # on [-1, 1]
    total = torch.zeros_like(difference)
    for node, weight in zip(nodes.tolist(), weights.tolist(), strict=True):
        with torch.enable_grad():
            point = (start + (node + 1) / 2 * difference).requires_grad_()
            value = compute(point)
            if value.numel() != 1:
                raise ConfigurationError(f"compute returned shape {list(value.shape)}: choose one sample and target.")
            (gradient,) = torch.autograd.grad(value.reshape(()), point)
        total += weight / 2 * gradient
    return difference * total
