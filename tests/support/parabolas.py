"""Two clients whose losses are parabolas of one weight, and runs on them."""

from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from lightning_fl import FederatedDataModule, FederatedTrainer
from lightning_fl.callbacks import Callback
from lightning_fl.engine.weights.flat import Weights

CURVES = ((1.0, 2.0), (3.0, -1.0))  # f_A(w) = (w - 2)² / 2 of 10 samples, f_B(w) = 3 (w + 1)² / 2 of 30
SIZES = (10, 30)
RATE, START = 0.1, 1.0
#: Shares of the two clients in the average.
SHARES = (0.25, 0.75)


class TwoParabolas(FederatedDataModule):
    """The two clients; ``swapped`` names them the other way round."""

    def __init__(self, swapped: bool = False) -> None:
        super().__init__(batch_size=30, shuffle=False)
        self.order = (1, 0) if swapped else (0, 1)

    @property
    def num_clients(self) -> int:
        return 2

    def client_data(self, client: int, split: str) -> TensorDataset:
        which = self.order[client]
        return TensorDataset(torch.tensor([CURVES[which]], dtype=torch.float64).expand(SIZES[which], 2))


class OneWeight(LightningModule):
    """The weight of the parabolas, which starts at 1."""

    def __init__(self, sign: float = 1.0, rate: float = RATE) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor([START], dtype=torch.float64))
        self.sign, self.rate = sign, rate

    def loss(self, batch: list[Tensor]) -> Tensor:
        curvature, centre = batch[0].unbind(1)
        return self.sign * (curvature / 2 * (self.w - centre).square()).mean()

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        return self.loss(batch)

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        self.log("val_loss", self.loss(batch))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=self.rate)


def loss_of(client: int, w: float) -> float:
    """A client's loss."""
    curvature, centre = CURVES[client]
    return curvature / 2 * (w - centre) ** 2


def descend(client: int, w: float, steps: int = 2) -> float:
    """The weight after a client's plain gradient descent."""
    curvature, centre = CURVES[client]
    for _ in range(steps):
        w -= RATE * curvature * (w - centre)
    return w


def number(weights: Weights) -> float:
    """The one weight."""
    return float(weights.vectors[torch.float64][0])


def trainer(*callbacks: Callback, root: Path | None = None, **settings: Any) -> FederatedTrainer:
    """A quiet trainer of two rounds with two local steps."""
    given = {"max_rounds": 2, "local_steps": 2, "logger": False, "enable_checkpointing": False, "seed": 3}
    return FederatedTrainer(
        callbacks=list(callbacks), enable_progress_bar=False, default_root_dir=root, **{**given, **settings}
    )


class Watched(Callback):
    """The weight after every round, and what the strategy keeps for client and server."""

    def __init__(self) -> None:
        self.weights: list[float] = []
        self.kept: list[dict[int, dict[str, Any]]] = []
        self.states: list[dict[int, dict[str, Any]]] = []

    def on_round_end(self, run: FederatedTrainer) -> None:
        self.weights.append(number(run.models[0]))
        self.kept.append({client: dict(kept) for client, kept in run.client_store("strategy").items()})
        self.states.append({model: dict(state) for model, state in run.federation.model_states.items()})

    def own(self, round_number: int, name: str = "own") -> list[float]:
        """Weights or numbers that the two clients kept under a name after a round, -1 for the last."""
        kept = [self.kept[round_number][client][name] for client in (0, 1)]
        return [
            number(Weights.from_state_dict(one["flat_weights"], torch.device("cpu"))) if isinstance(one, dict) else one
            for one in kept
        ]


def parabolas(strategy: Any, **settings: Any) -> tuple[FederatedTrainer, Watched]:
    """A fit on the parabolas and what a callback saw of it."""
    watched = Watched()
    run = trainer(watched, strategy=strategy, **settings)
    run.fit(OneWeight(), TwoParabolas())
    return run, watched
