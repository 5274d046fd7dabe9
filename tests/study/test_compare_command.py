import json
import math
from pathlib import Path

import pandas as pd
import pytest
from study_tiny import record

from lightning_fl.cli import main
from lightning_fl.core.metrics import percentiles
from lightning_fl.data.source import STAND_IN_LABEL


@pytest.fixture
def compare(capsys, monkeypatch):
    """Exit code, standard output and standard error of the command."""
    monkeypatch.setenv("COLUMNS", "80")

    def run(*words):
        capsys.readouterr()
        code = main(["compare", *map(str, words)])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.fixture
def arms(make_run):
    """Two algorithms with two seeds each, below ``runs``."""
    curves = {"step": [1, 2], "val/acc": [0.25, 0.5], "val/acc/worst": [0.125, 0.25]}
    mixup = {"class_path": "LocalMixup", "init_args": {"alpha": 0.4}}
    for seed in (0, 1):
        make_run(f"runs/plain/seed_{seed}/version_0", [0.5, 0.25], seed=seed, curves=curves)
        make_run(f"runs/mixed/seed_{seed}/version_0", [0.75, 0.5], seed=seed, callbacks=[mixup], gains=[0.25, -0.125])
    return Path("runs")


def test_rows_are_folders_versions_and_labels(compare, arms, make_run):
    code, out, err = compare("--recursive", arms)
    assert (code, err) == (0, "")
    for part in ("2 clients, seeds 0, 1, data: measured", "FedAvg +", "±0.000"):
        assert part in out
    code, out, _ = compare(f"mine={arms}/plain/seed_0", f"mine={arms}/plain/seed_1", f"other={arms}/mixed/seed_0")
    assert code == 0
    for part in ("│ mine", "│ other", "The rows have different seeds"):
        assert part in out
    make_run("runs/plain/seed_0/version_1", [1.0, 1.0])
    code, out, err = compare(arms / "plain" / "seed_0")  # the last finished one
    assert (code, err) == (0, "")
    assert out.startswith("test acc (higher is better), 2 clients, seed 0, data: measured\n")
    assert "│ FedAvg     │ 1.000 │" in out
    make_run("alpha=0.4/version_0", [1.0])
    assert compare("alpha=0.4")[0] == 0  # a folder, not a label


def test_recursive_leaves_out_interrupted_runs(compare, arms, make_run):
    left_out = make_run("runs/plain/seed_2/version_0", [0.0, 0.0], seed=2, interrupted=True)
    code, out, err = compare("--recursive", arms / "plain")
    assert (code, err) == (0, f"{left_out.folder.relative_to(Path.cwd())} was interrupted and is left out\n")
    assert "seeds 0, 1," in out
    code, _, err = compare("--recursive", arms / "plain" / "seed_2")
    assert code == 2
    assert "runs/plain/seed_2" in err


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["nowhere"], "nowhere is not a folder"),
        (["--recursive", "nowhere"], "nowhere is not a folder"),
        (["=runs"], "LABEL=RUN"),
        (["mine="], "LABEL=RUN"),
        (["runs"], "4 runs lie below it: add --recursive"),
        (["--recursive", "runs", "--metric", "auc"], "'auc' (did you mean 'acc'?)"),
        (["--recursive", "runs", "--split", "val"], "no val metric in common"),
        (["--recursive", "runs", "--split", "tset"], "split: expected one of 'test', 'val', 'train'"),
        (["--recursive", "runs", "--baseline", "x"], "baseline='x'"),
        (["--recursive", "runs", "--reference", "x"], "--reference x: neither"),
        (["runs/plain/seed_0", "runs/plain/seed_0"], "runs/plain/seed_0/version_0 and runs/plain/seed_0/ver"),
    ],
)
def test_errors_are_one_line(compare, arms, words, name):
    code, out, err = compare(*words)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert name in err
    assert err.count("\n") == 1


def test_no_run_is_given(compare):
    assert compare()[0] == 2


def test_many_differences_are_counted(compare, make_run):
    make_run("one/version_0", [1.0], data={f"field{number}": 1 for number in range(40)})
    make_run("other/version_0", [1.0], data={f"field{number}": 2 for number in range(40)})
    code, out, err = compare("one", "other")
    assert (code, out) == (2, "")
    assert len(err) < 600
    assert "data.field3 is 1 in" in err
    assert "; and 36 more differences. Leave out those that differ" in err


@pytest.mark.slow
def test_runs_that_are_not_comparable_are_refused_and_forced(compare, arms, make_run):
    make_run("other/version_0", [1.0, 1.0], data={"name": "mnist"}, strategy="FedProx")
    difference = 'data.name is "digits" in runs/plain/seed_0/version_0, "mnist" in other/version_0'
    for words in (["runs/plain/seed_0", "other"], ["runs/plain/seed_0", "--reference", "other"]):
        code, out, err = compare(*words)
        assert (code, out) == (2, "")
        assert difference in err
        assert "--force" in err
    code, out, _ = compare("runs/plain/seed_0", "other", "--force", "--out", "out")
    assert code == 0
    assert " ".join(out.split()).startswith(f"warning: {difference} test acc")
    assert "**Warning:** data.name" in Path("out/table.md").read_text()
    assert "Warning: data.name is" in Path("out/table.tex").read_text()


