import math
import statistics

import pandas as pd
import pytest
from scipy import stats

from lightning_fl.study.comparison_table import client_comparison, comparison_table, default_comparison_metric


def row(frame, label, metric="acc"):
    (found,) = frame[(frame["label"] == label) & (frame["metric"] == metric)].to_dict("records")
    return found


class TestLeadingMetric:
    def test_the_first_that_is_no_loss_and_that_all_have(self, make_run):
        more = {name: {"higher_is_better": False, "clients": {}} for name in ("loss", "local/acc", "auc")}
        a = make_run("a", [1.0], metric="f1", more=more)
        b = make_run("b", [1.0], metric="acc", more=more)
        assert default_comparison_metric({"a": [a]}) == "f1"
        assert default_comparison_metric({"a": [a], "b": [b]}) == "auc"
        c = make_run("c", [1.0], metric="loss")
        assert default_comparison_metric({"a": [a], "b": [b], "c": [c]}) == "loss"


class TestTable:
    def test_one_run(self, make_run):
        values = [0.25, 0.75, 0.5]
        moved = {"bytes_sent": 2_500_000, "bytes_received": 5_000_000}
        run = make_run("a", values, gains=[-0.25, 0.5, 0.0], communication=moved)
        found = row(comparison_table({"a": [run]}), "a")
        assert (found["metric"], found["split"], found["higher_is_better"]) == ("acc", "test", True)
        assert (found["source"], found["num_seeds"], found["seeds"], found["num_clients"]) == ("measured", 1, "0", 3)
        assert (found["mean"], found["worst"], found["best"]) == (0.5, 0.25, 0.75)
        assert found["std"] == pytest.approx(math.sqrt(0.125 / 3), rel=1e-12)
        assert (found["rounds"], found["seconds"]) == (5, 12.5)
        assert (found["megabytes_sent"], found["megabytes_received"]) == (2.5, 5.0)
        assert found["gain_over"] == "each run's own local training"
        assert found["gain"] == pytest.approx(0.25 / 3)
        assert (found["ipr"], found["harmed"]) == (pytest.approx(1 / 3), pytest.approx(1 / 3))
        assert found["rsd"] == pytest.approx(statistics.pstdev([-0.25, 0.5, 0.0]))
        assert all(math.isnan(found[f"{name}_seed_std"]) for name in ("mean", "worst", "gain", "seconds"))
        assert "baseline" not in found

    def test_over_seeds(self, make_run):
        runs = [make_run(str(seed), [mean - 0.25, mean + 0.25], seed=seed) for seed, mean in ((2, 0.25), (0, 0.75))]
        found = row(comparison_table({"a": runs}), "a")
        assert (found["num_seeds"], found["seeds"], found["num_clients"]) == (2, "0, 2", 2)
        assert (found["mean"], found["worst"], found["best"], found["std"]) == (0.5, 0.25, 0.75, 0.25)
        assert found["mean_seed_std"] == pytest.approx(math.sqrt(2 * 0.25**2))  # n - 1 = 1
        assert found["std_seed_std"] == 0.0
        assert math.isnan(found["gain"])
        assert found["gain_over"] == ""
        assert math.isnan(found["megabytes_sent"])

    def test_several_metrics_in_their_order(self, make_run):
        rmse = {"mean": 2.0, "worst": 3.0, "best": 1.0, "std": 1.0, "higher_is_better": False, "clients": {"c0": 2.0}}
        groups = {name: [make_run(name, [0.5], more={"rmse": rmse})] for name in ("a", "b")}
        frame = comparison_table(groups, ["rmse", "acc", "rmse"])
        assert [*zip(frame["metric"], frame["label"], strict=True)] == [
            ("rmse", "a"), ("rmse", "b"), ("acc", "a"), ("acc", "b")
        ]  # fmt: skip
        assert [*frame["higher_is_better"]] == [False, False, True, True]

    @pytest.mark.parametrize(("higher", "known"), [(False, None), (True, True)])
    def test_a_direction_that_was_only_assumed_is_not_known(self, make_run, higher, known):
        frame = comparison_table({"a": [make_run("a", [1.0], metric="widgets", higher=higher)]})
        assert frame["higher_is_better"][0] == known

    def test_against_a_baseline(self, make_run):
        ours = [make_run(f"a{seed}", [mean, mean], seed=seed) for seed, mean in ((0, 0.5), (1, 0.75), (5, 0.0))]
        base = [make_run(f"b{seed}", [mean, mean - 0.125], seed=seed) for seed, mean in ((0, 0.375), (1, 0.375))]
        frame = comparison_table({"a": ours, "b": base}, baseline="b")
        found = row(frame, "a")
        # Means of the baseline 0.3125 and 0.3125: differences 0.1875 and 0.4375; of the worst 0.25 and 0.5.
        assert found["mean_difference"] == pytest.approx(0.3125)
        half = stats.t.ppf(0.975, 1) * 0.25 / math.sqrt(2) / math.sqrt(2)
        assert found["mean_difference_low"] == pytest.approx(0.3125 - half)
        assert found["mean_difference_high"] == pytest.approx(0.3125 + half)
        assert found["worst_difference"] == pytest.approx(0.375)
        assert found["difference_num_seeds"] == 2
        itself = row(frame, "b")
        assert math.isnan(itself["mean_difference"])
        assert set(frame["baseline"]) == {"b"}

    def test_order_of_seeds_changes_nothing_and_a_failed_one_is_not_left_out(self, make_run):
        runs = [make_run(str(seed), [0.1 * seed, math.nan if seed == 3 else 0.3], seed=seed) for seed in range(4)]
        forth, back = (comparison_table({"a": list(order)}) for order in (runs, reversed(runs)))
        pd.testing.assert_frame_equal(forth, back)
        found = row(forth, "a")
        assert math.isnan(found["mean"])
        assert found["num_clients"] == 1


