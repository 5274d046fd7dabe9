"""Draws from a Dirichlet distribution, repeated until every client has enough samples."""

from collections.abc import Callable
from typing import Annotated, TypeVar

from annotated_types import Gt, doc

from lightning_fl.core.errors import DataError

T = TypeVar("T")

#: The parameter alpha of a symmetric Dirichlet distribution.
Concentration = Annotated[float, Gt(0), doc("0.1: very uneven, 100: nearly equal")]

_MAX_DRAWS = 1000


def draw_until_enough(
    draw: Callable[[], tuple[T, int]], num_samples: int, num_clients: int, alpha: float, min_samples: int
) -> T:
    """Repeat a draw until every client has ``min_samples`` of the ``num_samples`` samples, a thousand times at most.

    A draw returns a result, and the number of samples of the smallest client in it; ``alpha`` is its concentration.
    """
    if num_clients * min_samples > num_samples:
        raise DataError(
            f"{num_samples} samples for {num_clients} clients with at least {min_samples} each: use at most"
            f" {num_samples // min_samples} clients, or lower min_samples."
        )
    smallest = -1
    for _ in range(_MAX_DRAWS):
        result, fewest = draw()
        if fewest >= min_samples:
            return result
        smallest = max(smallest, fewest)
    raise DataError(
        f"none of {_MAX_DRAWS} draws with alpha={alpha} gave each of {num_clients} clients min_samples={min_samples}"
        f" samples (at best, one client had {smallest}): raise alpha, use fewer clients, or lower min_samples."
    )
