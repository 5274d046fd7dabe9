"""The errors a user can mend. Each message names the thing that is wrong and what to do about it.

All derive from :class:`FederatedError`, so that the command line can print one or two lines instead of a traceback.
"""

__all__ = [
    "CheckpointError",
    "ConfigurationError",
    "DataError",
    "FederatedError",
    "LostPeerError",
    "TrainingError",
    "cut",
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


def page(name: str) -> str:
    """The address of a page of the documentation, for a message.

    Args:
        name: the page's path in ``docs/`` without its ending, with an anchor or without: "extending#which-hook".
    """
    path, _, anchor = name.partition("#")
    return f"{_SITE}/{path}.html" + (f"#{anchor}" if anchor else "")
