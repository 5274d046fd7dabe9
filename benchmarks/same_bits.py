"""Whether two checkouts of the package compute the same bits, on every shipped recipe, on one process and on several.

    python benchmarks/same_bits.py record --python OLD/.venv/bin/python --recipes OLD/recipes --out bits/old
    python benchmarks/same_bits.py record --python NEW/.venv/bin/python --recipes NEW/recipes --out bits/new
    python benchmarks/same_bits.py compare bits/old bits/new

``record`` runs ``PYTHON -m lightning_fl fit`` for each RECIPES/*.yaml (all, or ``--only NAME...``) with each number of
processes in ``--devices``, on the CPU, for ``--rounds`` rounds, one run after another, from a folder of no checkout:
which package that Python finds is printed first. ``--set KEY=VALUE`` overrides a setting in every run. What a run left
is written to OUT/RECIPE-PROCESSES.json as path -> value:

- ``summary``: every value of ``summary.json``;
- ``checkpoints``: every value of ``models/*.ckpt`` (state, hyper-parameters, epoch) and of ``checkpoints/*.ckpt``
  (``last.ckpt``, ``best.ckpt``), tensors as type, shape and the sha256 of their bits; how the file is laid out, the
  order of a dictionary, and whether a sequence is a list or a tuple do not count;
- ``tables``: the sha256 of each column of ``metrics.csv`` and of the other CSV files.

Left out are, wherever they stand, the keys ``*_seconds`` (wall-clock time: ``wall_time_seconds``,
``distance_seconds``), ``versions`` and ``*_version`` (of packages), ``num_processes`` and ``resumed_from``, columns of
such names, and of ``module``, the import path of the model's class, all but the class's name. The run's folder, OUT and
``LIGHTNING_FL_DATA`` are cut off where a text holds them. Figures, TensorBoard's files and the resolved settings are
not looked at. A record says which ``versions`` of packages it was made with, which are not compared.

Nothing is downloaded, and features of molecules are kept in OUT/cache alone. The environment is passed on otherwise:
with ``LIGHTNING_FL_DATA`` set, recipes use the measured data that lie there, without it their stand-ins. Recipes whose
data are not at hand are recorded as skipped with the reason, runs that fail with the end of what they said, runs longer
than ``--timeout`` seconds as such. What is recorded is not run again, so ``record`` goes on where it was interrupted;
``--again`` runs what has not ended well.

``compare`` prints a line for each recipe and number of processes and one for whether all numbers of processes gave the
same bits on either side. Its exit status is 1 if anything differs, if one side lacks something, or if nothing could be
compared. What both sides skipped, or failed at with the same status, is named and counted as not compared. ``--common``
leaves out what stands on one side alone, such as a checkpoint's field that only one version has, and counts it.
"""

import argparse
import csv
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

#: Keys and columns that say when, how long, how or with what a run was made.
LEFT_OUT = re.compile(r"(.*_)?seconds|versions|.*_version|num_processes|resumed_from")
#: What the command line says of data that are not at hand; its exit code is 2 then.
NOT_AT_HAND = re.compile(r"error: (\S+ .*?of data set \S+ was not found)")
#: Set on this machine for other reasons, but the command line's own choice, or what it does without them, is compared.
UNSET = ("OMP_NUM_THREADS", "PYTHONDONTWRITEBYTECODE")
DONE = "done"
SKIPPED = "skipped"
#: Differing keys that are shown.
SHOWN = 3

#: Path -> number, text, or the description of a tensor.
Values = dict[str, Any]


def described(tensor: Tensor) -> str:
    """A tensor's type, shape and bits."""
    plain = tensor.detach().cpu().to_dense().contiguous()
    bits = plain.reshape(-1).view(torch.uint8).numpy().tobytes()
    kind = str(plain.dtype).removeprefix("torch.")
    return f"{kind} {list(plain.shape)} sha256:{hashlib.sha256(bits).hexdigest()}"


