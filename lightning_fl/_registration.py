"""Make ``import lightning_fl; Fabric(strategy="fedavg")`` work without importing torch at ``import lightning_fl``.

Fabric has no entry point for strategies: a name exists once a class has registered it. The command line must answer
``--help`` in no time, so registration waits for Lightning's Fabric to be imported, by whomever.
"""

import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

__all__ = ["register_when_fabric_is_imported"]

_FABRIC = "lightning.fabric"


class _AfterFabric(MetaPathFinder):
    """Finds Fabric as Python would, and imports our strategies once it has run."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != _FABRIC:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _RegisteringLoader(spec.loader, self)
        return spec


class _RegisteringLoader(Loader):
    def __init__(self, loader: Loader, finder: MetaPathFinder) -> None:
        self._loader = loader
        self._finder = finder

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        if self._finder in sys.meta_path:
            sys.meta_path.remove(self._finder)
        import lightning_fl.strategies  # noqa: F401

    def __getattr__(self, name: str) -> object:
        return getattr(self._loader, name)


def register_when_fabric_is_imported() -> None:
    """Register our strategies now if Fabric is loaded, else right after it is."""
    if _FABRIC in sys.modules:
        import lightning_fl.strategies  # noqa: F401
    else:
        sys.meta_path.insert(0, _AfterFabric())
