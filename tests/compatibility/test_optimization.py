"""Automatic and manual optimisation step as under Lightning's Trainer: weights are compared bit by bit."""

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule
from reference import (
    Clients,
    Linear,
    assert_same_weights,
    federated_trainer,
    fitted,
    leave_out,
    linear,
    make,
    samples,
    train_alike,
    train_both,
    watching,
)
from rounding import assert_equal_up_to_rounding
from torch import Tensor, nn


def _with(optimizer: Any, **options: Any) -> type[Linear]:
    return linear(configure_optimizers=lambda self: optimizer(self.parameters(), **options))


class NeedsClosure(torch.optim.SGD):
    """An optimiser that evaluates the loss itself, as sharpness-aware ones do."""

    def step(self, closure: Any = None) -> Any:
        with torch.enable_grad():
            loss = closure()
        super().step()
        return loss


@pytest.mark.parametrize("state", ["keep", "average"])
def test_no_optimizer_leaves_the_weights(state: str, tmp_path: Path) -> None:
    settings = {"optimizer_state": state}
    own, _, reference, _ = train_both(linear(configure_optimizers=lambda self: None), tmp_path, federated=settings)
    assert_same_weights(own, reference, moved=False)
    assert torch.equal(own.net.weight, make(Linear).net.weight)


# -- accumulation ---------------------------------------------------------------------------------------------------


# -- what training_step returns -------------------------------------------------------------------------------------


class Outputs(Linear):
    """Returns its loss in the way that ``style`` names, and keeps what ``on_train_batch_end`` is given."""

    style = "tensor"

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = self.loss(batch)
        return {"tensor": loss, "dict": {"loss": loss, "extra": batch_idx}}[self.style]

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        assert not outputs["loss"].requires_grad
        self.seen.append({key: float(value) for key, value in outputs.items()})


class Skips(Linear):
    """``None`` for the batches named: no loss, hence no gradient of theirs."""

    skipped: tuple[int, ...] = ()

    def __init__(self) -> None:
        super().__init__()
        self.outputs: list[Any] = []

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return None if batch_idx in self.skipped else self.loss(batch)

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.outputs.append(sorted(outputs))

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)


def test_a_client_without_any_loss_keeps_its_weights(tmp_path: Path) -> None:
    module = make(linear(training_step=lambda *_: None))
    trainer = fitted(tmp_path, module, Clients((4, 4)), max_rounds=2)
    assert torch.equal(module.net.weight, make(Linear).net.weight)
    assert trainer.metrics["train"] == {}


# -- hooks of a step ------------------------------------------------------------------------------------------------


