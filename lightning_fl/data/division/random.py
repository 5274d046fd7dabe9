"""Random division, the default: one client's or many clients' samples."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lightning_fl.core.errors import DataError
from lightning_fl.core.seeding import derive_seed, generator
from lightning_fl.data.division.division import Cut, Division, fold_numbers, grouped_parts
from lightning_fl.data.module import SPLITS, Split
from lightning_fl.data.partition.classes import stratified_parts
from lightning_fl.data.sizes import check_fractions, remaining_fractions, split_sizes


class RandomDivision(Division):
    """Random division, the default; if ``stratified``, classes keep their proportions, in parts of the same sizes."""

    def divide(self, keys: list[Any], cut: Cut) -> dict[Split, Tensor]:
        if cut.folds is not None:
            rng = cut.generator("random folds")
            return cut.by_folds(fold_numbers(cut.size, cut.folds, rng, groups=cut.copies, labels=cut.labels))
        if cut.copies is not None:
            return cut.by_fractions(grouped_parts(cut.copies, cut.fractions, cut.generator("random groups")))
        parts = split_indices(torch.arange(cut.size), cut.fractions, cut.seed, cut.client)
        if cut.labels is None:
            return parts
        sizes = [len(part) for part in parts.values()]
        rng = generator(cut.seed, "split", "stratified", cut.client)
        return cut.by_fractions(stratified_parts(cut.labels, sizes, rng))


def cut_splits(
    train: Tensor,
    fractions: Sequence[float],
    seed: int,
    client: int,
    *,
    own: Sequence[Split] = ("train",),
    labels: Tensor | None = None,
) -> dict[Split, Tensor]:
    """Cut the splits that are not in ``own`` from a client's samples ``train`` [n], n >= 1, of the training data.

    The shares of the splits in ``own`` are ignored. ``labels`` are classes of all training data, if their proportions
    are to be kept.
    """
    cut = Cut(
        size=len(train),
        fractions=remaining_fractions(fractions, own),
        own=own,
        seed=seed,
        client=client,
        name=str(client),
        labels=None if labels is None else labels[train],
    )
    parts = RandomDivision().divide([], cut)
    return {split: train[parts[split]] for split in SPLITS if cut.is_cut[split]}


def split_indices(indices: Tensor, fractions: Sequence[float], seed: int, client: int) -> dict[Split, Tensor]:
    """Divide one client's samples at random into ascending training, validation and test samples.

    Sizes follow :func:`~lightning_fl.data.sizes.split_sizes`. The result depends on the set of indices, the seed and
    the client only.
    """
    (parts,) = split_clients([indices], fractions, seed, [client])
    return parts


def split_clients(
    samples: Sequence[Tensor], fractions: Sequence[float], seed: int, clients: Sequence[int]
) -> list[dict[Split, Tensor]]:
    """Apply :func:`split_indices` to the samples of several clients at once, which is faster."""
    check_fractions(fractions)
    counts = [len(indices) for indices in samples]
    if 0 in counts:
        client = clients[counts.index(0)]
        raise DataError(f"client {client} has no samples to split: use fewer clients or a more even partition.")
    of_size = {count: split_sizes(count, fractions) for count in set(counts)}
    sizes = torch.tensor([of_size[count] for count in counts])
    draws = torch.Generator()
    orders = [
        torch.randperm(count, generator=draws.manual_seed(derive_seed(seed, "split", client)))
        for client, count in zip(clients, counts, strict=True)
    ]
    owner = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    ascending = _sorted_within(owner, torch.cat(list(samples)))
    part = torch.arange(sizes.numel()).repeat_interleave(sizes.flatten())
    places = _sorted_within(part, torch.cat(orders))
    starts = torch.tensor(counts).cumsum(0) - torch.tensor(counts)
    parts = ascending[starts[owner] + places].split(sizes.flatten().tolist())
    return [
        dict(zip(SPLITS, parts[begin : begin + len(SPLITS)], strict=True))
        for begin in range(0, len(parts), len(SPLITS))
    ]


def _sorted_within(groups: Tensor, values: Tensor) -> Tensor:
    """Sort values within each group [n], groups ascending."""
    by_value = values.argsort()
    return values[by_value[groups[by_value].argsort(stable=True)]]
