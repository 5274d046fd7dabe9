"""Stratified parts: given sizes, with the classes in the same proportions as in the whole."""

from collections.abc import Sequence

import torch
from torch import Tensor

from lightning_fl.core.errors import DataError
from lightning_fl.data.sizes import apportion


def stratified_parts(labels: Tensor, sizes: Sequence[int], rng: torch.Generator) -> list[Tensor]:
    """Divide samples at random into parts of given sizes, each with the classes in proportion.

    Each part in turn gets its share of the remaining samples of every class, by largest remainders. Ties are broken at
    random, so that small parts do not all favour the same class.

    Args:
        labels: classes, integers, shape [n].
        sizes: samples of every part, each >= 0; samples beyond their sum stay unused.
        rng: generator of the draws.

    Returns:
        For every part its ascending positions in ``labels``, int64, shape [size].
    """
    check_classes(labels)
    if sum(sizes) > len(labels):
        raise DataError(
            f"parts of sizes={list(sizes)} need {sum(sizes)} of {len(labels)} samples: use fewer or smaller parts."
        )
    shuffled = torch.randperm(len(labels), generator=rng)
    # the samples class by class, each class in random order
    by_class = shuffled[torch.argsort(labels.cpu()[shuffled], stable=True)]
    members = list(by_class.split(torch.unique(labels.cpu(), return_counts=True)[1].tolist()))
    members = [members[k] for k in torch.randperm(len(members), generator=rng).tolist()]
    left = [len(of_class) for of_class in members]
    parts = []
    for size in sizes:
        taken = apportion(size, left) if size else [0] * len(left)
        chosen = [m[len(m) - rest : len(m) - rest + t] for m, rest, t in zip(members, left, taken, strict=True)]
        parts.append(torch.cat(chosen).sort().values if size else by_class[:0])
        left = [rest - t for rest, t in zip(left, taken, strict=True)]
    return parts


def check_classes(labels: Tensor) -> None:
    """Refuse labels that are not one integer class per sample."""
    if labels.ndim != 1 or labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise DataError(
            f"targets of shape {list(labels.shape)} and type {labels.dtype} are not classes: stratified needs one"
            " integer class per sample, [n]; leave it out for other targets."
        )
