"""Optimisers and schedulers that a module makes in its ``__init__``: still each client's own."""

from collections.abc import Callable
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
    samples,
    train_both,
)
from torch.optim import lr_scheduler

from lightning_fl.core.errors import ConfigurationError


class Held(Linear):
    """An optimiser from ``__init__``."""

    def __init__(self) -> None:
        super().__init__()
        self.optimizer = self.made()

    def made(self) -> Any:
        return torch.optim.Adam(self.parameters(), lr=0.05)

    def configure_optimizers(self) -> Any:
        return self.optimizer


def _held(make_optimizer: Callable[[Any], Any]) -> type[Any]:
    return linear("Held", Held, made=lambda self: make_optimizer(self.parameters()))


def _with_frozen(self: Any) -> Any:
    self.net.bias.requires_grad_(False)
    return torch.optim.Adam(self.parameters(), lr=0.05)


class Counting(torch.optim.SGD):
    """Slows down by a count of its own, which is no part of its state, and has another optimiser inside."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, lr=0.1)
        self.count = 0
        self.inner = torch.optim.SGD(self.param_groups[0]["params"], lr=0.05, momentum=0.9)

    def step(self, closure: Any = None) -> Any:
        loss = closure()
        self.count += 1
        self.param_groups[0]["lr"] = 0.1 / self.count
        self.inner.step()
        super().step()
        return loss


class HeldScheduler(Held):
    def __init__(self) -> None:
        super().__init__()
        self.scheduler = self.made_scheduler()

    def made(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)

    def made_scheduler(self) -> Any:
        return lr_scheduler.StepLR(self.optimizer, 1, 0.5)

    def configure_optimizers(self) -> Any:
        return [self.optimizer], [self.scheduler]


def _sequence(self: Any) -> Any:
    first = lr_scheduler.LinearLR(self.optimizer, 0.1, total_iters=2)
    second = lr_scheduler.ExponentialLR(self.optimizer, 0.5)
    return lr_scheduler.SequentialLR(self.optimizer, [first, second], milestones=[2])


class ByHand(Held):
    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> None:
        optimizer = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(self.loss(batch))
        optimizer.step()


CASES: dict[str, type[Any]] = {
    "Adam": Held,
    "frozen": linear("WithFrozen", Held, made=_with_frozen),
    "Adadelta": _held(lambda parameters: torch.optim.Adadelta(parameters, lr=1.0)),
    # Its constructor fills the state.
    "Adagrad": _held(lambda parameters: torch.optim.Adagrad(parameters, lr=0.1, initial_accumulator_value=0.1)),
    "LBFGS": _held(lambda parameters: torch.optim.LBFGS(parameters, lr=0.1, max_iter=3)),
    "own kind": _held(Counting),
    "scheduler": HeldScheduler,
    "sequence": linear("HeldSequence", HeldScheduler, made_scheduler=_sequence),
    # A new scheduler at each call, over the optimiser from ``__init__``.
    "new scheduler": linear(
        "NewScheduler", HeldScheduler, configure_optimizers=lambda self: ([self.optimizer], [self.made_scheduler()])
    ),
    "by hand": ByHand,
}


def equal_clients(num_clients: int = 2) -> Clients:
    """Clients with the same data in the same order."""
    return Clients([12] * num_clients, data=lambda _, split: samples(0, 12 if split == "train" else 5, split))


def _keep_end(self: Any) -> None:
    values = [value.clone() for value in self.state_dict().values()]
    self.trainer.federated.client_store("ends")[self.trainer.client] = values


@pytest.mark.slow
@pytest.mark.parametrize("state", ["fresh", "keep"])
@pytest.mark.parametrize("case", CASES)
def test_equal_clients_learn_the_same(case: str, state: Any, tmp_path: Path) -> None:
    trainer = federated_trainer(tmp_path, max_rounds=3, optimizer_state=state)
    module = make(linear("Module", CASES[case], on_train_epoch_end=_keep_end))
    trainer.fit(module, equal_clients())
    first, second = (trainer.client_store("ends")[client] for client in (0, 1))
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("state", ["fresh", "keep"])
@pytest.mark.parametrize("case", CASES)
def test_the_order_of_clients_does_not_matter(case: str, state: Any, tmp_path: Path) -> None:
    modules = [make(CASES[case]), make(CASES[case])]
    orders = [[0, 1, 2], [0, 1], [0, 1, 2]], [[2, 0, 1], [1, 0], [2, 0, 1]]
    for module, cohorts in zip(modules, orders, strict=True):
        trainer = federated_trainer(tmp_path, max_rounds=3, optimizer_state=state, callbacks=[leave_out(cohorts)])
        trainer.fit(module, Clients((8, 8, 8)))
    assert_same_weights(modules[0], modules[1], moved=False)


@pytest.mark.slow
@pytest.mark.parametrize("case", [case for case in CASES if case != "own kind"])
def test_one_client_is_lightnings_run(case: str, tmp_path: Path) -> None:
    """Without the own kind: no ``state_dict`` holds its count and its inner optimiser."""
    own, _, reference, _ = train_both(CASES[case], tmp_path)
    assert_same_weights(own, reference, atol=2**-46)


@pytest.mark.slow
@pytest.mark.parametrize("state", ["fresh", "keep"])
@pytest.mark.parametrize("case", CASES)
def test_a_second_fit_starts_as_the_first(case: str, state: Any, tmp_path: Path) -> None:
    module = make(CASES[case])
    start = {name: value.clone() for name, value in module.state_dict().items()}
    ends = []
    for _ in range(2):
        module.load_state_dict(start)
        federated_trainer(tmp_path, max_rounds=2, optimizer_state=state).fit(module, Clients((8, 8)))
        ends.append({name: value.clone() for name, value in module.state_dict().items()})
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in start)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [HeldScheduler, Held])
def test_a_resumed_run_continues(kind: type[Held], tmp_path: Path) -> None:
    (whole, _, second), _ = fit_whole_and_resumed(kind, tmp_path, optimizer_state="keep")
    assert_same_weights(second, whole, moved=False)


def test_an_optimiser_that_comes_back_later_is_refused(tmp_path: Path) -> None:
    class Late(Linear):
        def __init__(self) -> None:
            super().__init__()
            self.calls, self.kept = 0, None

        def configure_optimizers(self) -> Any:
            self.calls += 1
            if self.calls == 2:
                self.kept = torch.optim.SGD(self.parameters(), lr=0.1)
            return self.kept or torch.optim.SGD(self.parameters(), lr=0.1)

    with pytest.raises(
        Exception, match=r"configure_optimizers returned the SGD of an earlier turn, which it had not returned at first"
    ) as caught:
        federated_trainer(tmp_path, max_rounds=1).fit(Late(), Clients((4, 4, 4)))
    assert isinstance(caught.value.__cause__, ConfigurationError)


def test_a_failed_turn_leaves_nothing_in_the_optimiser(tmp_path: Path) -> None:
    class Fails(Held):
        fails = True

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            if self.fails and self.trainer.client == 0 and batch_idx == 2:
                raise ValueError("no")
            return super().training_step(batch, batch_idx)

    module, alone = make(Fails), make(Held)
    federated_trainer(tmp_path, max_rounds=1, on_client_error="skip").fit(module, Clients((12, 12)))
    federated_trainer(tmp_path, max_rounds=1, callbacks=[leave_out([[1]])]).fit(alone, Clients((12, 12)))
    assert_same_weights(module, alone, moved=False)


def test_nothing_is_shared_with_the_saved_state(tmp_path: Path) -> None:
    """The state that a client keeps is not changed by another client's steps."""
    module = make(Held)
    trainer = fitted(tmp_path, module, Clients((4, 12)), max_rounds=2, optimizer_state="keep")
    steps = [trainer.federation.client_states[client].optimizers[0]["state"][0]["step"] for client in (0, 1)]
    assert [int(step) for step in steps] == [2, 6]
    assert not module.optimizer.state  # as it was before the run
