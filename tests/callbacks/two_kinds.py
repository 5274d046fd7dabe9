"""Clients of two kinds, and short runs of theirs: what callbacks that form coalitions are tried on."""

import torch
from tiny import TinyClients
from torch.utils.data import TensorDataset

from lightning_fl import FederatedTrainer

SIZES = (16, 8, 24, 8, 16)


class TwoKinds(TinyClients):
    """Clients 0, 1, 2 share one target function, 3 and 4 its negative."""

    def __init__(self, sizes: tuple[int, ...] = SIZES) -> None:
        super().__init__(sizes, batch_size=8, shuffle=False)
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
