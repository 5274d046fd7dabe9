"""Private names of Lightning that several files need, so that each stands in one place."""

from collections.abc import Iterator
from contextlib import contextmanager

from lightning.fabric.utilities.distributed import _destroy_dist_connection as destroy_process_group
from lightning.fabric.utilities.seed import _collect_rng_states as collect_rng_states
from lightning.fabric.utilities.seed import _set_rng_states as set_rng_states
from lightning.pytorch.core.optimizer import _MockOptimizer as NoOptimizer
from lightning.pytorch.utilities.model_helpers import _ModuleMode as ModuleModes
from torch import nn

__all__ = ["ModuleModes", "NoOptimizer", "collect_rng_states", "destroy_process_group", "eval_mode", "set_rng_states"]


@contextmanager
def eval_mode(module: nn.Module) -> Iterator[None]:
    """Set a module to eval mode, and afterwards every submodule to its mode before."""
    modes = ModuleModes()
    modes.capture(module)
    module.eval()
    try:
        yield
    finally:
        modes.restore(module)
