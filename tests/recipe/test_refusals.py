"""What recipes may not say: refused with the key at fault, all faults of a recipe at once."""

import json
from pathlib import Path
from typing import Annotated

import pytest
import torch
from annotated_types import Gt, Lt
from jsonargparse import ArgumentParser
from torch.utils.data import TensorDataset

from lightning_fl.callbacks import Callback
from lightning_fl.core.errors import ConfigurationError
from lightning_fl.core.validation import Count, Fraction, NonNegative, checked
from lightning_fl.recipe.classes import find_class
from lightning_fl.recipe.file import load_recipe
from lightning_fl.recipe.parser import parse
from lightning_fl.recipe.predictions import prediction_table
from lightning_fl.recipe.shipped import find_recipe


class Ranged(Callback):
    @checked
    def __init__(
        self,
        *,
        alpha: Annotated[float, Gt(0), Lt(1)] = 0.5,
        count: Count | None = None,
        shares: tuple[Fraction, Fraction] = (0.5, 0.5),
        rate: NonNegative | str = 0.0,
    ) -> None:
        self.given = alpha, count, shares, rate


class Untyped(Ranged):
    def __init__(self, width, depth=2, *, height, **options):
        super().__init__(**options)


RANGED = f"{__name__}.Ranged"
UNTYPED = f"{__name__}.Untyped"


