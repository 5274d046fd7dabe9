"""Strategies' names are known to Fabric once ``lightning_fl.strategies`` is imported, in processes of their own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.processes

ALONE = """
import sys
finders = list(sys.meta_path)
import lightning_fl
assert "torch" not in sys.modules and "lightning" not in sys.modules, "import lightning_fl is not cheap"
assert sys.meta_path == finders
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
print(Fabric(strategy="fedavg", accelerator="cpu", devices=1).strategy.name)
"""
AFTER = """
from lightning.fabric import Fabric
from lightning_fl.strategies import FedAvg
strategy = Fabric(strategy="fedavg", accelerator="cpu", devices=1).strategy
assert type(strategy) is FedAvg
print(strategy.name)
"""
LAZILY = """
import lightning_fl
from lightning.fabric import Fabric
lightning_fl.strategies
print(Fabric(strategy="fedavg", accelerator="cpu", devices=1).strategy.name)
"""
TRAINER = """
import lightning_fl
print(lightning_fl.FederatedTrainer(strategy="fedavg", accelerator="cpu", devices=1).strategy.name)
"""


def output(script: str, folder: Path) -> str:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, cwd=folder, capture_output=True, text=True, timeout=120,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_package_alone_costs_nothing_and_registers_nothing(tmp_path):
    message = output(ALONE, tmp_path)
    assert message.startswith("You selected an invalid strategy name: `strategy='fedavg'`"), message


@pytest.mark.parametrize("script", [BEFORE, AFTER, LAZILY, TRAINER], ids=["before", "after", "lazily", "trainer"])
def test_the_strategies_are_registered_when_they_are_imported(script, tmp_path):
    assert output(script, tmp_path) == "fedavg"
