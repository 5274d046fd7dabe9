"""Molecules as chemprop's data points, data set and batches (the extra ``lightning-fl[chemprop]``)."""

from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lightning_fl.data.molecules.dataset import MoleculeDataset


def chemprop_loader(
    molecules: "MoleculeDataset",
    indices: "Sequence[int]",
    *,
    batch_size: int,
    shuffle: bool = False,
    drop_last: bool = False,
    keep_single: bool = True,
) -> DataLoader:
    """Make a loader of ``chemprop.data.TrainingBatch`` over some of the molecules, featurised once.

    Chemprop's losses leave out NaN targets, and its bounded losses respect bounds. ``shuffle`` uses the loader's own
    generator, which the engine seeds; ``keep_single`` keeps a last batch of one molecule, which batch normalisation
    cannot train on. The only batch of a loader is always kept.
    """
    from chemprop.data import MoleculeDatapoint, MoleculeDataset, build_dataloader

    smiles, targets = molecules.smiles, molecules.targets.numpy()
    bounds = molecules.bounds
    masks: list[dict[str, Any]] = [{}] * len(smiles)
    if bounds is not None:
        masks = [{"lt_mask": row < 0, "gt_mask": row > 0} for row in bounds.numpy()]
    dataset = MoleculeDataset(
        [MoleculeDatapoint.from_smi(smiles[index], y=targets[index], **masks[index]) for index in indices]
    )
    dataset.cache = True
    drop_last = drop_last or (not keep_single and len(dataset) % batch_size == 1)
    return build_dataloader(
        dataset,
        batch_size=batch_size,
        shuffle=shuffle,
        drop_last=drop_last and len(dataset) > batch_size,
        generator=torch.Generator(),
    )
