"""Imports on first use: of what this package exports, and of what others import for single functions."""

import ast
import builtins
import sys
from collections.abc import Callable
from functools import cache, partial
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

#: Package -> what it imports whole when it is imported itself, for functions that hardly any run uses.
_RARELY_USED = {
    "torchmetrics": ("matplotlib", "scipy", "torchvision", "transformers"),
    "torch_geometric": ("torch_geometric.datasets",),
}


def lazy_exports(package: str, file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """``__getattr__``, ``__dir__`` and ``__all__`` of a package, from its imports below ``if TYPE_CHECKING:``.

    Type checkers and editors read the same imports, so that each name is declared once. ``import NAME as NAME`` exports
    a name; ``import NAME as OTHER`` defines another name for it, which is not in ``__all__``.
    """
    blocks = [block for block in ast.parse(Path(file).read_text(encoding="utf-8")).body if isinstance(block, ast.If)]
    imports = [line for line in blocks[0].body if isinstance(line, ast.ImportFrom)]
    origins = {alias.asname: (str(line.module), alias.name) for line in imports for alias in line.names}
    exported = sorted(str(name) for name, (_, original) in origins.items() if name == original)

    def get(name: str) -> Any:
        if name not in origins:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, original = origins[name]
        value = getattr(import_module(module), original)
        setattr(sys.modules[package], name, value)
        return value

    return get, lambda: exported, exported


def defer_rare_imports() -> None:
    """Make torchmetrics, which Lightning imports, and PyG load on first use what hardly any run uses.

    That is a third of the time that imports take. Only ``import`` statements of these packages themselves are deferred,
    while they are imported for the first time in this process: their modules get stand-ins of what they import. A
    package that fails so is imported as usual. (Only ``scipy.signal.hamming``, which SciPy has removed and torchmetrics
    adds to it, stays away.)
    """
    if not any(isinstance(one, _Deferring) for one in sys.meta_path):
        sys.meta_path.insert(0, _Deferring())


class _Deferring(MetaPathFinder):
    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path, target) if name in _RARELY_USED else None
        if spec is not None and spec.loader is not None:
            spec.loader.exec_module = partial(_load, spec.loader.exec_module)  # type: ignore[method-assign]
        return spec


def _load(execute: Callable[[ModuleType], None], package: ModuleType) -> None:
    """Execute a package while its imports of what is rarely used are deferred."""
    usual, recorded = builtins.__import__, _Later.recording
    deferred = _RARELY_USED[package.__name__]

    def import_later(name: str, importer: Any = None, variables: Any = None, parts: Any = (), level: int = 0) -> Any:
        own = str((importer or {}).get("__name__")).partition(".")[0] == package.__name__
        if not own or level or not f"{name}.".startswith(tuple(f"{each}." for each in deferred)):
            return usual(name, importer, variables, parts, level)
        later = _Later(lambda: usual(name, importer, variables, parts, level))
        if parts or name.partition(".")[0] != package.__name__:
            return later
        setattr(package, name.rpartition(".")[2], _Later(partial(import_module, name)))
        return package

    builtins.__import__, _Later.recording = import_later, True  # type: ignore[assignment]
    try:
        execute(package)
        return
    except Exception:  # a version that uses at once what it imports
        for name in [name for name in sys.modules if name.startswith(f"{package.__name__}.")]:
            del sys.modules[name]
    finally:
        builtins.__import__, _Later.recording = usual, recorded
    execute(package)


class _Later:
    """Stands for an imported module, and for attributes and results of it; each is computed when it is first used."""

    recording = False  #: attributes and results are stand-ins, too

    def __init__(self, compute: Callable[[], Any]) -> None:
        self._value = cache(compute)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._use(lambda value: getattr(value, name))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._use(lambda value: value(*args, **kwargs))

    def __instancecheck__(self, instance: object) -> bool:
        return isinstance(instance, self._value())

    def _use(self, use: Callable[[Any], Any]) -> Any:
        return _Later(lambda: use(self._value())) if self.recording else use(self._value())
