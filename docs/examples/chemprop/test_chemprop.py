"""The recipes and the example run, and one client trains exactly as under Lightning's Trainer."""

import importlib.util
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

if importlib.util.find_spec("chemprop") is None:  # before what follows is imported
    pytest.skip("needs the extra chemprop", allow_module_level=True)

import lightning.pytorch as pl
from chemprop.data import MoleculeDatapoint, MoleculeDataset, build_dataloader
from laboratories import Laboratory, classification, main, regression

from lightning_fl import FederatedTrainer, Silos
from lightning_fl.cli import main as lightning_fl
from lightning_fl.data import MoleculeCSV
from lightning_fl.data.molecules.standin import make_standin
from lightning_fl.data.partition import IID

FOLDER = Path(__file__).parent
pytestmark = pytest.mark.slow
QUIET = {"accelerator": "cpu", "logger": False, "enable_progress_bar": False, "enable_checkpointing": False}


@pytest.fixture
def table() -> pd.DataFrame:
    """Sixty molecules of the stand-in with a number, and whether it is above the median."""
    molecules = make_standin("esol", target_names=["logS"], target_units=["log10(mol/L)"])
    chosen = list(range(0, len(molecules.smiles), len(molecules.smiles) // 60))[:60]
    numbers = [float(molecules.targets[index, 0]) for index in chosen]
    smiles = [molecules.smiles[index] for index in chosen]
    return pd.DataFrame(
        {"smiles": smiles, "logS": numbers, "p_np": (np.array(numbers) > np.median(numbers)).astype(int)}
    )


def test_recipe_of_regression(tmp_path: Path) -> None:
    words = [f"--trainer.default_root_dir={tmp_path}", "--trainer.max_rounds=2", "--data.source=standin"]
    words += ["--model.message_passing.d_h=8", "--model.predictor.input_dim=8", "--trainer.accelerator=cpu"]
    assert lightning_fl(["fit", "--config", str(FOLDER / "chemprop_esol.yaml"), *words]) == 0
    summary = json.loads((tmp_path / "version_0" / "summary.json").read_text())
    assert summary["data"]["num_clients"] == 3
    assert np.isfinite(pd.read_csv(tmp_path / "version_0" / "metrics.csv")["val/rmse"].dropna()).all()


def test_recipe_of_classification(tmp_path: Path, table: pd.DataFrame) -> None:
    table.to_csv(tmp_path / "BBBP.csv", index=False)
    words = [f"--trainer.default_root_dir={tmp_path}", "--trainer.max_rounds=2", f"--data.path={tmp_path / 'BBBP.csv'}"]
    words += ["--model.message_passing.d_h=8", "--model.predictor.input_dim=8", "--trainer.accelerator=cpu"]
    assert lightning_fl(["fit", "--config", str(FOLDER / "chemprop_bbbp.yaml"), *words]) == 0
    assert pd.read_csv(tmp_path / "version_0" / "metrics.csv")["val/roc"].dropna().between(0, 1).all()


@pytest.mark.parametrize(("model", "target"), [(regression, "logS"), (classification, "p_np")])
def test_one_client_trains_to_the_bits_of_chemprop_alone(tmp_path: Path, table: pd.DataFrame, model, target) -> None:
    table.to_csv(tmp_path / "one.csv", index=False)
    arguments = {"path": str(tmp_path / "one.csv"), "target_columns": [target], "partitioner": IID(num_clients=1)}
    ours = MoleculeCSV(**arguments, graphs="chemprop", batch_size=9, shuffle=False)
    torch.manual_seed(0)
    federated = model(8)
    trainer = FederatedTrainer(**QUIET, max_rounds=3, optimizer_state="keep", default_root_dir=tmp_path, devices=1)
    trainer.fit(federated, ours)
    # the client's training molecules, read from the file and batched by chemprop alone
    chosen = sorted(ours._shares[0]["train"].tolist())
    rows = [(table.smiles[index], float(np.float32(table[target][index]))) for index in chosen]
    points = [MoleculeDatapoint.from_smi(smiles, y=np.array([value], dtype=np.float32)) for smiles, value in rows]
    torch.manual_seed(0)
    alone = model(8)
    reference = pl.Trainer(**QUIET, max_epochs=3, enable_model_summary=False, num_sanity_val_steps=0, devices=1)
    reference.fit(alone, build_dataloader(MoleculeDataset(points), 9, shuffle=False))
    start = model(8).state_dict()
    for name, value in alone.state_dict().items():
        # the shared model is summed with 46 bits behind the point
        assert (
            torch.equal(federated.state_dict()[name], value)
            or (federated.state_dict()[name] - value).abs().max() < 2**-46
        ), name
    assert any(not torch.equal(value, start[name]) for name, value in alone.state_dict().items())


def test_a_last_batch_of_one_is_left_out_of_training_only(tmp_path: Path, table: pd.DataFrame) -> None:
    table.to_csv(tmp_path / "one.csv", index=False)
    data = MoleculeCSV(
        path=str(tmp_path / "one.csv"),
        target_columns=["logS"],
        partitioner=IID(num_clients=1),
        graphs="chemprop",
        batch_size=47,
        eval_batch_size=5,
        split=(0.8, 0.1, 0.1),
    )
    data.prepare_data()
    data.setup("fit")
    assert [len(batch.Y) for batch in data.client_data(0, "train")] == [47]  # 48 molecules
    assert [len(batch.Y) for batch in data.client_data(0, "val")] == [5, 1]


def test_laboratories_with_files_of_their_own(
    tmp_path: Path, table: pd.DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, part in (("north", table[:20]), ("south", table[20:])):
        part.to_csv(tmp_path / f"{name}.csv", index=False)
    module = regression(8)
    silos = Silos(
        [Laboratory(tmp_path / f"{name}.csv", "logS") for name in ("north", "south")], names=["north", "south"]
    )
    trainer = FederatedTrainer(**QUIET, max_rounds=2, optimizer_state="keep", default_root_dir=tmp_path, devices=1)
    trainer.fit(module, silos)
    trainer.test(module, silos)
    assert trainer.metrics["test"]["test/rmse"].mean > 0
    monkeypatch.setattr(
        "sys.argv", ["laboratories.py", "north.csv", "south.csv", "--target", "p_np", "--classes", "--rounds=1"]
    )
    monkeypatch.chdir(tmp_path)
    main()
