"""Files that users name (existence, links, paths in messages), and folders that ship with the package."""

import os
from pathlib import Path

from lightning_fl.core.errors import ConfigurationError, DataError

_PACKAGE = Path(__file__).resolve().parents[1]
# A wheel has the folders inside the package, a source checkout next to it.
_PLACES = (_PACKAGE / "_shipped", _PACKAGE.parent)


def existing_file(path: str, argument: str = "path") -> Path:
    """Return the file at a path, ``~`` expanded; ``argument`` is the option that holds it, for the message."""
    given = f"{argument}={path!r}" if argument else repr(path)
    try:
        found = Path(path).expanduser()
        is_file = found.is_file()
        if is_file:
            found.open("rb").close()
    except (OSError, RuntimeError, ValueError) as error:  # no such user behind ~, a name too long, no permission
        reason = getattr(error, "strerror", None) or str(error)
        raise DataError(f"{given} cannot be opened ({reason}): check the name and its permissions.") from error
    if not is_file:
        kind = "a folder, not a file" if found.is_dir() else "not a file"
        raise DataError(f"{given} is {kind} (looked for {found.absolute()}): check the name and the folder.")
    return found


def near(path: str | os.PathLike[str]) -> Path:
    """Shorten a path for messages: relative if it is below the working directory, else absolute."""
    whole = Path(path).absolute()
    return whole.relative_to(Path.cwd()) if whole.is_relative_to(Path.cwd()) else whole


def refuse_link_out(path: Path, folder: Path) -> Path:
    """Refuse a file of a run that links to a place outside the run's folder, with ``ConfigurationError``."""
    if not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder)):  # resolve() fails on a circle
        raise ConfigurationError(f"{path} is a link that leads out of the run's folder: replace it by a copy.")
    return path


def package_folder(name: str, content: str) -> Path:
    """Find a folder that ships with the package; ``content`` names what it holds, for the message."""
    folders = [place / name for place in _PLACES]
    for folder in folders:
        if folder.is_dir():
            return folder
    raise ConfigurationError(f"no {content} found in {' or '.join(map(str, folders))}: reinstall the package.")
