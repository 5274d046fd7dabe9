import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
import yaml
from corners import fit as fit_tiny
from lightning.pytorch import LightningModule
from processes import succeed
from rdkit import Chem
from rdkit.Chem import rdFingerprintGenerator
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor
from sklearn.metrics import average_precision_score, mean_absolute_error, r2_score, roc_auc_score
from tiny import quiet_trainer

from lightning_fl.callbacks import ForestReference, LabelNoise
from lightning_fl.callbacks.local_data.label_noise import perturb_targets
from lightning_fl.core.errors import ConfigurationError
from lightning_fl.core.seeding import derive_seed, generator
from lightning_fl.data import MoleculeCSV
from lightning_fl.data.molecules.standin import make_standin
from lightning_fl.data.partition import IID
from lightning_fl.models import MoleculeModel


def run(tmp_path, columns, censored=False, module=None, **settings):
    table = make_standin("esol", target_names=["y"], target_units=[""])
    smiles, values = table.smiles[::8], table.targets[::8, 0].numpy()
    pd.DataFrame({"smiles": smiles, **columns(values)}).to_csv(tmp_path / "mine.csv", index=False)
    names = [name for name in pd.read_csv(tmp_path / "mine.csv").columns if name != "smiles"]
    data = MoleculeCSV(
        path=str(tmp_path / "mine.csv"),
        target_columns=names,
        partitioner=IID(num_clients=2),
        split=(0.5, 0.2, 0.3),
        split_seed=0,
        censored=censored,
    )
    given = {"seed": 4, "max_rounds": 1, "local_steps": 1, "default_root_dir": tmp_path}
    trainer = quiet_trainer(ForestReference(num_trees=20), **(given | settings))
    module = module or MoleculeModel(hidden_dim=4, num_layers=1)
    trainer.fit(module, data)
    return trainer.test(module, data), data


def counts(smiles):
    generator = rdFingerprintGenerator.GetMorganGenerator(radius=2, fpSize=2048)
    return np.stack([generator.GetCountFingerprintAsNumPy(Chem.MolFromSmiles(text)) for text in smiles])


def part(data, client, split, number=0):
    subset = data.client_data(client, split)
    smiles = [data.dataset.smiles[index] for index in subset.indices]
    target = data.dataset.targets[subset.indices, number]
    present = (~target.isnan()).numpy()
    return counts(smiles)[present], target.numpy()[present].astype(np.float64)


def test_a_regression_is_scikit_learns(tmp_path):
    metrics, data = run(tmp_path, lambda values: {"y": values})
    for client in range(2):
        forest = RandomForestRegressor(n_estimators=20, random_state=derive_seed(4, "forest", client, 0) % 2**32)
        forest.fit(*part(data, client, "train"))
        x, y = part(data, client, "test")
        for name, expected in {
            "mae": mean_absolute_error(y, forest.predict(x)),
            "r2": r2_score(y, forest.predict(x)),
        }.items():
            assert metrics[f"test/forest/{name}"].clients[client] == pytest.approx(expected, rel=1e-5)
    assert not metrics["test/forest/rmse"].higher_is_better
    assert metrics["test/forest/r2"].higher_is_better


def test_bounds_are_no_values_of_the_forests(tmp_path):
    def columns(values):
        return {"y": [f">{100 + value}" if place % 3 == 0 else value for place, value in enumerate(values)]}

    metrics, data = run(tmp_path, columns, censored=True)
    data.dataset.targets[data.dataset.bounds != 0] = torch.nan  # which are missing in what scikit-learn gets
    for client in range(2):
        forest = RandomForestRegressor(n_estimators=20, random_state=derive_seed(4, "forest", client, 0) % 2**32)
        forest.fit(*part(data, client, "train"))
        x, y = part(data, client, "test")
        expected = mean_absolute_error(y, forest.predict(x))
        assert metrics["test/forest/mae"].clients[client] == pytest.approx(expected, rel=1e-5)


def test_label_noise_is_the_forests_too(tmp_path):
    noise = LabelNoise(std=2.0, probability=1.0, clients=[1], splits=("train", "test"))
    metrics, data = run(tmp_path, lambda values: {"y": values}, callbacks=[noise])

    def noisy(client, split):
        x, y = part(data, client, split)
        if client in noise.clients:
            draws = generator(4, "label noise", client, split)
            y = perturb_targets(torch.tensor(y)[:, None].float(), 2.0, 1.0, draws)[:, 0].double().numpy()
        return x, y

    for client in range(2):
        forest = RandomForestRegressor(n_estimators=20, random_state=derive_seed(4, "forest", client, 0) % 2**32)
        forest.fit(*noisy(client, "train"))
        x, y = noisy(client, "test")
        expected = mean_absolute_error(y, forest.predict(x))
        assert metrics["test/forest/mae"].clients[client] == pytest.approx(expected, rel=1e-5)


