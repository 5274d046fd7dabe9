"""Classification networks by name: from images or vectors to one logit per class.

Each is a :class:`Network`: an ``encoder`` (samples -> embeddings [B, D]) and the last linear layer ``classifier``
(embeddings -> logits [B, C]), so that algorithms that treat the two differently (personal heads, mixing of embeddings)
find them under the same names. All sizes follow from the arguments; no layer is lazy.

============  =========================================================================  ==========================
name          layers before the classifier                                               as in
============  =========================================================================  ==========================
``mlp``       fully connected 200, 200 on the flattened sample                           FedCollab, Fashion-MNIST
``lenet5``    5x5 convolutions 6, 16, each max-pooled; 120, 84                           DPFL, CIFAR-10
``cnn3``      padded 5x5 convolutions 64, 64, 128 with batch normalisation, the first    FedBN, Digits; named by
              two max-pooled; 2048, 512 with batch normalisation                         HCCT
``cnn4``      padded 3x3 convolutions 32, 32, 64, 64, max-pooled in pairs; 128           HCCT, CIFAR-10
``cnn5``      3x3 convolutions 32, 64, 64, the first two max-pooled; 64                  FedCollab, CIFAR-10
``cnn_pifl``  padded 3x3 convolutions 32, 64, 64, the first two max-pooled; 128          PI-FL, CIFAR-10
``resnet18``  torchvision's residual network                                             FedCollab, CIFAR-100
============  =========================================================================  ==========================

Every convolution and fully connected layer is followed by a ReLU. The sources: FedCollab, Bao et al. 2023
(https://arxiv.org/abs/2306.06508); DPFL, Kharrat et al. 2024 (https://arxiv.org/abs/2406.06520), whose network for
FEMNIST is ``lenet5`` with channels 4, 12 and hidden sizes 120, 100; HCCT, "How to Collaborate: Towards Maximizing the
Generalization Performance in Cross-Silo Federated Learning" (https://arxiv.org/abs/2401.13236); FedBN, Li et al. 2021
(https://arxiv.org/abs/2102.07623); PI-FL, Khan et al. 2023 (https://arxiv.org/abs/2304.07514); residual networks, He et
al. 2016 (https://arxiv.org/abs/1512.03385).

Differs from the papers: for ``cnn4`` HCCT gives only the number of convolutions; widths and pooling are ours. PI-FL
gives the widths and the 3136 inputs of the fully connected layer, 64 maps of 7 x 7: padded convolutions and two
poolings of a 28 x 28 image (for a 32 x 32 image they are 4096).
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from math import prod
from typing import Annotated, Literal

from annotated_types import Ge
from torch import Tensor, nn

from lightning_fl.core.errors import ConfigurationError
from lightning_fl.core.validation import Count, checked
from lightning_fl.engine.batches.transfer import channels_last
from lightning_fl.models.base import ProperFraction

NetworkName = Literal["mlp", "lenet5", "cnn3", "cnn4", "cnn5", "cnn_pifl", "resnet18"]
StemName = Literal["imagenet", "small"]

_RESNET_DIM = 512


class ChannelsLast(nn.Module):
    """Rearrange images [B, C, H, W] in memory with the channels innermost; shape and values are unchanged.

    Convolutions keep the memory layout of their inputs, and on a CPU a training step is a third faster in this one.
    Converting the inputs alone gains as much as storing the weights that way, which is impossible for views of one flat
    vector. On other devices the images are returned unchanged.
    """

    def forward(self, images: Tensor) -> Tensor:
        return channels_last(images) if images.device.type == "cpu" else images


class Network(nn.Module):
    """An encoder, samples [B, *in_shape] -> embeddings [B, D], and the linear layer that classifies its embeddings.

    A training batch needs ``min_batch_size`` samples: 2 if the network normalises single values over it.
    """

    def __init__(
        self, *, encoder: nn.Module, embedding_dim: int, in_shape: Sequence[int], num_classes: int, min_batch_size: int
    ) -> None:
        super().__init__()
        self.in_shape = tuple(in_shape)
        self.min_batch_size = min_batch_size
        self.encoder = encoder
        self.classifier = nn.Linear(embedding_dim, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Compute logits [B, C] of samples [B, *in_shape]."""
        return self.classifier(self.encoder(x))


@dataclass(frozen=True)
class _Design:
    """Stack of convolutions, some followed by 2x2 max-pooling, and fully connected layers."""

    channels: tuple[int, ...]
    kernel_size: int
    padding: int
    pooled: tuple[int, ...]  # convolutions, counted from 0, followed by pooling
    hidden_sizes: tuple[int, ...]
    batch_norm: bool = False  # after every layer, before its ReLU

    def out_side(self, side: int) -> int:
        """Compute height (or width) of the last feature maps from that of the images; 0 if these are too small."""
        for layer in range(len(self.channels)):
            side += 2 * self.padding - self.kernel_size + 1
            if layer in self.pooled:
                side //= 2
            if side < 1:
                return 0
        return side


_DESIGNS: dict[str, _Design] = {
    "mlp": _Design((), 1, 0, (), (200, 200)),
    "lenet5": _Design((6, 16), 5, 0, (0, 1), (120, 84)),
    "cnn3": _Design((64, 64, 128), 5, 2, (0, 1), (2048, 512), batch_norm=True),
    "cnn4": _Design((32, 32, 64, 64), 3, 1, (1, 3), (128,)),
    "cnn5": _Design((32, 64, 64), 3, 0, (0, 1), (64,)),
    "cnn_pifl": _Design((32, 64, 64), 3, 1, (0, 1), (128,)),
}


