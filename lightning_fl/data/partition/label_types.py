"""Label shift between types of clients, such as FedCollab's."""

import math

import torch
from torch import Tensor

from lightning_fl.core.errors import ConfigurationError, DataError
from lightning_fl.core.validation import Count, Fraction, Size, checked_fields
from lightning_fl.data.partition.labels import SUM_TOLERANCE, LabelPartitioner

#: FedCollab's four types of clients: the share of every class's samples that a type holds, over ten classes.
_FEDCOLLAB_SHARES = [
    [0.25, 0.5, 0.5, 0.5, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0],
    [0.0, 0.5, 0.5, 0.5, 0.25, 0.0, 0.0, 0.0, 0.0, 0.0],
    [0.0, 0.0, 0.0, 0.0, 0.0, 0.25, 0.5, 0.5, 0.5, 0.0],
    [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.5, 0.5, 0.5, 0.25],
]


@checked_fields
class LabelTypes(LabelPartitioner):
    """Label shift between types of clients: a type's share of a class is split evenly among its clients.

    Client i is of type ``i // clients_per_type``. Samples beyond a class's shares stay unused.

    Args:
        shares: for every type the share of every class's samples; a class's shares sum to at most 1. Real targets are
            put into as many bins between quantiles as there are classes.
        clients_per_type: clients of each type.
        target: the column of several targets [n, T] to use.

    Example:
        >>> two_types = LabelTypes(shares=[[0.5, 0.5, 0.0], [0.0, 0.5, 0.5]], clients_per_type=3)
        >>> two_types.num_clients
        6
    """

    shares: list[list[Fraction]]
    clients_per_type: Count = 5
    target: Size | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        shares = self.shares
        if not shares or not shares[0] or len({len(of_type) for of_type in shares}) > 1:
            raise ConfigurationError(f"shares={shares}: must have one list per type, each with one share per class.")
        for number, of_type in enumerate(shares):
            if not any(of_type):
                raise ConfigurationError(f"shares[{number}]={of_type}: must have a share above 0.")
        for label, of_class in enumerate(zip(*shares, strict=True)):
            if math.fsum(of_class) > 1 + SUM_TOLERANCE:
                raise ConfigurationError(
                    f"shares of class {label}, {list(of_class)}, sum to {math.fsum(of_class):g}: must be at most 1."
                )
        self.num_clients, self.num_bins = len(shares) * self.clients_per_type, len(shares[0])

    def holdings(self, sizes: Tensor, seed: int) -> Tensor:
        """Class shares, float64, shape [C, types · clients_per_type]."""
        matrix = torch.tensor(self.shares, dtype=torch.float64)
        shares = (matrix / self.clients_per_type).repeat_interleave(self.clients_per_type, dim=0).T.contiguous()
        held = set(sizes.nonzero().flatten().tolist())
        missing = [label for label, row in enumerate(shares) if row.any() and label not in held]
        if len(sizes) > len(shares) or missing:
            fault = f"none of class {missing[0]}" if missing else f"labels up to {len(sizes) - 1}"
            raise DataError(
                f"{type(self).__name__} has shares for classes 0..{len(shares) - 1}, the data have {fault}: give"
                " shares for these classes."
            )
        return shares


class FedCollabLabelShift(LabelTypes):
    """Label shift of FedCollab: four types of clients over ten classes.

    Bao et al., "Optimizing the Collaboration Structure in Cross-Silo Federated Learning" (FedCollab), ICML 2023,
    https://arxiv.org/abs/2306.06508, section 5.1 and figure 3. Type 0 holds a quarter of class 0 and half of the
    classes 1-3, type 1 half of the classes 1-3 and a quarter of class 4; types 2 and 3 are the same with the classes
    5-9. So the first two types are similar, as are the last two, and the two pairs share no class.

    On the 70,000 images of Fashion-MNIST (training and test data pooled) each of twenty clients holds 2,450.

    Args:
        clients_per_type: clients of each of the four types.
        target: the column of several targets [n, T] to use.
    """

    def __init__(self, *, clients_per_type: Count = 5, target: Size | None = None) -> None:
        super().__init__(shares=_FEDCOLLAB_SHARES, clients_per_type=clients_per_type, target=target)
