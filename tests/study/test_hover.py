import re
import xml.etree.ElementTree as ET

import pytest
from matplotlib.figure import Figure

from lightning_fl.study.hover import add_tooltips, inline_svg

SVG = "{http://www.w3.org/2000/svg}"


def drawn(*points: tuple[float, float, str], most: int | None = None, limit: float = 10.0) -> Figure:
    figure = Figure(figsize=(4, 3))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.axis("off")
    axes.set(xlim=(0, limit), ylim=(0, limit))
    add_tooltips(axes, *zip(*[point[:2] for point in points], strict=True), [point[2] for point in points], most=most)
    return figure


def marks(figure: Figure) -> dict[str, tuple[float, float]]:
    """What each says -> where it is, in points from the left and from the top."""
    root = ET.fromstring(inline_svg(figure, "a picture"))
    found = {}
    for group in root.iter(f"{SVG}g"):
        if (title := group.find(f"{SVG}title")) is not None:
            for use in group.iter(f"{SVG}use"):
                found[title.text] = float(use.get("x")), float(use.get("y"))
    return found


def test_a_mark_lies_over_its_point_and_says_its_text() -> None:
    at = marks(drawn((0.0, 0.0, "corner"), (5.0, 7.5, 'a & b < "c"')))
    assert at["corner"] == pytest.approx((0.0, 216.0))
    assert at['a & b < "c"'] == pytest.approx((144.0, 54.0))


def test_points_that_are_no_numbers_or_lie_outside_move_no_other() -> None:
    at = marks(drawn((2.0, float("nan"), "no number"), (900.0, 5.0, "outside"), (5.0, 5.0, "inside")))
    assert at.pop("inside") == pytest.approx((144.0, 108.0))
    assert not at


def test_of_many_points_some_speak_the_first_and_the_last_among_them() -> None:
    at = marks(drawn(*[(float(index), 1.0, str(index)) for index in range(101)], most=11, limit=100.0))
    assert list(at) == [str(index) for index in range(0, 101, 10)]


def test_names_in_two_pictures_differ() -> None:
    figure = Figure()
    figure.subplots().plot([0, 1], "o", clip_on=True)
    names = [set(re.findall(r' id="([^"]+)"', inline_svg(figure, title))) for title in ("one", "two")]
    assert names[0]
    assert names[1]
    assert not names[0] & names[1]


def test_nobody_sees_the_marks() -> None:
    import numpy as np
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    canvas = FigureCanvasAgg(drawn((5.0, 5.0, "here")))
    canvas.draw()
    assert (np.asarray(canvas.buffer_rgba()) == 255).all()
