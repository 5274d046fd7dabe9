"""Descriptors of a molecule, such as RDKit's, in addition to its graph or instead of it."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from lightning_fl.core.errors import ConfigurationError, DataError

#: Standardised descriptors are clipped here, so that a value that is rare in training does not dominate the output.
_LARGEST_DEVIATION = 6.0


class DescriptorScale(nn.Module):
    """Standardisation of F descriptors by the training data's mean and deviation, clipped at six (as in CheMeleon).

    These are learned from the training data (:meth:`set_statistics`), or values are unchanged.
    """

    mean: Tensor
    scale: Tensor
    learned: Tensor

    def __init__(self, dim: int, *, learns: bool) -> None:
        super().__init__()
        self.learns = learns
        self.register_buffer("mean", torch.zeros(dim))
        self.register_buffer("scale", torch.ones(dim))
        self.register_buffer("learned", torch.tensor(0))

    def forward(self, descriptors: Tensor) -> Tensor:
        """Standardise descriptors [G, F]."""
        if not self.learns:
            return descriptors
        scaled = (descriptors.to(self.mean) - self.mean) / self.scale
        return scaled.clamp(-_LARGEST_DEVIATION, _LARGEST_DEVIATION)

    def learn(self, statistics: Callable[[], tuple[Tensor, Tensor]]) -> None:
        """Learn mean and deviation, once."""
        if self.learns and not self.learned:
            self.set_statistics(*statistics())

    def set_statistics(self, mean: Tensor, std: Tensor) -> None:
        """Set mean [F] and deviation [F]; a deviation of 0 becomes 1."""
        if len(mean) != (width := len(self.mean)):
            raise ConfigurationError(f"descriptor_dim={width}: the data have {len(mean)} descriptors; set or omit it.")
        if wrong := (~(mean.isfinite() & std.isfinite())).nonzero().flatten().tolist():
            raise DataError(f"descriptors {wrong} (counted from 0) are not finite in the training data: omit them.")
        self.mean.copy_(mean)
        # a deviation from rounding alone counts as 0
        self.scale.copy_(torch.where(std > 1e-9 * mean.abs().clamp(min=1), std, 1.0))
        self.learned.fill_(1)


class DescriptorReadout(nn.Module):
    """Readout from atoms to molecules [G, D], followed by the molecules' standardised descriptors."""

    def __init__(self, readout: nn.Module, scale: DescriptorScale) -> None:
        super().__init__()
        self.readout = readout
        self.scale = scale

    def forward(self, *atoms: Tensor, descriptors: Tensor, **arguments: Any) -> Tensor:
        """Compute molecules [G, D + F] from the readout's arguments and ``descriptors`` [G, F]."""
        molecules = self.readout(*atoms, **arguments)
        return torch.cat([molecules, self.scale(descriptors).to(molecules)], dim=1)


class FingerprintEncoder(nn.Module):
    """Fully connected layers of width D on the F descriptors alone: the baseline without a graph."""

    def __init__(self, scale: DescriptorScale, *, dim: int, hidden_dim: int, num_layers: int, dropout: float) -> None:
        super().__init__()
        self.scale = scale
        self.layers = nn.Sequential()
        for number in range(num_layers):
            self.layers.append(nn.Linear(hidden_dim if number else dim, hidden_dim))
            self.layers.extend([nn.ReLU(), nn.Dropout(dropout)])

    def forward(self, descriptors: Tensor) -> Tensor:
        """Compute molecules [G, D] from descriptors [G, F]."""
        return self.layers(self.scale(descriptors))


def descriptors_of(batch: Any, dim: int) -> Tensor:
    """Return the descriptors [G, F] of a batch; refuse a batch without any, or with another number."""
    given = getattr(batch, "descriptors", None)
    if given is None:
        remedy = "name the data's features, such as [rdkit]"
        raise ConfigurationError(f"descriptor_dim={dim}: the batch has no descriptors; {remedy}.")
    if given.shape != (batch.num_graphs, dim):
        what = f"descriptors have the shape {list(given.shape)} for {batch.num_graphs} molecules"
        raise ConfigurationError(f"descriptor_dim={dim}: {what}; set descriptor_dim={given.size(-1)}.")
    return given
