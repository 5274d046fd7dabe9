"""``lightning-fl init``: what it writes runs at once, and nothing of the user's is touched."""

import builtins
import csv
import json
import math
import os
import re
import shlex
import shutil
import sys
from itertools import product
from pathlib import Path
from types import ModuleType

import pandas as pd
import pytest
import torch
from rdkit.Chem import MolFromSmiles, SDWriter
from torch_geometric.data import Data

from lightning_fl.data import ImageFolders
from lightning_fl.recipe.file import load_recipe
from lightning_fl.recipe.starters.start import ALGORITHMS, DATA, TASKS, Answers, starter_files

OWN = ["--task", "classification", "--algorithm", "fedavg"]
FITTING = [(data, task) for data, task in product(DATA, TASKS) if (data, task) != ("images", "regression")]


def summary(folder="."):
    return json.loads(Path(folder, "runs/version_0/summary.json").read_text())


@pytest.fixture
def fresh(monkeypatch):
    """Modules of the working directory are imported anew."""
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path not in ("", os.getcwd())])
    for name in ("module", "data"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield
    for name in ("module", "data"):
        sys.modules.pop(name, None)


def grey_images(folder):
    from PIL import Image

    for number in range(36):
        path = Path(folder, "abc"[number % 3], "pq"[number // 3 % 2], f"{number}.png")
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (40, 40), 20 + 5 * number).save(path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("data", "task", "own"), [*((*each, False) for each in FITTING), ("images", "classification", True)]
)
def test_what_is_written_learns_and_each_command_that_a_run_prints_works(
    data, task, own, command, fresh, quick_pictures
):
    words = []
    if own:
        grey_images("mine")
        words = ["--file", "mine"]
    code, out, err = command("init", "--data", data, "--task", task, "--algorithm", "fedavg", *words)
    assert (code, err) == (0, "")
    assert out.endswith("Now: lightning-fl fit --config recipe.yaml\n")
    fit = ["fit", "--config", "recipe.yaml", "--trainer.max_rounds"]
    code, _, err = command(*fit, "4")
    assert code == 0, err
    record = summary()
    assert record["num_clients"] == 3
    assert ("acc" in record["metrics"]["test"]) == (task == "classification")
    if not own:
        assert set(record["client_names"]) == {"north", "south", "west"}
        losses = pd.read_csv("runs/version_0/metrics.csv")["val/loss"].dropna().tolist()
        assert losses[-1] < losses[0]
    code, out, err = command(*fit, "1")
    assert code == 0, err
    printed = [line.split(": lightning-fl ", 1)[1] for line in out.splitlines() if ": lightning-fl " in line]
    page = Path("runs/version_1/report.html")
    assert command("show", "runs/version_1")[0] == 0
    printed += re.findall(r"^(?:<pre>)?lightning-fl (.*)$", page.read_text(), flags=re.M)
    assert {line.split()[0] for line in printed} == {"predict", "show", "compare", "fit"}
    samples = {"images": "mine/a/p" if own else "example/north/red"}.get(data, "example.csv")
    for line in printed:
        line = line.replace("FILE", samples).replace("OTHER_RUN", "runs/version_0")
        code, out, err = command(*shlex.split(line))
        assert code == 0, (line, err)
        if "--trust" in line:
            rows = list(csv.DictReader(out.splitlines()))
            assert rows
            assert not any(row["error"] for row in rows)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", sorted(set(ALGORITHMS) - {"fedavg"}))
@pytest.mark.parametrize("data", ["own", "molecules"])
def test_every_algorithm_runs(algorithm, data, command, fresh, quick_pictures):
    assert command("init", "--data", data, "--task", "regression", "--algorithm", algorithm)[0] == 0
    code, _, err = command("fit", "--config", "recipe.yaml", "--trainer.max_rounds", "1")
    assert code == 0, err
    record = summary()
    words = {"drfa": "DROClientSampling", "ditto": "Ditto", "ifca": "IFCA"}
    assert words[algorithm] in [*record["callbacks"], record["strategy"]]


@pytest.mark.slow
def test_a_file_of_one_s_own(command, fresh, quick_pictures):
    rows = [f'{number},{"abc"[number % 3]},{("p", "q")[number % 2]},"h, {number % 2}"' for number in range(60)]
    Path("mine.csv").write_text("\n".join(["size,kind,grade,site", *rows]) + "\n")
    words = ["--file", "mine.csv", "--target", "kind", "--clients", "site"]
    code, out, err = command("init", "--data", "table", "--task", "classification", "--algorithm", "fedavg", *words)
    assert (code, err) == (0, "")
    assert out.splitlines()[:-1] == ["module.py", "recipe.yaml"]
    code, _, err = command("fit", "--config", "recipe.yaml", "--trainer.max_rounds", "1")
    assert code == 0, err
    assert summary()["client_names"] == ["h, 0", "h, 1"]
    assert summary()["data"]["classes"] == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("file", "column"),
    [("m.csv", "Smiles"), ("m.tsv", "SMILES"), ("m.txt", "canonical_smiles"), ("m.parquet", "Canonical_SMILES")],
)
def test_the_column_of_molecules_is_found(file, column, command):
    table = pd.DataFrame({column: ["C", "CC", "CCO"], "logD": [0.5, 1.0, 1.5], "lab": ["a", "b", "c"]})
    if file.endswith("parquet"):
        pytest.importorskip("pyarrow")
        table.to_parquet(file)
    else:
        table.to_csv(file, index=False, sep="\t" if file.endswith("tsv") else ",")
    words = ["--file", file, "--target", "logD", "--clients", "lab"]
    code, _, err = command("init", "--data", "molecules", "--task", "regression", "--algorithm", "fedavg", *words)
    assert (code, err) == (0, "")
    assert f'smiles_column: "{column}"' in Path("recipe.yaml").read_text()


def test_an_sdf_has_molecules_already(command):
    with SDWriter("m.sdf") as writer:
        for number, smiles in enumerate(["C", "CC", "CCO"]):
            molecule = MolFromSmiles(smiles)
            molecule.SetProp("active", str(number % 2))
            molecule.SetProp("lab", "ab"[number % 2])
            writer.write(molecule)
    code, _, err = command(
        "init", "--data", "molecules", *OWN, "--file", "m.sdf", "--target", "active", "--clients", "lab"
    )
    assert (code, err) == (0, "")


def test_classes_of_images_are_those_of_the_data_module(command):
    grey_images("mine")
    stray = [
        "mine/logo.png",
        "mine/a/overview.png",
        "mine/.thumbs/x/1.png",
        "mine/b/.thumbs/1.png",
        "mine/c/p/more/1.png",
    ]
    for path in stray:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy("mine/a/p/0.png", path)
    code, _, err = command("init", "--data", "images", *OWN, "--file", "mine")
    assert (code, err) == (0, "")
    recipe = load_recipe(Path("recipe.yaml"))
    data = ImageFolders(root="mine", size=4)
    data.setup()
    assert recipe["model"]["init_args"]["num_outputs"] == len(data.class_names) == 2
    assert recipe["data"]["init_args"]["channels"] == 1


@pytest.mark.parametrize(
    ("task", "error"),
    [
        ("regression", lambda given, wanted: (given - wanted) ** 2),
        ("classification", lambda given, wanted: math.log1p(math.exp(given)) - given * wanted),
    ],
)
def test_the_loss_of_molecules_is_the_mean_over_known_targets(task, error, monkeypatch):
    answers = Answers(data="molecules", task=task, algorithm="fedavg")
    module = ModuleType("written")
    exec(starter_files(answers)["module.py"], vars(module))
    model, outputs = module.MyModel(), torch.tensor([[0.5], [-1.0], [2.0]], requires_grad=True)
    monkeypatch.setattr(model, "forward", lambda batch: outputs)
    logged = {}
    monkeypatch.setattr(model, "log", lambda name, value, batch_size: logged.update({name: (float(value), batch_size)}))
    gap = math.nan
    for targets in ([1.0, gap, 0.0], [1.0, 1.0, 0.0], [gap, gap, gap]):
        batch = Data(y=torch.tensor(targets)[:, None])
        errors = [error(*pair) for pair in zip(outputs[:, 0].tolist(), targets, strict=True) if not math.isnan(pair[1])]
        mean = sum(errors) / max(1, len(errors))
        loss = model.loss(batch)
        assert float(loss) == pytest.approx(mean)
        (gradient,) = torch.autograd.grad(loss, outputs)
        assert gradient.isfinite().all()
        model.evaluate(batch, "val")
        assert logged["val/loss"] == (pytest.approx(mean), len(errors))
    if task == "classification":
        assert logged["val/acc"] == (0.0, 0)
    with pytest.raises(ValueError, match="censored"):
        model.loss(Data(y=torch.zeros(3, 1), y_bound=torch.ones(3, 1)))


@pytest.mark.slow
def test_batches_without_a_known_target(command, fresh, quick_pictures):
    smiles = [f"{'C' * (1 + number % 9)}{'ONS'[number // 9 % 3]}" for number in range(54)]
    known = ["" if number % 4 else number % 8 // 4 for number in range(54)]
    gaps = [f"{one},{known[number]},{'aab'[number % 3]}" for number, one in enumerate(smiles)]
    Path("gaps.csv").write_text("\n".join(["smiles,act,lab", *gaps]) + "\n")
    words = ["--file", "gaps.csv", "--target", "act", "--clients", "lab"]
    assert command("init", "--data", "molecules", *OWN, *words)[0] == 0
    fit = ["fit", "--config", "recipe.yaml", "--trainer.max_rounds", "2", "--data.batch_size", "1"]
    code, _, err = command(*fit)
    assert code == 0, err
    losses = pd.read_csv("runs/version_0/metrics.csv")["train/loss"].dropna()
    assert len(losses) == 2


def test_a_file_is_found_from_another_folder(command):
    Path("b.csv").write_text("kind,site\na,x\nb,y\n")
    words = ["--file", "b.csv", "--target", "kind", "--clients", "site", "--to-folder", "to f"]
    code, out, err = command("init", "--data", "table", *OWN, *words)
    assert (code, err) == (0, "")
    assert out.splitlines()[-1] == "Now: cd 'to f' && lightning-fl fit --config recipe.yaml"
    os.chdir("to f")
    assert Path(load_recipe(Path("recipe.yaml"))["data"]["init_args"]["path"]).samefile("../b.csv")


@pytest.mark.parametrize("labels", [("1", "2"), ("-1", "1"), ("0.3", "0.7"), ("active", "inactive")])
def test_labels_of_molecules_are_0_and_1(labels, command):
    Path("m.csv").write_text(f"smiles,act,lab\nC,{labels[0]},a\nCC,{labels[1]},b\n")
    words = ["--file", "m.csv", "--target", "act", "--clients", "lab"]
    code, _, err = command("init", "--data", "molecules", *OWN, *words)
    assert code == 2
    assert "'act'" in err
    assert labels[0] in err
    assert os.listdir() == ["m.csv"]


# -- questions -----------------------------------------------------------------------------------------------------


def test_three_questions(command, monkeypatch):
    said = iter(["4", "nothing", "regression", ""])
    monkeypatch.setattr(builtins, "input", lambda prompt: next(said))
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    code, out, err = command("init", "--to-folder", "new/here")
    assert (code, err) == (0, "")
    assert [line for line in out.splitlines() if line.endswith("?")] == [
        "What are your data?",
        "What is to be predicted?",
        "What shall clients get?",
    ]
    assert "'nothing'" in out
    assert out.endswith("Now: cd new/here && lightning-fl fit --config recipe.yaml\n")
    assert sorted(os.listdir("new/here")) == ["data.py", "module.py", "recipe.yaml"]
    assert Path("new/here/recipe.yaml").read_text().startswith("# one shared model for all clients (FedAvg), of Py")


def test_what_is_there_stays_as_it_is(command):
    Path("module.py").write_text("mine")
    words = ("init", "--data", "own", "--task", "regression", "--algorithm", "fedavg")
    code, _, err = command(*words)
    assert code == 2
    assert err.startswith("error: module.py already exists")
    assert "--to-folder" in err
    assert os.listdir() == ["module.py"]
    assert Path("module.py").read_text() == "mine"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--data", "own", "--task", "regression"], "give --algorithm fedavg|drfa|ditto|ifca."),
        (["--data", "tabel", *OWN], "--data tabel: unknown value (did you mean 'table'?)."),
        (["--data", "own", "--task", "x", "--algorithm", "ifca"], "--task x: unknown value; choose one of"),
        (["--data", "images", "--task", "regression", "--algorithm", "ifca"], "images have classes only"),
        (["--data", "own", *OWN, "--file", "a.csv"], "--file with --data own: read the file in the data.py"),
        (["--data", "table", *OWN, "--target", "a"], "--target and --clients name columns of a file: give --file too."),
        (["--data", "table", *OWN, "--file", "a.csv"], "--file a.csv: name the column to predict with --target"),
        (
            ["--data", "table", *OWN, "--file", "a.csv", "--target", "a", "--clients", "b"],
            "--file a.csv: there is no such file.",
        ),
        (
            ["--data", "table", *OWN, "--file", "b.csv", "--target", "kind", "--clients", "sit"],
            "--clients sit: b.csv has no such column (did you mean 'site'?); it has kind, site. Name yours with"
            " --clients.",
        ),
        (["--data", "images", *OWN, "--file", "nowhere"], "--file nowhere: there is no such folder."),
        (["--data", "images", *OWN, "--file", "x", "--target", "a"], "--target and --clients name columns, which"),
    ],
)
def test_answers_that_are_none(words, said, command):
    Path("b.csv").write_text("kind,site\na,x\nb,y\n")
    code, _, err = command("init", *words)
    assert code == 2
    assert said in err
    assert os.listdir() == ["b.csv"]
