"""The picture of a collaboration graph, looked at pixel by pixel where it matters."""

import numpy as np
import pytest
from matplotlib.colors import to_rgb

from lightning_fl.callbacks.figures.plots.run import _CHOICES, draw_graph

NAMES = ["a", "b", "c"]


def images(figure) -> list[np.ndarray]:
    return [np.asarray(axes.images[0].get_array()) for axes in figure.axes]


def test_rows_choose_and_columns_are_chosen():
    figure = draw_graph([1, 2], [{0: [1], 1: [], 2: [0, 1]}, {0: []}], {0: [1, 2], 2: [0, 1]}, NAMES)
    first, second = images(figure)
    assert first.tolist() == [[3, 2, 1], [0, 3, 0], [2, 2, 3]]
    assert second.tolist() == [[3, 1, 1], [0, 3, 0], [1, 1, 3]]
    assert [axes.get_title() for axes in figure.axes] == ["round 1: 3 edges", "round 2: 0 edges"]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["may be chosen", "chosen", "itself"]
    colors = np.array([to_rgb(color) for color in _CHOICES])
    gaps = np.abs(colors[:, None] - colors[None]).max(2) + np.eye(4)
    assert gaps.min() > 0.3  # told apart


@pytest.mark.parametrize(("rounds", "expected"), [(1, [1]), (4, [1, 2, 3, 4]), (9, [1, 3, 4, 6, 7, 9])])
def test_the_shown_rounds_are_spread_evenly(rounds, expected):
    figure = draw_graph(range(1, rounds + 1), [{0: []}] * rounds, {}, NAMES)
    assert [int(axes.get_title().split()[1].rstrip(":")) for axes in figure.axes] == expected
