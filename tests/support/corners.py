"""Clients of two kinds with four classes: a few weights, a few steps, and tiers that can tell the kinds apart."""

import copy
from typing import Any

import torch
from lightning.pytorch import LightningModule
from tiny import quiet_trainer
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

from lightning_fl import FederatedDataModule, FederatedTrainer
from lightning_fl.callbacks import BiddingPolicy, Callback
from lightning_fl.callbacks.rewards.bidding import BidView
from lightning_fl.data.module import Split

CORNERS = torch.tensor([[2.0, 2.0], [-2.0, 2.0], [-2.0, -2.0], [2.0, -2.0]])
#: Clients with even numbers have the classes 0 and 1 in five of six samples, the others 2 and 3.
SIZES = (24, 18, 12, 24, 18, 12)


class MixedClients(FederatedDataModule):
    """Two kinds of clients; ``with_val`` names those that have validation samples, ``pure`` ones are of one kind."""

    def __init__(self, sizes: tuple[int, ...] = SIZES, with_val: Any = None, pure: bool = False) -> None:
        super().__init__(batch_size=6, shuffle=False)
        self.sizes = sizes
        self.sets: dict[tuple[int, str], TensorDataset] = {}
        for client, size in enumerate(sizes):
            for place, split in enumerate(("train", "val", "test")):
                if split == "val" and with_val is not None and client not in with_val:
                    continue
                draws = torch.Generator().manual_seed(100 * client + place)
                count = size if split == "train" else 12
                own = ((torch.arange(count) % 6 > 0) | pure).long()  # five of six are of the client's own kind
                kind = torch.where(own == 1, client % 2, 1 - client % 2)
                labels = 2 * kind + torch.randint(0, 2, (count,), generator=draws)
                x = CORNERS[labels] + torch.randn(count, 2, generator=draws)
                self.sets[client, split] = TensorDataset(x, labels)

    @property
    def num_clients(self) -> int:
        return len(self.sizes)

    def client_data(self, client: int, split: Split) -> TensorDataset | None:
        return self.sets.get((client, split))


class CornerModule(LightningModule):
    """Which corner a point belongs to."""

    def __init__(self, learning_rate: float = 0.1) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.linear = nn.Linear(2, 4)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x)

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        return cross_entropy(self(batch[0]), batch[1])

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        logits = self(batch[0])
        self.log("val/loss", cross_entropy(logits, batch[1]))
        self.log("val/acc", (logits.argmax(1) == batch[1]).float().mean())

    def test_step(self, batch: list[Tensor], batch_idx: int) -> None:
        self.log("test/acc", (self(batch[0]).argmax(1) == batch[1]).float().mean())

    def predict_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        return self(batch[0]).softmax(1)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=self.hparams["learning_rate"])


class Manual(CornerModule):
    """Optimises manually."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False


class Network(CornerModule):
    """Random weights, two layers: the first models differ in what they are good at."""

    def __init__(self, frozen: bool = False) -> None:
        super().__init__()
        draws = torch.Generator().manual_seed(7)
        self.linear = nn.Sequential(nn.Linear(2, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4))  # type: ignore[assignment]
        with torch.no_grad():
            for parameter in self.linear.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=draws))
        if frozen:
            self.linear[0].requires_grad_(False)


class Silent(BiddingPolicy):
    """Never bids."""

    def bid(self, view: BidView, generator: torch.Generator) -> list[int]:
        return []


class Greedy(BiddingPolicy):
    """Bids for every tier, whatever it is worth and costs, and keeps what it saw."""

    def __init__(self) -> None:
        self.views: list[BidView] = []

    def bid(self, view: BidView, generator: torch.Generator) -> list[int]:
        self.views.append(view)
        return sorted(range(view.num_tiers), key=lambda k: (-view.past_rewards[k], -view.importance[k], k))


class Leaving(Callback):
    """Rounds, counted from 1, in which clients are away."""

    def __init__(self, away: dict[int, set[int]]) -> None:
        self.away = away

    def on_round_start(self, trainer: FederatedTrainer) -> None:
        turn = trainer.current_round + 1
        trainer.absent_clients = {client for client, turns in self.away.items() if turn in turns}


class FailingTurns(Callback):
    """Turns (round, client, model) that raise; the model is None where clients train the one they use."""

    def __init__(self, *turns: tuple[int, int, int | None]) -> None:
        self.turns = set(turns)

    def on_client_start(self, trainer: FederatedTrainer, client: int) -> None:
        assert trainer.participant is not None
        if (trainer.current_round + 1, client, trainer.participant.model) in self.turns:
            raise RuntimeError("no disk")


def fit(
    *callbacks: Callback, data: Any = None, module: Any = None, ckpt: Any = None, **settings: Any
) -> FederatedTrainer:
    run = quiet_trainer(*callbacks, **({"max_rounds": 3, "local_steps": 2, "seed": 4} | settings))
    run.fit(module or CornerModule(), data or MixedClients(), ckpt_path=ckpt)
    return run


def plain_training(start: nn.Module, data: MixedClients, client: int, batches: int = 2) -> nn.Module:
    """SGD on the client's first batches of six, in its samples' order."""
    module = copy.deepcopy(start)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    x, y = data.sets[client, "train"].tensors
    length = -(-len(x) // 6)
    for number in range(batches):
        part = slice(number % length * 6, (number % length + 1) * 6)
        optimizer.zero_grad()
        nn.functional.cross_entropy(module(x[part]), y[part]).backward()
        optimizer.step()
    return module


def accuracy(run: FederatedTrainer, data: MixedClients, client: int, model: Any, split: str = "train") -> float:
    """Of some weights on one client's samples."""
    run.loop.flat.load(model)
    x, y = data.sets[client, split].tensors
    with torch.no_grad():
        return float((run.module(x).argmax(1) == y).double().mean())  # type: ignore[misc]
