"""Reference pages, generated from signatures, docstrings, recipes and commands."""

import inspect
import pkgutil
import re
import textwrap
from collections.abc import Iterator
from functools import reduce
from operator import or_
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import docstring_parser
from annotated_types import Ge, GroupedMetadata, Gt, Le, Lt
from docstring_roles import as_markdown

import lightning_fl
from lightning_fl import callbacks, data, functional, models, strategies
from lightning_fl.callbacks import Callback
from lightning_fl.cli import COMMANDS, make_parser

__all__ = ["pages"]

ROOT = Path(__file__).resolve().parents[2]
ROOMS = {"callbacks": callbacks, "strategies": strategies, "data": data, "models": models}


def pages() -> dict[str, str]:
    """Path in the site -> Markdown."""
    elsewhere = {one for module in ROOMS.values() for one in _exported(module)}
    made = {
        "reference/api/lightning_fl.md": _api("lightning_fl", _exported(lightning_fl), elsewhere),
        "reference/api/functional.md": _functional(),
        "reference/api/metrics.md": "# lightning_fl.core.metrics\n\n::: lightning_fl.core.metrics\n",
        "reference/keys/trainer.md": _keys(
            "Recipe keys of the trainer",
            "Under `trainer:` in a recipe, `--trainer.KEY` on the command line, arguments in Python.",
            [lightning_fl.FederatedTrainer],
        ),
        "reference/hooks.md": _hooks(),
        "reference/commands.md": _commands(),
        "reference/recipes.md": _recipes(),
    }
    where = {
        "callbacks": "Under `trainer.callbacks:` in a recipe, as `{class_path: NAME, init_args: {KEY: VALUE}}`.",
        "strategies": "Under `trainer.strategy:` in a recipe, as `{class_path: NAME, init_args: {KEY: VALUE}}`.",
        "data": "Under `data:` in a recipe; partitioners under `data.partitioner`, divisions under `data.split`, shifts"
        " under `data.shifts`.",
        "models": "Under `model:` in a recipe.",
    }
    for room, module in ROOMS.items():
        objects = _exported(module)
        mathematics = {one for one in objects if one.__module__.startswith(functional.__name__)}
        made[f"reference/api/{room}.md"] = _api(f"lightning_fl.{room}", objects, mathematics)
        classes = [one for one in objects if inspect.isclass(one)]
        made[f"reference/keys/{room}.md"] = _keys(f"Recipe keys of {room}", where[room], classes)
    return made


def _exported(module: Any) -> list[Any]:
    """Classes and functions that a package exports, sorted by name."""
    names = sorted(module.__all__, key=str.lower)
    return [one for one in (getattr(module, name) for name in names) if inspect.isclass(one) or inspect.isfunction(one)]


def _api(name: str, objects: list[Any], elsewhere: set[Any]) -> str:
    """Page of a package; objects of another page are links."""
    parts = [f"# {name}", f"`from {name} import ...`"]
    for one in objects:
        path = f"{one.__module__}.{one.__qualname__}"
        parts.append(f"## {one.__name__}\n\n[`{one.__name__}`][{path}]" if one in elsewhere else f"::: {path}")
    return "\n\n".join(parts) + "\n"


def _functional() -> str:
    parts = ["# lightning_fl.functional", "The mathematics as pure functions of tensors and numbers."]
    for module in pkgutil.walk_packages(functional.__path__, f"{functional.__name__}."):
        parts.append(f"::: {module.name}\n    options:\n      heading_level: 2\n      show_root_full_path: true")
    return "\n\n".join(parts) + "\n"


def _keys(title: str, where: str, classes: list[type]) -> str:
    parts = [f"# {title}", where]
    for one in sorted(classes, key=lambda each: each.__name__.lower()):
        rows = list(_rows(one))
        summary = _summary(one).replace("\n", " ")
        parts.append(f"## {one.__name__}\n\n{summary}")
        if rows:
            head = "| key | type | default | range | what |\n|---|---|---|---|---|\n"
            parts.append(head + "\n".join("| " + " | ".join(row) + " |" for row in rows))
    return "\n\n".join(parts) + "\n"


def _rows(one: type) -> Iterator[tuple[str, ...]]:
    """Key, type, default, range and meaning of every argument of a class, with those of its bases last."""
    meanings = _meanings(one)
    ranges = _ranges(one)
    for parameter in _parameters(one):
        default = "**required**" if parameter.default is parameter.empty else f"`{parameter.default!r}`"
        kind = _kind(parameter.annotation)
        yield tuple(
            _cell(text)
            for text in (
                f"`{parameter.name}`",
                f"`{kind}`" if kind else "",
                default,
                ranges.get(parameter.name, ""),
                meanings.get(parameter.name, ""),
            )
        )


def _parameters(one: type) -> Iterator[inspect.Parameter]:
    """Arguments of a class; if it has ``**settings``, also those of the next base."""
    seen = set()
    for base in one.__mro__:
        if "__init__" not in vars(base) or base is object:
            continue
        try:
            signature = inspect.signature(base.__init__)
        except ValueError:
            return
        hands_on = False
        for parameter in list(signature.parameters.values())[1:]:
            if parameter.kind is parameter.VAR_KEYWORD:
                hands_on = True
            elif parameter.kind is not parameter.VAR_POSITIONAL and parameter.name not in seen:
                seen.add(parameter.name)
                yield parameter
        if not hands_on:
            return


def _meanings(one: type) -> dict[str, str]:
    """Argument -> description in the docstrings, the class's own first."""
    meanings: dict[str, str] = {}
    for base in one.__mro__:
        for text in (vars(base).get("__doc__"), getattr(vars(base).get("__init__"), "__doc__", None)):
            if text and base is not object:
                parsed = docstring_parser.parse(text, docstring_parser.DocstringStyle.GOOGLE)
                for parameter in parsed.params:
                    meanings.setdefault(parameter.arg_name, as_markdown(parameter.description or ""))
    return meanings


