import random
import threading
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from processes import LIMIT

from lightning_fl.core.errors import TrainingError
from lightning_fl.engine.weights import weighted_sum
from lightning_fl.engine.weights.flat import Weights
from lightning_fl.engine.weights.weighted_sum import WeightedSum

# Both signs, from 1e-12 to 1e9.
numbers = st.builds(
    lambda mantissa, exponent, sign: sign * mantissa * 10.0**exponent,
    st.floats(1, 10),
    st.integers(-12, 8),
    st.sampled_from([-1, 1]),
)
vectors = st.lists(numbers, min_size=3, max_size=3)


@st.composite
def problems(draw):
    """A reference, some clients' vectors, and weights that sum to about one."""
    rows = draw(st.lists(vectors, min_size=1, max_size=12))
    shares = draw(st.lists(st.floats(1e-6, 1), min_size=len(rows), max_size=len(rows)))
    return draw(vectors), rows, [share / sum(shares) for share in shares]


def weights(row, dtype=torch.float64) -> Weights:
    return Weights({dtype: torch.tensor(row, dtype=dtype)})


def added(rows, betas, reference=None, dtype=torch.float64) -> WeightedSum:
    total = WeightedSum(weights([0.0] * len(rows[0]) if reference is None else reference, dtype))
    for row, beta in zip(rows, betas, strict=True):
        total.add_(weights(row, dtype), beta)
    return total


def average(rows, betas, reference=None, dtype=torch.float64, total=None) -> torch.Tensor:
    return added(rows, betas, reference, dtype).value(sum(betas) if total is None else total).vectors[dtype]


def bits(vector: torch.Tensor) -> bytes:
    return vector.numpy().tobytes()


class Exchange:
    """All-reduce over sums that lie in one process, each reduced in a thread of its own."""

    def __init__(self, count: int):
        self.barrier = threading.Barrier(count)
        self.tensors: dict[int, torch.Tensor] = {}
        self.sent: list[tuple[torch.dtype, int]] = []

    def all_reduce(self, tensor: torch.Tensor, group: None = None, reduce_op: str = "sum") -> torch.Tensor:
        self.tensors[threading.get_ident()] = tensor.clone()
        if self.barrier.wait(LIMIT) == 0:
            self.sent.append((tensor.dtype, tensor.numel()))
        together = torch.stack([self.tensors[key] for key in sorted(self.tensors)])
        self.barrier.wait(LIMIT)
        return together.sum(0) if reduce_op == "sum" else together.amax(0)


def reduce_all(sums: list[WeightedSum]) -> list[tuple[torch.dtype, int]]:
    """Reduce sums with each other; returns what each sent."""
    exchange = Exchange(len(sums))
    with ThreadPoolExecutor(len(sums)) as pool:
        for done in [pool.submit(one.reduce_, exchange) for one in sums]:
            done.result()
    return exchange.sent


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(problems(), st.randoms(use_true_random=False), st.integers(1, 4))
def test_same_bits_in_every_order_and_over_any_number_of_processes(problem, rng: random.Random, num_processes: int):
    reference, rows, betas = problem
    total = sum(betas)
    expected = bits(average(rows, betas, reference))

    order = list(range(len(rows)))
    rng.shuffle(order)
    assert bits(average([rows[i] for i in order], [betas[i] for i in order], reference, total=total)) == expected

    processes = [WeightedSum(weights(reference)) for _ in range(num_processes)]
    for i in order:
        processes[rng.randrange(num_processes)].add_(weights(rows[i]), betas[i])
    reduce_all(processes)
    for process in processes:
        assert bits(process.value(total).vectors[torch.float64]) == expected


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(problems())
def test_equals_exact_fractions_within_the_bound(problem):
    """Off by 2^-47 a term, and by float64's rounding of each difference and product, of the sum and of the quotient."""
    reference, rows, betas = problem
    total, ulp = Fraction(sum(betas)), Fraction(1, 2**53)
    result = average(rows, betas, reference).tolist()
    for k, got in enumerate(result):
        changes = [Fraction(beta) * (Fraction(row[k]) - Fraction(reference[k])) for row, beta in zip(rows, betas)]  # noqa: B905
        exact = Fraction(reference[k]) + sum(changes) / total
        terms = len(rows) * Fraction(1, 2**47) + 2 * ulp * sum(map(abs, changes))
        bound = terms / total + 4 * ulp * abs(exact - Fraction(reference[k])) + ulp * abs(exact)
        assert abs(Fraction(got) - exact) <= bound * (1 + 8 * ulp)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(2.0**-23, 2.0**39, width=32), min_size=1, max_size=8), st.sampled_from([-1, 1]))
