"""The tutorials: every notebook is executed, several at once, and becomes a page with what its cells print and draw."""

import os
import re
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import nbformat
from nbclient import NotebookClient
from nbconvert import MarkdownExporter

from lightning_fl.core.environment import usable_cores

__all__ = ["Executed", "execute"]

SECONDS = 1800  # of one cell, of a kernel's start, of what a cell still prints: a net for what would never end
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Executed(NamedTuple):
    """A notebook's page."""

    markdown: str
    pictures: dict[str, bytes]


def execute(paths: Sequence[Path]) -> list[Executed]:
    """Run the notebooks, as many at once as this process has cores.

    Raises:
        CellExecutionError: of the first cell that raises.
    """
    with ThreadPoolExecutor(usable_cores()) as pool:
        return list(pool.map(_execute, paths))


def _execute(path: Path) -> Executed:
    notebook = nbformat.read(path, as_version=4)
    with TemporaryDirectory() as folder:
        client = NotebookClient(
            notebook,
            timeout=SECONDS,
            startup_timeout=SECONDS,
            iopub_timeout=SECONDS,
            coalesce_streams=True,
            resources={"metadata": {"path": folder}},
        )
        client.execute(env=_environment())
    for cell in notebook.cells:
        _clean(cell)
    exporter = MarkdownExporter()
    exporter.exclude_input_prompt = exporter.exclude_output_prompt = True
    body, resources = exporter.from_notebook_node(notebook)
    pictures = {f"{path.stem}_{name}": data for name, data in resources["outputs"].items()}
    for name in resources["outputs"]:
        body = body.replace(f"]({name})", f"]({path.stem}_{name})")
    note = f"[This page as a notebook]({path.name}){{: download }}, executed when the site was built.\n\n"
    title, _, rest = body.lstrip().partition("\n")
    return Executed(f"{title}\n\n{note}{rest}", pictures)


def _environment() -> dict[str, str]:
    """For cells that call ``lightning-fl``: that of this interpreter; nothing is downloaded."""
    commands = str(Path(sys.executable).parent)
    path = os.pathsep.join([commands, os.environ.get("PATH", "")])
    return {**os.environ, "PATH": path, "LIGHTNING_FL_OFFLINE": "1", "OMP_NUM_THREADS": "1"}


def _clean(cell: nbformat.NotebookNode) -> None:
    """Leave out colours, progress that was painted over, and warnings on ``stderr``; errors have raised."""
    if cell.cell_type != "code":
        return
    cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
    for output in cell.outputs:
        if "text/html" in output.get("data", {}):  # pandas' own styles
            output["data"]["text/html"] = re.sub(r"<style.*?</style>", "", output["data"]["text/html"], flags=re.S)
        if "text" in output:
            lines = _ESCAPES.sub("", output["text"]).split("\n")
            output["text"] = "\n".join(line.rsplit("\r", 1)[-1] for line in lines)
