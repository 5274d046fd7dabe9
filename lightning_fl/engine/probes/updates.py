"""The matrix of clients' updates, in blocks of columns."""

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from lightning_fl.engine.turn.loop import LocalLoop
from lightning_fl.engine.weights.flat import Span, Weights

#: Columns of a block: 26 MB for a hundred clients in single precision.
_COLUMNS = 1 << 16


def column_blocks(spans: Sequence[Span]) -> Iterator[tuple[torch.dtype, slice]]:
    """Blocks of at most 65,536 entries of some spans: the vector's dtype and a slice of it."""
    for span in spans:
        for begin in range(span.begin, span.end, _COLUMNS):
            yield span.dtype, slice(begin, min(begin + _COLUMNS, span.end))


def change_blocks(models: Sequence[Weights], since: Weights, spans: Sequence[Span]) -> Iterator[Tensor]:
    """The changes ``w_i - w`` of models on every rank, in blocks of columns [n, c] with c <= 65,536."""
    for dtype, part in column_blocks(spans):
        yield torch.stack([model.vectors[dtype][part] for model in models]) - since.vectors[dtype][part]


def update_blocks(
    loop: LocalLoop, weights: Mapping[int, Weights], clients: Sequence[int], spans: Sequence[Span]
) -> Iterator[Tensor]:
    """The updates ``w_i - w_start,i`` of some clients in blocks [n, c], one in memory; every rank must exhaust them."""
    starts = {client: loop.federation.shared_model(client) for client in clients if client in weights}
    for dtype, part in column_blocks(spans):
        block = torch.zeros(len(clients), part.stop - part.start, dtype=dtype, device=loop.processes.device)
        for row, client in enumerate(clients):
            if client in starts:
                torch.sub(weights[client].vectors[dtype][part], starts[client].vectors[dtype][part], out=block[row])
        yield loop.processes.sum(block)  # every row is zero on all ranks but one
