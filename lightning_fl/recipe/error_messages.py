"""Messages and exit codes of commands that meet an error.

Exit codes: 0; 2 for an error of the user or the system, with the reason on standard error; 1 for a mistake of this
package; 128 + n after signal n. ``LIGHTNING_FL_DEBUG=1`` adds the traceback.
"""

import os
import re
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable

from jsonargparse import ArgumentError

from lightning_fl.core.errors import FederatedError, TrainingError, cut
from lightning_fl.core.escaping import encodable, printable
from lightning_fl.core.system_errors import chain, place_of, refusal
from lightning_fl.engine.interrupt import Interrupted, ends_on_signals

__all__ = ["compact", "error_text", "exit_code", "federated_cause", "shown"]

_HINT = "\nLIGHTNING_FL_DEBUG=1 shows where in the code."
#: Characters of one word of a message; a path is a word.
_MOST_OF_WORD = 400


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
    except KeyboardInterrupt as error:
        if os.environ.get("LOCAL_RANK", "0") == "0":
            print("interrupted", file=sys.stderr)
        return 128 + (error.number if isinstance(error, Interrupted) else signal.SIGINT)
    except BrokenPipeError:  # `lightning-fl recipes | head`
        _drop_output()
        return 141
    except Exception as error:
        if _shows_traceback():
            traceback.print_exc()
        code, text = _explain(error)
        for line in text.splitlines():
            print(f"error: {printable(line)}", file=sys.stderr)
        try:
            sys.stdout.flush()
        except OSError:
            _drop_output()
        return code


def _drop_output() -> None:
    """Keep the interpreter from flushing once more into a closed pipe or a full disk."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _explain(error: Exception) -> tuple[int, str]:
    """Exit code and message for an error."""
    if isinstance(error, FederatedError | ArgumentError):
        return 2, error_text(error)
    refused, place = refusal(error), place_of(error)
    if refused is not None:
        own = federated_cause(error)  # closing what an error left open may have failed as well
        return 2, refused.removesuffix(".") + place + "." if own is None else error_text(own)
    text = f"{type(error).__name__}: {error}".rstrip(": .")
    if place:
        return 2, f"{text}{place}.{'' if _shows_traceback() else _HINT}"
    kept = "the traceback above"
    if not _shows_traceback():
        try:
            number, kept = tempfile.mkstemp(prefix="lightning-fl-traceback-", suffix=".txt")
            with open(number, "w", encoding="utf-8", errors="backslashreplace") as file:
                file.write("".join(traceback.format_exception(error)))
        except OSError:
            kept = "its traceback, which LIGHTNING_FL_DEBUG=1 shows"
    return 1, f"{text}. This is a mistake of lightning-fl's own: please report it with {kept}."


def federated_cause(error: BaseException | None) -> FederatedError | None:
    """The error for the user, if it is a cause of another one."""
    return next((each for each in chain(error) if isinstance(each, FederatedError)), None)


def error_text(error: BaseException) -> str:
    """Message for an error of the user."""
    own = federated_cause(error)
    if own is None:
        return compact(str(error))
    unforeseen = own.__cause__ is not None and not isinstance(own.__cause__, FederatedError)
    hint = _HINT if isinstance(own, TrainingError) and unforeseen and not _shows_traceback() else ""
    return f"{_without_long_words(str(own))}{hint}"


def compact(message: str) -> str:
    """Shorten the parser's nested message for one wrong value to one sentence: its key and innermost reasons."""
    path = ".".join(re.findall(r'Parser key "([^"]+)"', message))
    lines = message.splitlines()
    values = [line.split(":", 1)[1].strip() for line in lines if re.match(r"\s*Given value:", line)]
    reasons: list[tuple[int, str]] = []
    for line in lines:
        text = re.sub(r'^Parser key "[^"]+":', "", line.strip().removeprefix("- ")).strip()
        if text and not _FRAME.match(text):
            reasons.append((len(line) - len(line.lstrip()), _without_types(text)))
    deepest = max((indent for indent, _ in reasons), default=0)
    chosen = list(dict.fromkeys(text for indent, text in reasons if indent == deepest))
    # For a union, a reason beyond "expected another type" tells more.
    specific = [text for text in chosen if not text.startswith("expected a value of type")]
    sentence = "; ".join(specific or chosen) or " ".join(message.split())
    if values and not specific and "got " not in sentence and len(values[0]) < 80:
        sentence += f"; got {values[0]}"
    sentence = cut(_without_long_words(sentence), _MOST_OF_WORD)
    return f"{path}: {sentence}." if path else f"{sentence.rstrip('.')}."


#: Lines that only show the nesting.
_FRAME = re.compile(
    r"(Does not validate|Subtypes:|Errors:|Given value|Problem with given|Expected a <class 'NoneType'>|Subclass types"
    r"|a class path|a dict with)"
)


def _without_types(text: str) -> str:
    """Replace Python's type names in a reason of the parser."""
    text = re.sub(r"typing\.Literal\[([^\]]*)\]", r"one of \1", text)
    text = re.sub(r"<class '(?:[\w.]*\.)?(\w+)'>", r"\1", text)
    text = re.sub(r"^Not of type \w+: (int\(\)|float\(\)|invalid literal|could not).*", "expected a number", text)
    text = re.sub(r"^Expected an? (one of )?", lambda found: f"expected {found[1] or 'a value of type '}", text)
    return re.sub(r"\.? Got value: ", ", got ", text).rstrip(".")


def _without_long_words(text: str) -> str:
    return re.sub(rf"\S{{{_MOST_OF_WORD},}}", lambda word: cut(word[0]), text)


def _shows_traceback() -> bool:
    return os.environ.get("LIGHTNING_FL_DEBUG") == "1"
