"""Bad input as nobody thinks of it: recipes, tables, words and files, changed at random.

A change is drawn by the trial's seed. Each knows what it did, so that an answer can be judged: a refusal must name what
was changed; exit code 0 is right only where what was given was used, and a misspelt, doubled, moved or undefined (NaN)
setting never is.
"""

import math
import random
import re
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import yaml

from fault_kinds import csv_inputs
from fault_kinds.judging import LIMIT, judge_refusal, whole_record
from fault_kinds.laboratory import Laboratory
from fault_kinds.named_places import trial_place
from fault_kinds.outcome import BAD, GOOD, POOR, Outcome
from fault_kinds.small_recipes import recipe, write_data, write_recipe
from fault_kinds.warm_python import Started

__all__ = ["judge_accepted", "trial"]

Path_ = tuple[Any, ...]
_RECIPES = ("fedavg", "drflm", "coalitions", "tiers", "stacked", "steps", "table")

#: Put in place of any node.
_VALUES: list[Any] = [
    *(None, "", [], {}, True, False, -1, 0, 1, 2.5, -0.5, 1e30, -1e30, 10**18, 1e-300),
    *(math.nan, math.inf, -math.inf, "nan", "text", "0x10", "1e3", "💥", "a\u202eb", "x" * 5000, "../../x", "~", " 3 "),
    *([1, 2, 3], [[]], [None], {"a": 1}, {"class_path": "os.system"}, {"class_path": "FedAvg", "init_args": 3}),
    *({"class_path": "Nothing"}, {"class_path": None}, {1: 2}, [{"class_path": "LocalMixup"}], "2024-01-01", "yes"),
]


def trial(lab: Laboratory, seed: int) -> Outcome:
    """One input."""
    draws = random.Random(f"inputs {seed}")
    folder = lab.folder("inputs", seed)
    of_places = random.Random(f"places {seed}")
    if of_places.random() < 0.1:
        return trial_place(lab, seed, of_places, folder)
    write_data(folder)
    how = draws.choices(
        [_recipe_value, _recipe_key, _recipe_text, csv_inputs.trial_table, _words], [32, 22, 10, 26, 10]
    )
    return how[0](lab, seed, draws, folder)


# -- recipes -----------------------------------------------------------------------------------------------------


def _small(draws: random.Random) -> tuple[str, dict[str, Any]]:
    name = draws.choice(_RECIPES)
    content = recipe(name)
    content["trainer"]["max_rounds"] = 2
    return name, content


def _nodes(content: Any, path: Path_ = ()) -> list[Path_]:
    found = [path] if path else []
    items = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    return found + [below for key, value in items for below in _nodes(value, (*path, key))]


def _at(content: Any, path: Path_) -> Any:
    for key in path:
        content = content[key]
    return content


def _set(content: Any, path: Path_, value: Any) -> None:
    _at(content, path[:-1])[path[-1]] = value


def _names(content: Any, path: Path_) -> list[str]:
    """Words by which a message may name a node: its key, or the class whose argument it is."""
    keys = [str(key) for key in path if isinstance(key, str) and key not in ("init_args", "class_path")]
    names = keys[-1:] or [str(path[0])]
    names.append(names[0].replace("_", " "))
    if path[-1] in ("init_args", "class_path") or isinstance(path[-1], int):
        names += keys[-2:]
        around = _at(content, path[:-1])
        if isinstance(around, dict) and isinstance(around.get("class_path"), str):
            names.append(around["class_path"])
        if isinstance(path[-1], int) and isinstance(around[path[-1]], dict):
            names.append(str(around[path[-1]].get("class_path")))
    return names


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 60 else f"{text[:50]}... ({len(text)})"


def _run(lab: Laboratory, folder: Path, *words: str) -> Started:
    command = lab.start(["-m", "lightning_fl", *words], folder)
    command.wait(LIMIT)
    return command


def _recipe_value(lab: Laboratory, seed: int, draws: random.Random, folder: Path) -> Outcome:
    """Any node replaced."""
    name, content = _small(draws)
    path = draws.choice(_nodes(content))
    before, value = _at(content, path), draws.choice(_VALUES)
    if isinstance(before, (int, float)) and not isinstance(before, bool) and draws.random() < 0.5:
        value = draws.choice([math.nan, math.inf, -1, 0, -before, 1e30, 10**12, 0.5, "nan", True])
        if path[-1] in ("max_rounds", "local_steps", "local_epochs") and value in (10**12, 1e30):
            value = -3  # a long run is what was asked for
    names = [*_names(content, path), str(value)[:20] if str(value).strip() else ""]
    write_recipe(content, folder / "before.yaml")
    _set(content, path, deepcopy(value))
    write_recipe(content, folder / "r.yaml")
    case = f"{name}: {'.'.join(map(str, path))} = {_shown(value)} instead of {_shown(before)}"
    command = _run(lab, folder, "fit", "--config", "r.yaml")
    if command.code:
        verdict, problem = judge_refusal(command, folder, names, early=not _diverges(path, value))
        return Outcome("inputs", seed, verdict, case, problem)
    return Outcome("inputs", seed, *judge_accepted(command, folder, path, before, value, case))


