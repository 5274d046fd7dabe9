"""A Python attribute that a turn changes is shared by clients: it is noticed once and named."""

import warnings
from collections import Counter
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
import torch
import torchmetrics
from reference import Clients, Linear, federated_trainer, make
from torch import Tensor, nn

from lightning_fl.engine.turn.attributes import AttributeWatch


def shared_warnings(module: Linear, folder: Path, sizes: tuple[int, ...] = (4, 4, 4), rounds: int = 3) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        federated_trainer(folder, max_rounds=rounds).fit(module, Clients(sizes))
    return [str(one.message) for one in caught if "Python attributes are shared" in str(one.message)]


class Changes(Linear):
    def __init__(self) -> None:
        super().__init__()
        self.begin()

    def begin(self) -> None: ...

    def change(self, loss: Tensor) -> None: ...

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = self.loss(batch)
        self.change(loss.detach())
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> Tensor:
        return self.loss(batch)


class Best(Changes):
    def begin(self) -> None:
        self.value = float("inf")

    def change(self, loss: Tensor) -> None:
        self.value = min(self.value, float(loss))


class Counts(Changes):
    def begin(self) -> None:
        self.value = 0

    def change(self, loss: Tensor) -> None:
        self.value += 1


class Grows(Changes):
    def begin(self) -> None:
        self.value: list[Tensor] = []

    def change(self, loss: Tensor) -> None:
        self.value.append(loss)


class Average(Changes):
    """A tensor that is no buffer, changed in place."""

    def begin(self) -> None:
        self.value = torch.zeros(())

    def change(self, loss: Tensor) -> None:
        self.value.mul_(0.9).add_(loss)


class Window(Changes):
    """A part of a tensor, whose entries lie apart; beside it tensors whose bytes tell nothing."""

    def begin(self) -> None:
        self.value = torch.zeros(4, 6)[:, 0]
        self.imaginary = torch.zeros(3, dtype=torch.complex64).conj()
        self.nowhere = torch.zeros(3, device="meta")
        self.sparse = torch.eye(3).to_sparse()

    def change(self, loss: Tensor) -> None:
        self.value += loss


class OfAnObject(Changes):
    class Meter:
        total = 0.0

    def begin(self) -> None:
        self.value = self.Meter()

    def change(self, loss: Tensor) -> None:
        self.value.total += float(loss)


class InADict(Changes):
    def begin(self) -> None:
        self.value: Counter[str] = Counter()

    def change(self, loss: Tensor) -> None:
        self.value["steps"] += 1


class Appears(Changes):
    def change(self, loss: Tensor) -> None:
        self.value = loss


class AnUnregisteredMetric(Changes):
    def begin(self) -> None:
        self.value = {"mean": torchmetrics.MeanMetric()}

    def change(self, loss: Tensor) -> None:
        self.value["mean"].update(loss)


class AtTheStart(Changes):
    def begin(self) -> None:
        self.value = 0

    def on_train_epoch_start(self) -> None:
        self.value += 1


@pytest.mark.parametrize(
    "module", [Best, Counts, Grows, Average, Window, OfAnObject, InADict, Appears, AnUnregisteredMetric, AtTheStart]
)
def test_what_a_turn_changes_is_named_once(module: type[Changes], tmp_path: Path) -> None:
    (text,) = shared_warnings(make(module), tmp_path)
    assert text.startswith(f"{module.__name__}.value changed in the turn of client 0 (client_0): Python attributes")
    assert "Register it as a buffer, count with a torchmetrics metric, or set it anew in on_train_epoch_start" in text


class _Part(nn.Module):
    count = 0

    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        return x


def test_what_a_part_of_the_module_changes_is_named(tmp_path: Path) -> None:
    class Parts(Linear):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(3, 1), _Part())  # type: ignore[assignment]

    (text,) = shared_warnings(make(Parts), tmp_path)
    assert text.startswith("Parts.net.1.count changed in the turn of client 0")


def test_what_an_evaluation_changes_is_named(tmp_path: Path) -> None:
    class BestOfValidation(Changes):
        def begin(self) -> None:
            self.best = 0.0

        def on_validation_epoch_end(self) -> None:
            self.best = max(self.best, 1.0 + self.current_epoch)

    (text,) = shared_warnings(make(BestOfValidation), tmp_path)
    assert text.startswith("BestOfValidation.best changed in the turn of client 0")
    assert "on_validation_epoch_start" in text


class Cleared(Grows):
    def on_train_epoch_end(self) -> None:
        self.value.clear()


class Reset(Counts):
    def on_train_epoch_start(self) -> None:
        self.value = 0


class ByClient(Changes):
    def begin(self) -> None:
        self.value: dict[Any, Any] = {}

    def change(self, loss: Tensor) -> None:
        self.value[self.trainer.client] = loss
        self.value[self.current_epoch, self.trainer.client] = loss


class Cached(Changes):
    """What belongs to the module, Lightning, torch and metrics."""

    def begin(self) -> None:
        self.save_hyperparameters({"rate": 0.1})
        self.mean = torchmetrics.MeanMetric()
        self.register_buffer("level", torch.zeros(()))
        self.lstm = nn.LSTM(1, 1)
        self.function = torch.compile(torch.tanh, backend="eager")

    @cached_property
    def table(self) -> Tensor:
        return torch.ones(3)

    def change(self, loss: Tensor) -> None:
        self.mean.update(loss)
        self.level = self.level + loss
        self.hparams.rate *= 0.5
        self.log("mean", self.mean)
        assert len(self.table) == 3
        self.lstm(torch.ones(2, 1, 1))


@pytest.mark.parametrize("module", [Cleared, Reset, ByClient, Cached, Changes])
def test_no_false_alarm(module: type[Changes], tmp_path: Path) -> None:
    assert not shared_warnings(make(module), tmp_path)


def test_a_single_client_shares_nothing(tmp_path: Path) -> None:
    assert not shared_warnings(make(Counts), tmp_path, sizes=(4,))


def test_only_the_first_turns_are_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the begin of a turn and after its first hook; two turns of training and two of validation."""
    looks = []
    monkeypatch.setattr(AttributeWatch, "_picture", lambda self: looks.append(self) or {})
    federated_trainer(tmp_path, max_rounds=4).fit(make(Changes), Clients((4, 4)))
    assert len(looks) == 2 * (2 + 2)