def test_one_client_with_weight_one_keeps_its_bits(row, sign):
    """A float32 of at least 2^-23 is a multiple of 2^-46, hence lies on the grid."""
    values = torch.tensor(row) * sign
    assert bits(average([values.tolist()], [1.0], dtype=torch.float32)) == bits(values)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.floats(2.0**-21, 4, width=32), min_size=4, max_size=4),
    st.lists(st.floats(-4, 4, width=32), min_size=4, max_size=4),
)
def test_one_client_s_bits_from_any_start(row, reference):
    """Off by 2^-47 + 2^-50 (three roundings of at most 8): less than half a unit in the last place from 2^-22 on."""
    got = average([row], [1.0], reference, torch.float32)
    assert bits(got) == bits(torch.tensor(row))


def test_a_single_tiny_weight_is_off_by_half_the_grid_at_most():
    values = torch.tensor([1e-12, -3e-9, 2.0**-24 + 2.0**-47, 2.0**-46, 2.0**-60], dtype=torch.float64)
    got = average([values.tolist()], [1.0])
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
    assert bits(average([values.tolist()] * len(betas), betas, dtype=torch.float32)) == bits(values)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_what_nobody_changed_keeps_its_bits(dtype):
    """However small, large or infinite it is, and whatever the clients' weights."""
    frozen = [*torch.logspace(-30, 30, 200, dtype=torch.float64).tolist(), torch.inf, -torch.inf, 0.0, -1e-38]
    betas = [0.1, 0.2, 0.3, 1 / 7]
    rows = [[*frozen, 1.0 + client] for client in range(4)]
    got = average(rows, betas, [*frozen, 0.0], dtype)
    assert torch.equal(got[:-1], torch.tensor(frozen, dtype=dtype))
    expected = sum(beta * row[-1] for row, beta in zip(rows, betas, strict=True)) / sum(betas)
    assert float(got[-1]) == pytest.approx(expected, rel=max(1e-13, torch.finfo(dtype).eps))


def test_weights_need_not_be_normalised():
    for reference in (None, [100.0, -7.0]):
        assert average([[1.0, 2.0], [5.0, -2.0]], [3.0, 1.0], reference).tolist() == [2.0, 1.0]


def test_integers_and_booleans_follow_the_largest():
    def client(numbers, flags, byte) -> Weights:
        byte = torch.tensor([byte], dtype=torch.uint8)
        return Weights({torch.int64: torch.tensor(numbers), torch.bool: torch.tensor(flags), torch.uint8: byte})

    reference = client([1000, 1000], [True, True], 200)  # counts for nothing
    clients = [client([5, -9], [False, False], 7), client([3, -8], [True, False], 9)]

    def value(total: WeightedSum) -> list:
        vectors = total.value(1.0).vectors
        return [vectors[dtype].tolist() for dtype in (torch.int64, torch.bool, torch.uint8)]

    for order, expected in (([0, 1], [[5, -8], [True, False], [9]]), ([1, 0], [[5, -8], [True, False], [9]]),
                            ([0], [[5, -9], [False, False], [7]])):  # fmt: skip
        total = WeightedSum(reference)
        total.add_all_([(clients[one], 0.5) for one in order])
        total.add_all_([])
        assert value(total) == expected

    processes = [WeightedSum(reference) for _ in clients]
    for process, one in zip(processes, clients, strict=True):
        process.add_(one, 0.5)
    reduce_all(processes)
    assert [value(process) for process in processes] == [[[5, -8], [True, False], [9]]] * 2


