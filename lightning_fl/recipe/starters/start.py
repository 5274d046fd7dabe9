"""Files that ``lightning-fl init`` writes: a recipe, a module, and example data if the user has none."""

import io
import os
import random
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from itertools import product
from pathlib import Path

from lightning_fl.core.errors import ConfigurationError, did_you_mean
from lightning_fl.core.escaping import csv_text
from lightning_fl.core.validation import documented

#: Answer -> what it means.
DATA = {
    "molecules": "a CSV of molecules, as SMILES",
    "table": "a CSV of numbers and texts, with a column to predict",
    "images": "a folder of images for each client, in it a folder for each class",
    "own": "PyTorch data sets that you write",
}
TASKS = {"classification": "classes", "regression": "numbers"}
ALGORITHMS = {
    "fedavg": "one shared model for all clients (FedAvg)",
    "drfa": "one shared model, good for the worst client (DRFA)",
    "ditto": "a model for each client, drawn to a shared one (Ditto)",
    "ifca": "a model for each of two groups of clients (IFCA)",
}
_ENDS = ("O", "N", "Cl", "Br", "F", "S")


@documented
@dataclass(frozen=True, kw_only=True)
class Answers:
    """Answers to the questions, and the place of the data."""

    data: str = "ask"
    """question 1, the data: molecules, table, images, own"""
    task: str = "ask"
    """question 2, what is predicted: classification, regression"""
    algorithm: str = "ask"
    """question 3, how it is learned: fedavg, drfa, ditto, ifca"""
    file: str | None = None
    """your file, or folder of images (default: made-up data)"""
    target: str | None = None
    """the file's column to predict"""
    clients: str | None = None
    """the file's column with the client of a row"""
    smiles: str | None = None
    """the file's column of molecules (default: smiles, SMILES, ...)"""

    def __post_init__(self) -> None:
        for name, known in (("data", DATA), ("task", TASKS), ("algorithm", ALGORITHMS)):
            if (value := getattr(self, name)) not in (*known, "ask"):
                hint = did_you_mean(value, known) or f"; choose one of {', '.join(known)}"
                raise ConfigurationError(f"--{name} {value}: unknown value{hint}.")

    def check(self) -> None:
        """Raise a ConfigurationError for an impossible combination."""
        data, file = self.data, self.file is not None
        named = bool(self.target or self.clients)
        table = data in ("molecules", "table")
        classes = "images have classes only. Use --data own, whose data.py you fill, or --task classification"
        columns = "name the column to predict with --target, and the column with the client of each row with --clients"
        for refused, reason in (
            (self.task == "regression" and data == "images", f"--data images --task regression: {classes}."),
            (named and not file, "--target and --clients name columns of a file: give --file too."),
            (file and data == "own", "--file with --data own: read the file in the data.py that is written."),
            (file and named and data == "images", "--target and --clients name columns, which images lack: omit them."),
            (file and table and not (self.target and self.clients), f"--file {self.file}: {columns}."),
        ):
            if refused:
                raise ConfigurationError(reason)


def starter_files(answers: Answers, folder: Path = Path()) -> dict[str, bytes]:
    """Make the files of a folder, name -> content, or refuse answers that do not fit together or the user's file."""
    answers.check()
    made: dict[str, bytes] = {}
    path, target, clients = answers.file, answers.target, answers.clients
    channels, smiles = 3, answers.smiles or "smiles"
    if path is not None and answers.data == "images":
        num_classes, channels = _look_at_images(Path(path).expanduser())
    elif path is not None:
        num_classes, smiles = _look_at_table(answers, Path(path).expanduser())
    if path is not None:
        path = path if Path(path).expanduser().is_absolute() else os.path.relpath(path, folder)
    else:
        by_task = "label" if answers.task == "classification" else "response"
        num_classes, target, clients = 2, "activity" if answers.data == "molecules" else by_task, "site"
        made = _made_up(answers)
        path = {"molecules": "example.csv", "table": "example.csv", "images": "example"}.get(answers.data)
    one = answers.task == "regression" or answers.data == "molecules"
    words = vars(answers) | {
        "num_outputs": 1 if one else num_classes,
        "headline": f"{ALGORITHMS[answers.algorithm]}, of {DATA[answers.data]}; {answers.task}.",
        "made_up": "" if answers.file is not None else path or "data.py",
        "path": path,
        "smiles": smiles,
        "channels": channels,
        "target": target,
        "clients": clients,
    }
    names = ["recipe.yaml", "module.py", *(["data.py"] if answers.data == "own" else [])]
    return {name: _fill(name, words).encode() for name in names} | made


