"""Runs that ``lightning-fl fit`` made, side by side."""

import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

import lightning_fl


@pytest.mark.processes
def test_four_fits_are_compared_without_torch(command, tiny, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    for arm, words in {"few": [], "many": ["--trainer.local_steps", 8]}.items():
        for seed in (0, 1):
            settings = ["--seed_everything", seed, "--trainer.default_root_dir", f"runs/{arm}/{seed}"]
            settings += ["--trainer.logger", "true", "--trainer.enable_progress_bar", "false"]
            assert command("fit", "--config", "tiny.yaml", *words, *settings)[0] == 0
    code, out, err = command("compare", "--recursive", "runs", "--baseline", "FedAvg local_steps=2", "--out", "out")
    assert (code, err) == (0, "")
    assert "lower is better), 3 clients, seeds 0, 1, data: user" in out
    table, clients = (pd.read_csv(f"out/{name}.csv") for name in ("table", "clients"))
    assert list(table["label"]) == ["FedAvg local_steps=2", "FedAvg local_steps=8"]
    assert list(table["rounds"]) == [3, 3]
    means = clients.groupby(["label", "seed"])["value"].mean().groupby("label").mean()
    for label, mean in zip(table["label"], table["mean"], strict=True):
        assert abs(means[label] - mean) < 1e-12
    assert Path(f"out/learning_curves_{table['metric'][0]}.png").is_file()

    code = "import sys; from lightning_fl.cli import main; c = main(sys.argv[1:]); print(c, *sorted(sys.modules))"
    words = [sys.executable, "-c", code, "compare", "--recursive", "runs"]
    environment = {**os.environ, "PYTHONPATH": str(Path(lightning_fl.__file__).parents[1])}
    options = {"capture_output": True, "text": True, "timeout": 300, "check": True, "env": environment}
    result = subprocess.run(words, **options)
    code, *modules = result.stdout.splitlines()[-1].split()
    assert code == "0"
    assert not {"torch", "lightning", "matplotlib"} & set(modules)
    result = subprocess.run([*words, "--out", "again"], **options)
    assert not {"torch", "lightning"} & set(result.stdout.splitlines()[-1].split())
