"""One run on two processes with every logger at once, each without its server: what is read back is what was run."""

import json
import os
import struct
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

pytest.importorskip("wandb")
pytest.importorskip("mlflow")
pytest.importorskip("comet_ml")
from processes import run

from lightning_fl.cli import main

SCRIPT = Path(sys.executable).with_name("lightning-fl")
OFFLINE = {"WANDB_MODE": "offline", "WANDB_SILENT": "true", "COMET_START_ONLINE": "0", "LIGHTNING_FL_OFFLINE": "1"}
pytestmark = [pytest.mark.processes]

RECIPE = """
trainer:
  max_rounds: 2
  accelerator: cpu
  devices: 2
  default_root_dir: runs
  logger:
    - true
    - class_path: WandbLogger
      init_args: {project: digits, save_dir: ., log_model: true}
    - class_path: MLFlowLogger
      init_args: {tracking_uri: sqlite:///mlflow.db, experiment_name: digits, log_model: true}
    - class_path: CometLogger
      init_args: {project: digits}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where ``lightning-fl fit`` was run on two processes, and ended."""
    folder = tmp_path_factory.mktemp("loggers")
    (folder / "loggers.yaml").write_text(RECIPE)
    for name in ("wandb", "comet"):
        (folder / name).mkdir()
    environment = {**os.environ, **OFFLINE, "COMET_OFFLINE_DIRECTORY": str(folder / "comet")}
    words = ["fit", "--config", "fedavg_digits", "--config", "loggers.yaml"]
    before = Path.cwd()
    os.chdir(folder)
    try:
        result = run(SCRIPT, *words, environment=environment)
    finally:
        os.chdir(before)
    assert result.code == 0, result.err
    return folder


def curves(folder: Path) -> pd.DataFrame:
    return pd.read_csv(folder / "runs" / "version_0" / "metrics.csv")


def summary(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "runs" / "version_0" / "summary.json").read_text()))


def expected(folder: Path) -> dict[tuple[str, int], float]:
    """(curve, step) -> value, as ``metrics.csv`` has them; the last where there are several."""
    table = curves(folder).set_index("step")
    return {
        (name, int(step)): float(value)
        for step, row in table.iterrows()
        for name, value in row.items()
        if not np.isnan(value)
    }


def check(found: dict[tuple[str, int], float], folder: Path) -> None:
    wanted = expected(folder)
    assert {name for name, _ in wanted} >= {"val/loss", "val/acc/worst", "test/acc", "train/loss"}
    names = summary(folder)["client_names"]
    assert {name for name, _ in wanted} >= {f"val/acc/{client}" for client in names}
    assert {key: found.get(key) for key in wanted} == pytest.approx(wanted, abs=1e-6)


def records(log: bytes) -> Iterator[bytes]:
    """The records of a log in LevelDB's format after 7 bytes of W&B's own: blocks of 32 KiB, pieces with 7 in front."""
    place, whole = 7, b""
    while place + 7 <= len(log):
        left = 32768 - place % 32768
        if left < 7:
            place += left
            continue
        size, kind = struct.unpack_from("<HB", log, place + 4)
        piece, place = log[place + 7 : place + 7 + size], place + 7 + size
        whole = piece if kind in (1, 2) else whole + piece
        if kind in (1, 4):
            yield whole


def test_weights_and_biases(folder: Path) -> None:
    from wandb.proto import wandb_internal_pb2 as messages

    (record,) = (folder / "wandb").glob("offline-run-*/*.wandb")  # of rank zero alone
    found: dict[tuple[str, int], float] = {}
    config: dict[str, Any] = {}
    artifacts: dict[str, list[str]] = {}
    media: dict[str, dict[str, Any]] = {}
    for data in records(record.read_bytes()):
        message = messages.Record()
        message.ParseFromString(data)
        if message.HasField("history"):
            row: dict[str, Any] = {}
            for item in message.history.item:
                name, *inner = item.nested_key or [item.key]
                value = json.loads(item.value_json)
                row[name] = {**row.get(name, {}), inner[0]: value} if inner else value
            for name, value in row.items():
                if isinstance(value, dict):
                    media.setdefault(value["_type"], {})[name] = value
                elif isinstance(value, float | int):
                    found[name, int(row["trainer/global_step"])] = float(value)
        if message.HasField("config"):
            config |= {item.key: json.loads(item.value_json) for item in message.config.update}
        if message.HasField("artifact"):
            artifacts[message.artifact.type] = [entry.path for entry in message.artifact.manifest.contents]
        if message.HasField("request") and message.request.HasField("log_artifact"):
            artifact = message.request.log_artifact.artifact
            artifacts[artifact.type] = [entry.path for entry in artifact.manifest.contents]
    check(found, folder)
    assert (config["strategy"], config["seed"], config["trainer.max_rounds"]) == ("FedAvg", 0, 2)
    assert config["model.learning_rate"] == 0.1
    assert found["final/test/acc/mean", 2] == summary(folder)["metrics"]["test"]["acc"]["mean"]
    assert {"figures/learning_curves", "figures/gain_test"} <= media["images/separated"].keys()
    assert sorted(artifacts["run"]) == ["config.yaml", "summary.json"]
    assert sorted(artifacts["model"]) == ["best.ckpt", "last.ckpt"]
    clients = json.loads((record.parent / "files" / media["table-file"]["tables/clients"]["path"]).read_text())
    of = dict(zip(clients["columns"], zip(*clients["data"], strict=True), strict=True))
    assert dict(zip(of["client"], of["test/acc"], strict=True)) == summary(folder)["metrics"]["test"]["acc"]["clients"]


