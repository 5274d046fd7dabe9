"""The program ``lightning-fl``, and ``python -m lightning_fl``, where its script is not on the path."""

import atexit
import gc
import os
import shlex
import signal
import sys
from collections.abc import Sequence
from importlib.util import find_spec

from lightning_fl.core.lazy import import_torchmetrics
from lightning_fl.engine.interrupt import end_fork, ends_on_signals

__all__ = ["first_words", "main"]

#: Commands that load torch before they say anything.
_SLOW = ("fit", "validate", "test", "predict", "explain", "personalize", "study")
_QUIET = ("-h", "--help", "--print_config", "--print_shtab", "--dry-run", "--from")
_RANKS = ("RANK", "LOCAL_RANK", "SLURM_PROCID", "NODE_RANK")


def main() -> int:
    """Run a command."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by what started the program
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
    with ends_on_signals():
        said = first_words(sys.argv[1:])
        if sys.stderr.isatty() and all(os.environ.get(name, "0") == "0" for name in _RANKS):
            print(said, end="", file=sys.stderr, flush=True)
        if said:
            gc.disable()  # imports make a million objects and hardly any garbage, which takes a fifth of their time
            import_torchmetrics()
        from lightning_fl.cli import main as run_command

        code = run_command()
    atexit.register(_end, code)
    return code


def _end(code: int) -> None:
    atexit.unregister(_end)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # whose traceback would be of other functions
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    end_fork(code)


def first_words(words: Sequence[str]) -> str:
    """What a command tells a person first, in the seconds that importing torch and Lightning takes; "" for nothing.

    Args:
        words: after ``lightning-fl``.
    """
    if len(words) < 2 or words[0] not in _SLOW or any(word.split("=")[0] in _QUIET for word in words):
        return ""
    torch = find_spec("torch")
    cold = torch is not None and torch.cached is not None and not os.path.exists(torch.cached)
    first = "The first start compiles all that it imports, which takes some twenty seconds.\n" if cold else ""
    return f"{shlex.join(words)} ...\n{first}"


if __name__ == "__main__":
    sys.exit(main())
