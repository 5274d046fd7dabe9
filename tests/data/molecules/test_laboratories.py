"""Laboratories with targets of their own: who opens what, and what stays at home."""

from pathlib import Path

import pytest
import torch

from lightning_fl import FederatedTrainer
from lightning_fl.callbacks import PrivateHeads
from lightning_fl.core.errors import DataError
from lightning_fl.data import PrivateTargets
from lightning_fl.models import MoleculeModel


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.setenv("LIGHTNING_FL_CACHE", str(tmp_path / "cache"))
    rows = [("C" * (i + 1) + "O", i) for i in range(20)]
    north = "id,smiles,kinase_x,herg\n" + "".join(f"a{i},{s},{i},{-i if i % 2 else ''}\n" for s, i in rows)
    south = "smiles,id,solubility\n" + "".join(f"{s},b{i},{100 + i}\n" for s, i in rows[:10])
    (tmp_path / "north.csv").write_text(north)
    (tmp_path / "south.csv").write_text(south)
    return {"north": str(tmp_path / "north.csv"), "south": str(tmp_path / "south.csv")}


def make(files, **arguments):
    return PrivateTargets(**({"files": files, "num_targets": 2, "other_columns": ["id"], "split_seed": 0} | arguments))


def targets(data, client):
    parts = [data.client_data(client, split) for split in ("train", "val", "test")]
    return torch.cat([part[i].y for part in parts for i in range(len(part))])


def test_every_laboratory_has_its_columns_first(files):
    data = make(files)
    assert data.client_names() == ["north", "south"]
    assert data.client_target_names(0) == ["kinase_x", "herg"]
    assert data.client_target_names(1) == ["solubility"]
    north, south = targets(data, 0), targets(data, 1)
    assert sorted(north[:, 0].tolist()) == list(range(20))
    assert (~north[:, 1].isnan()).sum() == 10
    assert sorted(south[:, 0].tolist()) == [100.0 + i for i in range(10)]
    assert south[:, 1].isnan().all()


def test_a_file_is_opened_only_where_it_is_asked_for(files):
    Path(files["south"]).unlink()
    data = make(files)
    data.prepare_data()
    data.setup("fit")
    assert data.client_data(0, "train") is not None
    with pytest.raises(DataError, match=r"south.csv"):
        data.client_data(1, "train")


def test_named_columns(files):
    data = make(files, target_columns={"north": ["herg"]})
    assert data.client_target_names(0) == ["herg"]
    assert data.describe()["target_names"] == {"north": ["herg"]}


def test_no_name_of_a_target_is_in_what_a_run_leaves(files, tmp_path):
    torch.manual_seed(0)
    model = MoleculeModel(hidden_dim=8, num_layers=1)
    trainer = FederatedTrainer(
        max_rounds=2,
        local_steps=2,
        accelerator="cpu",
        devices=1,
        enable_progress_bar=False,
        default_root_dir=str(tmp_path / "run"),
        callbacks=[PrivateHeads()],
    )
    trainer.fit(model, make(files))
    trainer.test(model, make(files))
    assert model.num_targets == 2
    written = [path for path in Path(trainer.log_dir).rglob("*") if path.is_file()]
    assert any(path.suffix == ".ckpt" for path in written)
    for path in written:
        content = path.read_bytes()
        assert not any(name in content for name in (b"kinase_x", b"herg", b"solubility")), path
    assert {name for name in trainer.metrics["val"] if "rmse/" in name} == {"val/rmse/target_0", "val/rmse/target_1"}


def test_features_come_with_them(files):
    data = make(files, features=["morgan"])
    assert data.descriptor_dim == 2048
    assert data.client_data(0, "train")[0].descriptors.shape == (1, 2048)


def test_more_targets_than_the_heads_have(files):
    with pytest.raises(DataError, match=r"north.csv has 2 target columns.* num_targets=1"):
        make(files, num_targets=1).client_data(0, "train")
    with pytest.raises(DataError, match=r"has no column with values to predict"):
        make(files, other_columns=["id", "solubility"]).client_data(1, "train")
