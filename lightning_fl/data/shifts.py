"""Shifts between clients: the same pictures look different, or the same labels mean different things.

A shift is a deterministic function of the client and its samples. It is applied once to all of a client's samples,
training and test samples alike, when the data are shared out. (To corrupt training labels only, use the callback
:class:`~lightning_fl.callbacks.LabelNoise`.)
"""

from typing import Any

import torch
from torch import Tensor
from torchvision.transforms.v2 import InterpolationMode
from torchvision.transforms.v2.functional import rotate

from lightning_fl.core.errors import ConfigurationError
from lightning_fl.core.validation import check_counts, check_numbers

__all__ = ["FedCollabConceptShift", "Inversion", "LabelPermutation", "Rotation", "Shift", "concept_permutations"]


class Shift:
    """Changes what some clients' samples look like or mean; by itself it changes nothing.

    A shift of one's own overrides :meth:`images` or :meth:`labels`, and :meth:`check` where it does not fit every
    number of clients and classes.
    """

    def images(self, client: int, images: Tensor, labels: Tensor) -> Tensor:
        """The client's images as it sees them; the input is unchanged.

        Args:
            client: its number.
            images: uint8, shape [n, C, H, W].
            labels: their labels, for shifts that differ between classes, int64, shape [n].

        Returns:
            uint8, shape [n, C, H, W].
        """
        return images

    def labels(self, client: int, labels: Tensor, num_classes: int) -> Tensor:
        """The client's labels as it uses them; the input is unchanged.

        Args:
            client: its number.
            labels: in ``0..num_classes-1``, int64, shape [n].
            num_classes: number of classes.

        Returns:
            Labels in the same range, int64, shape [n].
        """
        return labels

    def check(self, num_clients: int, num_classes: int) -> None:
        """Refuse numbers of clients and classes that the shift is not made for.

        Raises:
            ConfigurationError: if it does not fit.
        """

    def describe(self) -> dict[str, Any]:
        """Name and arguments, for the run's record."""
        return {"name": type(self).__name__} | {
            name: value for name, value in vars(self).items() if not name.startswith("_")
        }