def test_mlflow(folder: Path) -> None:
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{folder}/mlflow.db")
    experiment = client.get_experiment_by_name("digits")
    (done,) = client.search_runs([experiment.experiment_id])
    run_id = done.info.run_id
    found = {
        (name, point.step): point.value
        for name in done.data.metrics
        for point in client.get_metric_history(run_id, name)
    }
    check(found, folder)
    assert done.info.status == "FINISHED"
    assert (done.data.params["strategy"], done.data.params["seed"]) == ("FedAvg", "0")
    assert done.data.params["data.partitioner.clients_per_type"] == "3"
    assert done.data.metrics["final/test/acc/mean"] == summary(folder)["metrics"]["test"]["acc"]["mean"]
    place = folder / "mlruns" / experiment.experiment_id / run_id / "artifacts"
    assert json.loads((place / "run" / "summary.json").read_text()) == summary(folder)
    trained = folder / "runs" / "version_0" / "checkpoints" / "best.ckpt"
    assert (place / "checkpoints" / "best.ckpt").read_bytes() == trained.read_bytes()
    pictures = {path.name.partition("%")[0] for path in (place / "images").glob("*.png")}
    assert any("learning_curves" in name for name in pictures)
    clients = pd.read_json(place / "tables" / "clients.json", orient="split")
    acc = summary(folder)["metrics"]["test"]["acc"]["clients"]
    assert dict(zip(clients["client"], clients["test/acc"], strict=True)) == pytest.approx(acc)


def test_comet(folder: Path) -> None:
    (archive,) = (folder / "comet").glob("*.zip")
    with zipfile.ZipFile(archive) as file:
        messages = [json.loads(line) for line in file.read("messages.json").decode().splitlines() if line.strip()]
    by_type: dict[str, list[dict[str, Any]]] = {}
    for message in messages:
        by_type.setdefault(message["type"], []).append(message["payload"])
    found = {
        (point["metric"]["metricName"], point["metric"]["step"]): float(point["metric"]["metricValue"])
        for point in by_type["metric_msg"]
    }
    check(found, folder)
    text = json.dumps(messages)
    assert '"trainer.max_rounds"' in text
    assert "figures/learning_curves" in text
    assert "run/summary.json" in text
    assert "clients.csv" in text


def test_an_unreachable_server_is_refused_before_training(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    words = ["fit", "--config", "fedavg_digits", "--trainer.max_rounds=1", "--trainer.default_root_dir=mine"]
    code = main([*words, "--trainer.logger=MLFlowLogger", "--trainer.logger.tracking_uri=http://127.0.0.1:9"])
    assert code == 2
    said = capsys.readouterr().err
    assert "error: MLFlowLogger cannot begin: API request to http://127.0.0.1:9" in said
    assert "a file such as sqlite:///mlflow.db" in said
    assert not Path("mine").exists()


def test_weights_and_biases_without_a_key(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.setenv("NETRC", "none")
    words = ["fit", "--config", "fedavg_digits", "--trainer.max_rounds=1", "--trainer.logger=WandbLogger"]
    assert main(words) == 2
    said = capsys.readouterr().err
    assert "error: WandbLogger cannot begin: No API key configured" in said
    assert "set WANDB_MODE=offline." in said


def test_the_run_as_safetensors(folder: Path, tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    run_folder = folder / "runs" / "version_0"
    assert main(["export", str(run_folder), "--to-folder", str(tmp_path / "out")]) == 0
    saved = torch.load(run_folder / "models" / "shared_0.ckpt", weights_only=True)["state_dict"]
    found = safetensors.load_file(tmp_path / "out" / "model.safetensors")
    assert found.keys() == saved.keys()
    assert all(torch.equal(found[name], saved[name]) for name in saved)
