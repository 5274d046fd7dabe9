"""Conversion of image bytes to normalised floats, with augmentation in training.

Images stay bytes in memory, a quarter of the size, and are converted batch by batch. Augmentations draw from torch's
default generator on the CPU, which the engine seeds for every client and round, so that results depend neither on the
device nor on the previous client.
"""

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import field
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import pad

from lightning_fl.core.errors import ConfigurationError
from lightning_fl.core.pinned_memory import to_device
from lightning_fl.core.validation import NonNegative, Positive, checked_fields
from lightning_fl.data.module import FederatedDataModule

_PADDING = 4
_CHUNK_IMAGES = 1024


def channel_statistics(images: Tensor) -> tuple[list[float], list[float]]:
    """Mean and population standard deviation of every channel of bytes [n, C, H, W], in units of the largest value 255.

    Sums are exact integers. A constant channel gets the deviation 1, so that one can divide by it.
    """
    total = torch.zeros(images.shape[1], dtype=torch.int64)
    squares = torch.zeros_like(total)
    for chunk in images.split(_CHUNK_IMAGES):
        total += chunk.sum((0, 2, 3), dtype=torch.int64)
        squares += chunk.int().square_().sum((0, 2, 3), dtype=torch.int64)
    count = images.numel() // images.shape[1]
    means = [value / (255 * count) for value in total.tolist()]
    # integers of any length: no digits cancel
    pairs = zip(total.tolist(), squares.tolist(), strict=True)
    variances = [(count * square - value**2) / count**2 for value, square in pairs]
    return means, [math.sqrt(variance) / 255 if variance else 1.0 for variance in variances]


def crop_at(images: Tensor, offsets: Tensor, padding: int = _PADDING) -> Tensor:
    """Cut images of the same size out of images [B, C, H, W] with a black border, each at its own position.

    ``offsets`` are the upper and left edges in the bordered image, integers in ``0..2 * padding``, shape [2, B].
    """
    batch, _, height, width = images.shape
    # views of all windows, [B, C, 2 * padding + 1, 2 * padding + 1, H, W]; only the chosen ones are copied
    windows = pad(images, [padding] * 4).unfold(2, height, 1).unfold(3, width, 1)
    return windows[torch.arange(batch, device=images.device), :, offsets[0], offsets[1]]


def flip_where(images: Tensor, flipped: Tensor) -> Tensor:
    """Mirror images [B, C, H, W] left to right where ``flipped`` [B], on the CPU, is true."""
    chosen = to_device(flipped.nonzero().squeeze(1), images.device)
    return images.index_copy(0, chosen, images[chosen].flip(-1))


class ImageTransform:
    """Conversion of batches of bytes to floats: normalised, or from 0 to 1 where ``mean`` is ``None``.

    ``mean`` and ``std`` hold a number per channel, for images from 0 to 1; ``augment`` are the augmentations in
    training of :class:`TransformedImages`.
    """

    def __init__(self, mean: Sequence[float] | None, std: Sequence[float] | None, augment: Sequence[str] = ()) -> None:
        self.augment = list(augment)
        # (x / 255 - mean) / std, as one difference and one product
        self._shift = (255 * torch.tensor(mean or [0.0], dtype=torch.float64)).float()[:, None, None]
        self._scale = (1 / (255 * torch.tensor(std or [1.0], dtype=torch.float64))).float()[:, None, None]

    def __call__(self, images: Tensor, training: bool) -> Tensor:
        """Convert bytes to float32 images [B, C, H, W]; the bytes are unchanged."""
        if training and "crop" in self.augment:
            images = crop_at(images, to_device(torch.randint(0, 2 * _PADDING + 1, (2, len(images))), images.device))
        if training and "flip" in self.augment:
            images = flip_where(images, torch.rand(len(images)) < 0.5)
        if self._shift.device != images.device:
            self._shift, self._scale = self._shift.to(images.device), self._scale.to(images.device)
        return images.float().sub_(self._shift).mul_(self._scale)


@checked_fields
class TransformedImages(FederatedDataModule):
    """Data module with images in memory as bytes; batches are converted to normalised floats, augmented in training.

    A batch is ``[images, labels]``: float32 [B, C, H, W] and int64 [B].

    Args:
        normalize: subtract the mean and divide by the standard deviation of each channel; otherwise values lie in 0..1.
        mean: mean of each channel of images from 0 to 1; ``None`` to compute it from the data's training images,
            including those that are cut from them for validation and test (in ``ImageFolders`` 0.5).
        std: standard deviation of each channel, given with ``mean``; ``None`` to compute it (in ``ImageFolders`` 0.5).
        augment: augmentations of training batches, drawn for every image: ``"crop"`` (a border of 4 black pixels, then
            an image of the same size from a random position) and ``"flip"`` (left to right with probability 1/2).
    """

    normalize: bool = True
    mean: list[NonNegative] | None = None
    std: list[Positive] | None = None
    augment: list[Literal["crop", "flip"]] | None = None
    #: Made when the channels are known.
    _transform: ImageTransform = field(init=False, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.augment = self.augment or []
        mean, std = self.mean, self.std
        if len(set(self.augment)) < len(self.augment):
            raise ConfigurationError(f"augment={self.augment}: name each augmentation once.")
        if len(mean or []) != len(std or []) or (mean is not None and len(mean) not in (1, 3)):
            raise ConfigurationError(f"mean={mean}, std={std}: give both, one number per channel, or neither.")
        if mean is not None and not self.normalize:
            raise ConfigurationError(f"mean={mean} has no effect with normalize=False: omit it, or normalise.")

    def _transform_with(self, mean: Sequence[float] | None, std: Sequence[float] | None, channels: int) -> None:
        """Make the transform; refuse statistics of another number of channels."""
        if mean is not None and len(mean) not in (1, channels):
            raise ConfigurationError(f"mean={mean}: the images have {channels} channels; give one number for each.")
        self._transform = ImageTransform(mean, std, self.augment or ())

    @property
    @abstractmethod
    def class_names(self) -> list[str]:
        """Names of the classes 0, 1, ..., after ``setup``."""

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        return len(self.class_names)

    def on_after_batch_transfer(self, batch: list[Tensor], dataloader_idx: int) -> list[Tensor]:
        images, *others = batch
        # outside of a run nothing is augmented, as in evaluation
        return [self._transform(images, self.trainer is not None and self.trainer.training), *others]
