"""A round of the engine by itself: no trainer, no callback, no folder."""

import pytest
import torch
from engine_alone import make_loop
from tiny import TinyClients, TinyModule, quiet_trainer, same_bits, weights_of
from torch import Tensor

from lightning_fl.core.cohort import Cohort, Participant
from lightning_fl.core.errors import ConfigurationError, TrainingError
from lightning_fl.engine.hooks import Hooks, overrides
from lightning_fl.engine.learner import Learner, ModelUpdate
from lightning_fl.engine.round.training import train_round
from lightning_fl.engine.weights.flat import Weights
from lightning_fl.strategies import FederatedStrategy

SIZES = (24, 10, 18)


def plain_sgd(module: TinyModule, data: TinyClients, client: int, steps: int) -> list[Tensor]:
    """A client's weights after full-batch gradient descent, by torch alone."""
    x, y = data.client_data(client, "train").tensors
    weight, bias = (value.detach().clone().requires_grad_() for value in module.linear.parameters())
    for _ in range(steps):
        loss = torch.nn.functional.mse_loss(x @ weight.T + bias, y)
        gradients = torch.autograd.grad(loss, (weight, bias))
        with torch.no_grad():
            weight -= 0.05 * gradients[0]
            bias -= 0.05 * gradients[1]
    return [weight.detach(), bias.detach()]


def test_a_round_is_federated_averaging() -> None:
    module, data = TinyModule(), TinyClients(SIZES, batch_size=100, shuffle=False)
    clients = [plain_sgd(module, data, client, 3) for client in range(3)]
    loop = make_loop(module, data, local_steps=3)
    train_round(loop, Cohort.of(range(3)))
    loop.flat.load(loop.federation.models[0])
    for value, parts in zip(module.linear.parameters(), zip(*clients, strict=True), strict=True):
        expected = sum(size / 52 * part.double() for size, part in zip(SIZES, parts, strict=True))
        # Three steps in single precision, a few operations each, on values of at most a few units.
        assert torch.allclose(value.double(), expected, rtol=50 * torch.finfo(torch.float32).eps, atol=1e-6)
    assert {client: report.num_steps for client, report in loop.round.reports.items()} == {0: 3, 1: 3, 2: 3}
    assert loop.round.survivors == {0, 1, 2}


def test_it_is_the_trainers_round_to_the_bit(tmp_path) -> None:
    module = TinyModule(dropout=0.2, norm=True)
    loop = make_loop(module, TinyClients(SIZES), local_steps=4, seed=3)
    for number in range(2):
        loop.federation.current_round = number
        train_round(loop, Cohort.of(range(3)))
    loop.flat.load(loop.federation.models[0])
    settings = {"check_val_every_n_rounds": 0, "default_root_dir": tmp_path}
    trainer = quiet_trainer(max_rounds=2, local_steps=4, seed=3, devices=1, **settings)
    trained = TinyModule(dropout=0.2, norm=True)
    trainer.fit(trained, TinyClients(SIZES))
    assert same_bits(weights_of(module), weights_of(trained))


def test_hooks_hear_of_a_round_in_order() -> None:
    heard: list = []

    class Listener:
        def on_client_start(self, run, client): ...
        def on_client_step_end(self, run, client, steps): ...
        def on_client_end(self, run, client): ...
        def around_training_step(self, run, batch, compute, draws): ...
        def select_collaboration(self, run, weights): ...
        def on_client_data(self, run, client, split, batches): ...
        def correct_gradient_(self, run, turn, gradient, weights): ...

    class Told(Listener):
        def on_client_start(self, run, client):
            heard.append(("start", run, client))

        def on_client_step_end(self, run, client, steps):
            heard.append(("step", client, steps))

        def correct_gradient_(self, run, turn, gradient, weights):
            heard.append(("correction", turn.client, turn.steps))

        def on_client_end(self, run, client):
            heard.append(("end", client))

        def on_client_data(self, run, client, split, batches):
            heard.append(("data", client, split, batches.num_samples))

    loop = make_loop(TinyModule(), TinyClients((30, 10)), hooks=Hooks([Told()], Listener, "here"), local_steps=2)
    assert heard == [("data", 0, "train", 30), ("data", 1, "train", 10)]
    heard.clear()
    train_round(loop, Cohort.of([1, 0]))
    assert heard == [
        (event, *about)
        for client in (1, 0)
        for event, *about in [
            ("start", "here", client),
            *(one for step in (0, 1) for one in (("correction", client, step), ("step", client, step + 1))),
            ("end", client),
        ]
    ]
    assert loop.round.shares == {0: {0: 0.75, 1: 0.25}}


class Halfway(Learner):
    """The server goes half the way, and the loss is doubled."""

    def client_loss(self, loss: Tensor, module: torch.nn.Module) -> Tensor:
        return 2 * loss

    def aggregate(self, update: ModelUpdate) -> Weights:
        moved = update.start.clone()
        for dtype, vector in moved.vectors.items():
            vector.lerp_(update.average.vectors[dtype], 0.5)
        return moved


def test_a_learner_changes_the_loss_and_the_average() -> None:
    """Twice the loss is twice the rate; half the way of the server takes it back in a single step."""
    plain = make_loop(TinyModule(), TinyClients(SIZES), local_steps=1)
    changed = make_loop(TinyModule(), TinyClients(SIZES), learner=Halfway(), local_steps=1)
    for loop in (plain, changed):
        train_round(loop, Cohort.of(range(3)))
    for dtype, vector in plain.federation.models[0].vectors.items():
        other = changed.federation.models[0].vectors[dtype]
        assert torch.allclose(vector, other, rtol=10 * torch.finfo(dtype).eps, atol=1e-7)
    assert [overrides(Halfway(), step, Learner) for step in ("client_loss", "aggregate")] == [True, True]
    assert [overrides(Learner(), step, Learner) for step in ("client_loss", "aggregate")] == [False, False]
    assert issubclass(FederatedStrategy, Learner)


def test_who_fails_is_left_out_or_ends_the_round() -> None:
    class Diverging(TinyModule):
        def training_step(self, batch, batch_idx):
            loss = super().training_step(batch, batch_idx)
            return loss * float("nan") if self.trainer.client == 1 else loss

    loop = make_loop(Diverging(), TinyClients(SIZES), local_steps=1, on_client_error="skip")
    with pytest.warns(match=r"client 1 \(client_1\) is left out of round 1"):
        train_round(loop, Cohort.of(range(3)))
    assert loop.round.survivors == {0, 2}
    loop = make_loop(Diverging(), TinyClients(SIZES), local_steps=1)
    before = loop.federation.models[0]
    with pytest.raises(TrainingError, match=r"client 1 \(client_1\) failed in round 1.*Nothing is lost"):
        train_round(loop, Cohort.of(range(3)))
    assert loop.federation.models[0] is before


def test_a_chooser_of_collaborations_decides_by_itself_who_trains_what() -> None:
    class Base:
        def select_collaboration(self, run, weights): ...

    class Chooser(Base):
        def select_collaboration(self, run, weights):
            return None

    hooks = Hooks([Chooser()], Base)
    loop = make_loop(TinyModule(), TinyClients(SIZES), local_steps=1)
    loop.hooks = hooks
    given = Cohort((Participant(0, model=0), Participant(1, model=0)))
    with pytest.raises(ConfigurationError, match="Chooser "):
        train_round(loop, given)
