"""The record of a run: its folder, whose curves are whose, what a run that goes on takes up, and a full disk."""

import json
import os
from pathlib import Path

import pandas as pd
import pytest
import torch
from full_disk import files_of_at_most
from matplotlib.figure import Figure
from tiny import TinyClients, TinyModule
from torch import nn

from lightning_fl import CheckpointError, ConfigurationError, FederatedTrainer, TrainingError
from lightning_fl.callbacks import Callback, Figures
from lightning_fl.runtime.curve_table import read_rows
from lightning_fl.runtime.model_file import load_model_checkpoint
from lightning_fl.study.finished_run import FinishedRun


class NamedClients(TinyClients):
    def __init__(self, *names: str) -> None:
        super().__init__((8,) * len(names))
        self.names = list(names)

    def client_names(self) -> list[str]:
        return self.names


def fit(root: Path, *callbacks: Callback, rounds: int = 2, ckpt_path: Path | None = None, **more: object) -> Path:
    settings = {"default_root_dir": root, "enable_progress_bar": False, "local_steps": 1, "seed": 0, **more}
    trainer = FederatedTrainer(max_rounds=rounds, callbacks=list(callbacks), **settings)  # type: ignore[arg-type]
    trainer.fit(TinyModule(), NamedClients("worst", "a/b", "b"), ckpt_path=ckpt_path)
    return Path(trainer.log_dir)


def test_clients_of_one_name_are_refused_before_training(tmp_path: Path) -> None:
    trainer = FederatedTrainer(default_root_dir=tmp_path, enable_progress_bar=False)
    with pytest.raises(ConfigurationError, match=r"several clients have the same name: 'a' \(clients 0, 2\)"):
        trainer.fit(TinyModule(), NamedClients("a", "b", "a"))
    assert os.listdir(tmp_path) == []


def test_no_client_s_curve_or_model_is_another_s(tmp_path: Path) -> None:
    run = fit(tmp_path)
    table = pd.read_csv(run / "metrics.csv")
    summary = json.loads((run / "summary.json").read_text())
    clients = summary["metrics"]["val"]["loss"]["clients"]
    assert list(clients) == ["worst", "a/b", "b"]
    names = ["worst (client 0)", "a_b (client 1)", "b"]
    assert [table[f"val_loss/{name}"].iloc[-1] for name in names] == list(clients.values())
    assert table["val_loss/worst"].iloc[-1] == max(clients.values()) == summary["metrics"]["val"]["loss"]["worst"]
    files = {"a/b": "a_b-c14cddc0"}
    assert summary["file_names"] == files
    assert sorted(os.listdir(run / "models")) == ["a_b-c14cddc0.ckpt", "b.ckpt", "shared_0.ckpt", "worst.ckpt"]


class OneNameForAll(TinyModule):
    """Logs one name in all steps: 10 and the round in training, 20 and the round in validation, 30 in the test."""

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        self.log("loss", 10.0 + self.current_epoch)
        return super().training_step(batch, batch_idx)

    def validation_step(self, batch: list[torch.Tensor], batch_idx: int) -> None:
        self.log("loss", 20.0 + self.current_epoch)

    def test_step(self, batch: list[torch.Tensor], batch_idx: int) -> None:
        self.log("loss", 30.0)


