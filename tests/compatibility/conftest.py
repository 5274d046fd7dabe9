"""Every test of this folder keeps torch's generators as they were."""

from collections.abc import Iterator

import pytest
import torch
from lightning.fabric.utilities.seed import _collect_rng_states, _set_rng_states
from reference import Clients


@pytest.fixture(autouse=True)
def untouched_generators() -> Iterator[None]:
    """Random draws of a test do not depend on the tests before it."""
    states = _collect_rng_states()
    torch.manual_seed(0)
    yield
    _set_rng_states(states)


@pytest.fixture
def three_clients() -> Clients:
    """Three clients of unequal sizes."""
    return Clients((8, 4, 12))
