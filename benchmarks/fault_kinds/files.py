"""Damaged and hostile files in the place of every file that a command reads."""

import random
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from fault_kinds.damage import GONE, damage, executed
from fault_kinds.judging import LIMIT, judge_refusal
from fault_kinds.laboratory import Laboratory
from fault_kinds.outcome import BAD, GOOD, Outcome
from fault_kinds.record import differences, record_of, summary_of, tensors
from fault_kinds.silo_files import trial_silo
from fault_kinds.small_recipes import recipe, write_data, write_recipe
from fault_kinds.warm_python import Started

__all__ = ["trial"]


class Reading(NamedTuple):
    """A command and a file that it reads, ``{cache}`` standing for a file in the cache.

    ``checked`` files hold a sum or are made anew, so that a change must be said or have no effect; of others a change
    of one sign may go unseen where what is read is still what was written there.
    """

    file: str
    words: list[str]
    checked: bool = True


_FIT = ["fit", "--config", "r.yaml"]
_LAST, _BEST = "runs/version_0/checkpoints/last.ckpt", "runs/version_0/checkpoints/best.ckpt"
_ON = ["--trainer.max_rounds", "5"]
_PERSONALIZE = ["personalize", "runs/version_0", "new.csv", "--out", "personal.ckpt"]
_COMPARE = ["compare", "runs/version_0", "runs/version_1", "--out", "compared"]
READINGS = [
    Reading(_LAST, [*_FIT, *_ON, "--ckpt_path", "last"]),
    Reading(_LAST, [*_FIT, *_ON, "--ckpt_path", _LAST]),
    Reading(_BEST, ["test", "--config", "r.yaml", "--ckpt_path", "best"]),
    Reading(_BEST, ["predict", "--config", "r.yaml", "--ckpt_path", "best"]),
    Reading(_LAST, ["validate", "--config", "r.yaml", "--ckpt_path", "last"]),
    Reading("runs/version_0/metrics.csv", [*_FIT, *_ON, "--ckpt_path", _LAST], False),
    Reading("a.csv", [*_FIT, *_ON, "--ckpt_path", _LAST]),
    Reading("a.csv", ["test", "--config", "r.yaml", "--ckpt_path", "best"]),
    Reading("runs/version_0/config.yaml", _PERSONALIZE, False),
    Reading("runs/version_0/summary.json", _PERSONALIZE, False),
    Reading("runs/version_0/models/shared_0.ckpt", _PERSONALIZE),
    Reading("new.csv", _PERSONALIZE, False),
    Reading("runs/version_0/config.yaml", _COMPARE, False),
    Reading("runs/version_0/summary.json", _COMPARE, False),
    Reading("runs/version_0/metrics.csv", _COMPARE, False),
    Reading("{cache}", _FIT),
    Reading("scans.npz", ["fit", "--config", "images.yaml"], False),
    Reading("folders/north/cat/0.png", ["fit", "--config", "folders.yaml"], False),
    Reading("weights.pt", ["fit", "--config", "weights.yaml"], False),
    Reading("card.yaml", ["fit", "--config", "card_recipe.yaml"], False),
    Reading("cells.yaml", ["study", "cells.yaml", "--workers", "1"], False),
    Reading("t.csv", ["fit", "--config", "table.yaml"], False),
]


# -- what is there before ----------------------------------------------------------------------------------------


