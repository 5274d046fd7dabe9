"""Weighted averages of models with the same bits in any order and on any number of processes."""

from collections.abc import Sequence
from itertools import repeat
from math import inf, isfinite, sqrt

import torch
from torch import Tensor

from lightning_fl.core.errors import TrainingError
from lightning_fl.engine.processes import Transport
from lightning_fl.engine.weights.flat import Weights

#: Terms are multiples of 1 / _GRID; sums of such integers are exact in float64 up to _EXACT of them.
_GRID, _EXACT = 2.0**46, 2.0**53
#: A unit of the coarse sum in units of the fine one. After a carry a fine sum is at most half of it.
_COARSE = 2.0**34
#: Entries per thread and block: two float64 rows, the sum and the weights take 4 MiB, which stay in the cache, and
#: launching seven operations on them costs little.
_CACHED = 1 << 17
#: Entries per block on a GPU, where launching operations costs more.
_ON_DEVICE = 1 << 22
#: Most entries that processes send before they know whether the sums are exact.
_SENT_TOGETHER = 1 << 20
_DIVERGES = "training diverges; lower the learning rate or set trainer.gradient_clip_val."


class _Block:
    """A block of a vector and the sum of its changes: ``fine + coarse * _COARSE`` units of 1 / _GRID."""

    __slots__ = ("bound", "coarse", "fine", "infinite", "kept", "place", "reference")

    def __init__(self, reference: Tensor, fine: Tensor, place: slice) -> None:
        self.reference, self.fine, self.place = reference[place], fine[place], place
        #: The reference if some entries are infinite, and how many models have the same infinity per entry.
        self.infinite: Tensor | None = None
        self.kept: Tensor | None = None
        self.coarse: Tensor | None = None  # created when the sum no longer fits in one integer
        self.bound = 0.0  # on |fine|

    def start(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Write the reference in float64 to the first of two rows; returns that row and the second, of its length."""
        start, free = (rows if rows.shape[1] == self.fine.numel() else rows[:, : self.fine.numel()]).unbind()
        return start.copy_(self.reference), free

    def split_infinite(self) -> None:
        """Replace infinite entries of the reference by 0, so that finite values can be summed there."""
        if self.kept is None:
            self.infinite, self.kept = self.reference, torch.zeros_like(self.fine)
            self.reference = self.reference.masked_fill(self.reference.isinf(), 0.0)

    def total(self, out: Tensor) -> Tensor:
        """The sum in units of 1 / _GRID, rounded once; written to ``out`` if it is two integers."""
        return self.fine if self.coarse is None else torch.add(self.fine, self.coarse, alpha=_COARSE, out=out)

    def add_(self, term: Tensor, bound: float) -> None:
        """Add integers with bounded magnitudes; overwrites them."""
        if self.bound + bound <= _EXACT:
            self.fine.add_(term)
            self.bound += bound
            return
        self._add_wide_(term, self.carry_())
        self.bound += _COARSE / 2

    def carry_(self) -> Tensor:
        """Move whole coarse units from the fine sum to the coarse one, which is returned."""
        if self.coarse is None:
            self.coarse = torch.zeros_like(self.fine)
        moved, self.fine[:] = self.fine.clone(), 0.0
        self._add_wide_(moved, self.coarse)
        self.bound = _COARSE / 2
        return self.coarse

    def _add_wide_(self, term: Tensor, coarse: Tensor) -> None:
        whole = (term / _COARSE).round_()
        coarse.add_(whole)
        self.fine.add_(term.sub_(whole, alpha=_COARSE))


class WeightedSum:
    """``sum_i a_i w_i / sum_i a_i`` with the same bits in any order and on any number of processes.

    The sum is over changes ``a_i (w_i - w_0)`` from a reference, so that an entry without changes (a frozen parameter,
    a mask of infinities) keeps its bits. An infinite entry of the reference (such as an empty minimum) stays while any
    model has it, and becomes the average once all are finite there. Each change is rounded to a multiple of 2^-46, an
    integer held in float64. Sums of integers are exact, hence independent of order, below 2^53; where a bound on their
    magnitudes could reach 2^53 (changes that add up to 128), the sum becomes two integers, in units of 2^-12 and 2^-46.
    Every term is off by at most 2^-47, plus float64's rounding of difference and product. Integer and boolean vectors
    take the largest entry. Vectors are processed in blocks that stay in the cache.

    Args:
        reference: w_0, the same on every process; it must not change while the sum is in use.
    """

    #: Bound below which terms, and the summed magnitudes of those that need two integers, are exact.
    LARGEST = 2.0**40

    def __init__(self, reference: Weights) -> None:
        self._reference = reference
        self._fine = {dtype: torch.zeros_like(vector, dtype=torch.float64) for dtype, vector in reference.floating()}
        self._device = next((fine.device for fine in self._fine.values()), torch.device("cpu"))
        on_cpu = self._device.type == "cpu"
        longest = max((fine.numel() for fine in self._fine.values()), default=1)
        self._size = max(1, min(longest, _CACHED * torch.get_num_threads() if on_cpu else _ON_DEVICE))
        #: On a GPU all norms are computed before the first addition, which waits for the GPU once instead of per term.
        self._looks_ahead = not on_cpu
        self._blocks = {
            dtype: [
                _Block(reference.vectors[dtype], fine, slice(begin, begin + self._size))
                for begin in range(0, len(fine), self._size)
            ]
            for dtype, fine in self._fine.items()
        }
        self._largest = {
            dtype: torch.full_like(vector, False if dtype == torch.bool else torch.iinfo(dtype).min)
            for dtype, vector in reference.discrete()
        }
        self._magnitude = 0.0

    def add_(self, weights: Weights, weight: float) -> None:
        """Add one model with its weight a_i, or nothing (see :meth:`add_all_`)."""
        self.add_all_([(weights, weight)])

    def add_all_(self, terms: Sequence[tuple[Weights, float]]) -> None:
        """Add several models, each with its weight; this moves less memory than adding them one by one."""
        magnitudes = [0.0] * len(terms)
        added: list[tuple[_Block, Tensor, float]] = []
        rows = torch.empty(2, self._size, dtype=torch.float64, device=self._device)
        squares = iter(self._squares(terms, rows)) if self._looks_ahead else repeat(None)
        for dtype, blocks in self._blocks.items():
            for block in blocks:
                start, change = block.start(rows)
                for k, (weights, weight) in enumerate(terms):
                    part = weights.vectors[dtype][block.place]
                    magnitude = _add_part(block, part, weight, start, change, next(squares))
                    if magnitude == inf:
                        for earlier, done, opposite in added:  # restore the previous integers
                            _add_part(earlier, done, opposite, *earlier.start(rows))
                        check_addable(weights, self._reference, terms[k][1])
                    magnitudes[k] = max(magnitudes[k], magnitude)
                    added.append((block, part, -weight))
        self._magnitude += sum(magnitudes)
        for dtype, largest in self._largest.items():
            for weights, _ in terms:
                torch.maximum(largest, weights.vectors[dtype], out=largest)

    def subtract_(self, terms: Sequence[tuple[Weights, float]]) -> None:
        """Undo :meth:`add_all_` exactly, except for the largest entries of integer vectors."""
        before = self._magnitude
        self.add_all_([(weights, -weight) for weights, weight in terms])
        self._magnitude = max(0.0, 2 * before - self._magnitude)

    def _squares(self, terms: Sequence[tuple[Weights, float]], rows: Tensor) -> list[float]:
        """Squared norms of all changes, in the order of addition."""
        found: list[Tensor] = []
        for dtype, blocks in self._blocks.items():
            for block in blocks:
                start, change = block.start(rows)
                for weights, _ in terms:
                    change.copy_(weights.vectors[dtype][block.place]).sub_(start)
                    found.append(torch.dot(change, change))
        return torch.stack(found).tolist() if found else []

    def reduce_(self, reducer: Transport) -> None:
        """Sum over all processes; sends 8 bytes per entry, or 16 where a sum does not fit in one integer."""
        blocks = [block for of_dtype in self._blocks.values() for block in of_dtype]
        wide = any(block.coarse is not None for block in blocks)
        bound = inf if wide else max((block.bound for block in blocks), default=0.0)
        infinite = float(any(block.kept is not None for block in blocks))
        facts = torch.tensor([bound, self._magnitude, 1.0, infinite], dtype=torch.float64, device=self._device)
        # Waiting takes longer than sending a small model, so its sums are sent before it is known whether they suffice.
        fine = list(self._fine.values())
        ventured = fine if sum(part.numel() for part in fine) <= _SENT_TOGETHER else []
        together = reducer.all_reduce(torch.cat([facts, *ventured]), reduce_op="sum")
        bound, self._magnitude, num_processes, infinite = together[:4].tolist()
        if bound > _EXACT:  # sums of sums would not be exact
            for block in blocks:
                block.carry_()
            bound = num_processes * _COARSE / 2
            self._reduce_parts(reducer)
        elif ventured:
            for part, total in zip(fine, together[4:].split([part.numel() for part in fine]), strict=True):
                part.copy_(total)
        else:
            self._reduce_parts(reducer)
        for block in blocks:
            block.bound = bound
            if infinite:  # on any process
                block.split_infinite()
                block.kept = reducer.all_reduce(block.kept, reduce_op="sum")  # type: ignore[arg-type]
        for part in self._largest.values():
            part.copy_(reducer.all_reduce(part.long(), reduce_op="max"))

    def _reduce_parts(self, reducer: Transport) -> None:
        for dtype, fine in self._fine.items():
            fine.copy_(reducer.all_reduce(fine, reduce_op="sum"))
            if coarse := [block.coarse for block in self._blocks[dtype] if block.coarse is not None]:
                together = reducer.all_reduce(torch.cat(coarse), reduce_op="sum")
                for part, total in zip(coarse, together.split(self._size), strict=True):
                    part.copy_(total)

    def value(self, total: float) -> Weights:
        """The average, in the weights' own dtypes; ``total`` is the sum of all a_i, over all processes."""
        if not self._magnitude < self.LARGEST:
            what = f"changed by {self._magnitude:.3g} in total, more than {self.LARGEST:.3g}"
            raise TrainingError(f"the weights {what}: {_DIVERGES}")
        vectors = {dtype: vector.clone() for dtype, vector in self._largest.items()}
        rows = torch.empty(2, self._size, dtype=torch.float64, device=self._device)
        for dtype, blocks in self._blocks.items():
            vectors[dtype] = torch.empty_like(self._reference.vectors[dtype])
            for block in blocks:
                part = vectors[dtype][block.place]
                start, change = block.start(rows)
                torch.div(block.total(change), _GRID * total, out=change)
                part.copy_(change.add_(start))
                if block.kept is not None:
                    part.copy_(torch.where(block.kept > 0, block.infinite, part))  # type: ignore[arg-type]
        return Weights(vectors)


class SoleContribution:
    """Replacement for :class:`WeightedSum` with a single contributor: its weights, to the bit."""

    def __init__(self, rank: int, reference: Weights) -> None:
        self._rank = rank
        self._reference = reference
        self._weights: Weights | None = None

    def add_all_(self, terms: Sequence[tuple[Weights, float]]) -> None:
        for weights, _ in terms:
            check_finite(weights, self._reference)
            self._weights = weights.clone()

    def subtract_(self, terms: Sequence[tuple[Weights, float]]) -> None:
        self._weights = None if terms else self._weights

    def reduce_(self, reducer: Transport) -> None:
        if self._weights is None:
            self._weights = self._reference.clone()
        for vector in self._weights.vectors.values():
            reducer.broadcast_bytes_(vector, self._rank)

    def value(self, total: float) -> Weights:
        assert self._weights is not None
        return self._weights


def check_finite(weights: Weights, reference: Weights) -> None:
    """Refuse weights with an entry that became NaN or infinite."""
    for dtype, vector in weights.floating():
        if largest_magnitude(vector) == inf and not ((vector == reference.vectors[dtype]) | vector.isfinite()).all():
            raise TrainingError(f"the weights are not finite: {_DIVERGES}")


def largest_magnitude(vector: Tensor) -> float:
    """``max |v|``; infinity if any entry is infinite or NaN."""
    if not vector.numel():
        return 0.0
    largest = max(map(abs, torch.stack(torch.aminmax(vector)).tolist()))  # fetched together
    return largest if largest == largest else inf


def check_addable(weights: Weights, reference: Weights, weight: float) -> None:
    """Refuse weights that cannot be summed."""
    largest = 0.0
    for dtype, vector in weights.floating():
        before = reference.vectors[dtype]
        change = vector.double() - before.masked_fill(before.isinf(), 0.0)
        largest = max(largest, _largest_change(change, vector, before))
    if not largest * abs(weight) < WeightedSum.LARGEST:
        bound = f"changed by {largest:.3g}, more than {WeightedSum.LARGEST:.3g}"
        raise TrainingError(f"the weights {'are not finite' if largest == inf else bound}: {_DIVERGES}")


def mixture(weights: Sequence[float] | Tensor, models: Sequence[Weights]) -> Weights:
    """``sum_k p_k w_k / sum_k p_k`` of shared models; the model itself if all terms are one object."""
    terms = [(model, float(weight)) for weight, model in zip(weights, models, strict=True) if weight > 0]
    first = terms[0][0]
    if all(model is first for model, _ in terms):
        return first
    total = WeightedSum(first)
    total.add_all_(terms)
    return total.value(sum(weight for _, weight in terms))


def _add_part(
    block: _Block, part: Tensor, weight: float, start: Tensor, change: Tensor, square: float | None = None
) -> float:
    """Add one model's entries to a block's sum, rounded to integers.

    Returns the magnitude of the largest term if it matters; infinity if a term is not finite or too large to be added.
    """
    change.copy_(part).sub_(start)
    scale, magnitude = weight * _GRID, 0.0
    # The Euclidean norm bounds the largest change and takes half as long to compute.
    square = float(torch.dot(change, change)) if square is None else square
    bound = abs(scale) * sqrt(square) * 1.001 + 1
    if not block.bound + bound <= _EXACT:
        if not isfinite(square):
            block.split_infinite()
            change.copy_(part).sub_(start.copy_(block.reference))
        reference = block.reference if block.infinite is None else block.infinite
        magnitude = _largest_change(change, part, reference) * abs(weight)
        if not magnitude < WeightedSum.LARGEST:
            return inf
        if block.kept is not None and weight:
            block.kept.add_((part == reference) & reference.isinf(), alpha=1 if weight > 0 else -1)
        bound = magnitude * _GRID + 1
    block.add_(change.mul_(scale).round_(), bound)
    return magnitude


def _largest_change(change: Tensor, vector: Tensor, reference: Tensor) -> float:
    """The largest magnitude of a change, which is set to zero where vector and reference are the same infinity."""
    largest = largest_magnitude(change)
    if largest == inf:
        change.masked_fill_(vector == reference, 0.0)
        largest = largest_magnitude(change)
    return largest
