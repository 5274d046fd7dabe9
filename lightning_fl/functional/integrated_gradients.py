"""Integrated gradients: how much every entry of an input has to do with a prediction.

Sundararajan, Taly, Yan, "Axiomatic Attribution for Deep Networks", ICML 2017, https://arxiv.org/abs/1703.01365,
equation 1.

==========================  ==========================================  ======
paper                       here                                        shape
==========================  ==========================================  ======
F                           ``compute``                                 scalar
x, x'                       ``inputs``, ``baseline``                    any
m                           ``num_points``
IntegratedGrads             :func:`integrated_gradients`                as x
==========================  ==========================================  ======

Differs from the paper: the integral is taken by the Gauss-Legendre rule, not by a Riemann sum (equation 3), which
needs more points for the same accuracy where F is smooth.
"""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from lightning_fl.core.errors import ConfigurationError

__all__ = ["integrated_gradients"]


def integrated_gradients(
    compute: Callable[[Tensor], Tensor], inputs: Tensor, baseline: Tensor | None = None, *, num_points: int = 64
) -> Tensor:
    """``(x - x') * integral over a in [0, 1] of dF(x' + a (x - x')) / dx``, entry by entry.

    Completeness: the entries sum to ``F(x) - F(x')``, up to the accuracy of the quadrature.

    Args:
        compute: F, from a tensor shaped like ``inputs`` to a single number, by differentiable operations. It is
            called ``num_points`` times, one after another.
        inputs: x, floating, any shape; of a molecule the atoms' features [V, A].
        baseline: x', of the shape of ``inputs``; zeros by default.
        num_points: points of the quadrature, at least 1.

    Returns:
        Shape, type and device of ``inputs``; summed over a molecule's features, one number an atom, in the units of F.
    """
    if not inputs.is_floating_point():
        raise ConfigurationError(f"inputs of integrated gradients are floating numbers, not {inputs.dtype}.")
    if num_points < 1:
        raise ConfigurationError(f"num_points={num_points}: integrated gradients need at least 1 point.")
    start = torch.zeros_like(inputs) if baseline is None else baseline.to(inputs)
    if start.shape != inputs.shape:
        raise ConfigurationError(
            f"the baseline has shape {list(start.shape)}, the inputs {list(inputs.shape)}: give one of the same shape."
        )
    start, difference = start.detach(), (inputs - start).detach()
    nodes, weights = np.polynomial.legendre.leggauss(num_points)  # on [-1, 1]
    total = torch.zeros_like(difference)
    for node, weight in zip(nodes.tolist(), weights.tolist(), strict=True):
        with torch.enable_grad():
            point = (start + (node + 1) / 2 * difference).requires_grad_()
            value = compute(point)
            if value.numel() != 1:
                raise ConfigurationError(
                    f"compute returned values of shape {list(value.shape)}: integrated gradients explain one number;"
                    " choose a sample and a target."
                )
            (gradient,) = torch.autograd.grad(value.reshape(()), point)
        total += weight / 2 * gradient
    return difference * total
