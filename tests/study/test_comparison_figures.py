import math

import numpy as np
import pytest

from lightning_fl.data.source import STAND_IN_LABEL
from lightning_fl.runtime.drawing import PALETTE
from lightning_fl.study.comparison_table import client_comparison
from lightning_fl.study.figures import draw_client_values, draw_curves, draw_distributions


def curves(mean, worst, megabytes=None):
    found = {"step": list(range(1, len(mean) + 1)), "val/acc": mean, "val/acc/worst": worst}
    if megabytes is not None:
        found |= {"communication/megabytes_sent": megabytes, "communication/megabytes_received": megabytes}
    return found


def legend(figure):
    return [text.get_text() for text in figure.legends[0].get_texts()]


def drawn(axes):
    """The visible lines with points, as lists."""
    lines = [line for line in axes.lines if line.get_alpha() != 0]
    return [(list(line.get_xdata()), list(line.get_ydata())) for line in lines if len(line.get_xdata())]


class TestCurves:
    def test_mean_and_worst_over_seeds_with_their_band(self, make_run):
        runs = [
            make_run("0", [1.0], curves=curves([0.25, 0.5], [0.0, 0.25])),
            make_run("1", [1.0], seed=1, curves=curves([0.5, 1.0, 1.0], [0.25, 0.5, 0.5])),
        ]
        figure = draw_curves({"": {"a": runs}}, "acc")
        (axes,) = figure.axes
        # The third round is the second seed's only.
        assert drawn(axes) == [([1.0, 2.0], [0.375, 0.75]), ([1.0, 2.0], [0.125, 0.375])]
        assert axes.lines[1].get_linestyle() == "--"
        corners = axes.collections[0].get_paths()[0].vertices
        half = np.std([0.25, 0.5], ddof=1)
        assert corners[corners[:, 0] == 1.0][:, 1].min() == pytest.approx(0.375 - half)
        assert legend(figure) == ["a", "mean over clients", "worst client", "± std over seeds"]
        assert (axes.get_xlabel(), axes.get_ylabel()) == ("round", "acc, higher is better")
        assert figure._supxlabel.get_text() == "data: measured"

    def test_by_megabytes_where_any_run_counted_them(self, make_run):
        counted = make_run("a", [1.0], curves=curves([0.25, 0.5], [0.0, 0.25], [1.0, 2.0]))
        other = make_run("b", [1.0], curves=curves([0.5, 0.5], [0.0, 0.25]))
        figure = draw_curves({"": {"a": [counted], "b": [other]}}, "acc")
        by_round, by_megabytes = figure.axes
        assert len(drawn(by_round)) == 4
        assert drawn(by_megabytes) == [([2.0, 4.0], [0.25, 0.5]), ([2.0, 4.0], [0.0, 0.25])]
        assert by_megabytes.get_xlabel() == "sent and received by all clients, MB"
        assert len(draw_curves({"": {"b": [other]}}, "acc").axes) == 1

    def test_no_curves(self, make_run):
        run = make_run("a", [1.0])
        assert draw_curves({"": {"a": [run]}}, "acc") is None
        with_curves = make_run("b", [1.0], curves=curves([0.5], [0.25]))
        figure = draw_curves({"": {"a": [run], "b": [with_curves]}}, "acc")
        assert legend(figure)[0] == "b"
        assert figure.axes[0].lines[0].get_color() == PALETTE[1]  # the row's own in all pictures

    def test_stand_ins_have_their_label(self, make_run):
        run = make_run("a", [1.0], data_source="stand-in", curves=curves([0.5], [0.25]))
        measured = make_run("b", [1.0])
        assert draw_curves({"": {"a": [run]}}, "acc")._supxlabel.get_text() == STAND_IN_LABEL
        figure = draw_curves({"": {"a": [run], "b": [measured]}}, "acc")
        assert figure._supxlabel.get_text() == f"{STAND_IN_LABEL} and measured"


class TestClients:
    def dots(self, axes, place):
        """x of the dots of a row, filled and hollow; the triangle's x."""
        found = [collection.get_offsets() for collection in axes.collections]
        filled, hollow, triangle = found[3 * place : 3 * place + 3]
        return sorted(filled[:, 0]), sorted(hollow[:, 0]), triangle[0, 0]

    @pytest.mark.parametrize(("metric", "higher", "worst"), [("acc", True, 0.25), ("rmse", False, 0.75)])
    def test_values(self, make_run, metric, higher, worst):
        run = make_run("a", [0.75, 0.25, math.nan, 0.5], metric=metric, higher=higher)
        figure = draw_client_values(client_comparison({"a": [run]}))
        (axes,) = figure.axes
        assert self.dots(axes, 0) == ([0.25, 0.5, 0.75], [], worst)
        assert axes.lines[0].get_xdata()[0] == 0.5
        assert axes.get_xlabel() == f"{metric}, {'higher' if higher else 'lower'} is better"
        assert [text.get_text() for text in axes.get_yticklabels()] == ["a"]
        assert legend(figure) == ["mean", "worst dot"]

    def test_gains_of_the_rows_that_have_them(self, make_run):
        groups = {
            "a": [make_run("a", [1.0, 1.0])],
            "b": [make_run("b", [0.5, 0.5], gains=[-0.25, 0.5])],
        }
        figure = draw_client_values(client_comparison(groups), gain_over="local training")
        (axes,) = figure.axes
        assert [text.get_text() for text in axes.get_yticklabels()] == ["b"]
        assert self.dots(axes, 0) == ([0.5], [-0.25], -0.25)
        assert axes.get_xlabel() == "gain in acc over local training, positive is better"
        assert legend(figure) == ["mean", "worst dot", "harmed"]

    def test_no_worst_where_the_direction_is_not_known(self, make_run):
        table = client_comparison({"a": [make_run("a", [1.0, 2.0], metric="widgets", higher=False)]})
        figure = draw_client_values(table)
        assert legend(figure) == ["mean"]
        assert figure.axes[0].get_xlabel() == "widgets"

    def test_distribution(self, make_run):
        runs = [make_run("0", [0.25, 0.5]), make_run("1", [0.5, 1.0], seed=1)]
        figure = draw_distributions({"": {"a": runs}}, "acc")
        line = figure.axes[0].lines[0]
        shares = dict(zip(line.get_xdata(), line.get_ydata(), strict=True))
        assert (shares[0.25], shares[0.5], shares[1.0]) == (0.25, 0.75, 1.0)
        assert legend(figure) == ["a"]


@pytest.mark.slow
def test_many_rows_keep_apart_and_the_legend_has_room(make_run, tmp_path):
    groups = {
        f"FedAvg + DROClientSampling + LocalMixup alpha={number}": [make_run(str(number), [0.1 * number] * 100)]
        for number in range(12)
    }
    figure = draw_distributions({"": groups}, "acc")
    styles = {(line.get_color(), line.get_linestyle()) for line in figure.axes[0].lines if line.get_alpha() != 0}
    assert len(styles) == 12
    figure.savefig(tmp_path / "figure.png")
    assert figure.legends[0].get_window_extent().height < figure.bbox.height
