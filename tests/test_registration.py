"""A strategy's name is known to Fabric whichever of the two is imported first, each time in a process of its own.

That Fabric may come first is seen in ``strategies/test_own_loop.py``, whose script imports it so.
"""

import os
import subprocess
import sys
from importlib.machinery import PathFinder
from pathlib import Path

import pytest

from lightning_fl._registration import _AfterFabric, _RegisteringLoader

SCRIPT = """
import sys
import lightning_fl
assert "torch" not in sys.modules and "lightning" not in sys.modules, "import lightning_fl is not cheap"
ours = [finder for finder in sys.meta_path if type(finder).__module__ == "lightning_fl._registration"]
assert len(ours) == 1
from lightning.fabric import Fabric
assert not any(finder in sys.meta_path for finder in ours)
print(Fabric(strategy="fedavg", accelerator="cpu", devices=1).strategy.name)
import inspect, lightning.fabric
assert "Fabric" in inspect.getsource(lightning.fabric)
"""


@pytest.mark.processes
def test_the_package_may_be_imported_first_and_costs_nothing(tmp_path):
    root = Path(__file__).parents[1]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(root)}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=120,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["fedavg"]


def test_looking_for_fabric_without_importing_it_keeps_the_finder(monkeypatch):
    """``importlib.util.find_spec`` is how packages ask whether another is installed."""
    import lightning

    finder = _AfterFabric()
    monkeypatch.setattr(sys, "meta_path", [finder, *sys.meta_path])
    assert finder.find_spec("lightning", None) is None
    assert finder.find_spec("json", None) is None
    for _ in range(2):
        spec = finder.find_spec("lightning.fabric", lightning.__path__)
        assert isinstance(spec.loader, _RegisteringLoader)
        assert finder in sys.meta_path
    ordinary = PathFinder.find_spec("lightning.fabric", lightning.__path__)
    assert spec.origin == ordinary.origin
    assert spec.loader.get_filename("lightning.fabric") == ordinary.origin  # all else is the ordinary loader's
    assert finder.find_spec("lightning.fabric", []) is None
