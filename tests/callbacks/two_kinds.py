"""Clients of two kinds for callbacks that form coalitions: short runs, and the same training as a plain loop."""

import copy

import torch
from rounding import assert_equal_up_to_rounding
from tiny import TinyClients, TinyModule
from torch.utils.data import TensorDataset

from lightning_fl import FederatedTrainer

SIZES = (16, 8, 24, 8, 16)
KINDS = [0, 0, 0, 1, 1]


class TwoKinds(TinyClients):
    """Clients 0, 1, 2 share one target function, 3 and 4 its negative."""

    def __init__(self, sizes: tuple[int, ...] = SIZES, shuffle: bool = False) -> None:
        super().__init__(sizes, batch_size=8, shuffle=shuffle)
        for (client, split), data in list(self.sets.items()):
            x, draws = data.tensors[0] - 0.3 * client, torch.Generator().manual_seed(client)
            sign = 1.0 if client < 3 else -1.0
            y = sign * x @ torch.tensor([[1.0], [-2.0], [0.5]]) + 0.05 * torch.randn(len(x), 1, generator=draws)
            self.sets[client, split] = TensorDataset(x, y)


def trainer(*callbacks, rounds=3, root=None, **settings):
    return FederatedTrainer(
        callbacks=list(callbacks),
        max_rounds=rounds,
        enable_progress_bar=False,
        default_root_dir=root,
        **{"local_epochs": 1, "seed": 3, "enable_checkpointing": False, "logger": False, **settings},
    )


def weights_of(run, client):
    return run.client_model(client).vectors[torch.float32]


def flat(module):
    return torch.cat([parameter.detach().flatten() for parameter in module.parameters()])


def loaded(run, client):
    """A client's parameters, without the padding between them."""
    run.loop.flat.load(run.client_model(client))
    return flat(run.module)


def assert_clients_have(run, expected, steps):
    for client, vector in enumerate(expected):
        assert_equal_up_to_rounding(loaded(run, client), vector, steps=steps)


def fresh_models():
    return [copy.deepcopy(TinyModule()) for _ in SIZES]


def train_all(models, data, epochs=1):
    """Every client's epochs of SGD by itself; returns the parameters that each ends with."""
    for client, model in enumerate(models):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        x, y = data.sets[client, "train"].tensors
        for _ in range(epochs):
            for begin in range(0, len(x), data.batch_size):
                optimizer.zero_grad()
                part = slice(begin, begin + data.batch_size)
                torch.nn.functional.mse_loss(model(x[part]), y[part]).backward()
                optimizer.step()
    return [flat(model) for model in models]


def share_average(models, ends, members):
    """The members' models become the average by samples of what they ended with."""
    total = sum(SIZES[client] for client in members)
    average = sum(SIZES[client] / total * ends[client] for client in members)
    for client in members:
        torch.nn.utils.vector_to_parameters(average.clone(), models[client].parameters())
