"""YAML as users write it: plain values that mean what they look like.

Unlike in YAML 1.1, ``1e-3`` is a number and ``2024-01-01`` a text. Refused is what would be read differently than it
looks: a key that occurs twice (YAML keeps the last), ``012`` (8 + 2), ``1:30`` (90), the keys ``on`` and ``no`` (true
and false), and tags, which create objects.
"""

import re
from pathlib import Path
from typing import Any, ClassVar

import yaml

from lightning_fl.core.errors import ConfigurationError

_MAX_DEPTH = 100
#: Values of a document after its aliases are expanded.
_MAX_VALUES = 1_000_000

_PREFIX = "tag:yaml.org,2002:"
_PLAIN = [f"{_PREFIX}{name}" for name in ("str", "int", "float", "bool", "null", "map", "seq")]
_FLOAT = re.compile(
    r"""^(?:[-+]?[0-9][0-9_]*\.[0-9_]*(?:[eE][-+]?[0-9]+)?
    |[-+]?[0-9][0-9_]*[eE][-+]?[0-9]+
    |[-+]?\.[0-9][0-9_]*(?:[eE][-+]?[0-9]+)?
    |[-+]?\.(?:inf|Inf|INF)
    |\.(?:nan|NaN|NAN))$""",
    re.X,
)


class Quoted(str):
    """A text that was in quotes, so that reading it as YAML once more would change its type."""

    __slots__ = ()


def _resolvers() -> dict[Any, list[tuple[str, re.Pattern[str]]]]:
    """Types of texts without quotes: those of YAML 1.1, except for floats and dates."""
    dropped = (f"{_PREFIX}float", f"{_PREFIX}timestamp", f"{_PREFIX}value")
    kept = {
        first: [(tag, pattern) for tag, pattern in pairs if tag not in dropped]
        for first, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    for first in "-+.0123456789":
        kept.setdefault(first, []).append((f"{_PREFIX}float", _FLOAT))
    return kept


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Plain values only; every mapping with different keys."""

    yaml_implicit_resolvers = _resolvers()
    yaml_constructors: ClassVar = {  # that of None refuses other tags
        tag: make for tag, make in yaml.SafeLoader.yaml_constructors.items() if tag in (*_PLAIN, None)
    }

    def get_single_node(self) -> yaml.Node | None:
        node: yaml.Node | None = super().get_single_node()
        if node is not None and self.check(node, {}) > _MAX_VALUES:
            raise _error("its aliases (*) expand to too many values; write them out", node)
        return node

    def check(self, node: yaml.Node, sizes: dict[int, int]) -> int:
        """Count values with aliases expanded; refuse recursive aliases and bad keys."""
        if id(node) in sizes:
            if not sizes[id(node)]:
                raise _error("an alias (*) inside its own anchor (&)", node)
            return sizes[id(node)]
        sizes[id(node)] = 0
        parts = node.value if isinstance(node, yaml.CollectionNode) else []
        if isinstance(node, yaml.MappingNode):
            self.check_keys(node)
            parts = [value for _, value in parts]
        sizes[id(node)] = 1 + sum(self.check(part, sizes) for part in parts)
        return sizes[id(node)]

    def check_keys(self, mapping: yaml.MappingNode) -> None:
        lines: dict[object, int] = {}
        for node, _ in mapping.value:
            if node.tag == f"{_PREFIX}merge":
                continue
            key = self.construct_object(node) if isinstance(node, yaml.ScalarNode) else None
            if isinstance(key, bool) or not isinstance(key, str | int | float):
                what = f"{node.value[:40]!r} as a key means {key}" if isinstance(node, yaml.ScalarNode) else "not a key"
                raise _error(f"{what}; use a text, in quotes if needed", node)
            if key in lines:
                raise _error(f"duplicate key {str(key)[:60]!r}, first in line {lines[key]}; keep one", node)
            lines[key] = node.start_mark.line + 1

    def construct_number(self, node: yaml.ScalarNode) -> int | float:
        text = str(node.value)
        if ":" in text:
            raise _error(f"{text} means a number in base 60; put it in quotes for a text", node)
        if re.match(r"[-+]?0[0-9_]", text) and node.tag.endswith("int"):
            raise _error(f"{text} means an octal number; drop the zero, or put it in quotes for a text", node)
        try:
            if node.tag.endswith("int"):
                return int(self.construct_yaml_int(node))
            return float(self.construct_yaml_float(node))
        except ValueError as error:
            raise _error(f"{text[:40]} is not a number", node) from error


_Loader.add_constructor(f"{_PREFIX}int", _Loader.construct_number)
_Loader.add_constructor(f"{_PREFIX}float", _Loader.construct_number)


class _QuoteLoader(_Loader):
    def construct_text(self, node: yaml.ScalarNode) -> str:
        return Quoted(node.value) if node.style else str(node.value)


_QuoteLoader.add_constructor(f"{_PREFIX}str", _QuoteLoader.construct_text)


class _Dumper(yaml.SafeDumper):
    yaml_implicit_resolvers = _resolvers()


_Dumper.add_multi_representer(str, _Dumper.represent_str)


def dump_yaml(content: object, width: int = 120) -> str:
    """Convert plain values to YAML that :func:`parse_yaml` reads as the same values; keys keep their order."""
    return yaml.dump(content, Dumper=_Dumper, allow_unicode=True, sort_keys=False, width=width)


def read_yaml(path: Path, *, mark_quoted: bool = False) -> Any:
    """Read a YAML file, in UTF-8 or in UTF-16 with a byte-order mark; ``mark_quoted`` makes quoted texts ``Quoted``."""
    try:
        if path.exists() and not path.is_file():
            raise ConfigurationError(f"{path} is not a regular file; give a YAML file.")
        return parse_yaml(path.read_bytes(), mark_quoted=mark_quoted)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = "" if mark is None else f", line {mark.line + 1}, column {mark.column + 1}"
        hint = "" if isinstance(error, _Refusal) else ". Check indentation, colons, brackets and quotes"
        raise ConfigurationError(f"{path}{where}: {error.problem or error.context}{hint}.") from error
    except yaml.reader.ReaderError as error:
        reason = f"{error.reason} at position {error.position}"
        raise ConfigurationError(f"{path} cannot be read as YAML: {reason}. Save it as UTF-8 text.") from error
    except (OSError, yaml.YAMLError) as error:
        raise ConfigurationError(f"{path} cannot be read as YAML: {' '.join(str(error).split())}") from error


def parse_yaml(text: str | bytes, *, mark_quoted: bool = False) -> Any:
    """Parse one YAML document as :func:`read_yaml` does; raises ``yaml.YAMLError``."""
    try:
        depth = 0
        for event in yaml.parse(text, _Loader):  # building nested nodes is recursive in C, without a limit
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > _MAX_DEPTH:
                raise _error(f"more than {_MAX_DEPTH} nested lists and mappings", event)
        return yaml.load(text, _QuoteLoader if mark_quoted else _Loader)  # both are SafeLoaders
    except UnicodeError as error:  # half a character, as in a command line
        raise yaml.YAMLError(str(error)) from error


class _Refusal(yaml.constructor.ConstructorError):
    """Valid YAML that this package does not accept."""


def _error(problem: str, node: yaml.Node | yaml.Event) -> _Refusal:
    return _Refusal(problem=problem, problem_mark=node.start_mark)  # type: ignore[arg-type]  # of the C reader