def _diverges(path: Path_, value: Any) -> bool:
    """Numbers that are allowed and let training diverge."""
    names = ("learning_rate", "step_size", "relative_trade_off")
    return (isinstance(value, float) and abs(value) > 1e20) or path[-1] in names


def judge_accepted(
    command: Started, folder: Path, path: Path_, before: Any, value: Any, case: str
) -> tuple[str, str, str]:
    """Verdict, case and problem of a recipe that was not refused, of which one value was changed."""
    if command.code is None:
        return BAD, case, "hang"
    if missing := whole_record(folder / "runs" / "version_0") if (folder / "runs").is_dir() else "":
        return BAD, case, missing
    number = isinstance(before, (int, float)) and not isinstance(before, bool)
    if (isinstance(value, float) and math.isnan(value)) or (number and value == "nan"):
        return BAD, case, "NaN accepted silently"
    if number and value in (math.inf, -math.inf):
        return POOR, case, "infinity accepted silently"
    if number and isinstance(value, bool):
        return POOR, case, "true taken for a number"
    if number and isinstance(value, (int, float)) and value < 0 <= before:
        return POOR, case, "negative number accepted"
    if before == value or value in (None, {}):
        return GOOD, case, "the default"
    if "callbacks" in path or "default_root_dir" in path:
        return GOOD, case, "accepted"
    resolved = yaml.safe_load((folder / "runs" / "version_0" / "config.yaml").read_text())
    try:
        kept = _at(resolved, path)
    except (KeyError, TypeError, IndexError):
        return BAD, case, "accepted, and not in config.yaml"
    if not _same(kept, value):
        return BAD, case, f"accepted, but config.yaml says {_shown(kept)}"
    return GOOD, case, "accepted"


def _same(kept: Any, value: Any) -> bool:
    if isinstance(value, dict):
        return isinstance(kept, dict)
    if str(kept) == str(value) or kept == value:
        return True
    try:
        return float(kept) == (int(value, 0) if str(value).startswith("0x") else float(value))
    except (TypeError, ValueError):
        # A class is written with its module, numbers in other forms.
        return isinstance(kept, (dict, str)) and str(value).split(".")[-1] in str(kept)


def _misspelt(word: str, draws: random.Random) -> str:
    at = draws.randrange(len(word))
    return draws.choice(
        [
            word[:at] + word[at + 1 :] or "x",
            word[:at] + word[at] + word[at:],
            word[:at] + "ä" + word[at:],
            word.replace("_", "-"),
            word.upper(),
            word + " ",
            word + "\u200b",
            word[::-1],
            f"{word}.{word}",
        ]
    )


def _recipe_key(lab: Laboratory, seed: int, draws: random.Random, folder: Path) -> Outcome:
    """A key deleted, misspelt, doubled or moved, or a callback given twice."""
    name, content = _small(draws)
    original = deepcopy(content)
    paths = [path for path in _nodes(content) if isinstance(path[-1], str)]
    path = draws.choice(paths)
    around, key = _at(content, path[:-1]), path[-1]
    how = draws.choices(["delete", "misspell", "double", "move", "callback twice"], [3, 5, 2, 4, 1])[0]
    wrong = True
    if how == "delete":
        del around[key]
        wrong, names = False, _names(original, path)
        names += [str(part) for part in path]
    elif how == "misspell":
        new = _misspelt(key, draws)
        wrong = new != key
        changed = {new if k == key else k: v for k, v in around.items()}
        around.clear()
        around.update(changed)
        names = [new.strip(), key]
    elif how == "move":
        others = [p for p in [(), *_nodes(content)] if isinstance(_at(content, p), dict) and p[: len(path)] != path]
        others = [p for p in others if p != path[:-1] and key not in _at(content, p)]
        target = draws.choice(others)
        _at(content, target)[key] = around.pop(key)
        names = [key, *(str(part) for part in target)]
    elif how == "callback twice":
        callbacks = content["trainer"]["callbacks"]
        copied = deepcopy(draws.choice(callbacks))
        callbacks.append(copied)
        names, path = [copied["class_path"]], ("trainer", "callbacks")
    else:
        names = [key]
    text = yaml.safe_dump(content, sort_keys=False, allow_unicode=True)
    if how == "double":
        text = _doubled(content, path, draws)
    (folder / "r.yaml").write_text(text)
    case = f"{name}: {how} {'.'.join(map(str, path))}" + (f" -> {names[0]!r}" if how == "misspell" else "")
    command = _run(lab, folder, "fit", "--config", "r.yaml")
    if command.code is None:
        return Outcome("inputs", seed, BAD, case, "hang")
    if command.code:
        return Outcome("inputs", seed, *_refused(command, folder, names, case))
    said = any(word and word in command.err for word in names)
    if wrong and not said:
        return Outcome("inputs", seed, BAD, case, f"{how}: accepted silently")
    missing = whole_record(folder / "runs" / "version_0") if how != "delete" else ""
    return Outcome("inputs", seed, BAD if missing else GOOD, case, missing or "accepted")


