"""A run that stops, however it stops, goes on to the same bits."""

import os
import signal
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pandas as pd
import pytest
import torch
from algorithm_run import callbacks, settings
from full_disk import files_of_at_most
from meeting import meeting
from processes import SUPPORT, Process
from tiny import TinyClients, TinyModule, digest

from lightning_fl import CheckpointError, FederatedTrainer
from lightning_fl.callbacks import Callback, FineTuning, ModelCheckpoint, PersonalLayers
from lightning_fl.core.errors import LostPeerError
from lightning_fl.runtime.checkpoint import save_atomically

ROUNDS = 6


class Interrupts(Callback):
    """Sends this process a signal, or raises, in the middle of a round."""

    def __init__(self, round_number: int, how: int | type[BaseException]) -> None:
        self.round_number, self.how = round_number, how

    def on_client_end(self, trainer: FederatedTrainer, client: int) -> None:
        if trainer.current_round + 1 == self.round_number:
            if isinstance(self.how, int):
                os.kill(os.getpid(), self.how)
                self.round_number = -1
            else:
                raise self.how("stop")


def run(
    root: Path, ckpt_path: str | None = None, extra: list[Callback] | None = None, every: int = 1
) -> FederatedTrainer:
    stops = any(isinstance(one, Interrupts) and isinstance(one.how, int) for one in extra or [])
    trainer = FederatedTrainer(
        callbacks=[*callbacks(), *(extra or []), ModelCheckpoint(every_n_rounds=every)], **settings(str(root), ROUNDS)
    )
    interrupted = pytest.raises(KeyboardInterrupt) if stops else nullcontext()
    with interrupted as error:
        trainer.fit(TinyModule(dropout=0.2, norm=True), TinyClients(), ckpt_path=ckpt_path)
    if stops:  # it ends a script, and says where the run is and how it goes on
        assert trainer.log_dir in str(error.value)
        assert "ckpt_path='last'" in str(error.value)
    return trainer


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> FederatedTrainer:
    return run(tmp_path_factory.mktemp("whole"))


@pytest.mark.slow
@pytest.mark.parametrize("stop", [1, 2, 5])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_finishes_the_round_saves_and_resumes_to_the_same_bits(
    stop: int, number: int, tmp_path: Path, uninterrupted: FederatedTrainer, capfd: pytest.CaptureFixture[str]
) -> None:
    before = signal.getsignal(number)
    stopped = run(tmp_path, extra=[Interrupts(stop, number)], every=0)
    assert stopped.interrupted_by == number
    assert stopped.current_round == stop
    assert f"{signal.Signals(number).name}: finishing the round" in capfd.readouterr().err
    assert signal.getsignal(number) is before
    resumed = run(tmp_path, ckpt_path="last")
    assert digest(resumed.models[0]) == digest(uninterrupted.models[0])
    assert resumed.metrics["val"] == uninterrupted.metrics["val"]
    weights = [trainer.callbacks[0].weights for trainer in (resumed, uninterrupted)]  # type: ignore[attr-defined]
    assert torch.equal(*weights)
    best = [trainer.checkpoint_callback for trainer in (resumed, uninterrupted)]
    assert best[0].best_round == best[1].best_round  # type: ignore[union-attr]


@pytest.mark.slow
def test_the_best_round_resumes_too_and_curves_are_whole(tmp_path: Path, uninterrupted: FederatedTrainer) -> None:
    first = run(tmp_path)
    resumed = run(tmp_path, ckpt_path="best")
    assert digest(resumed.models[0]) == digest(uninterrupted.models[0])
    tables = [pd.read_csv(Path(trainer.log_dir) / "metrics.csv") for trainer in (first, resumed)]
    assert list(tables[1]["step"]) == list(range(1, ROUNDS + 1))
    pd.testing.assert_frame_equal(tables[0][sorted(tables[0])], tables[1][sorted(tables[1])], check_exact=True)


