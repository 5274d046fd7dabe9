"""Texts that look like something else, such as ``'null'`` in quotes: read once, they are not read again.

The parser reads every text that it finds in a recipe as YAML once more, as it must read words of the command line.
It passes by what is of a class of its own.
"""

from typing import Any

import yaml

from lightning_fl.files.yaml import parse_yaml

__all__ = ["mark_quoted", "plain_texts"]


class _Quoted(str):
    """A text that was in quotes and would be something else without."""

    __slots__ = ()


def mark_quoted(value: Any) -> Any:
    """Lists and mappings as YAML gives them, with such texts of them marked."""
    if isinstance(value, dict):
        return {key: mark_quoted(item) for key, item in value.items()}
    if isinstance(value, list):
        return [mark_quoted(item) for item in value]
    return _Quoted(value) if type(value) is str and _means_another(value) else value


def plain_texts(value: Any) -> Any:
    """The same with plain texts again."""
    if type(value) is dict:
        return {key: plain_texts(item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(plain_texts(item) for item in value)
    return str(value) if isinstance(value, _Quoted) else value


def _means_another(text: str) -> bool:
    try:
        return bool(text.strip()) and not isinstance(parse_yaml(text), str)
    except yaml.YAMLError:
        return False
