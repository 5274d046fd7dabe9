"""``lightning-fl personalize`` on a real run of molecules."""

import json
import shutil
from pathlib import Path

import jsonargparse
import pytest
import torch
import yaml
from finished_runs import molecule_run, write_molecules

from lightning_fl.models import MoleculeModel


@pytest.fixture
def run(finished, tmp_path):
    """A finished run on molecules, three models, and a new client's file."""
    write_molecules("new.csv", range(4, 10))
    return molecule_run(finished, tmp_path, "LocalTraining")


def shares_of(out):
    rows = [line.split("│") for line in out.splitlines() if "shared_" in line]
    return torch.tensor([float(row[3].strip().rstrip("%")) / 100 for row in rows])


def assert_is_the_mixture(folder, out, shares):
    """The written weights are the mixture of the files in ``models`` by the shares that were printed."""
    states = [
        torch.load(path, weights_only=True)["state_dict"] for path in sorted(Path(folder, "models").glob("shared_*"))
    ]
    own = torch.load(out, weights_only=True)["state_dict"]
    assert len(states) == len(shares)
    assert list(own) == list(states[0])
    for name, value in own.items():
        parts = torch.stack([state[name] for state in states])
        if value.is_floating_point():
            expected = torch.einsum("k,k...->...", shares.double() / shares.sum(), parts.double())
            torch.testing.assert_close(value.double(), expected, atol=2e-3, rtol=2e-3)
        else:
            assert torch.equal(value, parts.amax(0))


@pytest.mark.slow
def test_molecules(run, command):
    code, out, err = command("personalize", run, "new.csv", "--monitor", "val/rmse")
    assert (code, err) == (0, "")
    assert "shares by val/rmse of 9 samples, metrics of 9 others" in out
    assert "uniform mixture" in out
    shares = shares_of(out)
    assert float(shares.sum()) == pytest.approx(1, abs=2e-3)
    target = run / "personal" / "new.ckpt"
    assert f"personal model: {target}" in out
    assert_is_the_mixture(run, target, shares)
    module = MoleculeModel.load_from_checkpoint(target, map_location="cpu")
    shared = MoleculeModel.load_from_checkpoint(run / "models" / "shared_0.ckpt", map_location="cpu")
    torch.testing.assert_close(module.target_mean, shared.target_mean)  # of the run, not of the new file
    assert module.hparams["hidden_dim"] == 4


@pytest.mark.slow
def test_the_same_command_gives_the_same_model_and_overwrites_nothing(run, command):
    words = ("personalize", run, "new.csv", "--out", "mine.ckpt")
    code, first, _ = command(*words)
    assert code == 0
    before = torch.load("mine.ckpt", weights_only=True)["state_dict"]
    code, _, err = command(*words)
    assert code == 2
    assert err == "error: mine.ckpt exists: choose another file with --out, or replace it with --force.\n"
    code, again, _ = command(*words, "--force")
    assert (code, again) == (0, first)
    after = torch.load("mine.ckpt", weights_only=True)["state_dict"]
    assert all(torch.equal(value, after[name]) for name, value in before.items())
    code, other, _ = command(*words, "--force", "--seed", "8")
    assert code == 0
    assert other != first


@pytest.mark.processes
@pytest.mark.slow
def test_in_a_process_of_its_own(run, start_warm):
    ended = start_warm("-m", "lightning_fl", "personalize", run, "new.csv", "--holdout", "0").end()
    assert (ended.code, ended.err) == (0, "")
    assert "of 18 samples, and so are the metrics" in ended.out
    assert_is_the_mixture(run, run / "personal" / "new.ckpt", shares_of(ended.out))


@pytest.fixture
def fault(command):
    """What is said of words that are refused."""

    def said(*words):
        code, out, err = command("personalize", *words)
        assert (code, out) == (2, "")
        assert err.startswith("error: ")
        assert err.count("\n") == 1
        return err.removeprefix("error: ").rstrip("\n")

    return said