def faults(parser: ArgumentParser, words: list[str]) -> list[str]:
    with pytest.raises(ConfigurationError) as raised:
        parse("fit", parser, ["--config", "drflm_esol", *words])
    return str(raised.value).splitlines()


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("--seed_everything=null", "seed_everything="),
        ("--seed_everything=-1", "seed_everything=-1:"),
        ("--seed_everything=1e3", "seed_everything=1000.0:"),
        ("--trainer=null", "trainer=null: expected a mapping"),
        ("--trainer=[1]", "trainer=[1]: expected a mapping"),
        ("--trainer.max_round 5", "trainer.max_round: there is no such key (did you mean 'max_rounds'?)"),
        ("--trainer.max_epochs 5", "trainer.max_epochs: there is no such key (did you mean 'max_rounds'?)"),
        ("--max_epochs 5", "max_epochs: there is no such key (did you mean 'trainer.max_rounds'?)"),
        ("--max_rounds 5", "max_rounds: there is no such key (did you mean 'trainer.max_rounds'?)"),
        ("--trainer.max_rounds x", "trainer.max_rounds"),
        ("--trainer.max_rounds", "--trainer.max_rounds has no value"),
        ("--trainer.callbacks=[null]", "trainer.callbacks[0]=null:"),
        ("--trainer.callbacks=[{class_path: null}]", "trainer.callbacks[0].class_path=null:"),
        ("--trainer.callbacks=[{class_pat: HCCT}]", "trainer.callbacks[0].class_pat: "),
        ("--trainer.callbacks=[{class_path: HCCT, init_args: 3}]", "trainer.callbacks[0].init_args=3: "),
        ("--trainer.callbacks=[HCTC]", "trainer.callbacks[0].class_path='HCTC': "),
        (
            "--trainer.callbacks=[DROClientSamplin]",
            "trainer.callbacks[0].class_path='DROClientSamplin': there is no such",
        ),
        (
            "--trainer.callbacks=[lightning.pytorch.loggers.CSVLogger]",
            "trainer.callbacks[0].class_path='lightning.pytorch.loggers.CSVLogger': not a subclass of",
        ),
        (
            "--trainer.callbacks=[EarlyStoppin]",
            "trainer.callbacks[0].class_path='EarlyStoppin': there is no such class (did you mean 'EarlyStopping'?)",
        ),
        (
            "--trainer.callbacks=[{class_path: DROClientSampling, init_args: {flor: 1}}]",
            "trainer.callbacks[0].flor: DROClientSampling has no such argument (did you mean 'floor'?)",
        ),
        (
            "--trainer.callbacks=[{class_path: TierBidding, init_args: {policy: {class_path: HonstBidding}}}]",
            "trainer.callbacks[0].policy.class_path='HonstBidding': there is no such class (did you",
        ),
        (
            "--trainer.callbacks=[{class_path: TierBidding, init_args: {policies: {3: {class_path: HCCT}}}}]",
            "trainer.callbacks[0].policies[3].class_path='HCCT': there is no such class",
        ),
        (
            "--trainer.callbacks=[{class_path: TierBidding, init_args: {num_tiers: 2, tokens: {prize: 2}}}]",
            "trainer.callbacks[0].tokens.prize: Tokens has no such argument (did you mean 'price'?)",
        ),
        (f"--trainer.callbacks=[{{class_path: {RANGED}, init_args: {{alpha: 1}}}}]", "trainer.callbacks[0].alpha=1: "),
        (
            f"--trainer.callbacks=[{{class_path: {RANGED}, init_args: {{alpha: .nan}}}}]",
            "trainer.callbacks[0].alpha=nan",
        ),
        (f"--trainer.callbacks=[{{class_path: {RANGED}, init_args: {{rate: -1}}}}]", "trainer.callbacks[0].rate=-1: "),
        ("--trainer.strategy.num_processes 2", "trainer.strategy.num_processes: FedAvg has no such argument"),
        ("--trainer.logger CSVLogger", "trainer.logger"),
        ("--trainer.logger=[3]", "trainer.logger[0]=3"),
        ("--trainer.callbacks=[true]", "trainer.callbacks[0]=True"),
        ("--model.zzz 1", "model.zzz: MoleculeModel has no such argument; it has encoder, node_dim, "),
        ("--model.encoder gatt", "model.encoder"),
        (
            "--model MoleculeModl",
            "model.class_path='MoleculeModl': there is no such class (did you mean 'MoleculeModel'?)",
        ),
        ("--model nowhere.Model", "model.class_path='nowhere.Model': it cannot be imported (ModuleNotFoundError"),
        (
            "--model lightning_fl.models.MoleculeModl",
            "model.class_path='lightning_fl.models.MoleculeModl': the module lightning_fl.models has no MoleculeModl",
        ),
        ("--model collections.OrderedDict", "model.class_path='collections.OrderedDict': not a subclass of"),
        ("--data MoleculeCSV", "data: the following arguments are required: path"),
        ("--data={class_path: ../../x}", "data.class_path='../../x': "),
        (f"--data={'x' * 5000}", f"data.class_path='{'x' * 56}...: "),
        ("--data.division=HashDivison", "data.division"),
        (f"--trainer.callbacks=[{UNTYPED}]", "trainer.callbacks: the following arguments are required: width, height"),
        (f"--trainer.callbacks=[{{class_path: {UNTYPED}, init_args: {{width: a}}}}]", "trainer.callbacks: "),
        ("--model test.Own", "model.class_path='test.Own': the module test has no Own"),
        ("--data={class_path: Silos, init_args: {datamodules: [5]}}", "data.datamodules[0]=5: expected a class"),
        (
            "--data={class_path: Silos, init_args: {datamodules: [{class_path: nowhere.Data}]}}",
            "data.datamodules[0].class_path='nowhere.Data': it cannot be imported",
        ),
        ("--config", "--config has no value"),
        ("--config esl.yaml", "no recipe 'esl.yaml'"),
        ("--config drfa_esl", "no recipe 'drfa_esl'"),
        ("--config .", "'.' is a folder"),
        ("stray", "unrecognized argument: stray"),
    ],
)
def test_one_fault(parser, words, named):
    (fault,) = faults(parser, [words] if "=" in words else words.split())
    assert fault.startswith(named)
    assert len(fault) < 500


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        (
            "  init_args:\n    encoder",
            "  init_arg:\n    encoder",
            "model.init_arg: arguments of MoleculeModel belong under",
        ),
        ("trainer:\n", "trainer: 5\nx:\n", "x: there is no such key.\ntrainer=5: expected a mapping"),
        ("local_steps: 5", "local_steps: [2", "r.yaml, line "),
        ("local_steps: 5", "local_steps: five", "trainer.local_steps"),
    ],
)
def test_recipes(parser, old, new, named):
    text = find_recipe("drflm_esol").read_text()
    assert old in text
    Path("r.yaml").write_text(text.replace(old, new, 1))
    with pytest.raises(ConfigurationError) as raised:
        parse("fit", parser, ["--config", "r.yaml"])
    lines = str(raised.value).splitlines()
    assert all(any(line.startswith(one) for line in lines) for one in named.splitlines()), lines


