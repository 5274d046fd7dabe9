"""Checks of the arguments of pure functions."""

from collections.abc import Sequence

from torch import Tensor

from lightning_fl.core.errors import ConfigurationError

#: A whole number for each client.
Integers = Sequence[int] | Tensor


def check_floating(name: str, values: Tensor, *shape: int | None) -> None:
    """Refuse a tensor that is not floating or not of a shape; ``None`` is any size of at least 1."""
    fits = len(values.shape) == len(shape) and all(
        size >= 1 if wanted is None else size == wanted for size, wanted in zip(values.shape, shape, strict=True)
    )
    if not fits or not values.is_floating_point():
        wanted = [">=1" if size is None else size for size in shape]
        raise ConfigurationError(f"{name} of shape {list(values.shape)}, {values.dtype}: give floats {wanted}.")


def check_square(name: str, values: Tensor, least: int = 1) -> None:
    """Raise a ``ConfigurationError`` for a tensor that is not a floating square matrix of at least some rows."""
    size = max([least, *values.shape[:1]])
    check_floating(name, values, size, size)
