"""Folders that ship with the package: recipes and data cards."""

from pathlib import Path

from lightning_fl.core.errors import ConfigurationError

_PACKAGE = Path(__file__).resolve().parents[1]
# A wheel has the folders inside the package, a source checkout next to it.
_PLACES = (_PACKAGE / "_shipped", _PACKAGE.parent)


def package_folder(name: str, content: str) -> Path:
    """Find a folder that ships with the package; ``content`` names what it holds, for the message."""
    folders = [place / name for place in _PLACES]
    for folder in folders:
        if folder.is_dir():
            return folder
    raise ConfigurationError(f"no {content} found in {' or '.join(map(str, folders))}: reinstall the package.")