@pytest.mark.slow
def test_faults_of_the_run(run, fault, tmp_path):
    assert "gone is not a folder" in fault("gone", "new.csv")
    (tmp_path / "empty").mkdir()
    assert "summary.json is missing: name the folder that lightning-fl fit printed" in fault("empty", "new.csv")
    shutil.copytree(run, "runs/version_0")
    assert "name one of them, such as runs/version_0." in fault("runs", "new.csv")
    assert "missing.csv' is not a file" in fault(run, "missing.csv")
    write_molecules("other.csv", [1, 2], header="smiles,potency,lab")
    assert "other.csv has no column 'activity'" in fault(run, "other.csv")
    Path("unlabelled.csv").write_text("smiles,activity\nCC,\nCCC,\n")
    assert "none of the 2 samples has a label" in fault(run, "unlabelled.csv")

    model = run / "models" / "shared_1.ckpt"
    whole = model.read_bytes()
    model.unlink()
    assert "shared_1.ckpt is missing: copy the run again" in fault(run, "new.csv")
    model.write_bytes(whole[:200])
    assert "shared_1.ckpt is damaged or not a model's checkpoint" in fault(run, "new.csv")
    model.write_bytes(whole)

    config = run / "config.yaml"
    recipe = yaml.safe_load(config.read_text())
    text = config.read_text()
    config.write_text(text.replace("hidden_dim: 4", "hidden_dim: 5"))
    assert "shared_0.ckpt does not fit MoleculeModel" in fault(run, "new.csv")
    recipe["trainer"]["callbacks"] = [{"class_path": "PersonalLayers", "init_args": {"layers": ["head"]}}]
    config.write_text(yaml.safe_dump(recipe))
    assert "the layers ['head']" in fault(run, "new.csv")
    config.write_text(text)

    record = run / "summary.json"
    content = json.loads(record.read_text())
    record.write_text("{")
    assert "summary.json is damaged" in fault(run, "new.csv")
    record.write_text(json.dumps({key: value for key, value in content.items() if key != "rounds"}))
    assert "is not the run of a fit" in fault(run, "new.csv")
    record.unlink()
    assert f"--ckpt_path {run / 'checkpoints' / 'last.ckpt'}" in fault(run, "new.csv")
    record.write_text(json.dumps(content))
    shutil.rmtree(run / "models")
    assert "shared_*.ckpt" in fault(run, "new.csv")


@pytest.mark.slow
def test_what_the_run_was_is_said(run, command):
    record = run / "summary.json"
    content = json.loads(record.read_text()) | {"data_source": "stand-in", "interrupted": True}
    record.write_text(json.dumps(content))
    code, out, _ = command("personalize", run, "new.csv")
    assert code == 0
    assert "STAND-IN" in out
    assert "the run was interrupted after round 2" in out


def test_of_many_models_those_with_the_largest_shares_are_shown(capsys):
    from lightning_fl.cli.personalize import _print
    from lightning_fl.core.metrics import MetricSummary
    from lightning_fl.inference.personalization import Personalization

    shares = torch.linspace(1, 40, 40).double()
    clients = dict.fromkeys(range(40), 0.5)
    found = Personalization(
        monitor="val/acc",
        higher_is_better=True,
        values=[0.5] * 40,
        importance=shares / 40,
        mixture=shares / shares.sum(),
        num_scored=5,
        num_held_out=5,
        shared={"val/acc": MetricSummary.of(clients, higher_is_better=True)},
        uniform={"val/acc": float("nan")},
        personal={"val/acc": 0.75},
    )
    _print(found, {"rounds": 1}, Path("run"), Path("new.csv"), Path("mine.ckpt"))
    out = capsys.readouterr().out
    assert "shared_9 " not in out  # the ten least, 1 + ... + 10 of 820
    assert "shared_10 " in out
    assert "... and 10 more" in out
    assert f"{55 / 820:.1%}" in out


