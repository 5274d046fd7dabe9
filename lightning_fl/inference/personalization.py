"""One-shot personalisation: a mixture of a run's shared models for a client's data, without training.

Khan et al., "PI-FL: Personalized and Incentivized Federated Learning", 2023, https://arxiv.org/abs/2304.07514,
equations 3 and 4: ``P_i = sum_k υ_ik w_k``, where υ_ik, ``Personalization.importance`` [K], is the score of shared
model w_k on client i's data. Takes one pass over the client's samples per model; the shared models, and the P_i that
:func:`personalize` writes, are files.

Differs from the paper: the score may be any metric of the module's ``validation_step``, see
:func:`lightning_fl.functional.pifl.importance_weights`; the personal model can be measured on held-out samples.
"""

import math
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
from annotated_types import Ge, Lt
from lightning.fabric.utilities.rank_zero import rank_zero_warn
from lightning.pytorch import LightningModule
from torch import Tensor
from torch.utils.data import Dataset, Subset

from lightning_fl.core.errors import CheckpointError, ConfigurationError, DataError, TrainingError
from lightning_fl.core.lightning_types import is_overridden
from lightning_fl.core.metrics import ClientMetrics, monitored_metric, summarize
from lightning_fl.core.seeding import generator, isolated_draws
from lightning_fl.core.validation import checked
from lightning_fl.data.module import BATCH_HOOKS, FederatedDataModule, Split
from lightning_fl.data.targets import dataset_targets
from lightning_fl.engine.client import ClientReport
from lightning_fl.engine.probes.client_scores import default_score
from lightning_fl.engine.weights.flat import Weights
from lightning_fl.engine.weights.weighted_sum import WeightedSum
from lightning_fl.functional.pifl import importance_weights, mixture_weights
from lightning_fl.runtime.checkpoint import save_atomically
from lightning_fl.runtime.model_file import load_model_checkpoint, load_weights, model_checkpoint
from lightning_fl.trainer.session import session
from lightning_fl.trainer.trainer import FederatedTrainer

_SCORED, _HELD_OUT = 0, 1
Holdout = Annotated[float, Ge(0), Lt(1)]


class Newcomer(FederatedDataModule):
    """A new client's labelled samples as validation data: "client" 0 scores the models, 1 is held out.

    ``holdout`` is the share of held-out samples, at least one if above 0; too few samples are a DataError. ``like`` is
    the data module whose evaluation batch size and batch hooks are used.
    """

    @checked
    def __init__(
        self, dataset: Dataset, *, holdout: Holdout = 0.5, seed: int = 0, like: FederatedDataModule | None = None
    ) -> None:
        super().__init__(eval_batch_size=None if like is None else like.eval_batch_size)
        count = len(dataset)  # type: ignore[arg-type]
        held_out = min(max(1, round(holdout * count)), count - 1) if holdout else 0
        if count < 1 or (holdout and held_out < 1):
            raise DataError(f"{count} samples are too few for holdout={holdout}: add samples or set holdout to 0.")
        order = torch.randperm(count, generator=generator(seed, "holdout"))
        parts = (order[held_out:], order[:held_out])
        self._parts = [Subset(dataset, part.sort().values.tolist()) for part in parts]
        if like is not None:
            for hook in BATCH_HOOKS:
                if is_overridden(hook, like):
                    setattr(self, hook, getattr(like, hook))

    @property
    def num_clients(self) -> int:
        return len(self._parts)

    def client_data(self, client: int, split: Split) -> Subset | None:
        return self._parts[client] if split == "val" and len(self._parts[client]) else None


@dataclass(frozen=True)
class Personalization:
    """Result of :func:`personalize`."""

    monitor: str  #: metric that scores the models
    higher_is_better: bool  #: its direction; if true, υ is the value, else exp(-value)
    values: list[float]  #: the metric of each shared model on the scoring samples, length K
    importance: Tensor  #: υ, float64 [K]
    mixture: Tensor  #: weights of the models, sum 1, float64 [K]
    num_scored: int  #: number of scoring samples
    num_held_out: int  #: number of samples for the metrics below; if 0, these use the scoring samples
    shared: ClientMetrics  #: metric -> shared model -> value
    uniform: dict[str, float]  #: metrics of the uniform mixture; empty if a model diverged
    personal: dict[str, float]  #: metrics of the personal model


