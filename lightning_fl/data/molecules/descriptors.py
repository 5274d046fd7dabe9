"""Descriptors of whole molecules: RDKit's two-dimensional descriptors and Morgan fingerprints."""

import warnings
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any, Literal

import numpy as np
import torch
from lightning.fabric.utilities.rank_zero import rank_zero_info
from torch import Tensor

from lightning_fl.core.errors import ConfigurationError, listed

FeatureName = Literal["rdkit", "morgan"]

_MORGAN_RADIUS, _MORGAN_SIZE = 2, 2048
#: Descriptors from the characteristic polynomial, whose coefficients overflow float32 and take minutes for a chain of
#: 200 atoms.
_LEFT_OUT = ("Ipc", "AvgIpc")
#: Largest magnitude whose squares float32 can sum over many molecules.
_LARGEST = 1e9


def distinct_features(features: Sequence[FeatureName]) -> list[FeatureName]:
    """Return the kinds of descriptors as a list; refuse a text, and a kind named twice."""
    if isinstance(features, str) or len({*features}) < len(features):
        raise ConfigurationError(f"features={features!r}: must be a list of distinct kinds, rdkit and morgan.")
    return list(features)


def descriptor_names(kind: FeatureName) -> Sequence[str]:
    """Names of the descriptors of a kind."""
    return list(_functions()) if kind == "rdkit" else [f"morgan_{bit}" for bit in range(_MORGAN_SIZE)]


def compute_descriptors(smiles: Iterable[str], kind: FeatureName) -> Tensor:
    """Compute the descriptors of one kind for n molecules, [n, F_kind]; 0 for SMILES that cannot be read.

    - ``rdkit``: ``rdkit.Chem.Descriptors.descList`` without ``Ipc`` and ``AvgIpc``, float32, NaN where not finite.
    - ``morgan``: how often each of 2,048 folded environments of radius 2 occurs (Rogers and Hahn 2010,
      https://doi.org/10.1021/ci100050t), uint8, at most 255.
    """
    from rdkit import rdBase

    from lightning_fl.data.molecules.codes import read_molecule

    width, dtype = len(descriptor_names(kind)), torch.uint8 if kind == "morgan" else torch.float32
    rows = []
    with rdBase.BlockLogs(), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # divisions by zero, which give NaN
        for text in smiles:
            if (molecule := read_molecule(text)) is None:
                rows.append(torch.zeros(width, dtype=dtype))
            elif kind == "morgan":
                counts = morgan_generator(_MORGAN_SIZE).GetCountFingerprintAsNumPy(molecule).clip(max=255)
                rows.append(torch.from_numpy(counts.astype(np.uint8)))
            else:
                rows.append(torch.tensor([_number(function, molecule) for function in _functions().values()]))
    return torch.stack(rows) if rows else torch.zeros(0, width, dtype=dtype)


def clean_descriptors(values: Tensor, kind: FeatureName) -> Tensor:
    """Make descriptors [n, F_kind] usable by a model: float32, 0 where there is no finite number, clamped to 1e9."""
    values = values.float()
    if (unknown := ~values.isfinite()).any():
        names = [name for name, found in zip(descriptor_names(kind), unknown.any(0).tolist(), strict=True) if found]
        unknown_of = f"{int(unknown.any(1).sum())} of {len(values)} molecules have no finite value of {len(names)}"
        rank_zero_info(f"features {kind}: {unknown_of} descriptors ({listed(names, 5)}); 0 is used instead.")
    return values.nan_to_num(0.0, 0.0, 0.0).clamp(-_LARGEST, _LARGEST)


@cache
def _functions() -> dict[str, Callable[[Any], float]]:
    from rdkit.Chem import Descriptors

    return {name: function for name, function in Descriptors.descList if name not in _LEFT_OUT}


@cache
def morgan_generator(size: int) -> Any:
    """RDKit's generator of Morgan fingerprints of a radius of 2 bonds (ECFP4), folded to a number of bits."""
    from rdkit.Chem.rdFingerprintGenerator import GetMorganGenerator

    return GetMorganGenerator(radius=_MORGAN_RADIUS, fpSize=size)


def _number(function: Callable[[Any], float], molecule: Any) -> float:
    try:
        value = float(function(molecule))
    except (ArithmeticError, ValueError, RuntimeError):  # the descriptor is not defined for this molecule
        return float("nan")
    return value if abs(value) <= 1e30 else float("nan")
