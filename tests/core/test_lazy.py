"""Imports that are deferred until first use."""

import builtins
import sys
from contextlib import nullcontext

import pytest
from processes import run

from lightning_fl.core import lazy

RARE = """
class Base: pass
class Box(Base):
    def __init__(self, side): self.side = side
def style(name):
    def decorate(function):
        return lambda *args: (name, function(*args))
    return decorate
"""
OWNER = """
import rare.part
import rare as r
from rare import Base, Box
import owner.extra
import owner.used
if not hasattr(r, "hamming"): raise AssertionError("is added")
@r.style("bold")
def plot(*args): return args
def box(side): return Box(side)
def is_base(value): return isinstance(value, Base)
part = lambda: rare.part.VALUE
"""


@pytest.fixture
def packages(monkeypatch, tmp_path):
    """Write packages ``rare`` and ``owner``, which imports it; only ``owner`` imports it later."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", [one for one in sys.meta_path if not isinstance(one, lazy._Deferring)])
    monkeypatch.setattr(lazy, "_RARELY_USED", {"owner": ("rare", "owner.extra")})

    def write(owner):
        for name, text in {
            "rare/__init__": RARE,
            "rare/part": "VALUE = 3",
            "other": "import rare",
            "owner/__init__": owner,
            "owner/extra": "VALUE = 4",
            "owner/used": "",
        }.items():
            path = tmp_path / f"{name}.py"
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        lazy.defer_rare_imports()
        lazy.defer_rare_imports()  # once is enough

    yield write
    for name in [name for name in sys.modules if name.partition(".")[0] in ("owner", "rare", "other")]:
        del sys.modules[name]


def test_what_a_package_rarely_uses_is_imported_on_first_use(packages):
    packages(OWNER)
    usual = builtins.__import__
    import owner

    assert builtins.__import__ is usual
    assert {"owner", "owner.used"} <= sys.modules.keys()
    assert sys.modules.keys().isdisjoint({"rare", "rare.part", "owner.extra"})
    assert owner.box(2).side == 2
    assert (owner.is_base(owner.box(1)), owner.is_base(1)) == (True, False)
    assert owner.plot(1, 2) == ("bold", (1, 2))
    assert owner.part() == 3
    assert owner.extra.VALUE == 4
    from owner.extra import VALUE

    assert VALUE == 4
    assert not hasattr(owner.r, "missing")


@pytest.mark.parametrize("use", ["class Own(Base): pass", "print(r.__file__)", "len(r.Box)"])
def test_a_package_that_uses_them_at_once_is_imported_as_usual(packages, use):
    packages(OWNER.replace('raise AssertionError("is added")', "pass") + use)
    usual = builtins.__import__
    with pytest.raises(TypeError) if use.startswith("len") else nullcontext():
        import owner
    assert builtins.__import__ is usual
    assert "rare" in sys.modules
    if "owner" in sys.modules:
        assert owner.Box is sys.modules["rare"].Box


def test_other_importers_get_what_they_import_meanwhile(packages):
    packages(OWNER.replace("import owner.used", "import other"))
    import owner

    assert "rare" in sys.modules
    assert sys.modules["other"].rare is sys.modules["rare"]
    assert owner.box(2).side == 2


@pytest.mark.slow
@pytest.mark.processes
def test_torchmetrics_and_pyg_work_with_deferred_imports():
    script = """
import sys
from lightning_fl.core.lazy import defer_rare_imports

defer_rare_imports()
import lightning.pytorch
import torch
import torch_geometric
import torchmetrics
from torchmetrics.functional.detection import intersection_over_union

rare = {"matplotlib", "scipy.signal", "torchvision", "transformers", "torch_geometric.datasets"}
print(sorted(rare & sys.modules.keys()))
print(intersection_over_union(torch.tensor([[0.0, 0, 2, 2]]), torch.tensor([[0.0, 0, 2, 1]])).item())
metrics = torchmetrics.MetricCollection([torchmetrics.MeanSquaredError(), torchmetrics.MeanAbsoluteError()])
metrics(torch.ones(2), torch.zeros(2))
axes = metrics.plot(together=True)[1]
print(type(axes).__name__, isinstance(axes, sys.modules["matplotlib.axes"].Axes))
print(torch_geometric.datasets.Planetoid.__name__, "torch_geometric.datasets" in sys.modules)
import scipy.signal
print(scipy.signal.find_peaks([0, 1, 0])[0].tolist())
"""
    ended = run(sys.executable, "-W", "ignore", "-c", script)
    assert (ended.code, ended.out.splitlines()) == (
        0,
        ["[]", "0.5", "Axes True", "Planetoid True", "[1]"],
    ), ended.err
