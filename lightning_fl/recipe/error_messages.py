"""Errors in words: what is printed of one, and how a command ends that met it.

Exit codes: 0; 2 for what the user is to mend or the machine refuses, with the reason on standard error; 1 for a mistake
of this package's own; 128 + n after signal n. With ``LIGHTNING_FL_DEBUG=1`` an error comes with its traceback.
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

_HINT = "\nLIGHTNING_FL_DEBUG=1 shows where in the code."

#: Signs of one word of a message; a path is a word.
_MOST_OF_WORD = 400

__all__ = ["compact", "error_text", "exit_code", "federated_cause", "shown"]


def shown(value: object) -> str:
    """A value of the user's in a message: not all of what is long."""
    return "null" if value is None else cut(repr(value))


def exit_code(command: Callable[[], int]) -> int:
    """Run a command and say on standard error what went wrong.

    Args:
        command: returns its exit code.

    Returns:
        The exit code.
    """
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
        code, text = _judged(error)
        for line in text.splitlines():
            print(f"error: {printable(line)}", file=sys.stderr)
        try:
            sys.stdout.flush()
        except OSError:
            _drop_output()
        return code


def _drop_output() -> None:
    """Let the interpreter not flush once more into what takes nothing."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _judged(error: Exception) -> tuple[int, str]:
    """The exit code for an error, and what is said of it."""
    if isinstance(error, FederatedError | ArgumentError):
        return 2, error_text(error)
    refused, place = refusal(error), place_of(error)
    if refused is not None:
        own = federated_cause(error)  # closing what an error left open may have failed as well
        return 2, refused.removesuffix(".") + place + "." if own is None else error_text(own)
    text = f"{type(error).__name__}: {error}".rstrip(": .")
    if place:
        return 2, f"{text}{place}.{'' if _shows_traceback() else _HINT}"
    kept = _kept_traceback(error)
    return 1, f"{text}. This is a mistake of lightning-fl's own: please report it{kept}."


def _kept_traceback(error: Exception) -> str:
    """Keep the traceback of an error in a file; where it is, in words."""
    if _shows_traceback():
        return " with the traceback above"
    try:
        number, path = tempfile.mkstemp(prefix="lightning-fl-traceback-", suffix=".txt")
        with open(number, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write("".join(traceback.format_exception(error)))
    except OSError:
        return " with its traceback, which LIGHTNING_FL_DEBUG=1 shows"
    return f" with its traceback, {path}"


def federated_cause(error: BaseException | None) -> FederatedError | None:
    """The error that is meant for the user, if it lies below one of the parser's."""
    return next((each for each in chain(error) if isinstance(each, FederatedError)), None)


def error_text(error: BaseException) -> str:
    """What is printed of an error."""
    own = federated_cause(error)
    if own is None:
        return compact(str(error))
    hint = ""
    unforeseen = own.__cause__ is not None and not isinstance(own.__cause__, FederatedError)
    if isinstance(own, TrainingError) and unforeseen and not _shows_traceback():
        hint = _HINT
    return f"{_without_long_words(str(own))}{hint}"


def _without_long_words(text: str) -> str:
    return re.sub(rf"\S{{{_MOST_OF_WORD},}}", lambda word: cut(word[0]), text)


def _shows_traceback() -> bool:
    return os.environ.get("LIGHTNING_FL_DEBUG") == "1"


def compact(message: str) -> str:
    """The parser's message for one wrong value, several nested lines, as one sentence."""
    path = ".".join(re.findall(r'Parser key "([^"]+)"', message))
    lines = message.splitlines()
    given = [line.split(":", 1)[1].strip() for line in lines if re.match(r"\s*Given value:", line)]
    reasons: list[tuple[int, str]] = []
    for line in lines:
        text = re.sub(r'^Parser key "[^"]+":', "", line.strip().removeprefix("- ")).strip()
        if text and not _FRAME.match(text):
            reasons.append((len(line) - len(line.lstrip()), _plain(text)))
    deepest = max((indent for indent, _ in reasons), default=0)
    chosen = list(dict.fromkeys(text for indent, text in reasons if indent == deepest))
    # Of several types that a value may have, a reason of its own tells more than "expected another type".
    telling = [text for text in chosen if not text.startswith("expected a value of type")]
    sentence = "; ".join(telling or chosen) or " ".join(message.split())
    if given and not telling and "got " not in sentence:
        sentence += f"; got {given[0]}" if len(given[0]) < 80 else ""
    sentence = cut(_without_long_words(sentence), _MOST_OF_WORD)
    return f"{path}: {sentence}." if path else f"{sentence.rstrip('.')}."


# lines that say only where in the nesting they stand
_FRAME = re.compile(
    r"(Does not validate|Subtypes:|Errors:|Given value|Problem with given|Expected a <class 'NoneType'>|Subclass types"
    r"|a class path|a dict with)"
)


def _plain(text: str) -> str:
    text = re.sub(r"typing\.Literal\[([^\]]*)\]", r"one of \1", text)
    text = re.sub(r"<class '(?:[\w.]*\.)?(\w+)'>", r"\1", text)
    text = re.sub(r"^Not of type \w+: (int\(\)|float\(\)|invalid literal|could not).*", "expected a number", text)
    text = re.sub(r"^Expected an? (one of )?", lambda match: f"expected {match[1] or 'a value of type '}", text)
    return re.sub(r"\.? Got value: ", ", got ", text).rstrip(".")
