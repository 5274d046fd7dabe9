"""Calibration: what it writes, against plain computations on the exported models."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from processes import succeed
from tiny import TinyClients, TinyModule
from torch.utils.data import TensorDataset

from lightning_fl import ConfigurationError, FederatedTrainer
from lightning_fl.callbacks import Calibration, LocalTraining
from lightning_fl.core.errors import CheckpointError
from lightning_fl.functional import apply_platt, conformal_scores, pooled_quantile, score_counts
from lightning_fl.runtime.calibration_file import CALIBRATION_FILE, read_calibration


class _Probable(TinyModule):
    """Probabilities of a label."""

    def predict_step(self, batch, batch_idx):
        return self(batch[0]).sigmoid()


class _Labels(TinyClients):
    """Labels: whether the target is above 0; of the last client one in validation, the others missing."""

    def client_data(self, client, split):
        x, y = super().client_data(client, split).tensors
        label = (y > 0).float()
        if client == 2 and split == "val":
            label[1:] = math.nan
        return TensorDataset(x, label)


class _NoValidation(TinyClients):
    def client_data(self, client, split):
        return None if split == "val" else super().client_data(client, split)


def _fit(module, data, *callbacks, rounds=3, root=None):
    trainer = FederatedTrainer(
        max_rounds=rounds, local_steps=2, callbacks=list(callbacks), logger=False, enable_progress_bar=False,
        accelerator="cpu", devices=1, default_root_dir=root,
    )  # fmt: skip
    trainer.fit(module, data)
    return trainer, Path(trainer.log_dir)


def _exported(folder, name, kind=TinyModule):
    return kind.load_from_checkpoint(folder / "models" / f"{name}.ckpt", weights_only=True).eval()


def test_errors_of_the_exported_models_are_counted() -> None:
    data = TinyClients()
    _, folder = _fit(TinyModule(), data, LocalTraining(), Calibration())
    found = read_calibration(folder)
    assert found is not None
    names = data.client_names()
    assert list(found) == ["shared_0", "shared_1", "shared_2", *names]
    for client, name in enumerate(names):
        x, y = data.client_data(client, "val").tensors
        with torch.no_grad():
            scores = conformal_scores(_exported(folder, f"shared_{client}")(x)[:, 0], y[:, 0])
        (target,) = found[name]
        assert (target.kind, target.num_samples, target.num_clients) == ("regression", 6, 1)
        assert target.scores == score_counts(scores)
        assert found[f"shared_{client}"] == found[name]


def test_a_shared_model_is_measured_on_the_data_of_all_who_use_it() -> None:
    data = TinyClients()
    _, folder = _fit(TinyModule(), data, Calibration())
    found = read_calibration(folder)
    assert found is not None
    model, counts = _exported(folder, "shared_0"), []
    for client in range(3):
        x, y = data.client_data(client, "val").tensors
        with torch.no_grad():
            counts.append(score_counts(conformal_scores(model(x)[:, 0], y[:, 0])))
    (target,) = found["shared_0"]
    assert (target.num_samples, target.num_clients) == (18, 3)
    assert target.scores == {k: sum(c.get(k, 0) for c in counts) for k in sorted({k for c in counts for k in c})}
    assert pooled_quantile(counts, 0.8) < math.inf


def test_labels_get_platts_and_isotonic_points() -> None:
    _, folder = _fit(_Probable(), _Labels(), Calibration())
    found = read_calibration(folder)
    assert found is not None
    (shared,) = found["shared_0"]
    assert (shared.kind, shared.num_samples, shared.num_clients) == ("classification", 13, 3)
    assert shared.platt is not None
    assert shared.isotonic is not None
    assert shared.isotonic[1] == sorted(shared.isotonic[1])
    one = list(found.values())[-1][0]
    assert one.num_samples == 1
    assert one.platt is not None
    probability = apply_platt(torch.tensor([0.2, 0.8]), torch.tensor(one.platt))
    assert min(abs(probability[0] - 1 / 3), abs(probability[0] - 2 / 3)) < 0.34  # between Platt's targets of one label


def test_it_changes_no_model() -> None:
    with_it, _ = _fit(TinyModule(dropout=0.3), TinyClients(), Calibration())
    without, _ = _fit(TinyModule(dropout=0.3), TinyClients())
    assert all(one.equal(other) for one, other in zip(with_it.models, without.models, strict=True))


def test_refusals() -> None:
    with pytest.raises(ConfigurationError, match="Calibration .*data.split"):
        _fit(TinyModule(), _NoValidation(), Calibration())


def test_outputs_that_are_no_predictions_are_said() -> None:
    class Words(TinyModule):
        def predict_step(self, batch, batch_idx):
            return "words"

    with pytest.warns(UserWarning, match=r"Calibration writes nothing: predict_step returned a str"):
        _, folder = _fit(Words(), TinyClients(), Calibration())
    assert read_calibration(folder) is None


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The file of a run."""
    _, folder = _fit(TinyModule(), TinyClients(), Calibration(), rounds=1, root=tmp_path_factory.mktemp("run"))
    text = (folder / CALIBRATION_FILE).read_text()
    assert json.loads(text)["split"] == "val"
    return text


@pytest.mark.parametrize(
    "harm",
    [
        lambda text: text[:40],
        lambda text: "[]",
        lambda text: text.replace('"version": 1', '"version": 9'),
        lambda text: text.replace('"num_samples": 18', '"num_samples": 17'),
        lambda text: text.replace('"kind": "regression"', '"kind": "guess"'),
    ],
)
def test_a_damaged_file_is_refused(harm, written: str, tmp_path: Path) -> None:
    (tmp_path / CALIBRATION_FILE).write_text(harm(written))
    with pytest.raises(CheckpointError, match=r"calibration.json is damaged .*copy it again, or train again"):
        read_calibration(tmp_path)


@pytest.mark.processes
def test_two_processes_write_the_same_file(start_warm: Any) -> None:
    rows = [f"{'C' * n}{end},{int(n % 3 == 0)},{end}" for n in range(1, 13) for end in "ONF"]
    Path("run.csv").write_text("\n".join(["smiles,label,lab", *rows]) + "\n")
    recipe = {
        "trainer": {
            "max_rounds": 2, "local_steps": 2, "logger": False, "accelerator": "cpu", "enable_progress_bar": False,
            "callbacks": [{"class_path": "Calibration"}],
        },
        "model": {"class_path": "MoleculeModel", "init_args": {"hidden_dim": 8, "num_layers": 2}},
        "data": {
            "class_path": "MoleculeCSV",
            "init_args": {
                "path": "run.csv", "target_columns": ["label"], "group_column": "lab", "split": [0.5, 0.25, 0.25],
            },
        },
    }  # fmt: skip
    written = []
    for devices in (1, 2):
        recipe["trainer"] |= {"devices": devices, "default_root_dir": f"on_{devices}"}
        Path("run.yaml").write_text(yaml.safe_dump(recipe))
        succeed(start_warm("-m", "lightning_fl", "fit", "--config", "run.yaml"))
        folder = Path(f"on_{devices}/version_0")
        assert json.loads((folder / "summary.json").read_text())["num_processes"] == devices
        written.append((folder / CALIBRATION_FILE).read_text())
    assert '"classification"' in written[0]
    assert written[0] == written[1]
