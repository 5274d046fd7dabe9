"""A turn that fails: what is fatal whatever the policy, and that what it held is freed before the next turn."""

import weakref
from functools import partial
from typing import Any

import pytest
import torch
from tiny import TinyClients, TinyModule, digest, quiet_trainer
from torch import Tensor

from lightning_fl import TrainingError
from lightning_fl.callbacks import PersonalLayers
from lightning_fl.engine.round.training import free_memory
from lightning_fl.strategies import APFL, FedAvg, FedRep

LOST = torch.AcceleratorError("CUDA error: an illegal memory access was encountered")
ASSERT = torch.AcceleratorError("CUDA error: device-side assert triggered")
NO_MEMORY = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")


class Failing(TinyModule):
    """Client 1's first step raises an error that holds on to its activations; who trained is noted."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error, self.trained = error, []  # type: ignore[var-annotated]
        self.held: weakref.ref[Tensor] | None = None
        self.alive: list[bool] = []

    def on_train_start(self) -> None:
        self.alive.append(self.held is not None and self.held() is not None)

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        activations = torch.tanh(self(batch[0])) if self.trainer.client == 1 else self(batch[0])  # type: ignore[attr-defined]
        if self.trainer.client == 1:  # type: ignore[attr-defined]
            self.held = weakref.ref(activations)
            own = self.error
            try:
                raise ValueError("the step's own trouble")
            except ValueError:
                raise own  # whose context holds this frame as well # noqa: B904
        self.trained.append(self.trainer.client)  # type: ignore[attr-defined]
        return torch.nn.functional.mse_loss(activations, batch[1])


class NotTraining(FedAvg):
    """What fails in the measuring before the turns."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error

    def measure_client(self, turn: Any) -> dict[str, float]:
        if turn.client == 1:
            raise self.error
        return {}


trainer = partial(quiet_trainer, max_rounds=1, on_client_error="skip")


@pytest.mark.parametrize("policy", ["skip", "fail"])
@pytest.mark.parametrize("error", [LOST, ASSERT])
def test_an_error_that_leaves_the_gpu_lost_ends_the_run_whatever_the_policy(policy: str, error: Exception) -> None:
    module = Failing(error)
    with pytest.raises(TrainingError, match=r"client 1 \(client_1\) failed in round 1: ") as end:
        trainer(on_client_error=policy).fit(module, TinyClients())
    assert set(module.trained) == {0}  # client 2 is not tried
    text = str(end.value)
    assert str(error) in text
    assert "device. Nothing is lost: the last checkpoint is untouched" in text
    assert "on_client_error" not in text
    assert end.value.__cause__ is error


def test_so_does_one_in_what_clients_measure() -> None:
    with pytest.raises(TrainingError, match="client 1 .*an illegal memory access.*its device"):
        trainer(strategy=NotTraining(LOST)).fit(TinyModule(), TinyClients())
    with pytest.warns(UserWarning, match=r"client 1 .*left out of round 1: out of memory \(CUDA out of memory"):
        trainer(strategy=NotTraining(NO_MEMORY)).fit(TinyModule(), TinyClients())


def test_memory_that_a_turn_lacked_skips_its_client_and_is_free_in_the_next_turn() -> None:
    module = Failing(NO_MEMORY)
    with pytest.warns(UserWarning, match=r"client 1 .*left out of round 1: out of memory \(CUDA out of memory.*line"):
        trainer().fit(module, TinyClients())
    assert set(module.trained) == {0, 2}
    assert module.held is not None
    assert module.held() is None
    assert module.error.__traceback__ is not None  # where it was raised can still be said


class Watching(Failing):
    """Looks in every step whether the failed client's activations are alive."""

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        self.alive.append(self.held is not None and self.held() is not None)
        return super().training_step(batch, batch_idx)


