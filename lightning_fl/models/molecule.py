"""Model of molecules that predicts numbers or classes, such as a solubility or a toxicity, from molecular graphs."""

from collections.abc import Mapping
from functools import partial
from math import prod
from typing import Annotated, Any, Literal

import torch
from annotated_types import Ge
from lightning.fabric.utilities.rank_zero import rank_zero_info
from torch import Tensor
from torchmetrics import MeanAbsoluteError, MeanSquaredError

from lightning_fl.core.errors import ConfigurationError, DataError
from lightning_fl.core.validation import Count, NonNegative, Positive, Size, check_arguments
from lightning_fl.functional.task_metrics import TaskName, TaskOutputs, bounded_error
from lightning_fl.models.base import Model, OptimizerName, ProperFraction, check_optimizer
from lightning_fl.models.encoders import EncoderName
from lightning_fl.models.molecule_network import MoleculeNetwork, ReadoutName
from lightning_fl.models.scores import SkippedTargets, log_scores
from lightning_fl.models.tasks import TASKS, Task, check_options, infer_task
from lightning_fl.models.training_targets import gather_statistics, gather_summaries, pool_ranges, target_ranges

#: Task until it is known; the weights of recipes that predict one number are drawn for it.
_UNKNOWN_TASK: TaskName = "regression"


