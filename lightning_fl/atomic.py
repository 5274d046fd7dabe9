"""Text files that are there whole or not at all, whatever interrupts their writing. Imports nothing heavy."""

import os
from pathlib import Path

__all__ = ["write_whole"]


def write_whole(path: Path, text: str) -> None:
    """Write a text file, or replace it, in one step.

    Raises:
        OSError: the disk is full or the folder cannot be written; what was there before is untouched.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)