def test_a_classification_with_gaps_is_scikit_learns(tmp_path):
    def columns(values):
        labels = (values > np.median(values)).astype(float)
        gaps = np.where(np.arange(len(values)) % 5 == 0, np.nan, (values > np.quantile(values, 0.7)).astype(float))
        return {"a": labels, "b": gaps, "never": np.where(np.arange(len(values)) % 2, 0.0, np.nan)}

    metrics, data = run(tmp_path, columns)
    for client in range(2):
        areas, precisions = [], []
        for number in range(2):
            forest = RandomForestClassifier(
                n_estimators=20, random_state=derive_seed(4, "forest", client, number) % 2**32
            )
            forest.fit(*part(data, client, "train", number))
            x, y = part(data, client, "test", number)
            areas.append(roc_auc_score(y, forest.predict_proba(x)[:, 1]))
            precisions.append(average_precision_score(y, forest.predict_proba(x)[:, 1]))
        assert metrics["test/forest/auroc"].clients[client] == pytest.approx(np.mean(areas), rel=1e-5)
        assert metrics["test/forest/average_precision"].clients[client] == pytest.approx(np.mean(precisions), rel=1e-5)


def test_the_models_fewest_labels_are_the_forests_too(tmp_path):
    def columns(values):
        return {name: (values > np.quantile(values, share)).astype(float) for name, share in (("a", 0.5), ("b", 0.8))}

    metrics, data = run(tmp_path, columns, module=MoleculeModel(hidden_dim=4, num_layers=1, min_positives=8))
    for client in range(2):
        forest = RandomForestClassifier(n_estimators=20, random_state=derive_seed(4, "forest", client, 0) % 2**32)
        forest.fit(*part(data, client, "train"))
        x, y = part(data, client, "test")
        assert 0 < part(data, client, "test", 1)[1].sum() < 8 <= y.sum()
        expected = roc_auc_score(y, forest.predict_proba(x)[:, 1])
        assert metrics["test/forest/auroc"].clients[client] == pytest.approx(expected, rel=1e-5)


def test_a_module_without_hyperparameters_has_the_forests_of_what_it_logs(tmp_path):
    class Constant(LightningModule):
        def __init__(self):
            super().__init__()
            self.value = torch.nn.Parameter(torch.zeros(1))

        def training_step(self, batch):
            return (self.value - batch.y).abs().mean()

        def test_step(self, batch):
            self.log("test/mae", (self.value - batch.y).abs().mean())

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    metrics, _ = run(tmp_path, lambda values: {"y": values}, module=Constant())
    assert set(metrics) == {"test/mae", "test/forest/mae"}


@pytest.mark.processes
@pytest.mark.slow
def test_two_processes_find_the_same(start_warm):
    """Three clients with twelve molecules each."""
    rows = [f"{'C' * n}{end},{n * 0.37 % 2},{end}" for n in range(1, 13) for end in "ONF"]
    Path("run.csv").write_text("\n".join(["smiles,y,lab", *rows]) + "\n")
    forest = {"class_path": "ForestReference", "init_args": {"num_trees": 5}}
    quick = {"max_rounds": 1, "local_steps": 1, "accelerator": "cpu", "enable_progress_bar": False}
    columns = {"path": "run.csv", "target_columns": ["y"], "group_column": "lab", "split": [0.5, 0.25, 0.25]}
    recipe = {
        "trainer": {**quick, "callbacks": [forest]},
        "model": {"class_path": "MoleculeModel", "init_args": {"hidden_dim": 4, "num_layers": 1}},
        "data": {"class_path": "MoleculeCSV", "init_args": columns},
    }
    found = []
    for devices in (1, 2):
        recipe["trainer"] |= {"devices": devices, "default_root_dir": f"on_{devices}"}
        Path("run.yaml").write_text(yaml.safe_dump(recipe))
        succeed(start_warm("-m", "lightning_fl", "fit", "--config", "run.yaml"))
        summary = json.loads(Path(f"on_{devices}/version_0/summary.json").read_text())
        assert summary["num_processes"] == devices
        found.append(summary["metrics"]["test"]["forest/rmse"])
    assert found[0] == found[1]


def test_what_are_no_molecules_is_said():
    with pytest.raises(ConfigurationError, match="ForestReference .*MixedClients"):
        fit_tiny(ForestReference())


def test_it_changes_nothing(tmp_path):
    assert ForestReference.only_shows
