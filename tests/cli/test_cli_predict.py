"""``lightning-fl predict RUN FILE`` on real runs of molecules."""

import io
import json
import os
import random
import re
import shlex
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
import yaml
from finished_runs import molecule_run, write_molecules
from torch_geometric.data import Batch

from lightning_fl import predict
from lightning_fl.core.errors import CheckpointError, ConfigurationError, DataError
from lightning_fl.data.molecules.dataset import MoleculeDataset
from lightning_fl.data.molecules.table import read_table
from lightning_fl.inference.trained_run import TrainedRun
from lightning_fl.models import MoleculeModel
from lightning_fl.recipe.trust import predict_command

BAD = {3: "C(C)(C)(C)(C)C", 5: "", 8: "xyz"}


@pytest.fixture
def run(finished, tmp_path):
    """A finished run of FedAvg on molecules, and new ones without targets."""
    found = molecule_run(finished, tmp_path)
    rows = [f'm{number},{BAD.get(number, "C" * (number + 1) + "O")},"a, b"' for number in range(12)]
    Path("new.csv").write_text("\n".join(["name,smiles,note", *rows]) + "\n")
    return found


@pytest.mark.parametrize("callback", ["FineTuning", "LocalTraining", "PrivateHeads"])
def test_the_command_that_a_run_prints_predicts(callback, finished, tmp_path, command):
    """Also where there is no shared model for all."""
    run = TrainedRun.read(molecule_run(finished, tmp_path, callback))
    Path("new.csv").write_text("smiles\nCCCO\nCCCCCBr\n")
    words = shlex.split(predict_command(run.folder, run.recipe, run.summary).replace("FILE", "new.csv"))
    code, out, err = command(*words[1:])
    assert code == 0, err
    assert pd.read_csv(io.StringIO(out))["activity"].notna().all()


def test_the_column_of_smiles_is_found_in_any_case(run):
    for header in ("SMILES", "Smiles"):
        Path("case.csv").write_text(f"{header}\nCCO\nCCN\n")
        assert predict(run, "case.csv")["activity"].notna().all()


def _global_draws():
    return torch.rand(3).tolist(), np.random.rand(3).tolist(), random.random(), os.environ.get("PL_GLOBAL_SEED")  # noqa: NPY002


def test_the_callers_generators_stay_as_they_were(run, monkeypatch):
    monkeypatch.delenv("PL_GLOBAL_SEED", raising=False)
    found = []
    for predicts in (False, True):
        torch.manual_seed(7), np.random.seed(7), random.seed(7)  # noqa: NPY002
        if predicts:
            predict(run, ["CCO", "CCN"])
        found.append(_global_draws())
    assert found[0] == found[1]


@pytest.fixture
def local(finished, tmp_path):
    """A finished run of LocalTraining: a model for each of three clients."""
    return molecule_run(finished, tmp_path, "LocalTraining")


def forward(path, smiles):
    """The module's own forward pass, in one batch."""
    write = pd.DataFrame({"smiles": smiles, "y": "0"})
    write.to_csv("batch.csv", index=False)
    table = read_table(Path("batch.csv"), file_format="csv", smiles="smiles", targets=["y"], units=[""])
    module = MoleculeModel.load_from_checkpoint(path).eval()
    with torch.no_grad():
        return module(Batch.from_data_list(list(MoleculeDataset(table))))[:, 0].numpy()


def good(table):
    return table[table["error"].isna()]


def test_the_table_is_what_was_given_and_the_predictions(run, command):
    code, out, err = command("predict", run, "new.csv")
    assert code == 0
    table = pd.read_csv(io.StringIO(out))
    given = pd.read_csv("new.csv")
    assert list(table.columns) == ["name", "smiles", "note", "activity", "error"]
    pd.testing.assert_frame_equal(table[list(given.columns)], given)
    assert sorted(table.index[table["activity"].isna()]) == sorted(table.index[table["error"].notna()]) == sorted(BAD)
    assert "valence" in table["error"][3]
    assert list(table["error"][[5, 8]]) == ["no SMILES", "not a SMILES: xyz"]
    expected = forward(run / "models" / "shared_0.ckpt", good(table)["smiles"].tolist())
    np.testing.assert_allclose(good(table)["activity"], expected, rtol=1e-6)
    assert err == (f"model: shared_0 of {run} (2 rounds)\n3 of 12 rows have no prediction: the last column says why\n")


