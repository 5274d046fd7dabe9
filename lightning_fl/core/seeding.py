"""Randomness is derived, never shared: one seed for every (run, round, client, purpose).

A result therefore does not depend on how many processes there are, who finishes first or what ran before.
"""

import hashlib
import inspect
import operator
import os
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from types import FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from lightning.fabric.utilities.seed import seed_everything
from lightning.pytorch.utilities.seed import isolate_rng

__all__ = [
    "DrawStates",
    "derive_seed",
    "generator",
    "held_generators",
    "isolated_draws",
    "run_seed",
    "seed_default_generators",
    "seed_held_generators",
    "seeded_as",
    "shuffled",
]

_GENERATORS = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)
#: Seeded by :func:`seed_default_generators`.
_DEFAULT = frozenset(map(id, (torch.default_generator, np.random.mtrand._rand, random._inst)))
#: How far from an object its generators are looked for, and in how large a container: longer ones hold samples.
_DEPTH, _MOST_ENTRIES = 7, 100
_APART = (torch.Tensor, np.ndarray, str, bytes, type, ModuleType)
#: Reads a generator's state, and sets it.
_Access = tuple[Callable[[], Any], Callable[[Any], Any]]
#: Where ``seed_everything`` puts its seed.
_RUN_SEED = "PL_GLOBAL_SEED"


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


def held_generators(*holders: Any) -> list[Any]:
    """The generators that objects of user code hold: in attributes, containers, closures and globals of functions."""
    found: dict[int, Any] = {}
    seen: dict[int, Any] = {}
    level: list[Any] = list(holders)
    for _ in range(_DEPTH):
        following: list[Any] = []
        for one in level:
            if id(one) in seen or issubclass(type(one), _APART):
                continue
            seen[id(one)] = one
            if not issubclass(type(one), _GENERATORS):
                following += _parts(one)
            elif id(one) not in _DEFAULT:
                found[id(one)] = one
        level = following
    return list(found.values())


def _parts(one: Any) -> list[Any]:
    """What an object refers to. Only its class and ``__dict__`` are read: anything else may raise in user code."""
    kind = type(one)
    if kind in (list, tuple, dict):
        return [] if len(one) > _MOST_ENTRIES else list(one.values() if kind is dict else one)
    if kind is FunctionType:
        with suppress(ValueError):  # a variable of the function around it that is not there yet
            variables = inspect.getclosurevars(one)
            return [*variables.nonlocals.values(), *variables.globals.values(), *(one.__defaults__ or ())]
    if kind is MethodType:
        return [one.__self__, one.__func__]
    if kind is partial:
        return [one.func, *one.args, *one.keywords.values()]
    try:
        attributes = object.__getattribute__(one, "__dict__")
    except AttributeError:
        return []
    of_the_run = kind.__module__.startswith(("lightning_fl.engine", "lightning_fl.trainer"))  # self.trainer
    return [] if of_the_run else list(attributes.values())


def seed_held_generators(generators: Iterable[Any], seed: int, *path: int | str) -> None:
    """Seed the generators that user code holds, as :func:`seed_default_generators` does the default ones."""
    for number, one in enumerate(generators):
        derived = derive_seed(seed, *path, "held", number)
        if isinstance(one, torch.Generator):
            one.manual_seed(derived)
        elif isinstance(one, np.random.Generator):
            one.bit_generator.state = type(one.bit_generator)(derived).state
        else:
            one.seed(derived & 0xFFFF_FFFF)


class DrawStates:
    """Reads and sets the states of the default generators and of others, so that draws can be repeated.

    Those of NumPy's and Python's default generators take long to read: they are left alone once :meth:`look` has found
    them unchanged.

    Args:
        others: generators of torch, NumPy or Python.
    """

    def __init__(self, others: Iterable[Any]) -> None:
        on_gpus = torch.cuda.default_generators if torch.cuda.is_initialized() else ()
        self._quick = [_access(source) for source in (torch.default_generator, *on_gpus, *others)]
        self._slow = [_access(np.random.mtrand._rand), _access(random._inst)]
        self._looked = False

    def read(self) -> list[Any]:
        """The present states."""
        return [read() for read, _ in (*self._quick, *self._slow)]

    def set(self, states: list[Any]) -> None:
        """Draw from here on as after :meth:`read` gave these."""
        for (_, write), state in zip((*self._quick, *self._slow), states, strict=False):
            write(state)

    def look(self, before: list[Any]) -> None:
        """Find out, the first time, whether anything has drawn from NumPy's and Python's generators since a state."""
        if not self._looked:
            self._looked = True
            numpys, pythons = before[len(self._quick) :]
            now, other = (read() for read, _ in self._slow)
            if pythons == other and numpys[2:] == now[2:] and np.array_equal(numpys[1], now[1]):
                self._slow = []


def _access(source: Any) -> _Access:
    if isinstance(source, np.random.Generator):
        return partial(getattr, source.bit_generator, "state"), partial(setattr, source.bit_generator, "state")
    names = ("getstate", "setstate") if isinstance(source, random.Random) else ("get_state", "set_state")
    return getattr(source, names[0]), getattr(source, names[1])


def isolated_draws() -> AbstractContextManager[None]:
    """Around draws from the default generators that others must not notice; a GPU that nobody uses stays closed."""
    return isolate_rng(include_cuda=torch.cuda.is_initialized())


@contextmanager
def seeded_as(seed: int) -> Iterator[None]:
    """Default generators and :func:`run_seed` as in a run with this seed, and afterwards as they were."""
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
    """The seed of the run: what ``seed_everything`` set in this process or its parent, else 0."""
    return int(os.environ.get(_RUN_SEED, "0"))


def shuffled(candidates: Sequence[int], generator: torch.Generator, count: int | None = None) -> list[int]:
    """The first ``count`` of the candidates in a random order, which does not depend on the order they are given in."""
    ordered = sorted(candidates)
    return [ordered[place] for place in torch.randperm(len(ordered), generator=generator)[:count].tolist()]
