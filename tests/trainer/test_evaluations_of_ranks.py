"""Evaluations where a single rank's client has the data."""

from collections.abc import Callable
from pathlib import Path

import pytest
from processes import Process, succeed

pytestmark = [pytest.mark.processes, pytest.mark.slow]

SCRIPT = """
import sys, warnings
from lightning_fl import FederatedTrainer
from lightning_fl.strategies.fork_launcher import end_fork
from tiny import TinyClients, TinyModule

class OfOne(TinyClients):
    def client_data(self, client, split):
        return super().client_data(client, split) if split == "train" or client in holders else None

class Hooked(TinyModule):
    def on_validation_start(self):
        called.append("start")

    def on_validation_end(self):
        called.append("end")

warnings.filterwarnings("error", message=".*has changed since")
trainer = FederatedTrainer(accelerator="cpu", max_rounds=1, logger=False, seed=5, default_root_dir=sys.argv[1])
trainer.strategy.fork_processes(2)
for holders in ({1}, set()):
    module, data, called = Hooked(), OfOne((8, 8)), []
    trainer.fit(module, data)
    found = [sorted(metrics.clients) for metrics in trainer.validate(module, data).values()]
    predicted = sum(map(len, trainer.predict(module, data).values()))
    line = f"rank {trainer.fabric.global_rank}: {' '.join(called)} {found} {predicted}\\n"
    sys.stdout.write(line)  # at once, as ranks share it
    sys.stdout.flush()
if not trainer.is_global_zero:
    end_fork(0)
"""


def test_an_evaluation_begins_and_ends_on_all_ranks_if_one_has_data(
    tmp_path: Path, start_warm: Callable[..., Process]
) -> None:
    process = start_warm("-c", SCRIPT, str(tmp_path), environment={"OMP_NUM_THREADS": "1"})
    succeed(process)
    said = sorted(line for line in process.out.splitlines() if line.startswith("rank "))
    evaluated = "start end start end [[1]]"
    assert said == ["rank 0:  [] 0", f"rank 0: {evaluated} 0", "rank 1:  [] 0", f"rank 1: {evaluated} 1"]
    assert process.err.count("nothing was predicted") == 1
