"""Reading of a card's YAML; errors name the key and the allowed values."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lightning_fl.core.errors import ConfigurationError, did_you_mean
from lightning_fl.files.names import MOST_PLAIN_BYTES, is_plain_name

__all__ = [
    "CardFile",
    "read_file",
    "read_keys",
    "read_list",
    "read_names",
    "read_only_file",
    "read_plain_name",
    "read_text",
    "read_texts",
]


@dataclass(frozen=True)
class CardFile:
    """One file of a data set.

    Attributes:
        name: name under which the file is looked for in the user's folders.
        sha256: accepted SHA-256 sums (lower-case hexadecimal); empty if none is known.
        addresses: download addresses, in the order of trying; empty if the file must be fetched by hand.
    """

    name: str
    sha256: tuple[str, ...]
    addresses: tuple[str, ...]


def read_file(content: object, where: str) -> CardFile:
    """Read an entry of ``files``."""
    entry = read_keys(content, ("name", "sha256", "addresses"), where)
    sums = read_texts(entry["sha256"], f"{where}, sha256")
    addresses = read_texts(entry["addresses"], f"{where}, addresses")
    for value in sums:
        if not re.fullmatch("[0-9a-f]{64}", value):
            raise ConfigurationError(
                f"{where}, sha256: {value!r} is not a SHA-256 sum (64 lower-case hexadecimal digits)."
            )
    for address in addresses:
        if not address.startswith(("https://", "http://")):
            raise ConfigurationError(f"{where}, addresses: {address!r} is not an https:// or http:// address.")
    if addresses and not sums:
        raise ConfigurationError(f"{where}, sha256: give the accepted sums, with which a download is checked.")
    return CardFile(name=read_plain_name(entry, "name", where), sha256=sums, addresses=addresses)


def read_keys(content: object, known: tuple[str, ...], where: str, optional: tuple[str, ...] = ()) -> Mapping[str, Any]:
    """Read a mapping with exactly the known keys, and perhaps optional ones."""
    names = (*known, *optional)
    if not isinstance(content, Mapping):
        raise ConfigurationError(f"{where}: must have the keys {', '.join(names)}, got {type(content).__name__}.")
    faults = [f"unknown key {key!r}{did_you_mean(str(key), names)}" for key in content if key not in names]
    faults += [f"missing key {key!r}" for key in known if key not in content]
    if faults:
        raise ConfigurationError(f"{where}: {'; '.join(faults)}. The keys are {', '.join(names)}.")
    return content


def read_list(value: object, where: str) -> list[Any]:
    """Read a list."""
    if not isinstance(value, list):
        raise ConfigurationError(f"{where}: must be a list, got {value!r}.")
    return value


def read_texts(value: object, where: str) -> tuple[str, ...]:
    """Read a list of texts."""
    return tuple(map(str, read_list(value, where)))


def read_names(value: object, where: str) -> tuple[str, ...]:
    """Read a list of two or more distinct names."""
    names = read_texts(value, where)
    if len(names) < 2 or len(set(names)) < len(names):
        raise ConfigurationError(f"{where}: must be two or more distinct names.")
    return names


def read_text(entry: Mapping[str, Any], key: str, where: str) -> str:
    """Read the text of a key, without surrounding blanks."""
    value = entry[key]
    if not isinstance(value, str) or not value.strip():
        raise ConfigurationError(f"{where}, {key}={value!r}: must be a text that is not empty.")
    return value.strip()


def read_plain_name(entry: Mapping[str, Any], key: str, where: str) -> str:
    """Read the name of a file or folder, which cannot lead out of its own folder."""
    name = read_text(entry, key, where)
    if not is_plain_name(name):
        raise ConfigurationError(
            f"{where}, {key}={name[:MOST_PLAIN_BYTES]!r}: must be the plain name of a file or folder, without / \\ or"
            f" :, not beginning with . or ~, of at most {MOST_PLAIN_BYTES} bytes."
        )
    return name


def read_only_file(files: list[CardFile], where: str) -> CardFile:
    """Return the only file of a format."""
    if len(files) != 1:
        raise ConfigurationError(f"{where}, files: got {len(files)} files; this format has exactly one.")
    return files[0]
