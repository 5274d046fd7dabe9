"""What Snapshots keeps is the shared models at the end of the rounds that it names."""

from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from lightning_fl import predict
from lightning_fl.cli import main
from lightning_fl.core.errors import ConfigurationError
from lightning_fl.models import MoleculeModel

NEW = ["CCO", "CCCCN", "CCCCCCF"]


def fit(name, *words, rounds=5, callbacks=({"class_path": "Snapshots", "init_args": {"num": 2, "every_n_rounds": 2}},)):
    rows = [f"{'C' * n}{end},{0.3 * n},{end}" for n in range(1, 9) for end in "ONF"]
    Path("numbers.csv").write_text("\n".join(["smiles,y,lab", *rows]) + "\n")
    recipe = {
        "seed_everything": 3,
        "trainer": {
            "max_rounds": rounds, "local_steps": 2, "check_val_every_n_rounds": rounds, "logger": False,
            "accelerator": "cpu", "devices": 1, "enable_progress_bar": False, "default_root_dir": f"runs/{name}",
            "callbacks": [{"class_path": "ModelCheckpoint", "init_args": {"every_n_rounds": 1}}, *callbacks],
        },
        "model": {"class_path": "MoleculeModel", "init_args": {"hidden_dim": 8, "num_layers": 2, "learning_rate": 0.1}},
        "data": {
            "class_path": "MoleculeCSV",
            "init_args": {
                "path": "numbers.csv", "target_columns": ["y"], "group_column": "lab", "split": [0.5, 0.25, 0.25],
            },
        },
    }  # fmt: skip
    Path(f"{name}.yaml").write_text(yaml.safe_dump(recipe))
    assert main(["fit", "--config", f"{name}.yaml", *words]) == 0
    return sorted(Path(f"runs/{name}").glob("version_*"))[-1]


def weights(path):
    return torch.load(path, weights_only=True)["state_dict"]


def same(first, second):
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.slow
def test_they_are_the_models_of_these_rounds_also_where_a_run_goes_on(capsys):
    run = fit("whole")
    kept = {path.parent.name: weights(path) for path in run.glob("models/snapshots/*/shared_0.ckpt")}
    assert sorted(kept) == ["round_2", "round_4"]
    for rounds in (2, 4):  # a run that ends there has that model
        assert same(kept[f"round_{rounds}"], weights(fit(f"of{rounds}", rounds=rounds) / "models" / "shared_0.ckpt"))
    cut = fit("cut", rounds=3)
    gone_on = fit("cut", "--ckpt_path", str(cut / "checkpoints" / "last.ckpt"))
    found = {path.parent.name: weights(path) for path in gone_on.glob("models/snapshots/*/shared_0.ckpt")}
    assert found.keys() == kept.keys()
    assert all(same(found[name], kept[name]) for name in kept)

    table = predict(run, NEW, model="snapshots", spread=True)
    single = []
    for name in ("round_2", "round_4"):
        path = run / "models" / "snapshots" / name / "shared_0.ckpt"
        assert MoleculeModel.load_from_checkpoint(path).num_targets == 1
        single.append(predict(run, NEW, model=f"shared_0_{name}")["y"].to_numpy())
        assert table[f"y@shared_0_{name}"].to_numpy() == pytest.approx(single[-1])
    assert table["y"].to_numpy() == pytest.approx(np.mean(single, axis=0), rel=1e-5)
    assert table["y_std"].to_numpy() == pytest.approx(np.abs(single[0] - single[1]) / 2, rel=1e-3)
    with pytest.raises(ConfigurationError, match=r"--model shared_0_round_3: .* no such model \(did you mean"):
        predict(run, NEW, model="shared_0_round_3")


@pytest.mark.slow
def test_what_cannot_be_asked_for():
    several = fit(
        "several",
        callbacks=[
            {"class_path": "IFCA", "init_args": {"num_clusters": 2}},
            {"class_path": "Snapshots"},
            {"class_path": "Calibration"},
        ],
    )
    with pytest.raises(ConfigurationError, match="snapshots of 2 shared models.* shared_0_round_1"):
        predict(several, NEW, model="snapshots")
    assert len(list(several.glob("models/snapshots/round_*/shared_1.ckpt"))) == 5
    with pytest.raises(ConfigurationError, match="shared_1_round_2"):
        predict(several, NEW, model="shared_1_round_2", interval=0.5)
    with pytest.raises(ConfigurationError, match="no snapshots.* Snapshots"):
        predict(fit("none", rounds=1, callbacks=()), NEW, model="snapshots")
