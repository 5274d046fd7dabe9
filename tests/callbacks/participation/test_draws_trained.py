"""A client that is drawn several times trains as often."""

from typing import Any

import pytest
import torch
from tiny import TinyClients, TinyModule, quiet_trainer, weights_of
from torch import Tensor

from lightning_fl import ConfigurationError, FederatedTrainer
from lightning_fl.callbacks import Callback, DROClientSampling
from lightning_fl.core.cohort import Cohort, Participant
from lightning_fl.strategies import Ditto


def run(
    *callbacks: Callback, rounds: int = 3, batch_size: int = 100, module: Any = None, **settings: Any
) -> FederatedTrainer:
    trainer = quiet_trainer(*callbacks, max_rounds=rounds, **{"local_steps": 2, **settings})
    trainer.fit(module or TinyModule(), TinyClients(batch_size=batch_size, shuffle=batch_size < 100))
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


def test_the_personal_model_of_every_draw_has_batches_of_its_own() -> None:
    class Watched(TinyModule):
        def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
            steps.append(batch[0].tolist())
            return super().training_step(batch, batch_idx)

    steps: list[Any] = []
    run(Draws(0, 1), rounds=1, batch_size=4, module=Watched(), strategy=Ditto())
    turns = [steps[begin : begin + 2] for begin in range(0, len(steps), 2)]
    assert len(turns) == 4  # of either draw, one for the shared model and one for the personal one
    assert all(one not in turns[:number] for number, one in enumerate(turns))


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