class StepHooks(Linear):
    """Overrides every hook of an optimiser step, notes the order, and changes what the hook is there to change."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        self.calls.append("training_step")
        return self.loss(batch)

    def on_before_zero_grad(self, optimizer: Any) -> None:
        self.calls.append(f"on_before_zero_grad {type(optimizer).__name__}")

    def optimizer_zero_grad(self, epoch: int, batch_idx: int, optimizer: Any) -> None:
        self.calls.append(f"optimizer_zero_grad {epoch} {batch_idx}")
        optimizer.zero_grad(set_to_none=False)

    def on_before_backward(self, loss: Tensor) -> None:
        self.calls.append(f"on_before_backward {float(loss.detach()):.6f}")

    def backward(self, loss: Tensor, *args: Any, **kwargs: Any) -> None:
        self.calls.append("backward")
        (2 * loss).backward(*args, **kwargs)

    def on_after_backward(self) -> None:
        self.calls.append("on_after_backward")

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        self.calls.append(f"on_before_optimizer_step {type(optimizer).__name__}")
        self.net.bias.grad.mul_(0.5)

    def configure_gradient_clipping(
        self, optimizer: Any, gradient_clip_val: Any = None, gradient_clip_algorithm: Any = None
    ) -> None:
        self.calls.append(f"configure_gradient_clipping {gradient_clip_val} {gradient_clip_algorithm == 'value'}")
        self.clip_gradients(optimizer, gradient_clip_val, gradient_clip_algorithm)

    def optimizer_step(self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Any = None) -> None:
        self.calls.append(f"optimizer_step {epoch} {batch_idx}")
        for group in optimizer.param_groups:  # a warm-up
            group["lr"] = self.lr * min(1.0, (self.trainer.global_step + 1) / 4)
        optimizer.step(closure=optimizer_closure)


class SkipsSteps(StepHooks):
    """Steps every other time only; the closure runs alone in between."""

    def optimizer_step(self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Any = None) -> None:
        if batch_idx % 2:
            optimizer_closure()
        else:
            optimizer.step(closure=optimizer_closure)


class StepsLater(StepHooks):
    """Runs the closure itself, looks at the gradients, then steps."""

    def optimizer_step(self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Any = None) -> None:
        optimizer_closure()
        self.net.weight.grad.mul_(3.0)
        optimizer.step()


# -- manual optimisation --------------------------------------------------------------------------------------------


class Adversaries(LightningModule):
    """Two networks, two optimisers, two schedulers stepped by hand, as a GAN has them."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.generator, self.critic = nn.Linear(3, 1), nn.Linear(1, 1)
        self.frozen: list[bool] = []
        self.rates: list[list[float]] = []
        self.before_steps = 0

    def training_step(self, batch: Any, batch_idx: int) -> dict[str, Tensor]:
        x, y = batch
        first, second = self.optimizers()
        self.toggle_optimizer(first)
        self.frozen.append(self.critic.weight.requires_grad)
        made = nn.functional.softplus(-self.critic(self.generator(x))).mean()
        first.zero_grad()
        self.manual_backward(made)
        self.clip_gradients(first, gradient_clip_val=0.5, gradient_clip_algorithm="norm")
        first.step()
        self.untoggle_optimizer(first)

        with self.toggled_optimizer(second):
            self.frozen.append(self.generator.weight.requires_grad)
            judged = nn.functional.softplus(self.critic(self.generator(x).detach())) + nn.functional.softplus(
                -self.critic(y)
            )
            second.zero_grad()
            self.manual_backward(judged.mean())
            second.step()
        return {"loss": made}

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        self.before_steps += 1

    def on_train_epoch_end(self) -> None:
        for scheduler in self.lr_schedulers():
            scheduler.step()
        self.rates.append([scheduler.get_last_lr()[0] for scheduler in self.lr_schedulers()])

    def configure_optimizers(self) -> Any:
        first = torch.optim.Adam(self.generator.parameters(), lr=0.05)
        second = torch.optim.SGD(self.critic.parameters(), lr=0.1, momentum=0.9)
        step = torch.optim.lr_scheduler.StepLR
        return [first, second], [step(first, 2, gamma=0.5), step(second, 1, gamma=0.9)]


def test_schedulers_stepped_by_hand_go_on_with_fresh_optimizers(tmp_path: Path) -> None:
    own, _, reference, _ = train_both(Adversaries, tmp_path, federated={"optimizer_state": "fresh"})
    assert own.rates == reference.rates


class ManualPlateau(Linear):
    """Steps a plateau scheduler by hand with its own loss: what Lightning would watch, it need not be told."""

    def __init__(self, options: dict[str, Any] | None = None) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.options = options
        self.rates: list[float] = []

    def training_step(self, batch: Any, batch_idx: int) -> None:
        optimizer = self.optimizers()
        optimizer.zero_grad()
        loss = self.loss(batch)
        self.manual_backward(loss)
        optimizer.step()
        self.lr_schedulers().step(loss.detach())
        self.rates.append(optimizer.param_groups[0]["lr"])

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.05)
        scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, mode="max", patience=0, factor=0.5)
        return [optimizer], [scheduler if self.options is None else {"scheduler": scheduler} | self.options]


@pytest.mark.parametrize("option", [{"monitor": "train_loss"}, {"strict": False}, {"reduce_on_plateau": True}])
def test_what_a_scheduler_stepped_by_hand_does_not_heed_is_warned_of(option: dict[str, Any], tmp_path: Path) -> None:
    with pytest.warns(RuntimeWarning, match=f"{next(iter(option))}.*but the keys will be ignored"):
        federated_trainer(tmp_path, max_rounds=1).fit(make(lambda: ManualPlateau(option)), Clients())


class ManualHooks(Linear):
    """One optimiser by hand, accumulating two batches, with its own backward."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.calls: list[str] = []

    def training_step(self, batch: Any, batch_idx: int) -> None:
        optimizer = self.optimizers()
        self.manual_backward(self.loss(batch) / 2)
        if batch_idx % 2 == 1:
            optimizer.step()
            optimizer.zero_grad()

    def backward(self, loss: Tensor, *args: Any, **kwargs: Any) -> None:
        (3 * loss).backward(*args, **kwargs)


_MANUAL_HOOKS = "on_before_backward backward on_after_backward on_before_optimizer_step on_train_batch_end"


def _note_manual(self: Any, hook: str, *arguments: Any) -> None:
    self.calls.append(f"{hook} {sorted(arguments[0])}" if hook == "on_train_batch_end" else hook)


class ManualClosure(ManualHooks):
    """Hands a closure to ``optimizer.step``."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:  # type: ignore[override]
        optimizer = self.optimizers()
        losses = []

        def closure() -> Tensor:
            loss = self.loss(batch)
            optimizer.zero_grad()
            self.manual_backward(loss)
            losses.append(loss)
            return loss

        optimizer.step(closure=closure)
        return losses[-1]


