"""Safe file names for user-given names: distinct on any file system, never outside their folder."""

import hashlib
import re
import unicodedata
from collections.abc import Sequence
from pathlib import Path

#: Bytes of a name in UTF-8; file systems allow 255, and endings are added.
_MOST_BYTES = 100
#: Bytes of a name that is used unchanged.
MOST_PLAIN_BYTES = 150
_DIGITS = 8
#: Device names on Windows, with any ending.
_DEVICES = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?", re.IGNORECASE)
#: Names of shared models, which are in the same folder as those of clients.
_SHARED = r"shared_\d+"


def run_versions(folder: Path) -> list[tuple[int, Path]]:
    """The folders ``version_N`` in a folder, each with N, in their order."""
    found = ((re.fullmatch(r"version_([0-9]+)", path.name), path) for path in folder.glob("version_*"))
    return sorted((int(match[1]), path) for match, path in found if match)


def is_plain_name(name: str) -> bool:
    """Whether a name is a safe file name on any system: no separator, not hidden, not too long."""
    return (
        not re.search(r"[\x00-\x1f\x7f/\\:]", name)
        and name == name.strip()
        and not name.startswith((".", "~"))
        and not name.endswith(".")
        and 0 < len(name.encode(errors="replace")) <= MOST_PLAIN_BYTES
        and not _DEVICES.fullmatch(name)
    )


def client_files(names: Sequence[str]) -> list[str]:
    """:func:`file_names` of clients, distinct from those of shared models."""
    return file_names(names, reserved=_SHARED)


def file_names(names: Sequence[str], reserved: str | None = None) -> list[str]:
    """Return a file name, to which an ending such as ``.csv`` may be added, for each name.

    File names depend on the names alone, have at most 100 bytes, are not hidden and hold no separator. They stay
    distinct on file systems that ignore case or Unicode composition. A name of letters and digits of any script, ``.``,
    ``_`` and ``-`` stays as it is; any other, or one that matches ``reserved`` as a whole, is cleaned and followed by a
    short hash: ``a/b`` is ``a_b-c14cddc0``. Of names that a file system may confuse, the first stays.
    """
    taken = re.compile(reserved, re.IGNORECASE) if reserved else None
    found: list[str | None] = [None] * len(names)
    used: set[str] = set()
    for place, name in enumerate(names):
        if _is_harmless(name, taken) and _key(name) not in used:
            found[place] = name
            used.add(_key(name))
    for place, name in enumerate(names):
        if found[place] is None:
            found[place] = _changed(name, used)
            used.add(_key(str(found[place])))
    return [str(name) for name in found]


def _key(name: str) -> str:
    """Key that is equal for names that some file system confuses."""
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold())


def _is_harmless(name: str, reserved: re.Pattern[str] | None) -> bool:
    return (
        0 < len(name.encode("utf-8", "surrogatepass")) <= _MOST_BYTES
        and all(map(_stays, name))
        and not name.startswith(".")
        and name == unicodedata.normalize("NFC", name)
        and not _DEVICES.fullmatch(name)
        and not (reserved and reserved.fullmatch(_key(name)))
    )


def _stays(character: str) -> bool:
    """Whether a character is kept: a letter, digit or mark of any script, or one of ``._-``."""
    return character in "._-" or character.isalnum() or unicodedata.category(character).startswith("M")


def _changed(name: str, used: set[str]) -> str:
    """Clean a name and append a hash that makes it distinct from those in use."""
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()
    text = "".join(c if _stays(c) else " " for c in unicodedata.normalize("NFC", name))
    text = "_".join(text.split()).lstrip(".")
    start = text.encode()[: _MOST_BYTES - _DIGITS - 1].decode(errors="ignore")
    while True:
        # The hash is last, so that a name with a dot does not seem to have an ending.
        found = f"{start}-{digest[:_DIGITS]}" if start else digest[:_DIGITS]
        if _key(found) not in used:
            return found
        digest = hashlib.sha256(digest.encode()).hexdigest()  # the same name again
