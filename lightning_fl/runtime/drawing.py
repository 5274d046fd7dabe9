"""Palette, source note and error handling of all figures: a figure that fails is a warning, never an error."""

import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from lightning_fl.core.errors import FederatedError
from lightning_fl.core.system_errors import refusal
from lightning_fl.data.source import STAND_IN, STAND_IN_LABEL

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import ArrayLike

#: Colour-blind safe: Okabe and Ito's colours ("Color Universal Design", 2008) but for their yellow,
#: which is hard to see on white, then five of Tol's muted ones.
PALETTE = (
    *("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000"),
    *("#882255", "#44AA99", "#999933", "#332288", "#AA4499"),
)
#: Colours of gains and losses, and of claims that hold or do not.
GOOD, BAD = PALETTE[0], PALETTE[1]
#: Beside the colours, in their order.
MARKERS = "osD^vPX*<>hd"

_MISSING = re.compile(r"Glyph \d+ .*missing from")


@contextmanager
def drawing(picture: str) -> Iterator[None]:
    """Draw and save a figure in this block; an error becomes a warning. A dollar sign in a name starts no formula."""
    from matplotlib import rc_context

    caught: list[warnings.WarningMessage] = []
    try:
        with rc_context({"text.parse_math": False}), warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            yield
    except Exception as error:
        own = str(error) if isinstance(error, FederatedError) else f"{type(error).__name__}: {error}"
        reason = " ".join((refusal(error) or own).split())
        warnings.warn(f"the picture {picture} was not drawn, and nothing else is lost: {reason}", stacklevel=3)
    missing = {str(each.message) for each in caught if _MISSING.match(str(each.message))}
    if missing:
        text = f"the font lacks {len(missing)} letters of names in the picture {picture}; boxes replace them."
        warnings.warn(text, stacklevel=3)
    for each in caught:
        if str(each.message) not in missing:
            warnings.warn_explicit(each.message, each.category, each.filename, each.lineno, source=each.source)


def marked(number: int, length: int) -> dict[str, Any]:
    """Colour and markers of a line of so many points, for ``Axes.plot``: some ten, at other places in each line."""
    every = max(1, length // 10)
    return {
        "color": PALETTE[number % len(PALETTE)],
        "marker": MARKERS[number % len(MARKERS)],
        "markersize": 4,
        "markevery": (number % every, every),
    }


def plot_curve(axes: "Axes", x: "ArrayLike", mean: "ArrayLike", worst: "ArrayLike", color: str, **style: Any) -> None:
    """Draw a metric over rounds: the mean over clients, with a style and a label, and the worst client, dashed."""
    import numpy as np

    marker = "." if np.size(x) == 1 else ""
    axes.plot(x, mean, **{"color": color, "marker": marker, "linewidth": 1.6, **style})
    axes.plot(x, worst, color=color, marker=marker, linewidth=1.0, linestyle="--", alpha=0.8)


def plot_distribution(axes: "Axes", values: "ArrayLike", color: str, **style: Any) -> None:
    """Draw the cumulative distribution of a metric over clients."""
    axes.ecdf(values, **{"color": color, "linewidth": 1.6, **style})
    axes.set_ylim(0, 1.02)


def show_source(figure: "Figure", sources: Sequence[str]) -> None:
    """Write the sources of the data below a figure, in red if one is a stand-in."""
    is_stand_in = STAND_IN in sources
    names = [STAND_IN_LABEL] * is_stand_in + [source for source in sources if source != STAND_IN]
    note = " and ".join(names) if is_stand_in else f"data: {', '.join(names)}"
    color, weight = ("red", "bold") if is_stand_in else ("0.4", "normal")
    figure.supxlabel(note, fontsize=9, color=color, weight=weight)
