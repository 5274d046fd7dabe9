"""A picture of predictions against measurements."""

from collections.abc import Mapping
from typing import Any, Literal

from matplotlib.figure import Figure
from torch import Tensor

from lightning_fl.callbacks.figures.held_out import HeldOutFigure, Pairs, columns_of
from lightning_fl.callbacks.figures.plots.run import draw_parities, draw_parity

__all__ = ["ParityFigure"]


class ParityFigure(HeldOutFigure):
    """Predicted over measured held-out values, coloured by client, each client's own model on its own data.

    See :class:`~lightning_fl.callbacks.figures.held_out.HeldOutFigure` for when it is drawn and what leaves a client.

    Args:
        split: "test" or "val".
        target: which of several targets: its number from 0 or its name; ``None`` for a panel of each.
    """

    picture = "parity"

    def __init__(self, *, split: Literal["test", "val"] = "test", target: int | str | None = 0) -> None:
        super().__init__(split=split, target=target)

    def _draw(self, panels: Mapping[str, Pairs], units: Mapping[str, str], names: list[str], source: str) -> Figure:
        if self.target is None and len(panels) > 1:
            return draw_parities(panels, units, source=source)
        ((name, points),) = panels.items()
        return draw_parity(points, names, quantity=name, unit=units.get(name, ""), source=source)


def paired(outputs: list[Any], targets: Tensor, target: int) -> tuple[Tensor, Tensor] | str:
    """Predictions and targets [n] of one column where the target is there, or what keeps them from being paired.

    Args:
        outputs: what ``predict_step`` returned, batch by batch: tensors [b, T] or [b].
        targets: [n, T] or [n].
        target: the column.
    """
    found = columns_of(outputs, targets)
    if isinstance(found, str):
        return found
    predictions, columns = found
    if target >= columns.shape[1]:
        return f"target={target}, but there are {columns.shape[1]} columns of targets (counted from 0)."
    measured = ~columns[:, target].isnan()
    return predictions[measured, target], columns[measured, target]
