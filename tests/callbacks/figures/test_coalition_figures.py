import math

import numpy as np
import pytest
import torch
from drawn import legend_of, names_of, texts_of
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.colors import same_color, to_rgb

from lightning_fl.callbacks.figures.plots.coalitions import (
    coalition_colors,
    coalitions,
    draw_distances,
    draw_gains,
    draw_merge_tree,
    draw_partition,
    track_coalitions,
)
from lightning_fl.runtime.drawing import BAD, GOOD

ALONE = to_rgb("0.72")


def partition_of(labels):
    return {frozenset(client for client, own in enumerate(labels) if own == label) for label in labels}


def test_a_colour_for_each_coalition_by_their_order_and_grey_for_clients_alone():
    colors = coalition_colors([4, 0, 4, 2, 0, 7])
    assert colors[2] == colors[7] == ALONE
    assert len({colors[0], colors[4], ALONE}) == 3
    many = coalition_colors([*range(40), *range(40)])
    assert len(set(many.values()) - {ALONE}) == 40
    assert list(coalition_colors([0, 0, 1, 1]).values()) == list(coalition_colors([5, 5, 9, 9]).values())


class TestDistances:
    labels = (1, 0, 1, 2, 0)  # order: clients 1 and 4, 0 and 2, 3

    def matrix(self):
        return torch.arange(25.0).reshape(5, 5) / 25

    def test_clients_of_a_coalition_are_side_by_side_framed_and_named(self):
        axes, bar = draw_distances(self.matrix(), self.labels, names_of(5), "title").axes[:2]
        order = [1, 4, 0, 2, 3]
        np.testing.assert_allclose(axes.images[0].get_array(), self.matrix()[order][:, order])
        assert texts_of(axes.get_yticklabels()) == texts_of(axes.get_xticklabels()) == [f"silo {i}" for i in order]
        assert bar.get_ylabel() == "distance"
        shown = {text.get_position()[::-1]: text.get_text() for text in axes.texts}
        assert shown == {(i, j): f"{self.matrix()[order[i], order[j]]:.2f}" for i in range(5) for j in range(5)}
        frames = [(*frame.get_xy(), frame.get_width(), frame.get_height()) for frame in axes.patches]
        assert frames == [(-0.5, -0.5, 2, 2), (1.5, 1.5, 2, 2), (3.5, 3.5, 1, 1)]
        colors = coalition_colors(self.labels)
        for frame, label in zip(axes.patches, (0, 1, 2), strict=True):
            assert same_color(frame.get_edgecolor(), colors[label])
        top = axes.child_axes[0]
        assert (texts_of(top.get_xticklabels()), list(top.get_xticks())) == (["0", "1"], [0.5, 2.5])

    @pytest.mark.parametrize(("scale", "highest"), [(1.0, 1.0), (0.1, 1.0), (50.0, 48.0), (math.nan, 1.0)])
    def test_one_scale_for_distances_up_to_one(self, scale, highest):
        figure = draw_distances(scale * self.matrix(), self.labels, names_of(5), "title")
        assert figure.axes[0].images[0].get_clim() == (0, pytest.approx(highest))

    @pytest.mark.slow
    @pytest.mark.parametrize(("count", "named", "label"), [(60, 60, "client"), (200, 50, "client (1 in 4 is named)")])
    def test_of_many_clients_some_are_named(self, count, named, label):
        axes = draw_distances(torch.rand(count, count), [0] * count, names_of(count), "title").axes[0]
        assert len(axes.get_yticklabels()) == named
        assert axes.get_ylabel() == label
        assert not axes.texts


