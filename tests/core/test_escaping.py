"""Text that others chose, on its way in and on its way out."""

import csv
import io
import re
import sys
from pathlib import Path

import pandas as pd
import pytest
from tiny import TinyClients

from lightning_fl.core.escaping import (
    csv_table,
    csv_text,
    csv_value,
    encodable,
    markdown,
    markdown_code,
    printable,
    printable_values,
    terminal,
)


@pytest.mark.parametrize("text", ["=1+1", "+cmd|' /C calc'!A0", "-x", "@SUM(A1)", "\t=1", "\r=1", "＝1+1", "-"])
def test_no_cell_of_a_csv_is_a_formula_and_reading_gives_the_text(text: str) -> None:
    frame = pd.DataFrame({text: [text, "plain"], "number": [-1.5, -2.0]}, index=pd.Index([text, "b"], name="i"))
    for written in (csv_text([[text, "number"], [text, "-1.5"], ["plain", -2]]), csv_table(frame, index=True)):
        header, *rows = csv.reader(io.StringIO(written))
        cells = {cell for row in (header, *rows) for cell in row} - {"-1.5", "-2", "-2.0"}
        assert not [cell for cell in cells if cell[0] in "=+-@\t\r＝"]
        assert text.replace("\r", "\n") in {csv_value(cell) for cell in rows[0]}
        assert rows[0][-1] == "-1.5"
    assert frame.columns[0] == text


@pytest.mark.parametrize("text", ["-1.5", "+3", "-1e-3", "-inf", "'quoted'", "", "a=b"])
def test_numbers_and_harmless_texts_are_written_as_they_are(text: str) -> None:
    assert csv_text([[text, "end"]]) == f"{text},end\n"
    assert csv_value(text) == text


HOSTILE = {"\x1b[31mred": r"\x1b[31mred", "a\x9b2J": r"a\x9b2J", "x\u202egpj": r"x\u202egpj", "a\udcffb": r"a\udcffb"}


@pytest.mark.parametrize(("text", "shown"), HOSTILE.items())
def test_what_acts_on_a_terminal_is_spelled(text: str, shown: str) -> None:
    assert printable(text) == shown
    assert printable_values({text: [text, 1, None, "two\nlines"]}) == {shown: [shown, 1, None, "two\nlines"]}

    class Named(TinyClients):
        def client_names(self) -> list[str]:
            return [text, "b\nc", "λ 日本 e\u0301 👩\u200d🔬"]

        def client_groups(self) -> list[str]:
            return [text] * 3

    assert Named().client_names() == [shown, r"b\nc", "λ 日本 e\u0301 👩\u200d🔬"]
    assert Named().client_groups() == [shown] * 3


@pytest.mark.parametrize("text", ["<img src=x>", "a|b", "`code`", "[a](http://b.c)", "![x](y)", "&lt;b&gt;", "__a__"])
def test_no_markup_comes_of_a_text_in_markdown(text: str) -> None:
    shown = markdown(text)
    for special in ("|", "`", "[a", "[x", "_"):
        assert shown.replace(f"\\{special}", "").count(special) == 0
    assert "<" not in shown
    assert not re.search(r"https?:|www\.", shown)
    assert "&lt;b" not in shown
    for plain in ("λ, -3.5 & more", "fedavg_esol [1, 2]", "mean(a) > 0"):
        assert markdown(plain) == plain
    block = f"```\n{markdown_code('``` a', 'yaml')}"
    assert block.startswith("```\n````yaml\n``` a\n````")
    assert markdown_code("a`b") == "`` a`b ``"


def test_a_terminal_takes_no_text_for_markup_and_prints_what_its_stream_cannot_say(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii", errors="surrogateescape")
    monkeypatch.setattr(sys, "stdout", stream)
    terminal(width=80).print("[red]λ[/red] :smile:")
    encodable(stream)
    stream.flush()
    assert raw.getvalue() == rb"[red]\u03bb[/red] :smile:" + b"\n"


#: What is made in one place of the package, and where.
ONE_PLACE = {
    "to_csv": {"core/escaping.py"},
    "writer": {"core/escaping.py"},
    "DictWriter": {"runtime/curve_table.py"},  # names of metrics and numbers
    "Console": {"core/escaping.py"},
    "Environment": {"core/escaping.py", "recipe/starters/start.py"},
}


@pytest.mark.slow
def test_each_escape_is_made_in_one_place() -> None:
    from test_security import PACKAGE, found

    for path, name, _ in found():
        allowed = ONE_PLACE.get(name.rpartition(".")[2])
        assert allowed is None or Path(path).relative_to(PACKAGE).as_posix() in allowed, f"{path}: {name}"
