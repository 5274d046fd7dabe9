"""Precisions train as under Lightning's Trainer, and what is exported keeps its dtype."""

from pathlib import Path
from typing import Any

import pytest
import torch
from reference import Clients, Linear, assert_same_weights, federated_trainer, fitted, make, train_both
from torch import Tensor, nn


class Typed(Linear):
    """Notes the dtypes it meets; has a norm, whose buffers are floats and an integer, and an integer buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))  # type: ignore[assignment]
        self.register_buffer("count", torch.zeros((), dtype=torch.long))
        self.dtypes: set[Any] = set()

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        made = self.net(x)
        self.dtypes |= {("x", x.dtype), ("made", made.dtype), ("new", torch.zeros(1).dtype), ("weight", self.dtype)}
        loss = nn.functional.mse_loss(made.to(y.dtype), y)
        self.log("loss", loss, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", self.loss(batch).float())


_PRECISIONS = ["32-true", "32", "64-true", "64", "bf16-mixed", "bf16-true"]


@pytest.mark.slow
@pytest.mark.parametrize("precision", _PRECISIONS)
def test_precision(precision: Any, tmp_path: Path) -> None:
    own, trainer, reference, theirs = train_both(Typed, tmp_path, precision=precision, data=Clients((12,)))
    assert own.dtypes == reference.dtypes
    # The shared model is summed in fixed point, with 46 bits behind the point.
    assert_same_weights(own, reference, atol=1e-12 if "64" in precision else 2**-46, moved=False)
    assert not torch.equal(own.net[0].weight.float(), make(Typed).net[0].weight)  # type: ignore[index]
    for split, name in (("train", "loss"), ("val", "val_loss")):
        value = float(theirs.callback_metrics[name])
        assert trainer.metrics[split][name].mean == pytest.approx(value, rel=1e-5)  # type: ignore[index]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("precision", "dtype"), [("32", torch.float32), ("64", torch.float64), ("bf16-true", torch.bfloat16)]
)
def test_exported_models_keep_the_precision(precision: Any, dtype: torch.dtype, tmp_path: Path) -> None:
    trainer = fitted(tmp_path, make(Typed), Clients((4,)), max_rounds=1, precision=precision, enable_checkpointing=True)
    saved = torch.load(Path(trainer.log_dir) / "models" / "client_0.ckpt", weights_only=True)["state_dict"]
    assert saved["net.0.weight"].dtype == dtype
    assert saved["count"].dtype == torch.long


def test_integers_in_a_batch_stay_integers(tmp_path: Path) -> None:
    class Embeds(Linear):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(5, 3)

        def loss(self, batch: Any) -> Tensor:
            index, y = batch
            assert index.dtype == torch.long
            assert y.dtype == torch.float64
            return nn.functional.mse_loss(self.net(self.embedding(index)), y)

    data = torch.utils.data.TensorDataset(torch.arange(5), torch.ones(5, 1))
    federated_trainer(tmp_path, max_rounds=1, precision="64").fit(
        make(Embeds), Clients((5,), data=lambda client, split: data)
    )


def test_transfer_hooks_see_the_batch_before_it_is_converted(tmp_path: Path) -> None:
    class Looks(Linear):
        def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
            assert batch[0].dtype == torch.float32
            return batch

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            assert batch[0].dtype == torch.float64
            return self.loss(batch)

    federated_trainer(tmp_path, max_rounds=1, precision="64").fit(Looks(), Clients())
