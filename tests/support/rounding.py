"""How far apart two right computations of the same numbers may be: as far as rounding takes them, on any CPU.

CPUs order, fuse and split sums differently. A rounding is off by up to eps of the largest number that goes into it, and
what is off is carried on by what follows; so a bound is relative to the largest entry, not to each (small ones may be
differences of large ones), and grows with the number of steps in a row.
"""

import torch
from torch import Tensor


def rounding(dtype: torch.dtype, steps: int, growth: float = 4.0) -> float:
    """The relative bound after so many steps in a row.

    ``growth`` is what a step's own sums and the steps after it make of an eps. A step of gradient descent on the tests'
    small models rounds the weights once, and a gradient (sums of up to 16 terms) that counts a tenth: about 2, with
    room for 4. Where training runs away it is far more.
    """
    return torch.finfo(dtype).eps * steps * growth


def assert_equal_up_to_rounding(found: Tensor, expected: Tensor, *, steps: int, growth: float = 4.0) -> None:
    """Entries differ by no more than :func:`rounding`, in the type of ``found``, times the largest of ``expected``."""
    found, expected = found.detach().cpu(), expected.detach().cpu()
    if not expected.is_floating_point():
        assert torch.equal(found, expected)
        return
    largest = float(expected.abs().max()) if expected.numel() else 0.0
    bound = rounding(found.dtype, steps, growth) * largest
    torch.testing.assert_close(found.double(), expected.double(), rtol=0, atol=bound)
