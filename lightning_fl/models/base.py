"""What the package's models share: evaluation steps, and an optimiser by name."""

from typing import Annotated, Any, Literal

import torch
from annotated_types import Interval
from lightning.pytorch import LightningModule

from lightning_fl.core.errors import ConfigurationError

OptimizerName = Literal["sgd", "adam"]
#: Momentum, or probability of dropout.
ProperFraction = Annotated[float, Interval(ge=0, lt=1)]


class Model(LightningModule):
    """Base class of models with the options ``optimizer``, ``learning_rate``, ``momentum`` and ``weight_decay``."""

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self._evaluate(batch, "val")

    def test_step(self, batch: Any, batch_idx: int) -> None:
        self._evaluate(batch, "test")

    def _evaluate(self, batch: Any, split: str) -> None:
        raise NotImplementedError

    def configure_optimizers(self) -> torch.optim.Optimizer:
        rate, decay = self.hparams["learning_rate"], self.hparams["weight_decay"]
        if self.hparams["optimizer"] == "adam":
            return torch.optim.Adam(self.parameters(), lr=rate, weight_decay=decay)
        return torch.optim.SGD(self.parameters(), lr=rate, momentum=self.hparams["momentum"], weight_decay=decay)


def check_optimizer(optimizer: OptimizerName, momentum: float) -> None:
    """Refuse momentum for an optimiser that has its own."""
    if optimizer == "adam" and momentum:
        raise ConfigurationError(f"momentum={momentum}: optimizer='adam' has its own; omit it, or use 'sgd'.")


def require_pair(model: LightningModule, batch: Any, wanted: str) -> tuple[Any, Any]:
    """Return the two parts of a batch; refuse other batches than pairs, named as ``wanted``."""
    if not isinstance(batch, list | tuple) or len(batch) != 2:
        kind = type(batch).__name__ + (f" of {len(batch)}" if isinstance(batch, list | tuple) else "")
        what = f"{type(model).__name__} needs batches {wanted}, not a {kind}"
        raise ConfigurationError(f"{what}: the data set must return pairs.")
    return batch[0], batch[1]
