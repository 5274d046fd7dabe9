"""Runs of strategies by the plans of ``strategy_references.py``; as a script, one rank's part of all of them."""

import json
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule
from strategy_references import BATCH_SIZE, EPOCHS, MOMENTUM, RATE, Plan, samples, start
from tiny import TinyClients, TinyModule, digest
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from lightning_fl import FederatedDataModule, FederatedTrainer
from lightning_fl.callbacks import Callback, ModelCheckpoint, PersonalLayers
from lightning_fl.core.cohort import Cohort
from lightning_fl.core.collaboration import Collaboration
from lightning_fl.strategies import (
    APFL,
    SCAFFOLD,
    Ditto,
    FedAdagrad,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedFA,
    FedNova,
    FedProx,
    FedRep,
    FedYogi,
    MaxFL,
    PerFedAvg,
    PFedMe,
    QFedAvg,
)

__all__ = ["BITS", "RUNS", "STRATEGIES", "bits", "fit"]

#: The strategy of each row, by the name of its reference.
STRATEGIES: dict[str, Callable[[], FedAvg]] = {
    "FedAvg": FedAvg,
    "FedProx": lambda: FedProx(mu=0.5),
    "FedNova": FedNova,
    "SCAFFOLD": lambda: SCAFFOLD(server_rate=0.8),
    "FedAvgM": lambda: FedAvgM(momentum=0.9, server_rate=0.7),
    "FedAdagrad": lambda: FedAdagrad(server_rate=0.1, momentum=0.4, tau=1e-2),
    "FedAdam": lambda: FedAdam(server_rate=0.1, momentum=0.4, beta2=0.9, tau=1e-2),
    "FedYogi": lambda: FedYogi(server_rate=0.1, momentum=0.4, beta2=0.9, tau=1e-2),
    "QFedAvg": lambda: QFedAvg(q=1.5),
    "QFedAvgOfNoFairness": lambda: QFedAvg(q=0.0),
    "MaxFL": lambda: MaxFL(server_rate=0.7, eps=0.3),
    "MaxFLWithOptOut": lambda: MaxFL(threshold=4.0, opt_out=True),
    "FedFA": lambda: FedFA(alpha=0.4, momentum=0.6),
    "Ditto": lambda: Ditto(strength=0.75),
    "APFL": lambda: APFL(alpha=0.6, alpha_every="step"),
    "PerFedAvg": lambda: PerFedAvg(adaptation_rate=0.05),
    "PerFedAvgHF": lambda: PerFedAvg(adaptation_rate=0.05, hessian="differences", adaptation_steps=2),
    "PFedMe": lambda: PFedMe(strength=2.0, personal_steps=3, personal_rate=0.05, server_rate=0.8),
    "FedRep": lambda: FedRep(head_epochs=1),
}


class Lines(FederatedDataModule):
    """The five clients of the references, in the order of their samples."""

    def __init__(self, norm: bool) -> None:
        super().__init__(batch_size=BATCH_SIZE, shuffle=False)
        self.norm = norm

    @property
    def num_clients(self) -> int:
        return 5

    def client_data(self, client: int, split: str) -> TensorDataset:
        return TensorDataset(samples(client, split, self.norm))


class Line(LightningModule):
    """A line through three features, behind a BatchNorm where the plan has one."""

    def __init__(self, norm: bool, decay: float) -> None:
        super().__init__()
        self.decay = decay
        self.body = nn.Linear(3, 2, bias=False) if norm else nn.Linear(2, 1, bias=False)
        self.head = nn.Linear(2 if norm else 1, 1, bias=False)
        self.norm = nn.BatchNorm1d(2) if norm else None
        self.double()
        values = self.state_dict()
        names = [name for name in values if name != "norm.num_batches_tracked"]
        sizes = [values[name].numel() for name in names]
        with torch.no_grad():
            for name, value in zip(names, start(norm).split(sizes), strict=True):
                values[name].copy_(value.view_as(values[name]))

    def step(self, batch: list[Tensor]) -> Tensor:
        x, y = batch[0][:, :3], batch[0][:, 3]
        if self.norm is None:
            found = self.body(x[:, :2]) + self.head(x[:, 2:])
        else:
            found = self.head(self.norm(self.body(x)))
        return (found[:, 0] - y).square().mean() / 2

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        return self.step(batch)

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        self.log("val_loss", self.step(batch))

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=RATE, momentum=MOMENTUM)
        if not self.decay:
            return optimizer
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + self.decay * step))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


class Script(Callback):
    """Lets a run do what its plan says."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.fails = False

    def _coalitions(self, run: FederatedTrainer) -> Collaboration:
        return Collaboration.coalitions(self.plan.labels_of(run.current_round), run.num_samples)

    def on_round_start(self, run: FederatedTrainer) -> None:
        self.fails = False
        if not self.plan.chosen:
            run.collaboration = self._coalitions(run)

    def select_clients(self, run: FederatedTrainer) -> Cohort:
        return Cohort.of(self.plan.cohort(run.current_round))

    def on_client_start(self, run: FederatedTrainer, client: int) -> None:
        self.fails = client in self.plan.failing.get(run.current_round, [])

    def on_aggregate_end(self, run: FederatedTrainer) -> None:
        self.fails = False  # evaluations may take gradients

    def on_client_step_end(self, run: FederatedTrainer, client: int, num_steps: int) -> None:
        """Let a client fail in the middle of its turn, in even rounds."""
        if self.fails and run.current_round % 2 == 0:
            raise RuntimeError("as planned")

    def around_training_step(self, run: FederatedTrainer, batch: Any, compute: Any, generator: Any) -> Any:
        """Let a client's losses be NaN, in odd rounds."""
        return compute(batch) * (torch.nan if self.fails and run.current_round % 2 else 1.0)


