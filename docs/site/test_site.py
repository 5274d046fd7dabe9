"""The site is built as it is published, and what its pages say is tried: links, code blocks, commands, recipes."""

import ast
import html
import inspect
import json
import re
import shlex
from pathlib import Path

import pytest
import reference
import yaml
from check import faults
from docstring_roles import as_markdown
from mkdocs.commands.build import build
from mkdocs.config import load_config

import lightning_fl
from lightning_fl import callbacks, data, functional, models, strategies
from lightning_fl.cli import COMMANDS
from lightning_fl.core.errors import page

ROOT = Path(__file__).resolve().parents[2]
PAGES = [*sorted(ROOT.glob("docs/**/*.md")), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    """The whole site, notebooks executed; a warning ends it."""
    folder = tmp_path_factory.mktemp("site")
    build(load_config(str(ROOT / "mkdocs.yml"), site_dir=str(folder), strict=True))
    return folder


def test_every_link_leads_somewhere_and_nothing_is_loaded_from_elsewhere(site):
    assert list(faults(site)) == []


@pytest.mark.parametrize("room", [lightning_fl, callbacks, data, strategies, models, functional])
def test_every_public_name_is_in_the_reference(site, room):
    text = (site / "reference" / "api" / f"{room.__name__.rpartition('.')[2]}.html").read_text()
    for name in room.__all__:
        one = getattr(room, name)
        if inspect.isclass(one) or inspect.isfunction(one):
            path = f'{one.__module__}.{one.__qualname__}"'  # here, or a link to where it is
            assert f'id="{path}' in text or f"#{path}" in text, name


def test_notebooks_show_what_their_cells_print_and_draw(site):
    for path in sorted(ROOT.glob("docs/tutorials/*.ipynb")):
        text = (site / "tutorials" / f"{path.stem}.html").read_text()
        assert "executed when the site was built" in text
        assert "Traceback" not in text
        assert "\x1b" not in text
    assert "3_coalitions_output" in (site / "tutorials" / "3_coalitions.html").read_text()


def test_pages_show_the_files_that_they_include(site):
    included = 0
    for path in sorted(ROOT.glob("docs/**/*.md")):
        marks = [line.strip() for line in path.read_text().splitlines() if re.match(r"\s*--\s*8\s*<(?!.*\.md)", line)]
        if marks:
            text = re.sub(r"<[^>]*>", "", (site / path.relative_to(ROOT / "docs")).with_suffix(".html").read_text())
            for mark in marks:
                file = re.fullmatch(r'--8<-- "([^"]+)"', mark)
                assert file, (path.name, mark)
                assert (ROOT / file[1]).read_text().strip() in html.unescape(text), (path.name, mark)
                included += 1
    assert included >= 9


def test_messages_name_pages_that_there_are(site):
    named = []
    for path in ROOT.glob("lightning_fl/**/*.py"):
        named += [name for _, name in re.findall(r"""\bpage\((['"])(.+?)\1\)""", path.read_text())]
    assert len(named) >= 4
    for name in named:
        path, _, anchor = name.partition("#")
        assert page(name).endswith(f"/{path}.html" + (f"#{anchor}" if anchor else ""))
        text = (site / f"{path}.html").read_text()
        assert not anchor or f'id="{anchor}"' in text, name


def test_stored_notebooks_have_no_results():
    for path in ROOT.glob("docs/tutorials/*.ipynb"):
        for cell in json.loads(path.read_text())["cells"]:
            assert not cell.get("outputs"), path.name
            assert cell.get("execution_count") is None, path.name


def blocks(*kinds):
    """Page and text of the fenced blocks of some languages."""
    for path in PAGES:
        for indent, kind, text in re.findall(r"^( *)```(\w+)\n(.*?)^ *```", path.read_text(), flags=re.M | re.S):
            if kind in kinds and "--8<--" not in text:
                yield path.name, re.sub(rf"^{indent}", "", text, flags=re.M)


def test_blocks_of_python_can_be_parsed():
    found = list(blocks("python"))
    assert len(found) > 15
    for name, text in found:
        ast.parse(text, name)


def test_blocks_of_yaml_can_be_read():
    found = list(blocks("yaml"))
    assert len(found) > 10
    for name, text in found:
        assert yaml.safe_load(text) is not None, name


def test_commands_there_are_with_recipes_there_are():
    shipped = {path.stem for path in ROOT.glob("recipes/**/*.yaml")}
    count = 0
    for name, text in blocks("bash"):
        for line in text.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if "lightning-fl" not in words or words[:2] == ["pip", "install"]:
                continue
            words = words[words.index("lightning-fl") + 1 :]
            count += 1
            assert words[0] in COMMANDS or words[0].startswith("--"), (name, line)
            if "--config" in words:
                recipe = words[words.index("--config") + 1]
                assert recipe in shipped or recipe.endswith((".yaml", "$recipe")), (name, line)
    assert count > 40


def test_docstrings_become_markdown():
    text = (
        "See :class:`~lightning_fl.Cohort` and ``x``::\n\n====  ====\na     b\n====  ====\nc     d\n====  ====\n\nEnd."
    )
    table = "```text\n====  ====\na     b\n====  ====\nc     d\n====  ====\n```"
    assert as_markdown(text) == f"See `Cohort` and `x`:\n\n{table}\n\nEnd."


def test_keys_have_type_default_range_and_meaning():
    text = reference._keys("Title", "Where.", [callbacks.LabelNoise, callbacks.HCCT])
    assert "| `std` | `float` | `0.5` | ≥ 0 |" in text
    assert "| `every_n_rounds` | `int` | `1` | whole, ≥ 1 | rounds between two partitions." in text


def test_a_broken_site_is_said_to_be(tmp_path):
    (tmp_path / "a.html").write_text(
        '<a href="b.html#x">1</a><a href="b.html#y">2</a><a href="c.html">3</a><img src="https://elsewhere/x.png">'
        '<a href="https://elsewhere">4</a>'
    )
    (tmp_path / "b.html").write_text('<p id="x">')
    (tmp_path / "a.css").write_text(
        "@import 'https://elsewhere/a.css'; @import \"b.css\"; p { background: url(x.png), url( '//elsewhere/y.png' ) }"
        " q { background: url(\"data:image/svg+xml,<svg xmlns='http://elsewhere/svg'/>\") }"
    )
    assert list(faults(tmp_path)) == [
        "a.html: loads https://elsewhere/x.png from elsewhere",
        "a.html: b.html#y has no such anchor",
        "a.html: c.html leads nowhere",
        "a.css: loads https://elsewhere/a.css from elsewhere",
        "a.css: loads //elsewhere/y.png from elsewhere",
    ]
