"""What a run leaves of who trained and was tested on which rows, and cross-validation through a study."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import yaml
from tiny import TinyClients, TinyModule, regression_set

from lightning_fl import FederatedTrainer
from lightning_fl.cli import main
from lightning_fl.data import IID, FromFile, ImageFolders, Partitioned
from lightning_fl.data.module import SPLITS
from lightning_fl.trainer.session import _write_splits


def fit(root: Path, data: object) -> FederatedTrainer:
    trainer = FederatedTrainer(max_rounds=1, local_steps=1, seed=0, default_root_dir=root, enable_progress_bar=False)
    trainer.fit(TinyModule(), data)
    return trainer


def test_a_run_leaves_its_splits_and_another_repeats_them(tmp_path: Path) -> None:
    samples = regression_set(60, 0)
    first = fit(tmp_path, Partitioned(samples, IID(num_clients=3), split_seed=1))
    path = Path(first.log_dir) / "splits.json"
    content = json.loads(path.read_text())
    assert [entry["name"] for entry in content["clients"]] == first.datamodule.client_names()
    assert sorted(n for entry in content["clients"] for split in SPLITS for n in entry[split]) == list(range(60))
    again = fit(tmp_path, Partitioned(samples, FromFile(path=str(path)), split_seed=2))
    for a, b in zip(first.models, again.models, strict=True):
        assert all(torch.equal(a.vectors[dtype], b.vectors[dtype]) for dtype in a.vectors)
    assert json.loads((Path(again.log_dir) / "splits.json").read_text())["clients"] == content["clients"]


def test_data_without_numbers_leave_none(tmp_path: Path) -> None:
    assert not (Path(fit(tmp_path, TinyClients()).log_dir) / "splits.json").exists()


def test_of_data_that_belong_to_their_ranks_each_writes_its_own(tmp_path: Path) -> None:
    written = {}

    class Silos:
        num_clients = 3

        def client_names(self):
            return ["a", "b", "c"]

        def held_source(self):
            return {"numbering": "samples from 0"}

        def held_rows(self, client):
            assert client in (0, 2), "the data of another rank"
            return {split: [client] for split in SPLITS}

    trainer = SimpleNamespace(
        datamodule=Silos(),
        processes=SimpleNamespace(private=True),
        hosted_clients=[0, 2],
        is_global_zero=False,
        run_log=SimpleNamespace(write=lambda name, text, of_every_rank: written.update({name: (text, of_every_rank)})),
    )
    _write_splits(trainer)
    assert list(written) == ["splits.client-0.json", "splits.client-2.json"]
    for client, (text, of_every_rank) in zip((0, 2), written.values(), strict=True):
        assert of_every_rank
        assert [entry["train"] for entry in json.loads(text)["clients"]] == [[client]]


def test_the_images_of_a_folder_are_numbered(tmp_path: Path) -> None:
    from PIL import Image

    for number in range(10):
        for kind in ("cat", "dog"):
            (tmp_path / "one" / kind).mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (4, 4), (number, 0, 0)).save(tmp_path / "one" / kind / f"{number}.png")
    data = ImageFolders(root=str(tmp_path), size=4, split_seed=0)
    data.setup("fit")
    rows = data.held_rows(0)
    assert sorted(n for split in SPLITS for n in rows[split]) == list(range(20))
    assert list(rows["test"]) == list(data.client_data(0, "test").indices)


@pytest.mark.slow
def test_cross_validation_by_a_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIGHTNING_FL_CACHE", str(tmp_path / "cache"))
    rows = "".join(f"{'C' * (n + 1)}O,{n / 10},lab{n % 2}\n" for n in range(40))
    (tmp_path / "mine.csv").write_text("smiles,y,lab\n" + rows)
    data = {"path": str(tmp_path / "mine.csv"), "target_columns": ["y"], "group_column": "lab", "folds": 3}
    recipe = {
        "seed_everything": 0,
        "trainer": {"max_rounds": 1, "local_steps": 1},
        "model": {"class_path": "MoleculeModel", "init_args": {"hidden_dim": 4, "num_layers": 1}},
        "data": {"class_path": "MoleculeCSV", "init_args": {**data, "duplicates": "together"}},
    }
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(recipe))
    study = {
        "title": "cross-validation",
        "metric": "rmse",
        "seeds": [0, 1],
        "arms": {"fedavg": "mine.yaml"},
        "grid": {"fold": {str(fold): {"data.fold": fold} for fold in range(3)}},
    }
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(study))
    assert main(["study", str(tmp_path / "study.yaml"), "--out", str(tmp_path / "out"), "--workers", "2"]) in (0, None)
    tested: dict[int, dict[int, list[int]]] = {0: {}, 1: {}}
    for path in (tmp_path / "out" / "cells").glob("*/version_0/splits.json"):
        summary = json.loads((path.parent / "summary.json").read_text())
        clients = json.loads(path.read_text())["clients"]
        tested[summary["seed"]][summary["data"]["fold"]] = [row for entry in clients for row in entry["test"]]
    for folds in tested.values():
        assert sorted(folds) == [0, 1, 2]
        assert sorted(row for rows in folds.values() for row in rows) == list(range(2, 42))
    assert tested[0] != tested[1]  # another seed repeats the cross-validation with other folds
