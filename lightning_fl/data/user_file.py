"""A file that a user names."""

from pathlib import Path

from lightning_fl.errors import DataError

__all__ = ["existing_file"]


def existing_file(path: str, argument: str = "path") -> Path:
    """The file at a path, ``~`` expanded.

    Args:
        path: as it was given.
        argument: where it was given, for the message; "" for nowhere in particular.

    Raises:
        DataError: there is none.
    """
    found = Path(path).expanduser()
    if not found.is_file():
        given = f"{argument}={path!r}" if argument else repr(path)
        raise DataError(f"{given} is no file (looked for {found.absolute()}): check the name and the folder.")
    return found
