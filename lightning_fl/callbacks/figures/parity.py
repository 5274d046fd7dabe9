"""Figure of predictions against measurements."""

from collections.abc import Mapping
from typing import Literal

from matplotlib.figure import Figure

from lightning_fl.callbacks.figures.held_out import HeldOutFigure
from lightning_fl.callbacks.figures.plots.run import Pairs, draw_parities, draw_parity

__all__ = ["ParityFigure"]


class ParityFigure(HeldOutFigure):
    """Parity plot of held-out values, coloured by client.

    Arguments and privacy: see :class:`~lightning_fl.callbacks.figures.held_out.HeldOutFigure`.
    """

    picture = "parity"

    def __init__(self, *, split: Literal["test", "val"] = "test", target: int | str | None = 0) -> None:
        super().__init__(split=split, target=target)

    def _plot(self, panels: Mapping[str, Pairs], units: Mapping[str, str], names: list[str], source: str) -> Figure:
        truth = "computed" if source == "stand-in" else "measured"
        if self.target is None and len(panels) > 1:
            return draw_parities(panels, units, truth=truth)
        ((name, points),) = panels.items()
        return draw_parity(points, names, quantity=name, unit=units.get(name, ""), truth=truth)