@pytest.mark.slow
@pytest.mark.parametrize("words", [("--batch_size", 1), ("--chunk_rows", 1), ("--chunk_rows", 5, "--batch_size", 2)])
def test_chunks_and_batches_change_nothing(run, command, words):
    whole = pd.read_csv(io.StringIO(command("predict", run, "new.csv")[1]))
    cut = pd.read_csv(io.StringIO(command("predict", run, "new.csv", *words)[1]))
    np.testing.assert_allclose(cut["activity"], whole["activity"], rtol=1e-6)
    pd.testing.assert_frame_equal(cut.drop(columns="activity"), whole.drop(columns="activity"))


@pytest.mark.slow
def test_in_three_lines_of_python(run):
    table = predict(run, ["CCO", "nonsense", "CCCO"])
    assert list(table.columns) == ["smiles", "activity", "error"]
    np.testing.assert_allclose(
        table["activity"][[0, 2]], forward(run / "models" / "shared_0.ckpt", ["CCO", "CCCO"]), rtol=1e-6
    )
    frame = pd.DataFrame({"smiles": ["CCO", None], "mass": [46.07, 1.0]}, index=["ethanol", "nothing"])
    found = predict(run, frame)
    pd.testing.assert_frame_equal(found[["smiles", "mass"]], frame)
    assert found["activity"]["ethanol"] == table["activity"][0]
    assert found["error"]["nothing"] == "no SMILES"


def test_a_table_with_columns_of_pandas_own_kinds(run):
    frame = pd.DataFrame({"smiles": ["CCO", None], "mass": [46.07, None]})
    found = predict(run, frame.convert_dtypes())
    assert found["error"][1] == "no SMILES"
    assert found["activity"].equals(predict(run, frame)["activity"])


def test_threads_are_as_they_were(run):
    before = torch.get_num_threads()
    torch.set_num_threads(before + 1)
    try:
        predict(run, ["CCO"])
        assert torch.get_num_threads() == before + 1
    finally:
        torch.set_num_threads(before)


def test_a_column_that_is_there_keeps_its_name_and_its_values(run, command):
    Path("named.csv").write_text("activity;smiles;error;activity_predicted\n1,5;CO;x;y\n")
    header, row = command("predict", run, "named.csv")[1].splitlines()
    assert header == "activity,smiles,error,activity_predicted,activity_predicted_2,error_predicted"
    assert row.startswith('"1,5",CO,x,y,')


def test_the_column_of_smiles_may_have_another_name(run, command):
    Path("other.csv").write_text("structure\nCO\n")
    code, _, err = command("predict", run, "other.csv")
    assert code == 2
    assert err.splitlines()[-1] == (
        "error: other.csv has no column 'smiles'. It has structure. Give the column of SMILES with --smiles_column."
    )
    code, out, _ = command("predict", run, "other.csv", "--smiles_column", "structure")
    assert (code, out.splitlines()[0]) == (0, "structure,activity,error")