def _write_everything(folder: Path) -> None:
    from PIL import Image
    from torchvision.models import resnet18

    write_data(folder)
    (folder / "new.csv").write_text("\n".join((folder / "a.csv").read_text().splitlines()[:16]) + "\n")
    content = recipe("drflm")
    content["trainer"] |= {"max_rounds": 3, "devices": 1}
    content["data"]["init_args"]["split_seed"] = 0
    write_recipe(content, folder / "r.yaml")
    draws = np.random.default_rng(0)
    arrays = {
        f"{split}_{what}": draws.integers(
            0, 255 if what == "images" else 3, (n, *((8, 8) if what == "images" else ())), dtype=np.uint8
        )
        for split, n in (("train", 60), ("val", 12), ("test", 12))
        for what in ("images", "labels")
    }
    np.savez_compressed(folder / "scans.npz", **arrays)
    images = recipe("fedavg")
    images["trainer"] |= {"max_rounds": 2, "devices": 1}
    images["model"]["init_args"]["num_classes"] = 3
    images["data"]["init_args"] = {
        "name": "scans.npz",
        "partitioner": {"class_path": "IID", "init_args": {"num_clients": 3}},
        "batch_size": 8,
    }
    write_recipe(images, folder / "images.yaml")
    for silo in ("north", "south"):
        for label in ("cat", "dog"):
            (folder / "folders" / silo / label).mkdir(parents=True)
            for i in range(10):
                pixels = draws.integers(0, 255, (8, 8), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / "folders" / silo / label / f"{i}.png")
    images["model"]["init_args"]["num_classes"] = 2
    images["data"] = {
        "class_path": "ImageFolders",
        "init_args": {"root": "folders", "size": 8, "channels": 1, "batch_size": 8},
    }
    write_recipe(images, folder / "folders.yaml")
    network = resnet18(weights=None)
    network.fc = torch.nn.Identity()
    torch.save(network.state_dict(), folder / "weights.pt")
    weights = {"path": "weights.pt", "module": "network.encoder"}
    images["trainer"] |= {"max_rounds": 1, "callbacks": [{"class_path": "PretrainedWeights", "init_args": weights}]}
    images["data"]["init_args"] |= {"channels": 3, "size": 32}
    images["model"]["init_args"] = {
        "network": "resnet18",
        "in_shape": [3, 32, 32],
        "num_classes": 2,
        "learning_rate": 0.01,
    }
    write_recipe(images, folder / "weights.yaml")
    table = recipe("table")
    table["trainer"] |= {"max_rounds": 2, "devices": 1}
    write_recipe(table, folder / "table.yaml")
    card = (
        "name: mine\ntitle: Mine\ntask: regression\nformat: csv\n"
        "files:\n  - name: a.csv\n    sha256: [{}]\n    addresses: []\n"
        "columns:\n  smiles: smiles\n  targets:\n    - {{name: y, unit: m}}\n  groups: [lab]\nrows: 44\nstandin: null\n"
        "licence: MIT\ncitation: none\nnote: none\n"
    )
    from hashlib import sha256

    (folder / "card.yaml").write_text(card.format(sha256((folder / "a.csv").read_bytes()).hexdigest()))
    carded = recipe("drflm")
    carded["trainer"] |= {"max_rounds": 2, "devices": 1}
    carded["data"] = {
        "class_path": "MoleculeNet",
        "init_args": {
            "name": "card.yaml",
            "data_root": ".",
            "partitioner": {"class_path": "GroupBy", "init_args": {"column": "lab"}},
            "batch_size": 4,
        },
    }
    write_recipe(carded, folder / "card_recipe.yaml")
    cells = {
        "title": "Small",
        "metric": "rmse",
        "seeds": [0],
        "arms": {"one": "r.yaml", "two": {"recipe": "r.yaml", "overrides": {"model.learning_rate": 0.02}}},
        "claims": ["mean(one) > mean(two)"],
        "table": {"statistics": ["mean", "worst"]},
    }
    write_recipe(cells, folder / "cells.yaml")


def _prepared(lab: Laboratory) -> Path:
    """A folder with data, recipes, two finished runs and a filled cache."""

    def make() -> Path:
        folder = lab.folder("prepared", 0)
        _write_everything(folder)
        for seed in ("0", "1"):
            command = _run(lab, folder, [*_FIT, "--seed_everything", seed])
            if command.code:
                raise RuntimeError(f"the run to be damaged fails: {command.err}")
        return folder

    return lab.once("prepared", make)


def _run(lab: Laboratory, folder: Path, words: list[str]) -> Started:
    command = lab.start(["-m", "lightning_fl", *words], folder, {"LIGHTNING_FL_CACHE": str(folder / "cache")})
    command.wait(LIMIT)
    return command


