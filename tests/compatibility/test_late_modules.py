"""Modules that hooks make: those of ``on_train_start`` belong to the model, later ones are refused."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from reference import (
    Clients,
    Linear,
    assert_same_weights,
    federated_trainer,
    fit_whole_and_resumed,
    fitted,
    leave_out,
    linear,
    make,
    train_both,
)
from torch import Tensor, nn

from lightning_fl.core.errors import CheckpointError, ConfigurationError


class Teacher(Linear):
    """The average over steps of the weights, in a copy made when training starts; it is what is evaluated."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(3)

    def on_train_start(self) -> None:
        self.teacher = copy.deepcopy(self.net).requires_grad_(False)

    @torch.no_grad()
    def on_train_batch_end(self, *_: Any) -> None:
        for own, new in zip(self.teacher.parameters(), self.net.parameters(), strict=True):
            own.lerp_(new, 0.1)

    def loss(self, batch: Any) -> Tensor:
        x, y = batch
        return nn.functional.mse_loss(self.net(self.norm(x)), y)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        x, y = batch
        self.log("val_loss", nn.functional.mse_loss(getattr(self, "teacher", self.net)(x), y))

    def test_step(self, batch: Any, batch_idx: int) -> None:
        x, y = batch
        self.log("test_loss", nn.functional.mse_loss(self.teacher(x), y))


class Taught(Teacher):
    """Its teacher is in the graph and asks for gradients: Lightning's optimiser, made before, has it not."""

    def on_train_start(self) -> None:
        self.teacher = copy.deepcopy(self.net)

    def loss(self, batch: Any) -> Tensor:
        x, _ = batch
        return super().loss(batch) + (self.teacher(x) - self.net(x)).square().mean()

    def on_train_batch_end(self, *_: Any) -> None: ...


class Head(Linear):
    """A head made when training starts and given to the optimiser in the first epoch."""

    def on_train_start(self) -> None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(3)
            self.head = nn.Linear(1, 1)

    def on_train_epoch_start(self) -> None:
        if self.current_epoch == 0:
            self.optimizers().add_param_group({"params": list(self.head.parameters())})

    def loss(self, batch: Any) -> Tensor:
        x, y = batch
        return nn.functional.mse_loss(self.head(self.net(x)), y)


class LateBuffer(Linear):
    """A buffer without a value until training starts."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", None)

    def on_train_start(self) -> None:
        self.scale = torch.ones(())

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        self.scale.mul_(0.9)
        return self.scale * self.loss(batch)


class Replaced(Linear):
    def on_train_start(self) -> None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(3)
            self.net = nn.Linear(3, 1, bias=False)

    def on_train_epoch_start(self) -> None:
        if self.current_epoch == 0:
            self.optimizers().param_groups.clear()
            self.optimizers().add_param_group({"params": list(self.net.parameters())})


@pytest.mark.slow
@pytest.mark.parametrize("module", [Teacher, Taught, Head, LateBuffer, Replaced])
def test_as_under_lightnings_trainer(module: type[Linear], tmp_path: Path) -> None:
    own, trainer, reference, _ = train_both(module, tmp_path)
    assert_same_weights(own, reference, atol=2**-46, moved=False)
    assert trainer.loop.flat.late_names


class Statistics(Linear):
    """Normalises its inputs by buffers that are set when training starts."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(3))
        self.teacher = nn.Linear(3, 1)

    def on_train_start(self) -> None:
        self.mean.copy_(torch.tensor([1.0, 2.0, 3.0]))

    def loss(self, batch: Any) -> Tensor:
        x, y = batch
        return super().loss((x - self.mean, y)) + (self.net(x) - self.teacher(x)).square().mean()


def _assign(self: Statistics) -> None:
    self.mean, self.net.weight.data = torch.ones(3), torch.ones(1, 3)


def _fill_and_add(self: Statistics) -> None:
    self.mean.fill_(2.0)
    self.register_buffer("more", torch.ones(2))


#: What on_train_start changes -> the module.
_CHANGED: dict[str, type[Any]] = {
    "a buffer": Statistics,
    "what is assigned": linear("Assigns", Statistics, on_train_start=_assign),
    "a teacher": linear("Copies", Statistics, on_train_start=lambda s: s.teacher.load_state_dict(s.net.state_dict())),
    "a buffer, besides a new one": linear("Adds", Statistics, on_train_start=_fill_and_add),
}


@pytest.mark.parametrize("module", _CHANGED.values(), ids=_CHANGED)
def test_what_changes_when_training_starts_is_trained_on(module: type[Linear], tmp_path: Path) -> None:
    own, _, reference, _ = train_both(module, tmp_path)
    assert_same_weights(own, reference, atol=2**-46)


