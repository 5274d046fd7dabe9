"""A wrong recipe is refused before training, in words that name the key and the mend."""

import json
import tempfile
from functools import partial
from pathlib import Path

import pytest


@pytest.mark.slow
@pytest.mark.parametrize(
    ("overrides", "lines"),
    [
        ("--trainer.max_round 5", ["trainer.max_round: there is no such key (did you mean 'max_rounds'?)."]),
        ("--max_rounds 5", ["max_rounds: there is no such key (did you mean 'trainer.max_rounds'?)."]),
        (
            "--modle.encoder gat --trainer.lokal_steps=1 --model.encodr gat --data.batch_sise 4",
            [
                "modle: there is no such key (did you mean 'model'?).",
                "trainer.lokal_steps: there is no such key (did you mean 'local_steps'?).",
                "model.init_args.encodr: MoleculeModel has no such argument (did you mean 'encoder'?).",
                "data.init_args.batch_sise: MoleculeCSV has no such argument (did you mean 'batch_size'?).",
            ],
        ),
        ("--model.zzz 1", ["model.init_args.zzz: MoleculeModel has no such argument; it has encoder, node_dim, "]),
        (
            "--model MoleculeModl",
            ["model.class_path='MoleculeModl': there is no such class (did you mean 'MoleculeModel'?); give a class "],
        ),
        (
            "--model nowhere.Model",
            ["model.class_path='nowhere.Model': it cannot be imported (ModuleNotFoundError: No module"],
        ),
        (
            "--model lightning_fl.models.MoleculeModl",
            [
                "model.class_path='lightning_fl.models.MoleculeModl': the module lightning_fl.models has no"
                " MoleculeModl (did you mean 'MoleculeModel'?)."
            ],
        ),
        (
            "--model collections.OrderedDict",
            [
                "model.class_path='collections.OrderedDict': it is not a subclass of"
                " lightning.pytorch.core.module.LightningModule."
            ],
        ),
        (
            "--trainer.callbacks+=lightning.pytorch.callbacks.EarlyStopping",
            [
                "trainer.callbacks[1].class_path='lightning.pytorch.callbacks.EarlyStopping': it is not a subclass of"
                " lightning_fl.callbacks.callback.Callback."
            ],
        ),
        (
            "--trainer.callbacks+=DROClientSamplin",
            ["trainer.callbacks[1].class_path='DROClientSamplin': there is no such class (did you mean 'DROClient"],
        ),
        (
            "--trainer.callbacks+=DROClientSampling --trainer.callbacks.flor 1",
            ["trainer.callbacks[1].init_args.flor: DROClientSampling has no such argument (did you mean 'floor'?)."],
        ),
        (
            "--trainer.callbacks+=HCCT --trainer.callbacks.appetite 1",
            ["trainer.callbacks[1].init_args.appetite: this option of HCCT is now called relative_trade_off."],
        ),
        ("--data TableData", ["data: the following arguments are required: partitioner."]),
        ("--trainer.max_rounds x", ["trainer.max_rounds: expected a value of type int, got x."]),
        (
            "--model.encoder gatt",
            [
                "model.encoder: expected one of 'gcn', 'gat', 'gin', 'gine', 'mpnn', 'dmpnn', 'attentivefp',"
                " 'fingerprint', got gatt."
            ],
        ),
        ("--seed_everything -1", ["seed_everything: Not of type Seed: -1 does not conform to restriction v>=0"]),
        (
            "--trainer.logger CSVLogger",
            ["trainer.logger: Multiple subclasses with name CSVLogger. Give the full class path to avoid ambiguity: "],
        ),
        ("--trainer.max_rounds 0", ["trainer.max_rounds=0: give a number of at least 1."]),
        ("--model.dropout 3", ["MoleculeModel.dropout=3.0: give a number from 0 to below 1."]),
        ("--trainer.callbacks+=LocalMixup --trainer.callbacks.alpha -1", ["LocalMixup.alpha=-1.0: give a number"]),
        ("--ckpt_path none.ckpt", ["none.ckpt: there is no such checkpoint. Give a file, or 'last' or 'best'."]),
        ("--config esl.yaml", ["no recipe 'esl.yaml': there is neither such a file nor a shipped recipe of this name"]),
        ("--config drfa_esl", ["no recipe 'drfa_esl': there is neither such a file nor a shipped recipe of this name"]),
        ("--config .", ["'.' is a folder: give a recipe's file, or the name of a shipped one."]),
    ],
)
def test_wrong_settings(tiny, command, overrides, lines):
    code, out, err = command("fit", "--config", "tiny.yaml", *overrides.split())
    assert (code, out) == (2, "")
    found = err.splitlines()
    assert len(found) == len(lines), err
    for line, expected in zip(sorted(found), sorted(f"error: {line}" for line in lines), strict=True):
        assert line.startswith(expected)


@pytest.mark.parametrize(
    ("setting", "line"),
    [
        (
            "policy: {class_path: HonstBidding}",
            ".policy.class_path='HonstBidding': there is no such class (did you mean 'Hon",
        ),
        ("policies: {3: {class_path: HCCT}}", ".policies[3].class_path='HCCT': there is no such class"),
    ],
)
def test_wrong_policies(tiny, command, setting, line):
    Path("policy.yaml").write_text(
        f"trainer: {{callbacks: [{{class_path: TierBidding, init_args: {{num_tiers: 2, {setting}}}}}]}}"
    )
    code, _, err = command("fit", "--config", "tiny.yaml", "--config", "policy.yaml")
    assert code == 2
    assert err.startswith(f"error: trainer.callbacks[0].init_args{line}"), err