def test_a_name_in_training_and_in_validation_is_two_curves(tmp_path: Path) -> None:
    figures = Figures()
    settings = {"default_root_dir": tmp_path, "enable_progress_bar": False, "local_steps": 1, "max_rounds": 4}
    trainer = FederatedTrainer(callbacks=[figures], check_val_every_n_rounds=2, **settings)  # type: ignore[arg-type]
    trainer.fit(OneNameForAll(), NamedClients("a", "b"))
    table = pd.read_csv(Path(trainer.log_dir) / "metrics.csv").set_index("step")
    for suffix in ("", "/worst", "/a", "/b"):
        assert table[f"loss{suffix}"].to_dict() == {1: 10.0, 2: 11.0, 3: 12.0, 4: 13.0}
        assert table[f"val/loss{suffix}"].dropna().to_dict() == {2: 21.0, 4: 23.0}
    assert {turn: found["mean"] for turn, found in figures.history["val/loss"].items()} == {2: 21.0, 4: 23.0}
    assert [found["mean"] for found in figures.history["loss"].values()] == [10.0, 11.0, 12.0, 13.0]
    assert trainer.loop.module_trainer.callback_metrics["loss"] == 23.0  # the latest, as in Lightning
    trainer.test(trainer.module, trainer.datamodule)
    curve = FinishedRun.read(trainer.log_dir).curve("loss")
    assert curve.set_index("round")["mean"].to_dict() == {2: 21.0, 4: 23.0}


def test_a_fit_after_a_test_has_none_of_its_metrics(tmp_path: Path) -> None:
    settings = {"default_root_dir": tmp_path, "enable_progress_bar": False, "local_steps": 1, "max_rounds": 1}
    trainer, module, data = FederatedTrainer(**settings), TinyModule(), TinyClients()  # type: ignore[arg-type]
    tested = trainer.test(module, data)["test_loss"]
    trainer.fit(module, data)
    path = tmp_path / "version_0" / "summary.json"
    assert set(json.loads(path.read_text())["metrics"]) == {"train", "val"}
    assert trainer.test(module, data)["test_loss"].mean != tested.mean
    assert set(json.loads(path.read_text())["metrics"]) == {"train", "val", "test"}


class Words(nn.Module):
    """Has an extra state that is no tensor."""

    def get_extra_state(self) -> dict[str, list[str]]:
        return {"words": ["a", "b"]}

    def set_extra_state(self, state: dict[str, list[str]]) -> None:
        assert state == self.get_extra_state()


class Translates(TinyModule):
    def __init__(self) -> None:
        super().__init__()
        self.words = Words()


@pytest.mark.slow
def test_models_with_an_extra_state_are_written_read_and_gone_on_from(tmp_path: Path) -> None:
    settings = {"default_root_dir": tmp_path, "enable_progress_bar": False, "local_steps": 1}
    for rounds, ckpt_path in ((1, None), (2, "last")):
        module, trainer = Translates(), FederatedTrainer(max_rounds=rounds, **settings)  # type: ignore[arg-type]
        trainer.fit(module, TinyClients(), ckpt_path=ckpt_path)
        state = load_model_checkpoint(Path(trainer.log_dir) / "models" / "shared_0.ckpt")["state_dict"]
        assert state["words._extra_state"] == {"words": ["a", "b"]}
        assert torch.equal(state["linear.weight"], module.linear.weight)
        Translates().load_state_dict(state)


@pytest.mark.parametrize("name", ["version_²", "version_x", "version_", "version_00"])
def test_a_folder_like_a_run_s_is_no_run(name: str, tmp_path: Path) -> None:
    (tmp_path / name).mkdir()
    assert fit(tmp_path, rounds=1).name == ("version_1" if name == "version_00" else "version_0")


def test_a_refused_checkpoint_leaves_no_folder(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="there is no such checkpoint"):
        fit(tmp_path, ckpt_path=tmp_path / "lst.ckpt")
    assert os.listdir(tmp_path) == []


# -- going on ----------------------------------------------------------------------------------------------------