class ChoosesLater(Script):
    """Finds the coalitions of a plan after the clients have trained."""

    role = "collaboration"

    def select_collaboration(self, run: FederatedTrainer, weights: Any) -> Collaboration:
        return self._coalitions(run)


class Watch(Callback):
    """Writes down after every round the shared models, what clients are evaluated with, and what loss that has."""

    def __init__(self) -> None:
        self.seen: list[tuple[Tensor, Tensor, list[float]]] = []

    def on_round_end(self, run: FederatedTrainer) -> None:
        spans = [span for span in run.loop.flat.spans() if span.dtype == torch.float64]
        by_name = {span.name: slice(span.begin, span.end) for span in spans}
        order = [name for name in run.module.state_dict() if name in by_name]  # type: ignore[union-attr]

        def flat(weights: Any) -> Tensor:
            return torch.cat([weights.vectors[torch.float64][by_name[name]] for name in order]).clone()

        losses = run.metrics["val"]["val_loss"].clients
        own = [flat(run.client_model(client)) for client in range(5)]
        self.seen.append((torch.stack([flat(model) for model in run.models]), torch.stack(own), [*losses.values()]))


def run_of(strategy: FedAvg, plan: Plan, *callbacks: Callback, **settings: Any) -> FederatedTrainer:
    """A trainer that goes by a plan, with fresh optimisers if the settings do not say otherwise."""
    return FederatedTrainer(
        strategy=strategy,
        callbacks=[(ChoosesLater if plan.chosen else Script)(plan), *callbacks],
        max_rounds=plan.rounds,
        accumulate_grad_batches=plan.accumulate,
        on_client_error="skip",
        seed=0,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        **{"optimizer_state": "fresh"} | settings,
    )


def fit(strategy: FedAvg, plan: Plan, root: Path) -> list[tuple[Tensor, Tensor, list[float]]]:
    """What a run by a plan shows after every round."""
    watch = Watch()
    personal = [PersonalLayers(layers=["head"])] if isinstance(strategy, FedRep) else []
    run = run_of(
        strategy, plan, watch, *personal, local_epochs=EPOCHS, default_root_dir=root, enable_checkpointing=False
    )
    run.fit(Line(plan.norm, plan.decay), Lines(plan.norm))
    return watch.seen


# -- bits --------------------------------------------------------------------------------------------------------------

#: All at once, with what a client keeps in every way: dropout, BatchNorm, personal layers, optimisers that go on.
BITS = Plan(
    labels=((0, 1, 0, 1, 1), (0, 1, 0, 1, 1), (0, 0, 1, 1, 0)),
    cohorts={0: [0, 2, 3], 1: [1, 2, 4], 2: [0, 1, 3]},
    failing={1: [4], 2: [0]},
    rounds=4,
)


class Heavy(TinyModule):
    """Momentum, and a rate that falls with every step."""

    adam = False

    def configure_optimizers(self) -> Any:
        optimizer: torch.optim.Optimizer = torch.optim.SGD(self.parameters(), lr=0.05, momentum=MOMENTUM)
        if self.adam:
            optimizer = torch.optim.Adam(self.parameters(), lr=0.05)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.95)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


#: What is run for bits: every strategy with optimisers that go on, some with optimiser states that are averaged.
RUNS = (*STRATEGIES, *(f"{name} averaged" for name in ("FedAvg", "SCAFFOLD", "FedFA")))


def bits(name: str, root: Path, rounds: int = BITS.rounds, ckpt_path: str | None = None, devices: int = 1) -> Any:
    """What came of a run in which everything happens, to the bit; of clients that this rank hosts."""
    kind = name.removesuffix(" averaged")
    strategy, state = STRATEGIES[kind](), "keep" if kind == name else "average"
    run = run_of(
        strategy,
        replace(BITS, rounds=rounds),
        PersonalLayers(layers=["linear.bias"]),
        ModelCheckpoint(every_n_rounds=1, save_models=False),
        local_steps=3,
        optimizer_state="fresh" if state in strategy.without_states else state,
        default_root_dir=root,
        devices=devices,
    )
    data = TinyClients((16, 10, 18, 7, 14))
    module = Heavy(dropout=0.2, norm=True)
    module.adam = name in ("FedAvg averaged", "FedFA averaged")
    run.fit(module, data, ckpt_path=ckpt_path)
    hosted = run.hosted_clients
    return {
        "models": [digest(model) for model in run.models],
        "clients": {str(client): digest(run.client_model(client)) for client in hosted},
        "losses": {str(client): value for client, value in run.metrics["val"]["val_loss"].clients.items()},
        "bytes": run.communication.summary(data.client_names()),
    }


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    found = {name: bits(name, folder / name, devices=2) for name in RUNS}
    (folder / f"rank_{os.environ['LOCAL_RANK']}.json").write_text(json.dumps(found))
