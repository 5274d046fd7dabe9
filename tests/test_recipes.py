"""Every shipped recipe is parsed strictly, says what it should, and runs a small round on data of its card's shape."""

import json
import math
import os
import re
import string
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml
from on_the_device import assert_same_on_the_device, results_in

from lightning_fl.callbacks import DiscriminatorSettings, FedCollab
from lightning_fl.cli import main
from lightning_fl.core.errors import ConfigurationError
from lightning_fl.data.cards.lookup import load_card
from lightning_fl.recipe.instantiate import instantiate
from lightning_fl.recipe.parser import parse
from lightning_fl.recipe.shipped import available_recipes, find_recipe, recipe_headline

RECIPES = available_recipes()
DRFLM = [
    name
    for name in RECIPES
    if name.endswith(("_esol", "_freesolv", "_lipophilicity", "_chembl_ic50")) and not name.startswith("shapley")
]
#: drflm_esol with the paper's settings, and with clients of unequal size.
DRFLM += ["drflm_esol_paper", "drflm_esol_unequal"]
#: A model that is trained, in the place of the paper's settings.
TRAINED = ["drflm_esol", "drflm_esol_unequal"]
#: Of molecules, each on a card of its own: with the classes of 0 and 1, or by measured values.
CLASSES = [f"fedavg_{name}" for name in ("bace", "bbbp", "hiv", "sider", "tox21", "toxcast")]
VALUES = [f"fedavg_{name}" for name in ("biogen_adme", "chembl_by_year", "moonshot", "tdc_caco2")]
LABORATORIES = [name for name in RECIPES if name.endswith("_aqsoldb")]
PRIVATE = ["private_heads_chembl"]
OF_MOLECULES = [*CLASSES, *VALUES, *LABORATORIES, *PRIVATE]
COALITIONS = [name for name in RECIPES if name not in (*DRFLM, *OF_MOLECULES)]
#: What each algorithm of these recipes is made of, besides pictures.
PARTS = {
    "fedcollab": {"FedCollab", "LocalReference"},
    "hcct": {"HCCT", "LocalReference"},
    "fedavg": {"LocalReference"},
    **{name: {"LocalReference"} for name in ("fedprox", "fednova", "scaffold", "fedavgm", "ditto", "apfl")},
    **{name: {"LocalReference"} for name in ("perfedavg", "pfedme")},
    **{name: {"PersonalLayers", "LocalReference"} for name in ("fedrep", "fedbn")},
    **{name: {"LocalReference"} for name in ("fedadagrad", "fedadam", "fedyogi", "qfedavg", "maxfl", "fedfa")},
    "pfedgraph": {"PFedGraph", "LocalReference"},
    "flsc": {"FLSC", "LocalReference"},
    "fedsoft": {"FedSoft", "LocalReference"},
    "finetune": {"FineTuning", "LocalReference"},
    "knnper": {"KNNPer", "LocalReference"},
    "afl": {"DROClientSampling", "LocalReference"},
    "local": {"LocalTraining"},
    "pooled": {"PooledTraining"},
    "shapley": {"LabelNoise", "ShapleyRewards"},
    "drflm": {"DROClientSampling", "LocalMixup"},
    "dpfl": {"CollaborationGraph", "BestClientModels", "LocalReference"},
    "pifl": {"TierBidding", "ShapleyRewards"},
}
#: Run on a CUDA device of software as well: digits with these algorithms, and other models and data.
ON_THE_DEVICE = {
    *(f"{name}_digits" for name in ("hcct", "dpfl", "fedcollab", "flsc", "pfedgraph", "pifl", "shapley")),
    *(f"{name}_digits" for name in ("ditto", "apfl", "perfedavg", "pfedme", "fedrep", "fedsoft", "knnper")),
    *(f"{name}_digits" for name in ("scaffold", "fedprox", "fednova", "fedadam", "qfedavg", "afl", "finetune")),
    *("fedbn_digit_domains", "fedavg_cifar10", "fedavg_brca"),
}
#: As those of graphs, networks that on a CPU take a faster path of our own, which adds in another order.
ANOTHER_PATH = {"fedbn_digit_domains", "fedavg_cifar10"}
#: Four clients of few images, one of each type.
_DIGITS = ["--data.partitioner.clients_per_type", "1", "--data.train_shares", "[0.2, 0.2, 0.1, 0.1]"]
#: Fewer images and clients, by the name of the recipe or of what follows the algorithm's.
SMALLER = {
    "digits": _DIGITS,
    "shapley_digits": ["--trainer.local_steps", "2", "--trainer.local_epochs", "null"],
    "pifl_digits": ["--data.partitioner.num_clients", "10", "--data.partitioner.samples_per_client", "40"],
    "label_shift": ["--data.train_shares", "null"],
    "feature_shift": ["--data.partitioner.train", str([12] * 10 + [6] * 10)],
    "concept_shift": ["--data.partitioner.train", str([12] * 10 + [6] * 10)],
    "cifar10": ["--data.partitioner.shard_size", "4"],
    "digit_domains": ["--data.samples_per_client", "30"],
    "chembl_targets": ["--model.hidden_dim", "4"],
    "cifar10_dir": ["--data.partitioner.num_clients", "5"],
    "cifar10_patho": ["--data.partitioner.num_clients", "10"],
    "femnist": ["--data.partitioner.num_groups", "6"],
    "cinic10": ["--data.partitioner.num_clients", "6"],
    "heart": ["--model.in_shape", "[14]"],  # three values in each of its two columns of categories
    "adult": ["--model.in_shape", "[22]"],  # two values in each of its eight columns of categories
    "pifl_cifar10": ["--data.partitioner.num_clients", "10"],
    "pifl_fmnist": ["--data.partitioner.num_clients", "10"],
    "pifl_emnist": ["--data.partitioner.num_clients", "4", "--data.partitioner.samples_per_client", "50"],
    "pifl_chembl_families": [
        *("--data.partitioner.num_clients", "4", "--model.hidden_dim", "4"),
        *("--data.partitioner.values_a", "[target_chembl_id_0, target_chembl_id_1]"),
        *("--data.partitioner.values_b", "[target_chembl_id_2, target_chembl_id_3]"),
    ],
}
#: What a smaller run has in the place of the recipe's words: little work, here and in what comes before the rounds ...
LESS_WORK = {
    r"\b(init_epochs|local_epochs|warm_up_rounds): \d+": r"\1: 1",
    r"\blocal_steps: (?!1\b)\d+": "local_steps: 2",
    # FedCollab's
    r"(\n +)num_restarts: \d+(?:\n +discriminator: .*)?": r"\1num_restarts: 1\1discriminator: {max_rounds: 20}",
}
#: ... and fewer clients, of whom the same share is flipped or trains a model.
FEWER_CLIENTS = {
    "fedsoft_digits": {"clients_per_model: 6": "clients_per_model: 2"},
    "dpfl_label_flipping": {
        r"\[60, 61[^]]*\]": "[6, 7, 8, 9]",
        "num_clients: 100": "num_clients: 10",
        "clients_per_value: 20": "clients_per_value: 2",
    },
}
PAPER = {  # DRFLM, Table 1, GCN: average and worst-client RMSE
    "fedavg_esol": ("0.976", "1.232"),
    "drfa_esol": ("1.204", "1.357"),
    "drflm_esol": ("1.086", "1.121"),
    "drflm_esol_paper": ("1.086", "1.121"),
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
    from lightning_fl.data.molecules.standin import make_standin

    folder = tmp_path_factory.mktemp("data")
    table = make_standin("esol", target_names=["label"], target_units=["log10(mol/L)"])
    chosen = range(0, len(table.smiles), len(table.smiles) // 60)
    names = {yaml.safe_load(RECIPES[name].read_text())["data"]["init_args"]["name"] for name in DRFLM}
    draws = np.random.default_rng(0)
    for name, (num_classes, *shape) in {
        "fashionmnist": (10, 28, 28),
        "mnist": (10, 28, 28),
        "usps": (10, 16, 16),
        "mnistm_subset": (10, 32, 32, 3),
        "cifar10": (10, 32, 32, 3),
        "emnist_byclass": (62, 28, 28),
    }.items():
        parts = {}
        for part, count in (("train", 600), ("test", 200)):
            parts[f"{part}_images"] = draws.integers(0, 256, (count, *shape), dtype=np.uint8)
            parts[f"{part}_labels"] = np.resize(np.arange(num_classes, dtype=np.uint8), (count, 1))
        np.savez(folder / f"{name}.npz", **parts)
    _write_leaf_and_class_folders(folder, draws)
    _write_adult(folder)
    _write_hospitals(folder)
    parts = {"domain_names": np.array(["art_painting", "cartoon", "photo", "sketch"])}
    for part, count in (("train", 56), ("test", 28)):
        parts[f"{part}_images"] = draws.integers(0, 256, (count, 64, 64, 3), dtype=np.uint8)
        parts[f"{part}_labels"] = np.resize(np.arange(7, dtype=np.uint8), (count, 1))
        parts[f"{part}_domains"] = np.resize(np.arange(4, dtype=np.uint8), (count, 1))
    np.savez(folder / "pacs64_subset.npz", **parts)
    for card in map(load_card, sorted(names)):
        columns = {card.smiles: [table.smiles[index] for index in chosen]}
        columns |= {target.name: [float(table.targets[index, 0]) for index in chosen] for target in card.targets}
        columns |= {group: [f"{group}_{number % 7}" for number in range(len(chosen))] for group in card.groups}
        pd.DataFrame(columns).to_csv(folder / card.file.name, index=False)
    for name in OF_MOLECULES:
        data = yaml.safe_load(RECIPES[name].read_text())["data"]["init_args"]
        card = load_card(data["name"])
        if not (folder / card.file.name).exists():
            targets = data.get("target_columns") or [target.name for target in card.targets]
            _write_molecules(
                card, table.smiles[::3], targets or ["task_0", "task_1", "task_2"], folder
            )  # more: in each client's tenth there are two classes
    return folder


def _write_molecules(card, smiles, targets, folder):
    """A file in a card's columns: two classes with gaps or values, of them some bounds; a published split."""
    draws, count = np.random.default_rng(1), len(smiles)
    columns = {card.smiles: smiles}
    for name in targets:
        values = [f"{value:.3f}" for value in draws.uniform(1, 9, count)]
        if card.task == "classification":
            values = [str(number % 2) for number in draws.permutation(count)]
        if card.censored:
            values = [f"> {value}" if number % 3 == 0 else value for number, value in enumerate(values)]
        several = len(targets) > 1
        columns[name] = ["" if several and number % 5 == 0 else value for number, value in enumerate(values)]
    columns |= {group: [f"{group}_{number % 7}" for number in range(count)] for group in card.groups}
    if card.split_column is not None:
        words = ("train_val", "test") if card.select_column else ("train", "valid", "test")
        columns[card.split_column] = [words[max(0, number % 6 - 6 + len(words))] for number in range(count)]
    if card.select_column is not None:
        columns[card.select_column] = ["caco2_wang"] * count
    pd.DataFrame(columns).to_csv(folder / card.file.name, index=False)


def _write_leaf_and_class_folders(folder, draws):
    """FEMNIST and CINIC-10 as they are published."""
    from PIL import Image

    for part, count in (("train", 20), ("test", 4)):
        (folder / "femnist" / part).mkdir(parents=True)
        users = [f"f{number:04}" for number in range(8)]
        data = {
            user: {
                "x": (draws.integers(0, 256, (count, 784)) / 255).tolist(),
                "y": draws.integers(0, 62, count).tolist(),
            }
            for user in users
        }
        content = {"users": users, "num_samples": [count] * 8, "user_data": data}
        (folder / "femnist" / part / "all_data_0.json").write_text(json.dumps(content))
    for part in ("train", "valid", "test"):
        for name in load_card("cinic10").classes:
            (folder / "CINIC-10" / part / name).mkdir(parents=True)
            for index in range(20):
                image = Image.fromarray(draws.integers(0, 256, (32, 32, 3), dtype=np.uint8))
                image.save(folder / "CINIC-10" / part / name / f"{index}.png")


def _write_adult(folder):
    """UCI Adult as it is published: no header, and points after the classes of the test rows."""
    card = load_card("adult")
    for part, end in (("data", ""), ("test", ".")):
        lines = ["|1x3 Cross validator"] if part == "test" else []
        for number in range(40):
            row = {name: str(number % 7) for name in card.columns}
            row |= {name: f"{name}-{number % 2}" for name in card.categorical}
            row |= {
                "education": ("Doctorate", "Masters")[number % 2],
                "income": ("<=50K", ">50K")[number // 2 % 2] + end,
            }
            lines.append(", ".join(row[name] for name in card.columns))
        (folder / f"adult.{part}").write_text("\n".join(lines) + "\n")


def _write_hospitals(folder):
    """Heart disease by site, and patients with times and events by region and fold."""
    for name, sites, aims in (
        ("heart_disease", ("cleveland", "hungarian", "switzerland", "va_long_beach"), {"num": (0, 1, 0, 2, 3)}),
        ("tcga_brca", range(6), {"E": (1, 0, 1, 1, 0), "T": (30, 400, 1000, 70)}),
    ):
        card = load_card(name)
        rows = []
        for number in range(120):
            row = {column: number * (place + 3) % 7 for place, column in enumerate(card.columns)}
            row |= dict.fromkeys(card.categorical, number % 3)
            row |= {column: values[number % len(values)] for column, values in aims.items()}
            group = sites[number % len(sites)]
            row |= {"site": group} if name == "heart_disease" else {"center": group}
            row |= {"fold": ("train", "train", "test")[number // 6 % 3]} if "fold" in card.columns else {}
            rows.append({column: row[column] for column in card.columns})
        pd.DataFrame(rows).to_csv(folder / card.files[0].name, index=False)


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch, tmp_path, data_root):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LIGHTNING_FL_OFFLINE", "1")
    monkeypatch.setenv("LIGHTNING_FL_CACHE", str(data_root / "cache"))
    monkeypatch.setenv("LIGHTNING_FL_DATA", str(data_root))
    for name in ("PL_GLOBAL_SEED", "PL_SEED_WORKERS", "OMP_NUM_THREADS"):
        monkeypatch.setenv(name, os.environ.get(name, "0" if name.startswith("PL_") else "1"))


@pytest.mark.slow
def test_the_recipes_are_found_from_any_folder():
    folder = Path(__file__).parents[1] / "recipes"
    names = sorted(path.relative_to(folder).with_suffix("").as_posix() for path in folder.rglob("*.yaml"))
    assert [name for name in names if not name.startswith("studies/")] == list(RECIPES)
    assert len(DRFLM) == 14
    assert len(COALITIONS) >= 20
    assert set(PAPER) < set(RECIPES)
    for name, path in RECIPES.items():
        assert find_recipe(name) == path
        assert find_recipe(str(path)) == path


@pytest.mark.slow
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


def test_the_discriminators_of_fedcollab_are_set_by_their_key(parser):
    words = ["--config", "fedavg_digits", "--trainer.callbacks+=FedCollab"]
    made = instantiate(parser, parse("fit", parser, [*words, "--trainer.callbacks.discriminator.max_train", "9"]))
    (fedcollab,) = (callback for callback in made.trainer.callbacks if isinstance(callback, FedCollab))
    assert fedcollab.discriminator == DiscriminatorSettings(max_train=9)
    with pytest.raises(ConfigurationError, match=r"discriminator\.max_train=0: "):
        instantiate(parser, parse("fit", parser, [*words, "--trainer.callbacks.discriminator.max_train", "0"]))


def words_of(name):
    """What asks for fewer images and clients."""
    return SMALLER.get(name) or ([] if name.startswith("pifl") else SMALLER.get(name.partition("_")[2], []))


def with_less_work(path):
    """The text of a recipe."""
    text = path.read_text()
    for before, after in LESS_WORK.items():
        text = re.sub(before, after, text)
    for before, after in FEWER_CLIENTS.get(path.stem, {}).items():
        text, count = re.subn(before, after, text)
        assert count == 1
    return text


def smaller(name, capsys, *words, rounds=1, source="measured", metric="rmse"):
    """Run a smaller recipe; its folder, its record and the clients' values of a metric."""
    Path("smaller.yaml").write_text(with_less_work(RECIPES[name]))
    fit = ["fit", "--config", "smaller.yaml", "--trainer.max_rounds", str(rounds), "--trainer.devices", "1"]
    assert main([*fit, *words]) == 0, capsys.readouterr().err
    folder = Path("runs") / name / "version_0"
    record = json.loads((folder / "summary.json").read_text())
    assert (record["data_source"], record["rounds"]) == (source, rounds)
    clients = record["metrics"]["test"][metric]["clients"]
    assert clients
    assert all(math.isfinite(value) and value >= 0 for value in clients.values())
    return folder, record, clients


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*is not the file that card:UserWarning")
@pytest.mark.filterwarnings("ignore:.*is the archive unpacked completely:UserWarning")
@pytest.mark.parametrize("name", COALITIONS)
def test_a_coalition_recipe_runs_a_round(name, capsys, quick_pictures):
    # One to warm up; bids are from the second on; what a device keeps between rounds.
    rounds = 2 if name == "fedcollab_concept_shift" or name.startswith("pifl") or name in ON_THE_DEVICE else 1
    words = [*words_of(name), *(["--trainer.accelerator", "cpu"] if name in ON_THE_DEVICE else [])]
    source = "synthetic" if "synthetic" in name else "measured"
    metric = "rmse" if "chembl" in name or "esol" in name else "c_index" if "brca" in name else "acc"
    folder, record, clients = smaller(name, capsys, *words, rounds=rounds, source=source, metric=metric)
    assert len(clients) == record["num_clients"]
    figures = {path.name for path in (folder / "figures").iterdir()}
    compared = "LocalReference" in PARTS[name.partition("_")[0]]
    assert ("gain_test.png" in figures) == compared
    for figure, algorithms in {
        "distances": ("fedcollab",),
        "merge_tree": ("hcct",),
        "graph": ("dpfl",),
        "contributions": ("shapley", "pifl"),
        "sampling_weights": ("drflm", "afl"),
    }.items():
        assert (f"{figure}.png" in figures) == name.startswith(algorithms), figure
    assert ("contributions" in record) == name.startswith(("shapley", "pifl"))
    assert ({"tiers", "tokens"} <= set(record)) == name.startswith("pifl")
    assert ({"tier_membership.png", "token_balances.png"} <= figures) == name.startswith("pifl")
    if name.startswith("fedcollab"):
        table = pd.read_csv(folder / "distances.csv", index_col=0)
        assert table.shape == (record["num_clients"],) * 2
        assert (abs(table.to_numpy()) <= 1).all()  # 2 BalAcc - 1, below 0 for less than guessing
    if compared:
        assert set(record["gains_over_local_training"]["test"]) >= {metric, "loss"}
    if name in ON_THE_DEVICE:
        asked = ["--trainer.max_rounds", "2", *words_of(name)]
        assert_same_on_the_device(results_in(folder), asked, name in ANOTHER_PATH)


def of_a_coalition(name, made):
    callbacks = [type(callback).__name__ for callback in made.trainer.callbacks]
    known = set().union(*PARTS.values())
    assert known & set(callbacks) == PARTS[name.partition("_")[0]]
    assert "Figures" in callbacks
    if name.endswith("shift"):
        assert (made.trainer.local_epochs, made.data.num_clients) == (1, 20)
    if name.endswith("label_shift"):
        assert (made.trainer.max_rounds, made.model.hparams.learning_rate) == (200, 0.1)


def mixes_two_distributions(name, made):
    mixing = made.data if name == "pifl_synthetic" else made.data.partitioner
    assert mixing.mixture == "10:90"
    assert mixing.num_clients == {"pifl_digits": 20, "pifl_chembl_families": 12}.get(name, 100)
    # of the paper's data, those of images only are tested on the inverse
    assert mixing.invert_test == mixing.invert_validation == (name not in ("pifl_synthetic", "pifl_chembl_families"))
    if name == "pifl_emnist":
        classes = made.data.origin.card.classes
        lower, upper = ("".join(classes[label] for label in of) for of in (mixing.classes_a, mixing.classes_b))
        assert (lower, upper) == (string.ascii_lowercase, string.ascii_uppercase)


def of_drflm(name, made):
    algorithm, _, data = name.partition("_")
    callbacks = {type(callback).__name__: callback for callback in made.trainer.callbacks}
    assert type(made.trainer.strategy).__name__ == "FedAvg"
    assert ("DROClientSampling" in callbacks) == (algorithm in ("drfa", "drflm"))
    assert ("LocalMixup" in callbacks) == (algorithm == "drflm")
    assert callbacks["ModelCheckpoint"].monitor == "val/rmse"
    assert (made.trainer.max_rounds, made.trainer.local_steps) == (100, 5)
    settings = ("adam", 0.003) if name in TRAINED else ("sgd", 0.01)
    assert (made.model.hparams.optimizer, made.model.hparams.learning_rate) == settings
    assert (made.data.batch_size, tuple(made.data.split), made.data.num_clients) == (32, (0.8, 0.1, 0.1), 3)
    assert made.data.card.name == data.removesuffix("_paper").removesuffix("_unequal")
    assert type(made.data.partitioner).__name__ == ("GroupBy" if data == "chembl_ic50" else "Scaffold")


def leaves_the_task_to_the_data(name, made):
    assert (made.model.hparams.task, made.model.hparams.num_targets) == (None, None)
    assert type(made.data.partitioner).__name__ == "Scaffold"
    assert made.data.card.task == ("classification" if name in CLASSES else "regression")


#: What recipes must be by their names.
KINDS = [
    (COALITIONS, of_a_coalition),
    ([name for name in RECIPES if name.startswith("pifl")], mixes_two_distributions),
    (DRFLM, of_drflm),
    ([*CLASSES, *VALUES], leaves_the_task_to_the_data),
]


@pytest.mark.slow
@pytest.mark.parametrize("name", RECIPES)
def test_it_is_what_its_name_says_and_its_resolved_form_is_the_same(name, parser):
    config = parse("fit", parser, ["--config", name])
    Path("resolved.yaml").write_text(parser.dump(config, skip_unset=False))
    assert parse("fit", parser, ["--config", "resolved.yaml"]).as_dict() == config.as_dict()
    made = instantiate(parser, config)
    for names, check in KINDS:
        if name in names:
            check(name, made)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*is not the file that card:UserWarning")
@pytest.mark.parametrize("name", [*DRFLM, *OF_MOLECULES])
def test_a_recipe_of_molecules_runs_a_round(name, capsys, quick_pictures):
    words = ["--trainer.local_steps", "1", "--trainer.local_epochs", "null", "--data.source", "real"]
    words += ["--model.hidden_dim", "4" if name in DRFLM else "8"]
    folder, record, clients = smaller(name, capsys, *words, metric="auroc" if name in CLASSES else "rmse")
    if name in DRFLM:
        assert len(clients) == 3
        assert all(clients.values())
        assert yaml.safe_load((folder / "config.yaml").read_text())["trainer"]["max_rounds"] == 1
        assert (folder / "figures" / "parity_test.png").is_file()
        assert (folder / "figures" / "sampling_weights.png").is_file() == (not name.startswith("fedavg"))
    else:
        assert len(json.loads((folder / "splits.json").read_text())["clients"]) == record["num_clients"]


@pytest.mark.slow
def test_the_laboratories_algorithms_differ_in_their_callbacks_only(parser):
    texts = {name: yaml.safe_load(RECIPES[name].read_text()) for name in LABORATORIES}
    assert sorted(texts) == [
        f"{arm}_aqsoldb" for arm in ("dpfl", "drflm", "fedavg", "fedcollab", "hcct", "local", "pooled")
    ]
    for text in texts.values():
        for key in ("callbacks", "default_root_dir"):
            text["trainer"].pop(key)
    # DRO compares clients after the same number of steps.
    steps = texts["drflm_aqsoldb"]["trainer"].pop("local_steps")
    assert 9 * steps == pytest.approx(19_795 * 0.8 / 32, rel=0.01)
    texts["drflm_aqsoldb"]["trainer"]["local_epochs"] = 1
    assert all(text == texts["fedavg_aqsoldb"] for text in texts.values())
