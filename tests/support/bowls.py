"""Clients whose losses are bowls, a (w - c)² / 2 in each direction: plain loops say what a run must come to."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule
from tiny import quiet_trainer
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from lightning_fl import Collaboration, FederatedDataModule, FederatedTrainer
from lightning_fl.callbacks import Callback

#: The step of every client's plain gradient descent.
RATE = 0.1
#: A client: its samples, its curvature and the bottom of its bowl.
Bowl = tuple[int, float, Sequence[float]]
#: The two clients of one weight that reference numbers are worked out for; training begins at 1.
TWO: tuple[Bowl, Bowl] = ((10, 1.0, (2.0,)), (30, 3.0, (-1.0,)))
#: With two more.
FOUR: tuple[Bowl, ...] = (*TWO, (20, 2.0, (3.0,)), (40, 1.0, (0.0,)))


class Bowls(FederatedDataModule):
    """Client i has ``a_i |w - c_i|² / 2`` as its loss, by m_i equal samples in one batch."""

    def __init__(self, *bowls: Bowl, batch_size: int = 1000) -> None:
        super().__init__(batch_size=batch_size, shuffle=False)
        self.bowls = bowls

    @property
    def num_clients(self) -> int:
        return len(self.bowls)

    def client_data(self, client: int, split: str) -> TensorDataset:
        count, curvature, centre = self.bowls[client]
        return TensorDataset(torch.tensor([[curvature, *centre]], dtype=torch.float64).repeat(count, 1))


class OneWeight(LightningModule):
    """A weight, or a vector of them; training begins at 1 or at the point given."""

    def __init__(
        self, *start: float, sign: float = 1.0, rate: float = RATE, momentum: float = 0.0, decay: float = 0.0
    ) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor(start or (1.0,), dtype=torch.float64))
        self.sign = sign
        self.settings = {"lr": rate, "momentum": momentum, "weight_decay": decay}

    def loss(self, batch: list[Tensor]) -> Tensor:
        return self.sign * (batch[0][:, :1] / 2 * (self.w - batch[0][:, 1:]).square()).sum(1).mean()

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        return self.loss(batch)

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        self.log("val_loss", self.loss(batch))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), **self.settings)


def roll(
    data: FederatedDataModule, *callbacks: Any, root: Path, start: Sequence[float] = (1.0,), **settings: Any
) -> Any:
    """A run with two local steps a round."""
    ckpt_path = settings.pop("ckpt_path", None)
    trainer = quiet_trainer(
        *callbacks, **({"local_steps": 2, "seed": 0, "default_root_dir": root, "enable_checkpointing": True} | settings)
    )
    trainer.fit(OneWeight(*start), data, ckpt_path=ckpt_path)
    return trainer


def points(trainer: FederatedTrainer) -> Tensor:
    """The shared models, float64 [K, P]."""
    size = trainer.module.w.numel()  # type: ignore[union-attr, operator]
    return torch.stack([model.vectors[torch.float64][:size].cpu().clone() for model in trainer.models])


def descend(bowl: Bowl, start: Tensor, steps: int = 2, pull: Any = None) -> Tensor:
    """Where a client's plain gradient descent ends; ``pull(w)`` is added to its gradient."""
    _, curvature, centre = bowl
    w = start.clone()
    for _ in range(steps):
        gradient = curvature * (w - torch.tensor(centre, dtype=torch.float64))
        w = w - RATE * (gradient if pull is None else gradient + pull(w))
    return w


class Starts(Callback):
    """The models that the first round begins with, in place of those that were drawn."""

    def __init__(self, *values: float) -> None:
        self.values = values

    def on_round_start(self, trainer: Any) -> None:
        if trainer.current_round == 0:
            for model, value in zip(trainer.models, self.values, strict=True):
                model.vectors[torch.float64][0] = value


class LossIsNaN(Callback):
    """Makes a client's losses NaN, in every round or in one."""

    def __init__(self, client: int, round_number: int | None = None) -> None:
        self.client, self.round_number = client, round_number

    def around_training_step(self, run: FederatedTrainer, batch: Any, compute: Any, generator: Any) -> Any:
        assert run.participant is not None
        fails = run.participant.client == self.client and self.round_number in (None, run.current_round + 1)
        return compute(batch) * (float("nan") if fails else 1.0)


class Coalitions(Callback):
    """Divisions into coalitions: the second holds from round ``since + 1`` on, the third from the one after it."""

    role = "collaboration"

    def __init__(self, *labels: list[int], since: int = 3) -> None:
        self.labels, self.since = labels, since

    def on_fit_start(self, run: FederatedTrainer) -> None:
        run.collaboration = self.collaboration(run)

    def collaboration(self, run: FederatedTrainer) -> Collaboration:
        place = min(max(run.current_round - self.since + 1, 0), len(self.labels) - 1)
        return Collaboration.coalitions(self.labels[place], run.num_samples)


class Assigned(Coalitions):
    def on_round_start(self, run: FederatedTrainer) -> None:
        run.collaboration = self.collaboration(run)


class Regrouped(Coalitions):
    def select_collaboration(self, run: FederatedTrainer, weights: Any) -> Collaboration:
        return self.collaboration(run)
