"""A classifier of images or of plain feature vectors, such as the rows of a table."""

import torch
from lightning.pytorch import LightningModule
from torch import Tensor
from torch.nn.functional import cross_entropy
from torchmetrics import Metric
from torchmetrics.classification import MulticlassAccuracy

from lightning_fl.core.errors import ConfigurationError, listed
from lightning_fl.core.validation import check_counts, check_numbers
from lightning_fl.models.networks import NetworkName, StemName, build_network
from lightning_fl.models.optimizers import OptimizerName, check_optimizer, make_optimizer

__all__ = ["ClassificationModel"]

#: What data sets yield: samples [B, *in_shape] and labels [B].
LabelledBatch = list[Tensor] | tuple[Tensor, Tensor]


class ClassificationModel(LightningModule):
    """Classification of images or vectors with one of this package's networks and the cross-entropy.

    Works on batches ``(x, y)``: ``x`` [B, *in_shape] floating, ``y`` [B] integer labels ``0 .. C-1``. Logs
    ``train/loss``, ``val/loss``, ``val/acc``, ``test/loss`` and ``test/acc`` (the share of samples classified rightly).

    The network is ``network``, its parts ``network.encoder`` (samples to embeddings [B, D]) and ``network.classifier``
    (the last linear layer): name these where an algorithm keeps a head personal or mixes embeddings.

    Args:
        network: "mlp", "lenet5", "cnn3", "cnn4", "cnn5", "cnn_pifl" or "resnet18", see
            :mod:`lightning_fl.models.networks`.
        in_shape: of one sample: [channels, height, width] of an image, or [D] of a vector (for "mlp").
        num_classes: number C of classes, at least 2.
        channels: output channels of the convolutions instead of the network's own, as many.
        hidden_sizes: of the fully connected layers before the last instead of the network's own; an empty list leaves
            them out. Not for "resnet18".
        dropout: probability that an entry is zeroed in training, after every fully connected layer but the last.
        stem: of "resnet18": "imagenet" (the default) or "small", for images of about 32 x 32.
        weights_file: of "resnet18": a file with torchvision's state dict to start from. It is not among the
            hyper-parameters in checkpoints, which hold all weights.
        learning_rate: of the optimiser.
        optimizer: "sgd" or "adam".
        momentum: of "sgd".
        weight_decay: L2 penalty of the optimiser.
        label_smoothing: share of every training label that is spread over all classes evenly. The losses of validation
            and test are those of the plain labels.

    Raises:
        ConfigurationError: an argument is out of range or does not go with another, or a batch does not fit
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
        in_shape: list[int],
        num_classes: int,
        channels: list[int] | None = None,
        hidden_sizes: list[int] | None = None,
        dropout: float = 0.0,
        stem: StemName | None = None,
        weights_file: str | None = None,
        learning_rate: float = 0.01,
        optimizer: OptimizerName = "sgd",
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        label_smoothing: float = 0.0,
    ) -> None:
        super().__init__()
        check_optimizer(self, optimizer, learning_rate, momentum, weight_decay)
        check_counts(self, in_shape=in_shape, channels=channels, hidden_sizes=hidden_sizes)
        check_counts(self, num_classes=num_classes, at_least=2)
        check_numbers(self, dropout=dropout, at_least=0, below=1)
        check_numbers(self, label_smoothing=label_smoothing, at_least=0, below=1)
        # Without the file: a checkpoint must open where the file is not.
        self.save_hyperparameters(ignore=["weights_file"])
        self.network = build_network(
            network,
            in_shape,
            num_classes,
            channels=channels,
            hidden_sizes=hidden_sizes,
            dropout=dropout,
            stem=stem,
            weights_file=weights_file,
        )
        # Not validated there: the loss has seen the labels before.
        self.val_acc = MulticlassAccuracy(num_classes, average="micro", validate_args=False)
        self.test_acc = MulticlassAccuracy(num_classes, average="micro", validate_args=False)

    def forward(self, x: Tensor) -> Tensor:
        """Logits [B, C] of samples [B, *in_shape]."""
        if tuple(x.shape[1:]) != self.network.in_shape or not x.is_floating_point():
            raise ConfigurationError(
                f"in_shape={list(self.network.in_shape)}: the batch has samples of shape {list(x.shape[1:])} and type"
                f" {x.dtype}; set in_shape to the data's shape, and give floating numbers."
            )
        return self.network(x)

    def on_fit_start(self) -> None:
        """Compare the classes and the images' shape, where the data module tells them, before anybody trains."""
        data = self.trainer.datamodule  # type: ignore[attr-defined]
        names, shape = getattr(data, "class_names", None), getattr(data, "image_shape", None)
        if isinstance(names, list) and len(names) > self._num_classes:
            raise ConfigurationError(
                f"num_classes={self._num_classes}: the data have the {len(names)} classes {listed(names)}; set"
                f" num_classes to {len(names)}."
            )
        if isinstance(shape, tuple) and shape != self.network.in_shape:
            raise ConfigurationError(
                f"in_shape={list(self.network.in_shape)}: the data's images have the shape {list(shape)}; set in_shape"
                " to it, or change it by size and channels of the data."
            )

    def on_train_batch_start(self, batch: LabelledBatch, batch_idx: int) -> None:
        """Check the labels of a client's first batch."""
        # The loss tells of a wrong label too, but on a GPU in a way that ends the process. A look at every batch would
        # make the GPU wait.
        if batch_idx == 0:
            _, labels = self._samples_and_labels(batch)
            if not _in_range(labels, self._num_classes).all():
                raise self._wrong_labels(labels)

    def training_step(self, batch: LabelledBatch, batch_idx: int) -> Tensor:
        """The cross-entropy, with smoothed labels where asked for."""
        x, y = self._samples_and_labels(batch)
        if len(x) < self.network.min_batch_size:
            raise ConfigurationError(
                f"network={self.hparams['network']!r} normalises over the batch and cannot be trained on a batch of"
                " one sample: choose a batch_size that leaves no remainder of one, or drop the last batch."
            )
        loss = self._loss(self(x), y, self.hparams["label_smoothing"])
        self.log("train/loss", loss, on_step=False, on_epoch=True, batch_size=len(y))
        return loss

    def validation_step(self, batch: LabelledBatch, batch_idx: int) -> None:
        """Log ``val/loss`` and ``val/acc``."""
        self._evaluate(batch, "val", self.val_acc)

    def test_step(self, batch: LabelledBatch, batch_idx: int) -> None:
        """Log ``test/loss`` and ``test/acc``."""
        self._evaluate(batch, "test", self.test_acc)

    def predict_step(self, batch: LabelledBatch | Tensor, batch_idx: int) -> Tensor:
        """Probabilities [B, C] of a batch ``(x, y)``, ``(x,)`` or ``x``."""
        return self(batch if isinstance(batch, Tensor) else batch[0]).float().softmax(dim=1)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """The optimiser that the arguments describe."""
        return make_optimizer(self.parameters(), self.hparams)

    @property
    def _num_classes(self) -> int:
        return self.hparams["num_classes"]

    def _evaluate(self, batch: LabelledBatch, split: str, acc: Metric) -> None:
        x, y = self._samples_and_labels(batch)
        logits = self(x)
        loss = self._loss(logits, y)
        acc.update(logits, y)
        self.log_dict({f"{split}/loss": loss, f"{split}/acc": acc}, on_epoch=True, batch_size=len(y))

    def _loss(self, logits: Tensor, labels: Tensor, label_smoothing: float = 0.0) -> Tensor:
        try:
            return cross_entropy(logits, labels, label_smoothing=label_smoothing)
        except IndexError as error:  # a CPU's way to say that a label is no class
            raise self._wrong_labels(labels) from error

    def _samples_and_labels(self, batch: LabelledBatch) -> tuple[Tensor, Tensor]:
        if not isinstance(batch, list | tuple) or len(batch) != 2:
            raise ConfigurationError(
                f"{type(self).__name__} needs batches (samples, labels), this one is a {type(batch).__name__}"
                f"{f' of {len(batch)}' if isinstance(batch, list | tuple) else ''}; let the data set return pairs."
            )
        x, y = batch
        if y.shape != x.shape[:1] or y.is_floating_point():
            raise ConfigurationError(
                f"labels of shape {list(y.shape)} and type {y.dtype} for {len(x)} samples: give one whole number per"
                " sample, its class."
            )
        return x, y.long()

    def _wrong_labels(self, labels: Tensor) -> ConfigurationError:
        wrong = sorted(set(labels[~_in_range(labels, self._num_classes)].tolist()))
        return ConfigurationError(
            f"num_classes={self._num_classes}: the batch has the labels {wrong}, classes are counted 0 to"
            f" {self._num_classes - 1}; set num_classes to the number of classes, or renumber the labels."
        )


def _in_range(labels: Tensor, num_classes: int) -> Tensor:
    return (labels >= 0) & (labels < num_classes)
