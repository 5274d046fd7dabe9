"""Checks that weights are finite."""

from math import inf

import torch
from torch import Tensor

from lightning_fl.core.errors import TrainingError
from lightning_fl.engine.weights.flat import Weights

__all__ = ["check_finite", "largest_magnitude"]


def check_finite(weights: Weights, reference: Weights) -> None:
    """Refuse weights with an entry that became NaN or infinite."""
    for dtype, vector in weights.floating():
        if largest_magnitude(vector) == inf and not ((vector == reference.vectors[dtype]) | vector.isfinite()).all():
            raise TrainingError(
                "the weights are not finite: training diverges; lower the learning rate or set"
                " trainer.gradient_clip_val."
            )


def largest_magnitude(vector: Tensor) -> float:
    """``max |v|``; infinity if any entry is infinite or NaN."""
    if not vector.numel():
        return 0.0
    largest = max(map(abs, torch.stack(torch.aminmax(vector)).tolist()))  # fetched together
    return largest if largest == largest else inf
