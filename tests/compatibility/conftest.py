"""Every test of this folder runs on one thread, keeps torch's generators as they were, and has a folder of its own."""

from collections.abc import Iterator

import pytest
import torch
from lightning.fabric.utilities.seed import _collect_rng_states, _set_rng_states
from reference import Clients


@pytest.fixture(autouse=True)
def untouched_generators(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Random draws of a test do not depend on the tests before it."""
    monkeypatch.delenv("PL_GLOBAL_SEED", raising=False)
    states = _collect_rng_states()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(threads)
    _set_rng_states(states)


@pytest.fixture
def three_clients() -> Clients:
    """Three clients of unequal sizes."""
    return Clients((8, 4, 12))