class TestMergeTree:
    # ((3 1) 4) and (0 2), client 5 alone; the merges interleave.
    merges = (((1,), (3,), 4.0), ((0,), (2,), 3.0), ((1, 3), (4,), 0.5))
    labels = (0, 1, 0, 1, 1, 2)

    def test_branches(self):
        tree, bars = draw_merge_tree(self.merges, self.labels, names_of(6), "title").axes
        assert texts_of(tree.get_xticklabels()) == [f"silo {client}" for client in (0, 2, 1, 3, 4, 5)]
        branches = [list(zip(*line.get_data(), strict=True)) for line in tree.lines]
        assert branches == [
            [(2, 0), (2, 1), (3, 1), (3, 0)],
            [(0, 0), (0, 2), (1, 2), (1, 0)],
            [(2.5, 1), (2.5, 3), (4, 3), (4, 0)],
        ]
        colors = coalition_colors(self.labels)
        for line, bar, label in zip(tree.lines, bars.patches, (1, 0, 1), strict=True):
            assert same_color(line.get_color(), colors[label])
            assert same_color(bar.get_facecolor(), colors[label])
        assert [bar.get_width() for bar in bars.patches] == [4.0, 3.0, 0.5]
        assert [bar.get_y() + bar.get_height() / 2 for bar in bars.patches] == pytest.approx([1, 2, 3])
        assert legend_of(bars) == ["coalition 0", "coalition 1", "alone"]

    @pytest.mark.slow
    @settings(deadline=None, max_examples=20)
    @given(st.integers(2, 16), st.integers(0, 10_000))
    def test_no_branches_cross(self, count, seed):
        draws = np.random.default_rng(seed)
        groups, merges = [(client,) for client in range(count)], []
        for _ in range(draws.integers(0, count)):
            first, second = (groups.pop(draws.integers(len(groups))) for _ in range(2))
            merges.append((first, second, 1.0))
            groups.append(tuple(sorted(first + second)))
        labels = [next(i for i, group in enumerate(groups) if client in group) for client in range(count)]
        lines = draw_merge_tree(merges, labels, names_of(count), "title").axes[0].lines
        joints = [(line.get_xdata()[0], line.get_xdata()[2], line.get_ydata()[1]) for line in lines]
        stems = [
            (line.get_xdata()[end], *sorted((line.get_ydata()[end], line.get_ydata()[1])))
            for line in lines
            for end in (0, -1)
        ]
        for left, right, height in joints:
            assert left < right
            for place, low, high in stems:
                assert not (left < place < right and low < height < high)

    def test_no_merge(self):
        tree, bars = draw_merge_tree([], [0, 1, 2], names_of(3), "title").axes
        assert not tree.lines
        assert not bars.patches
        assert "every client is alone" in tree.texts[0].get_text()
        assert legend_of(bars) == ["alone"]


class TestTracking:
    def test_coalitions_are_of_several_clients(self):
        assert coalitions([7, 2, 7, 4, 2, 7]) == {2: {1, 4}, 7: {0, 2, 5}}
        assert coalitions([1, 2]) == coalitions([]) == {}

    @pytest.mark.parametrize(
        ("assignments", "tracked"),
        [
            ([], []),
            ([[1, 1, 0, 0], [0, 0, 1, 1], [5, 5, 3, 3]], [[5, 5, 3, 3]] * 3),
            # Clients 0-2 and 3-5; client 2 is with the others at first.
            ([[7, 7, 4, 4, 4, 4], [0, 0, 0, 1, 1, 1]], [[0, 0, 1, 1, 1, 1], [0, 0, 0, 1, 1, 1]]),
            # Of a = {0..4} three are in 0 later and two in 1, of b = {5, 6} both in 0. As a = 0 three stay where they
            # were, as a = 1 and b = 0 four do.
            ([[8, 8, 8, 8, 8, 9, 9], [0, 0, 0, 1, 1, 0, 0]], [[1, 1, 1, 1, 1, 0, 0], [0, 0, 0, 1, 1, 0, 0]]),
        ],
        ids=["nothing", "other numbers", "a client that moves", "most clients stay"],
    )
    def test_numbers_stay_with_the_clients(self, assignments, tracked):
        assert track_coalitions(assignments) == tracked

    def test_a_coalition_that_comes_back_has_its_number_back(self):
        tracked = track_coalitions([[3, 3, 6, 6], [0, 1, 2, 2], [0, 0, 1, 1]])
        assert tracked[0] == [0, 0, 1, 1]
        assert tracked[1][2:] == [1, 1]
        assert len(set(tracked[1])) == 3

    def test_of_equal_matches_the_near_one(self):
        # {1, 2} shares one client with each of {0, 1}, which is 0, and {2, 3}, which is 1; only 1 is there in between.
        assert track_coalitions([[8, 5, 5, 9], [6, 7, 4, 4], [0, 0, 1, 1]])[0][1:3] == [1, 1]
        assert track_coalitions([[8, 5, 5, 9], [4, 4, 6, 7], [0, 0, 1, 1]])[0][1:3] == [0, 0]

    def test_new_coalitions_do_not_take_a_number_of_the_last_round(self):
        tracked = track_coalitions([[0, 0, 1, 1], [0, 1, 2, 3]])
        assert set(tracked[0]).isdisjoint(tracked[1])

    @given(
        st.integers(1, 8).flatmap(lambda n: st.lists(st.lists(st.integers(0, n), min_size=n, max_size=n), max_size=6))
    )
    def test_the_partitions_stay_the_same(self, assignments):
        tracked = track_coalitions(assignments)
        assert [partition_of(labels) for labels in tracked] == [partition_of(labels) for labels in assignments]
        assert tracked[-1:] == [list(labels) for labels in assignments[-1:]]