@checked
def build_network(
    name: NetworkName,
    in_shape: Sequence[Count],
    num_classes: Annotated[int, Ge(2)],
    *,
    channels: Sequence[Count] | None = None,
    hidden_sizes: Sequence[Count] | None = None,
    dropout: ProperFraction = 0.0,
    stem: StemName | None = None,
) -> Network:
    """Build a network of the table above, with new weights from torch's default generator.

    Args:
        name: name of the architecture.
        in_shape: shape of one sample: [channels, height, width] of an image, or [D] of a vector (for "mlp").
        num_classes: number C of classes, at least 2.
        channels: see :class:`~lightning_fl.models.vision.ClassificationModel`.
        hidden_sizes: see there; an "mlp" without any is logistic regression.
        dropout: see there; for "resnet18", in the embedding.
        stem: layers of "resnet18" before the residual blocks: "imagenet" (the default), a 7x7 convolution and
            max-pooling that reduce the image to a quarter of its side; or "small", a 3x3 convolution at full size.

    Example:
        >>> network = build_network("cnn5", [3, 32, 32], 10)
        >>> network(torch.zeros(4, 3, 32, 32)).shape
        torch.Size([4, 10])
    """
    _check_sizes(name, in_shape, channels, hidden_sizes)
    encoder: nn.Module
    embedding_dim, min_batch_size = _RESNET_DIM, 1
    if name == "resnet18":
        encoder, min_batch_size = _resnet18(in_shape, dropout, stem or "imagenet")
    else:
        if stem is not None:
            raise ConfigurationError(f"stem={stem!r}: only network='resnet18' has it; omit it.")
        design, layers, embedding_dim = _DESIGNS[name], OrderedDict[str, nn.Module](), prod(in_shape)
        if design.channels:
            embedding_dim = _add_convolutions(layers, name, in_shape, channels)
        layers["flatten"] = nn.Flatten()
        hidden = design.hidden_sizes if hidden_sizes is None else hidden_sizes
        for number, size in enumerate(hidden, start=1):
            layers[f"fc{number}"] = nn.Linear(embedding_dim, size)
            if design.batch_norm:
                layers[f"fc{number}_norm"], min_batch_size = nn.BatchNorm1d(size), 2
            layers[f"fc{number}_relu"] = nn.ReLU()
            layers[f"fc{number}_dropout"] = nn.Dropout(dropout)
            embedding_dim = size
        encoder = nn.Sequential(layers)
    sizes = {"embedding_dim": embedding_dim, "num_classes": num_classes, "min_batch_size": min_batch_size}
    return Network(encoder=encoder, in_shape=in_shape, **sizes)


def _check_sizes(
    name: str, in_shape: Sequence[int], channels: Sequence[int] | None, hidden_sizes: Sequence[int] | None
) -> None:
    lengths = (1, 3) if name == "mlp" else (3,)
    if len(in_shape) not in lengths:
        shapes = "[channels, height, width]" + (", or [features]" if name == "mlp" else "")
        raise ConfigurationError(f"in_shape={list(in_shape)}: network={name!r} takes {shapes}.")
    expected = len(_DESIGNS[name].channels) if name in _DESIGNS else 0
    if channels is not None and len(channels or [0]) != expected:
        advice = f"{expected} convolutions; give {expected} numbers" if expected else "none to choose; omit it"
        raise ConfigurationError(f"channels={list(channels)}: network={name!r} has {advice}.")
    if hidden_sizes is not None and name == "resnet18":
        raise ConfigurationError(f"hidden_sizes={list(hidden_sizes)}: network='resnet18' has no hidden layer; omit it.")


def _add_convolutions(
    layers: OrderedDict[str, nn.Module], name: str, in_shape: Sequence[int], channels: Sequence[int] | None
) -> int:
    """Add the convolutions and return the number of values in their output."""
    design = _DESIGNS[name]
    width, *sides = in_shape
    out_sides = [design.out_side(side) for side in sides]
    if min(out_sides) < 1:
        least = next(side for side in count(1) if design.out_side(side) > 0)
        needed = f"network={name!r} needs images of at least {least} x {least} pixels"
        raise ConfigurationError(f"in_shape={list(in_shape)}: {needed}; enlarge them or choose another network.")
    layers["channels_last"] = ChannelsLast()
    for index, out_width in enumerate(channels or design.channels):
        number = index + 1
        layers[f"conv{number}"] = nn.Conv2d(width, out_width, design.kernel_size, padding=design.padding)
        if design.batch_norm:
            layers[f"conv{number}_norm"] = nn.BatchNorm2d(out_width)
        layers[f"conv{number}_relu"] = nn.ReLU()
        if index in design.pooled:
            layers[f"conv{number}_pool"] = nn.MaxPool2d(2)
        width = out_width
    return width * prod(out_sides)


def _resnet18(in_shape: Sequence[int], dropout: float, stem: StemName) -> tuple[nn.Module, int]:
    """Build the residual network without its last layer; return it and the least size of a training batch."""
    width, *sides = in_shape
    # Without ChannelsLast, which did not speed it up in measurements.
    from torchvision.models import resnet18

    network = resnet18(weights=None)
    network.fc = nn.Dropout(dropout)
    if stem == "small":
        network.conv1 = nn.Conv2d(width, 64, 3, padding=1, bias=False)
        network.maxpool = nn.Identity()
    elif width != 3:
        network.conv1 = nn.Conv2d(width, 64, 7, stride=2, padding=3, bias=False)
    # Three of the four stages halve the maps, rounding up; the last normalises H * W values per sample and channel.
    reduction = 8 if stem == "small" else 32
    return network, 2 if all(side <= reduction for side in sides) else 1