def leaves(content: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every value of nested dictionaries and sequences with its path."""
    if isinstance(content, dict) and content:
        for key, value in content.items():
            if not LEFT_OUT.fullmatch(str(key)):
                yield from leaves(value, f"{path}/{key}" if path else str(key))
    elif isinstance(content, set | frozenset):
        yield from leaves(sorted(content), path)
    elif isinstance(content, list | tuple) and content:
        for i, value in enumerate(content):
            yield from leaves(value, f"{path}/{i}")
    elif isinstance(content, Tensor):
        yield path, described(content)
    elif content is None or isinstance(content, bool | int | float | str):
        yield path, content
    elif isinstance(content, dict | list | tuple):
        yield path, "empty"
    else:
        raise TypeError(f"{path} is a {type(content).__name__}, which is not compared: teach leaves() how.")


def flat(content: Any, cut: dict[str, str]) -> Values:
    """Path -> value, with the folders of this run cut off from texts."""
    values: Values = {}
    for path, value in leaves(content):
        if path in values:
            raise ValueError(f"two values have the path {path}.")
        if isinstance(value, str):
            for folder, name in cut.items():
                value = value.replace(folder, name)
        values[path] = value
    return values


def checkpoint(path: Path, cut: dict[str, str]) -> Values:
    """The values of a checkpoint, read without running any code from it."""
    content = torch.load(path, map_location="cpu", weights_only=True)
    if isinstance(content.get("module"), str):
        content["module"] = content["module"].rpartition(".")[2]
    return flat(content, cut)


def columns(path: Path) -> Values:
    """Column -> sha256 of its cells as they are written."""
    with path.open(newline="") as file:
        names, *rows = csv.reader(file)
    return {
        name: hashlib.sha256("\n".join(row[i] for row in rows).encode()).hexdigest()
        for i, name in enumerate(names)
        if not LEFT_OUT.fullmatch(name)
    }


def results(folder: Path, cut: dict[str, str]) -> dict[str, Any]:
    """What a run left in its folder."""
    read: dict[int, Values] = {}  # clients' models may be links to a shared one
    checkpoints = {}
    for path in sorted([*folder.glob("models/*.ckpt"), *folder.glob("checkpoints/*.ckpt")]):
        file = path.stat().st_ino
        if file not in read:
            read[file] = checkpoint(path, cut)
        checkpoints[str(path.relative_to(folder))] = read[file]
    summary = json.loads((folder / "summary.json").read_text())
    return {
        "versions": summary.get("versions"),
        "summary": flat(summary, cut),
        "checkpoints": checkpoints,
        "tables": {str(path.relative_to(folder)): columns(path) for path in sorted(folder.rglob("*.csv"))},
    }


def environment(out: Path) -> dict[str, str]:
    """What runs see."""
    kept = {name: value for name, value in os.environ.items() if name not in UNSET}
    return {**kept, "LIGHTNING_FL_OFFLINE": "1", "LIGHTNING_FL_CACHE": str(out / "cache")}


def run(command: list[str], folder: Path, env: dict[str, str], timeout: float) -> tuple[int | None, str]:
    """Run a command in a folder: its exit code, ``None`` if it took too long, and what it wrote to standard error."""
    with tempfile.TemporaryFile("w+", errors="replace") as errors:
        process = subprocess.Popen(
            command, cwd=folder, env=env, stdout=subprocess.DEVNULL, stderr=errors, start_new_session=True
        )
        code: int | None = None
        try:
            code = process.wait(timeout)
        except subprocess.TimeoutExpired:
            pass
        finally:
            if process.poll() is None:  # with the processes that it started
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        errors.seek(0)
        return code, errors.read()


def record_run(arguments: argparse.Namespace, recipe: Path, devices: int) -> dict[str, Any]:
    """Run a recipe once; what is written of it."""
    with tempfile.TemporaryDirectory(prefix="same_bits_") as name:
        place = Path(name).resolve()
        settings = {
            "trainer.max_rounds": arguments.rounds,
            "trainer.devices": devices,
            "trainer.accelerator": "cpu",
            "trainer.enable_progress_bar": "false",
            "trainer.default_root_dir": place / "run",
        }
        command = [arguments.python, "-m", "lightning_fl", "fit", "--config", str(recipe)]
        command += [f"--{key}={value}" for key, value in settings.items()]
        command += [f"--{override}" for override in arguments.set]
        code, errors = run(command, place, environment(arguments.out), arguments.timeout)
        tail = errors.strip().splitlines()[-15:]
        if code is None:
            return {"status": "timeout", "reason": f"longer than {arguments.timeout:g} s", "stderr": tail}
        if code == 2 and (missing := NOT_AT_HAND.search(errors)):
            return {"status": SKIPPED, "reason": missing[1]}
        if code:
            return {"status": "failed", "reason": f"exit code {code}", "stderr": tail}
        cut = {str(place): "RUN", str(arguments.out): "OUT"}
        if data := os.environ.get("LIGHTNING_FL_DATA"):
            cut[data.rstrip("/")] = "LIGHTNING_FL_DATA"
        try:
            (folder,) = (place / "run").glob("version_*")
            if (ran := json.loads((folder / "summary.json").read_text())["num_processes"]) != devices:
                raise ValueError(f"ran on {ran} processes instead of {devices}.")
            return {"status": DONE, **results(folder, cut)}
        except Exception as error:  # a run without a summary, or one that this script cannot read
            return {"status": "failed", "reason": f"{type(error).__name__}: {error}", "stderr": tail}


def write_whole(content: dict[str, Any], path: Path) -> None:
    """Write a JSON file whole or not at all."""
    part = path.with_suffix(".part")
    part.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n")
    part.replace(path)


def record(arguments: argparse.Namespace) -> int:
    """Run the recipes that are not recorded yet."""
    arguments.out = arguments.out.resolve()
    arguments.python = os.path.abspath(arguments.python)  # not resolved: an environment's Python is a link
    recipes = {path.stem: path for path in sorted(arguments.recipes.resolve().glob("*.yaml"))}
    unknown = sorted(set(arguments.only) - set(recipes))
    if unknown or not recipes:
        print(f"{arguments.recipes} has no {', '.join(unknown) or 'recipe'}.", file=sys.stderr)
        return 2
    arguments.out.mkdir(parents=True, exist_ok=True)
    where = [arguments.python, "-c", "import lightning_fl; print(lightning_fl.__file__)"]
    package = subprocess.run(where, cwd=arguments.out, env=environment(arguments.out), capture_output=True, text=True)
    print(f"package: {package.stdout.strip() or package.stderr.strip()}", flush=True)
    if package.returncode:
        return 2
    for name, recipe in recipes.items():
        for devices in arguments.devices:
            if arguments.only and name not in arguments.only:
                continue
            path = arguments.out / f"{name}-{devices}.json"
            settings = {"recipe": name, "processes": devices, "rounds": arguments.rounds, "set": arguments.set}
            if path.is_file():
                known = json.loads(path.read_text())
                if known["settings"] != settings:
                    print(f"{path} was recorded with {known['settings']}: give another --out.", file=sys.stderr)
                    return 2
                if known["status"] == DONE or not arguments.again:
                    continue
            begin = time.monotonic()
            outcome = record_run(arguments, recipe, devices)
            taken = time.monotonic() - begin
            write_whole({"settings": settings, "took_seconds": round(taken, 1), **outcome}, path)
            print(f"{title(name, devices)}: {in_words(outcome)}, {taken:.0f} s", flush=True)
    return 0


def title(recipe: str, processes: int) -> str:
    """How a run is called."""
    return f"{recipe}, {processes} process{'' if processes == 1 else 'es'}"


def in_words(outcome: dict[str, Any]) -> str:
    """How a run ended."""
    if outcome["status"] == DONE:
        return DONE
    return f"{outcome['status']} ({'; '.join([outcome['reason'], *outcome.get('stderr', [])[-1:]])})"


def all_values(outcome: dict[str, Any]) -> Values:
    """Every value of a run, with the file that it stands in."""
    if outcome["status"] != DONE:
        return {}
    files = {"summary.json": outcome["summary"], **outcome["checkpoints"], **outcome["tables"]}
    return {f"{file}: {path}": value for file, values in files.items() for path, value in values.items()}


def differences(one: dict[str, Any], other: dict[str, Any], *, common: bool = False) -> list[str]:
    """What differs between two runs, bit by bit: 1 is not 1.0, 0.0 is not -0.0, NaN is NaN."""
    first, second = all_values(one), all_values(other)
    found = []
    for path in sorted(first.keys() & second.keys() if common else first.keys() | second.keys()):
        sides = [json.dumps(values[path]) if path in values else "lacking" for values in (first, second)]
        if sides[0] != sides[1]:
            found.append(f"{path}: {sides[0]} / {sides[1]}")
    return found


def unlike_settings(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """How two runs were started, if not alike."""
    names = [name for name, value in one["settings"].items() if other["settings"][name] != value]
    return [f"setting {name}: {one['settings'][name]} / {other['settings'][name]}" for name in names]


def differing(found: list[str]) -> str:
    """The first differences in words."""
    more = f"; and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
    return f"DIFFERENT in {len(found)}: {'; '.join(found[:SHOWN])}{more}"


def extent(outcome: dict[str, Any]) -> str:
    """How much of a run was compared."""
    numbers = sum(not isinstance(value, str) for value in outcome["summary"].values())
    in_files = [value for values in outcome["checkpoints"].values() for value in values.values()]
    tensors = sum(isinstance(value, str) and " sha256:" in value for value in in_files)
    hashes = sum(len(values) for values in outcome["tables"].values())
    return (
        f"{numbers} numbers and {len(outcome['summary']) - numbers} texts of summary.json,"
        f" {len(outcome['checkpoints'])} checkpoints with {tensors} tensors and {len(in_files) - tensors} other values,"
        f" {hashes} columns of {len(outcome['tables'])} tables"
    )


def recorded(folder: Path) -> dict[tuple[str, int], dict[str, Any]]:
    """The runs of a folder by recipe and number of processes."""
    runs = [json.loads(path.read_text()) for path in sorted(folder.glob("*-*.json"))]
    return {(found["settings"]["recipe"], found["settings"]["processes"]): found for found in runs}


def across_processes(runs: list[dict[str, Any]]) -> str:
    """Whether runs of one recipe on several numbers of processes left the same bits."""
    done = [found for found in runs if found["status"] == DONE]
    if len(done) < 2:
        return "not compared"
    found = [line for other in done[1:] for line in differences(done[0], other)]
    return differing(found) if found else "same bits"


def compare(arguments: argparse.Namespace) -> int:
    """Print what differs between two folders."""
    folders = (arguments.folder_a, arguments.folder_b)
    sides = tuple(recorded(folder) for folder in folders)
    counts = {"same": 0, "different": 0, "not compared": 0}
    unequal = 0
    for recipe in sorted({name for side in sides for name, _ in side}):
        for processes in sorted({number for side in sides for name, number in side if name == recipe}):
            key = (recipe, processes)
            one, other = (side.get(key) for side in sides)
            if one is None or other is None:
                result, words = "different", f"DIFFERENT: not recorded in {folders[0] if one is None else folders[1]}"
            elif one["status"] != other["status"]:
                result, words = "different", f"DIFFERENT: {in_words(one)} / {in_words(other)}"
            elif one["status"] != DONE and one["settings"] == other["settings"]:
                result, words = "not compared", f"not compared: {in_words(one)} / {in_words(other)}"
            elif found := [*unlike_settings(one, other), *differences(one, other, common=arguments.common)]:
                result, words = "different", differing(found)
            else:
                alone = len(all_values(one).keys() ^ all_values(other).keys())
                result, words = "same", f"same: {extent(one)}{f'; {alone} values on one side alone' if alone else ''}"
            counts[result] += 1
            print(f"{title(recipe, processes)}: {words}")
        own = [across_processes([run for (name, _), run in sorted(side.items()) if name == recipe]) for side in sides]
        unequal += sum(words.startswith("DIFFERENT") for words in own)
        if any(words != "not compared" for words in own):
            within = "; ".join(f"in {folder} {words}" for folder, words in zip(folders, own, strict=True))
            print(f"{recipe}, across numbers of processes: {within}")
    print(", ".join(f"{number} {words}" for words, number in counts.items()), end="")
    print(f"; {unequal} times different bits across numbers of processes")
    return int(counts["different"] > 0 or unequal > 0 or not counts["same"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    recording = commands.add_parser("record", help="run recipes and keep what they computed")
    recording.add_argument("--python", required=True, help="of the environment that has the package")
    recording.add_argument("--recipes", type=Path, required=True, help="folder of the recipes")
    recording.add_argument("--out", type=Path, required=True, help="folder for the records")
    recording.add_argument("--rounds", type=int, default=3)
    recording.add_argument("--devices", type=int, nargs="+", default=[1, 2], help="numbers of processes")
    recording.add_argument("--only", nargs="+", default=[], metavar="NAME", help="of these recipes")
    recording.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="override a setting in every run")
    recording.add_argument("--timeout", type=float, default=300, help="seconds that a run may take")
    recording.add_argument("--again", action="store_true", help="run what was skipped, failed or took too long again")
    recording.set_defaults(command=record)
    comparing = commands.add_parser("compare", help="say what differs between two records")
    comparing.add_argument("folder_a", type=Path)
    comparing.add_argument("folder_b", type=Path)
    comparing.add_argument("--common", action="store_true", help="compare what both sides have")
    comparing.set_defaults(command=compare)
    arguments = parser.parse_args()
    return int(arguments.command(arguments))


if __name__ == "__main__":
    sys.exit(main())