def personalize(
    module: LightningModule,
    shared: Sequence[Path],
    dataset: Dataset,
    *,
    out: Path | None = None,
    monitor: str | None = None,
    holdout: float = 0.5,
    seed: int = 0,
    like: FederatedDataModule | None = None,
    **trainer_arguments: Any,
) -> Personalization:
    """Mix shared models by their scores on a client's samples.

    Models are read one at a time. The samples are used by the module's ``validation_step`` only. Floating weights are
    averaged; integers, such as BatchNorm's counters, are those of the model with the largest weight.

    Args:
        module: of the models' class and size; its weights are overwritten.
        shared: K checkpoints, such as ``models/shared_*.ckpt`` of a run.
        dataset: labelled samples of the client.
        out: file of the personal model, a Lightning checkpoint; ``None`` to write nothing.
        monitor: metric that scores the models: in [0, 1] if higher is better, else at least 0. ``None`` for the first
            metric that cannot be negative and for which higher is better, else the first with "loss" in its name.
        holdout: see :class:`Newcomer`.
        seed: of the split.
        like: see :class:`Newcomer`.
        **trainer_arguments: of :class:`~lightning_fl.trainer.trainer.FederatedTrainer`, such as ``accelerator``.

    Raises:
        CheckpointError: a checkpoint is damaged or of another model, or ``out`` cannot be written.
        ConfigurationError: an argument is out of range, the module has no ``validation_step``, or the metric is not
            logged or out of range.
        DataError: too few samples.

    Example::

        models = sorted(Path("runs/version_0/models").glob("shared_*.ckpt"))
        found = personalize(MyModule(), models, my_samples, out=Path("mine.ckpt"), monitor="val/acc")
        mine = MyModule.load_from_checkpoint("mine.ckpt")
    """
    if not shared:
        raise ConfigurationError("shared=[]: name at least one checkpoint.")
    # Before the run, since a module may get sizes and lazy layers their shapes from the checkpoint.
    with isolated_draws():
        module.configure_model()
    load_weights(module, shared[0], load_model_checkpoint(shared[0]))
    data = Newcomer(_labelled(dataset), holdout=holdout, seed=seed, like=like)
    with tempfile.TemporaryDirectory() as folder:  # for the evaluation's record, which is not needed
        quiet = {"logger": False, "enable_progress_bar": False, "enable_checkpointing": False, "devices": 1}
        trainer = FederatedTrainer(default_root_dir=folder, seed=seed, **{**quiet, **trainer_arguments})
        with session(trainer, "validate", module, data, None):
            if not trainer.loop.evaluator.evaluates("val"):
                raise ConfigurationError(f"{type(module).__name__} needs a validation_step, to score the models.")
            return _mix(trainer, list(shared), out, monitor)


def _labelled(dataset: Dataset) -> Dataset:
    """The samples that have a label; a label is missing if it is NaN in all columns."""
    try:
        targets = dataset_targets(dataset)
    except DataError:  # targets are not accessible
        return dataset
    if not targets.is_floating_point() or not len(targets):
        return dataset
    missing = targets.reshape(len(targets), -1).isnan().all(1)
    if missing.all():
        raise DataError(f"none of the {len(targets)} samples has a label: scoring models needs labels.")
    if not missing.any():
        return dataset
    rank_zero_warn(f"{int(missing.sum())} of {len(targets)} samples have no label and are left out.")
    return Subset(dataset, (~missing).nonzero()[:, 0].tolist())


def _mix(trainer: FederatedTrainer, shared: list[Path], out: Path | None, monitor: str | None) -> Personalization:
    reports = [_evaluate(trainer, _load(trainer, path)) for path in shared]
    scored = summarize({k: of_model[_SCORED].metrics for k, of_model in enumerate(reports)})
    name = monitored_metric(scored, monitor, default_score(scored), "personalize")
    metric = scored[name]
    values = torch.tensor([metric.clients.get(k, math.nan) for k in range(len(shared))], dtype=torch.float64)
    if values.isnan().all():
        raise ConfigurationError(f"{name} is NaN for all {len(shared)} shared models: set another monitor.")
    importance = importance_weights(name, values, metric.higher_is_better)
    mixture = mixture_weights(values, metric.higher_is_better)
    personal_weights = _mixture(trainer, shared, mixture.tolist())
    uniform = [ClientReport()] * len(reports[0])
    if values.isfinite().all():  # a model that diverged only affects the uniform mixture
        uniform = _evaluate(trainer, _mixture(trainer, shared, [1.0] * len(shared)))
    personal = _evaluate(trainer, personal_weights)
    if out is not None:
        trainer.loop.flat.load(personal_weights)
        save_atomically(model_checkpoint(trainer.module, load_model_checkpoint(shared[0]).get("epoch", 0)), out)
    counts = trainer.datamodule.num_samples("val")
    part = _HELD_OUT if counts[_HELD_OUT] else _SCORED
    return Personalization(
        monitor=name,
        higher_is_better=metric.higher_is_better,
        values=values.tolist(),
        importance=importance,
        mixture=mixture,
        num_scored=counts[_SCORED],
        num_held_out=counts[_HELD_OUT],
        shared=summarize({k: of_model[part].metrics for k, of_model in enumerate(reports)}),
        uniform={key: logged.value for key, logged in uniform[part].metrics.items()},
        personal={key: logged.value for key, logged in personal[part].metrics.items()},
    )


def _evaluate(trainer: FederatedTrainer, weights: Weights) -> list[ClientReport]:
    """Metrics of a model on each non-empty part of the samples."""
    trainer.loop.call("on_validation_start")
    reports = [trainer.loop.evaluator.evaluate(part, weights, "val") for part in (_SCORED, _HELD_OUT)]
    trainer.loop.call("on_validation_end")
    return [report for report in reports if report is not None]


def _load(trainer: FederatedTrainer, path: Path) -> Weights:
    load_weights(trainer.module, path, load_model_checkpoint(path))
    if trainer.loop.flat.new_tensors():  # of layers that on_load_checkpoint makes
        trainer.loop.flat.add_late_parameters()
    return trainer.loop.flat.collect().clone()


def _mixture(trainer: FederatedTrainer, shared: Sequence[Path], shares: Sequence[float]) -> Weights:
    """``sum_k s_k w_k / sum_k s_k`` over the models with positive share."""
    chosen = [(path, share) for path, share in zip(shared, shares, strict=True) if share > 0]
    total = WeightedSum(_load(trainer, chosen[0][0]))
    for path, share in chosen:
        try:
            total.add_(_load(trainer, path), share)
        except TrainingError as error:
            what = f"{path} cannot be averaged with {chosen[0][0].name}: one of them diverged"
            raise CheckpointError(f"{what}, its weights are not finite or too large. Remove it.") from error
    return total.value(math.fsum(share for _, share in chosen))
