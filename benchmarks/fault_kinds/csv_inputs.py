"""Tables as other programs write them: columns, separators, encodings, quotes, values and names drawn at random."""

import csv
import io
import json
import random
from pathlib import Path
from typing import Any

from fault_kinds.judging import LIMIT, judge_refusal, whole_record
from fault_kinds.laboratory import Laboratory
from fault_kinds.outcome import BAD, GOOD, POOR, Outcome
from fault_kinds.small_recipes import recipe, write_recipe

__all__ = ["judge_run", "trial_table"]

_SMILES = ["CCO", "CCCO", "CCN", "CCCCO", "CC(=O)O", "c1ccccc1", "CCOC", "CNC", "CCCl", "CC#N", "CCS", "C1CCCCC1"]

#: Names of columns and of clients. All of them are allowed, so that they must work or be refused by name.
_NAMES = [
    *("lab", "Lab 1", "α", "甲", "乙", "🧪", "مختبر", "a/b", "a b", "a_b", "a:b", "..", ".", "shared_0", "client_0"),
    *("CON", "nul", "-x", "--force", "$HOME", "$\\foo$", "%s", "{x}", "[red]x", "a\u202eb", "é", "e\u0301", "Ä" * 90),
    *("x" * 300, "a\tb", "a\nb", 'a"b', "a,b", "a;b", "007", "7", "1.0", "1", "True", "None", "nan", "NA", "null"),
    *("<script>", "a\\b", "C:\\x", "~", "*", "?", "\u200b", "A", "a", "ﬁ", "fi", "smiles", "mean", "0", "inf", "1e5"),
]


def trial_table(lab: Laboratory, seed: int, draws: random.Random, folder: Path) -> Outcome:
    """A table with one or two oddities."""
    molecules = draws.random() < 0.7
    names = draws.sample(_NAMES, 2)
    groups = draws.sample(_NAMES, 3) if draws.random() < 0.5 else ["lab0", "lab1", "lab2"]
    odd_columns = draws.random() < 0.3
    target, group = names if odd_columns else ("y", "lab")
    rows = [
        [
            _SMILES[i % len(_SMILES)] if molecules else f"{draws.gauss(0, 1):.3f}",
            f"{draws.gauss(i % 3, 1):.3f}" if molecules else f"c{i // 3 % 2}",
            groups[i % 3],
        ]
        for i in range(36)
    ]
    feature = "smiles" if molecules else "x1"
    if feature in (target, group) or target == group:
        target, group = "y", "lab"
    header = [feature, target, group]
    how, content, must, words = _spoilt(header, rows, draws, molecules)
    (folder / "u.csv").write_bytes(content)
    _recipe_for(folder, molecules, target, group)
    case = f"{'molecules' if molecules else 'table'}: {how}; columns {header}; groups {groups}"[:300]
    command = lab.start(["-m", "lightning_fl", "fit", "--config", "r.yaml"], folder)
    command.wait(LIMIT)
    if command.code is None:
        return Outcome("inputs", seed, BAD, case, "hang")
    if command.code:
        named = [*words, "u.csv", "target_columns", "group_column", target, group, *groups]
        verdict, problem = judge_refusal(command, folder, named)
        if verdict != GOOD and must == "works" and "traceback" in problem:
            verdict = BAD
        if verdict == GOOD and must == "works":
            verdict, problem = POOR, f"good input is refused: {problem}"
        return Outcome("inputs", seed, verdict, case, problem)
    return Outcome("inputs", seed, *judge_run(command.err, folder, groups, must, words, case))


def judge_run(
    said: str, folder: Path, groups: list[str], must: str, words: list[str], case: str
) -> tuple[str, str, str]:
    """Verdict, case and problem of a table that was not refused.

    Args:
        said: to standard error.
        folder: where it ran.
        groups: whose clients must be there.
        must: "works", "fails" or "either".
        words: one of these is said where it must fail and does not.
        case: what was done.
    """
    run = folder / "runs" / "version_0"
    if missing := whole_record(run):
        return BAD, case, missing
    clients = json.loads((run / "summary.json").read_text())["client_names"]
    if sorted(clients) != sorted(groups) and must != "either":
        return BAD, case, f"clients {clients} instead of {groups}"
    outside = [path for path in folder.iterdir() if path.name not in ("a.csv", "t.csv", "u.csv", "r.yaml", "runs")]
    if outside:
        return BAD, case, f"files outside the run's folder: {outside}"
    if must == "fails" and not any(word in said for word in words):
        return BAD, case, f"accepted without naming {words}"
    return GOOD, case, "works"


def _recipe_for(folder: Path, molecules: bool, target: str, group: str) -> None:
    content = recipe("drflm" if molecules else "table")
    content["trainer"]["max_rounds"] = 2
    arguments: dict[str, Any] = content["data"]["init_args"]
    arguments["path"] = "u.csv"
    if molecules:
        arguments |= {"target_columns": [target], "group_column": group}
    else:
        content["model"]["init_args"]["in_shape"] = [1]
        arguments |= {"target": target, "drop": [group]}
        arguments["partitioner"]["init_args"]["column"] = group
    write_recipe(content, folder / "r.yaml")


