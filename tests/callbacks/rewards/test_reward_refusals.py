"""What bids, payments and contributions refuse: the type of error, and the option or client at fault."""

import math
from typing import Any

import corners
import pytest
import torch
from corners import Greedy, MixedClients
from tiny import ManualModule, TinyClients, TinyModule, quiet_trainer
from torch.utils.data import TensorDataset

from lightning_fl.callbacks import CollaborationGraph, ShapleyRewards, TierBidding, Tokens
from lightning_fl.core.errors import ConfigurationError, TrainingError


class WithoutValidation(TinyClients):
    """Only client 0 has validation samples."""

    def client_data(self, client, split):
        return None if client and split == "val" else super().client_data(client, split)


class Undefined(TinyClients):
    """Client 1's validation targets are NaN."""

    def __init__(self) -> None:
        super().__init__()
        x, y = self.sets[1, "val"].tensors  # type: ignore[attr-defined]
        self.sets[1, "val"] = TensorDataset(x, y * math.nan)


class Step(TinyModule):
    """What ``training_step`` does with its loss in evaluation mode."""

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        return loss if self.training else self.held_out(loss)


class Cornered(Step):
    """A gradient that is not finite."""

    def held_out(self, loss):
        return loss + (self.linear.bias * 0).abs().sqrt().sum()


class Silent(Step):
    def held_out(self, loss):
        return None


class Broken(Step):
    def held_out(self, loss):
        raise ValueError("an odd batch")


@pytest.mark.parametrize(
    ("options", "callbacks", "data", "name"),
    [
        ({"num_tiers": 7}, [], None, r"TierBidding\.num_tiers=7 for 6"),
        ({"policies": {6: Greedy()}}, [], None, r"TierBidding\.policies .*\[6\]"),
        ({"bid_split": "val"}, [], MixedClients(with_val={3}), r"TierBidding\.bid_split='val': 5 .*client_0"),
        ({"monitor": "nothing"}, [], None, r"client 0: TierBidding\.monitor='nothing'"),
        ({"tokens": Tokens()}, [], None, r"TierBidding\.tokens .*ShapleyRewards"),
        ({"tokens": Tokens()}, [ShapleyRewards(every_n_rounds=2)], None, "every_n_rounds=2: .*TierBidding.tokens"),
    ],
)
def test_tiers_that_do_not_fit_the_run(options: dict[str, Any], callbacks: Any, data: Any, name: str) -> None:
    with pytest.raises(ConfigurationError, match=name):
        corners.fit(TierBidding(**{"num_tiers": 2, **options}), *callbacks, data=data)


@pytest.mark.parametrize(
    ("callbacks", "module", "data", "error", "name"),
    [
        ([ShapleyRewards(every_n_rounds=3)], TinyModule, TinyClients, ConfigurationError, "every_n_rounds=3"),
        (
            [CollaborationGraph(graph="full"), ShapleyRewards()],
            TinyModule,
            TinyClients,
            ConfigurationError,
            "CollaborationGraph",
        ),
        (
            [ShapleyRewards(), ShapleyRewards(method="exact")],
            TinyModule,
            TinyClients,
            ConfigurationError,
            "ShapleyRewards and ShapleyRewards",
        ),
        ([ShapleyRewards()], ManualModule, TinyClients, ConfigurationError, "ShapleyRewards .*Manual"),
        (
            [ShapleyRewards()],
            TinyModule,
            WithoutValidation,
            ConfigurationError,
            "split='val': 2 of 3 .*client_1",
        ),
        *[
            ([ShapleyRewards(method=method)], TinyModule, Undefined, TrainingError, "client_1.* val .* round 1 is nan")  # type: ignore[arg-type]
            for method in ("first_order", "exact")
        ],
        ([ShapleyRewards()], Cornered, TinyClients, TrainingError, "gradient .*client_0"),
        ([ShapleyRewards()], Silent, TinyClients, TrainingError, "training_step .*client 0"),
        ([ShapleyRewards()], Broken, TinyClients, TrainingError, "client 0: ValueError: an odd batch"),
    ],
)
def test_contributions_that_cannot_be_valued(callbacks: Any, module: Any, data: Any, error: Any, name: str) -> None:
    torch.manual_seed(0)
    made = module()
    with pytest.raises(error, match=name):
        quiet_trainer(*callbacks, max_rounds=2, local_steps=3, seed=3).fit(made, data())
    assert made.training