class TestReference:
    def test_gains_over_other_runs_of_the_same_seed(self, make_run):
        runs = [make_run(f"a{seed}", [0.5, 0.25 * seed], seed=seed) for seed in (0, 1)]
        local = [make_run(f"l{seed}", [0.25, 0.25], seed=seed, strategy="Local") for seed in (1, 0)]
        found = row(comparison_table({"a": runs}, reference=local), "a")
        # Gains 0.25 and -0.25 with seed 0, 0.25 and 0 with seed 1.
        assert found["gain"] == pytest.approx((0.0 + 0.125) / 2)
        assert found["ipr"] == pytest.approx(0.5)
        assert found["harmed"] == pytest.approx(0.25)
        assert found["rsd"] == pytest.approx((0.25 + 0.125) / 2)
        assert found["gain_over"] == "Local"

    @pytest.mark.parametrize(("metric", "values", "higher"), [("acc", (0.5, 0.25), True), ("rmse", (1.0, 1.25), False)])
    def test_the_reference_as_a_row_gives_its_label_and_has_no_gains(self, make_run, metric, values, higher):
        run, local = (
            make_run(name, [value], metric=metric, higher=higher, strategy=name)
            for name, value in zip("al", values, strict=True)
        )
        frame = comparison_table({"a": [run], "alone": [local]}, reference=[local])
        assert list(frame["gain_over"]) == ["alone", ""]
        assert frame["gain"][0] == 0.25  # positive is better
        assert math.isnan(frame["gain"][1])

    def test_one_run_serves_all_seeds_on_the_same_data(self, make_run):
        alike = {"split_seed": 5, "client_sizes": None, "normalization": None}
        runs = [make_run(f"a{seed}", [0.5], seed=seed, data=alike) for seed in (0, 1)]
        local = [make_run("l", [0.25], seed=9, data=alike)]
        assert row(comparison_table({"a": runs}, reference=local), "a")["gain"] == 0.25

    def test_clients_that_only_one_has_do_not_count(self, make_run):
        run, local = make_run("a", {"x": 0.5, "y": 0.5}), make_run("l", {"y": 0.25, "z": 0.0})
        frame = client_comparison({"a": [run]}, reference=[local])
        assert [math.isnan(gain) for gain in frame["gain"]] == [True, False]
        assert frame["gain"][1] == 0.25


def test_every_client_of_every_run(make_run):
    runs = [make_run(f"a{seed}", {"x": 0.5, "y": 0.25}, seed=seed, gains=[0.125, -1.0]) for seed in (0, 1)]
    frame = client_comparison({"a": runs, "b": [make_run("b", {"x": 1.0, "y": 0.0})]})
    assert list(frame["label"]) == ["a"] * 4 + ["b"] * 2
    assert list(frame["seed"]) == [0, 0, 1, 1, 0, 0]
    assert list(frame["client"]) == ["x", "y"] * 3
    assert list(frame["value"]) == [0.5, 0.25, 0.5, 0.25, 1.0, 0.0]
    assert list(frame["gain"][:4]) == [0.125, -1.0] * 2
    assert frame["gain"][4:].isna().all()
    assert set(frame["run"]) == {str(run.folder) for run in runs} | {frame["run"].iloc[-1]}
    # The means of the table are those of its clients.
    table = comparison_table({"a": runs})
    assert table["mean"][0] == frame[frame["label"] == "a"]["value"].mean()
