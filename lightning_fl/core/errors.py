"""Errors that a user can fix, and helpers for their messages.

The command line prints a :class:`FederatedError` in one or two lines, without a traceback.
"""

import difflib
import importlib.util
from collections.abc import Collection

#: Address of the documentation; pages keep their names in ``docs/``.
_SITE = "https://lightning-fl.readthedocs.io/en/latest"


class FederatedError(Exception):
    """Base of all errors that a user, not a developer, can fix."""


class ConfigurationError(FederatedError, ValueError):
    """An argument or a recipe key is wrong, or two parts cannot be combined."""


class DataError(FederatedError, ValueError):
    """Data are missing, corrupt, empty or differ from their description."""


class CheckpointError(FederatedError, RuntimeError):
    """A checkpoint cannot be read, was written by another program, or does not match the run."""


class TrainingError(FederatedError, RuntimeError):
    """Training cannot continue: a loss or weight is not finite, or a client's step failed."""


class LostPeerError(TrainingError):
    """Another process of the run was killed, or its machine or network failed."""


def cut(text: object, most: int = 60) -> str:
    """Shorten a text for a message to ``most`` characters."""
    text = str(text)
    return text if len(text) <= most else f"{text[: most - 3]}..."


#: Setting of Lightning's Trainer -> the federated trainer's own; empty for none.
OF_LIGHTNING = {
    **{name: name for name in ("accumulate_grad_batches", "gradient_clip_algorithm", "gradient_clip_val")},
    "log_every_n_steps": "log_every_n_steps",
    **dict.fromkeys(("fast_dev_run", "max_epochs", "max_steps"), "max_rounds"),
    **dict.fromkeys(("limit_train_batches", "overfit_batches"), "local_steps"),
    **dict.fromkeys(("check_val_every_n_epoch", "limit_val_batches", "val_check_interval"), "check_val_every_n_rounds"),
    **dict.fromkeys(("barebones", "enable_autolog_hparams", "reload_dataloaders_every_n_epochs"), ""),
    **dict.fromkeys(("limit_predict_batches", "limit_test_batches", "num_sanity_val_steps"), ""),
}


def did_you_mean(word: str, known: Collection[str]) -> str:
    """Return ``" (did you mean 'x'?)"`` with the known word nearest to ``word``, or an empty string.

    For a setting of Lightning's Trainer it is the federated trainer's own, if that is known.
    """
    lowered = {entry.lower(): entry for entry in known}
    same = lowered.keys() & {OF_LIGHTNING.get(word.lower())}
    near = list(same) or difflib.get_close_matches(word.lower(), lowered, n=1)
    return f" (did you mean {lowered[near[0]]!r}?)" if near else ""


def listed(names: Collection[str], most: int = 20, *, near: str = "") -> str:
    """Join names for a message: ``"a, b, c and 4 more"``; of too many, show the nearest to ``near``."""
    if near and len(names) > most:
        names = sorted(names, key=lambda name: -difflib.SequenceMatcher(None, near.lower(), name.lower()).ratio())
    shown = ", ".join(list(names)[:most])
    return shown + (f" and {len(names) - most} more" if len(names) > most else "")


def counted(number: int, noun: str) -> str:
    """ "1 seed", "2 seeds"."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def page(name: str) -> str:
    """Return the address of a page in ``docs/``, without ``.md``, perhaps with an anchor: "extending#which-hook"."""
    path, _, anchor = name.partition("#")
    return f"{_SITE}/{path}.html" + (f"#{anchor}" if anchor else "")


def expect_extra(package: str, extra: str, owner: str) -> None:
    """Refuse a missing package with the command that installs it."""
    found = importlib.util.find_spec(package)
    if found is None or found.origin is None:  # a plain folder of that name has no origin
        remedy = f'install it with `pip install "lightning-fl[{extra}]"`'
        raise ConfigurationError(f"{owner}: {package} is not installed; {remedy}.")