def test_an_untyped_argument_that_is_given(parser):
    entry = f"[{{class_path: {UNTYPED}, init_args: {{width: a, height: [1]}}}}]"
    (callback,) = parse("fit", parser, ["--config", "drflm_esol", f"--trainer.callbacks={entry}"]).trainer.callbacks
    assert (callback.init_args.width, callback.init_args.depth, callback.init_args.height) == ("a", 2, [1])


def test_what_cannot_be_imported_says_where_it_was_searched():
    remedy = "run in the recipe's folder"
    assert remedy in find_class("nowhere.Model", [object])
    Path("mine_lacks.py").write_text("import nowhere_at_all")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(".")
        assert remedy not in find_class("mine_lacks.Model", [object])
    assert json.__file__ in find_class("json.Model", [object])


def test_all_faults_at_once(parser):
    Path("more.yaml").write_text(
        f"trainer: {{lokal_steps: 3, callbacks: [{{class_path: {RANGED}, init_args: {{shares: [0.5, 2], cont: 1}}}}]}}"
    )
    words = "--config more.yaml --modle.encoder gat --model.encodr=gat --data.batch_sise 4 --seed_everything -1"
    found = faults(parser, [*words.split(), "--trainer.callbacks.count", "0"])
    assert sorted(fault.partition(": ")[0] for fault in found) == [
        "data.batch_sise",
        "model.encodr",
        "modle",
        "seed_everything=-1",
        "trainer.callbacks[0].cont",
        "trainer.callbacks[0].count=0",
        "trainer.callbacks[0].shares[1]=2",
        "trainer.lokal_steps",
    ]


@pytest.mark.parametrize("command", ["fit", "validate", "test", "predict"])
def test_what_is_missing(parser, command):
    with pytest.raises(ConfigurationError, match="^model and data not given"):
        parse(command, parser, [])
    if command != "fit":
        with pytest.raises(ConfigurationError, match="^ckpt_path not given"):
            parse(command, parser, ["--config", "drfa_esol"])


def test_a_list_may_have_what_its_items_may_be(parser):
    loggers = [True, {"class_path": "lightning.pytorch.loggers.CSVLogger", "init_args": {"save_dir": "."}}]
    recipe = parse("fit", parser, ["--config", "fedavg_digits", f"--trainer.logger={loggers}"])
    assert recipe.trainer.logger[0] is True
    assert recipe.trainer.logger[1].init_args.save_dir == "."


@pytest.mark.parametrize("value", ["0.25", "'0.25'", "1e-1"])
def test_texts_that_are_numbers_are_in_range(parser, value):
    text = f"[{{class_path: {RANGED}, init_args: {{alpha: {value}, rate: none}}}}]"
    config = parse("fit", parser, ["--config", "drflm_esol", f"--trainer.callbacks={text}"])
    assert type(config.trainer.callbacks[0].init_args.alpha) is float


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (b"", "empty"),
        (b"- a\n", "list"),
        (b"a: \xff\n", "UTF-8"),
        (b"a: [1\nb: 2\n", "line 2, column 2"),
        (b"a: \x01\n", "control characters"),
    ],
)
def test_files(content, named):
    Path("recipe.yaml").write_bytes(content)
    with pytest.raises(ConfigurationError, match=rf"^recipe.yaml.*{named}"):
        load_recipe(Path("recipe.yaml"))


@pytest.mark.parametrize(
    ("outputs", "named"),
    [([[torch.zeros(3)]], "list"), ([None], "NoneType"), ([torch.zeros(2, 4)], r"\[2, 4\] for 3 samples")],
)
def test_predictions(outputs, named):
    with pytest.raises(ConfigurationError, match=f"^predict_step .*{named}"):
        prediction_table(TensorDataset(torch.zeros(3, 1), torch.zeros(3)), outputs)
