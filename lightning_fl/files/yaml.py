"""YAML as users write it: read in one way, whoever needs it, and refused with file, line and mend where it misleads.

What YAML 1.1 reads otherwise than it looks is read as it looks (``1e-3`` is a number, ``2024-01-01`` a text) or
refused: a key that stands twice, of which the last would win; ``012``, which is 10; ``1:30``, which is 90; the keys
``on`` and ``no``, which are truth values; tags, which make objects. Anchors, aliases and merge keys are read; what
grows beyond all measure by them is not.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from lightning_fl.core.errors import ConfigurationError

__all__ = ["dump_yaml", "parse_yaml", "read_yaml"]

#: What is larger was never written by hand, nor by a run.
_MOST_BYTES = 10_000_000
_MOST_DEPTH = 100
#: Nodes after aliases are written out: at most these, or so many times what stands in the text.
_MOST_NODES, _MOST_GROWTH = 20_000, 10

_PREFIX = "tag:yaml.org,2002:"
_PLAIN = {f"{_PREFIX}{name}" for name in ("str", "int", "float", "bool", "null", "map", "seq", "merge")}
_FLOAT = re.compile(
    r"""^(?:[-+]?[0-9][0-9_]*\.[0-9_]*(?:[eE][-+]?[0-9]+)?
    |[-+]?[0-9][0-9_]*[eE][-+]?[0-9]+
    |[-+]?\.[0-9][0-9_]*(?:[eE][-+]?[0-9]+)?
    |[-+]?\.(?:inf|Inf|INF)
    |\.(?:nan|NaN|NAN))$""",
    re.X,
)


def _resolvers() -> dict[Any, list[tuple[str, re.Pattern[str]]]]:
    """What a word without quotes is: as in YAML 1.1, but for floating numbers, and dates are text."""
    left_out = (f"{_PREFIX}float", f"{_PREFIX}timestamp", f"{_PREFIX}value")
    kept = {
        first: [(tag, pattern) for tag, pattern in pairs if tag not in left_out]
        for first, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    for first in "-+.0123456789":
        kept.setdefault(first, []).append((f"{_PREFIX}float", _FLOAT))
    return kept


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Plain values only."""

    yaml_implicit_resolvers = _resolvers()

    def construct_number(self, node: yaml.ScalarNode) -> int | float:
        """A number, if it is the one that it looks like."""
        text = str(node.value)
        if ":" in text:
            raise _error(f"{text} is read by YAML in sixties; put it in quotes for text", node)
        if re.match(r"[-+]?0[0-9_]", text) and node.tag.endswith("int"):
            raise _error(f"{text} is read by YAML in base eight; drop the zero, or put it in quotes for text", node)
        try:
            if node.tag.endswith("int"):
                return int(self.construct_yaml_int(node))
            return float(self.construct_yaml_float(node))
        except ValueError as error:
            raise _error(f"{text[:40]} is no number", node) from error


_Loader.add_constructor(f"{_PREFIX}int", _Loader.construct_number)
_Loader.add_constructor(f"{_PREFIX}float", _Loader.construct_number)


class _Dumper(yaml.SafeDumper):
    """Puts a text in quotes where it would be read as something else."""

    yaml_implicit_resolvers = _resolvers()


_Dumper.add_multi_representer(str, _Dumper.represent_str)  # the recipe parser's texts are of a class of their own


def dump_yaml(content: object, width: int = 120) -> str:
    """Plain values as YAML, which :func:`parse_yaml` reads as the same again.

    Args:
        content: lists, mappings, texts, numbers; keys stay in their order.
        width: characters of a line, about.
    """
    return yaml.dump(
        content, Dumper=_Dumper, default_flow_style=False, allow_unicode=True, sort_keys=False, width=width
    )


