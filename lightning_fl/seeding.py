"""Randomness is derived, never shared: one seed for every (run, round, client, purpose).

A result therefore does not depend on how many processes there are, who finishes first or what ran before.
"""

import hashlib
import operator
import os
import random
from contextlib import AbstractContextManager

import numpy as np
import torch
from lightning.pytorch.utilities.seed import isolate_rng

__all__ = ["derive_seed", "generator", "isolated_draws", "run_seed", "seed_default_generators"]


def derive_seed(seed: int, *path: int | str) -> int:
    """A 63-bit seed from the run's seed and a path such as ``(round, client, "batches")``.

    Distinct paths give independent seeds (BLAKE2b of the path's parts, each with its type and length, so that
    ``("1", 2)`` and ``(1, "2")`` differ). An integer of NumPy's counts as the same integer.
    """
    digest = hashlib.blake2b(digest_size=8)
    for part in (seed, *path):
        text = f"str:{part}" if isinstance(part, str) else f"int:{operator.index(part)}"
        digest.update(f"{len(text)}|{text}".encode())
    return int.from_bytes(digest.digest(), "little") >> 1


def generator(seed: int, *path: int | str, device: torch.device | str = "cpu") -> torch.Generator:
    """A ``torch.Generator`` seeded with :func:`derive_seed`."""
    return torch.Generator(device=device).manual_seed(derive_seed(seed, *path))


def seed_default_generators(seed: int, *path: int | str) -> None:
    """Seed torch's, NumPy's and Python's default generators: user code (dropout, augmentation) draws from them.

    The caller restores what was there before (``lightning.fabric.utilities.seed`` has the context for it).
    """
    derived = derive_seed(seed, *path)
    torch.default_generator.manual_seed(derived)  # torch.manual_seed also formats a stack trace per absent device
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(derived)
    np.random.seed(derived & 0xFFFF_FFFF)  # noqa: NPY002 - the user's code may draw from the legacy generator
    random.seed(derived)


def isolated_draws() -> AbstractContextManager[None]:
    """Around draws from the default generators that others must not notice; a GPU that nobody uses stays closed."""
    return isolate_rng(include_cuda=torch.cuda.is_initialized())


def run_seed() -> int:
    """The seed of the run: what ``seed_everything`` set in this process or its parent, else 0."""
    return int(os.environ.get("PL_GLOBAL_SEED", "0"))