@pytest.mark.parametrize("error", [NO_MEMORY, ValueError("three samples")])
def test_activations_of_a_failed_step_are_dead_before_the_next_step(error: Exception) -> None:
    module = Watching(error)
    with pytest.warns(UserWarning, match="client 1 .*left out of round 1"):
        trainer().fit(module, TinyClients())
    assert module.held is not None
    assert not any(module.alive)


def test_a_group_of_stacked_clients_is_freed_and_ended_likewise() -> None:
    class Stacked(TinyModule):
        """The second group of two, whose clients have three samples a batch, fails."""

        def __init__(self, error: Exception) -> None:
            super().__init__()
            self.error, self.alive = error, []  # type: ignore[var-annotated]
            self.held: list[Any] = []

        def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
            self.alive += [held() is not None for held in self.held]
            activations = torch.tanh(self(batch[0]))
            if len(batch[0]) == 3:
                self.held.append(weakref.ref(activations))
                raise self.error
            return torch.nn.functional.mse_loss(activations, batch[1])

    data = TinyClients((8, 8, 3, 3, 8, 8))
    module = Stacked(NO_MEMORY)
    run = trainer(stacked_clients=2)
    with pytest.warns(UserWarning, match="left out of round 1: .*once.*out of memory"):
        run.fit(module, data)
    assert run.survivors == {0, 1, 4, 5}
    assert len(module.held) == 1
    assert module.held[0]() is None
    assert not any(module.alive)
    with pytest.raises(TrainingError, match="client 2 .*illegal memory access.*its device"):
        trainer(stacked_clients=2).fit(Stacked(LOST), data)


def test_a_gpu_gives_back_what_it_keeps_where_memory_was_lacking(monkeypatch: pytest.MonkeyPatch) -> None:
    emptied: list[None] = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: emptied.append(None))
    free_memory(NO_MEMORY, torch.device("cpu"))
    free_memory(ValueError("three samples"), torch.device("cuda", 0))
    assert not emptied
    wrapped = TrainingError("together")
    wrapped.__cause__ = NO_MEMORY
    free_memory(wrapped, torch.device("cuda", 0))
    assert len(emptied) == 1


def test_a_lost_gpu_that_says_so_again_does_not_hide_why_the_run_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(*_: Any) -> None:
        raise LOST

    monkeypatch.setattr("lightning_fl.trainer.session.set_rng_states", lost)
    with pytest.raises(TrainingError, match="client 1 .*device-side assert"):
        trainer().fit(Failing(ASSERT), TinyClients())
    with pytest.raises(torch.AcceleratorError):  # where nothing else went wrong it is the error
        trainer().fit(TinyModule(), TinyClients())


class Stumbles(TinyModule):
    """Client 1's second turn fails at a batch, by an error or by a loss that is NaN."""

    def __init__(self, at: int, how: str) -> None:
        super().__init__()
        self.at, self.how = at, how

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        fails = (self.trainer.client, self.current_epoch, batch_idx) == (1, 1, self.at)  # type: ignore[attr-defined]
        if fails and self.how == "error":
            raise ValueError("three samples")
        return super().training_step(batch, batch_idx) * (float("nan") if fails else 1.0)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=0.05)


@pytest.mark.parametrize("how", ["error", "NaN"])
@pytest.mark.parametrize(
    ("strategy", "callbacks"),
    [(APFL, []), (partial(FedRep, head_epochs=1), [PersonalLayers(layers=["linear.bias"])])],
    ids=["APFL", "FedRep"],
)
def test_a_failed_turn_leaves_what_its_client_keeps(strategy: Any, callbacks: list[Any], how: str) -> None:
    """However many steps it took."""

    def models(module: Stumbles) -> list[str]:
        run = trainer(max_rounds=4, strategy=strategy(), callbacks=callbacks, optimizer_state="keep")
        with pytest.warns(UserWarning, match="client 1 .*left out of round 2"):
            run.fit(module, TinyClients((16, 24)))
        return [digest(model) for model in (*run.models, *map(run.client_model, range(2)))]

    assert models(Stumbles(2, how)) == models(Stumbles(0, "error"))