def _refused(command: Started, folder: Path, names: list[str], case: str) -> tuple[str, str, str]:
    verdict, problem = judge_refusal(command, folder, names)
    return verdict, case, problem


def _doubled(content: Any, path: Path_, draws: random.Random) -> str:
    """YAML with one key a second time, with another value."""
    marker = "ZZTWICEZZ"
    around = _at(content, path[:-1])
    value = around[path[-1]]
    other = value + 1 if isinstance(value, (int, float)) and not isinstance(value, bool) else deepcopy(value)
    items = list(around.items())
    items.insert(draws.randrange(len(items) + 1), (marker, other))
    around.clear()
    around.update(items)
    return yaml.safe_dump(content, sort_keys=False, allow_unicode=True).replace(marker, str(path[-1]))


def _recipe_text(lab: Laboratory, seed: int, draws: random.Random, folder: Path) -> Outcome:
    """The file's bytes changed."""
    name, content = _small(draws)
    text = yaml.safe_dump(content, sort_keys=False, allow_unicode=True)
    lines = text.splitlines()
    at = draws.randrange(len(lines))
    line = lines[at]
    nest = "a: " + "[" * 3000 + "]" * 3000
    changes: dict[str, Callable[[], bytes]] = {
        "tab": lambda: _lines(lines, at, "\t" + line),
        "indent": lambda: _lines(lines, at, " " + line),
        "no colon": lambda: _lines(lines, at, line.replace(":", "")),
        "two colons": lambda: _lines(lines, at, line.replace(":", ": x:")),
        "open quote": lambda: _lines(lines, at, line.replace(": ", ": '")),
        "cut": lambda: text.encode()[: draws.randrange(1, len(text))],
        "NUL": lambda: _lines(lines, at, line + "\0"),
        "latin-1": lambda: text.encode() + "# é\n".encode("latin-1"),
        "utf-16": lambda: text.encode("utf-16"),
        "two documents": lambda: (text + "---\n" + text).encode(),
        "python tag": lambda: _lines(lines, at, re.sub(r": .*", ": !!python/object/apply:os.mkdir [EXECUTED]", line)),
        "unknown tag": lambda: _lines(lines, at, re.sub(r": .*", ": !secret 3", line)),
        "unknown alias": lambda: _lines(lines, at, re.sub(r": .*", ": *nothing", line)),
        "deep": lambda: (text + nest).encode(),
        "self reference": lambda: (text + "extra: &x [*x]\n").encode(),
        "BOM and CRLF": lambda: b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode(),
        "binary": lambda: draws.randbytes(2000),
        "list": lambda: b"- 1\n- 2\n",
        "empty": lambda: b"",
        "only comment": lambda: b"# nothing\n",
        "bit flip": lambda: _flipped(text.encode(), draws),
    }
    how = draws.choice(list(changes))
    changed = changes[how]()
    (folder / "r.yaml").write_bytes(changed)
    case = f"{name}: text, {how} at line {at + 1} ({line.strip()})"
    command = _run(lab, folder, "fit", "--config", "r.yaml")
    if (folder / "EXECUTED").exists():
        return Outcome("inputs", seed, BAD, case, "executed what the recipe says")
    if command.code is None:
        return Outcome("inputs", seed, BAD, case, "hang")
    if command.code:
        keys = re.findall(r"[\w]+", line)
        any_key = [""] if how in ("bit flip", "cut") else ["r.yaml", "config", "line", *keys]
        return Outcome("inputs", seed, *_refused(command, folder, any_key, case))
    good = changed == text.encode() or how in (
        "indent",
        "BOM and CRLF",
        "cut",
        "bit flip",
        "open quote",
        "utf-16",
        "no colon",
    )
    return Outcome("inputs", seed, GOOD if good else POOR, case, "accepted")