def _kind(annotation: Any) -> str:
    """Type of an argument, without its range."""
    if annotation is inspect.Parameter.empty:
        return ""
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(_without_ranges(annotation))
    if text.startswith("Literal"):
        return "choice"
    return re.sub(r"(?:\w+\.)+(\w+)", r"\1", text)


def _without_ranges(annotation: Any) -> Any:
    if get_origin(annotation) is Annotated:
        return get_args(annotation)[0]
    if get_origin(annotation) in (Union, UnionType):
        return reduce(or_, map(_without_ranges, get_args(annotation)))
    if get_origin(annotation) in (list, tuple, dict):
        return get_origin(annotation)[tuple(_without_ranges(part) for part in get_args(annotation))]
    return annotation


def _ranges(one: type) -> dict[str, str]:
    """Argument -> range that its annotation declares."""
    return {parameter.name: ", ".join(_bounds(parameter.annotation)) for parameter in _parameters(one)}


def _bounds(annotation: Any) -> list[str]:
    """Ranges and choices in an annotation: "whole", "≥ 1"."""
    if get_origin(annotation) is not Annotated:
        return [
            word
            for part in get_args(annotation)
            for word in ([f"`{part}`"] if isinstance(part, str) else _bounds(part))
        ]
    base, *metadata = get_args(annotation)
    words = ["whole"] if base is int else []
    for entry in metadata:
        for bound in entry if isinstance(entry, GroupedMetadata) else [entry]:
            for kind, sign, name in _SIGNS:
                if isinstance(bound, kind) and getattr(bound, name) < _ANY_COUNT:
                    words.append(f"{sign} {getattr(bound, name)}")
    return words


_SIGNS = ((Ge, "≥", "ge"), (Gt, ">", "gt"), (Le, "≤", "le"), (Lt, "<", "lt"))
#: Upper bound of counts, which is not worth showing.
_ANY_COUNT = 2**31 - 1


def _cell(text: str) -> str:
    """Text as one table cell, with bars escaped outside code."""
    parts = re.split(r"(`[^`]*`)", re.sub(r"\s+", " ", text))
    return "".join(part if part.startswith("`") else part.replace("|", "\\|") for part in parts).strip()


def _hooks() -> str:
    """Table of callbacks with their hooks, and table of hooks."""
    hooks = [name for name, value in vars(Callback).items() if inspect.isfunction(value) and not name.startswith("_")]
    rows = []
    for one in _exported(callbacks):
        if not inspect.isclass(one) or not issubclass(one, Callback) or one is Callback:
            continue
        link = f"[`{one.__name__}`](api/callbacks.md#{one.__module__}.{one.__name__})"
        defined = [f"`{name}`" for name in hooks if getattr(one, name) is not getattr(Callback, name)]
        rows.append(f"| {link} | {one.role or ''} | {'yes' if one.only_shows else ''} | {', '.join(defined)} |")
    said = [f"| `{name}` | {_cell(_summary(getattr(Callback, name)))} |" for name in hooks]
    return "\n".join(
        [
            "# Hooks of callbacks\n",
            "Two callbacks with the same role exclude each other. A callback that only shows changes no model:",
            "a run with it has the same bits.\n",
            "| callback | role | only shows | hooks |",
            "|---|---|---|---|",
            *rows,
            "\n## The hooks\n",
            "[An algorithm of your own](../extending.md#a-round) gives their order.\n",
            "| method of `Callback` | use |",
            "|---|---|",
            *said,
            "",
        ]
    )


def _summary(one: Any) -> str:
    """First paragraph of a docstring."""
    return as_markdown((inspect.getdoc(one) or "").split("\n\n")[0])


def _commands() -> str:
    parts = ["# Commands", "`lightning-fl COMMAND --help` prints the same."]
    for name, command in COMMANDS.items():
        parts.append(f"## {name}\n\n{command.help}")
        text = re.sub(re.escape(str(Path.home())), "~", make_parser(name).format_help())
        parts.append(f"```text\n{text.rstrip()}\n```")
    return "\n\n".join(parts) + "\n"


def _recipes() -> str:
    parts = [
        "# Recipes",
        "Recipes that ship with the package. `lightning-fl recipes NAME --copy` writes a copy to edit;"
        " the command line can change [every key](keys/trainer.md).",
    ]
    for title, folder in (("Runs", ROOT / "recipes"), ("Studies", ROOT / "recipes" / "studies")):
        parts.append(f"## {title}")
        for path in sorted(folder.glob("*.yaml")):
            head, body = _header(path.read_text(encoding="utf-8"))
            block = textwrap.indent(f"```yaml\n{body.strip()}\n```", "    ")
            parts.append(f'### {path.stem}\n\n{head}\n\n??? note "{path.name}"\n\n{block}')
    return "\n\n".join(parts) + "\n"


def _header(text: str) -> tuple[str, str]:
    """Split a recipe into its head comment, as paragraphs, and the rest."""
    lines = text.split("\n")
    count = next(place for place, line in enumerate(lines) if not line.startswith("#"))
    words = [line.lstrip("#").rstrip() for line in lines[:count]]
    title = words[0].strip() if words else ""
    fields: list[str] = []
    for line in words[1:]:
        if re.match(r"^ [A-Z]\w+: ", line):
            key, _, rest = line.strip().partition(":")
            fields.append(f"- **{key}**: {rest.strip()}")
        elif fields and line.strip():
            fields[-1] += f" {line.strip()}"
    return "\n".join([title, "", *fields]), "\n".join(lines[count:])
