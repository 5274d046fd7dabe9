"""Reading a card's YAML: every value is checked, and a fault is named with the key and what is allowed."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lightning_fl.core.errors import ConfigurationError, did_you_mean
from lightning_fl.files.names import MOST_PLAIN_BYTES, is_plain_name

__all__ = [
    "CardFile",
    "read_choice",
    "read_count",
    "read_file",
    "read_keys",
    "read_list",
    "read_only_file",
    "read_plain_name",
    "read_text",
]


@dataclass(frozen=True)
class CardFile:
    """One file of a data set.

    Attributes:
        name: the file's name, as it is looked for in the user's folders.
        sha256: accepted SHA-256 sums (lower-case hexadecimal); empty where none is known.
        addresses: where it can be downloaded, tried in this order; empty where it must be fetched by hand.
    """

    name: str
    sha256: tuple[str, ...]
    addresses: tuple[str, ...]


def read_file(content: object, where: str) -> CardFile:
    """An entry of ``files``."""
    entry = read_keys(content, ("name", "sha256", "addresses"), where)
    sums = tuple(map(str, read_list(entry["sha256"], f"{where}, sha256")))
    addresses = tuple(map(str, read_list(entry["addresses"], f"{where}, addresses")))
    for value in sums:
        if not re.fullmatch("[0-9a-f]{64}", value):
            raise ConfigurationError(
                f"{where}, sha256: {value!r} is not a SHA-256 sum (64 lower-case hexadecimal digits)."
            )
    for address in addresses:
        if not address.startswith(("https://", "http://")):
            raise ConfigurationError(f"{where}, addresses: {address!r} is no https:// or http:// address.")
    if addresses and not sums:
        raise ConfigurationError(
            f"{where}: a download cannot be checked without a sum; list the accepted ones under sha256."
        )
    return CardFile(name=read_plain_name(entry, "name", where), sha256=sums, addresses=addresses)


def read_keys(content: object, known: tuple[str, ...], where: str, optional: tuple[str, ...] = ()) -> Mapping[str, Any]:
    """``content`` as a mapping that has exactly the known keys, and no others but the optional ones."""
    names = (*known, *optional)
    if not isinstance(content, Mapping):
        raise ConfigurationError(f"{where}: expected the keys {', '.join(names)}, got {type(content).__name__}.")
    faults = [f"unknown key {key!r}{did_you_mean(str(key), names)}" for key in content if key not in names]
    faults += [f"missing key {key!r}" for key in known if key not in content]
    if faults:
        raise ConfigurationError(f"{where}: {'; '.join(faults)}. The keys are {', '.join(names)}.")
    return content


def read_list(value: object, where: str) -> list[Any]:
    """``value``, if it is a list."""
    if not isinstance(value, list):
        raise ConfigurationError(f"{where}: expected a list, got {value!r}.")
    return value


def read_text(entry: Mapping[str, Any], key: str, where: str) -> str:
    """The text under a key, without blanks around it."""
    value = entry[key]
    if not isinstance(value, str) or not value.strip():
        raise ConfigurationError(f"{where}, {key}={value!r}: expected a text that is not empty.")
    return value.strip()


def read_plain_name(entry: Mapping[str, Any], key: str, where: str) -> str:
    """The text under a key, which names a file or folder and cannot leave the one in which that is put."""
    name = read_text(entry, key, where)
    if not is_plain_name(name):
        raise ConfigurationError(
            f"{where}, {key}={name[:MOST_PLAIN_BYTES]!r}: it names a file or folder, so give a name without a"
            f" folder, with none of / \\ : in it, not beginning with . or ~, of at most {MOST_PLAIN_BYTES} bytes."
        )
    return name


def read_choice(entry: Mapping[str, Any], key: str, allowed: tuple[str, ...], where: str) -> str:
    """The text under a key, one of those allowed."""
    value = read_text(entry, key, where)
    if value not in allowed:
        raise ConfigurationError(
            f"{where}, {key}={value!r}: expected one of {', '.join(allowed)}{did_you_mean(value, allowed)}."
        )
    return value


def read_count(value: object, key: str, where: str, what: str) -> int:
    """A whole number of at least 1."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigurationError(f"{where}, {key}={value!r}: give {what}.")
    return value


def read_only_file(files: list[CardFile], where: str) -> CardFile:
    """The file of a format that has exactly one."""
    if len(files) != 1:
        raise ConfigurationError(f"{where}, files: got {len(files)} files; these formats are read from exactly one.")
    return files[0]
