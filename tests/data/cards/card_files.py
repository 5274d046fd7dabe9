"""Cards of molecules and images that tests write and change."""

from pathlib import Path

import yaml

CARD = {
    "name": "mine",
    "title": "My molecules",
    "task": "regression",
    "format": "csv",
    "files": [{"name": "mine.csv", "sha256": ["0" * 64], "addresses": ["https://example.org/mine.csv"]}],
    "columns": {"smiles": "smiles", "targets": [{"name": "y", "unit": "kcal/mol"}], "groups": ["lab"]},
    "rows": 3,
    "standin": None,
    "licence": "CC0",
    "citation": "none",
    "note": "for tests",
}


def write(folder: Path, **changes: object) -> Path:
    path = folder / "mine.yaml"
    path.write_text(yaml.safe_dump(CARD | changes))
    return path


def without(entry: dict, key: str) -> dict:
    return {name: value for name, value in entry.items() if name != key}


FILE, COLUMNS = CARD["files"][0], CARD["columns"]


IMAGES = {
    "name": "mine",
    "title": "My pictures",
    "task": "classification",
    "format": "npz",
    "files": [{"name": "mine.npz", "sha256": [], "addresses": []}],
    "torchvision": {
        "dataset": "EMNIST",
        "train": {"split": "letters", "train": True},
        "test": {"split": "letters", "train": False},
        "files": ["a/b"],
        "first_label": 1,
    },
    "image": {"channels": 3, "size": 32},
    "classes": ["cat", "dog", 7],
    "coarse_classes": ["animal", "number"],
    "rows": {"train": 1000, "test": 200},
    "standin": "digits",
    "licence": "CC0",
    "citation": "none",
    "note": "for tests",
}
TORCHVISION = IMAGES["torchvision"]
FOLDER = {"layout": "leaf", "names": ["mine", "b/mine"], "parts": [{"train": ["train"], "test": ["test"]}]}
#: Changes to a card of grey images in LEAF's files.
LEAF = {"folder": FOLDER, "image": {"channels": 1, "size": 28}, "coarse_classes": ...}


def write_image_card(place: Path, **changes: object) -> Path:
    path = place / "mine.yaml"
    content = {key: value for key, value in (IMAGES | changes).items() if value is not ...}
    path.write_text(yaml.safe_dump(content))
    return path
