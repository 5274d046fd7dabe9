import math

import pytest
import torch
from torch.nn import functional as F

from lightning_fl.functional.task_metrics import (
    bounded_error,
    masked_binary_cross_entropy,
    masked_cross_entropy,
    masked_mse,
)

NAN = float("nan")


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def with_gaps(target, seed=1):
    gaps = torch.rand(target.shape, generator=torch.Generator().manual_seed(seed)) < 0.3
    return target.masked_fill(gaps, NAN)


def test_an_error_counts_on_the_wrong_side_of_a_bound_only():
    #                          a value, at most 2: kept, broken;  at least 2: kept, broken;  missing
    prediction = torch.tensor([1.0, 1.0, 5.0, 5.0, 1.0, 7.0])
    target = torch.tensor([2.0, 2.0, 2.0, 2.0, 2.0, NAN])
    bound = torch.tensor([0.0, -1.0, -1.0, 1.0, 1.0, 0.0])
    assert bounded_error(prediction, target, bound).tolist() == [-1, 0, 3, 0, -1, 0]
    assert bounded_error(prediction, target).tolist() == [-1, -1, 3, 3, -1, 0]


def test_a_bound_that_is_kept_has_no_gradient_and_counts_in_the_mean():
    prediction = torch.tensor([[1.0], [5.0]], requires_grad=True)
    loss = masked_mse(prediction, torch.tensor([[2.0], [2.0]]), torch.tensor([[-1.0], [-1.0]]))
    loss.backward()
    assert loss.item() == pytest.approx((0 + 9) / 2)
    assert prediction.grad.tolist() == [[0], [3]]  # d (p - y)^2 / 2 entries


def test_binary_cross_entropy_is_the_loop_over_present_labels():
    logits = draw(7, 3)
    target = with_gaps((draw(7, 3, seed=2) > 0).double())
    positive, task = torch.tensor([1.0, 4.0, 0.5]).double(), torch.tensor([1.0, 0.0, 2.0]).double()
    losses = []
    for row in range(7):
        for column in range(3):
            label = target[row, column].item()
            if math.isnan(label):
                continue
            p = 1 / (1 + math.exp(-logits[row, column].item()))
            loss = -positive[column].item() * math.log(p) if label else -math.log(1 - p)
            losses.append(task[column].item() * loss)
    assert 0 < len(losses) < 21
    found = masked_binary_cross_entropy(logits, target, positive, task)
    assert found.item() == pytest.approx(sum(losses) / len(losses))


def test_cross_entropy_is_torchs_over_present_labels():
    logits = draw(9, 2, 4)
    target = with_gaps(torch.randint(4, (9, 2), generator=torch.Generator().manual_seed(5)).double())
    weights, task = draw(2, 4, seed=6).exp(), torch.tensor([0.5, 3.0]).double()
    losses = []
    for column in range(2):
        present = ~target[:, column].isnan()
        labels = target[present, column].long()
        one = F.cross_entropy(logits[present, column], labels, reduction="none")
        losses.append(one * weights[column, labels] * task[column])
    found = masked_cross_entropy(logits, target, weights, task)
    torch.testing.assert_close(found, torch.cat(losses).mean())
    plain = masked_cross_entropy(logits, target)
    expected = F.cross_entropy(logits.flatten(0, 1), target.nan_to_num(-100).long().flatten(), ignore_index=-100)
    torch.testing.assert_close(plain, expected)


@pytest.mark.parametrize("loss", [masked_mse, masked_binary_cross_entropy, masked_cross_entropy])
def test_nothing_present_is_zero_with_a_gradient(loss):
    logits = draw(*((4, 2, 3) if loss is masked_cross_entropy else (4, 2))).requires_grad_()
    value = loss(logits, torch.full((4, 2), NAN).double())
    value.backward()
    assert value.item() == 0
    assert not logits.grad.any()


@pytest.mark.parametrize("loss", [masked_mse, masked_binary_cross_entropy, masked_cross_entropy])
def test_missing_entries_have_no_gradient(loss):
    logits = draw(*((4, 2, 3) if loss is masked_cross_entropy else (4, 2))).requires_grad_()
    target = torch.tensor([[1.0, NAN], [NAN, 0.0], [NAN, NAN], [1.0, 1.0]]).double()
    loss(logits, target).backward()
    of_entries = logits.grad.abs().reshape(4, 2, -1).sum(-1)
    assert torch.equal(of_entries == 0, target.isnan())
