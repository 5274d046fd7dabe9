"""Displayed names of cells and places on a study's grid."""

from collections.abc import Mapping

__all__ = ["cell_name"]


def cell_name(arm: str, place: Mapping[str, str], seed: int | None = None) -> str:
    """Name of a cell: "fedavg, data=esol, seed 3"; an empty arm or missing seed is left out."""
    parts = [arm, *(f"{axis}={label}" for axis, label in place.items()), "" if seed is None else f"seed {seed}"]
    return ", ".join(filter(None, parts))