def _lines(lines: list[str], at: int, new: str) -> bytes:
    return "\n".join([*lines[:at], new, *lines[at + 1 :], ""]).encode()


def _flipped(content: bytes, draws: random.Random) -> bytes:
    at = draws.randrange(len(content))
    return content[:at] + bytes([content[at] ^ 1 << draws.randrange(8)]) + content[at + 1 :]


# -- words of the command ----------------------------------------------------------------------------------------


def _words(lab: Laboratory, seed: int, draws: random.Random, folder: Path) -> Outcome:
    """Options misspelt, without value, twice, of odd values; folders and files that are something else."""
    _, content = _small(draws)
    write_recipe(content, folder / "r.yaml")
    (folder / "dir.yaml").mkdir()
    (folder / "empty.yaml").write_text("")
    odd = draws.choice(
        ["", " ", "nan", "-1", "1e9999", "💥", "a=b", "--", "null", "[", "{", "0.5", "99999999999999999999"]
    )
    option = draws.choice(
        ["trainer.check_val_every_n_rounds", "seed_everything", "model.learning_rate", "data.batch_size"]
    )
    cases: dict[str, tuple[list[str], list[str]]] = {
        f"--{option} {odd!r}": (["fit", "--config", "r.yaml", f"--{option}", odd], [option.split(".")[-1], odd]),
        f"--{option}={odd!r}": (["fit", "--config", "r.yaml", f"--{option}={odd}"], [option.split(".")[-1], odd]),
        f"--{option} without value": (["fit", "--config", "r.yaml", f"--{option}"], [option, option.split(".")[-1]]),
        "misspelt option": (
            ["fit", "--config", "r.yaml", f"--{(new := _misspelt(option, draws))}", "1"],
            [new.strip(), "unrecognized"],
        ),
        "recipe is a folder": (["fit", "--config", "dir.yaml"], ["dir.yaml"]),
        "recipe is empty": (["fit", "--config", "empty.yaml"], ["empty.yaml", "data", "model"]),
        "recipe is not there": (["fit", "--config", "nothing.yaml"], ["nothing.yaml"]),
        "no recipe": (["fit"], ["config", "model", "data"]),
        "recipe is a table": (["fit", "--config", "a.csv"], ["a.csv", "config"]),
        "--ckpt_path odd": (["fit", "--config", "r.yaml", "--ckpt_path", odd or "last"], ["ckpt_path", odd, "last"]),
        "--ckpt_path a folder": (["fit", "--config", "r.yaml", "--ckpt_path", "."], ["ckpt_path", "."]),
        "--ckpt_path a table": (["test", "--config", "r.yaml", "--ckpt_path", "a.csv"], ["a.csv"]),
        "test without a run": (["test", "--config", "r.yaml", "--ckpt_path", "best"], ["best"]),
        "predict without a run": (["predict", "--config", "r.yaml", "--ckpt_path", "last"], ["last"]),
        "command misspelt": ([_misspelt("fit", draws), "--config", "r.yaml"], ["fit", "command"]),
        "command odd": ([odd or "x", "--config", "r.yaml"], ["command", odd]),
        "root is a file": (
            ["fit", "--config", "r.yaml", "--trainer.default_root_dir", "a.csv"],
            ["default_root_dir", "a.csv"],
        ),
        "root below a file": (["fit", "--config", "r.yaml", "--trainer.default_root_dir", "a.csv/x"], ["a.csv"]),
        "personalize nothing": (["personalize", odd or "x", "a.csv"], [odd, "summary", "config", "run", "required"]),
        "compare nothing": (["compare", odd or "x"], [odd, "summary", "run"]),
        "study odd": (["study", odd or "x"], ["study", odd]),
        "recipes odd": (["recipes", odd or "x"], ["recipe", odd]),
        "datasets odd": (["datasets", odd or "x"], ["data", odd]),
    }
    case = draws.choice(list(cases))
    words, names = cases[case]
    command = _run(lab, folder, *words)
    if command.code is None:
        return Outcome("inputs", seed, BAD, case, "hang")
    if command.code:
        return Outcome("inputs", seed, *_refused(command, folder, names, f"{case} ({odd!r})"))
    fine = case == "datasets odd" or odd in ("0.5", "null", "-1", "1e9999", "nan", " ") or "no recipe" in case
    return Outcome("inputs", seed, GOOD if fine and "nan" not in odd else POOR, f"{case} ({odd!r})", "accepted")