@pytest.mark.slow
def test_which_model(local, command):
    Path("new.csv").write_text("smiles\nCCO\nCCCF\n")
    smiles = ["CCO", "CCCF"]
    code, _, err = command("predict", local, "new.csv")
    assert code == 2
    assert err == (
        f"error: {local} has 3 shared models, shared_0, shared_1, shared_2, and models of the clients F, N, O: choose"
        " one with --model, or use --model best or all.\n"
    )
    code, _, err = command("predict", local, "new.csv", "--model", "shared_7")
    assert code == 2
    assert "--model shared_7: " in err
    assert "has no such model (did you mean 'shared_" in err
    for name in ("N", "shared_1"):
        table = predict(local, smiles, model=name)
        np.testing.assert_allclose(table["activity"], forward(local / "models" / f"{name}.ckpt", smiles), rtol=1e-6)
    summary = json.loads((local / "summary.json").read_text())
    summary["metrics"]["val"]["rmse"]["clients"] = {"F": 2.0, "N": 1.0, "O": 3.0}
    (local / "summary.json").write_text(json.dumps(summary))
    assert "model: N of" in command("predict", local, "new.csv", "--model", "best")[2]
    table = predict(local, smiles, model="all")
    own = [f"activity@shared_{k}" for k in range(3)]  # clients use these as they are
    assert list(table.columns) == ["smiles", "activity", *own, "error"]
    np.testing.assert_allclose(table["activity"], table[own].mean(axis=1), rtol=1e-6)


@pytest.mark.slow
def test_personal_layers(finished, tmp_path, run, command):
    recipe = yaml.safe_load((run / "config.yaml").read_text())
    recipe["trainer"]["callbacks"] = [{"class_path": "PersonalLayers", "init_args": {"layers": ["head"]}}]
    (run / "config.yaml").write_text(yaml.safe_dump(recipe))
    code, _, err = command("predict", run, "new.csv")
    assert code == 2
    assert err.startswith("error: the layers ['head'] of the shared models are untrained")
    assert command("predict", run, "new.csv", "--model", "N")[0] == 0


@pytest.mark.slow
def test_the_file_is_there_whole_or_not_at_all(run, command):
    code, out, err = command("predict", run, "new.csv", "--out", "out/p.csv")
    assert (code, out) == (0, "")
    assert err.endswith("predictions: out/p.csv\n")
    before = Path("out/p.csv").read_bytes()
    assert command("predict", run, "new.csv")[1].encode() == before
    code, _, err = command("predict", run, "new.csv", "--out", "out/p.csv")
    assert code == 2
    assert err == "error: out/p.csv exists: choose another file with --out, or replace it with --force.\n"
    lines = Path("new.csv").read_text().splitlines()
    Path("broken.csv").write_text("\n".join([*lines, "a,b,c,d,e"]) + "\n")
    code, _, err = command("predict", run, "broken.csv", "--out", "out/p.csv", "--force", "--chunk_rows", "2")
    assert code == 2
    assert "line 14 has 5 cells, the header 3" in err
    assert Path("out/p.csv").read_bytes() == before
    assert [path.name for path in Path("out").iterdir()] == ["p.csv"]
    code, _, err = command("predict", run, "new.csv", "--out", "new.csv", "--force")
    assert (code, err) == (2, "error: new.csv is an input: choose another file with --out.\n")
    code, _, err = command("predict", run, "new.csv", "--out", "out/p.xlsx")
    assert (code, Path("out/p.xlsx").exists(), "--out out/p.xlsx" in err) == (2, False, True)
    code, _, err = command("predict", run, "new.csv", "--out", "new.csv/p.csv")
    assert code == 2
    assert "new.csv/p.csv cannot be written" in err


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "bad.csv",
            b"smiles\nxx\n\nyy\n",
            "bad.csv: none of its 2 rows can be predicted; first error: not",
        ),
        (
            "no.csv",
            b"smile\nCO\n",
            "no.csv has no column 'smiles' (did you mean 'smile'?). It has smile. Give the column",
        ),
        ("x.csv", b"smiles\nC\xff\n", "x.csv cannot be read as a table: the byte 0xff in line 2 is not UTF-8"),
    ],
)
def test_files_that_are_none(run, command, name, content, message):
    Path(name).write_bytes(content)
    code, out, err = command("predict", run, name, "--out", "p.csv")
    assert (code, out) == (2, "")
    assert err.splitlines()[-1].startswith(f"error: {message}")
    assert not Path("p.csv").exists()


