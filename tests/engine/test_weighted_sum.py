import random
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_fl.engine.weights import WeightedSum, Weights
from lightning_fl.errors import TrainingError

# Both signs, from 1e-12 to 1e9.
numbers = st.builds(
    lambda mantissa, exponent, sign: sign * mantissa * 10.0**exponent,
    st.floats(1, 10), st.integers(-12, 8), st.sampled_from([-1, 1]),
)  # fmt: skip
vectors = st.lists(numbers, min_size=3, max_size=3)


@st.composite
def problems(draw):
    """Some clients' vectors, and weights that sum to about one."""
    rows = draw(st.lists(vectors, min_size=1, max_size=12))
    shares = draw(st.lists(st.floats(1e-6, 1), min_size=len(rows), max_size=len(rows)))
    return rows, [share / sum(shares) for share in shares]


def weights(row, dtype=torch.float64) -> Weights:
    return Weights({dtype: torch.tensor(row, dtype=dtype)})


def added(rows, betas, dtype=torch.float64) -> WeightedSum:
    total = WeightedSum(weights(rows[0], dtype))
    for row, beta in zip(rows, betas, strict=True):
        total.add_(weights(row, dtype), beta)
    return total


def bits(vector: torch.Tensor) -> bytes:
    return vector.numpy().tobytes()


class Together:
    """All-reduce over sums that lie in one process, called once for each of them."""

    def __init__(self, sums: list[WeightedSum]):
        self.parts = [self.tensors(one) for one in sums]
        self.call = 0

    @staticmethod
    def tensors(one: WeightedSum) -> list[torch.Tensor]:
        found = [*one._coarse.values(), *one._fine.values(), *(part.long() for part in one._largest.values())]
        return [part.clone() for part in (*found, torch.tensor(one._magnitude, dtype=torch.float64))]

    def all_reduce(self, tensor: torch.Tensor, group: None = None, reduce_op: str = "sum") -> torch.Tensor:
        column = torch.stack([parts[self.call] for parts in self.parts])
        self.call += 1
        assert column.dtype == tensor.dtype
        return column.sum(0) if reduce_op == "sum" else column.amax(0)


@settings(max_examples=60, deadline=None)
@given(problems(), st.randoms(use_true_random=False), st.integers(1, 4))
def test_same_bits_in_every_order_and_over_any_number_of_processes(problem, rng: random.Random, num_processes: int):
    rows, betas = problem
    expected = added(rows, betas).value(sum(betas)).vectors[torch.float64]

    order = list(range(len(rows)))
    rng.shuffle(order)
    permuted = added([rows[i] for i in order], [betas[i] for i in order])
    assert bits(permuted.value(sum(betas)).vectors[torch.float64]) == bits(expected)

    like = weights(rows[0])
    processes = [WeightedSum(like) for _ in range(num_processes)]
    for i in order:
        processes[rng.randrange(num_processes)].add_(weights(rows[i]), betas[i])
    together = [Together(processes) for _ in processes]
    for process, reducer in zip(processes, together, strict=True):
        process.reduce_(reducer)
        assert bits(process.value(sum(betas)).vectors[torch.float64]) == bits(expected)


@settings(max_examples=60, deadline=None)
@given(problems())
def test_equals_exact_fractions_within_the_bound(problem):
    """Off by 2^-47 a term, and by float64's rounding of each product, of the sum and of the quotient."""
    rows, betas = problem
    total = sum(betas)
    result = added(rows, betas).value(total).vectors[torch.float64].tolist()
    for k, got in enumerate(result):
        terms = [Fraction(beta) * Fraction(row[k]) for row, beta in zip(rows, betas, strict=True)]
        exact = sum(terms) / Fraction(total)
        ulp = Fraction(1, 2**53)
        bound = (len(rows) * Fraction(1, 2**47) + ulp * sum(map(abs, terms))) / Fraction(total) * (1 + 4 * ulp)
        assert abs(Fraction(got) - exact) <= bound + 3 * ulp * abs(exact)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(2.0**-23, 2.0**39, width=32), min_size=1, max_size=8), st.sampled_from([-1, 1]))
def test_one_client_with_weight_one_keeps_its_bits(row, sign):
    """A float32 of at least 2^-23 is a multiple of 2^-46, hence lies on the grid."""
    values = torch.tensor(row) * sign
    one = added([values.tolist()], [1.0], torch.float32).value(1.0).vectors[torch.float32]
    assert bits(one) == bits(values)


