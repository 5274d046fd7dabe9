"""Self-contained HTML pages: tables, figures with tooltips, folded text."""

import io
import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from markupsafe import Markup
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import ArrayLike

from lightning_fl.core.escaping import page_environment
from lightning_fl.data.source import STAND_IN, STAND_IN_LABEL
from lightning_fl.files.atomic import write_whole
from lightning_fl.runtime.drawing import drawing
from lightning_fl.runtime.table import Column, Table, label_column

#: Figures of this width in inches take the whole width of the page.
_WIDE = 8.0
#: Prefix of a tooltip's text in an artist's ``gid``, which matplotlib writes as the ``id`` of its SVG group.
_MARK = "values:"


@dataclass(frozen=True)
class Picture:
    """A figure with its caption: an SVG element, or an image as ``data:`` address."""

    title: str
    svg: str = ""
    source: str = ""
    is_wide: bool = False


@dataclass(frozen=True)
class Part:
    """Part of a section: one of text, code, table, pictures and links to files, folded below ``summary`` if set."""

    text: str = ""
    code: str = ""
    table: Sequence[Column] = ()
    pictures: Sequence[Picture] = ()
    links: Sequence[str] = ()
    summary: str = ""
    is_open: bool = False

    @classmethod
    def of_table(cls, table: Table) -> list["Part"]:
        """A table with its notes."""
        return [cls(table=table.columns), *(cls(note) for note in table.notes)]


def write_page(
    path: Path, title: str, subtitle: str, badges: Mapping[str, str], sections: Mapping[str, Sequence[Part]]
) -> Path:
    """Write a page; returns its path. ``badges`` map a text to its CSS class; sections without parts are left out."""
    template = page_environment().get_template("page.html.j2")
    write_whole(path, template.render(title=title, subtitle=subtitle, badges=badges, sections=sections))
    return path


def facts(values: Mapping[str, object]) -> list[Column]:
    """A table of names and values."""
    return [label_column("", list(values)), label_column("", list(values.values()))]


def source_badge(source: str) -> tuple[str, str]:
    """Text and CSS class of the badge for a data source."""
    return (STAND_IN_LABEL, "stand-in") if source == STAND_IN else (f"data: {source}", "")


def draw_pictures(figures: Mapping[str, Callable[[], Figure | None]]) -> list[Picture]:
    """Draw figures: title -> function. Those that have nothing to show, or that fail, are left out."""
    pictures = []
    for title, draw in figures.items():
        with drawing(title):
            if (figure := draw()) is not None:
                pictures.append(Picture(title, svg_element(figure, title), is_wide=figure.get_figwidth() > _WIDE))
    return pictures


def add_tooltips(axes: Axes, x: ArrayLike, y: ArrayLike, texts: Sequence[str], *, most: int | None = None) -> None:
    """Add invisible marks with tooltips over n points, or over some, evenly spread from the first to the last."""
    xs, ys = np.asarray(x, float), np.asarray(y, float)
    count = len(texts)
    chosen = range(count) if most is None or count <= most else np.linspace(0, count - 1, most).round().astype(int)
    for index in chosen:
        # One artist per point: the SVG writer skips points that are not finite or outside the axes.
        mark = Line2D([xs[index]], [ys[index]], linestyle="", marker="o", markersize=9, alpha=0.0, zorder=10)
        mark.set_gid(_MARK + texts[index])
        axes.add_line(mark)


def svg_element(figure: Figure, title: str) -> Markup:
    """A figure as a deterministic ``<svg>`` element; its ids are unique on a page of figures with other titles."""
    file = io.StringIO()
    with rc_context({"svg.fonttype": "path", "svg.hashsalt": "lightning-fl"}):  # independent of installed fonts
        figure.savefig(file, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    svg = file.getvalue().partition("<svg")[2]
    svg = re.sub(r"<!--.*?-->", "", svg, flags=re.DOTALL)
    svg = re.sub(rf"<g id=([\"']){_MARK}(.*?)\1>", r"<g><title>\2</title>", svg)
    svg = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>p{zlib.crc32(title.encode()):08x}-", svg)
    return Markup('<svg role="img" aria-label="{}"').format(title) + Markup(svg)
