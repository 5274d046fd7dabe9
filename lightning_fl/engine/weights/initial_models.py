"""Initial models that differ: the module's weights drawn again."""

from collections.abc import Sequence

import torch

from lightning_fl.core.seeding import seed_default_generators
from lightning_fl.engine.weights.flat import FlatModule, Span, Weights, copy_spans_

__all__ = ["reinitialised"]


def reinitialised(flat: FlatModule, start: Weights, spans: Sequence[Span], seed: int, *path: int | str) -> Weights:
    """Redraw parameters with the module's own ``reset_parameters``, and copy all else from ``start``.

    Submodules are reset before the modules that contain them. Torch's and PyG's layers have the method; parameters of a
    module without it stay as they are.

    Args:
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
    return copy_spans_(start.clone(), flat.collect(), spans)
