"""Draw a command's terminal output as an SVG: ``python docs/site/picture.py OUT.svg HEAD TAIL COMMAND...``.

Its first HEAD and last TAIL lines are shown, below the command.
"""

import os
import re
import subprocess
import sys
from io import StringIO
from pathlib import Path

from rich.console import Console
from rich.text import Text


def main() -> None:
    """Run the command and draw."""
    out, head, tail, *command = sys.argv[1:]
    ran = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, "COLUMNS": "118"})
    lines = ran.stdout.rstrip("\n").split("\n")
    if len(lines) > int(head) + int(tail):
        lines = [*lines[: int(head)], "...", *lines[len(lines) - int(tail) :]]
    console = Console(record=True, width=118, file=StringIO())
    console.print(Text.assemble(("$ ", "bold green"), (" ".join(command), "bold")))
    for line in lines:
        console.print(Text.from_ansi(line), soft_wrap=True)
    picture = console.export_svg(title="lightning-fl")
    # The reader's own fonts: rich's would be asked of another host.
    Path(out).write_text(re.sub(r"@font-face \{.*?\}\s*", "", picture, flags=re.S), encoding="utf-8")


if __name__ == "__main__":
    main()
