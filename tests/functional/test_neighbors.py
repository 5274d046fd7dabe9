"""Predictions from the nearest samples: numbers worked out, limits and invariances."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from lightning_fl.functional.neighbors import (
    Neighbors,
    kernel_weights,
    mixed_logits,
    mixed_values,
    neighbor_probabilities,
    task_of,
    weighted_mean,
)


def column(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64).unsqueeze(1)


def draws(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def test_three_samples_on_a_line() -> None:
    """Samples at 0 (class 0), 1 and 3 (class 1), a query at 0.2: exp(-0.04) : exp(-0.64) : exp(-7.84)."""
    embeddings, classes = column(0, 1, 3), torch.tensor([0, 1, 1])
    model = torch.tensor([[0.3, 0.7]], dtype=torch.float64)
    two, three = math.exp(-0.04) / (math.exp(-0.04) + math.exp(-0.64)), None
    for k, expected in ((2, (0.6456563062, 0.3543436938)), (3, (0.6454855443, 0.3545144557))):
        weights, indices = kernel_weights(column(0.2), embeddings, k, 1.0)
        assert indices.tolist() == [list(range(k))]
        found = neighbor_probabilities(weights, classes[indices], 2)
        assert found[0].tolist() == pytest.approx(expected, abs=5e-11)
        three = float(found[0, 0])
        if k == 2:
            assert three == pytest.approx(two, rel=1e-14)
            mixed = mixed_logits(model.log(), found, 0.5).softmax(1)[0]
            assert mixed.tolist() == pytest.approx((0.4728281531, 0.5271718469), abs=5e-11)


def test_fewer_samples_than_neighbours_are_all_taken() -> None:
    weights, indices = kernel_weights(draws(5, 2), draws(3, 2, seed=1), 10, 1.0)
    assert weights.shape == indices.shape == (5, 3)
    assert torch.allclose(weights.sum(1), torch.ones(5, dtype=torch.float64))


def test_of_equally_near_samples_the_first_are_taken() -> None:
    weights, indices = kernel_weights(column(0.0), column(1, -1, 1, -1, 0.5), 3, 1.0)
    assert indices.tolist() == [[4, 0, 1]]
    assert weights[0, 1] == weights[0, 2]


def test_far_samples_do_not_underflow() -> None:
    """exp(-1e8) is 0; of two that are equally far each counts half."""
    weights, _ = kernel_weights(column(0.0), column(1e4, -1e4, 2e4), 3, 1.0)
    assert weights[0].tolist() == [0.5, 0.5, 0.0]


def test_questions_are_mixed_one_by_one() -> None:
    logits = torch.tensor([[0.0, 2.0, -1.0]], dtype=torch.float64)
    answers = torch.tensor([[1.0, 0.25, math.nan]], dtype=torch.float64)
    mixed = mixed_logits(logits, answers, 0.5, binary=True)
    expected = [0.75, 0.125 + 0.5 / (1 + math.exp(-2)), 1 / (1 + math.e)]
    assert mixed.sigmoid()[0].tolist() == pytest.approx(expected, rel=1e-14)
    sure = mixed_logits(logits, torch.tensor([[1.0, 0.0, 1.0]], dtype=torch.float64), 1.0, binary=True)
    assert sure.isfinite().all()
    assert sure.sigmoid()[0].tolist() == pytest.approx([1, 0, 1], abs=1e-30)


def test_values_are_the_kernels_mean_without_those_that_are_missing() -> None:
    weights = torch.tensor([[0.5, 0.3, 0.2]], dtype=torch.float64)
    targets = torch.tensor([[[1.0, math.nan, math.nan], [2.0, 4.0, math.nan], [3.0, 6.0, math.nan]]]).double()
    mean = weighted_mean(weights, targets)[0]
    assert mean[:2].tolist() == pytest.approx([1.7, (0.3 * 4 + 0.2 * 6) / 0.5], rel=1e-14)
    assert mean[2].isnan()
    mixed = mixed_values(torch.tensor([[10.0, 10.0, 10.0]]).double(), weights, targets, 0.25)[0]
    assert mixed.tolist() == pytest.approx([0.25 * 1.7 + 7.5, 0.25 * 4.8 + 7.5, 10.0], rel=1e-14)


def test_where_only_far_neighbours_have_a_value_they_count_alike() -> None:
    weights = torch.tensor([[1.0, 0.0, 0.0]], dtype=torch.float64)
    assert weighted_mean(weights, torch.tensor([[[math.nan], [2.0], [4.0]]]).double()).tolist() == [[3.0]]


def test_targets_are_brought_to_the_scale_of_the_outputs() -> None:
    keys, targets = draws(8, 2), 100 + 20 * draws(8, 1, seed=1)
    scales = (torch.tensor([100.0]).double(), torch.tensor([20.0]).double())
    store = Neighbors.of(keys, draws(8, 1, seed=2), targets, "values", k=1, target_scales=scales)
    assert torch.allclose(store.mixed(keys, draws(8, 1, seed=3), 1.0), draws(8, 1, seed=1))


def test_the_share_that_does_best_is_chosen_and_the_least_of_equals() -> None:
    """Two clusters; the model knows nothing, or all."""
    keys, labels = column(0, 0.1, 5, 5.1), torch.tensor([0, 0, 1, 1])
    knows, guesses = 9 * torch.eye(2).double()[labels], torch.zeros(4, 2).double()
    store = Neighbors.of(keys, guesses, labels, "classes", k=2)
    assert store.best_share(keys, guesses, labels) == 1.0
    wrong = Neighbors.of(keys, guesses, 1 - labels, "classes", k=2)
    assert wrong.best_share(keys, knows, labels) == 0.0
    values = Neighbors.of(keys, column(0, 0, 0, 0), column(2, 2, 2, 2), "values", k=4)
    assert values.best_share(keys, column(1, 1, 1, 1), column(1.3, 1.3, 1.3, 1.3)) == 0.3
    assert values.best_share(keys, column(2, 2, 2, 2), column(7, math.nan, 7, 7)) == 0.0  # all shares say 2
    asked = Neighbors.of(keys, column(0, 0, 0, 0), column(0, 0, 1, 1), "binary", k=2)
    assert asked.best_share(keys, column(0, 0, 0, 0), column(0, math.nan, 1, 1)) == 1.0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("task", ["classes", "binary", "values"])
def test_half_precision_is_as_good_as_its_values(task: Any, dtype: torch.dtype) -> None:
    """Embeddings and outputs of an autocast forward pass; targets are as exact as ever."""
    keys, outputs = draws(12, 2).to(dtype), draws(12, 3 if task == "classes" else 2, seed=1).to(dtype)
    targets = torch.arange(12) % 3 if task == "classes" else draws(12, 2, seed=2).float()
    targets = (targets > 0).float() if task == "binary" else targets
    half = Neighbors.of(keys, outputs, targets, task, k=3)
    whole = Neighbors.of(keys.float(), outputs.float(), targets, task, k=3)
    mixed, expected = half.mixed(keys, outputs, 0.3), whole.mixed(keys.float(), outputs.float(), 0.3)
    assert mixed.shape == outputs.shape
    torch.testing.assert_close(mixed, expected.to(mixed.dtype))
    assert half.best_share(keys, outputs, targets) == whole.best_share(keys.float(), outputs.float(), targets)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32, torch.bool])
def test_classes_may_be_integers_of_any_size(dtype: torch.dtype) -> None:
    keys, outputs, labels = draws(12, 2), draws(12, 2, seed=1), torch.arange(12) % 2
    store, whole = (Neighbors.of(keys, outputs, targets, "classes", k=3) for targets in (labels.to(dtype), labels))
    assert torch.equal(store.mixed(keys, outputs, 0.3), whole.mixed(keys, outputs, 0.3))
    assert store.best_share(keys, outputs, labels.to(dtype)) == whole.best_share(keys, outputs, labels)


def test_what_targets_are_about() -> None:
    labels = torch.tensor([0, 1])
    assert task_of(draws(2, 3), labels) == "classes"
    assert task_of(draws(2, 1), labels) == task_of(draws(2), labels) == "binary"
    assert task_of(draws(2, 1), column(0.5, math.nan)) == "values"
    with pytest.raises(ValueError, match="0 and 1"):
        task_of(draws(2, 1), column(0, 1))


@pytest.mark.parametrize(
    ("outputs", "targets", "task"),
    [
        (draws(3, 2), torch.tensor([0, 1, 2]), "classes"),
        (draws(3, 2), column(0, 1, 1), "classes"),
        (draws(3, 2), column(0, 1, 1), "values"),
        (draws(3, 2, 2), column(0, 1, 1), "values"),
        (draws(3), torch.tensor([[0, 1], [1, 0], [1, 1]]), "binary"),
    ],
)
def test_outputs_that_do_not_fit_are_refused(outputs: Tensor, targets: Tensor, task: Any) -> None:
    with pytest.raises(ValueError, match=f"as {task}"):
        Neighbors.of(draws(3, 2), outputs, targets, task)


def test_many_queries_are_compared_in_parts() -> None:
    queries, embeddings = draws(2500, 2), draws(20, 2, seed=1)
    weights, indices = kernel_weights(queries, embeddings, 4, 1.0)
    few, places = kernel_weights(queries[2000:2003], embeddings, 4, 1.0)
    assert torch.equal(weights[2000:2003], few)
    assert torch.equal(indices[2000:2003], places)
