"""Classifier of images or plain feature vectors, such as the rows of a table."""

from typing import Annotated

from annotated_types import Ge
from torch import Tensor
from torch.nn.functional import cross_entropy
from torchmetrics.classification import MulticlassAccuracy

from lightning_fl.core.errors import ConfigurationError, listed
from lightning_fl.core.validation import Count, NonNegative, Positive, check_arguments
from lightning_fl.models.base import Model, OptimizerName, ProperFraction, check_optimizer, require_pair
from lightning_fl.models.networks import NetworkName, StemName, build_network

#: Batch of samples [B, *in_shape] and labels [B].
LabelledBatch = list[Tensor] | tuple[Tensor, Tensor]


class ClassificationModel(Model):
    """Classification of images or vectors with one of this package's networks and the cross-entropy.

    Batches are ``(x, y)``: ``x`` [B, *in_shape] floating, ``y`` [B] integer labels ``0 .. C-1``. Logs ``train/loss``,
    ``val/loss``, ``val/acc``, ``test/loss`` and ``test/acc`` (the share of correctly classified samples).

    The parts ``network.encoder`` (samples to embeddings [B, D]) and ``network.classifier`` (the last linear layer) can
    be named where an algorithm keeps a head personal or mixes embeddings.

    Args:
        network: "mlp", "lenet5", "cnn3", "cnn4", "cnn5", "cnn_pifl" or "resnet18", see
            :mod:`lightning_fl.models.networks`.
        in_shape: shape of one sample: [channels, height, width] of an image, or [D] of a vector (for "mlp").
        num_classes: number C of classes, at least 2.
        channels: output channels of the convolutions, as many as the network has; ``None`` for its own.
        hidden_sizes: sizes of the fully connected layers before the last; ``None`` for the network's own, an empty list
            for no such layer. Not for "resnet18".
        dropout: probability that an entry is zeroed in training, after every fully connected layer but the last.
        stem: first layers of "resnet18": "imagenet" (the default) or "small", for images of about 32 x 32.
        learning_rate: learning rate of the optimiser.
        optimizer: "sgd" or "adam".
        momentum: momentum of "sgd".
        weight_decay: L2 penalty of the optimiser.
        label_smoothing: share of every training label that is spread evenly over all classes. The losses of validation
            and test use the plain labels.

    Raises:
        ConfigurationError: an argument is out of range or does not fit another, or a batch does not fit
            ``in_shape`` or ``num_classes``.

    Example:
        >>> model = ClassificationModel(network="mlp", in_shape=[1, 28, 28], num_classes=10, learning_rate=0.1)
        >>> model(torch.zeros(2, 1, 28, 28)).shape
        torch.Size([2, 10])
    """

    def __init__(
        self,
        *,
        network: NetworkName,
        in_shape: list[Count],
        num_classes: Annotated[int, Ge(2)],
        channels: list[Count] | None = None,
        hidden_sizes: list[Count] | None = None,
        dropout: ProperFraction = 0.0,
        stem: StemName | None = None,
        learning_rate: Positive = 0.01,
        optimizer: OptimizerName = "sgd",
        momentum: ProperFraction = 0.0,
        weight_decay: NonNegative = 0.0,
        label_smoothing: ProperFraction = 0.0,
    ) -> None:
        check_arguments(ClassificationModel.__init__, locals())
        super().__init__()
        check_optimizer(optimizer, momentum)
        self.save_hyperparameters()
        self._num_classes = num_classes
        self.network = build_network(
            network, in_shape, num_classes, channels=channels, hidden_sizes=hidden_sizes, dropout=dropout, stem=stem
        )
        # Not validated here: the loss checks the labels first.
        self.val_acc = MulticlassAccuracy(num_classes, average="micro", validate_args=False)
        self.test_acc = MulticlassAccuracy(num_classes, average="micro", validate_args=False)

    def forward(self, x: Tensor) -> Tensor:
        """Compute logits [B, C] of samples [B, *in_shape]."""
        if tuple(x.shape[1:]) != self.network.in_shape or not x.is_floating_point():
            shape, what = list(self.network.in_shape), f"samples of shape {list(x.shape[1:])} and type {x.dtype}"
            remedy = "set in_shape to the data's shape, and give floating-point numbers"
            raise ConfigurationError(f"in_shape={shape}: the batch has {what}; {remedy}.")
        return self.network(x)

    def on_fit_start(self) -> None:
        """Compare classes and shape of the images with the data module's before training."""
        data = self.trainer.datamodule  # type: ignore[attr-defined]
        names, shape = getattr(data, "class_names", None), getattr(data, "image_shape", None)
        if isinstance(names, list) and len(names) > self._num_classes:
            what = f"num_classes={self._num_classes}: the data have {len(names)} classes, {listed(names)}"
            raise ConfigurationError(f"{what}; set num_classes={len(names)}.")
        if isinstance(shape, tuple) and shape != self.network.in_shape:
            given = f"in_shape={list(self.network.in_shape)}"
            raise ConfigurationError(f"{given}: the data's images have the shape {list(shape)}; set in_shape to it.")

    def on_train_batch_start(self, batch: LabelledBatch, batch_idx: int) -> None:
        """Check the labels of a client's first batch."""
        # On a GPU a wrong label ends the process in the loss. Checking every batch would make the host wait for it.
        if batch_idx == 0:
            self._check_labels(self._samples_and_labels(batch)[1])

    def training_step(self, batch: LabelledBatch, batch_idx: int) -> Tensor:
        """Compute the cross-entropy, with smoothed labels."""
        x, y = self._samples_and_labels(batch)
        if len(x) < self.network.min_batch_size:
            name = self.hparams["network"]
            remedy = "choose a batch_size that leaves no remainder of one, or drop the last batch"
            raise ConfigurationError(f"network={name!r} cannot train on a batch of one sample: {remedy}.")
        loss = self._loss(self(x), y, self.hparams["label_smoothing"])
        self.log("train/loss", loss, on_step=False, on_epoch=True, batch_size=len(y))
        return loss

    def predict_step(self, batch: LabelledBatch | Tensor, batch_idx: int) -> Tensor:
        """Compute probabilities [B, C] of a batch ``(x, y)``, ``(x,)`` or ``x``."""
        return self(batch if isinstance(batch, Tensor) else batch[0]).float().softmax(dim=1)

    def _evaluate(self, batch: LabelledBatch, split: str) -> None:
        x, y = self._samples_and_labels(batch)
        logits = self(x)
        loss = self._loss(logits, y)
        acc = getattr(self, f"{split}_acc")
        acc.update(logits, y)
        self.log_dict({f"{split}/loss": loss, f"{split}/acc": acc}, on_epoch=True, batch_size=len(y))

    def _loss(self, logits: Tensor, labels: Tensor, label_smoothing: float = 0.0) -> Tensor:
        try:
            return cross_entropy(logits, labels, label_smoothing=label_smoothing)
        except IndexError:  # on a CPU: a label is out of range
            self._check_labels(labels)
            raise

    def _samples_and_labels(self, batch: LabelledBatch) -> tuple[Tensor, Tensor]:
        x, y = require_pair(self, batch, "(samples, labels)")
        if y.shape != x.shape[:1] or y.is_floating_point():
            what = f"labels of shape {list(y.shape)} and type {y.dtype} for {len(x)} samples"
            raise ConfigurationError(f"{what}: give one class, a whole number, per sample.")
        return x, y.long()

    def _check_labels(self, labels: Tensor) -> None:
        if wrong := sorted(set(labels[(labels < 0) | (labels >= self._num_classes)].tolist())):
            what = f"num_classes={self._num_classes}: the batch has the labels {wrong}, not only"
            raise ConfigurationError(f"{what} 0 to {self._num_classes - 1}; raise it, or renumber the labels.")
