"""``lightning-fl export``: a folder that says what the run was and predicts what the run predicts."""

import json
import os
from pathlib import Path

import pandas as pd
import pytest
import torch
import yaml
from finished_runs import SMALL, fit, molecule_run, write_molecules

from lightning_fl import predict
from lightning_fl.models import MoleculeModel

pytestmark = pytest.mark.slow


def card(folder="out"):
    _, header, text = Path(folder, "README.md").read_text().split("---\n", 2)
    return yaml.safe_load(header), text


def test_the_folder_predicts_as_the_run_does_and_names_no_place_of_the_machine(fitted, command, finished):
    code, out, _ = command("export", fitted, "--to-folder", "out")
    assert code == 0
    assert "hf upload USER/NAME out" in out
    files = {str(path.relative_to("out")) for path in Path("out").rglob("*") if path.is_file()}
    assert files - {"model.safetensors"} == {"README.md", "config.yaml", "models/shared_0.ckpt", "summary.json"}
    Path("new.csv").write_text("smiles\nCCCO\nCCCCCBr\n")
    for folder in (fitted, "out"):
        code, _, err = command(
            "predict", folder, "new.csv", "--out", f"{Path(folder).name}.csv", "--accelerator", "cpu"
        )
        assert code == 0, err
    pd.testing.assert_frame_equal(pd.read_csv("version_0.csv"), pd.read_csv("out.csv"))
    assert not [path for path in files if str(finished) in Path("out", path).read_bytes().decode(errors="ignore")]
    one = MoleculeModel.load_from_checkpoint("out/models/shared_0.ckpt", map_location="cpu")
    saved = torch.load(fitted / "models" / "shared_0.ckpt", weights_only=True)["state_dict"]
    assert all(torch.equal(value, saved[name]) for name, value in one.state_dict().items())
    assert not list(Path().glob(".out-*"))


def test_the_card_says_what_the_record_says(fitted, command):
    command("export", fitted, "--to-folder", "out")
    header, text = card()
    record = json.loads((fitted / "summary.json").read_text())
    rmse = record["metrics"]["test"]["rmse"]
    assert header["library_name"] == "lightning-fl"
    assert header["pipeline_tag"] == "graph-ml"
    assert {"federated-learning", "fedavg"} <= set(header["tags"])
    (result,) = header["model-index"][0]["results"]
    assert {one["type"]: one["value"] for one in result["metrics"]}["rmse"] == rmse["mean"]
    column = list(record["metrics"]["test"]).index("rmse")
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]
    shown = {row[0]: row[1 + column] for row in rows[2:]}
    wanted = {**rmse["clients"], "**mean**": rmse["mean"], "**worst**": rmse["worst"]}
    assert shown == {name: f"{value:.4g}" for name, value in wanted.items()}
    assert "3 clients trained it by FedAvg in 3 rounds" in text
    recipe = yaml.safe_load(text.partition("```yaml\n")[2].partition("```")[0])
    assert recipe == yaml.safe_load(Path("out/config.yaml").read_text())
    assert recipe["model"]["init_args"]["hidden_dim"] == 8
    assert recipe["data"]["init_args"]["path"] == "tiny.csv"


def test_a_client_s_model_has_its_own_row_only(fitted, command):
    assert command("export", fitted, "--to-folder", "out", "--model", "assay_1")[0] == 0
    header, text = card()
    assert "the model of client assay_1" in text
    assert "model-index" not in header  # which would be of all clients
    assert "assay_0" not in text.partition("## Results")[2].partition("## Data")[0]
    assert Path("out/models/shared_0.ckpt").read_bytes() == (fitted / "models" / "assay_1.ckpt").read_bytes()


def test_a_client_s_model_with_layers_of_its_own_predicts(finished, tmp_path, command):
    run = molecule_run(finished, tmp_path, "PrivateHeads")
    assert command("export", run, "--to-folder", "out", "--model", "N")[0] == 0
    pd.testing.assert_frame_equal(predict("out", ["CCCO", "CCN"]), predict(run, ["CCCO", "CCN"], model="N"))


def test_the_shared_model_s_header_has_no_results_of_others(finished, tmp_path, command):
    """Here those of each client's fine-tuned model, which the table says."""
    run = molecule_run(finished, tmp_path, "FineTuning")
    assert command("export", run, "--to-folder", "out")[0] == 0
    header, text = card()
    assert "model-index" not in header
    assert "with the shared model, fine-tuned by" in text


def test_a_client_s_model_keeps_its_calibration(finished, command):
    """Also where the client's name is not that of its file."""
    text = Path(write_molecules("run.csv", range(1, 9))).read_text().replace(",O\n", ",lab a\n")
    Path("run.csv").write_text(text)
    data = {"path": "run.csv", "target_columns": ["activity"], "group_column": "lab"}
    run = fit(SMALL, {"class_path": "MoleculeCSV", "init_args": data}, ["PrivateHeads", "Calibration"])
    assert command("export", run, "--to-folder", "out", "--model", "lab a")[0] == 0
    found, expected = predict("out", ["CCCO"], interval=0.5), predict(run, ["CCCO"], model="lab a", interval=0.5)
    pd.testing.assert_frame_equal(found, expected)


def test_a_snapshot_s_card_has_no_results(finished, tmp_path, command):
    """Those of the run are its last model's."""
    run = molecule_run(finished, tmp_path, "Snapshots")
    assert command("export", run, "--to-folder", "out", "--model", "shared_0_round_1")[0] == 0
    header, text = card()
    assert "model-index" not in header
    assert text.partition("## Results")[2].partition("## Data")[0].strip() == "Nothing was evaluated."


def test_nothing_is_overwritten(fitted, command):
    Path("out").mkdir()
    Path("out/mine.txt").write_text("mine")
    code, _, err = command("export", fitted, "--to-folder", "out")
    assert (code, err) == (
        2,
        "error: out is not empty: choose a new folder with --to-folder.\n",
    )
    assert os.listdir("out") == ["mine.txt"]
    code, _, err = command("export", fitted, "--to-folder", "out/mine.txt/x")
    assert code == 2
    assert "cannot be written" in err
    path = fitted / "models" / "assay_0.ckpt"
    content = torch.load(path, weights_only=True)
    next(iter(content["state_dict"].values())).add_(1)
    path.unlink()  # it may be the same file as the shared one's
    torch.save(content, path)
    code, _, err = command("export", fitted, "--to-folder", "two", "--model", "all")
    assert (code, err) == (2, "error: --model all selects 2 models: choose one.\n")
    assert not Path("two").exists()
