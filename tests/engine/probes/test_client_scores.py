"""Scores of models on clients' own samples: by accuracy, by a loss, and what is no score."""

from typing import Any

import pytest
import torch
from corners import CornerModule, MixedClients, accuracy, fit
from lightning.pytorch import LightningModule
from torch import nn

from lightning_fl import FederatedTrainer
from lightning_fl.callbacks import Callback, TierBidding
from lightning_fl.core.errors import ConfigurationError
from lightning_fl.engine.probes.client_scores import ClientScores


def scores_of(monitor: str | None, module: Any = None, split: Any = "train", **settings: Any) -> list[float]:
    found: list[float] = []

    class Asked(Callback):
        def on_aggregate_end(self, trainer: FederatedTrainer) -> None:
            scores = ClientScores(trainer.loop, "Test", split, None, monitor)
            found.extend(float(scores.weigh(client, trainer.models)[0]) for client in range(6))

    fit(Asked(), module=module, max_rounds=1, **settings)
    return found


class Logs(CornerModule):
    """Logs one number under some name."""

    def __init__(self, name: str, value: float) -> None:
        super().__init__()
        self.name_, self.value = name, value

    def validation_step(self, batch: list[torch.Tensor], batch_idx: int) -> None:
        self.log(self.name_, self.value)


def test_accuracy_scores_itself_and_a_loss_its_exponential() -> None:
    data = MixedClients()
    run = fit(max_rounds=1)
    expected = [accuracy(run, data, client, run.models[0]) for client in range(6)]
    assert scores_of(None) == pytest.approx(expected)
    assert scores_of("val/acc") == pytest.approx(expected)
    losses = []
    for client in range(6):
        x, y = data.sets[client, "val"].tensors
        run.loop.flat.load(run.models[0])
        with torch.no_grad():
            losses.append(float(nn.functional.cross_entropy(run.module(x), y)))  # type: ignore[misc]
    exponentials = torch.tensor(losses).neg().exp().tolist()
    assert scores_of("val/loss", split="val") == pytest.approx(exponentials, rel=1e-5)


@pytest.mark.parametrize(
    ("name", "value", "score"),
    [
        ("val/acc", float("nan"), 0.0),
        ("val/loss", float("inf"), 0.0),
        ("val/loss", float("nan"), 0.0),
        ("val/rmse", 2.0, 0.1353352832366127),
        ("val/f1", 0.25, 0.25),
    ],
)
def test_scores_at_the_limits(name: str, value: float, score: float) -> None:
    assert scores_of(None, Logs(name, value)) == [pytest.approx(score)] * 6


@pytest.mark.parametrize(("name", "value"), [("val/acc", 1.5), ("val/acc", -0.1), ("val/loss", -2.0)])
def test_a_metric_that_is_no_score_is_named(name: str, value: float) -> None:
    with pytest.raises(ConfigurationError, match=f"{name} is {value:g}"):
        scores_of(None, Logs(name, value))


def test_a_metric_that_may_be_negative_is_used_only_where_it_is_named() -> None:
    with pytest.raises(ConfigurationError, match="val/r2 is -0.5"):
        scores_of("val/r2", Logs("val/r2", -0.5))


def test_a_metric_that_is_not_logged_and_a_module_that_logs_none_are_named() -> None:
    with pytest.raises(ConfigurationError, match="monitor='val/auc'.*val/loss"):
        scores_of("val/auc")

    class Silent(CornerModule):
        def validation_step(self, batch: list[torch.Tensor], batch_idx: int) -> None:
            pass

    with pytest.raises(ConfigurationError, match="monitor=None"):
        scores_of(None, Silent())

    class Unvalidated(LightningModule):
        training_step = CornerModule.training_step
        forward = CornerModule.forward
        configure_optimizers = CornerModule.configure_optimizers

        def __init__(self) -> None:
            super().__init__()
            self.save_hyperparameters({"learning_rate": 0.1})
            self.linear = nn.Linear(2, 4)

    with pytest.raises(ConfigurationError, match="validation_step .*Unvalidated"):
        fit(TierBidding(num_tiers=2), module=Unvalidated())
