"""Names that would leave their folder, in studies, comparisons, groups and the folders of runs."""

import random
from pathlib import Path
from typing import Any

from fault_kinds.judging import LIMIT, judge_refusal
from fault_kinds.laboratory import Laboratory
from fault_kinds.outcome import BAD, GOOD, POOR, Outcome
from fault_kinds.small_recipes import recipe, write_data, write_recipe

__all__ = ["trial_place"]

_NAMES = [
    *("../../escaped", "..", ".", "a/../../../escaped", "{absolute}", "a/b", "..\\..\\escaped", "~/escaped", "a\nb"),
    *("%2e%2e%2fescaped", "甲", "é", "x" * 300, "CON", "a b", ".hidden", "-x", "a\u202eb", "", " ", "a.", "$HOME/x"),
]


def trial_place(lab: Laboratory, seed: int, draws: random.Random, folder: Path) -> Outcome:
    """One hostile name in one place; what the command writes stays in the folders that it was given."""
    here = folder / "deep" / "er"
    here.mkdir(parents=True)
    write_data(here)
    small = recipe("drflm")
    small["trainer"] |= {"max_rounds": 1, "devices": 1, "callbacks": small["trainer"]["callbacks"][:2]}
    write_recipe(small, here / "r.yaml")
    name = draws.choice(_NAMES).replace("{absolute}", str(folder / "escaped"))
    place = draws.choice(["arm", "scale", "axis", "title", "study file", "label", "group", "column"])
    words = _prepare(place, name, small, here)
    case = f"{place} named {name[:60]!r}"
    before = set(folder.rglob("*"))
    commands = [words] if place != "label" else [["fit", "--config", "r.yaml"], words]
    for each in commands:
        command = lab.start(["-m", "lightning_fl", *each], folder, inside="deep/er")
        command.wait(LIMIT)
    outside = [
        path
        for path in folder.rglob("*")
        if path not in before and not path.is_relative_to(here / "runs") and not path.is_relative_to(here / "compared")
    ]
    if outside:
        return Outcome(
            "inputs", seed, BAD, case, f"written outside: {[str(p.relative_to(folder)) for p in outside[:4]]}"
        )
    if command.code is None:
        return Outcome("inputs", seed, BAD, case, "hang")
    if command.code:
        verdict, problem = judge_refusal(command, folder / "nothing", [])
        return Outcome("inputs", seed, verdict, case, problem)
    if place in ("arm", "scale", "axis"):
        found = list((here / "runs").rglob("summary.json"))
        if len(found) < 2:
            return Outcome("inputs", seed, POOR, case, f"exit 0 with {len(found)} of 2 cells: {command.err[-200:]}")
    return Outcome("inputs", seed, GOOD, case, "stays inside")


def _prepare(place: str, name: str, small: dict[str, Any], here: Path) -> list[str]:
    """Write the name where it goes; the words of the command."""
    if place == "label":
        return ["compare", f"{name}=runs/version_0", "--out", "compared"]
    if place in ("group", "column"):
        text = (here / "a.csv").read_text().replace("\n", "\r\n")
        quoted = f'"{name}"'
        if place == "group":
            text = text.replace("lab0", quoted)
        else:
            text = text.replace(",lab\r", f",{quoted}\r", 1)
            small["data"]["init_args"]["group_column"] = name
        (here / "a.csv").write_bytes(text.encode())
        write_recipe(small, here / "r.yaml")
        return ["fit", "--config", "r.yaml"]
    one = name if place == "arm" else "one"
    study: dict[str, Any] = {
        "title": name if place == "title" else "Small",
        "metric": "rmse",
        "seeds": [0],
        "arms": {one: "r.yaml", "two": {"recipe": "r.yaml", "overrides": {"model.learning_rate": 0.02}}},
    }
    if place == "axis":
        study["grid"] = {"kind": {name: {"model.dropout": 0.1}}}
    if place == "scale":
        study["scales"] = {name: {"seeds": [1]}}
    file = "s.yaml"
    if place == "study file" and name.strip() not in ("", ".", "..") and "/" not in name and len(name) < 200:
        file = f"{name}.yaml"
    write_recipe(study, here / file)
    return ["study", f"./{file}", "--workers", "1", *(["--scale", name] if place == "scale" else [])]