def _skips(*skipped: int) -> type[Any]:
    return linear("Skipping", Skips, skipped=skipped)


def _step_again(self: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
    if batch_idx == 1:
        self.optimizers(use_pl_optimizer=False).step()


def _steps_itself(optimizer: Any, **options: Any) -> type[Any]:
    """Takes a step of its own between those of the trainer: both see one momentum."""
    return linear("StepsTwice", _with(optimizer, lr=0.05, **options), on_train_batch_end=_step_again)


def _moves(kind: Any, hook: str) -> type[Any]:
    """Puts clamped copies of the parameters in their place, as a critic of a Wasserstein GAN does."""

    def clamp(self: Any, *_: Any) -> None:
        for parameter in self.parameters():
            parameter.data = parameter.data.clamp(-0.2, 0.2)

    return linear("Moves", _with(kind, lr=0.05), **{hook: clamp})


def _normalises(self: Any) -> None:
    whole = nn.utils.parameters_to_vector(self.parameters())
    nn.utils.vector_to_parameters(whole / whole.norm(), self.parameters())


_CLIPPED = {"gradient_clip_val": 0.3, "gradient_clip_algorithm": "value"}
_EPOCHS = {"federated": {"max_rounds": 1, "local_epochs": 3}, "lightning": {"max_epochs": 3}}
_STOPS = linear(on_train_batch_start=lambda self, batch, batch_idx: -1 if batch_idx == 2 else None)
_MANUAL = [watching(kind, _MANUAL_HOOKS.split(), _note_manual) for kind in (ManualHooks, ManualClosure)]
#: Name -> module, compared attributes, and options of both trainers.
_CASES: dict[str, tuple[Any, tuple[str, ...], dict[str, Any]]] = {
    "SGD": (_with(torch.optim.SGD, lr=0.05, momentum=0.9, weight_decay=0.01), (), {}),
    "Adam": (_with(torch.optim.Adam, lr=0.05), (), {}),
    "AdamW": (_with(torch.optim.AdamW, lr=0.05), (), {}),
    "LBFGS": (_with(torch.optim.LBFGS, lr=0.5, max_iter=3), (), {}),
    "needs a closure": (_with(NeedsClosure, lr=0.05), (), {}),
    "its own steps by SGD": (_steps_itself(torch.optim.SGD, momentum=0.9), (), {}),
    "its own steps by Adam": (_steps_itself(torch.optim.Adam), (), {}),
    # Three batches and two per step: the third steps alone, and its gradient is not added to the next epoch's.
    "accumulation restarts in every local epoch": (Linear, (), {"accumulate_grad_batches": 2, **_EPOCHS}),
    "a batch hook ends the epoch": (_STOPS, (), {}),
    "every hook of a step": (StepHooks, ("calls",), {"accumulate_grad_batches": 2, **_CLIPPED}),
    "steps every other time": (SkipsSteps, ("calls",), _CLIPPED),
    "steps after its closure": (StepsLater, ("calls",), _CLIPPED),
    "two by hand": (Adversaries, ("frozen", "rates", "before_steps"), {}),
    "a plateau by hand needs no monitor": (ManualPlateau, ("rates",), {}),
    "manual hooks": (_MANUAL[0], ("calls",), {"data": Clients((16,))}),
    "manual closure": (_MANUAL[1], ("calls",), {}),
}
_CASES["normalises the whole model"] = (linear(on_train_epoch_start=_normalises), (), {})
for _kind in (torch.optim.SGD, torch.optim.Adam):
    for _hook in ("on_train_epoch_start", "on_train_batch_start", "on_after_backward", "on_train_batch_end"):
        _CASES[f"{_kind.__name__} of what {_hook} moves"] = (_moves(_kind, _hook), (), {})
for _size in (8, 10, 20):
    _CASES[f"accumulation of {_size}"] = (Linear, (), {"data": Clients((_size,)), "accumulate_grad_batches": 2})
for _value, _algorithm in ((0.1, None), (0.1, "norm"), (0.05, "value")):
    _clip = {"gradient_clip_val": _value, "gradient_clip_algorithm": _algorithm}
    _CASES[f"clipped at {_value} by {_algorithm}"] = (Linear, (), _clip)
for _accumulate in (1, 2):
    for _style in ("tensor", "dict"):
        _outputs = linear("Outputs", Outputs, style=_style)
        _CASES[f"{_style}, {_accumulate}"] = (_outputs, ("seen",), {"accumulate_grad_batches": _accumulate})
    for _skipped in ((0,), (1,), (2,), (0, 3), (4,)):
        _options = {"data": Clients((20,)), "accumulate_grad_batches": _accumulate}
        _CASES[f"skips {_skipped}, {_accumulate}"] = (_skips(*_skipped), ("outputs",), _options)


@pytest.mark.parametrize(("module", "compared", "options"), _CASES.values(), ids=_CASES)
def test_steps_are_lightnings(module: Any, compared: tuple[str, ...], options: dict[str, Any], tmp_path: Path) -> None:
    train_alike(module, tmp_path, *compared, **options)


def test_fresh_optimizers_forget_momentum_between_rounds(tmp_path: Path) -> None:
    module = _with(torch.optim.SGD, lr=0.05, momentum=0.9)
    train_alike(module, tmp_path, epochs=1, federated={"optimizer_state": "fresh"})
    own, _, reference, _ = train_both(module, tmp_path, federated={"optimizer_state": "fresh"})
    assert not torch.equal(own.net.weight, reference.net.weight)


class ReadsItsState(Linear):
    """Notes what its optimiser knows at the end of an epoch, and makes it forget that in the second."""

    def __init__(self) -> None:
        super().__init__()
        self.known: list[float] = []

    def on_train_epoch_end(self) -> None:
        state = self.optimizers().optimizer.state
        self.known.append(sum(float(one["exp_avg"].sum()) for one in state.values()))
        if self.current_epoch == 1:
            state.clear()

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), lr=0.05)


