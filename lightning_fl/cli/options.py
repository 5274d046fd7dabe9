"""Options of commands, declared once: by the signature and docstring of a command's function."""

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, NamedTuple, Union, get_args, get_origin, get_type_hints

import docstring_parser
from jsonargparse import ArgumentParser, Namespace

from lightning_fl.core.errors import ConfigurationError
from lightning_fl.core.validation import Count, faults_of


class Word(NamedTuple):
    """Metadata of an annotation: how a word of the command line is called, and its value if it may be left out."""

    metavar: str
    const: Any = None


File = Annotated[Path, Word("FILE")]
Folder = Annotated[Path, Word("DIR")]
Run = Annotated[Path, Word("RUN")]
Number = Annotated[Count, Word("N")]

#: Meanings of parameters that several commands have.
_SHARED = {
    "run": "folder of a finished run: the one with config.yaml and summary.json",
    "force": "replace the file if it exists",
    "model": "a client's name; shared or shared_K; best (default: the shared model)",
    "trust": "allow the run's config.yaml to name classes outside lightning_fl, which executes their code",
    "accelerator": "device: cpu, cuda or auto",
}
#: Options with another name than their parameter.
_FLAGS = {"others": "with", "rows": "chunk_rows", "to_folder": "to-folder", "dry_run": "dry-run", "from_": "from"}


def add_options(parser: ArgumentParser, function: Callable[..., int]) -> None:
    """Add a function's parameters: arguments, and those by keyword only as options.

    Booleans are flags, and sequences several words. The fields of a dataclass are options of their own.
    """
    for parameter, meaning in _parameters(function):
        hint, word = _split(parameter.annotation)
        how: dict[str, Any] = {"help": f"{meaning[0].upper()}{meaning[1:]}."}
        is_required, is_positional = parameter.default is parameter.empty, parameter.kind is not parameter.KEYWORD_ONLY
        if parameter.default is False:
            how["action"] = "store_true"
        elif get_origin(hint) is Sequence:
            (kind,) = get_args(hint)
            how |= {"type": next(iter(get_args(kind)), kind), "nargs": "+"}  # str of "str | Path"
            how |= {} if is_positional else {"action": "extend"}
        else:
            how["type"] = hint
        if not is_required:
            how["default"] = list(parameter.default) if isinstance(parameter.default, tuple) else parameter.default
        if word is not None:
            how |= {"metavar": word.metavar, **({} if word.const is None else {"nargs": "?", "const": word.const})}
        if is_positional:
            parser.add_argument(parameter.name, **how, **({} if is_required else {"nargs": "?"}))
        else:
            how |= {"required": True} if is_required else {}
            parser.add_argument(f"--{_FLAGS.get(parameter.name, parameter.name)}", dest=parameter.name, **how)


def call(function: Callable[..., int], config: Namespace) -> int:
    """Call a command's function with the options that a parser of :func:`add_options` found."""
    given = {name: value.expanduser() if isinstance(value, Path) else value for name, value in vars(config).items()}
    parameters = {f"--{_FLAGS.get(found.name, found.name)}": found for found, _ in _parameters(function)}
    ranges = {flag: parameter.annotation for flag, parameter in parameters.items()}
    if faults := faults_of(ranges, {flag: given[parameter.name] for flag, parameter in parameters.items()}):
        raise ConfigurationError(" ".join(faults))
    for name, hint in get_type_hints(function).items():
        if isinstance(hint, type) and is_dataclass(hint):
            given[name] = hint(**{one.name: given.pop(one.name) for one in fields(hint)})
    return function(**given)


def _parameters(described: Callable[..., Any]) -> Iterator[tuple[inspect.Parameter, str]]:
    """Parameters with their meanings."""
    hints = get_type_hints(described if inspect.isfunction(described) else described.__init__, include_extras=True)
    parsed = docstring_parser.parse(inspect.getdoc(described) or "").params
    meanings = {one.arg_name: " ".join((one.description or "").split()) for one in parsed}
    for name, one in inspect.signature(described).parameters.items():
        if is_dataclass(hints.get(name)):
            yield from _parameters(hints[name])
        elif one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY):
            yield one.replace(annotation=hints[name]), meanings.get(name) or _SHARED[name]


def _split(annotation: Any) -> tuple[Any, Word | None]:
    """Separate an annotation from its :class:`Word`, if any, and the ranges beside that, which :func:`call` checks."""
    if get_origin(annotation) in (Union, UnionType):
        parts, words = zip(*map(_split, get_args(annotation)), strict=True)
        return Union[parts], next(filter(None, words), None)  # noqa: UP007
    word = next((one for one in getattr(annotation, "__metadata__", ()) if isinstance(one, Word)), None)
    return annotation.__origin__ if word else annotation, word
