"""Shifts between clients: equal images look different, or equal labels mean different classes.

A shift is a deterministic function of the client and its samples, applied once when the data are partitioned. (To
corrupt training labels only, use the callback :class:`~lightning_fl.callbacks.LabelNoise`.)
"""

from collections.abc import Sequence
from typing import Annotated

import torch
from annotated_types import Interval
from torch import Tensor

from lightning_fl.core.errors import ConfigurationError
from lightning_fl.core.validation import Count, Size, checked, checked_fields
from lightning_fl.data.partition.partitioner import Scheme


class Shift(Scheme):
    """Base class of shifts; by itself it changes nothing.

    A custom shift overrides :meth:`images` or :meth:`labels`, and perhaps :meth:`check`.
    """

    def images(self, client: int, images: Tensor, labels: Tensor) -> Tensor:
        """Shift a client's images, uint8 [n, C, H, W], with ``labels`` int64 [n], leaving the input unchanged."""
        return images

    def labels(self, client: int, labels: Tensor, num_classes: int) -> Tensor:
        """Shift a client's labels ``0..num_classes-1``, int64 [n], leaving the input unchanged."""
        return labels

    def check(self, num_clients: int, num_classes: int) -> None:
        """Refuse numbers of clients and classes that the shift does not fit, with ``ConfigurationError``."""


@checked_fields
class Rotation(Shift):
    """Feature shift: rotate images, by an angle for each block of clients.

    Client i gets ``degrees[i // clients_per_value]``. Positive angles are counter-clockwise about the centre; images
    keep their size, pixels are interpolated bilinearly, and new corners are black. The default is the feature shift of
    FedCollab (https://arxiv.org/abs/2306.06508, section 5.1).

    Args:
        degrees: angles, in degrees.
        clients_per_value: clients with the same angle.
    """

    degrees: Sequence[Annotated[float, Interval()]] = (25, -25, 155, -155)
    clients_per_value: Count = 5

    def __post_init__(self) -> None:
        if len(self.degrees) == 0:
            raise ConfigurationError("degrees=[]: must have at least one angle.")
        self.degrees = list(self.degrees)

    def images(self, client: int, images: Tensor, labels: Tensor) -> Tensor:
        from torchvision.transforms.v2 import InterpolationMode
        from torchvision.transforms.v2.functional import rotate

        return rotate(images, self.degrees[client // self.clients_per_value], interpolation=InterpolationMode.BILINEAR)

    def check(self, num_clients: int, num_classes: int) -> None:
        _check_blocks(self, len(self.degrees), self.clients_per_value, num_clients)


@checked_fields
class LabelPermutation(Shift):
    """Concept shift: renumber labels, by a permutation for each block of clients.

    Client i's label ``y`` becomes ``permutations[i // clients_per_value][y]``.

    Args:
        permutations: permutations of the labels ``0..C-1``.
        clients_per_value: clients with the same permutation.
    """

    permutations: list[list[Size]]
    clients_per_value: Count = 5

    def __post_init__(self) -> None:
        if len(self.permutations) == 0:
            raise ConfigurationError("permutations=[]: must have at least one.")
        num_classes = max(1, len(self.permutations[0]))
        for number, permutation in enumerate(self.permutations):
            if sorted(permutation) != list(range(num_classes)):
                raise ConfigurationError(f"permutations[{number}]={list(permutation)}: permute 0..{num_classes - 1}.")

    def labels(self, client: int, labels: Tensor, num_classes: int) -> Tensor:
        return torch.tensor(self.permutations[client // self.clients_per_value], device=labels.device)[labels]

    def check(self, num_clients: int, num_classes: int) -> None:
        _check_blocks(self, len(self.permutations), self.clients_per_value, num_clients)
        if (given := len(self.permutations[0])) != num_classes:
            raise ConfigurationError(f"{type(self).__name__}.permutations have {given} labels: give all {num_classes}.")


class FedCollabConceptShift(LabelPermutation):
    """Concept shift of FedCollab: four types of clients with different numbers for the same labels.

    Bao et al., "Optimizing the Collaboration Structure in Cross-Silo Federated Learning" (FedCollab), ICML 2023,
    https://arxiv.org/abs/2306.06508, section 5.1: of CIFAR-100's 20 superclasses 14 have the same label for the first
    two types, and none has a label in common with the other two types. See :func:`concept_permutations`.

    Args:
        num_classes: number of classes.
        num_permuted: classes that differ between the first two types and between the last two, 2 to half of all.
        clients_per_type: clients of each of the four types.
    """

    @checked
    def __init__(
        self,
        *,
        num_classes: Annotated[int, Interval(ge=2, le=100_000)] = 20,
        num_permuted: Annotated[int, Interval(ge=2, le=100_000)] = 6,
        clients_per_type: Count = 5,
    ) -> None:
        super().__init__(
            permutations=concept_permutations(num_classes, num_permuted), clients_per_value=clients_per_type
        )


def concept_permutations(num_classes: int, num_permuted: int) -> list[list[int]]:
    """FedCollab's four numberings of C labels; the first s labels differ within a pair of types.

    Type 0 keeps the labels. Type 1 reverses the labels 0..s-1; if s is odd, when the middle one would not change,
    it shifts each by one instead (the paper: s = 6). Type 2 maps y to C-1-y, type 3 to C-1 minus type 1's label.

    The types 0 and 1 agree on C-s labels, as do 2 and 3. A type of the first pair and one of the second agree nowhere
    if C is even; if C is odd, on the middle label at most. C is at least 2, and s from 2 to C/2.

    >>> concept_permutations(4, 2)
    [[0, 1, 2, 3], [1, 0, 2, 3], [3, 2, 1, 0], [2, 3, 1, 0]]
    """
    if not 2 <= num_permuted <= num_classes / 2:
        raise ConfigurationError(f"num_permuted={num_permuted} of num_classes={num_classes}: give 2 to half of them.")
    kept, moved = list(range(num_classes)), list(range(num_permuted))
    moved = [*moved[1:], 0] if num_permuted % 2 else moved[::-1]
    moved += kept[num_permuted:]
    return [kept, moved, *([num_classes - 1 - label for label in labels] for labels in (kept, moved))]


@checked_fields
class Inversion(Shift):
    """Feature shift: invert the images of some clients (value v becomes 255 - v).

    Args:
        clients: numbers of those clients.
    """

    clients: list[Size]

    def __post_init__(self) -> None:
        if len(self.clients) == 0 or len(set(self.clients)) < len(self.clients):
            raise ConfigurationError(f"clients={self.clients}: must have at least one client number, each once.")

    def images(self, client: int, images: Tensor, labels: Tensor) -> Tensor:
        return 255 - images if client in self.clients else images

    def check(self, num_clients: int, num_classes: int) -> None:
        if max(self.clients) >= num_clients:
            raise ConfigurationError(f"Inversion.clients={self.clients}: must be in 0..{num_clients - 1}.")


def _check_blocks(shift: Shift, num_blocks: int, size: int, num_clients: int) -> None:
    if num_blocks * size != num_clients:
        blocks = f"{num_blocks * size} clients ({num_blocks} blocks of {size}), there are {num_clients}"
        raise ConfigurationError(f"{type(shift).__name__} is for {blocks}: change the clients per block.")
