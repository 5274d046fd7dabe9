"""Division by time, or any other order."""

import math
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from lightning_fl.core.validation import checked_fields
from lightning_fl.data.division.division import Cut, Division, read_texts
from lightning_fl.data.module import Split
from lightning_fl.data.sizes import split_sizes
from lightning_fl.files.text_table import read_numbers, refuse_values


@checked_fields
class OrderDivision(Division):
    """Division by a column that orders the samples, such as the date: the first for training, the last for testing.

    Samples of one date stay together, in the part of the first of them. If copies of a molecule stay together, the
    earliest date counts.

    Args:
        column: name of the column, read with ``dataset.column(name)``: numbers, or dates (and times) in ISO format such
            as 2020-04-09; a time without a zone is UTC.
    """

    takes_folds = False
    column: str

    def read(self, dataset: Dataset, identities: Sequence[str] | None) -> Sequence[float]:
        """The column as numbers; dates as seconds."""
        import pandas as pd

        texts = pd.Series(read_texts(dataset, self.column, "OrderDivision"), dtype=object)
        numbers, _ = read_numbers(texts)
        dates = texts.map(_seconds).astype(float)
        found, kind = (numbers, "numbers") if numbers.count() >= dates.count() else (dates, "dates")
        texts.index = read_texts(dataset, None, "OrderDivision")  # rows, for the message
        remedy = "Give all as numbers, or all as dates in ISO format such as 2020-04-09"
        wrong = texts[found.isna().to_numpy()]
        refuse_values(wrong, f"OrderDivision.column={self.column!r}", f"are not {kind} like the others", remedy)
        return found.tolist()

    def divide(self, keys: list[Any], cut: Cut) -> dict[Split, Tensor]:
        times = torch.tensor(keys, dtype=torch.float64)
        if cut.copies is not None:
            first = torch.full((int(cut.copies.max()) + 1,), math.inf, dtype=torch.float64)
            times = first.scatter_reduce(0, cut.copies, times, "amin")[cut.copies]
        ranks = times.unique(return_inverse=True)[1]
        return cut.by_fractions(ordered_parts(ranks, cut.fractions))


def ordered_parts(ranks: Tensor, fractions: Sequence[float]) -> list[Tensor]:
    """Divide samples by their ranks [n] in an order: the first are for training, then come validation and test.

    Samples of one rank stay together, in the part of the first of them, so parts may differ from their shares.
    """
    ends = torch.tensor(split_sizes(len(ranks), fractions)).cumsum(0)
    ordered = ranks.sort().values
    begins = torch.searchsorted(ordered, ranks)  # of the first with the same rank
    part = torch.searchsorted(ends, begins, right=True)
    return [(part == number).nonzero()[:, 0] for number in range(3)]


def _seconds(text: str) -> float | None:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
