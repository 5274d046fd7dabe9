"""Labels of groups of clients."""

from collections.abc import Iterable

__all__ = ["in_order"]


def in_order(labels: Iterable[int]) -> list[int]:
    """The same partition with labels 0..K-1 in order of first appearance; -1, a client without a group, stays.

    Example:
        >>> in_order([7, -1, 3, 7])
        [0, -1, 1, 0]
    """
    numbers = {-1: -1}
    return [numbers.setdefault(label, len(numbers) - 1) for label in labels]