def test_a_crash_leaves_the_last_checkpoint_and_the_old_folder(tmp_path: Path, uninterrupted: FederatedTrainer) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, extra=[Interrupts(4, KeyboardInterrupt)])
    left = {path: path.read_bytes() for path in (tmp_path / "version_0").rglob("*.ckpt")}
    resumed = run(tmp_path, ckpt_path="last")
    assert resumed.log_dir == str(tmp_path / "version_1")
    assert digest(resumed.models[0]) == digest(uninterrupted.models[0])
    assert {path: path.read_bytes() for path in left} == left


@pytest.mark.processes
@pytest.mark.slow
def test_a_killed_process_resumes_to_the_same_bits(
    tmp_path: Path, uninterrupted: FederatedTrainer, start_warm: Callable[..., Process]
) -> None:
    script = SUPPORT / "algorithm_run.py"
    words = ["--root", tmp_path, "--out", tmp_path / "out.json", "--rounds", "100", "--meet-in-round", "4"]
    with meeting() as (server, environment):
        process = start_warm(script, *words, environment=environment)
        with process.until_it_connects(server):
            process.send_signal(signal.SIGKILL)
            assert process.end().code == -signal.SIGKILL
    last = tmp_path / "version_0" / "checkpoints" / "last.ckpt"
    saved = torch.load(last, weights_only=True)
    assert saved["round"] == 3 < ROUNDS
    resumed = run(tmp_path, ckpt_path="last")
    assert digest(resumed.models[0]) == digest(uninterrupted.models[0])


@pytest.mark.slow
def test_a_longer_run_goes_on_from_the_end(tmp_path: Path) -> None:
    run(tmp_path)
    longer = FederatedTrainer(callbacks=callbacks(), **settings(str(tmp_path), 8))
    longer.fit(TinyModule(dropout=0.2, norm=True), TinyClients(), ckpt_path="last")
    at_once = FederatedTrainer(callbacks=callbacks(), **settings(str(tmp_path / "once"), 8))
    at_once.fit(TinyModule(dropout=0.2, norm=True), TinyClients())
    assert digest(longer.models[0]) == digest(at_once.models[0])


def test_every_checkpoint_loads_without_running_code(tmp_path: Path) -> None:
    trainer = run(tmp_path)
    files = sorted(Path(trainer.log_dir).rglob("*.ckpt"))
    assert {file.name for file in files} >= {"last.ckpt", "best.ckpt", "shared_0.ckpt", "client_2.ckpt"}
    for file in files:
        torch.load(file, weights_only=True)


@pytest.mark.slow
def test_exported_models_open_without_this_package(tmp_path: Path) -> None:
    trainer = run(tmp_path)
    best = torch.load(Path(trainer.log_dir) / "checkpoints" / "best.ckpt", weights_only=True)
    loaded = TinyModule.load_from_checkpoint(Path(trainer.log_dir) / "models" / "client_1.ckpt")
    assert loaded.hparams["dropout"] == 0.2
    parameters = torch.cat([value.flatten() for value in loaded.state_dict().values() if value.is_floating_point()])
    flat = best["models"][0]["float32"]
    assert set(parameters.tolist()) <= set(flat.tolist())


def test_a_full_disk_keeps_the_old_checkpoint(tmp_path: Path) -> None:
    last = tmp_path / "last.ckpt"
    save_atomically({"weights": torch.zeros(1)}, last)
    before = last.read_bytes()
    with files_of_at_most(100_000), pytest.raises(CheckpointError, match="cannot write .*last.ckpt"):
        save_atomically({"weights": torch.zeros(1_000_000)}, last)
    assert last.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["last.ckpt"]


