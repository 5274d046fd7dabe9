"""Derived seeds: one for every (run, round, client, purpose).

Results therefore do not depend on the number of processes, on who finishes first or on what ran before.
"""

import hashlib
import operator
import os
import random
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

import numpy as np
import torch
from lightning.fabric.utilities.seed import seed_everything
from lightning.pytorch.utilities.seed import isolate_rng

#: Environment variable in which ``seed_everything`` keeps its seed.
_RUN_SEED = "PL_GLOBAL_SEED"


def derive_seed(seed: int, *path: int | str) -> int:
    """Derive a 63-bit seed from the run's seed and a path such as ``(round, client, "batches")``.

    Distinct paths give independent seeds: BLAKE2b hashes each part with its type and length, so that ``("1", 2)`` and
    ``(1, "2")`` differ. A NumPy integer counts as the same integer.
    """
    texts = [f"str:{part}" if isinstance(part, str) else f"int:{operator.index(part)}" for part in (seed, *path)]
    content = "".join([f"{len(text)}|{text}" for text in texts]).encode()
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little") >> 1


def generator(seed: int, *path: int | str, device: torch.device | str = "cpu") -> torch.Generator:
    """``torch.Generator`` seeded with :func:`derive_seed`."""
    return torch.Generator(device=device).manual_seed(derive_seed(seed, *path))


def seed_default_generators(seed: int, *path: int | str) -> None:
    """Seed the default generators of torch, NumPy and Python; :func:`isolated_draws` restores them."""
    derived = derive_seed(seed, *path)
    torch.default_generator.manual_seed(derived)  # torch.manual_seed also formats a stack trace per absent device
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(derived)
    np.random.seed(derived & 0xFFFF_FFFF)  # noqa: NPY002 - the user's code may draw from the legacy generator
    random.seed(derived)


def isolated_draws() -> AbstractContextManager[None]:
    """Context manager that restores the default generators afterwards; it does not initialise an unused GPU."""
    return isolate_rng(include_cuda=torch.cuda.is_initialized())


@contextmanager
def seeded_as(seed: int) -> Iterator[None]:
    """Set default generators and :func:`run_seed` as in a run with this seed, and restore them afterwards."""
    before = os.environ.get(_RUN_SEED)
    with isolated_draws():
        seed_everything(seed, verbose=False)
        try:
            yield
        finally:
            os.environ.pop(_RUN_SEED, None)
            if before is not None:
                os.environ[_RUN_SEED] = before


def run_seed() -> int:
    """Seed of the run, as ``seed_everything`` set it in this process or its parent; 0 by default."""
    return int(os.environ.get(_RUN_SEED, "0"))


def shuffled(candidates: Sequence[int], generator: torch.Generator, count: int | None = None) -> list[int]:
    """Draw ``count`` candidates (by default all) in random order, independent of the order of the candidates."""
    ordered = candidates if isinstance(candidates, range) else sorted(candidates)
    return [ordered[place] for place in _permuted(len(ordered), count, generator)]


def _permuted(total: int, count: int | None, generator: torch.Generator) -> list[int]:
    """The first ``count`` of ``torch.randperm(total)``; where they are few, without listing all others."""
    if count is None or 200 * count > total:
        return torch.randperm(total, generator=generator)[:count].tolist()
    moved: dict[int, int] = {}  # of the list 0, 1, ... that Fisher and Yates shuffle, the places that have changed
    first = []
    for place in range(count):
        other = place + int(torch.randint(total - place, (), generator=generator))
        first.append(moved.get(other, other))
        moved[other] = moved.get(place, place)
    return first
