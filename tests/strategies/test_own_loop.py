"""Federated averaging in a user's own Fabric loop, on two real processes."""

import json
from pathlib import Path

import pytest
import torch
from processes import nothing_left, succeed_as_two_ranks

pytestmark = [pytest.mark.processes, pytest.mark.slow]

SCRIPT = Path(__file__).with_name("own_loop.py")
NUM_SAMPLES, LEARNING_RATE = (30, 10), 0.5


def seen_by(folder: Path) -> list[dict]:
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(2)]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory, warm_python) -> list[dict]:
    folder = tmp_path_factory.mktemp("own_loop")
    with nothing_left():
        succeed_as_two_ranks(warm_python.start, SCRIPT, folder)
    return seen_by(folder)


def local(rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradient of (w x)^2 at w = (0.1, -2 + rank), x = (1, 2 + rank), and the weights after a step of SGD."""
    weights = torch.tensor([0.1, -2.0 + rank])
    inputs = torch.tensor([1.0, 2.0 + rank])
    gradient = 2 * (weights * inputs).sum() * inputs
    return gradient, weights - LEARNING_RATE * gradient


def test_the_name_is_known_when_fabric_is_imported_first(ranks, tmp_path, start_warm):
    """In a new process, which the script starts as the second; there it does as where all is imported."""
    ended = start_warm(SCRIPT, tmp_path, environment={"OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1"}).end()
    assert ended.code == 0, ended.err
    fresh = seen_by(tmp_path)
    assert [seen["strategy"] for seen in fresh] == ["fedavg"] * 2
    assert fresh == ranks


def test_loaders_are_not_sharded(ranks):
    assert [seen["samples"] for seen in ranks] == [list(range(7))] * 2


def test_gradients_and_steps_are_local(ranks):
    for rank, seen in enumerate(ranks):
        gradient, weights = local(rank)
        assert seen["gradient"][0] == pytest.approx(gradient.tolist(), rel=1e-6)
        assert seen["local"][0] == pytest.approx(weights.tolist(), rel=1e-6)
    assert ranks[0]["gradient"] != ranks[1]["gradient"]


def test_the_average_is_weighted_by_samples(ranks):
    assert ranks[0]["average"] == ranks[1]["average"]
    for k in range(2):
        expected = sum(n * seen["local"][0][k] for n, seen in zip(NUM_SAMPLES, ranks, strict=True)) / sum(NUM_SAMPLES)
        assert ranks[0]["average"][0][k] == torch.tensor(expected).item()  # rounded to float32 once
    assert [seen["count"] for seen in ranks] == [7, 7]


def test_the_optimiser_goes_on_from_the_average(ranks):
    for rank, seen in enumerate(ranks):
        gradient, _ = local(rank)
        expected = torch.tensor(seen["average"][0]) - LEARNING_RATE * gradient
        assert seen["stepped"][0] == pytest.approx(expected.tolist(), rel=1e-5)


def test_what_ranks_know_is_brought_together_in_the_order_of_clients(ranks):
    for seen in ranks:
        assert seen["clients"] == [0, 2, 3, 5]
        assert seen["values"] == [1, 0, ["of", 1], ["of", 0]]
        assert seen["ranks"] == [0, 0, 1, 1]  # of 5, 1, 3 and 2 samples


def test_an_error_on_one_rank_is_raised_on_all(ranks):
    assert ranks[0]["errors"] == ranks[1]["errors"]
    negative, nothing, not_finite = ranks[0]["errors"]
    assert negative.startswith("ConfigurationError: num_samples=-2.0 on rank 1")
    assert nothing.startswith("ConfigurationError: num_samples is 0 on every rank")
    assert not_finite.startswith("TrainingError: rank 1: the weights are not finite")