@pytest.mark.slow
def test_all_files(compare, arms):
    code, out, _ = compare("--recursive", arms, "--baseline", "FedAvg", "--out", "new/out")
    assert code == 0
    assert out.endswith("comparison: new/out\n")
    names = ("learning_curves", "client_values", "client_gains", "client_distribution")
    figures = [f"{name}_acc.{kind}" for name in names for kind in ("png", "svg")]
    tables = ["table.md", "table.csv", "table.tex", "clients.csv"]
    assert {path.name for path in Path("new/out").iterdir()} == {*figures, *tables}
    table, clients = (pd.read_csv(f"new/out/{name}.csv") for name in ("table", "clients"))
    assert list(table["label"]) == ["FedAvg + LocalMixup", "FedAvg"]
    assert table["mean_difference"][0] == 0.25
    assert len(clients) == 8
    text = Path("new/out/table.md").read_text()
    assert "**0.625 ± 0.000**" in text
    assert "- FedAvg: `runs/plain/seed_0/version_0`, `runs/plain/seed_1/version_0`" in text


def test_of_very_many_clients_there_is_no_figure_of_each(compare, make_run):
    """The record has the worst of them alone."""
    worst = {f"c{number}": 0.25 for number in range(100)}
    metric = record(worst, True) | {"percentiles": percentiles([0.25] * 100 + [0.5] * 1001)}
    make_run("run", worst, num_clients=1101, metrics={"test": {"acc": metric}})
    assert compare("run", "--out", "out")[0] == 0
    assert {path.stem for path in Path("out").glob("*.svg")} == {"client_distribution_acc"}


@pytest.mark.slow
def test_nothing_is_overwritten_unasked(compare, arms):
    Path("out").mkdir()
    Path("out/table.md").write_text("mine")
    Path("out/notes.txt").write_text("mine")
    code, out, err = compare("--recursive", arms, "--out", "out")
    assert (code, out) == (2, "")
    assert "table.md" in err
    assert "--overwrite" in err
    assert Path("out/table.md").read_text() == "mine"
    assert compare("--recursive", arms, "--out", "out", "--overwrite")[0] == 0
    assert Path("out/table.md").read_text() != "mine"
    assert Path("out/notes.txt").read_text() == "mine"


def test_a_folder_that_cannot_be_written_and_runs_without_curves(compare, arms):
    Path("file").write_text("")
    code, _, err = compare("--recursive", arms, "--out", "file/out")
    assert code == 2
    warning, error = err.splitlines()
    folders = "runs/mixed/seed_0/version_0, runs/mixed/seed_1/version_0"
    assert warning == f"warning: no metrics.csv, or nothing in it, in {folders}: no curves are drawn"
    assert error.startswith("error: cannot write to file/out: ")


def test_gains_over_a_row_and_over_another_run(compare, arms, make_run):
    _, out, _ = compare("--recursive", arms, "--reference", "FedAvg")
    assert "deviation of gains): over FedAvg." in " ".join(out.split())
    assert "+0.250" in out
    make_run("local/version_0", [0.75, 0.0], strategy="LocalTraining")
    _, out, _ = compare("runs/plain/seed_0", "--reference", "local")
    assert "│   +0 │" in out  # gains -0.25 and 0.25
    assert " 50% " in out


@pytest.mark.slow
def test_settings_in_which_recipes_differ(compare, make_run):
    for name, settings in {"a": {}, "b": {"trainer.max_rounds": 9}}.items():
        mixup = [{"class_path": "LocalMixup"}] if name == "b" else []
        make_run(name, [0.5, 0.25], config=settings, callbacks=mixup)
    _, out, _ = compare("a", "b", "--out", "out")
    assert "The recipes differ in\n  trainer.max_rounds: 5 (FedAvg), 9 (FedAvg + LocalMixup)\n" in out
    assert "- `trainer.max_rounds: 5 (FedAvg), 9 (FedAvg + LocalMixup)`" in Path("out/table.md").read_text()
    for name, first in (("c", 0), ("d", 1)):
        make_run(name, [0.5, 0.25], config={f"trainer.a{number}": first for number in range(15)})
    _, out, _ = compare("one=c", "two=d")
    assert "trainer.a11: 0 (one), 1 (two)\n  and 3 more settings\n" in out


@pytest.mark.slow
def test_stand_ins_are_labelled(compare, make_run):
    make_run("run", [0.5, 0.25], metric="acc/top1", data_source="stand-in")
    _, out, _ = compare("run", "--out", "out")
    assert Path("out/client_values_acc_top1.svg").is_file()  # the metric's slash makes no folder
    assert out.startswith(f" {STAND_IN_LABEL} \n")
    assert f"**{STAND_IN_LABEL}**" in Path("out/table.md").read_text()
    assert pd.read_csv("out/clients.csv")["source"][0] == "stand-in"


def test_missing_and_damaged_files(compare, arms):
    folder = arms / "plain" / "seed_0" / "version_0"
    (folder / "config.yaml").unlink()
    code, _, err = compare("--recursive", arms)
    assert code == 0
    assert err.startswith("warning: no config.yaml, or nothing in it, in runs/plain/seed_0/version_0: started from")
    assert err.count("\n") == 1
    (folder / "metrics.csv").write_text("step,val/acc\n1,zero\n")
    code, out, err = compare("--recursive", arms, "--out", "out")
    assert (code, out) == (2, "")
    assert err.startswith(f"error: {folder / 'metrics.csv'} is damaged (column 'val/acc'")
    assert not Path("out").exists()
    content = json.loads((folder / "summary.json").read_text())
    (folder / "summary.json").write_text(json.dumps(content)[:-20])
    code, _, err = compare(folder)
    assert code == 2
    assert err.startswith(f"error: {folder}/summary.json is damaged (")


def test_clients_without_a_value_are_named(compare, make_run):
    make_run("runs/plain/version_0", {"Basel": math.nan, "Bern": 0.5})
    code, out, _ = compare("runs/plain", "--out", "out")
    assert code == 0
    assert "acc is NaN for Basel" in out
    assert "acc is NaN for Basel" in Path("out/table.md").read_text()
    assert "Bern" not in out