def test_a_single_tiny_weight_is_off_by_half_the_grid_at_most():
    values = torch.tensor([1e-12, -3e-9, 2.0**-24 + 2.0**-47, 2.0**-46, 2.0**-60], dtype=torch.float64)
    got = added([values.tolist()], [1.0]).value(1.0).vectors[torch.float64]
    assert (got - values).abs().max() <= 2.0**-47
    assert got[3] == values[3]
    assert got[4] == 0


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(1e-6, 1), min_size=1, max_size=16), st.lists(st.floats(0.001, 1e6), min_size=4, max_size=4))
def test_identical_weights_come_back_bit_equal(shares, row):
    """Half a unit in the last place of a float32 w is |w| 2^-25 at least; n terms are off by n 2^-47 at most."""
    betas = [share / sum(shares) for share in shares]
    values = torch.tensor(row) * torch.tensor([1.0, -1.0, 1.0, -1.0])
    assert values.abs().min() > len(betas) * 2.0**-21
    got = added([values.tolist()] * len(betas), betas, torch.float32).value(sum(betas)).vectors[torch.float32]
    assert bits(got) == bits(values)


def test_weights_need_not_be_normalised():
    got = added([[1.0, 2.0], [5.0, -2.0]], [3.0, 1.0]).value(4.0).vectors[torch.float64]
    assert got.tolist() == [2.0, 1.0]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_the_average_keeps_the_dtype(dtype):
    got = added([[1.0, 3.0], [2.0, 5.0]], [0.5, 0.5], dtype).value(1.0).vectors[dtype]
    assert got.dtype == dtype
    assert got.tolist() == [1.5, 4.0]


def test_integers_and_booleans_follow_the_largest():
    clients = [
        {
            torch.int64: torch.tensor([5, -9]),
            torch.bool: torch.tensor([False, False]),
            torch.uint8: torch.tensor([7], dtype=torch.uint8),
        },
        {
            torch.int64: torch.tensor([3, -8]),
            torch.bool: torch.tensor([True, False]),
            torch.uint8: torch.tensor([9], dtype=torch.uint8),
        },
    ]
    sums = [WeightedSum(Weights(clients[0])) for _ in range(3)]
    for part, order in zip(sums, ([0, 1], [1, 0], [0]), strict=True):
        for client in order:
            part.add_(Weights(clients[client]), 0.5)
    for part in sums[:2]:
        value = part.value(1.0).vectors
        assert value[torch.int64].tolist() == [5, -8]
        assert value[torch.bool].tolist() == [True, False]
        assert value[torch.uint8].tolist() == [9]
    assert sums[2].value(1.0).vectors[torch.int64].tolist() == [5, -9]

    alone = [WeightedSum(Weights(clients[0])) for _ in range(2)]
    for part, client in zip(alone, clients, strict=True):
        part.add_(Weights(client), 0.5)
    alone[0].reduce_(Together(alone))
    assert alone[0].value(1.0).vectors[torch.int64].tolist() == [5, -8]
    assert alone[0].value(1.0).vectors[torch.bool].tolist() == [True, False]


def test_terms_and_their_sources_stay_as_they_are():
    source = weights([1.0, 2.0])
    total = WeightedSum(source)
    total.add_(source, 0.25)
    first = total.value(1.0)
    assert source.vectors[torch.float64].tolist() == [1, 2]
    total.add_(source, 0.25)
    assert first.vectors[torch.float64].tolist() == [0.25, 0.5]
    assert total.value(1.0).vectors[torch.float64].tolist() == [0.5, 1.0]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_weights_that_are_not_finite_are_refused(value):
    total = WeightedSum(weights([0.0, 0.0]))
    with pytest.raises(TrainingError, match="the weights are not finite: training diverges; lower the learning rate"):
        total.add_(weights([1.0, value]), 0.5)
    assert total.value(1.0).vectors[torch.float64].tolist() == [0, 0]  # nothing of it was added


def test_weights_beyond_the_exact_range_are_refused():
    with pytest.raises(TrainingError, match=r"have magnitude 1.1e\+12, beyond 1.1e\+12"):
        added([[2.0**40]], [1.0])
    assert added([[2.0**40 - 1]], [1.0]).value(1.0).vectors[torch.float64].item() == 2.0**40 - 1
    # Each term is small enough, their sum is not: in one process, and over two.
    with pytest.raises(TrainingError, match=r"add up to 1.65e\+12, beyond 1.1e\+12"):
        added([[2.0**39]] * 3, [1.0] * 3).value(3.0)
    halves = [added([[2.0**39]], [1.0]) for _ in range(3)]
    halves[0].reduce_(Together(halves))
    with pytest.raises(TrainingError, match=r"add up to 1.65e\+12, beyond 1.1e\+12"):
        halves[0].value(3.0)
