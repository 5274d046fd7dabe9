"""A model of survival: proportional hazards of feature vectors."""

from itertools import pairwise

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torchmetrics import Metric
from torchmetrics.utilities import dim_zero_cat

from lightning_fl.core.errors import ConfigurationError
from lightning_fl.core.validation import check_counts, check_numbers
from lightning_fl.functional.survival import concordance_index, cox_loss
from lightning_fl.models.optimizers import OptimizerName, check_optimizer, make_optimizer

__all__ = ["ConcordanceIndex", "SurvivalModel"]

#: What data sets yield: features [B, D], times and events [B, 2].
SurvivalBatch = list[Tensor] | tuple[Tensor, Tensor]


class ConcordanceIndex(Metric):
    """Harrell's concordance index of log hazards over all samples; see :func:`concordance_index`."""

    is_differentiable = False
    higher_is_better = True
    full_state_update = False
    scores: list[Tensor]
    times: list[Tensor]
    events: list[Tensor]

    def __init__(self) -> None:
        super().__init__()
        for name in ("scores", "times", "events"):
            self.add_state(name, [], dist_reduce_fx="cat")

    def update(self, scores: Tensor, times: Tensor, events: Tensor) -> None:
        """Keep some samples, each [B]."""
        self.scores.append(scores.detach())
        self.times.append(times)
        self.events.append(events)

    def compute(self) -> Tensor:
        """The index; NaN where no pair of samples can be compared."""
        scores, times, events = (dim_zero_cat(state) for state in (self.scores, self.times, self.events))
        return torch.tensor(concordance_index(scores, times, events), device=scores.device)


class SurvivalModel(LightningModule):
    """Proportional hazards (Cox 1972), linear or by a network, with the partial likelihood of each batch.

    Works on batches ``(x, y)``: ``x`` [B, D] floating, ``y`` [B, 2] times until the event or until the observation
    ends, in any unit, and 1 where the event was seen or 0 where not. Logs ``train/loss``, and ``loss`` and ``c_index``
    of validation and test. Risk sets are those of a batch: larger ones give a better gradient; a batch without an event
    gives none. The losses of evaluation are means over batches, too.

    Args:
        in_features: D.
        hidden_sizes: of fully connected layers with ReLU before the last one; none for the linear model.
        dropout: probability that an entry is zeroed in training, after every layer but the last.
        ties: how events at one time are counted, "breslow" or "efron".
        learning_rate: of the optimiser.
        optimizer: "sgd" or "adam".
        momentum: of "sgd".
        weight_decay: L2 penalty of the optimiser.

    Example:
        >>> SurvivalModel(in_features=39)(torch.zeros(2, 39)).shape
        torch.Size([2])
    """

    def __init__(
        self,
        *,
        in_features: int,
        hidden_sizes: list[int] | None = None,
        dropout: float = 0.0,
        ties: str = "breslow",
        learning_rate: float = 0.1,
        optimizer: OptimizerName = "adam",
        momentum: float = 0.0,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__()
        check_optimizer(self, optimizer, learning_rate, momentum, weight_decay)
        check_counts(self, in_features=in_features, hidden_sizes=hidden_sizes)
        check_numbers(self, dropout=dropout, at_least=0, below=1)
        if ties not in ("breslow", "efron"):
            raise ConfigurationError(f"SurvivalModel.ties={ties!r}: give breslow or efron.")
        self.save_hyperparameters()
        sizes = [in_features, *(hidden_sizes or [])]
        layers = [
            layer
            for size, following in pairwise(sizes)
            for layer in (nn.Linear(size, following), nn.ReLU(), nn.Dropout(dropout))
        ]
        self.network = nn.Sequential(*layers, nn.Linear(sizes[-1], 1, bias=False))  # a constant changes no hazard
        self.val_c_index, self.test_c_index = ConcordanceIndex(), ConcordanceIndex()

    def forward(self, x: Tensor) -> Tensor:
        """Log hazards [B] of features [B, D]."""
        wanted = self.hparams["in_features"]
        if x.ndim != 2 or x.shape[1] != wanted or not x.is_floating_point():
            raise ConfigurationError(
                f"in_features={wanted}: the batch has samples of shape {list(x.shape[1:])} and type {x.dtype}; set"
                " in_features to the data's number of features, and give floating numbers."
            )
        return self.network(x).squeeze(1)

    def training_step(self, batch: SurvivalBatch, batch_idx: int) -> Tensor:
        """The negative partial log-likelihood of the batch, over its events."""
        x, times, events = self._parts(batch)
        loss = cox_loss(self(x), times, events, self.hparams["ties"])
        self.log("train/loss", loss, on_step=False, on_epoch=True, batch_size=len(x))
        return loss

    def validation_step(self, batch: SurvivalBatch, batch_idx: int) -> None:
        """Log ``val/loss`` and ``val/c_index``."""
        self._evaluate(batch, "val", self.val_c_index)

    def test_step(self, batch: SurvivalBatch, batch_idx: int) -> None:
        """Log ``test/loss`` and ``test/c_index``."""
        self._evaluate(batch, "test", self.test_c_index)

    def predict_step(self, batch: SurvivalBatch | Tensor, batch_idx: int) -> Tensor:
        """Log hazards [B] of a batch ``(x, y)``, ``(x,)`` or ``x``."""
        return self(batch if isinstance(batch, Tensor) else batch[0]).float()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """The optimiser that the arguments describe."""
        return make_optimizer(self.parameters(), self.hparams)

    def _evaluate(self, batch: SurvivalBatch, split: str, metric: Metric) -> None:
        x, times, events = self._parts(batch)
        scores = self(x)
        metric.update(scores, times, events)
        loss = cox_loss(scores, times, events, self.hparams["ties"])
        self.log_dict({f"{split}/loss": loss, f"{split}/c_index": metric}, on_epoch=True, batch_size=len(x))

    def _parts(self, batch: SurvivalBatch) -> tuple[Tensor, Tensor, Tensor]:
        """Features, times and events."""
        if not isinstance(batch, list | tuple) or len(batch) != 2:
            raise ConfigurationError(
                f"SurvivalModel needs batches (samples, times and events), this one is a {type(batch).__name__}"
                f"{f' of {len(batch)}' if isinstance(batch, list | tuple) else ''}; let the data set return pairs."
            )
        x, y = batch
        if y.shape != (len(x), 2) or not y.is_floating_point():
            raise ConfigurationError(
                f"targets of shape {list(y.shape)} and type {y.dtype} for {len(x)} samples: give a time and an event, 1"
                " or 0, per sample, as floating numbers. TableData does with event=..."
            )
        times, events = y.unbind(1)
        if not bool(((events == 0) | (events == 1)).all() and (times >= 0).all()):
            raise ConfigurationError("times are numbers of at least 0, and events 1 (seen) or 0 (censored).")
        return x, times, events