def test_what_goes_in_and_what_came_out_stay_as_they_are():
    source, reference = weights([1.0, 2.0]), weights([3.0, 4.0])
    for one in (source, reference):
        one.vectors[torch.int64] = torch.tensor([1])
    total = WeightedSum(reference)
    total.add_(source, 0.25)
    first = total.value(0.25)
    source.vectors[torch.float64].mul_(5)
    source.vectors[torch.int64].mul_(5)
    total.add_(source, 0.25)
    assert first.vectors[torch.float64].tolist() == [1.0, 2.0]
    assert first.vectors[torch.int64].tolist() == [1]
    assert reference.vectors[torch.float64].tolist() == [3.0, 4.0]
    assert total.value(0.5).vectors[torch.float64].tolist() == [3.0, 6.0]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("start", [0.0, float("nan")])
def test_weights_that_are_not_finite_are_refused(value, start):
    total = WeightedSum(Weights({torch.float32: torch.zeros(2), torch.float64: torch.tensor([start])}))
    bad = Weights({torch.float32: torch.ones(2), torch.float64: torch.tensor([value])})
    with pytest.raises(TrainingError, match="not finite"):
        total.add_(bad, 0.5)
    assert total.value(1.0).vectors[torch.float32].tolist() == [0, 0]  # nothing of it was added


def test_an_infinity_that_changes_its_sign_is_refused():
    with pytest.raises(TrainingError, match="not finite"):
        average([[-torch.inf]], [1.0], [torch.inf])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_an_infinite_entry_becomes_the_average_once_all_are_finite(small_blocks, dtype):
    """As extremes do that begin at infinity: one that a client still has stays, in any order and on any process."""
    size = 2 * small_blocks + 1
    start = torch.zeros(size, dtype=dtype)
    start[-3:] = torch.tensor([torch.inf, -torch.inf, torch.inf])
    models = []
    for values in ([4.0, -8.0, 1.0], [6.0, -2.0, torch.inf]):
        model = torch.ones(size, dtype=dtype)
        model[-3:] = torch.tensor(values)
        models.append(Weights({dtype: model}))
    refused = models[0].clone()
    refused.vectors[dtype][0] = torch.inf
    expected = [1.0, 4.5, -6.5, torch.inf]
    for order in ([0, 1], [1, 0]):
        one, processes = WeightedSum(Weights({dtype: start})), [WeightedSum(Weights({dtype: start})) for _ in range(3)]
        for k in order:
            weight = (0.75, 0.25)[k]
            one.add_(models[k], weight)
            with pytest.raises(TrainingError, match="not finite"):
                one.add_all_([(models[1 - k], 0.5), (refused, 0.5)])
            processes[k].add_(models[k], weight)
        reduce_all(processes)
        for total in (one, *processes):
            assert total.value(1.0).vectors[dtype][-4:].tolist() == expected


def test_changes_beyond_the_exact_range_are_refused():
    with pytest.raises(TrainingError, match=r"1.1e\+12"):
        average([[2.0**40]], [1.0])
    assert average([[2.0**40 - 1]], [1.0]).item() == 2.0**40 - 1
    assert average([[2.0**60 + 2.0**20]], [1.0], [2.0**60]).item() == 2.0**60 + 2.0**20
    # Each term is small enough, their sum is not: in one process, and over three.
    message = r"1.65e\+12 .*1.1e\+12"
    with pytest.raises(TrainingError, match=message):
        average([[2.0**39]] * 3, [1.0] * 3)
    thirds = [added([[2.0**39]], [1.0]) for _ in range(3)]
    reduce_all(thirds)
    with pytest.raises(TrainingError, match=message):
        thirds[0].value(3.0)


