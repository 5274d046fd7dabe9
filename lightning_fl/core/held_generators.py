"""Random generators that user code holds: found, seeded, and replayed."""

import inspect
import random
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from types import FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch

from lightning_fl.core.seeding import derive_seed

_GENERATORS = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)
#: Seeded by :func:`~lightning_fl.core.seeding.seed_default_generators`.
_DEFAULT = frozenset(map(id, (torch.default_generator, np.random.mtrand._rand, random._inst)))
#: Depth of the search, and the largest container searched: longer ones hold samples.
_DEPTH, _MOST_ENTRIES = 7, 100
_NOT_SEARCHED = (torch.Tensor, np.ndarray, str, bytes, type, ModuleType)


def held_generators(*holders: Any) -> list[Any]:
    """Find the generators in objects of user code: attributes, containers, closures and globals of functions."""
    found: dict[int, Any] = {}
    seen: dict[int, Any] = {}
    level: list[Any] = list(holders)
    for _ in range(_DEPTH):
        following: list[Any] = []
        for one in level:
            if id(one) in seen or issubclass(type(one), _NOT_SEARCHED):
                continue
            seen[id(one)] = one
            if not issubclass(type(one), _GENERATORS):
                following += _references(one)
            elif id(one) not in _DEFAULT:
                found[id(one)] = one
        level = following
    return list(found.values())


def _references(one: Any) -> list[Any]:
    """Objects that one refers to. Reads only its class and ``__dict__``: anything else may raise in user code."""
    kind = type(one)
    if kind in (list, tuple, dict):
        return [] if len(one) > _MOST_ENTRIES else list(one.values() if kind is dict else one)
    if kind is FunctionType:
        with suppress(ValueError):  # a variable of the enclosing function that is not assigned yet
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
    """Seed each generator from the seed, the path and its place in the list."""
    for number, one in enumerate(generators):
        derived = derive_seed(seed, *path, "held", number)
        if isinstance(one, torch.Generator):
            one.manual_seed(derived)
        elif isinstance(one, np.random.Generator):
            one.bit_generator.state = type(one.bit_generator)(derived).state
        else:
            one.seed(derived & 0xFFFF_FFFF)


class DrawStates:
    """States of the default generators and of others, read and set so that draws can be repeated.

    Reading NumPy's and Python's default generators is slow. :meth:`look` drops them once it finds them unused.
    """

    def __init__(self, others: Iterable[Any]) -> None:
        on_gpus = torch.cuda.default_generators if torch.cuda.is_initialized() else ()
        self._quick = [_access(source) for source in (torch.default_generator, *on_gpus, *others)]
        self._slow = [_access(np.random.mtrand._rand), _access(random._inst)]
        self._looked = False

    def read(self) -> list[Any]:
        """Return the present states."""
        return [read() for read, _ in (*self._quick, *self._slow)]

    def set(self, states: list[Any]) -> None:
        """Set the states that :meth:`read` returned."""
        for (_, write), state in zip((*self._quick, *self._slow), states, strict=False):
            write(state)

    def look(self, before: list[Any]) -> None:
        """On the first call, check whether NumPy's and Python's generators have drawn since the states ``before``."""
        if not self._looked:
            self._looked = True
            numpys, pythons = before[len(self._quick) :]
            now, other = (read() for read, _ in self._slow)
            if pythons == other and numpys[2:] == now[2:] and np.array_equal(numpys[1], now[1]):
                self._slow = []


def _access(source: Any) -> tuple[Callable[[], Any], Callable[[Any], Any]]:
    """Getter and setter of a generator's state."""
    if isinstance(source, np.random.Generator):
        return partial(getattr, source.bit_generator, "state"), partial(setattr, source.bit_generator, "state")
    names = ("getstate", "setstate") if isinstance(source, random.Random) else ("get_state", "set_state")
    return getattr(source, names[0]), getattr(source, names[1])
