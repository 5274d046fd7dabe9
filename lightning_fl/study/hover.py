"""Pictures inside a page whose marks say their values under the mouse: SVG's own titles, no script, no request."""

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

__all__ = ["inline_svg", "say_values"]

#: In front of an artist's text in its ``gid``, which the SVG writer makes the ``id`` of its group.
_MARK = "values:"
_SVG = "http://www.w3.org/2000/svg"
_XLINK = "http://www.w3.org/1999/xlink"
_REFERENCE = re.compile(r"(#|url\(#)([^)]+)(\)?)")


def say_values(
    axes: Axes, x: npt.ArrayLike, y: npt.ArrayLike, texts: Sequence[str], *, most: int | None = None
) -> None:
    """Lay marks that nobody sees over points; under the mouse each says its text.

    Args:
        axes: on which the points were drawn.
        x: of the points, in data coordinates, shape (n,).
        y: likewise.
        texts: n of them.
        most: of the points speak, evenly spread, first and last among them; ``None`` is all.
    """
    across, up = np.asarray(x, float), np.asarray(y, float)
    count = len(texts)
    speaking = range(count) if most is None or count <= most else np.linspace(0, count - 1, most).round().astype(int)
    for index in speaking:
        # One artist a point: the writer leaves out points that lie outside or are no numbers, and does not say which.
        mark = Line2D([across[index]], [up[index]], linestyle="", marker="o", markersize=9, alpha=0.0, zorder=10)
        mark.set_gid(_MARK + texts[index])
        axes.add_line(mark)


def inline_svg(figure: Figure, title: str) -> str:
    """The picture as an ``<svg>`` element for a page, equal for equal pictures.

    Args:
        figure: with or without values to say.
        title: what it shows, for those who do not see it.
    """
    file = io.BytesIO()
    with rc_context({"svg.fonttype": "path", "svg.hashsalt": "lightning-fl"}):  # the same letters on every machine
        figure.savefig(file, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    root = ET.fromstring(file.getvalue())
    for group in root.iter(f"{{{_SVG}}}g"):
        name = group.get("id", "")
        if name.startswith(_MARK):
            del group.attrib["id"]
            ET.SubElement(group, f"{{{_SVG}}}title").text = name.removeprefix(_MARK)
    _name_apart(root, f"p{zlib.crc32(title.encode()):08x}-")
    width, height = root.attrib.pop("width"), root.attrib.pop("height")
    root.set("role", "img")
    root.set("aria-label", title)
    root.set("style", f"width: {width}; height: auto; aspect-ratio: {width[:-2]} / {height[:-2]}")
    for prefix, space in (("", _SVG), ("xlink", _XLINK)):
        ET.register_namespace(prefix, space)
    return ET.tostring(root, encoding="unicode")


def _name_apart(root: ET.Element, prefix: str) -> None:
    """Names that are referred to begin with ``prefix``, others go: a page holds several pictures, a name once."""
    used = set()
    for element in root.iter():
        for attribute, value in element.attrib.items():
            if found := _REFERENCE.fullmatch(value):
                used.add(found[2])
                element.set(attribute, f"{found[1]}{prefix}{found[2]}{found[3]}")
    for element in root.iter():
        if (name := element.attrib.pop("id", None)) in used:
            element.set("id", f"{prefix}{name}")
