"""What ``import lightning_fl`` does: it is cheap, keeps documented paths, and leaves registration to ``strategies``."""

import sys

import pytest
from processes import run

pytestmark = pytest.mark.processes

COSTS_NOTHING = """
import sys
finders = list(sys.meta_path)
import lightning_fl
assert "torch" not in sys.modules and "lightning" not in sys.modules, "import lightning_fl is not cheap"
assert [type(one).__name__ for one in sys.meta_path if one not in finders] == ["_Aliases"]
"""
#: Documented paths, before and after the module itself is imported.
PATHS = """
import importlib, sys, lightning_fl
for old, new in lightning_fl._ALIASES.items():
    first, second = (old, new) if len(old) % 2 else (new, old)
    one, other = importlib.import_module(first), importlib.import_module(second)
    assert one is other and one.__name__ == one.__spec__.name == new, (one, other)
from lightning_fl.metrics import ClientMetrics
from lightning_fl.core.metrics import ClientMetrics as same
assert ClientMetrics is same and lightning_fl.metrics.ClientMetrics is same
"""
#: A process for each script, with torch and torchmetrics, which Fabric imports, and without Fabric.
EACH_BY_ITSELF = """
import os, sys, torch, torchmetrics
assert not any(name.partition(".")[0] in ("lightning", "lightning_fl") for name in sys.modules)
for script in sys.argv[1:]:
    pid = os.fork()
    if not pid:
        exec(script, {})
        sys.stdout.flush()
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0, script
"""
ALONE = """
import lightning_fl, sys
from lightning.fabric import Fabric
assert "lightning_fl.strategies" not in sys.modules
try:
    Fabric(strategy="fedavg", accelerator="cpu", devices=1)
except ValueError as error:
    print(error)
"""
BEFORE = """
import lightning_fl.strategies
from lightning.fabric import Fabric
print("before", Fabric(strategy="fedavg", accelerator="cpu", devices=1).strategy.name)
"""
AFTER = """
from lightning.fabric import Fabric
from lightning_fl.strategies import FedAvg
strategy = Fabric(strategy="fedavg", accelerator="cpu", devices=1).strategy
assert type(strategy) is FedAvg
print("after", strategy.name)
"""
LAZILY = """
import lightning_fl
from lightning.fabric import Fabric
lightning_fl.strategies
print("lazily", Fabric(strategy="fedavg", accelerator="cpu", devices=1).strategy.name)
"""
TRAINER = """
import lightning_fl
print("trainer", lightning_fl.FederatedTrainer(strategy="fedavg", accelerator="cpu", devices=1).strategy.name)
"""


def test_the_package_alone_costs_nothing():
    ended = run(sys.executable, "-c", COSTS_NOTHING)
    assert ended.code == 0, ended.err


def test_documented_paths_and_strategies_that_are_registered_when_they_are_imported_and_not_before():
    ended = run(sys.executable, "-c", EACH_BY_ITSELF, PATHS, ALONE, BEFORE, AFTER, LAZILY, TRAINER)
    assert ended.code == 0, ended.err
    alone, *others = ended.out.strip().splitlines()
    assert alone.startswith("You selected an invalid strategy name: `strategy='fedavg'`"), alone
    assert others == [f"{how} fedavg" for how in ("before", "after", "lazily", "trainer")]