def test_a_run_has_the_models_that_its_record_counts(run):
    before = predict(run, ["CCO"])
    (run / "models" / "shared_5.ckpt").write_bytes(b"of another run")
    assert predict(run, ["CCO"]).equals(before)
    (run / "models" / "shared_0.ckpt").unlink()
    with pytest.raises(CheckpointError, match=r"shared_0\.ckpt is missing"):
        predict(run, ["CCO"])


def test_a_file_that_is_not_given(run, command):
    code, _, err = command("predict", run)
    assert code == 2
    assert err == "error: the following arguments are required: file.\n"
    code, _, err = command("predict")
    assert (code, "predict RUN FILE" in err, "predict --config RECIPE" in err) == (2, True, True)


def test_what_python_gives_that_is_no_molecule(run):
    with pytest.raises(DataError, match="new samples of type list"):
        predict(run, [1, 2])
    with pytest.raises(DataError, match=r"the table has no rows: give at least one\."):
        predict(run, pd.DataFrame({"smiles": []}))
    with pytest.raises(ConfigurationError, match=r"batch_size=0"):
        predict(run, ["CO"], batch_size=0)


@pytest.mark.slow
def test_a_class_of_somebody_elses(run, command):
    recipe = yaml.safe_load((run / "config.yaml").read_text())
    Path("twice_model.py").write_text(
        "from lightning_fl.models import MoleculeModel\nclass Twice(MoleculeModel):\n"
        "    def predict_step(self, batch):\n        return {'twice': 2 * self(batch)[:, 0]}\n"
    )
    recipe["model"]["class_path"] = "twice_model.Twice"
    (run / "config.yaml").write_text(yaml.safe_dump(recipe))
    code, _, err = command("predict", run, "new.csv")
    assert code == 2
    assert "names twice_model.Twice, which is not part of lightning_fl" in err
    code, out, _ = command("predict", run, "new.csv", "--trust")
    table = good(pd.read_csv(io.StringIO(out)))
    expected = 2 * forward(run / "models" / "shared_0.ckpt", table["smiles"].tolist())
    assert code == 0
    np.testing.assert_allclose(table["activity_twice"], expected, rtol=1e-6)


@pytest.mark.slow
def test_similarity_to_the_nearest_training_molecule(run, command):
    code, _, err = command("predict", run, "new.csv", "--similarity")
    assert code == 2
    assert "error: similarity: the run's data cannot be read: path='run.csv'" in err
    write_molecules("run.csv", range(1, 9))
    table = predict(run, ["CCO", "CCCCCCCCCCCCCCCCCCCCI", "x"], similarity=True)
    own = ["similarity@F", "similarity@N", "similarity@O"]
    assert list(table.columns) == ["smiles", "activity", "similarity", *own, "error"]
    np.testing.assert_allclose(table["similarity"][:2], table[own][:2].max(axis=1))
    assert table["similarity"][1] < 0.9
    assert table.loc[2, ["similarity", *own]].isna().all()
    assert (table[own][:2] <= 1).all(axis=None)


@pytest.mark.slow
def test_similarity_needs_the_file_of_the_training(run):
    write_molecules("run.csv", range(2, 10))
    with pytest.raises(DataError, match=r"similarity: the run's data file has changed"):
        predict(run, ["CCO"], similarity=True)


@pytest.mark.processes
@pytest.mark.slow
def test_pipes(run, start_warm):
    code = "import os, sys; pipe = os.popen('cat new.csv'); os.dup2(pipe.fileno(), 0)\n"
    code += "from lightning_fl.cli import main; sys.exit(main())"
    ended = start_warm("-c", code, "predict", run, "-").end()
    assert [line.split(",")[0] for line in ended.out.splitlines()] == ["name", *(f"m{number}" for number in range(12))]
    assert re.fullmatch(r"model: shared_0 of .*\n3 of 12 rows .*\n", ended.err)
