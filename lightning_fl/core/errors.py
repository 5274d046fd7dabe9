"""The errors a user can mend. Each message names the thing that is wrong and what to do about it.

All derive from :class:`FederatedError`, so that the command line can print one or two lines instead of a traceback.
"""

import difflib
from collections.abc import Collection

__all__ = [
    "CheckpointError",
    "ConfigurationError",
    "DataError",
    "FederatedError",
    "LostPeerError",
    "TrainingError",
    "cut",
    "did_you_mean",
    "listed",
    "page",
]

#: Where the documentation is read, the pages of ``docs/`` under their own names.
_SITE = "https://lightning-fl.readthedocs.io/en/latest"


class FederatedError(Exception):
    """Base of every error that a user, not a developer, is expected to mend."""


class ConfigurationError(FederatedError, ValueError):
    """An argument or a recipe key is wrong, or two parts do not go together."""


class DataError(FederatedError, ValueError):
    """Data are missing, damaged, empty or not what their description says."""


class CheckpointError(FederatedError, RuntimeError):
    """A checkpoint cannot be read, is not ours, or does not fit the run."""


class TrainingError(FederatedError, RuntimeError):
    """Training cannot go on: a loss or a weight is not finite, or a client's step failed."""


class LostPeerError(TrainingError):
    """Another process of the run is gone: killed, or its machine or network failed."""


def cut(text: object, most: int = 60) -> str:
    """A text for a message, or its beginning where it has more than so many signs."""
    text = str(text)
    return text if len(text) <= most else f"{text[: most - 3]}..."


def did_you_mean(word: str, known: Collection[str]) -> str:
    """``" (did you mean 'x'?)"`` for the known word nearest to ``word``, else an empty string."""
    lowered = {entry.lower(): entry for entry in known}
    near = difflib.get_close_matches(word.lower(), lowered, n=1)
    return f" (did you mean {lowered[near[0]]!r}?)" if near else ""


def listed(names: Collection[str], most: int = 20, *, near: str = "") -> str:
    """``"a, b, c and 4 more"``: the first of some names, for messages; of too many those most like ``near`` first."""
    if near and len(names) > most:
        names = sorted(names, key=lambda name: -difflib.SequenceMatcher(None, near.lower(), name.lower()).ratio())
    shown = ", ".join(list(names)[:most])
    return shown + (f" and {len(names) - most} more" if len(names) > most else "")


def page(name: str) -> str:
    """The address of a page of the documentation, for a message.

    Args:
        name: the page's path in ``docs/`` without its ending, with an anchor or without: "extending#which-hook".
    """
    path, _, anchor = name.partition("#")
    return f"{_SITE}/{path}.html" + (f"#{anchor}" if anchor else "")
