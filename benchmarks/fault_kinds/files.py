"""Damaged and hostile files in the place of every file that a command reads."""

import os
import pickle
import random
import shutil
import struct
import zipfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from fault_kinds.judging import LIMIT, judge_refusal
from fault_kinds.laboratory import Laboratory
from fault_kinds.outcome import BAD, GOOD, Outcome
from fault_kinds.record import differences, record_of, summary_of, tensors
from fault_kinds.small_recipes import recipe, write_data, write_recipe
from fault_kinds.warm_python import Started

__all__ = ["trial"]

#: What a payload makes when it is run.
MARKER = "EXECUTED"


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


class _Payload:
    def __reduce__(self) -> Any:
        return os.mkdir, (MARKER,)


def _pickled() -> bytes:
    return pickle.dumps(_Payload())


def _saved_by_torch() -> bytes:
    buffer = BytesIO()
    torch.save({"state_dict": _Payload(), "lightning_fl_version": "0.1.0"}, buffer)
    return buffer.getvalue()


def _objects() -> bytes:
    buffer = BytesIO()
    parts: dict[str, Any] = {
        name: np.array([_Payload()], dtype=object) for name in ("train_images", "train_labels", "x")
    }
    np.savez(buffer, **parts)
    return buffer.getvalue()


def _zip_bomb() -> bytes:
    """A few hundred kilobytes that announce an array of 300 MB."""
    buffer = BytesIO()
    header = BytesIO()
    shape: dict[str, Any] = {"descr": "|u1", "fortran_order": False, "shape": (300_000_000,)}
    np.lib.format.write_array_header_1_0(header, shape)
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("train_images.npy", "w") as file:
        file.write(header.getvalue())
        for _ in range(300):
            file.write(bytes(1_000_000))
    return buffer.getvalue()


def _announced() -> bytes:
    """A zip file whose array's header announces more than any machine has."""
    buffer, header = BytesIO(), BytesIO()
    shape: dict[str, Any] = {"descr": "<f8", "fortran_order": False, "shape": (10**15,)}
    np.lib.format.write_array_header_1_0(header, shape)
    with zipfile.ZipFile(buffer, "w") as archive:
        for name in ("train_images.npy", "train_labels.npy"):
            archive.writestr(name, header.getvalue() + bytes(100))
    return buffer.getvalue()


def _flip(content: bytes, draws: random.Random, count: int) -> bytes:
    changed = bytearray(content)
    for _ in range(count):
        changed[draws.randrange(len(changed))] ^= 1 << draws.randrange(8)
    return bytes(changed)


def _zeroed(content: bytes, draws: random.Random) -> bytes:
    at = draws.randrange(len(content))
    size = min(len(content) - at, 1 + draws.randrange(512))
    return content[:at] + bytes(size) + content[at + size :]


def _damage(path: Path, others: list[Path], draws: random.Random) -> str:
    """Damage a file; what was done."""
    content = path.read_bytes()
    other = draws.choice([one for one in others if one.read_bytes() != content])
    changes: dict[str, Callable[[], bytes]] = {
        "cut": lambda: content[: draws.randrange(len(content))],
        "cut by one byte": lambda: content[:-1],
        "empty": lambda: b"",
        "one bit": lambda: _flip(content, draws, 1),
        "one bit ": lambda: _flip(content, draws, 1),
        "hundred bits": lambda: _flip(content, draws, 100),
        "zeros": lambda: _zeroed(content, draws),
        "doubled": lambda: content + content,
        "random bytes": lambda: draws.randbytes(len(content) or 10),
        f"swapped with {other.name}": other.read_bytes,
        "text": lambda: b"hello, this is no such file\n",
        "a pickle with a payload": _pickled,
        "torch.save with a payload": _saved_by_torch,
        "npz of objects": _objects,
        "zip bomb": _zip_bomb,
        "announces petabytes": _announced,
        "PNG of a billion pixels": lambda: _large_png(),
        "deep JSON": lambda: b'{"a":' * 20_000 + b"1" + b"}" * 20_000,
        "JSON list": lambda: b"[1, 2]",
        "JSON null": lambda: b"null",
        "YAML payload": lambda: f"model: !!python/object/apply:os.mkdir [{MARKER}]\n".encode(),
        "missing": lambda: b"",
        "a folder": lambda: b"",
        "a link to itself": lambda: b"",
        "a pipe": lambda: b"",
    }
    how = draws.choice(list(changes))
    new = changes[how]()
    if how in ("missing", "a folder", "a link to itself", "a pipe"):
        path.unlink()
        if how == "a folder":
            path.mkdir()
        elif how == "a link to itself":
            path.symlink_to(path.name)
        elif how == "a pipe":
            os.mkfifo(path)
    else:
        path.write_bytes(new)
        how += "" if new != content else " (the same)"
    return how.strip()


def _large_png() -> bytes:
    import zlib

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    head = struct.pack(">IIBBBBB", 40_000, 40_000, 8, 0, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")
    )


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
    torch.save(resnet18(weights=None).state_dict(), folder / "weights.pt")
    images["trainer"]["max_rounds"] = 1
    images["data"]["init_args"] |= {"channels": 3, "size": 32}
    images["model"]["init_args"] = {
        "network": "resnet18",
        "in_shape": [3, 32, 32],
        "num_classes": 2,
        "weights_file": "weights.pt",
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
    reading = draws.choice(READINGS)
    expected = _expected(lab, reading)
    folder = lab.folder("files", seed)
    shutil.copytree(_prepared(lab), folder, dirs_exist_ok=True, symlinks=True)
    before = set(folder.glob("runs/version_*"))
    path = next((folder / "cache").rglob("*.pt")) if reading.file == "{cache}" else folder / reading.file
    others = [folder / "a.csv", folder / "scans.npz", folder / _LAST, folder / "runs/version_1/models/shared_0.ckpt"]
    others += [folder / "runs/version_1/checkpoints/last.ckpt", folder / "runs/version_1/summary.json"]
    how = _damage(path, others, draws)
    case = f"{reading.file} {how}; {' '.join(reading.words)}"
    command = _run(lab, folder, reading.words)
    if any(folder.rglob(MARKER)) or (command.temporary / MARKER).exists():
        return Outcome("files", seed, BAD, case, "THE PAYLOAD WAS EXECUTED")
    if command.code is None:
        return Outcome("files", seed, BAD, case, "hang")
    if command.code:
        gone = how in ("missing", "a folder", "a link to itself", "a pipe")
        names = [path.name, path.stem, path.parent.name if gone else "", "cells" if "study" in reading.words else ""]
        return Outcome("files", seed, *_with_case(judge_refusal(command, folder / "nothing", names), case))
    found = _results(folder, before)
    lines = differences(expected, found)
    said = any(word in command.err for word in (path.name, str(path.parent.name), "sha256"))
    if not lines or said:
        return Outcome("files", seed, GOOD, case, "said" if said else "no effect")
    if (
        not reading.checked
        and how in ("one bit", "hundred bits", "zeros", "cut", "cut by one byte", "doubled")
        and path.suffix in (".csv", ".yaml", ".json", ".png")
    ):
        return Outcome("files", seed, GOOD, case, "reads otherwise")
    return Outcome("files", seed, BAD, case, f"exit 0, other results: {summary_of(lines)}")


def _with_case(judged: tuple[str, str], case: str) -> tuple[str, str, str]:
    return judged[0], case, judged[1]
