"""Escapes for untrusted text: names of clients, columns, classes and files. Imports nothing heavy.

:func:`printable` escapes text on input; CSV, Markdown, HTML and terminals have one each for output.
"""

import contextlib
import csv
import io
import re
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd
    from jinja2 import Environment
    from rich.console import Console

#: Control characters, lone surrogates, and characters that change the writing direction.
_ACTS = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
#: Characters that start a formula in a spreadsheet (OWASP, "CSV Injection").
_FORMULA = re.compile("[=+\\-@\t\r\n＝＋－＠]")


def printable(text: str, keep: str = "") -> str:
    r"""Escape control and invisible characters, except some to keep, as Python does: ``\x1b``, ``\u202e``."""
    return _ACTS.sub(lambda found: found[0] if found[0] in keep else ascii(found[0])[1:-1], text)


def printable_values(value: Any) -> Any:
    """Apply :func:`printable` to all strings, including keys, in nested lists and dicts, such as a JSON record."""
    if isinstance(value, str):
        return printable(value, keep="\n\t")
    if isinstance(value, list):
        return [printable_values(item) for item in value]
    if isinstance(value, dict):
        return {printable_values(key): printable_values(item) for key, item in value.items()}
    return value


def _csv_cell(value: Any) -> Any:
    """Prefix a string that a spreadsheet would read as a formula; numbers, also as strings, stay."""
    if not isinstance(value, str):
        return value
    value = value.replace("\r", "\n")  # Python's writer does not quote it
    if not _FORMULA.match(value):
        return value
    try:
        float(value)
    except ValueError:
        return f"'{value}"
    return value


#: Texts of no number in tables, for ``pandas.read_csv`` with ``keep_default_na=False``: a client may be called "NA".
NOT_A_NUMBER = ["", "nan", "NaN"]


def csv_value(text: str) -> str:
    """Return the original text of a cell that this module wrote."""
    return text[1:] if text.startswith("'") and _FORMULA.match(text, 1) else text


def csv_text(rows: Iterable[Iterable[Any]]) -> str:
    """Format rows, header first, as CSV."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([_csv_cell(value) for value in row] for row in rows)
    return text.getvalue()


def csv_table(frame: "pd.DataFrame", *, index: bool = False, **options: Any) -> str:
    """Format a table as CSV."""
    from pandas.api.types import is_numeric_dtype

    frame = frame.reset_index() if index else frame.copy(deep=False)
    for place in range(frame.shape[1]):
        if not is_numeric_dtype(frame.dtypes.iloc[place]):
            frame.isetitem(place, frame.iloc[:, place].map(_csv_cell).array)
    frame.columns = [_csv_cell(name) for name in frame.columns]
    return frame.to_csv(index=False, **{"lineterminator": "\n", **options})


def markdown(value: object) -> str:
    """Escape a text for a line or table of Markdown, so that it forms no markup, HTML, link or image."""
    text = re.sub(r"&(?=#?\w+;)", "&amp;", " ".join(str(value).split())).replace("<", "&lt;")
    special = r"[\\|*`~]|(?<![^\W_])_+|_+(?![^\W_])|^[>#]|\[(?=.*\][(\[:])"
    text = re.sub(special, lambda found: "".join(f"\\{sign}" for sign in found[0]), text)
    return re.sub(r"(?i)\b(https?|ftp|www)([:.])", r"\1\\\2", text)  # a link without brackets


def markdown_code(text: str, language: str = "") -> str:
    """Format a text as Markdown code: inline, or a block if a language is given. The text may hold backticks."""
    longest = max(map(len, re.findall("`+", text)), default=0)
    if language:
        fence = "`" * max(3, longest + 1)
        return f"{fence}{language}\n{text.rstrip()}\n{fence}\n"
    ticks, space = "`" * (longest + 1), " " if longest else ""
    return f"{ticks}{space}{text}{space}{ticks}"


def encodable(stream: Any) -> None:
    """Make a text stream escape characters that its encoding lacks."""
    if isinstance(stream, io.TextIOWrapper) and stream.errors != "backslashreplace":
        with contextlib.suppress(OSError):  # it seeks, which fails if a pipe has replaced a file
            stream.reconfigure(errors="backslashreplace")


def terminal(*, stderr: bool = False, **options: Any) -> "Console":
    """Create a console that interprets no markup and escapes characters that its stream cannot encode."""
    from rich.console import Console

    encodable(sys.stderr if stderr else sys.stdout)
    return Console(stderr=stderr, markup=False, emoji=False, **options)


def page_environment() -> "Environment":
    """Create the template environment for HTML pages, with autoescape."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    loader = PackageLoader("lightning_fl.study", "templates")
    return Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)


def markdown_environment() -> "Environment":
    """Create the template environment for Markdown: values are escaped, except ``Markup``; floats have four digits."""
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    def escape(value: Any) -> Any:
        if value is None or isinstance(value, Markup):
            return value or ""
        return f"{value:.4g}" if isinstance(value, float) else markdown(value)

    return Environment(finalize=escape, trim_blocks=True, undefined=StrictUndefined, keep_trailing_newline=True)
