"""Loggers beside each other, and what is said of those that cannot be had; with their services: tests/extras."""

import json
import math
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.loggers.logger import Logger
from matplotlib.figure import Figure
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tiny import TinyClients, TinyModule

from lightning_fl import ConfigurationError, FederatedTrainer, TrainingError
from lightning_fl.callbacks import Callback
from lightning_fl.cli import main
from lightning_fl.core.escaping import csv_table
from lightning_fl.runtime.loggers import adapter_of


class Notes(Logger):
    """A logger of a user's own."""

    def __init__(self) -> None:
        self.points: list[tuple[int, dict[str, float]]] = []
        self.settings: dict[str, Any] = {}

    name = version = "notes"

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.points.append((int(step or 0), metrics))

    def log_hyperparams(self, params: dict[str, Any]) -> None:
        self.settings = params


def fit(logger: Any, *callbacks: Callback) -> Path:
    trainer = FederatedTrainer(
        max_rounds=2,
        local_steps=1,
        logger=logger,
        callbacks=list(callbacks),
        default_root_dir="runs",
        enable_progress_bar=False,
    )
    trainer.fit(TinyModule(), TinyClients())
    return Path(trainer.log_dir)


def test_true_in_a_list_is_tensorboard_and_csv_and_all_get_the_same() -> None:
    notes = Notes()
    run = fit([True, notes])
    table = pd.read_csv(run / "metrics.csv")
    assert list(run.glob("events.out.tfevents.*"))
    assert [step for step, _ in notes.points] == table["step"].tolist() == [1, 2]
    for (_, logged), (_, row) in zip(notes.points, table.iterrows(), strict=True):
        assert {name: row[name] for name in logged} == pytest.approx(logged)
    assert notes.settings == {"strategy": "FedAvg", "seed": 0}


def test_none_is_no_logger_and_a_tuple_is_as_good_as_a_list() -> None:
    assert not {"metrics.csv", "events"} & {path.name.partition(".out")[0] for path in fit(None).iterdir()}
    notes = Notes(), Notes()
    fit(notes)
    assert [[step for step, _ in one.points] for one in notes] == [[1, 2], [1, 2]]


@pytest.mark.parametrize("logger", [[False], [True, True], (True, False), "csv", ["csv"], [None], 3])
def test_what_is_no_logger_is_refused_before_a_fit(logger: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"trainer\.logger="):
        FederatedTrainer(logger=logger)


def test_tensorboard_has_the_picture_of_the_file_and_a_logger_without_pictures_none(tmp_path: Path) -> None:
    class Draws(Callback):
        def on_fit_end(self, trainer: FederatedTrainer) -> None:
            trainer.run_log.log_figure("a", Figure((1, 1)), 2)

    run = fit([CSVLogger(tmp_path, name="csv"), True], Draws())
    events = EventAccumulator(str(run)).Reload()
    assert [one.step for one in events.Images("a")] == [2]
    assert events.Images("a")[0].encoded_image_string == (run / "figures" / "a.png").read_bytes()


def test_the_final_metrics_of_tensorboard_are_at_the_last_round() -> None:
    events = EventAccumulator(str(fit(True))).Reload()
    tags = [tag for tag in events.Tags()["scalars"] if tag.startswith("final/")]
    assert "final/val/loss/mean" in tags
    assert [[one.step for one in events.Scalars(tag)] for tag in tags] == [[2]] * len(tags)


# -- those that cannot be had ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("logger", "extra"), [("WandbLogger", "wandb"), ("MLFlowLogger", "mlflow"), ("CometLogger", "comet")]
)
def test_a_package_that_is_missing_is_named_with_its_extra(
    logger: str, extra: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = {"MLFlowLogger": "mlflow"}.get(logger, extra)
    monkeypatch.setattr(f"lightning.pytorch.loggers.{module}._{module.upper()}_AVAILABLE", False)
    assert main(["fit", "--config", "fedavg_digits", f"--trainer.logger={logger}"]) == 2
    assert f'is not installed, or too old. Install it with `pip install "lightning-fl[{extra}]"`.' in (
        capsys.readouterr().err
    )


# -- how a run writes to a service --------------------------------------------------------------------------------


class MlflowError(Exception):
    """As the package's own."""


MlflowError.__module__ = "mlflow.exceptions"


class MLFlowLogger:
    """Like Lightning's as far as curves go, but no class that recipes can name; its server can be shut down."""

    def __init__(self, until: int = 100) -> None:
        self.until = until
        self.points: list[tuple[int, dict[str, float]]] = []

    def log_hyperparams(self, params: dict[str, Any]) -> None:
        self.settings = params

    def finalize(self, status: str) -> None:
        self.status = status

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        if len(self.points) >= self.until:
            raise MlflowError("connection refused")
        self.points.append((int(step or 0), metrics))


def test_names_that_mlflow_does_not_take_stay_different() -> None:
    logger = MLFlowLogger()
    names = ["val/acc/a b", "val/acc/a+b", "val/acc/a&b", "val/acc/worst (client 0)"]
    adapter_of(logger).log_metrics(dict.fromkeys(names, 1.0), 3)
    ((step, logged),) = logger.points
    found = list(logged)
    assert step == 3
    assert found[0] == "val/acc/a b"
    assert len(set(found)) == 4
    assert all(set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789_-/. ") for name in found)
    assert found[3].startswith("val/acc/worst _client 0_-")


def test_a_runs_tables_name_the_clients_as_they_are(tmp_path: Path) -> None:
    class Tables(MLFlowLogger):
        run_id = "1"

        def __init__(self) -> None:
            super().__init__()
            self.experiment, self.tables = self, {}

        def log_text(self, run: str, text: str, file: str) -> None:
            self.tables[file] = json.loads(text)["data"]

    logger, names = Tables(), ["NA", "07", "=1+1"]
    for column in ("client", "received_from", "sender", "recipient"):
        table = pd.DataFrame({column: names, "psi": [0.5, math.nan, 0.25]})
        (tmp_path / f"{column}.csv").write_text(csv_table(table))
    adapter_of(logger).log_run(tmp_path, {"client_names": names}, 1, False)
    assert logger.tables.pop("tables/clients.json") == [[name] for name in names]
    assert list(logger.tables.values()) == [[["NA", 0.5], ["07", None], ["=1+1", 0.25]]] * 4


def test_a_server_that_is_gone_ends_the_run_with_a_checkpoint_to_go_on_from() -> None:
    with pytest.raises(TrainingError, match=r"MLFlowLogger cannot log: connection refused\. .* --ckpt_path last"):
        fit([True, MLFlowLogger(until=1)])
    assert Path("runs/version_0/checkpoints/last.ckpt").is_file()


def test_another_package_s_error_is_its_own() -> None:
    class Broken(MLFlowLogger):
        def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        adapter_of(Broken()).log_metrics({"a": 1.0}, 1)