@pytest.mark.parametrize(
    ("setting", "line"),
    [
        ("price: 200", "Tokens.price=200.0, initial_balance=100.0: nobody could ever bid"),
        ("prize: 2", "trainer.callbacks.tokens: Option 'prize' is not accepted."),
    ],
)
def test_wrong_tokens(tiny, command, setting, line):
    Path("tokens.yaml").write_text(
        f"trainer: {{callbacks: [{{class_path: TierBidding, init_args: {{num_tiers: 2, tokens: {{{setting}}}}}}}]}}"
    )
    code, _, err = command("fit", "--config", "tiny.yaml", "--config", "tokens.yaml")
    assert code == 2
    assert err.startswith(f"error: {line}"), err


def test_a_missing_recipe_suggests_a_shipped_one(command):
    _, _, err = command("fit", "--config", "drfa_esl")
    assert "(did you mean 'drfa_esol'?). `lightning-fl recipes` lists those." in err


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("max_rounds: 3", "max_round: 3", "trainer.max_round: there is no such key (did you mean 'max_rounds'?)."),
        ("seed_everything: 3", "seed_everthing: 3", "seed_everthing: there is no such key (did you mean 'seed_every"),
        (
            "hidden_dim: 8",
            "hiden_dim: 8",
            "model.init_args.hiden_dim: MoleculeModel has no such argument (did you mean",
        ),
        (
            "  init_args:\n    hidden",
            "  init_arg:\n    hidden",
            "model.init_arg: arguments of MoleculeModel belong under",
        ),
        ("trainer:\n", "trainer: 5\nx:\n", "trainer=5: expected a mapping with keys such as "),
        ("local_steps: 2", "local_steps: [2", "broken.yaml, line 10, column 9: not YAML: "),
        ("max_rounds: 3", "max_rounds: three", "trainer.max_rounds: expected a value of type int, got three."),
        ("    path: tiny.csv\n", "", "data: the following arguments are required: path."),
    ],
)
def test_wrong_recipes(tiny, command, old, new, message):
    text = Path("tiny.yaml").read_text()
    assert old in text
    Path("broken.yaml").write_text(text.replace(old, new))
    code, out, err = command("fit", "--config", "broken.yaml")
    assert (code, out) == (2, "")
    assert f"error: {message}" in err
    assert len(err.splitlines()) <= 2


@pytest.mark.slow
def test_what_is_not_given(command):
    code, _, err = command("fit")
    assert code == 2
    assert err.startswith("error: model and data not given: name a recipe with --config (`lightning-fl recipes` lists")
    for name in ("validate", "test", "predict"):
        code, _, err = command(name, "--config", "drfa_esol")
        assert code == 2
        assert (
            err == f"error: ckpt_path not given: add --ckpt_path with last, best or a file, for lightning-fl {name}.\n"
        )


def test_an_error_of_the_users_own_constructor_is_named_with_its_place(tiny, command):
    Path("own_model.py").write_text(
        "from lightning.pytorch import LightningModule\n"
        "class Faulty(LightningModule):\n"
        "    def __init__(self, size: int = 1):\n"
        "        super().__init__()\n"
        "        raise RuntimeError(f'no model of size {size}')\n"
    )
    code, _, err = command("fit", "--config", "tiny.yaml", "--model", "own_model.Faulty", "--model.size", "7")
    assert code == 2
    assert err == (
        "error: RuntimeError: no model of size 7 (own_model.py, line 5, in __init__).\n"
        "error: LIGHTNING_FL_DEBUG=1 shows where in the code.\n"
    )


def test_a_mistake_of_the_packages_own_keeps_its_traceback(command, monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr("lightning_fl.cli.recipes.available_recipes", partial(json.loads, "{"))
    code, _, err = command("recipes")
    (kept,) = tmp_path.iterdir()
    assert kept.stat().st_mode & 0o777 == 0o600
    assert code == 1
    assert err.startswith("error: JSONDecodeError: Expecting property name")
    assert err.endswith(f"This is a mistake of lightning-fl's own: please report it with its traceback, {kept}.\n")
    assert kept.read_text().startswith("Traceback (most recent call last):")


@pytest.mark.slow
def test_a_traceback_is_shown_on_demand(tiny, command, monkeypatch):
    words = ("fit", "--config", "tiny.yaml", "--trainer.max_rounds", "0")
    _, _, err = command(*words)
    assert err == "error: trainer.max_rounds=0: give a number of at least 1.\n"
    monkeypatch.setenv("LIGHTNING_FL_DEBUG", "1")
    code, _, err = command(*words)
    assert code == 2
    assert err.startswith("Traceback (most recent call last):")
    assert err.endswith("\nerror: trainer.max_rounds=0: give a number of at least 1.\n")


def test_a_failing_training_step_says_how_to_see_where(tiny, command, monkeypatch):
    from lightning_fl.models import MoleculeModel

    def fail(self, batch, batch_idx):
        raise RuntimeError("shapes do not match")

    monkeypatch.setattr(MoleculeModel, "training_step", fail)
    code, _, err = command("fit", "--config", "tiny.yaml")
    assert code == 2
    assert err.startswith("error: client 0 (assay_0) failed in round 1: RuntimeError: shapes do not match")
    assert err.endswith("error: LIGHTNING_FL_DEBUG=1 shows where in the code.\n")


def test_a_loss_that_is_not_finite_needs_no_traceback(tiny, command):
    code, _, err = command("fit", "--config", "tiny.yaml", "--model.learning_rate", "1e30")
    assert code == 2
    assert "TrainingError: the training loss is " in err
    assert len(err.splitlines()) == 1