def _text(header: list[str], rows: list[list[str]], **how: Any) -> str:
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n", **how).writerows([header, *rows])
    return buffer.getvalue()


def _spoilt(
    header: list[str], rows: list[list[str]], draws: random.Random, molecules: bool
) -> tuple[str, bytes, str, list[str]]:
    """What was done, the file, what must come of it ("works", "fails", "either"), and words one of which is said."""
    text = _text(header, rows)
    at = draws.randrange(len(rows))
    row = [f"row {at + 2}", f"line {at + 2}", f"row {at + 1}", "row"]

    def with_cell(column: int, value: str) -> bytes:
        changed = [list(one) for one in rows]
        changed[at][column] = value
        return _text(header, changed).encode()

    lines = text.splitlines()
    cell = draws.choice(["n/a", "-", "1,5", "0x10", "1_000", "½", "1e400", "-inf", "nan", "<0.5", "3.0 mg", "#REF!"])
    wrong = "fails" if molecules and cell != "nan" else "either"
    cases: list[tuple[str, bytes, str, list[str]]] = [
        ("as it is", text.encode(), "works", []),
        ("as it is, quoted", _text(header, rows, quoting=csv.QUOTE_ALL).encode(), "works", []),
        ("CRLF and BOM", b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode(), "works", []),
        ("semicolons", _text(header, rows, delimiter=";").encode(), "either", ["';'", "semicolon", "separat"]),
        ("tabs", _text(header, rows, delimiter="\t").encode(), "either", ["tab", "separat"]),
        ("bars", _text(header, rows, delimiter="|").encode(), "either", ["'|'", "separat"]),
        ("utf-16", text.encode("utf-16"), "either", ["utf", "encod"]),
        ("latin-1", (text + f"{rows[0][0]},{rows[0][1]},é\n").encode("latin-1", "replace"), "either", ["utf", "encod"]),
        (f"target {cell!r}", with_cell(1, cell), wrong, [cell, "num_classes", *row]),
        (f"feature {cell!r}", with_cell(0, cell), "fails", [cell, *row]),
        ("feature empty", with_cell(0, ""), "fails" if molecules else "either", ["empty", *row]),
        ("group empty", with_cell(2, ""), "fails", ["empty", *row]),
        ("group of blanks", with_cell(2, "   "), "either", ["empty", "blank", *row]),
        ("short row", "\n".join([*lines[: at + 1], rows[at][0], *lines[at + 1 :], ""]).encode(), "either", row),
        ("long row", "\n".join([*lines[: at + 1], lines[-1] + ",1,2,3", *lines[at + 1 :]]).encode(), "fails", row),
        ("open quote", text.replace(f"{rows[at][1]},", f'"{rows[at][1]},', 1).encode(), "either", ["quot", *row]),
        ("NUL byte", text.encode().replace(b"0", b"\0", 1), "either", row),
        ("no header", "\n".join(lines[1:]).encode(), "fails", ["column"]),
        ("header only", (lines[0] + "\n").encode(), "fails", ["no row", "empty", "rows", "no "]),
        ("empty file", b"", "fails", ["empty", "no "]),
        ("blank lines", text.replace("\n", "\n\n").encode(), "works", []),
        ("comments", ("# from the lab\n" + text).encode(), "fails", ["column", "#"]),
        (
            "column twice",
            _text([*header, header[1]], [[*r, r[1]] for r in rows]).encode(),
            "fails",
            ["twice", "more than once"],
        ),
        (
            "group twice",
            _text([*header, header[2]], [[*r, "z"] for r in rows]).encode(),
            "fails",
            ["twice", "more than once"],
        ),
        ("blanks around header", text.replace(",", " , ", 2).encode(), "either", ["column"]),
        ("one row each", _text(header, rows[:3]).encode(), "either", ["few", "1 ", "row", "molecule"]),
        ("one group", _text(header, [[*r[:2], rows[0][2]] for r in rows]).encode(), "either", ["client"]),
        ("binary", draws.randbytes(3000), "fails", ["u.csv"]),
        ("gzip named csv", __import__("gzip").compress(text.encode()), "either", ["gz", "compress"]),
        ("cut", text.encode()[: draws.randrange(10, len(text))], "either", []),
        ("a wide row of 10,000 cells", (text + ",".join(["1"] * 10_000)).encode(), "fails", ["row", "line", "columns"]),
        ("a cell of a million signs", with_cell(2, "y" * 1_000_000), "either", ["long", *row]),
        (
            "one class or constant target",
            _text(header, [[r[0], rows[0][1], r[2]] for r in rows]).encode(),
            "either",
            [],
        ),
        (
            "first group has no target",
            _text(header, [[r[0], "" if r[2] == rows[0][2] else r[1], r[2]] for r in rows]).encode(),
            "fails",
            ["label", "target", "empty", rows[0][2]],
        ),
        (
            "huge targets",
            _text(header, [[r[0], "1e30" if molecules else r[1], r[2]] for r in rows]).encode(),
            "either",
            ["1e30", "large"],
        ),
        ("carriage returns", text.replace("\n", "\r").encode(), "works", []),
    ]
    return draws.choice(cases)
