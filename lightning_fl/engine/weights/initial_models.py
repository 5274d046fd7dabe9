"""Models that start apart: the module's weights drawn anew."""

from collections.abc import Sequence

import torch

from lightning_fl.core.seeding import seed_default_generators
from lightning_fl.engine.weights.flat import FlatModule, Span, Weights

__all__ = ["reinitialised"]


def reinitialised(flat: FlatModule, start: Weights, spans: Sequence[Span], seed: int, *path: int | str) -> Weights:
    """A copy of some weights with parameters drawn anew by the module's own ``reset_parameters``.

    Submodules come before those that hold them, so that a module's own word is the last. Torch's and PyG's layers
    have the method; parameters of a module that has none stay as they are.

    Args:
        flat: the module; its weights are overwritten.
        start: weights of its layout.
        spans: the parameters that are taken from the new draw; all others, and buffers, are those of ``start``.
        seed: with ``path``, of the draw.
    """
    flat.load(start)
    seed_default_generators(seed, *path)
    with torch.no_grad():
        for submodule in reversed(list(flat.module.modules())):
            # Attention layers have a private one.
            reset = getattr(submodule, "reset_parameters", None) or getattr(submodule, "_reset_parameters", None)
            if callable(reset):
                reset()
    drawn, fresh = flat.collect(), start.clone()
    for span in spans:
        part = slice(span.begin, span.end)
        fresh.vectors[span.dtype][part] = drawn.vectors[span.dtype][part]
    return fresh
