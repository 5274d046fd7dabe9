"""Survival model: proportional hazards of feature vectors."""

from typing import Literal

import torch
from torch import Tensor, nn
from torchmetrics import Metric
from torchmetrics.utilities import dim_zero_cat

from lightning_fl.core.errors import ConfigurationError
from lightning_fl.core.validation import Count, NonNegative, Positive, check_arguments
from lightning_fl.functional.survival import concordance_index, cox_loss
from lightning_fl.models.base import Model, OptimizerName, ProperFraction, check_optimizer, require_pair

#: Batch of features [B, D], and times and events [B, 2].
SurvivalBatch = list[Tensor] | tuple[Tensor, Tensor]


class ConcordanceIndex(Metric):
    """Harrell's concordance index of log hazards over all samples; see :func:`concordance_index`."""

    is_differentiable = False
    higher_is_better = True
    full_state_update = False
    samples: list[Tensor]  #: scores, times and events of a batch, [B, 3]

    def __init__(self) -> None:
        super().__init__()
        self.add_state("samples", [], dist_reduce_fx="cat")

    def update(self, scores: Tensor, times: Tensor, events: Tensor) -> None:
        """Add samples, each [B]."""
        self.samples.append(torch.stack([scores.detach(), times, events], dim=1))

    def compute(self) -> Tensor:
        scores, times, events = dim_zero_cat(self.samples).unbind(1)
        return torch.tensor(concordance_index(scores, times, events), device=scores.device)


class SurvivalModel(Model):
    """Proportional hazards (Cox 1972), linear or by a network, with the partial likelihood of each batch.

    Batches are ``(x, y)``: ``x`` [B, D] floating, ``y`` [B, 2] times until the event or the end of the observation, in
    any unit, and 1 if the event was observed, else 0. Logs ``train/loss``, and ``loss`` and ``c_index`` of validation
    and test. Risk sets are those of a batch: larger ones give a better gradient; a batch without an event gives none.
    The losses of evaluation are means over batches, too.

    Args:
        in_features: D.
        hidden_sizes: sizes of fully connected layers with ReLU before the last one; ``None`` for the linear model.
        dropout: probability that an entry is zeroed in training, after every layer but the last.
        ties: treatment of simultaneous events, "breslow" or "efron".
        learning_rate: learning rate of the optimiser.
        optimizer: "sgd" or "adam".
        momentum: momentum of "sgd".
        weight_decay: L2 penalty of the optimiser.

    Example:
        >>> SurvivalModel(in_features=39)(torch.zeros(2, 39)).shape
        torch.Size([2])
    """

    def __init__(
        self,
        *,
        in_features: Count,
        hidden_sizes: list[Count] | None = None,
        dropout: ProperFraction = 0.0,
        ties: Literal["breslow", "efron"] = "breslow",
        learning_rate: Positive = 0.1,
        optimizer: OptimizerName = "adam",
        momentum: ProperFraction = 0.0,
        weight_decay: NonNegative = 0.0,
    ) -> None:
        check_arguments(SurvivalModel.__init__, locals())
        super().__init__()
        check_optimizer(optimizer, momentum)
        self.save_hyperparameters()
        self.task = "survival"  # mixup mixes losses, not times
        self.network, size = nn.Sequential(), in_features
        for following in hidden_sizes or []:
            self.network.extend([nn.Linear(size, following), nn.ReLU(), nn.Dropout(dropout)])
            size = following
        self.network.append(nn.Linear(size, 1, bias=False))  # a constant changes no hazard
        self.val_c_index, self.test_c_index = ConcordanceIndex(), ConcordanceIndex()

    def forward(self, x: Tensor) -> Tensor:
        """Compute log hazards [B] of features [B, D]."""
        wanted = self.hparams["in_features"]
        if x.ndim != 2 or x.shape[1] != wanted or not x.is_floating_point():
            what = f"the batch has {list(x.shape[1:])} features of type {x.dtype} for each sample"
            raise ConfigurationError(f"in_features={wanted}: {what}; set in_features to their number, and give floats.")
        return self.network(x).squeeze(1)

    def training_step(self, batch: SurvivalBatch, batch_idx: int) -> Tensor:
        """Compute the negative partial log-likelihood of the batch, per event."""
        x, times, events = self._parts(batch)
        loss = cox_loss(self(x), times, events, self.hparams["ties"])
        self.log("train/loss", loss, on_step=False, on_epoch=True, batch_size=len(x))
        return loss

    def predict_step(self, batch: SurvivalBatch | Tensor, batch_idx: int) -> Tensor:
        """Compute log hazards [B] of a batch ``(x, y)``, ``(x,)`` or ``x``."""
        return self(batch if isinstance(batch, Tensor) else batch[0]).float()

    def _evaluate(self, batch: SurvivalBatch, split: str) -> None:
        x, times, events = self._parts(batch)
        scores, metric = self(x), getattr(self, f"{split}_c_index")
        metric.update(scores, times, events)
        loss = cox_loss(scores, times, events, self.hparams["ties"])
        self.log_dict({f"{split}/loss": loss, f"{split}/c_index": metric}, on_epoch=True, batch_size=len(x))

    def _parts(self, batch: SurvivalBatch) -> tuple[Tensor, Tensor, Tensor]:
        x, y = require_pair(self, batch, "(samples, times and events)")
        if y.shape != (len(x), 2) or not y.is_floating_point():
            what = f"targets of shape {list(y.shape)} and type {y.dtype} for {len(x)} samples"
            raise ConfigurationError(f"{what}: give a time and an event, 1 or 0, per sample, as floats.")
        times, events = y.unbind(1)
        if not bool(((events == 0) | (events == 1)).all() and (times >= 0).all()):
            raise ConfigurationError("times must be at least 0, and events 1 (observed) or 0 (censored).")
        return x, times, events