@pytest.mark.slow
def test_the_best_round_of_a_resumed_run_may_lie_in_the_folder_it_goes_on_from(tmp_path: Path) -> None:
    """Another run's best checkpoint, though newer, is not taken."""
    run(tmp_path / "runs")
    first = tmp_path / "runs" / "version_0" / "checkpoints"
    run(tmp_path / "runs")
    (tmp_path / "runs" / "version_1" / "checkpoints" / "best.ckpt").write_bytes(b"another run's")
    trainer = FederatedTrainer(callbacks=callbacks(), **settings(str(tmp_path / "runs"), ROUNDS))
    module, data = TinyModule(dropout=0.2, norm=True), TinyClients()
    trainer.fit(module, data, ckpt_path=first / "last.ckpt")
    expected = torch.load(first / "best.ckpt", weights_only=True)["round"]
    trainer.test(module, data, ckpt_path="best")
    assert trainer.current_round == expected


@pytest.mark.slow
def test_a_callback_s_state_of_another_version_is_named(tmp_path: Path) -> None:
    class Counting(Callback):
        def state_dict(self) -> dict[str, int]:
            return {"rounds": 1}

        def load_state_dict(self, state: dict[str, int]) -> None:
            state["turns"]

    first = run(tmp_path, extra=[Counting()])
    assert first.current_round == ROUNDS
    with pytest.raises(CheckpointError, match="Counting"):
        run(tmp_path, ckpt_path="last", extra=[Counting()])


@pytest.mark.slow
def test_a_checkpoint_that_keeps_the_best_round_in_one_place_still_resumes(tmp_path: Path) -> None:
    """As those of before did: what clients kept in the best round lay with its models."""
    extra: list[Callback] = [PersonalLayers(layers=["linear.bias"]), FineTuning(steps=2)]
    whole = run(tmp_path / "whole", extra=extra)
    kept = {path.name: torch.load(path, weights_only=True) for path in Path(whole.log_dir).glob("models/*.ckpt")}
    run(tmp_path / "old", extra=[*extra, Interrupts(4, signal.SIGINT)])
    last = tmp_path / "old" / "version_0" / "checkpoints" / "last.ckpt"
    state = torch.load(last, weights_only=True)
    of_best: dict[str, dict[int, object]] = {}
    for client, values in state["client_stores"].pop("best_round").items():
        for name, value in values.items():
            of_best.setdefault(name, {})[client] = value
    assert set(of_best["personal_layers"]) == {0, 1, 2}
    state["callbacks"]["ModelCheckpoint"]["best"]["client_stores"] = of_best
    torch.save(state, last)
    resumed = run(tmp_path / "old", ckpt_path="last", extra=extra)
    assert {path.name for path in Path(resumed.log_dir).glob("models/*.ckpt")} == kept.keys()
    for path in Path(resumed.log_dir).glob("models/*.ckpt"):
        found, expected = torch.load(path, weights_only=True)["state_dict"], kept[path.name]["state_dict"]
        assert all(torch.equal(found[name], value) for name, value in expected.items())


class LosesARank(Callback):
    """In round 3, when this rank has heard of a checkpoint of round 9 that rank zero did not come to write."""

    def __init__(self, removed: bool) -> None:
        self.removed = removed

    def on_client_end(self, trainer: FederatedTrainer, client: int) -> None:
        if trainer.current_round == 2:
            trainer.callback(ModelCheckpoint).last_round = 9
            if self.removed:
                (Path(trainer.log_dir) / "checkpoints" / "last.ckpt").unlink(missing_ok=True)
            raise LostPeerError("rank 1 (b) is gone.")


@pytest.mark.parametrize(
    ("removed", "said"),
    [(False, r"rank 1 \(b\) .*round 2.*--ckpt_path .*last\.ckpt"), (True, r"rank 1 \(b\) .*(?i:no checkpoint)")],
)
def test_after_a_lost_rank_the_round_to_go_on_from_is_that_of_the_file(
    removed: bool, said: str, tmp_path: Path
) -> None:
    with pytest.raises(LostPeerError, match=said):
        run(tmp_path, extra=[LosesARank(removed)])
