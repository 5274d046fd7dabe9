"""How many processes a run may have, and that none of another recipe joins it; nothing is started here."""

import hashlib
from pathlib import Path
from typing import Any

import pytest
from tiny import TinyClients, TinyModule

from lightning_fl import ConfigurationError, FederatedTrainer
from lightning_fl.callbacks import DROClientSampling, PersonalLayers
from lightning_fl.callbacks.callback import Callback
from lightning_fl.strategies import FedAvg
from lightning_fl.trainer.identity import check_same, data_of, settings_of


def trainer_on(devices: int, **more: Any) -> FederatedTrainer:
    return FederatedTrainer(accelerator="cpu", devices=devices, **more)


@pytest.mark.parametrize(("devices", "most", "expected"), [(4, 2, 2), (4, 1, 1), (3, 3, 3), (2, 5, 2)])
def test_no_more_processes_than_are_of_use(devices: int, most: int, expected: int) -> None:
    trainer = trainer_on(devices)
    if expected < devices:
        with pytest.warns(UserWarning, match=rf"trainer.devices={devices} .*{most}"):
            trainer.strategy.limit_processes(most, f"there are {most} clients")
    else:
        trainer.strategy.limit_processes(most, "")
    assert trainer.strategy.num_processes == trainer.fabric.world_size == expected
    assert (trainer.strategy.launcher is None) == (expected == 1)


def test_one_client_trains_in_one_process(tmp_path: Path) -> None:
    trainer = trainer_on(4, max_rounds=1, default_root_dir=tmp_path, enable_progress_bar=False)
    with pytest.warns(UserWarning, match="trainer.devices=4 .*1 "):
        trainer.fit(TinyModule(), TinyClients((9,)))
    assert trainer.fabric.world_size == 1


def test_processes_that_others_started_keep_to_what_was_lowered(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("LOCAL_RANK", "1"), ("WORLD_SIZE", "2")):
        monkeypatch.setenv(name, value)
    trainer = trainer_on(4)
    trainer.strategy.limit_processes(1, "")
    assert trainer.strategy.num_processes == 2
    monkeypatch.setenv("WORLD_SIZE", "4")
    trainer = trainer_on(4)
    trainer.strategy.limit_processes(1, "")
    assert trainer.strategy.num_processes == 4


def test_machines_keep_their_processes() -> None:
    trainer = trainer_on(2, num_nodes=2)
    trainer.strategy.limit_processes(1, "")
    assert trainer.strategy.num_processes == 2


def test_far_more_processes_than_cores_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1, 2, 3})
    assert trainer_on(16).strategy.num_processes == 16
    with pytest.raises(ConfigurationError, match="trainer.devices.*17.*4 CPU cores"):
        trainer_on(17)


@pytest.mark.parametrize("timeout", [0, -3.0, float("nan")])
def test_a_time_limit_that_is_none_is_refused(timeout: float) -> None:
    with pytest.raises(ConfigurationError, match="trainer.timeout="):
        trainer_on(1, timeout=timeout)


# -- the same recipe on all ranks ----------------------------------------------------------------------------------


class TwoRanks(FedAvg):
    """Rank 1 says something else than this one."""

    other: dict[str, str]
    rank_names = ("rank 0 (a)", "rank 1 (b)")  # type: ignore[assignment]
    global_rank = 0

    def exchange(self, of_hosted_clients: Any) -> Any:
        digest = hashlib.sha256(repr(sorted(self.other.items())).encode()).hexdigest()
        return {**of_hosted_clients, 1: digest if isinstance(of_hosted_clients[0], str) else self.other}


def difference(own: dict[str, str], other: dict[str, str]) -> str:
    strategy = TwoRanks()
    strategy.other = other
    try:
        check_same(strategy, own, "recipe")
    except ConfigurationError as error:
        return str(error)
    return ""


class Own(Callback):
    """A user's."""

    def __init__(self, rate: float, table: str = "x.csv") -> None:
        self.rate, self.table, self._drawn = rate, table, object()


def recipe(callbacks: list[Callback] | None = None, module: Any = None, **settings: Any) -> dict[str, str]:
    trainer = trainer_on(1, callbacks=callbacks, **settings)
    return settings_of(trainer, "fit", module or TinyModule(), settings.pop("ckpt_path", None))


@pytest.mark.parametrize(
    ("other", "text"),
    [
        ({"seed": 3}, "trainer.seed is 3 there, 0 here"),
        (
            {"max_rounds": 7, "local_steps": 2},
            "trainer.max_rounds is 7 there, 100 here; trainer.local_steps is 2 there",
        ),
        ({"precision": "64"}, "trainer.precision is '64-true' there, '32-true' here"),
        ({"profile": True}, "trainer.profile is True there, False here"),
        ({"callbacks": [Own(0.5)]}, "Own.rate is 0.5 there, 0.1 here"),
        ({"callbacks": [PersonalLayers(layers=["a"])]}, "trainer.callbacks is 'PersonalLayers, ModelCheckpoint' there"),
        ({"module": TinyModule(learning_rate=0.5)}, "model.learning_rate is 0.5 there, 0.05 here"),
    ],
)
def test_what_differs_is_named(other: dict[str, Any], text: str) -> None:
    found = difference(recipe([Own(0.1)]), recipe(**{"callbacks": [Own(0.1)], **other}))
    assert found.startswith("rank 1 (b) has another recipe than rank 0 (a): ")
    assert text in found
    assert found.endswith("Start all ranks with the same recipe.")


def test_files_threads_and_what_is_shown_may_differ(tmp_path: Path) -> None:
    own = recipe([Own(0.1, str(tmp_path))], default_root_dir=tmp_path, num_threads=2, enable_progress_bar=False)
    assert difference(recipe([Own(0.1)]), own) == ""
    assert difference(recipe([DROClientSampling()]), recipe([DROClientSampling()])) == ""


def test_data_that_all_hold_are_compared_by_what_their_record_says() -> None:
    own, other = data_of(TinyClients((9, 8))), data_of(TinyClients((9, 7)))
    assert "the number of training samples of client 1 is 7 there, 8 here" in difference(own, other)
    assert "the number of clients is 3 there, 2 here" in difference(own, data_of(TinyClients((9, 8, 1))))
