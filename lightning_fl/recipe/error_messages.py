"""Messages and exit codes of commands that meet an error.

Exit codes: 0; 2 for an error of the user or the system, with the reason on standard error; 1 for a mistake of this
package, with its traceback; 128 + n after signal n. ``LIGHTNING_FL_DEBUG=1`` always adds the traceback.
"""

import os
import re
import signal
import sys
import traceback
from collections.abc import Callable

from jsonargparse import ArgumentError

from lightning_fl.core.errors import FederatedError, TrainingError, cut
from lightning_fl.core.escaping import encodable, printable
from lightning_fl.core.system_errors import chain, place_of, refusal
from lightning_fl.engine.interrupt import ends_on_signals

#: Characters of one word of a message; a path is a word.
_MOST_OF_WORD = 400
#: Lines of the parser that only show the nesting.
_FRAME = re.compile(
    r"\s*(- )?(Parser key|Does not validate|Subtypes:|Errors:|Given value|Problem with given"
    r"|Expected a <class 'NoneType'>|Subclass types|a class path|a dict with|$)"
)


def shown(value: object) -> str:
    """Format a value of the user, shortened."""
    return "null" if value is None else cut(repr(value))


def exit_code(command: Callable[[], int]) -> int:
    """Run a command that returns its exit code, print its error, and return the code."""
    for stream in (sys.stdout, sys.stderr):
        encodable(stream)
    try:
        with ends_on_signals():
            code = command()
            sys.stdout.flush()
            return code
    except KeyboardInterrupt:
        if os.environ.get("LOCAL_RANK", "0") == "0":
            print("interrupted", file=sys.stderr)
        return 128 + signal.SIGINT
    except Exception as error:
        code, text = (128 + signal.SIGPIPE, "") if isinstance(error, BrokenPipeError) else _explain(error)
        if code == 1 or (text and os.environ.get("LIGHTNING_FL_DEBUG") == "1"):
            traceback.print_exc()
        for line in text.splitlines():
            print(f"error: {printable(line)}", file=sys.stderr)
        try:
            sys.stdout.flush()
        except OSError:  # the interpreter would flush once more into a closed pipe or a full disk
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return code


def _explain(error: Exception) -> tuple[int, str]:
    if isinstance(error, ArgumentError) or federated_cause(error) is not None:
        return 2, error_text(error)
    refused, place = refusal(error), place_of(error)
    if refused is not None:
        return 2, f"{refused.removesuffix('.')}{place}."
    text = f"{type(error).__name__}: {error}".rstrip(": .")
    if place:
        return 2, f"{text}{place}.{_hint()}"
    return 1, f"{text}. This is a mistake of lightning-fl's own: please report it with the traceback above."


def _hint() -> str:
    return "" if os.environ.get("LIGHTNING_FL_DEBUG") == "1" else " LIGHTNING_FL_DEBUG=1 shows where in the code."


def federated_cause(error: BaseException | None) -> FederatedError | None:
    """The error for the user, if it is a cause of another one."""
    return next((each for each in chain(error) if isinstance(each, FederatedError)), None)


def error_text(error: BaseException) -> str:
    """Message for an error of the user."""
    own = federated_cause(error)
    if own is None:
        return compact(str(error))
    unforeseen = own.__cause__ is not None and not isinstance(own.__cause__, FederatedError)
    return _without_long_words(str(own)) + (_hint() if isinstance(own, TrainingError) and unforeseen else "")


def compact(message: str) -> str:
    """Shorten the parser's nested message for one wrong value to one sentence: its key and innermost reasons."""
    path = ".".join(re.findall(r'Parser key "([^"]+)"', message))
    reasons = [line for line in message.splitlines() if not _FRAME.match(line)] or [" ".join(message.split())]
    deepest = max(len(line) - len(line.lstrip()) for line in reasons)
    chosen = [line[deepest:].removeprefix("- ").rstrip(".") for line in reasons if not line[:deepest].strip()]
    # For a union, a reason beyond the types that were expected tells more; else the value does.
    plain = [re.sub(r"<class '(?:\w+\.)*(\w+)'>", r"\1", reason) for reason in chosen if "<class" in reason]
    literal = r"Expected a typing.Literal\[(.*)\]. Got value: "
    specific = [re.sub(literal, r"expected one of \1, got ", reason) for reason in chosen if "<class" not in reason]
    given = re.findall(r"Given value: (.*)", message)
    text = "; ".join(dict.fromkeys(specific or plain)) + (f"; got {given[0]}" if given and not specific else "")
    return f"{path}{path and ': '}{cut(_without_long_words(text), _MOST_OF_WORD)}."


def _without_long_words(text: str) -> str:
    return re.sub(rf"\S{{{_MOST_OF_WORD},}}", lambda word: cut(word[0]), text)