def _fill(name: str, words: Mapping[str, object]) -> str:
    from jinja2 import Environment, StrictUndefined

    text = files("lightning_fl.recipe.starters").joinpath(f"{name}.j2").read_text(encoding="utf-8")
    environment = Environment(
        trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined, keep_trailing_newline=True
    )
    return environment.from_string(text).render(words)


def _look_at_images(folder: Path) -> tuple[int, int]:
    """The numbers of classes and of channels of the user's folder of images."""
    from PIL import Image
    from torchvision.datasets.folder import IMG_EXTENSIONS

    from lightning_fl.data import ImageFolders

    if not folder.is_dir():
        raise ConfigurationError(f"--file {folder}: there is no such folder.")
    data = ImageFolders(root=str(folder), size=1)
    data.setup()
    images = (path for path in folder.glob("[!.]*/**/[!.]*") if path.suffix.lower() in IMG_EXTENSIONS)
    firsts = {path.parent: path for path in images if path.parent.name in data.class_names}
    modes = set()
    for path in firsts.values():
        with Image.open(path) as image:
            modes.add(image.mode)
    grey = bool(modes) and all(mode in ("1", "L", "LA") or mode.startswith("I") for mode in modes)
    return len(data.class_names), 1 if grey else 3


def _look_at_table(answers: Answers, path: Path) -> tuple[int, str]:
    """The number of classes of the user's file, and its column of molecules."""
    if not path.is_file():
        raise ConfigurationError(f"--file {path}: there is no such file.")
    from lightning_fl.files.table_file import read_table_file
    from lightning_fl.files.text_table import read_numbers, refuse_values, smiles_name

    molecules = answers.data == "molecules"
    table = read_table_file(path, smiles=(answers.smiles or "smiles") if molecules else None)
    there = list(map(str, table.columns))
    smiles = smiles_name(there, answers.smiles or "smiles")
    for option, column in (("target", answers.target), ("clients", answers.clients), ("smiles", smiles)):
        if column not in there and (option != "smiles" or molecules):
            hint = f"{did_you_mean(str(column), there)}; it has {', '.join(there)}. Name yours with --{option}"
            raise ConfigurationError(f"--{option} {column}: {path} has no such column{hint}.")
    target = table[answers.target]
    numbers, texts = read_numbers(target)
    if molecules and answers.task == "classification":
        wrong = target[target.index.isin(texts.index) | (numbers.notna() & ~numbers.isin([0, 1]))]
        remedy = "Rewrite the classes as 0 and 1, or use --task regression"
        refuse_values(wrong, f"{path}, target column {answers.target!r}", "are neither 0 nor 1", remedy)
    return max(2, (target if len(texts) else numbers).nunique()), smiles


def _made_up(answers: Answers) -> dict[str, bytes]:
    """Example data, always the same."""
    draws, sites = random.Random(0), ("north", "south", "west")
    classes = answers.task == "classification"
    if answers.data == "molecules":
        rows = [["smiles", "activity", "site"]]
        for number, (length, end) in enumerate(product(range(1, 16), _ENDS)):
            value = 0.3 * length + _ENDS.index(end) * 0.1 - 2
            shown = str(int(value > 0)) if classes else f"{value:.2f}"
            rows.append(["C" * length + end, shown, sites[number % 3]])
        return {"example.csv": csv_text(rows).encode()}
    if answers.data == "table":
        rows = [["age", "dose", "kind", "site", "label" if classes else "response"]]
        for number in range(150):
            age, dose, kind = draws.randint(20, 80), draws.random(), draws.choice("ab")
            value = age / 80 + dose + (kind == "a")
            label = ("yes" if value > 1.5 else "no") if classes else f"{value:.3f}"
            rows.append([str(age), f"{dose:.3f}", kind, sites[number % 3], label])
        return {"example.csv": csv_text(rows).encode()}
    found: dict[str, bytes] = {}
    if answers.data == "images":
        from PIL import Image

        colours = {"blue": (40, 60, 200), "red": (200, 60, 40)}
        for site, name, number in product(sites, colours, range(12)):
            shade = tuple(min(255, max(0, part + draws.randint(-40, 40))) for part in colours[name])
            picture = io.BytesIO()
            Image.new("RGB", (32, 32), shade).save(picture, format="PNG")
            found[f"example/{site}/{name}/{number:02d}.png"] = picture.getvalue()
    return found
