"""A client that is drawn several times trains as often; all clients by lambda, and with equal weights."""

from typing import Any

import pytest
import torch
from tiny import TinyClients, TinyModule, weights_of
from torch import Tensor

from lightning_fl import ConfigurationError, FederatedTrainer
from lightning_fl.callbacks import Callback, DROClientSampling
from lightning_fl.core.cohort import Cohort, Participant
from lightning_fl.functional import project_simplex


def run(*callbacks: Callback, rounds: int = 3, batch_size: int = 100, **settings: Any) -> FederatedTrainer:
    trainer = FederatedTrainer(
        max_rounds=rounds,
        callbacks=list(callbacks),
        **{"local_steps": 2, "enable_progress_bar": False, "logger": False, **settings},
    )
    trainer.fit(TinyModule(), TinyClients(batch_size=batch_size, shuffle=batch_size < 100))
    return trainer


class Draws(Callback):
    """Client 1 alone, some number of times; what each turn ended with."""

    role = "participation"

    def __init__(self, *draws: int) -> None:
        self.draws = draws
        self.ends: list[Tensor] = []

    def select_clients(self, trainer: FederatedTrainer) -> Cohort:
        return Cohort(tuple(Participant(1, 0, 1.0, draw=draw) for draw in self.draws))

    def on_client_end(self, trainer: FederatedTrainer, client: int) -> None:
        self.ends.append(next(iter(trainer.client_weights().vectors.values())).clone())


def test_every_draw_starts_alike_and_has_batches_of_its_own() -> None:
    """The first draw is the turn there is without others, and the model the mean of both."""
    both, first, second = Draws(0, 1), Draws(0), Draws(1)
    trained = run(both, rounds=1, batch_size=4)
    run(first, rounds=1, batch_size=4)
    run(second, rounds=1, batch_size=4)
    assert torch.equal(both.ends[0], first.ends[0])
    assert torch.equal(both.ends[1], second.ends[0])
    assert not torch.equal(*both.ends)
    (model,) = trained.models[0].vectors.values()
    torch.testing.assert_close(model, (both.ends[0] + both.ends[1]) / 2)


def test_draws_of_all_the_same_data_are_one_turn() -> None:
    """Full batches: a second draw has nothing of its own."""
    twice, once = run(Draws(0, 1)), run(Draws(0))
    for learned, expected in zip(weights_of(twice.module), weights_of(once.module), strict=True):
        torch.testing.assert_close(learned, expected)
    # one model down, one up for each turn
    assert twice.communication.bytes_sent[1] == 2 * once.communication.bytes_sent[1]
    assert twice.communication.bytes_received[1] == once.communication.bytes_received[1]


def test_a_round_of_n_draws_has_n_turns() -> None:
    class Turns(Callback):
        count = 0

        def on_client_start(self, trainer: FederatedTrainer, client: int) -> None:
            self.count += 1

    turns = Turns()
    run(DROClientSampling(step_size=0.1), turns, rounds=8)
    assert turns.count == 8 * 3


@pytest.mark.parametrize("draw", [-1, 1])
def test_a_draw_names_its_model(draw: int) -> None:
    with pytest.raises(ConfigurationError, match=f"client 2 .*draw={draw}"):
        Participant(2, draw=draw)


def test_all_clients_by_lambda_equal_a_plain_loop() -> None:
    """w is the mean of what clients learn by lambda, and lambda ascends all losses at the mean of the snapshots."""
    steps, step_size, rate = 3, 0.05, 0.05
    data = TinyClients(batch_size=100, shuffle=False)
    sampling = DROClientSampling(cohort="all", step_size=step_size)
    trainer = run(sampling, rounds=4, local_steps=steps)

    start = TinyModule()
    w = torch.cat([start.linear.weight.detach().double(), start.linear.bias.detach().double()[None]], 1)
    weights = torch.full((3,), 1 / 3, dtype=torch.float64)

    def gradient(client: int, w: Tensor) -> tuple[Tensor, float]:
        x, y = (tensor.double() for tensor in data.sets[client, "train"].tensors)  # type: ignore[attr-defined]
        x = torch.cat([x, torch.ones(len(x), 1, dtype=torch.float64)], 1)
        residual = x @ w.T - y
        return 2 * residual.T @ x / len(x), float(residual.square().mean())

    for trainer.current_round in range(4):
        t = int(torch.randint(1, steps + 1, (), generator=trainer.generator("snapshot")))
        ends, snapshots = torch.zeros_like(w), torch.zeros_like(w)
        for client, weight in enumerate(weights.tolist()):
            own = w.clone()
            for step in range(1, steps + 1):
                own = own - rate * gradient(client, own)[0]
                snapshots += weight * own if step == t else 0
            ends += weight * own
        losses = torch.tensor([gradient(client, snapshots)[1] for client in range(3)], dtype=torch.float64)
        w, weights = ends, project_simplex(weights + step_size * steps * losses)
    torch.testing.assert_close(sampling.weights, weights, rtol=1e-4, atol=1e-6)
    module = trainer.module
    assert isinstance(module, TinyModule)
    learned = torch.cat([module.linear.weight, module.linear.bias[None]], 1).detach().double()
    torch.testing.assert_close(learned, w, rtol=1e-4, atol=1e-5)
