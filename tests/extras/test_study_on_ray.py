"""A study on two local Ray nodes: its results are the local runner's, and what was cut off goes on."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")  # as the study does, which imports Ray first elsewhere
pytest.importorskip("ray")

from lightning_fl.cli import main

# Not "processes", which looks that none is left after each test: the cluster stays for all.
pytestmark = [pytest.mark.slow]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two nodes of one CPU each."""
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    made.add_node(num_cpus=1)
    made.wait_for_nodes()
    yield made
    for node in made.list_all_nodes():
        node.kill_all_processes(check_alive=False, allow_graceful=False)


def declare(**overrides: Any) -> str:
    content = {
        "title": "Tiny",
        "metric": "acc",
        "seeds": [0, 1],
        "arms": {"a": {"recipe": "fedavg_digits", "overrides": {"trainer.max_rounds": 2, **overrides}}},
    }
    Path("s.yaml").write_text(yaml.safe_dump(content))
    return "s.yaml"


def cells(out: str) -> list[Path]:
    return sorted((Path(out) / "cells").iterdir())


def metrics(cell: Path) -> Any:
    last = max(cell.glob("version_*/summary.json"), key=lambda path: path.stat().st_mtime)
    return json.loads(last.read_text())["metrics"]


def plain_fit(seed: int, rounds: int) -> Any:
    """What ``lightning-fl fit`` reaches, and so do the cells of the local runner (test_cli_study_processes)."""
    words = ["--trainer.max_rounds", str(rounds), "--trainer.accelerator", "cpu", "--trainer.devices", "1"]
    folder = Path(f"plain_{seed}_{rounds}")
    words += ["--seed_everything", str(seed), "--trainer.default_root_dir", str(folder)]
    assert main(["fit", "--config", "fedavg_digits", *words]) == 0
    return metrics(folder)


def nodes(out: str) -> set[str]:
    lines = [line for cell in cells(out) for line in (cell / "log.txt").read_text().splitlines()]
    return {line for line in lines if line.startswith("# on Ray node")}


def attempts(cell: Path) -> list[bool]:
    events = [json.loads(line) for line in (cell / "attempts.jsonl").read_text().splitlines()]
    return [event["resumed"] for event in events if "resumed" in event]


def test_two_nodes_get_what_one_machine_gets(cluster: Any, capsys: pytest.CaptureFixture[str]) -> None:
    path = declare(**{"trainer.accelerator": "cpu", "trainer.devices": 1})
    assert main(["study", path, "--out", "on_ray", "--ray", cluster.address]) == 0, capsys.readouterr().err
    assert "2 cells, 0 done, 2 workers" in capsys.readouterr().out
    assert len(nodes("on_ray")) == 2
    assert [metrics(cell) for cell in cells("on_ray")] == [plain_fit(seed, 2) for seed in (0, 1)]
    assert Path("on_ray/table.md").is_file()
    assert not list(Path("on_ray").glob(".stop-*"))


def test_interrupted_it_goes_on_from_the_round_that_was_saved(cluster: Any) -> None:
    checkpoints = [{"class_path": "ModelCheckpoint", "init_args": {"every_n_rounds": 1}}]
    overrides = {"trainer.max_rounds": 60, "trainer.callbacks": checkpoints, "trainer.accelerator": "cpu"}
    path = declare(**overrides, **{"trainer.devices": 1})
    words = [sys.executable, "-m", "lightning_fl", "study", path, "--out", "out", "--seeds", "0"]
    process = subprocess.Popen([*words, "--ray", cluster.address], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    until = time.monotonic() + 120
    while not list(Path("out").glob("cells/*/version_*/checkpoints/last.ckpt")):
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < until
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=120)[0].decode()
    assert process.returncode == 130, said
    assert "To resume: lightning-fl study" in said
    (cell,) = cells("out")
    assert attempts(cell) == [False]
    assert main(["study", path, "--out", "out", "--seeds", "0", "--ray", cluster.address]) == 0
    assert attempts(cell) == [False, True]
    whole = plain_fit(0, 60)["test"]  # with the recipe's callbacks, which also measure what clients reach alone
    assert metrics(cell)["test"] == {name: whole[name] for name in ("loss", "acc")}


def test_no_cluster_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["study", declare(), "--out", "out", "--ray", "127.0.0.1:9"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: --ray 127.0.0.1:9: ")
    assert "Run `ray start --head`, or use --ray local." in said
    assert not Path("out").exists()


def test_local_is_a_new_cluster_whatever_address_is_in_the_environment() -> None:
    words = [sys.executable, "-m", "lightning_fl", "study", declare(), "--out", "out", "--seeds", "0", "--ray", "local"]
    ran = subprocess.run(words, env=os.environ | {"RAY_ADDRESS": "127.0.0.1:9"}, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert len(cells("out")) == 1
