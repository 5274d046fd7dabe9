"""Inline SVG figures with tooltips made of SVG titles, without scripts or requests."""

import io
import re
import xml.etree.ElementTree as ET
import zlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

__all__ = ["add_tooltips", "inline_svg"]

#: Prefix of a tooltip's text in an artist's ``gid``, which becomes the ``id`` of its SVG group.
_MARK = "values:"
_SVG = "http://www.w3.org/2000/svg"
_XLINK = "http://www.w3.org/1999/xlink"
_REFERENCE = re.compile(r"(#|url\(#)([^)]+)(\)?)")


def add_tooltips(
    axes: Axes, x: npt.ArrayLike, y: npt.ArrayLike, texts: Sequence[str], *, most: int | None = None
) -> None:
    """Add invisible marks with tooltips over points.

    Args:
        axes: of the points.
        x: in data coordinates, shape (n,).
        y: in data coordinates, shape (n,).
        texts: n tooltips.
        most: number of tooltips, evenly spread from the first point to the last; ``None`` for all.
    """
    xs, ys = np.asarray(x, float), np.asarray(y, float)
    count = len(texts)
    chosen = range(count) if most is None or count <= most else np.linspace(0, count - 1, most).round().astype(int)
    for index in chosen:
        # One artist per point: the SVG writer skips points that are not finite or outside the axes.
        mark = Line2D([xs[index]], [ys[index]], linestyle="", marker="o", markersize=9, alpha=0.0, zorder=10)
        mark.set_gid(_MARK + texts[index])
        axes.add_line(mark)


def inline_svg(figure: Figure, title: str) -> str:
    """A figure as an ``<svg>`` element; deterministic.

    Args:
        figure: with or without tooltips.
        title: for screen readers; its hash makes the element's ids unique.
    """
    file = io.BytesIO()
    with rc_context({"svg.fonttype": "path", "svg.hashsalt": "lightning-fl"}):  # independent of installed fonts
        figure.savefig(file, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    root = ET.fromstring(file.getvalue())
    for group in root.iter(f"{{{_SVG}}}g"):
        name = group.get("id", "")
        if name.startswith(_MARK):
            del group.attrib["id"]
            ET.SubElement(group, f"{{{_SVG}}}title").text = name.removeprefix(_MARK)
    _prefix_ids(root, f"p{zlib.crc32(title.encode()):08x}-")
    width, height = root.attrib.pop("width"), root.attrib.pop("height")
    root.set("role", "img")
    root.set("aria-label", title)
    root.set("style", f"width: {width}; height: auto; aspect-ratio: {width[:-2]} / {height[:-2]}")
    for prefix, space in (("", _SVG), ("xlink", _XLINK)):
        ET.register_namespace(prefix, space)
    return ET.tostring(root, encoding="unicode")


def _prefix_ids(root: ET.Element, prefix: str) -> None:
    """Prefix ids that are referenced and drop the others, so that a page can hold several figures."""
    used = set()
    for element in root.iter():
        for attribute, value in element.attrib.items():
            if found := _REFERENCE.fullmatch(value):
                used.add(found[2])
                element.set(attribute, f"{found[1]}{prefix}{found[2]}{found[3]}")
    for element in root.iter():
        if (name := element.attrib.pop("id", None)) in used:
            element.set("id", f"{prefix}{name}")
