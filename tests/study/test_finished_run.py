import json
import math
import os
from pathlib import Path

import pytest

from lightning_fl.core.errors import CheckpointError, ConfigurationError
from lightning_fl.study.finished_run import FinishedRun, find_runs


def test_a_run_as_its_folder_has_it(make_run):
    run = make_run(
        "runs/version_0",
        [0.5, 1.0],
        seed=7,
        callbacks=[{"class_path": "LocalMixup"}, {"class_path": "GainFigure"}, {"class_path": "LocalReference"}],
        communication={"bytes_sent": 10, "bytes_received": 20},
    )
    assert (run.seed, run.data_source, run.rounds, run.seconds, run.interrupted) == (7, "measured", 5, 12.5, False)
    assert (run.bytes_sent, run.bytes_received, run.clients) == (10, 20, ["c0", "c1"])
    assert run.algorithm == "FedAvg + LocalMixup"
    assert run.data["name"] == "digits"
    assert run.config["trainer"]["max_rounds"] == 5
    assert (run.splits(), run.metric_names("test"), run.metric_names("val")) == (["test"], ["acc"], [])
    metric = run.metric("acc")
    assert (metric.mean, metric.worst, metric.best, metric.std, metric.higher_is_better) == (0.75, 0.5, 1.0, 0.25, True)
    assert metric.clients == {"c0": 0.5, "c1": 1.0}


def test_what_a_run_did_not_write(make_run):
    run = make_run("version_0", [math.nan, 1.0], config=False)
    assert (run.bytes_sent, run.bytes_received, run.config, run.gains("acc")) == (None, None, {}, None)
    assert math.isnan(run.metric("acc").mean)
    assert math.isnan(run.metric("acc").clients["c0"])
    assert len(run.curves) == len(run.curve("acc")) == 0


def test_a_metric_that_is_not_there(make_run):
    run = make_run("version_0", [1.0])
    with pytest.raises(ConfigurationError, match=r"version_0 has no val metric 'acc'. It has acc \(test\)\.$"):
        run.metric("acc", "val")
    empty = make_run("version_1", [1.0], metrics={})
    with pytest.raises(ConfigurationError, match="It has no metrics"):
        empty.metric("acc")


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

    def test_no_folder(self):
        with pytest.raises(ConfigurationError, match=r"^nowhere is not a folder: give a run's, such as runs/"):
            FinishedRun.read("nowhere")

    def test_no_finished_run(self, tmp_path):
        with pytest.raises(
            ConfigurationError, match="holds no finished run, .*: give the folder that lightning-fl fit"
        ):
            FinishedRun.read(tmp_path)
        (tmp_path / "checkpoints").mkdir()
        (tmp_path / "checkpoints" / "last.ckpt").write_text("")
        (tmp_path / "config.yaml").write_text("")
        with pytest.raises(
            ConfigurationError, match=r"end it with lightning-fl fit --config .*config.yaml --ckpt_path"
        ):
            FinishedRun.read(tmp_path)

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("{", r"is damaged \(not JSON from line 1, column 2\)"),
            (b"\xc2PK\0", r"is damaged \(it is no text in UTF-8\)"),
            pytest.param("[" * 100_000, r"is damaged \(its lists lie too deep in each other\)", id="deep"),
            ('{"metrics": {}}', "is no run's record, 'data' in it is missing or of another kind"),
            ("[]", "is no run's record, but a list"),
            ({"metrics": 1}, "'metrics' in it is missing or of another kind"),
            ({"metrics": {"test": {"acc": 3}}}, "'metrics' in it is missing or of another kind"),
            ({"metrics": {"test": {"acc": {"clients": {"a": "x"}, "higher_is_better": True}}}}, "'metrics' in it is"),
            ({"communication": []}, "'communication' in it is missing or of another kind"),
            ({"gains_over_local_training": {"test": {"acc": {}}}}, "'gains_over_local_training' in it is missing or"),
        ],
    )
    def test_a_damaged_record(self, tmp_path, text, words):
        (tmp_path / "version_0").mkdir()
        if isinstance(text, dict):
            whole = {"data": {}, "data_source": "measured", "strategy": "FedAvg", "seed": 0, "client_names": []}
            text = json.dumps({"metrics": {}, **whole, **text})
        content = text if isinstance(text, bytes) else text.encode()
        (tmp_path / "version_0" / "summary.json").write_bytes(content)
        with pytest.raises(CheckpointError, match=f"summary.json .*{words}.*: copy the run again, or repeat it"):
            FinishedRun.read(tmp_path)

    @pytest.mark.parametrize("kind", ["pipe", "link to itself", "folder"])
    def test_settings_that_are_no_file(self, make_run, kind):
        run = make_run("version_0", [1.0], config=False)
        path = run.folder / "config.yaml"
        {"pipe": os.mkfifo, "link to itself": lambda to: to.symlink_to(to), "folder": Path.mkdir}[kind](path)
        words = "Too many levels" if kind == "link to itself" else "is a folder, a pipe or a device"
        with pytest.raises(ConfigurationError, match=f"version_0/config.yaml .*{words}"):
            FinishedRun.read(run.folder)

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            (b"", "No columns to parse from file"),
            (b"round\n1\n", "it has no column step"),
            (b"step,val/acc\n1,0.5\n2,zero\n", "not all in its column 'val/acc' are numbers"),
            (b"step,val/acc\n1,0.5\n2,0.5,3\n", "Expected 2 fields in line 3, saw 3"),
            (b"step,val/acc\n1,\xff\n", "it is no text in UTF-8"),
            (None, "it is no file"),
        ],
    )
    def test_damaged_curves(self, make_run, text, words):
        run = make_run("version_0", [1.0])
        path = run.folder / "metrics.csv"
        os.mkfifo(path) if text is None else path.write_bytes(text)
        with pytest.raises(CheckpointError, match=rf"metrics.csv is damaged \({words}\): copy the run again"):
            _ = run.curves


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

    def test_refusals(self, tmp_path):
        with pytest.raises(ConfigurationError, match="^nowhere is not a folder: give one with runs below it"):
            find_runs("nowhere")
        with pytest.raises(ConfigurationError, match="no finished run of lightning-fl fit below .*: give a folder"):
            find_runs(tmp_path)
