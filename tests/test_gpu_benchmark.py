"""``benchmarks/gpu.py``: runs on a CPU, keeps what arms found before their time was up, says what is to be carried."""

import json
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from packaging.requirements import Requirement

FOLDER = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def benchmarks(monkeypatch):
    if not FOLDER.exists():
        pytest.skip("the benchmarks are not in this distribution")
    monkeypatch.syspath_prepend(FOLDER)


@pytest.fixture
def main(benchmarks, monkeypatch, start_warm):
    """``gpu.py``, whose arms are processes without an interpreter of their own."""
    import gpu

    def popen(command, *, env, stdout, stderr, **_):
        ended = start_warm(*command[3:], environment=env).end()
        for file, text in ((stdout, ended.out), (stderr, ended.err)):
            file.write(text)
            file.flush()
        return SimpleNamespace(pid=10**9, returncode=ended.code, wait=lambda _: None)

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["gpu.py", "--tiny", "--out", "report", "--seconds", "2000", *words])
        monkeypatch.setattr(gpu, "subprocess", SimpleNamespace(Popen=popen, TimeoutExpired=TimeoutError))
        gpu.main()

    return run


@pytest.mark.processes
def test_two_phases_on_a_cpu(main, tmp_path):
    main("--device", "cpu", "--phases", "facts", "bits", "--arms", "packages", "mlp")
    report = json.loads((tmp_path / "report" / "gpu.json").read_text())
    found = {(row["phase"], row["what"]): row["value"] for row in report["rows"]}
    assert found["bits", "mlp twice, deterministic=False"] == "same"
    assert found["bits", "mlp twice, deterministic=True"] == "same"
    assert any(phase == "facts" for phase, _ in found)
    assert list(report["seconds"]) == ["facts", "bits"]
    lines = (tmp_path / "report" / "rows.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == report["rows"]
    assert "| mlp twice, deterministic=False | same | same |" in (tmp_path / "report" / "gpu.md").read_text()


@pytest.mark.processes
def test_phases_on_the_software_device(main, tmp_path):
    main("--device", "stand-in", "--phases", "bits", "waits", "--arms", "options", "varied")
    found = {row["what"]: row for row in json.loads((tmp_path / "report" / "gpu.json").read_text())["rows"]}
    assert found["fused_optimizers against plain"]["value"] in ("same", "different")
    assert found["varied: waits"]["value"] > 0
    assert "failed" not in {row["value"] for row in found.values()}


@pytest.mark.processes
def test_an_arm_is_ended_with_all_that_it_started_and_keeps_its_rows(benchmarks, monkeypatch, tmp_path):
    """The mark of this test sees that neither of the two processes, which would never end, is left."""
    import gpu

    slow, all_said = tmp_path / "slow.py", tmp_path / "all said"
    slow.write_text(
        "import pathlib, signal, subprocess, sys\n"
        "subprocess.Popen([sys.executable, '-c', 'import signal; signal.pause()'])\n"
        'print(\'{"what": "so far"}\', flush=True)\n'
        "print('waiting', file=sys.stderr, flush=True)\n"
        f"pathlib.Path({str(all_said)!r}).touch()\n"
        "signal.pause()\n"
    )

    class Arm(subprocess.Popen):
        """Its time is up when it has said all."""

        def wait(self, timeout=None):
            if timeout is None:
                return super().wait()
            assert timeout == 60
            while not all_said.exists():
                assert self.poll() is None, "the arm ended by itself"
                time.sleep(0.01)
            raise subprocess.TimeoutExpired(self.args, timeout)

    monkeypatch.setattr(gpu, "SCRIPT", slow)
    monkeypatch.setattr(gpu, "subprocess", SimpleNamespace(Popen=Arm, TimeoutExpired=subprocess.TimeoutExpired))
    monkeypatch.setattr(gpu, "time", SimpleNamespace(monotonic=lambda: 0.0))
    first, second = gpu.in_own_process("speed", "mlp", [], 60.0)
    assert first["what"] == "so far"
    assert (second["value"], second["note"]) == ("failed", "ended after 60 s: waiting")
    assert gpu.in_own_process("speed", "mlp", [], 0.0)[0]["value"] == "not run"


def test_trainers_of_the_suite_ask_for_the_forced_device(benchmarks, monkeypatch):
    import torch
    from gpu_phases import force_device

    import lightning_fl.trainer.trainer as module

    made, asked = module.make_fabric, []

    def make(trainer, strategy):
        asked.append((trainer.accelerator, trainer.devices))
        trainer.accelerator = "cpu"
        return made(trainer, strategy)

    monkeypatch.setattr(module, "make_fabric", make)
    monkeypatch.setattr(torch.testing, "assert_close", torch.testing.assert_close)
    monkeypatch.setenv("FORCED_DEVICE", "cuda")
    force_device.pytest_configure()
    module.FederatedTrainer(accelerator="cpu", logger=False, enable_checkpointing=False)
    assert asked == [("cuda", 1)]


def test_missing_packages_are_named_with_ranges_and_what_comes_with_them(benchmarks, monkeypatch):
    from gpu_phases import facts

    there = {"torch": "2.11.0", "numpy": "2.5.2", "docstring_parser": "0.18"}
    monkeypatch.setattr(facts, "_version", there.get)
    rows = {row.what: row for row in facts.packages(None)}
    assert (rows["rdkit"].value, rows["rdkit"].aim) == ("missing", ">=2025.3")
    assert "torch" not in rows
    said = facts.how_to_carry([Requirement("rdkit>=2025.3"), Requirement("jsonargparse[signatures,shtab]>=4.53")])
    assert "'rdkit>=2025.3' 'jsonargparse>=4.53' 'typeshed_client' 'importlib_resources' 'shtab'" in said
    assert "docstring_parser" not in said
    assert "://" not in said


def test_failures_are_counted_by_their_messages(benchmarks):
    from gpu_phases.suite import message_of

    line = "/some/where/test_x.py:12: RuntimeError: Expected cuda:0 and 17 others\n"
    assert message_of(line) == "RuntimeError: Expected cuda:# and # others"
    assert message_of("E   /some/test_y.py:3: ValueError: no") == "ValueError: no"
    assert message_of("3 passed in 0.2s") is None