def _results(folder: Path, before: set[Path]) -> dict[str, Any]:
    """What a command has made."""
    found: dict[str, Any] = {}
    for run in sorted(folder.glob("runs/version_*")):
        if run not in before:
            found |= {
                f"{run.name}/{name}": value
                for name, value in record_of(run).items()
                if not name.startswith(("config.yaml", "summary.json:data.sha256"))
            }
    for path in (folder / "personal.ckpt",):
        if path.is_file():
            found |= record_of_file(path)
    for path in sorted((folder / "compared").rglob("*.csv")):
        found[path.name] = path.read_text()
    for path in sorted(folder.rglob("study.json")):
        found[path.name] = "is there"
    return found


def record_of_file(path: Path) -> dict[str, Any]:
    """A model's tensors."""
    content = tensors(path)
    return {name: value.numpy().tobytes() for name, value in content["state_dict"].items()}


def _expected(lab: Laboratory, reading: Reading) -> dict[str, Any]:
    """What the command makes of files as they should be."""

    def make() -> dict[str, Any]:
        folder = lab.folder("whole", READINGS.index(reading))
        shutil.copytree(_prepared(lab), folder, dirs_exist_ok=True, symlinks=True)
        before = set(folder.glob("runs/version_*"))
        command = _run(lab, folder, reading.words)
        if command.code:
            raise RuntimeError(f"{reading.words} fails on whole files: {command.err[-600:]}")
        found = _results(folder, before)
        lab.clean(folder)
        return found

    return lab.once(f"expected {READINGS.index(reading)}", make)


def trial(lab: Laboratory, seed: int) -> Outcome:
    """One file, one damage, one command."""
    draws = random.Random(f"files {seed}")
    of_silos = random.Random(f"files of silos {seed}")
    if of_silos.random() < 0.1:
        return trial_silo(lab, seed, of_silos)
    reading = draws.choice(READINGS)
    expected = _expected(lab, reading)
    folder = lab.folder("files", seed)
    shutil.copytree(_prepared(lab), folder, dirs_exist_ok=True, symlinks=True)
    before = set(folder.glob("runs/version_*"))
    path = next((folder / "cache").rglob("*.pt")) if reading.file == "{cache}" else folder / reading.file
    others = [folder / "a.csv", folder / "scans.npz", folder / _LAST, folder / "runs/version_1/models/shared_0.ckpt"]
    others += [folder / "runs/version_1/checkpoints/last.ckpt", folder / "runs/version_1/summary.json"]
    how = damage(path, others, draws)
    case = f"{reading.file} {how}; {' '.join(reading.words)}"
    command = _run(lab, folder, reading.words)
    if executed(folder, command.temporary):
        return Outcome("files", seed, BAD, case, "THE PAYLOAD WAS EXECUTED")
    if command.code is None:
        return Outcome("files", seed, BAD, case, "hang")
    if command.code:
        names = [
            path.name,
            path.stem,
            path.parent.name if how in GONE else "",
            "cells" if "study" in reading.words else "",
        ]
        return Outcome("files", seed, *_with_case(judge_refusal(command, folder / "nothing", names), case))
    found = _results(folder, before)
    lines = differences(expected, found)
    said = any(word in command.err for word in (path.name, str(path.parent.name), "sha256"))
    if not lines or said:
        return Outcome("files", seed, GOOD, case, "said" if said else "no effect")
    if how == "missing" and path.suffix == ".png":
        return Outcome("files", seed, GOOD, case, "one picture of many fewer")
    if (
        not reading.checked
        and how in ("one bit", "hundred bits", "zeros", "cut", "cut by one byte", "doubled")
        and path.suffix in (".csv", ".yaml", ".json", ".png")
    ):
        return Outcome("files", seed, GOOD, case, "reads otherwise")
    return Outcome("files", seed, BAD, case, f"exit 0, other results: {summary_of(lines)}")


def _with_case(judged: tuple[str, str], case: str) -> tuple[str, str, str]:
    return judged[0], case, judged[1]