def test_a_resumed_run_keeps_what_it_has_learned_of_what_changed(tmp_path: Path) -> None:
    (whole, _, resumed), _ = fit_whole_and_resumed(_CHANGED["a teacher"], tmp_path, optimizer_state="keep")
    assert_same_weights(resumed, whole)


def test_what_is_made_is_averaged_exported_and_tested(tmp_path: Path) -> None:
    """Two clients of equal size: the teacher is the mean of their teachers."""
    ends: dict[int, Tensor] = {}

    class Watches(Teacher):
        def on_train_epoch_end(self) -> None:
            ends[self.trainer.client] = self.teacher.weight.cpu().clone()

    module, data = make(Watches), Clients((8, 8))
    trainer = fitted(tmp_path, module, data, max_rounds=1, enable_checkpointing=True)
    torch.testing.assert_close(module.teacher.weight, (ends[0] + ends[1]) / 2)
    assert trainer.communication.model_bytes == sum(v.numel() * v.element_size() for v in module.state_dict().values())
    exported = torch.load(Path(trainer.log_dir) / "models" / "shared_0.ckpt", weights_only=False)["state_dict"]
    assert torch.equal(exported["teacher.weight"], module.teacher.weight)
    here = trainer.test(module, data)["test_loss"].mean
    there = federated_trainer(tmp_path, max_rounds=1)
    fresh = make(Watches)
    fresh.on_train_start()
    last = Path(trainer.log_dir) / "checkpoints" / "last.ckpt"
    assert there.test(fresh, data, ckpt_path=last)["test_loss"].mean == here


@pytest.mark.slow
@pytest.mark.parametrize("module", [Teacher, Taught, Head, LateBuffer])
def test_a_resumed_run_continues(module: type[Linear], tmp_path: Path) -> None:
    (whole, _, second), (_, _, last) = fit_whole_and_resumed(module, tmp_path, optimizer_state="keep")
    assert_same_weights(second, whole, moved=False)
    again = make(module)
    trainer = federated_trainer(tmp_path / "cut", max_rounds=4, optimizer_state="keep", enable_checkpointing=True)
    trainer.fit(again, last.datamodule, ckpt_path="last")
    assert_same_weights(again, whole, moved=False)


def test_an_evaluation_of_a_module_without_the_part_says_so(tmp_path: Path) -> None:
    data = Clients((8, 8))
    trainer = fitted(tmp_path, make(Teacher), data, max_rounds=1, enable_checkpointing=True)
    fresh = make(Teacher)
    with pytest.warns(
        UserWarning, match=r"the checkpoint has 'teacher.weight', 'teacher.bias', made in on_train_start"
    ):
        federated_trainer(tmp_path).validate(fresh, data, ckpt_path="last")
    assert torch.equal(fresh.net.weight, trainer.module.net.weight)  # type: ignore[union-attr]


def test_a_checkpoint_of_another_model_is_refused(tmp_path: Path) -> None:
    class Other(Linear):
        made = True

        def on_train_start(self) -> None:
            if self.made:
                self.head = nn.Linear(1, 1)

    data = Clients((8, 8))
    federated_trainer(tmp_path, max_rounds=1, enable_checkpointing=True).fit(make(Other), data)
    Other.made = False
    with pytest.raises(ConfigurationError, match="'head.weight'"):
        federated_trainer(tmp_path, max_rounds=2).fit(make(Other), data, ckpt_path="last")

    class Larger(Other):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Linear(3, 40)

    Larger.__module__, Larger.__qualname__ = Other.__module__, Other.__qualname__
    with pytest.raises(CheckpointError, match="layout"):
        federated_trainer(tmp_path, max_rounds=2).fit(Larger(), data, ckpt_path="last")


def test_a_module_that_trained_before_starts_as_it_is(tmp_path: Path) -> None:
    module = make(Teacher)
    for rounds in (1, 2):
        federated_trainer(tmp_path, max_rounds=rounds).fit(module, Clients((8, 8)))
    assert module.teacher.weight.shape == (1, 3)


# -- refused ----------------------------------------------------------------------------------------------------------


def test_a_module_without_tensors_may_come_later(tmp_path: Path) -> None:
    adds = linear(on_train_epoch_start=lambda self: setattr(self, "activation", nn.Tanh()))
    own, plain = make(adds), make(Linear)
    for module in (own, plain):
        federated_trainer(tmp_path, max_rounds=2, callbacks=[leave_out([[0, 1]] * 2)]).fit(module, Clients((8, 8)))
    assert_same_weights(own, plain, moved=False)
