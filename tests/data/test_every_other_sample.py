"""Half of what a client validates on."""

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, SequentialSampler, Subset, TensorDataset

from lightning_fl.data.loaders import every_other_sample

NUMBERS = TensorDataset(torch.arange(7.0))


class Stream(IterableDataset):
    def __iter__(self):
        return iter(NUMBERS)


@pytest.mark.parametrize("data", [NUMBERS, Subset(NUMBERS, range(7)), list(NUMBERS), DataLoader(NUMBERS, 2)])
def test_both_halves_are_all_samples(data):
    halves = [every_other_sample(data, first) for first in (0, 1)]
    loaders = [half if isinstance(half, DataLoader) else DataLoader(half, 2) for half in halves]
    assert [torch.cat([batch for (batch,) in loader]).tolist() for loader in loaders] == [[0, 2, 4, 6], [1, 3, 5]]


@pytest.mark.parametrize(
    "data",
    [
        None,
        Subset(NUMBERS, [3]),
        Stream(),
        DataLoader(Stream(), 2),
        DataLoader(NUMBERS, 2, sampler=type("Own", (SequentialSampler,), {})(NUMBERS)),
        [DataLoader(NUMBERS), DataLoader(NUMBERS)],
        {"one": NUMBERS, "another": NUMBERS},
    ],
)
def test_what_cannot_be_divided_stays_whole(data):
    assert all(every_other_sample(data, first) is data for first in (0, 1))
