"""Every shipped recipe is parsed strictly, says what it should, and runs a small round on data of its card's shape."""

import json
import math
import os
import sys
from pathlib import Path

import pandas as pd
import pytest
import yaml

from lightning_fl.cli import main, make_parser
from lightning_fl.cli.run import instantiate
from lightning_fl.data.cards import load_card
from lightning_fl.shipped import available_recipes, find_recipe, recipe_headline

RECIPES = available_recipes()
PAPER = {  # DRFLM, Table 1, GCN: average and worst-client RMSE
    "fedavg_esol": ("0.976", "1.232"),
    "drfa_esol": ("1.204", "1.357"),
    "drflm_esol": ("1.086", "1.121"),
    "fedavg_freesolv": ("3.011", "3.863"),
    "drfa_freesolv": ("3.465", "3.928"),
    "drflm_freesolv": ("3.123", "3.532"),
    "fedavg_chembl_ic50": ("0.932", "1.104"),
    "drfa_chembl_ic50": ("1.265", "1.542"),
    "drflm_chembl_ic50": ("1.126", "1.065"),
}


@pytest.fixture(scope="module")
def data_root(tmp_path_factory):
    """A small file in the columns of every card that a recipe names; molecules of the stand-in, two-decimal labels."""
    from lightning_fl.data.standin import esol_standin

    folder = tmp_path_factory.mktemp("data")
    table = esol_standin(target_name="label", target_unit="log10(mol/L)")
    chosen = range(0, len(table.smiles), len(table.smiles) // 60)
    names = {yaml.safe_load(path.read_text())["data"]["init_args"]["name"] for path in RECIPES.values()}
    for card in map(load_card, sorted(names)):
        columns = {card.smiles: [table.smiles[index] for index in chosen]}
        columns |= {target.name: [float(table.targets[index, 0]) for index in chosen] for target in card.targets}
        columns |= {group: [f"{group}_{number % 7}" for number in range(len(chosen))] for group in card.groups}
        pd.DataFrame(columns).to_csv(folder / card.file.name, index=False)
    return folder


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch, tmp_path, data_root):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("LIGHTNING_FL_OFFLINE", "1")
    monkeypatch.setenv("LIGHTNING_FL_CACHE", str(data_root / "cache"))
    monkeypatch.setenv("LIGHTNING_FL_DATA", str(data_root))
    for name in ("PL_GLOBAL_SEED", "PL_SEED_WORKERS", "OMP_NUM_THREADS"):
        monkeypatch.setenv(name, os.environ.get(name, "0" if name.startswith("PL_") else "1"))


@pytest.fixture(scope="module")
def parser():
    return make_parser("fit")


def test_the_recipes_are_found_from_any_folder():
    folder = Path(__file__).parents[1] / "recipes"
    assert sorted(path.relative_to(folder).with_suffix("").as_posix() for path in folder.rglob("*.yaml")) == list(
        RECIPES
    )
    assert len(RECIPES) >= 12
    assert set(PAPER) < set(RECIPES)
    for name, path in RECIPES.items():
        assert find_recipe(name) == path
        assert find_recipe(str(path)) == path


@pytest.mark.parametrize("name", RECIPES)
def test_it_reads_as_an_experiment(name):
    text = RECIPES[name].read_text()
    head = [line for line in text.splitlines() if line.startswith("#")]
    assert text.startswith("\n".join(head))  # one block, at the top
    assert recipe_headline(RECIPES[name]) == head[0].removeprefix("# ")
    assert f"# Run:      lightning-fl fit --config {name}" in head
    assert sum(line.startswith("# Expected: ") for line in head) == 1
    assert sum(line.startswith("# Data:     ") for line in head) == 1
    words = " ".join(line.removeprefix("#").strip() for line in head)
    if name in PAPER:
        average, worst = PAPER[name]
        assert f"test RMSE {average} on average over the clients, {worst} for the worst client" in words
    assert list(yaml.safe_load(text)) == ["seed_everything", "trainer", "model", "data"]
    assert max(map(len, text.splitlines())) <= 120


@pytest.mark.parametrize("name", RECIPES)
def test_it_is_what_its_name_says(name, parser):
    config = parser.parse_args(["--config", name])
    made = instantiate(parser, config)
    algorithm, _, data = name.partition("_")
    callbacks = {type(callback).__name__: callback for callback in made.trainer.callbacks}
    assert type(made.trainer.strategy).__name__ == "FedAvg"
    assert ("DROClientSampling" in callbacks) == (algorithm in ("drfa", "drflm"))
    assert ("LocalMixup" in callbacks) == (algorithm == "drflm")
    assert callbacks["ModelCheckpoint"].monitor == "val/rmse"
    assert (made.trainer.max_rounds, made.trainer.local_steps) == (100, 5)
    assert (made.model.hparams.optimizer, made.model.hparams.learning_rate) == ("sgd", 0.01)
    assert (made.data.batch_size, tuple(made.data.split), made.data.num_clients) == (32, (0.8, 0.1, 0.1), 3)
    assert made.data.card.name == data
    assert type(made.data.partitioner).__name__ == ("GroupBy" if data == "chembl_ic50" else "Scaffold")


@pytest.mark.parametrize("name", RECIPES)
def test_its_resolved_form_is_the_same_recipe(name, parser, tmp_path):
    config = parser.parse_args(["--config", name])
    (tmp_path / "resolved.yaml").write_text(parser.dump(config, skip_unset=False))
    again = parser.parse_args(["--config", "resolved.yaml"])
    first, second = config.as_dict(), again.as_dict()
    assert first.pop("config") != second.pop("config")
    assert first == second


@pytest.mark.filterwarnings("ignore:.*is not the file that card:UserWarning")
@pytest.mark.parametrize("name", RECIPES)
def test_it_runs_a_round(name, capsys):
    words = ["fit", "--config", name, "--trainer.max_rounds", "1", "--trainer.local_steps", "1"]
    words += ["--model.hidden_dim", "4", "--trainer.devices", "1", "--data.source", "real"]
    assert main(words) == 0, capsys.readouterr().err
    folder = Path("runs") / name / "version_0"
    record = json.loads((folder / "summary.json").read_text())
    assert record["data_source"] == "measured"
    assert record["rounds"] == 1
    clients = record["metrics"]["test"]["rmse"]["clients"]
    assert len(clients) == 3
    assert all(math.isfinite(value) and value > 0 for value in clients.values())
    saved = yaml.safe_load((folder / "config.yaml").read_text())
    assert saved["trainer"]["max_rounds"] == 1
    assert (folder / "figures" / "parity_test.png").is_file()
    assert (folder / "figures" / "sampling_weights.png").is_file() == (not name.startswith("fedavg"))