def test_the_end_of_an_epoch_sees_and_sets_the_state(tmp_path: Path) -> None:
    train_alike(ReadsItsState, tmp_path, "known")


def test_clipping_changes_the_weights(tmp_path: Path) -> None:
    clipped, free = (train_alike(Linear, tmp_path, gradient_clip_val=value) for value in (0.05, None))
    assert not torch.equal(free.net.weight, clipped.net.weight)


def test_networks_trained_by_hand_end_unfrozen_with_a_loss(tmp_path: Path) -> None:
    own, trainer, *_ = train_both(Adversaries, tmp_path)
    assert own.critic.weight.requires_grad
    assert own.frozen == [False, False] * 9
    assert len(set(map(tuple, own.rates))) == 3
    assert trainer.client_states[0].global_step == own.before_steps == 18
    assert trainer.metrics["train"]["train/loss"].mean > 0


# -- several clients ------------------------------------------------------------------------------------------------


def _by_hand(sizes: list[int], cohorts: list[list[int]], momentum: float) -> tuple[Tensor, Tensor]:
    """FedAvg written anew: every client's own momentum, full batches in order, weights averaged by samples."""
    start = make(Linear)
    weight, bias = start.net.weight.detach().double(), start.net.bias.detach().double()
    velocity: dict[int, list[Tensor]] = {}
    for cohort in cohorts:
        results = []
        for client in cohort:
            own = [weight.clone().requires_grad_(), bias.clone().requires_grad_()]
            x, y = (tensor.double() for tensor in samples(client, sizes[client]).tensors)
            for begin in range(0, sizes[client], 4):
                rows = slice(begin, begin + 4)
                loss = (x[rows] @ own[0].T + own[1] - y[rows]).square().mean()
                gradients = torch.autograd.grad(loss, own)
                last = velocity.get(client)
                velocity[client] = (
                    list(gradients)
                    if last is None
                    else [momentum * v + g for v, g in zip(last, gradients, strict=True)]
                )
                own = [(w - 0.05 * v).detach().requires_grad_() for w, v in zip(own, velocity[client], strict=True)]
            results.append((sizes[client], own))
        total = sum(size for size, _ in results)
        weight = sum(size * own[0].detach() for size, own in results) / total  # type: ignore[assignment]
        bias = sum(size * own[1].detach() for size, own in results) / total  # type: ignore[assignment]
    return weight, bias


def test_every_client_keeps_its_own_optimizer_state(tmp_path: Path, three_clients: Clients) -> None:
    cohorts = [[0, 1, 2], [0, 2], [1, 2]]
    module = make(_with(torch.optim.SGD, lr=0.05, momentum=0.9))
    trainer = federated_trainer(tmp_path, max_rounds=3, optimizer_state="keep", callbacks=[leave_out(cohorts)])
    trainer.fit(module, three_clients)
    weight, bias = _by_hand([8, 4, 12], cohorts, 0.9)
    assert_equal_up_to_rounding(module.net.weight, weight, steps=3 * 3)
    assert_equal_up_to_rounding(module.net.bias, bias, steps=3 * 3)