def read_yaml(path: Path) -> object:
    """The content of a YAML file.

    Args:
        path: the file: UTF-8, or UTF-16 with its mark.

    Raises:
        ConfigurationError: it cannot be read, is not YAML, or misleads. The message names file and line.
    """
    try:
        if path.exists() and not path.is_file():
            raise ConfigurationError(f"{path} is a folder, a pipe or a device: give a YAML file.")
        size = path.stat().st_size
        if size > _MOST_BYTES:
            raise ConfigurationError(
                f"{path} has {size:,} bytes: no YAML file of lightning-fl is so large; check the name."
            )
        return parse_yaml(path.read_bytes())
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = "" if mark is None else f", line {mark.line + 1}, column {mark.column + 1}"
        if isinstance(error, _Refusal):
            raise ConfigurationError(f"{path}{where}: {error.problem}.") from error
        begun = error.context_mark
        inside = "" if begun is None or begun is mark else f" for what begins in line {begun.line + 1}"
        raise ConfigurationError(
            f"{path}{where}: not YAML: {error.problem or error.context}{inside}. Check the indentation, colons,"
            " brackets and quotes there."
        ) from error
    except yaml.reader.ReaderError as error:
        raise ConfigurationError(
            f"{path} cannot be read as YAML: {error.reason} at position {error.position}. Save it as text in UTF-8,"
            " without control characters."
        ) from error
    except (OSError, yaml.YAMLError) as error:
        raise ConfigurationError(f"{path} cannot be read as YAML: {' '.join(str(error).split())}") from error


def parse_yaml(text: str | bytes) -> Any:
    """What a text says: plain values, lists and mappings whose keys are texts and numbers.

    Args:
        text: one YAML document.

    Raises:
        yaml.YAMLError: it is not YAML, or misleads.
    """
    try:
        _check_size(text)
        loader = _Loader(text)
        try:
            node = loader.get_single_node()
            if node is None:
                return None
            for mapping in _checked(node):
                _check_keys(loader, mapping)
            return loader.construct_document(node)
        finally:
            loader.dispose()
    except UnicodeError as error:  # half a character, as a command line may have it
        raise yaml.YAMLError(str(error)) from error


class _Refusal(yaml.constructor.ConstructorError):
    """Of what is YAML, but misleads."""


def _error(problem: str, node: yaml.Node | yaml.Event) -> _Refusal:
    return _Refusal(problem=problem, problem_mark=node.start_mark)  # type: ignore[arg-type]  # of the C reader


def _check_size(text: str | bytes) -> None:
    """Refuse what is nested too deeply or grows by aliases, from the words alone: nothing is built yet."""
    sizes: dict[str, int] = {}
    opened: list[tuple[str | None, int]] = []  # anchor, nodes before it
    written = expanded = 0
    for event in yaml.parse(text, _Loader):
        if isinstance(event, yaml.AliasEvent):
            name = str(event.anchor)
            if any(anchor == name for anchor, _ in opened):
                raise _error(f"*{name} stands inside of &{name} itself", event)
            expanded += sizes.get(name, 1)
        elif isinstance(event, yaml.NodeEvent):
            written, expanded = written + 1, expanded + 1
            if isinstance(event, yaml.CollectionStartEvent):
                opened.append((event.anchor, expanded - 1))
            elif event.anchor is not None:
                sizes[event.anchor] = 1
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before = opened.pop()
            if anchor is not None:
                sizes[anchor] = expanded - before
        if len(opened) > _MOST_DEPTH:
            raise _error(f"more than {_MOST_DEPTH} lists and mappings inside each other", event)
        if expanded > max(_MOST_NODES, _MOST_GROWTH * written):
            raise _error("its aliases (*) stand for too much: write out what is meant", event)


def _checked(root: yaml.Node) -> Iterator[yaml.MappingNode]:
    """Every mapping of a document once; a tag on the way is refused."""
    seen: set[int] = set()
    waiting = [root]
    while waiting:
        node = waiting.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if node.tag not in _PLAIN:
            tag = node.tag.replace(_PREFIX, "!!")
            raise _error(f"the tag {tag[:60]} makes an object; only plain values are read: drop it", node)
        if isinstance(node, yaml.MappingNode):
            yield node
            waiting += [part for pair in node.value for part in pair]
        elif isinstance(node, yaml.SequenceNode):
            waiting += node.value


def _check_keys(loader: Any, mapping: yaml.MappingNode) -> None:
    """Refuse a key that stands twice, of which YAML's reader would keep the last, or is none."""
    lines: dict[object, int] = {}
    for node, _ in mapping.value:
        if node.tag == f"{_PREFIX}merge":
            continue
        key = loader.construct_object(node) if isinstance(node, yaml.ScalarNode) else None
        if isinstance(key, bool) or not isinstance(key, str | int | float):
            said = f"the key {node.value[:40]!r} is read as {key}" if isinstance(node, yaml.ScalarNode) else "no key"
            raise _error(f"{said}: give a text, in quotes where YAML reads it otherwise", node)
        if key in lines:
            raise _error(f"the key {str(key)[:60]!r} stands here twice, first in line {lines[key]}: keep one", node)
        lines[key] = node.start_mark.line + 1