class TestPartition:
    def test_cells(self):
        # Clients 0 and 2, 1 and 3 in the end; before that all were together, before that all alone.
        figure = draw_partition([1, 5, 9], [[0, 1, 2, 3], [0, 0, 0, 0], [0, 1, 0, 1]], names_of(4), "title")
        axes = figure.axes[0]
        image = axes.images[0]
        colors = [[image.cmap(int(cell)) for cell in row] for row in image.get_array()]
        assert texts_of(axes.get_yticklabels()) == ["silo 0", "silo 2", "silo 1", "silo 3"]
        assert texts_of(axes.get_xticklabels()) == ["1", "5", "9"]
        expected = coalition_colors([0, 1, 0, 1])
        for row, client in enumerate((0, 2, 1, 3)):
            assert same_color(colors[row][0], ALONE)
            assert same_color(colors[row][2], expected[client % 2])
            assert colors[row][1] == colors[0][1]  # all together
        assert same_color(colors[0][1], expected[0])
        assert legend_of(axes) == ["coalition 0", "coalition 1", "alone"]

    def test_many_coalitions_and_rounds(self):
        labels = [client // 2 for client in range(60)]
        axes = draw_partition(list(range(100)), [labels] * 100, names_of(60), "title").axes[0]
        assert len(axes.get_xticklabels()) == 25
        assert legend_of(axes) == [f"coalition {label}" for label in range(20)] + ["10 more"]


class TestGains:
    arguments = (("metric", "test/acc"), ("higher_is_better", True), ("title", "Gains"))

    def draw(self, values, reference, **arguments):
        names = names_of(max(values) + 1)
        return draw_gains(values, reference, names, **(dict(self.arguments) | arguments))

    def test_bars(self):
        figure = self.draw({0: 0.5, 1: 0.75, 3: 0.5}, {0: 0.75, 1: 0.5, 3: 0.5})
        upper, lower = figure.axes
        assert [bar.get_height() for bar in lower.patches] == [-0.25, 0.25, 0.0]
        assert same_color(lower.patches[0].get_facecolor(), BAD)
        assert same_color(lower.patches[1].get_facecolor(), GOOD)
        assert texts_of(lower.get_xticklabels()) == ["silo 0", "silo 1", "silo 3"]
        had, has = (dots.get_offsets()[:, 1] for dots in upper.collections[1:])
        assert (had.tolist(), has.tolist()) == ([0.75, 0.5, 0.5], [0.5, 0.75, 0.5])
        assert legend_of(upper) == ["local training", "federated"]
        assert legend_of(lower) == ["gains", "harmed (33%)"]
        assert upper.get_ylabel() == "test/acc (higher is better)"
        assert figure.get_suptitle() == "Gains\nIPR 33%, RSD 0.204, mean gain +0, worst -0.25"

    def test_where_lower_is_better_less_is_a_gain(self):
        figure = self.draw({0: 0.5, 1: 0.75}, {0: 0.75, 1: 0.5}, higher_is_better=False, metric="test/loss")
        assert [bar.get_height() for bar in figure.axes[1].patches] == [0.25, -0.25]
        assert figure.axes[0].get_ylabel() == "test/loss (lower is better)"

    def test_coalitions_colour_the_values(self):
        labels = [4, 2, 2, 4, 7]
        figure = self.draw(dict.fromkeys(range(5), 0.5), dict.fromkeys(range(5), 0.25), labels=labels)
        colors = coalition_colors(labels)
        for color, label in zip(figure.axes[0].collections[2].get_facecolors(), labels, strict=True):
            assert same_color(color, colors[label])
        assert legend_of(figure.axes[0]) == ["local training", "coalition 2", "coalition 4", "alone"]

    def test_clients_without_a_value_are_left_out(self):
        figure = self.draw({0: math.nan, 1: 0.75, 2: 0.5}, {0: 0.5, 1: 0.5, 2: math.nan}, labels=[0, 1, 0])
        assert texts_of(figure.axes[1].get_xticklabels()) == ["silo 1"]
        assert legend_of(figure.axes[0]) == ["local training", "alone"]

    @pytest.mark.slow
    @pytest.mark.parametrize("reference", [{0: 0.5, 1: 0.5}, {0: math.inf, 1: -math.inf}])
    def test_no_finite_gain_but_zero(self, reference):
        figure = self.draw({0: 0.5, 1: 0.5}, reference)
        assert figure.axes[1].get_ylim() == (-1, 1)
        figure.draw_without_rendering()
