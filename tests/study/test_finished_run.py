import math

import pytest
from study_tiny import record

from lightning_fl.study.finished_run import ONLY_SHOW, FinishedRun, find_runs


def test_a_run_as_its_folder_has_it(make_run):
    run = make_run(
        "runs/version_0",
        [0.5, 1.0],
        seed=7,
        callbacks=[{"class_path": "LocalMixup"}, {"class_path": "GainFigure"}, {"class_path": "LocalReference"}],
        communication={"bytes_sent": 10, "bytes_received": 20},
    )
    assert (run.seed, run.data_source, run.rounds, run.seconds, run.interrupted) == (7, "measured", 5, 12.5, False)
    assert (run.megabytes("sent"), run.megabytes("received"), run.client_names) == (1e-5, 2e-5, ["c0", "c1"])
    assert run.algorithm == "FedAvg + LocalMixup"
    assert run.data["name"] == "digits"
    assert run.recipe["trainer"]["max_rounds"] == 5
    assert (run.splits(), run.metric_names("test"), run.metric_names("val")) == (["test"], ["acc"], [])
    metric = run.metric("acc")
    assert (metric.mean, metric.worst, metric.best, metric.std, metric.higher_is_better) == (0.75, 0.5, 1.0, 0.25, True)
    assert metric.clients == {"c0": 0.5, "c1": 1.0}


def test_what_a_run_did_not_write(make_run):
    run = make_run("version_0", [math.nan, 1.0], config=False)
    assert (run.recipe, run.gains("acc")) == ({}, None)
    assert math.isnan(run.megabytes("sent"))
    assert math.isnan(run.metric("acc").mean)
    assert math.isnan(run.metric("acc").clients["c0"])
    assert len(run.curves) == len(run.curve("acc")) == 0


class TestRead:
    def test_the_last_finished_fit_of_several_versions(self, make_run, tmp_path):
        make_run("runs/version_9", [1.0])
        last = make_run("runs/version_10", [1.0])
        assert FinishedRun.read(tmp_path / "runs").folder == last.folder
        make_run("runs/version_11", [1.0], interrupted=True)
        evaluation = make_run("runs/version_12", [1.0])
        text = (evaluation.folder / "summary.json").read_text().replace('"rounds": 5, ', "")
        (evaluation.folder / "summary.json").write_text(text)
        assert FinishedRun.read(tmp_path / "runs").folder == last.folder

    def test_an_evaluation_or_an_interrupted_fit_where_there_is_no_other(self, make_run, tmp_path):
        run = make_run("runs/version_0", [1.0], interrupted=True)
        assert FinishedRun.read(tmp_path / "runs").folder == run.folder

    def test_a_home_folder(self, make_run, tmp_path, monkeypatch):
        run = make_run("version_0", [1.0])
        monkeypatch.setenv("HOME", str(tmp_path))
        assert FinishedRun.read("~/version_0").folder == run.folder


class TestCurve:
    def test_of_rounds_in_several_rows(self, make_run):
        nan = math.nan
        run = make_run(
            "version_0",
            [1.0],
            curves={
                "step": [1, 2, 2, 3],
                "val/acc": [nan, 0.25, nan, 0.5],
                "val/acc/worst": [nan, 0.125, nan, nan],
                "communication/megabytes_sent": [1.0, nan, 2.0, 3.0],
                "communication/megabytes_received": [2.0, nan, 4.0, 6.0],
            },
        )
        curve = run.curve("acc")
        assert list(curve["round"]) == [2.0, 3.0]
        assert list(curve["mean"]) == [0.25, 0.5]
        assert curve["worst"][0] == 0.125
        assert math.isnan(curve["worst"][1])
        assert list(curve["megabytes"]) == [6.0, 9.0]

    def test_ends_before_a_test_that_logs_the_same_names(self, make_run):
        curves = {"step": [1, 2, 2], "acc": [0.25, 0.5, 0.875], "acc/worst": [0.125, 0.375, 0.75]}
        curve = make_run("version_0", [1.0], curves=curves).curve("acc")
        assert list(curve["round"]) == [1.0, 2.0]
        assert list(curve["mean"]) == [0.25, 0.5]
        assert list(curve["worst"]) == [0.125, 0.375]

    def test_not_of_another_split(self, make_run):
        run = make_run(
            "version_0", [1.0], curves={"step": [1], "loss": [0.5]}, more={"loss": record({"c0": 1.0}, False)}
        )
        assert run.curve("loss").empty

    @pytest.mark.parametrize("column", ["val/acc", "val_acc", "acc"])
    def test_as_modules_name_it(self, make_run, column):
        curve = make_run("version_0", [1.0], curves={"step": [1], column: [0.5]}).curve("acc")
        assert list(curve["mean"]) == [0.5]
        assert curve[["worst", "megabytes"]].isna().all(axis=None)


class TestFindRuns:
    def test_all_fits_in_natural_order(self, make_run, tmp_path):
        found = [make_run(f"runs/a/version_{number}", [1.0], seed=number) for number in (2, 10)]
        found.append(make_run("runs/b", [1.0], interrupted=True))
        evaluation = make_run("runs/c", [1.0])
        text = (evaluation.folder / "summary.json").read_text().replace('"rounds": 5, ', "")
        (evaluation.folder / "summary.json").write_text(text)
        assert [run.folder for run in find_runs(tmp_path / "runs")] == [run.folder for run in found]


def test_callbacks_that_only_show_are_known_without_importing_them():
    import lightning_fl.callbacks

    classes = (getattr(lightning_fl.callbacks, name) for name in lightning_fl.callbacks.__all__)
    only_shows = {found.__name__ for found in classes if getattr(found, "only_shows", False)}
    assert only_shows | {"LocalReference", "SaveConfig"} == ONLY_SHOW