class MoleculeModel(MoleculeNetwork, Model):
    """Regression or classification of molecular graphs: encoder of atoms, readout to one vector, head for the targets.

    Works on PyG batches: ``batch.x`` [V, A] atom features, ``batch.edge_index`` [2, E], ``batch.edge_attr`` [E, B] bond
    features, ``batch.batch`` [V] molecule of each atom, ``batch.y`` [G, T] targets with NaN for a missing value,
    ``batch.num_graphs`` G, and with censored targets ``batch.y_bound`` [G, T] (0: a value, -1: at most this, +1: at
    least this). Missing values count neither in the loss nor in metrics.

    ==============  ================================  ====================  ==============================
    task            targets                           predictions           loss
    ==============  ================================  ====================  ==============================
    regression      numbers, exact or bounds          [G, T], data's units  squared error, standardised
    classification  0 or 1                            [G, T], P(class 1)    binary cross-entropy
    multiclass      class numbers, 0 to C - 1         [G, T, C]             cross-entropy
    ==============  ================================  ====================  ==============================

    Logs ``loss`` and the metrics of :func:`~lightning_fl.functional.task_metrics.task_scores`, means over the targets
    as ``SPLIT/NAME`` and those of each target as ``SPLIT/NAME/TARGET``, and for a regression ``rmse`` and ``mae`` over
    all values in the data's units. A warning names the targets left out of a mean, once per split and client.

    The parts are ``encoder``, ``readout`` and ``head``. The output of ``readout`` is the [G, D] graph embeddings, and
    only the head follows, so that a forward hook there can mix the embeddings of two molecules.

    The scale of the targets is learned from training data at the start of the first fit, and then fixed: a model that
    is trained further elsewhere keeps the scale of its weights. It comes from the trainer's method
    ``target_statistics() -> (mean [T], std [T])`` (over all clients), or else from one pass over the training loader.
    In a loop without Lightning's hooks call :meth:`set_target_statistics`.

    Args:
        encoder: "gcn", "gat", "gin", "gine", "mpnn", "dmpnn" or "attentivefp", see
            :func:`lightning_fl.models.encoders.build_encoder`; "gcn" and "gin" ignore the bond features. Or
            "fingerprint": fully connected layers on the molecules' descriptors alone, without a graph or a readout.
        node_dim: number A of atom features; ``None`` for that of this package's featuriser.
        edge_dim: number B of bond features; ``None`` for that of this package's featuriser.
        hidden_dim: size of the atom vectors and of the head's hidden layer.
        num_layers: message passing layers (steps, for "mpnn").
        readout: "mean", "sum" or "max" over a molecule's atoms, or "set2set" (Vinyals et al. 2016,
            https://arxiv.org/abs/1511.06391; twice as wide), or "attentivefp", that of
            :mod:`~lightning_fl.models.attentive_fp`. A "sum", and its gradient, grow with the molecule: it learns fast
            under plain "sgd", but where it diverges it needs less momentum or a smaller learning rate.
        dropout: probability that an entry of a hidden layer is zeroed in training.
        virtual_node: add a node to every molecule that is bonded to all its atoms
            (:class:`~lightning_fl.models.molecule_network.VirtualNode`).
        descriptor_dim: number F of descriptors of every molecule, ``batch.descriptors`` [G, F], which join the
            readout's output before the head. ``None`` for the data module's (its ``features``).
        standardize_descriptors: learn the descriptors' mean and scale like those of the targets; else as they are.
        task: "regression", "classification" or "multiclass"; ``None`` to infer it from the training targets of all
            clients, of which only counts and ranges leave a client: classification if all are 0 or 1, else regression.
        num_targets: number T of values to predict; ``None`` for that of the training targets.
        num_classes: number C of classes for "multiclass"; ``None`` for the largest label in the training targets + 1.
        class_weights: factor of the losses of class 1: "balanced" for negatives / positives in the training targets of
            all clients, a number, or one for each target; for several classes only "balanced".
        task_weights: factors of the targets' losses, T numbers.
        min_positives: a client's mean leaves out, with a warning, targets with fewer labels 1 in the client's split.
        min_negatives: the same for labels 0.
        log_targets: largest number of targets that are logged one by one; with more, only the means are.
        learning_rate: learning rate of the optimiser.
        optimizer: "sgd" or "adam".
        momentum: momentum of "sgd".
        weight_decay: L2 penalty of the optimiser.
        standardize_targets: learn the targets' mean and scale; else use 0 and 1.

    Raises:
        ConfigurationError: an argument is out of range, or does not fit a batch.
        DataError: a target has no finite training data to learn its scale from, or labels that do not fit the task.

    Example:
        >>> model = MoleculeModel(encoder="mpnn", node_dim=9, edge_dim=4, hidden_dim=64)
        >>> model.hparams.hidden_dim
        64
    """

    target_mean: Tensor
    target_scale: Tensor
    target_learned: Tensor
    class_factors: Tensor | None

    def __init__(
        self,
        *,
        encoder: EncoderName = "gcn",
        node_dim: Count | None = None,
        edge_dim: Count | None = None,
        hidden_dim: Count = 128,
        num_layers: Count = 3,
        readout: ReadoutName = "mean",
        dropout: ProperFraction = 0.0,
        virtual_node: bool = False,
        descriptor_dim: Size | None = None,
        standardize_descriptors: bool = True,
        task: TaskName | None = None,
        num_targets: Count | None = None,
        num_classes: Annotated[int, Ge(2)] | None = None,
        class_weights: Literal["balanced"] | Positive | list[Positive] | None = None,
        task_weights: list[NonNegative] | None = None,
        min_positives: Count = 1,
        min_negatives: Count = 1,
        log_targets: Size = 30,
        learning_rate: Positive = 0.01,
        optimizer: OptimizerName = "sgd",
        momentum: ProperFraction = 0.0,
        weight_decay: NonNegative = 0.0,
        standardize_targets: bool = True,
    ) -> None:
        check_arguments(MoleculeModel.__init__, locals())
        super().__init__()
        if node_dim is None or edge_dim is None:
            # Imported here: RDKit loads slowly, and is not needed with other features.
            from lightning_fl.data.molecules.featurizer import ATOM_DIM, BOND_DIM

            node_dim = ATOM_DIM if node_dim is None else node_dim
            edge_dim = BOND_DIM if edge_dim is None else edge_dim
        check_optimizer(optimizer, momentum)
        if task_weights is not None and not any(task_weights):
            raise ConfigurationError(f"task_weights={task_weights}: at least one must be above 0.")
        # Only now, when the two sizes are known, so that checkpoints have numbers.
        self.save_hyperparameters()
        check_options(self.hparams, task, num_targets)
        self.build_parts(prod(self._shape))
        self._register_targets()
        self.val_rmse, self.val_mae = MeanSquaredError(squared=False), MeanAbsoluteError()
        self.test_rmse, self.test_mae = MeanSquaredError(squared=False), MeanAbsoluteError()
        self.val_outputs, self.test_outputs = TaskOutputs(), TaskOutputs()
        self._left_out = SkippedTargets()

    @property
    def task(self) -> TaskName:
        """The task; regression until it is known."""
        return self.hparams["task"] or _UNKNOWN_TASK

    @property
    def num_targets(self) -> int:
        """Number T of targets; 1 until it is known."""
        return self.hparams["num_targets"] or 1

    @property
    def num_classes(self) -> int:
        """Number C of classes: 2 for a classification, 1 for a regression."""
        return self._task.classes or self.hparams["num_classes"] or 2

    @property
    def _task(self) -> Task:
        return TASKS[self.task]

    @property
    def _shape(self) -> tuple[int, ...]:
        """Shape of a molecule's outputs, [T] or [T, C]."""
        return self._task.shape(self.num_targets, self.num_classes)

    @property
    def _is_resolved(self) -> bool:
        given = self.hparams
        return None not in (given["task"], given["num_targets"], self._task.classes or given["num_classes"])

    def setup(self, stage: str) -> None:
        """Determine the task if the arguments leave it open, and refuse training targets that do not fit it.

        It is the task of the checkpoint's model if the run resumes one, else that of the training targets, in any
        stage. The number of descriptors is that of the data module.
        """
        self._left_out = SkippedTargets()  # warns once per run
        data = getattr(self.trainer, "datamodule", None)
        self._complete_from(getattr(self.trainer, "checkpoint_hyper_parameters", {}))
        if self.hparams["descriptor_dim"] is None:
            self.add_descriptors(getattr(data, "descriptor_dim", 0))
        resolved = self._is_resolved
        self._task.refuse_bounds(data)
        if resolved and (stage != "fit" or not self._task.labelled):
            return
        ranges = gather_summaries(self, target_ranges)
        if ranges is None and stage == "fit" and not resolved:
            given = "task, num_targets (num_classes) and standardize_targets=False"
            raise DataError(f"no batch to learn the targets' scale or task from: give training data, or {given}.")
        if ranges is None or self.hparams["num_targets"] not in (None, ranges.shape[-1]):
            return  # the error at the first batch gives the number that there should be
        pooled = pool_ranges(ranges)
        task, num_classes, words = infer_task(pooled, self.hparams["task"], self.hparams["num_classes"])
        TASKS[task].refuse_bounds(data)
        if not resolved:
            self._resolve(task, pooled.shape[1], num_classes)
            rank_zero_info(f"task: {words}")
        if stage == "fit" and self._task.labelled:
            self._check_other_labels()

    def _check_other_labels(self) -> None:
        """Refuse validation and test labels that do not fit the task, before training."""
        summaries = getattr(self.trainer, "target_summaries", None)
        if summaries is None:  # they are checked in each batch
            return
        data: Any = getattr(self.trainer, "datamodule")  # noqa: B009 - of a federated run
        names, targets = data.client_names(), getattr(data, "target_names", None)
        for split in ("val", "test"):
            for client, ranges in enumerate(summaries(target_ranges, split)):
                what = f"the {split} labels of client {client} ({names[client]})"
                self._task.check_labels(self.num_classes, ranges, what, targets)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Complete open arguments from a checkpoint's model."""
        known = checkpoint.get("hyper_parameters")
        if isinstance(known, Mapping):
            self._complete_from(known)

    def _complete_from(self, known: Mapping[str, Any]) -> None:
        """Complete open arguments from another model's hyper-parameters; without ``task``, it was a regression."""
        if self.hparams["descriptor_dim"] is None and known:
            self.add_descriptors(known.get("descriptor_dim") or 0)
        task, num_targets = known.get("task", _UNKNOWN_TASK), known.get("num_targets")
        if self._is_resolved or task is None or num_targets is None:
            return
        if self.hparams["task"] in (None, task) and self.hparams["num_targets"] in (None, num_targets):
            self._resolve(task, num_targets, self.hparams["num_classes"] or known.get("num_classes") or 2)

    def _resolve(self, task: TaskName, num_targets: int, num_classes: int) -> None:
        """Fix the task, and resize the last layer for it."""
        check_options(self.hparams, task, num_targets)
        self.hparams["task"], self.hparams["num_targets"] = task, num_targets
        if TASKS[task].classes is None:
            self.hparams["num_classes"] = num_classes
        self.resize_outputs(prod(self._shape))
        self._register_targets()

    def _register_targets(self) -> None:
        device = next(self.head.parameters()).device
        self.register_buffer("target_mean", torch.zeros(self.num_targets, device=device))
        self.register_buffer("target_scale", torch.ones(self.num_targets, device=device))
        self.register_buffer("target_learned", torch.tensor(0, device=device))
        weighted = self.hparams["class_weights"] is not None
        self.register_buffer("class_factors", torch.ones(self._shape, device=device) if weighted else None)

    def forward(self, batch: Any) -> Tensor:
        """Predict [G, T] values in the data's units or probabilities of class 1; or [G, T, C] of all classes."""
        return self._to_predictions(self.raw_outputs(batch))

    def on_fit_start(self) -> None:
        """Learn the scales of descriptors and targets, or the class weights, from the training data, once."""
        if (scale := self.descriptor_scale) is not None:
            scale.learn(partial(gather_statistics, self, "descriptors"))
        if not self.target_learned:
            self._task.fit(self)

    def set_target_statistics(self, mean: Tensor, std: Tensor) -> None:
        """Set the shift [T] and the scale [T] of the targets, in the data's units; a scale of 0 becomes 1."""
        mean, std = torch.as_tensor(mean).double(), torch.as_tensor(std).double()
        if mean.shape != self.target_mean.shape or std.shape != self.target_scale.shape:
            given = f"means of shape {list(mean.shape)} and scales of shape {list(std.shape)}"
            raise ConfigurationError(f"num_targets={self.num_targets}: got {given}; set num_targets={mean.numel()}.")
        if missing := (~(mean.isfinite() & std.isfinite())).nonzero().flatten().tolist():
            raise DataError(f"targets {missing} (counted from 0) have no finite mean or scale: leave them out.")
        self.target_mean.copy_(mean)
        self.target_scale.copy_(torch.where(std > 0, std, 1.0))
        self.target_learned.fill_(1)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """Compute the loss on standardised targets."""
        loss = self._loss(self.raw_outputs(batch), batch)
        self.log("train/loss", loss, on_step=False, on_epoch=True, batch_size=batch.num_graphs)
        return loss

    def on_validation_epoch_end(self) -> None:
        log_scores(self, "val", self._left_out)

    def on_validation_end(self) -> None:
        self._left_out.warn(self.trainer, "val")

    def on_test_epoch_end(self) -> None:
        log_scores(self, "test", self._left_out)

    def on_test_end(self) -> None:
        self._left_out.warn(self.trainer, "test")

    def raw_outputs(self, batch: Any) -> Tensor:
        """Compute standardised values or logits, [G, T] or [G, T, C]."""
        outputs, shape = self.head(self.embed(batch)), self._shape
        return outputs.unflatten(1, shape) if len(shape) > 1 else outputs

    def _loss(self, outputs: Tensor, batch: Any) -> Tensor:
        self._check_targets(batch)
        target, weights = batch.y.to(self.target_mean), self.hparams["task_weights"]
        task_weights = None if weights is None else target.new_tensor(weights)
        return self._task.loss(self, outputs.to(target), target, getattr(batch, "y_bound", None), task_weights)

    def _to_predictions(self, outputs: Tensor) -> Tensor:
        # Leave an autocast's half precision first: the mean may be large compared with the differences.
        return self._task.predictions(self, outputs.to(self.target_mean))

    def _evaluate(self, batch: Any, split: str) -> None:
        outputs = self.raw_outputs(batch)
        present = ~batch.y.isnan()
        count = int(present.sum())
        if not count:
            self._check_targets(batch)
            return
        if self._task.labelled:
            self._task.check_labels(self.num_classes, target_ranges(batch.y), f"{split} labels of a batch")
        loss = self._loss(outputs, batch)
        prediction, bound = self._to_predictions(outputs), getattr(batch, "y_bound", None)
        getattr(self, f"{split}_outputs").update(prediction, batch.y, bound)
        if metrics := {f"{split}/{name}": getattr(self, f"{split}_{name}") for name in self._task.over_values}:
            if bound is not None:
                prediction = batch.y + bounded_error(prediction, batch.y, bound)
            for metric in metrics.values():
                metric.update(prediction[present], batch.y[present])
            self.log_dict(metrics, on_epoch=True, batch_size=batch.num_graphs)
        self.log(f"{split}/loss", loss, on_epoch=True, batch_size=count)

    def _check_targets(self, batch: Any) -> None:
        expected = (batch.num_graphs, self.num_targets)
        if tuple(batch.y.shape) != expected:
            what = f"the batch has y of shape {list(batch.y.shape)} instead of {list(expected)}"
            raise ConfigurationError(f"num_targets={expected[1]}: {what}; set it to the number of target columns.")
        if self._task.labelled and "y_bound" in batch:
            raise DataError(f"y_bound: the batch has censored values, which task={self.task!r} does not support.")