def _damaged(table: Path, how: str) -> None:
    lines = table.read_bytes().splitlines(keepends=True)
    if how == "gone":
        table.unlink()
    elif how == "bytes":
        table.write_bytes(lines[0] + b"\xff\xfe" * 20 + b"\r\n" + b"".join(lines[2:]))
    elif how == "gap":
        table.write_bytes(b"".join(lines[:2] + lines[3:]))
    else:
        table.write_bytes(b"\x00\xff" * 100)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "said", "rounds"),
    [
        ("gone", r"metrics.csv is not there: the curves begin at round 4", [4, 5]),
        ("bytes", r"metrics.csv is damaged: 1 of 3 rows up to round 3 cannot be read and are missing", [2, 3, 4, 5]),
        ("gap", r"metrics.csv is damaged: 1 of 3 rows up to round 3", [1, 3, 4, 5]),
        ("garbage", r"metrics.csv is damaged: 3 of 3 rows", [4, 5]),
    ],
)
def test_what_is_lost_of_the_curves_is_said_in_one_warning(
    how: str, said: str, rounds: list[int], tmp_path: Path
) -> None:
    first = fit(tmp_path, rounds=3)
    _damaged(first / "metrics.csv", how)
    with pytest.warns(UserWarning, match=said):
        resumed = fit(tmp_path, rounds=5, ckpt_path=first / "checkpoints" / "last.ckpt")
    assert pd.read_csv(resumed / "metrics.csv")["step"].tolist() == rounds


@pytest.mark.slow
def test_a_checkpoint_of_before_goes_on_by_the_rounds_of_its_curves(tmp_path: Path) -> None:
    first = fit(tmp_path, rounds=3)
    last = first / "checkpoints" / "last.ckpt"
    state = torch.load(last, weights_only=True)
    del state["record"], state["measured"]
    torch.save(state, last)
    resumed = fit(tmp_path, rounds=5, ckpt_path=last)
    assert pd.read_csv(resumed / "metrics.csv")["step"].tolist() == [1, 2, 3, 4, 5]


@pytest.mark.slow
def test_rows_that_only_an_older_checkpoint_has_are_taken_from_it(tmp_path: Path) -> None:
    first = fit(tmp_path, rounds=3)
    table, last = first / "metrics.csv", first / "checkpoints" / "last.ckpt"
    whole, state = table.read_text(), torch.load(last, weights_only=True)
    state["record"]["unwritten"] = [row for row in read_rows(table) if row and row["step"] == 3]
    torch.save(state, last)
    table.write_text("".join(whole.splitlines(keepends=True)[:-1]))
    resumed = fit(tmp_path, rounds=3, ckpt_path=last)
    assert (resumed / "metrics.csv").read_text() == whole


# -- a full disk -------------------------------------------------------------------------------------------------


class BigTable(Callback):
    """Writes more than the disk takes, before the models are written."""

    def on_fit_end(self, trainer: FederatedTrainer) -> None:
        trainer.run_log.write("big.csv", "x" * 1_000_000)


def test_a_table_that_the_disk_does_not_take_loses_no_model(tmp_path: Path) -> None:
    with (
        files_of_at_most(500_000),
        pytest.raises(TrainingError, match=r"cannot write big.csv to .*version_0: File too large.*--ckpt_path"),
    ):
        fit(tmp_path, BigTable())
    run = tmp_path / "version_0"
    assert json.loads((run / "summary.json").read_text())["rounds"] == 2
    assert {"last.ckpt", "best.ckpt"} == set(os.listdir(run / "checkpoints"))
    assert "worst.ckpt" in os.listdir(run / "models")
    assert not [path for path in run.rglob("*") if path.name.startswith(".") or path.name == "big.csv"]
    again = fit(tmp_path, BigTable(), ckpt_path=run / "checkpoints" / "last.ckpt")
    assert (again / "big.csv").stat().st_size == 1_000_000


def test_pictures_come_after_the_models(tmp_path: Path) -> None:
    class Draws(Callback):
        def on_fit_end(self, trainer: FederatedTrainer) -> None:
            trainer.run_log.log_figure("a/../b", Figure((1, 1)), 1)
            seen.extend(os.listdir(trainer.log_dir))

    seen: list[str] = []
    run = fit(tmp_path, Draws())
    assert "figures" not in seen
    assert os.listdir(run / "figures") == ["a_.._b.png"]