FOREIGN = [
    ("model", {"class_path": "foreign.Model"}, "foreign.Model"),
    ("model", "foreign.Model", "foreign.Model"),
    (
        "model",
        {"class_path": "lightning_fl.runtime.checkpoint.os.mkdir", "init_args": {"path": "executed"}},
        "posix.mkdir",
    ),
    ("data", {"class_path": "Silos", "init_args": {"datamodules": [{"class_path": "foreign.Model"}]}}, "foreign.Model"),
    (
        "data",
        {
            "class_path": "Partitioned",
            "init_args": {
                "data": "foreign.Model",
                "partitioner": {"class_path": "IID", "init_args": {"num_clients": 2}},
                "collate_fn": "foreign.collate",
            },
        },
        "foreign.collate",
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize(("key", "value", "name"), FOREIGN)
def test_a_run_of_somebody_else_s_imports_nothing(key, value, name, run, fault):
    code = "import os\nfrom lightning_fl.models import MoleculeModel\nos.mkdir('executed')\n"
    Path("foreign.py").write_text(f"{code}class Model(MoleculeModel): pass\ndef collate(samples): return samples\n")
    config = run / "config.yaml"
    config.write_text(yaml.safe_dump(yaml.safe_load(config.read_text()) | {key: value}))
    before = dict(jsonargparse._common.parsing_settings)
    text = fault(run, "new.csv")
    assert text.startswith(f"{config} names {name}, ")
    assert "--trust" in text
    assert not Path("executed").exists()
    assert jsonargparse._common.parsing_settings == before


@pytest.mark.slow
def test_trust_lets_a_run_name_what_it_likes(run, command, monkeypatch):
    monkeypatch.syspath_prepend(Path.cwd())
    Path("trusted.py").write_text("from lightning_fl.models import MoleculeModel\nclass Model(MoleculeModel): pass\n")
    config = run / "config.yaml"
    config.write_text(config.read_text().replace("lightning_fl.models.MoleculeModel", "trusted.Model"))
    code, out, err = command("personalize", run, "new.csv", "--trust")
    assert (code, err) == (0, "")
    assert "personal model" in out


@pytest.mark.slow
def test_a_record_that_was_changed_is_named(run, fault):
    config, record = run / "config.yaml", run / "summary.json"
    text, content = config.read_text(), json.loads(record.read_text())
    data = {key: value for key, value in content["data"].items() if key != "target_names"}
    record.write_text(json.dumps(content | {"data": data}))
    assert "'target_names'" in fault(run, "new.csv")
    record.write_text(json.dumps(content))
    recipe = yaml.safe_load(text)
    config.write_text(yaml.safe_dump({"data": recipe["data"]}))
    assert "config.yaml has no model" in fault(run, "new.csv")
    config.write_text(yaml.safe_dump(recipe | {"trainer": [1]}))
    assert "config.yaml has no model, no data or no mapping trainer" in fault(run, "new.csv")


@pytest.mark.slow
def test_a_file_that_cannot_be_written_is_refused_first(run, fault, tmp_path):
    message = f"new.csv/mine.ckpt cannot be written, {Path.cwd() / 'new.csv'} is not a folder: choose another file"
    assert fault(run, "new.csv", "--out", "new.csv/mine.ckpt") == f"{message} with --out."
    (tmp_path / "elsewhere").mkdir()
    (run / "personal").symlink_to(tmp_path / "elsewhere")
    assert "new.ckpt" in fault(run, "new.csv")
    assert list((tmp_path / "elsewhere").iterdir()) == []


@pytest.mark.slow
def test_samples_without_a_label_are_left_out_and_counted(run, command, fault):
    lines = Path("new.csv").read_text().splitlines()
    Path("half.csv").write_text("\n".join([lines[0], *lines[1:11], *(f"{'C' * n}S,,lab" for n in range(1, 8))]) + "\n")
    Path("labelled.csv").write_text("\n".join(lines[:11]) + "\n")
    with pytest.warns(UserWarning, match="7 of 17 samples have no label and are left out"):
        code, out, _ = command("personalize", run, "half.csv", "--monitor", "val/rmse")
    assert code == 0
    assert out == command("personalize", run, "labelled.csv", "--monitor", "val/rmse")[1].replace("labelled", "half")
    Path("one.csv").write_text("\n".join([*lines[:2], "CCS,,lab", "CCCS,,lab"]) + "\n")
    with pytest.warns(UserWarning, match="2 of 3 samples have no label"):
        assert "1 samples are too few" in fault(run, "one.csv")