class Rotation(Shift):
    """Feature shift: images are turned, by an angle for each block of clients.

    Client i gets ``degrees[i // clients_per_value]``. Positive angles turn counter-clockwise about the centre; the size
    is kept, pixels are interpolated bilinearly, and corners that come in from outside are black. The default is the
    feature shift of FedCollab (https://arxiv.org/abs/2306.06508, section 5.1).

    Args:
        degrees: the angles.
        clients_per_value: clients that share an angle.
    """

    def __init__(self, *, degrees: tuple[float, ...] = (25, -25, 155, -155), clients_per_value: int = 5) -> None:
        check_numbers(self, degrees=degrees)
        if len(degrees) == 0:
            raise ConfigurationError("degrees=[]: give at least one angle.")
        check_counts(self, clients_per_value=clients_per_value)
        self.degrees = list(degrees)
        self.clients_per_value = clients_per_value

    def images(self, client: int, images: Tensor, labels: Tensor) -> Tensor:
        """The images turned by the client's angle."""
        angle = self.degrees[client // self.clients_per_value]
        return rotate(images, angle, interpolation=InterpolationMode.BILINEAR)

    def check(self, num_clients: int, num_classes: int) -> None:
        """One block of clients for every angle."""
        _check_blocks(self, len(self.degrees), self.clients_per_value, num_clients)


class LabelPermutation(Shift):
    """Concept shift: labels are renumbered, by a permutation for each block of clients.

    Client i's label ``y`` becomes ``permutations[i // clients_per_value][y]``.

    Args:
        permutations: permutations of the labels ``0..C-1``.
        clients_per_value: clients that share a permutation.
    """

    def __init__(self, *, permutations: list[list[int]], clients_per_value: int = 5) -> None:
        if len(permutations) == 0:
            raise ConfigurationError("permutations=[]: give at least one.")
        check_counts(self, permutations=permutations, at_least=0)
        for number, permutation in enumerate(permutations):
            if sorted(permutation) != list(range(max(1, len(permutations[0])))):
                raise ConfigurationError(
                    f"permutations[{number}]={list(permutation)}: give each of the labels"
                    f" 0..{max(1, len(permutations[0])) - 1} once."
                )
        check_counts(self, clients_per_value=clients_per_value)
        self.permutations = permutations
        self.clients_per_value = clients_per_value

    def labels(self, client: int, labels: Tensor, num_classes: int) -> Tensor:
        """The labels renumbered by the client's permutation."""
        permutation = self.permutations[client // self.clients_per_value]
        return torch.tensor(permutation, device=labels.device)[labels]

    def check(self, num_clients: int, num_classes: int) -> None:
        """One block of clients for every permutation, and as many labels as classes."""
        _check_blocks(self, len(self.permutations), self.clients_per_value, num_clients)
        if len(self.permutations[0]) != num_classes:
            raise ConfigurationError(
                f"{type(self).__name__} renumbers {len(self.permutations[0])} labels, the data have {num_classes}"
                " classes: the two must agree."
            )


class FedCollabConceptShift(LabelPermutation):
    """The concept shift of FedCollab: four types of clients that number the labels differently.

    Bao et al., "Optimizing the Collaboration Structure in Cross-Silo Federated Learning" (FedCollab), ICML 2023,
    https://arxiv.org/abs/2306.06508, section 5.1: of CIFAR-100's 20 superclasses 14 have the same label for the first
    two types, and none has a label in common with the other two types. See :func:`concept_permutations`.

    Args:
        num_classes: number of classes.
        num_permuted: number of classes that differ between the first two types and between the last two.
        clients_per_type: clients of each of the four types.
    """

    def __init__(self, *, num_classes: int = 20, num_permuted: int = 6, clients_per_type: int = 5) -> None:
        check_counts(self, clients_per_type=clients_per_type)
        check_counts(self, num_classes=num_classes, num_permuted=num_permuted, at_least=2, at_most=_MOST_CLASSES)
        super().__init__(
            permutations=concept_permutations(num_classes, num_permuted), clients_per_value=clients_per_type
        )


#: Numberings are written out.
_MOST_CLASSES = 100_000


def concept_permutations(num_classes: int, num_permuted: int) -> list[list[int]]:
    """FedCollab's four numberings of C labels, of which the first s differ within a pair of types.

    Type 0 keeps the labels. Type 1 reverses the labels 0..s-1 among themselves; if s is odd, where the middle one would
    stay, it moves each of them on by one instead (the paper has s = 6). Type 2 maps y to C-1-y, and type 3 maps it to
    C-1 less what type 1 makes of it.

    The types 0 and 1 agree on C-s labels, as do 2 and 3. A type of the first pair and one of the second agree nowhere
    if C is even; if C is odd, on the middle label at most.

    Args:
        num_classes: C, at least 2.
        num_permuted: s, from 2 to C/2.

    Returns:
        Four permutations of ``0..C-1``.

    >>> concept_permutations(4, 2)
    [[0, 1, 2, 3], [1, 0, 2, 3], [3, 2, 1, 0], [2, 3, 1, 0]]
    """
    if not 2 <= num_permuted <= num_classes / 2:
        raise ConfigurationError(
            f"num_permuted={num_permuted} of num_classes={num_classes}: give at least 2 and at most half of the"
            " classes."
        )
    kept, moved = list(range(num_classes)), list(range(num_permuted))
    moved = [*moved[1:], 0] if num_permuted % 2 else moved[::-1]
    moved += kept[num_permuted:]
    return [kept, moved, *([num_classes - 1 - label for label in labels] for labels in (kept, moved))]


class Inversion(Shift):
    """Feature shift: some clients see the negative of every image (value v becomes 255 - v).

    Args:
        clients: the numbers of those clients.
    """

    def __init__(self, *, clients: list[int]) -> None:
        check_counts(self, clients=clients, at_least=0)
        if len(clients) == 0 or len(set(clients)) < len(clients):
            raise ConfigurationError(f"clients={clients}: name at least one client, by its number from 0, each once.")
        self.clients = clients

    def images(self, client: int, images: Tensor, labels: Tensor) -> Tensor:
        """The negatives, where it is this client's turn."""
        return 255 - images if client in self.clients else images

    def check(self, num_clients: int, num_classes: int) -> None:
        """The clients exist."""
        if max(self.clients) >= num_clients:
            raise ConfigurationError(
                f"Inversion.clients={self.clients}: there are the clients 0..{num_clients - 1} only."
            )


def _check_blocks(shift: Shift, num_blocks: int, size: int, num_clients: int) -> None:
    """Refuse a number of clients that is not that of all blocks together."""
    if num_blocks * size != num_clients:
        raise ConfigurationError(
            f"{type(shift).__name__} is made for {num_blocks * size} clients ({num_blocks} blocks of {size}), there are"
            f" {num_clients}: change the clients per block or the number of clients."
        )