def integer_average(rows, betas, reference, total: float) -> list[float]:
    """The definition in Python's integers, which never overflow: the same roundings, hence the same bits."""
    averages = []
    for k, start in enumerate(reference):
        units = sum(round((row[k] - start) * (beta * 2.0**46)) for row, beta in zip(rows, betas, strict=True))
        averages.append(float(units) / (2.0**46 * total) + start)
    return averages


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(weighted_sum, "_CACHED", 4)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    return 8


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("offset", [-7, -1, 0, 1, 8, 9])
def test_has_the_bits_of_integer_sums_at_the_edges_of_blocks(small_blocks, offset, dtype):
    """Changes of 2^-40 and of 2^10 in one vector, so that some sums are one integer and some are two."""
    size, count = small_blocks + offset, 5
    draws = torch.Generator().manual_seed(size)
    scales = 2.0 ** torch.randint(-40, 11, (size,), generator=draws)
    reference = torch.randn(size, generator=draws, dtype=torch.float64).to(dtype)
    rows = [(reference.double() + scales * torch.randn(size, generator=draws)).to(dtype) for _ in range(count)]
    betas = [0.05, 0.1, 0.25, 0.3, 0.3]
    start, models = Weights({dtype: reference}), [Weights({dtype: row}) for row in rows]
    expected = integer_average([row.tolist() for row in rows], betas, reference.tolist(), sum(betas))
    expected = torch.tensor(expected, dtype=torch.float64).to(dtype)

    one_by_one, together = WeightedSum(start), WeightedSum(start)
    for model, beta in zip(models, betas, strict=True):
        one_by_one.add_(model, beta)
    together.add_all_(list(zip(reversed(models), reversed(betas), strict=True)))
    for total in (one_by_one, together):
        got = total.value(sum(betas)).vectors[dtype]
        assert got.dtype == dtype
        assert torch.equal(got.view(torch.uint8), expected.view(torch.uint8))


@pytest.mark.parametrize("largest", [10.0, 100.0, 2.0**30])
@pytest.mark.parametrize("num_processes", [1, 2, 3])
def test_one_integer_becomes_two_at_any_time_and_on_any_process(largest, num_processes):
    """Sums that go up to the largest and come down again; small ones before, between and after."""
    steps = [1e-9, 0.3, largest / 3, -7e-5, largest, -largest / 7, 1.1, -largest, 2e-13, largest, -0.7]
    rows, betas, reference = [[step, -step, 0.5] for step in steps], [1.0] * len(steps), [0.25, 0.0, 0.5]
    expected = integer_average(rows, betas, reference, 3.0)
    for order in (range(len(rows)), reversed(range(len(rows)))):
        processes = [WeightedSum(weights(reference)) for _ in range(num_processes)]
        for i in order:
            processes[i % num_processes].add_(weights(rows[i]), betas[i])
        if num_processes > 1:
            reduce_all(processes)
        for process in processes:
            assert process.value(3.0).vectors[torch.float64].tolist() == expected
            process.add_(weights(rows[1]), 1.0)  # a reduced sum goes on
            assert process.value(3.0).vectors[torch.float64].tolist() == integer_average(
                [*rows, rows[1]], [*betas, 1.0], reference, 3.0
            )


@pytest.mark.parametrize("together", [True, False])
def test_processes_send_one_number_an_entry_unless_a_sum_needs_two(together, monkeypatch):
    """And four facts: of a small model beside the sums, of a large one before them."""
    if not together:
        monkeypatch.setattr("lightning_fl.engine.weights.weighted_sum._SENT_TOGETHER", 7)
    reference = Weights({torch.float32: torch.zeros(5), torch.bfloat16: torch.zeros(3, dtype=torch.bfloat16)})

    def sent(change: float) -> list[int]:
        sums = [WeightedSum(reference) for _ in range(3)]
        model = reference.clone()
        model.vectors[torch.float32][1] = change
        sums[1].add_(model, 1.0)
        parts = reduce_all(sums)
        assert {float(one.value(1.0).vectors[torch.float32][1]) for one in sums} == {change}
        assert {dtype for dtype, _ in parts} == {torch.float64}
        return [count for _, count in parts]

    assert sent(120.0) == ([4 + 8] if together else [4, 3, 5])
    assert sent(130.0) == [4 + 8 if together else 4, 3, 3, 5, 5]


