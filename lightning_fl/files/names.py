"""File names made from names that a user gives: all different, on any file system, and never outside their folder."""

import hashlib
import re
import unicodedata
from collections.abc import Sequence

__all__ = ["MOST_PLAIN_BYTES", "client_files", "file_names", "is_plain_name"]

#: Bytes of a name in UTF-8; file systems take 255, less what is added to it.
_MOST_BYTES = 100
#: Of a name that must be a file's as it is.
MOST_PLAIN_BYTES = 150
_DIGITS = 8
#: What Windows takes for a device, whatever follows the first dot.
_DEVICES = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?", re.IGNORECASE)
#: The shared models beside which clients' lie.
_SHARED = r"shared_\d+"


def is_plain_name(name: str) -> bool:
    """Whether a file or folder of this name lies in its folder, on any system: no separator, not hidden, not long."""
    return (
        not re.search(r"[\x00-\x1f\x7f/\\:]", name)
        and name == name.strip()
        and not name.startswith((".", "~"))
        and not name.endswith(".")
        and 0 < len(name.encode(errors="replace")) <= MOST_PLAIN_BYTES
        and not _DEVICES.fullmatch(name)
    )


def client_files(names: Sequence[str]) -> list[str]:
    """:func:`file_names` of clients, for their models and predictions; a client is not taken for a shared model."""
    return file_names(names, reserved=_SHARED)


def file_names(names: Sequence[str], reserved: str | None = None) -> list[str]:
    """One name of a file or folder for each name, to which an ending such as ``.csv`` may be added.

    They depend on the names alone, differ from each other even where a file system does not tell capital letters or
    composed letters apart, have at most 100 bytes, are not hidden and hold no separator. A name of letters and digits
    of any script, ``.``, ``_`` and ``-`` stays as it is. Where one must be changed, what is left of it is followed by a
    short hash of it: ``a/b`` is ``a_b-c14cddc0``. Of names that only such a file system takes for one, the first stays.

    Args:
        names: whatever they hold.
        reserved: a regular expression; names that match it as a whole, in capitals or not, are changed.
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
    """The same for names that some file system takes for one."""
    folded = unicodedata.normalize("NFKC", name).casefold()
    return unicodedata.normalize("NFKC", folded)


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
    """Whether a character is a letter or digit of some script, part of one, or harmless."""
    return character in "._-" or character.isalnum() or unicodedata.category(character).startswith("M")


def _changed(name: str, used: set[str]) -> str:
    """What is left of a name, with a hash that makes it another one than those in use."""
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()
    text = "".join(c if _stays(c) else " " for c in unicodedata.normalize("NFC", name))
    text = "_".join(text.split()).lstrip(".")
    digits = _DIGITS
    while True:
        # The hash comes last, so that a name with a dot in it does not look like one with an ending.
        room = _MOST_BYTES - digits - 1
        start = text.encode()[:room].decode(errors="ignore")
        found = f"{start}-{digest[:digits]}" if start else digest[:digits]
        if _key(found) not in used:
            return found
        if digits == len(digest):  # the same name once more
            digest = hashlib.sha256(digest.encode()).hexdigest()
            digits = _DIGITS - 1
        digits += 1
