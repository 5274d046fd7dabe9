"""Folders of files that come with the package: its recipes and its data cards."""

from pathlib import Path

from lightning_fl.core.errors import ConfigurationError

__all__ = ["package_folder"]

_PACKAGE = Path(__file__).resolve().parents[1]
# In a wheel the folders lie inside the package, in a source checkout beside it.
_PLACES = (_PACKAGE / "_shipped", _PACKAGE.parent)


def package_folder(name: str, content: str) -> Path:
    """The folder of a name that comes with the package.

    Args:
        name: of the folder.
        content: what lies in it, for the message.

    Raises:
        ConfigurationError: the package was installed without it.
    """
    folders = [place / name for place in _PLACES]
    for folder in folders:
        if folder.is_dir():
            return folder
    raise ConfigurationError(f"no {content} found in {' or '.join(map(str, folders))}: install the package again.")