def test_sums_that_fit_one_by_one_and_not_together():
    """100 on each of three processes: less than 128 each, and more in all."""
    sums = [added([[100.0, 2.0**-46]], [1.0]) for _ in range(3)]
    assert len(reduce_all(sums)) == 3
    assert sums[2].value(1.0).vectors[torch.float64].tolist() == [300.0, 3 * 2.0**-46]


@pytest.mark.parametrize("bad", [torch.inf, torch.nan, 2.0**41])
def test_what_was_added_of_refused_weights_is_taken_back(small_blocks, bad):
    """The bad entry lies in the last block, after changes of every size."""
    size = 3 * small_blocks + 1
    reference = torch.zeros(size)
    good = 2.0 ** torch.linspace(-50, 20, size)
    refused = -3.7 * good
    refused[-1] = bad
    start, first = Weights({torch.float32: reference}), Weights({torch.float32: good})
    total, untouched = WeightedSum(start), WeightedSum(start)
    for one in (total, untouched):
        one.add_(first, 0.7)
    for terms in ([(first, 0.3), (Weights({torch.float32: refused}), 0.9)], [(Weights({torch.float32: refused}), 0.9)]):
        with pytest.raises(TrainingError, match="not finite|2.2e.12"):
            total.add_all_(terms)
        assert total.value(0.7).equal(untouched.value(0.7))


def test_threads_do_not_change_bits():
    draws = torch.Generator().manual_seed(1)
    reference = torch.randn(300_001, generator=draws)
    models = [Weights({torch.float32: reference + torch.randn(300_001, generator=draws)}) for _ in range(3)]
    before, values = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            total = WeightedSum(Weights({torch.float32: reference}))
            for model, beta in zip(models, (0.1, 0.2, 0.7), strict=True):
                total.add_(model, beta)
            values.append(total.value(1.0))
    finally:
        torch.set_num_threads(before)
    assert values[0].equal(values[1])
    assert values[0].equal(values[2])


@pytest.mark.parametrize("scale", [1.0, 1e6], ids=["one integer", "two integers"])
def test_looking_ahead_waits_once_and_gives_the_same_bits(monkeypatch, scale):
    """As a GPU's sums do: the norms of all changes are fetched before the first is added."""
    monkeypatch.setattr(weighted_sum, "_CACHED", 4)  # blocks of a few entries
    draws = torch.Generator().manual_seed(3)
    reference, *models = (Weights({torch.float32: scale * torch.randn(30, generator=draws)}) for _ in range(4))
    terms = [(model, share) for model, share in zip(models, (0.2, 0.5, 0.3), strict=True)]

    def total(ahead):
        total = WeightedSum(reference)
        total._looks_ahead = ahead
        total.add_all_(terms)
        return total

    expected = total(False).value(1.0)
    fetches, tolist = [], torch.Tensor.tolist
    monkeypatch.setattr(torch.Tensor, "tolist", lambda self: fetches.append(len(self)) or tolist(self))
    if scale == 1.0:
        monkeypatch.setattr(torch.Tensor, "__float__", lambda self: pytest.fail("a wait of its own"))
    ahead = total(True)
    assert fetches[0] == 3 * -(-30 // (4 * torch.get_num_threads()))
    assert len(fetches) == 1 or scale > 1
    monkeypatch.undo()
    assert bits(ahead.value(1.0).vectors[torch.float32]) == bits(expected.vectors[torch.float32])
