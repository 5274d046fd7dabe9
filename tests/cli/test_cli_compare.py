"""Runs that ``lightning-fl fit`` made, side by side."""

import sys
from pathlib import Path

import pandas as pd
import pytest
from processes import start, succeed


@pytest.mark.processes
@pytest.mark.slow
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
    plain, drawn = start(*words), start(*words, "--out", "again")
    succeed(plain, drawn)
    code, *modules = plain.out.splitlines()[-1].split()
    assert code == "0"
    assert not {"torch", "lightning", "matplotlib"} & set(modules)
    assert not {"torch", "lightning"} & set(drawn.out.splitlines()[-1].split())
