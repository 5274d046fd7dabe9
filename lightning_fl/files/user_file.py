"""Files that users name: existence, links, and their format by the first bytes."""

import os
from pathlib import Path

from lightning_fl.core.errors import ConfigurationError, DataError

__all__ = ["existing_file", "foreign_content", "near", "refuse_link_out"]

#: First bytes of other formats, their names, and the remedy.
_KINDS = (
    (b"PAR1", "a Parquet file", "write it as CSV"),
    (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "an Excel file of the old kind (.xls)", "save it as CSV (UTF-8)"),
    (b"\x93NUMPY", "a NumPy array (.npy)", "write it in the format that is asked for"),
    (b"\x89PNG", "a picture (PNG)", "name another file"),
    (b"\xff\xd8\xff", "a picture (JPEG)", "name another file"),
    (b"%PDF", "a PDF", "name another file"),
)
_PICKLES = tuple(bytes([0x80, protocol]) for protocol in range(2, 6))
_WEB_PAGE = (b"<!doctype html", b"<html", b"<head", b"<?xml")


def existing_file(path: str, argument: str = "path") -> Path:
    """The file at a path, ``~`` expanded.

    Args:
        path: as it was given.
        argument: where it was given, for the message; "" for nowhere in particular.

    Raises:
        DataError: there is none, or it may not be read.
    """
    given = f"{argument}={path!r}" if argument else repr(path)
    try:
        found = Path(path).expanduser()
        is_file = found.is_file()
        if is_file:
            found.open("rb").close()
    except (OSError, RuntimeError, ValueError) as error:  # no such user behind ~, a name too long, no permission
        reason = getattr(error, "strerror", None) or str(error)
        raise DataError(f"{given} cannot be opened ({reason}): check the name, and who may read it.") from error
    if not is_file:
        kind = "a folder, no file" if found.is_dir() else "no file"
        raise DataError(f"{given} is {kind} (looked for {found.absolute()}): check the name and the folder.")
    return found


def near(path: str | os.PathLike[str]) -> Path:
    """A path for messages: relative if it is below the working directory, else absolute."""
    whole = Path(path).absolute()
    return whole.relative_to(Path.cwd()) if whole.is_relative_to(Path.cwd()) else whole


def refuse_link_out(path: Path, folder: Path) -> Path:
    """Refuse a file of a run that links to a place outside the run's folder.

    Args:
        path: the file, which need not exist.
        folder: the run's.

    Raises:
        ConfigurationError: it does, by a link.
    """
    if not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder)):  # resolve() fails on a circle
        raise ConfigurationError(f"{path} leads out of the run's folder, by a link in it: replace it by a copy.")
    return path


def foreign_content(head: bytes) -> str | None:
    """What a file is that begins with these bytes, if it is of a kind that holds no table or images to be read here.

    Args:
        head: the first few hundred bytes.

    Returns:
        For a message, such as ``"it is a PDF: name another file"``; ``None`` for anything else.
    """
    if head.startswith(b"PK\x03\x04"):
        if b"[Content_Types].xml" in head:
            return "it is an Excel file: save it as CSV (UTF-8)"
        return "it is a zip archive: unpack it"
    if head.startswith(_PICKLES):
        return "it is a pickle, which is never read, for it may run code: write it in the format that is asked for"
    if head.lstrip().lower().startswith(_WEB_PAGE):
        return "it is a web page: fetch the file that the page links to"
    found = next(((kind, mend) for start, kind, mend in _KINDS if head.startswith(start)), None)
    return None if found is None else f"it is {found[0]}: {found[1]}"
