import random

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lightning_fl.core.seeding import derive_seed, generator, run_seed, seed_default_generators, shuffled

# What could be taken for a number, a separator or an end; hypothesis takes seconds to tabulate all of Unicode.
words = st.text("019-.,|/ \0\n'\"aZéß漢😀", max_size=5)
paths = st.lists(st.one_of(st.integers(-5, 1000), words), max_size=4)


@pytest.mark.slow
@given(st.integers(0, 2**40), paths)
def test_a_seed_has_63_bits_and_depends_on_nothing_else(seed, path):
    derived = derive_seed(seed, *path)
    assert 0 <= derived < 2**63
    random.seed(derived)
    assert derive_seed(seed, *path) == derived


@pytest.mark.slow
@given(st.lists(st.tuples(st.integers(0, 3), paths.map(tuple)), min_size=2, max_size=8, unique=True))
def test_distinct_paths_give_distinct_seeds(cases):
    assert len({derive_seed(seed, *path) for seed, path in cases}) == len(cases)


def test_paths_are_neither_joined_nor_mixed_up():
    seeds = [
        derive_seed(1, 2, "3"), derive_seed(1, "2", 3), derive_seed(1, 2, 3), derive_seed(12, 3), derive_seed(1, 23),
        derive_seed(1, "23"), derive_seed(1, "2", "3"), derive_seed(1, "2|3"), derive_seed(1, "", "23"),
    ]  # fmt: skip
    assert len(set(seeds)) == len(seeds)


def test_integers_of_other_libraries_count_as_integers():
    assert derive_seed(np.int64(3), np.int32(4)) == derive_seed(3, 4)
    assert derive_seed(3, torch.tensor(4)) == derive_seed(3, 4)
    with pytest.raises(TypeError, match="float"):
        derive_seed(3, 0.5)


def test_seeds_are_spread_evenly():
    """Every bit is set in half of 2000 seeds, within 5 standard deviations (112)."""
    seeds = torch.tensor([derive_seed(0, round_index, client) for round_index in range(40) for client in range(50)])
    for bit in range(63):
        assert abs(int(((seeds >> bit) & 1).sum()) - 1000) < 112


def test_generators():
    draws = torch.rand(5, generator=generator(7, 1, "cohort"))
    torch.manual_seed(0)
    before = torch.get_rng_state()
    assert torch.equal(torch.rand(5, generator=generator(7, 1, "cohort")), draws)
    assert not torch.equal(torch.rand(5, generator=generator(7, 2, "cohort")), draws)
    assert torch.equal(torch.get_rng_state(), before)


def test_default_generators():
    def draw():
        return torch.rand(()).item(), np.random.rand(), random.random()  # noqa: NPY002

    seed_default_generators(5, 1, "train")
    first = draw()
    seed_default_generators(5, 2, "train")
    assert all(a != b for a, b in zip(draw(), first, strict=True))
    seed_default_generators(5, 1, "train")
    assert draw() == first


def test_the_run_s_seed(monkeypatch):
    monkeypatch.delenv("PL_GLOBAL_SEED", raising=False)
    assert run_seed() == 0
    monkeypatch.setenv("PL_GLOBAL_SEED", "42")
    assert run_seed() == 42


@pytest.mark.parametrize("total", [400, 10_007, 1_000_000])
@pytest.mark.parametrize("count", [1, 2, 50])
def test_a_few_of_many_are_drawn_as_the_first_of_a_permutation(total, count):
    whole = torch.randperm(total, generator=generator(3, "cohort"))
    assert shuffled(range(total), generator(3, "cohort"), count) == whole[:count].tolist()
