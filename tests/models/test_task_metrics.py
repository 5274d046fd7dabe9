"""Metrics of several targets, against scikit-learn and scipy on each target's present entries."""

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn import metrics as reference

from lightning_fl.core.metrics import higher_is_better
from lightning_fl.functional.task_metrics import TaskOutputs, task_scores

NAN = float("nan")
DRAWS = torch.Generator().manual_seed(0)


def with_gaps(target):
    return target.masked_fill(torch.rand(target.shape, generator=DRAWS) < 0.2, NAN)


def each_target(prediction, target):
    for number in range(target.shape[1]):
        present = ~target[:, number].isnan()
        assert not present.all()
        yield number, prediction[present, number].numpy(), target[present, number].numpy()


def test_classification_is_scikit_learns():
    target = with_gaps((torch.rand(90, 4, generator=DRAWS) < torch.tensor([0.1, 0.3, 0.5, 0.8])).float())
    probability = (0.3 * target.nan_to_num(0) + 0.6 * torch.rand(90, 4, generator=DRAWS)).clamp(0, 1)
    probability = (probability * 20).round() * 0.0495 + 0.004  # ties, and none on the edge of a bin
    found = task_scores("classification", probability, target)
    assert not found.left_out
    for number, p, y in each_target(probability, target):
        expected = {
            "auroc": reference.roc_auc_score(y, p),
            "average_precision": reference.average_precision_score(y, p),
            "balanced_accuracy": reference.balanced_accuracy_score(y, p > 0.5),
            "mcc": reference.matthews_corrcoef(y, p > 0.5),
        }
        for name, value in expected.items():
            assert found.tasks[name][number] == pytest.approx(value, abs=1e-6), name
        bins = np.clip(np.digitize(p, np.linspace(0, 1, 16)[1:-1], right=True), 0, 14)
        error = sum(
            (bins == b).mean() * abs(y[bins == b].mean() - p[bins == b].mean()) for b in range(15) if (bins == b).any()
        )
        assert found.tasks["calibration_error"][number] == pytest.approx(error, abs=1e-5)
    for name, values in found.tasks.items():
        assert found.mean[name] == pytest.approx(np.mean(list(values.values())))


@pytest.mark.parametrize("task", ["classification", "multiclass"])
def test_probabilities_that_are_not_finite_have_no_score(task):
    """And those of the other target have theirs."""
    target = torch.tensor([[0.0, 1], [1, 0], [1, 1]])
    probability = torch.tensor([[0.1, 0.9], [0.8, 0.2], [0.7, torch.nan]])
    if task == "multiclass":
        probability = torch.stack([1 - probability, probability], dim=-1)
    found = task_scores(task, probability, target)
    whole = task_scores(task, probability.nan_to_num(0.5), target)
    assert found.tasks.keys() == whole.tasks.keys()
    assert not found.left_out
    for name, values in found.tasks.items():
        assert values[0] == whole.tasks[name][0]
        assert np.isnan(values[1])
        assert np.isnan(found.mean[name])


def test_several_classes_are_scikit_learns():
    target = with_gaps(torch.randint(3, (120, 2), generator=DRAWS).float())
    logits = torch.randn(120, 2, 3, generator=DRAWS)
    probability = logits.softmax(-1)
    found = task_scores("multiclass", probability, target)
    for number, p, y in each_target(probability, target):
        areas = [reference.roc_auc_score(y == kind, p[:, kind]) for kind in range(3)]
        expected = {
            "accuracy": reference.accuracy_score(y, p.argmax(1)),
            "balanced_accuracy": reference.balanced_accuracy_score(y, p.argmax(1)),
            "mcc": reference.matthews_corrcoef(y, p.argmax(1)),
            "auroc": np.mean(areas),
        }
        for name, value in expected.items():
            assert found.tasks[name][number] == pytest.approx(value, abs=1e-5), name
    assert set(found.mean) == {"accuracy", "balanced_accuracy", "mcc", "auroc", "calibration_error"}


def test_classes_that_do_not_occur_are_in_no_mean():
    """Three classes, of which a client has two: those two are measured."""
    target = torch.tensor([[0.0], [0.0], [2.0], [2.0]])
    probability = torch.tensor([[[0.8, 0.1, 0.1]], [[0.5, 0.1, 0.4]], [[0.1, 0.1, 0.8]], [[0.2, 0.7, 0.1]]])
    found = task_scores("multiclass", probability, target).mean
    assert found["balanced_accuracy"] == pytest.approx((2 / 2 + 1 / 2) / 2)
    # class 0: 0.8, 0.5 against 0.1, 0.2; class 2: 0.8, 0.1 against 0.1, 0.4: won, tied, lost
    assert found["auroc"] == pytest.approx((1 + (1 + 1 + 0.5 + 0) / 4) / 2)


def test_regression_is_scikit_learns_and_scipys():
    target = with_gaps(torch.randn(60, 3, generator=DRAWS) * torch.tensor([1.0, 20.0, 0.1]) + 5)
    prediction = target.nan_to_num(0) * 0.7 + torch.randn(60, 3, generator=DRAWS)
    means = torch.tensor([5.0, 4.0, 5.1])
    found = task_scores("regression", prediction, target, train_mean=means)
    for number, p, y in each_target(prediction, target):
        expected = {
            "rmse": reference.root_mean_squared_error(y, p),
            "mae": reference.mean_absolute_error(y, p),
            "r2": reference.r2_score(y, p),
            "pearson": stats.pearsonr(y, p).statistic,
            "spearman": stats.spearmanr(y, p).statistic,
            "rmse_of_mean": np.sqrt(np.mean((y - means[number].item()) ** 2)),
            "mae_of_mean": np.mean(np.abs(y - means[number].item())),
        }
        assert set(found.tasks) == set(expected)
        for name, value in expected.items():
            assert found.tasks[name][number] == pytest.approx(value, rel=1e-3, abs=1e-5), name
    errors = (means - target)[~target.isnan()].double()  # over all values, like a model's RMSE and MAE
    assert found.mean["rmse_of_mean"] == pytest.approx(errors.square().mean().sqrt().item())
    assert found.mean["mae_of_mean"] == pytest.approx(errors.abs().mean().item())


def test_r2_far_from_zero_is_that_of_double_precision():
    draws = torch.Generator().manual_seed(1)
    target = 10_000 + torch.randn(200, 1, generator=draws)
    prediction = target + 0.5 * torch.randn(200, 1, generator=draws)
    expected = reference.r2_score(target.double(), prediction.double())
    assert task_scores("regression", prediction, target).mean["r2"] == pytest.approx(expected, abs=1e-4)


def test_bounds_count_in_errors_and_not_in_correlations():
    target = torch.tensor([[1.0], [2.0], [4.0], [3.0], [3.0]])
    bound = torch.tensor([[0.0], [0.0], [0.0], [1.0], [-1.0]])
    prediction = torch.tensor([[1.5], [2.0], [3.0], [9.0], [5.0]])  # the first bound is kept, the second is not
    found = task_scores("regression", prediction, target, bound).mean
    errors = np.array([0.5, 0, 1, 0, 2])
    assert found["rmse"] == pytest.approx(np.sqrt(np.mean(errors**2)))
    assert found["mae"] == pytest.approx(np.mean(errors))
    assert found["r2"] == pytest.approx(reference.r2_score([1, 2, 4], [1.5, 2, 3]))
    assert found["pearson"] == pytest.approx(stats.pearsonr([1, 2, 4], [1.5, 2, 3]).statistic, abs=1e-6)


def test_what_cannot_be_measured_is_left_out_and_named():
    target = torch.tensor([[1.0, 1.0, NAN, 0.0], [0.0, 1.0, NAN, 0.0], [1.0, 1.0, NAN, 0.0], [0.0, NAN, NAN, 1.0]])
    probability = torch.tensor([0.9, 0.2, 0.8, 0.1])[:, None].expand(4, 4)
    found = task_scores("classification", probability, target, least=(2, 2))
    assert found.left_out == {1: "one class", 2: "no value", 3: "too few labels of one class"}
    assert found.tasks["auroc"] == {0: 1.0}
    assert found.mean["auroc"] == 1
    assert set(task_scores("classification", probability, target).tasks["auroc"]) == {0, 3}
    nothing = task_scores("classification", probability[:, 1:3], target[:, 1:3])
    assert nothing.mean == {}
    assert nothing.tasks == {}


@pytest.mark.parametrize("constant", [0.0, 0.3, 1.0])
def test_a_model_that_always_says_the_same(constant):
    target = torch.tensor([[1.0], [0.0], [0.0], [0.0]])
    found = task_scores("classification", torch.full((4, 1), constant), target).mean
    flat = {"auroc": 0.5, "average_precision": 0.25, "balanced_accuracy": 0.5, "mcc": 0}
    assert {name: found[name] for name in flat} == pytest.approx(flat)
    measured = torch.tensor([[1.0], [2.0], [6.0]])
    of_values = task_scores("regression", torch.full((3, 1), 3.0), measured, train_mean=torch.tensor([3.0])).mean
    assert of_values["r2"] == pytest.approx(0)
    assert of_values["rmse"] == pytest.approx(of_values["rmse_of_mean"])
    assert not {"pearson", "spearman"} & set(of_values)


@pytest.mark.parametrize(("count", "names"), [(1, {"rmse", "mae"}), (2, {"rmse", "mae", "r2", "pearson", "spearman"})])
def test_one_value_has_no_correlation(count, names):
    values = torch.arange(count).float()[:, None]
    assert set(task_scores("regression", values + 0.5 * values**2, values).mean) == names


@pytest.mark.parametrize("task", ["classification", "multiclass", "regression"])
def test_no_value_depends_on_the_order_or_on_other_targets(task):
    target = with_gaps((torch.rand(50, 3, generator=DRAWS) > 0.4).float())
    shape = (50, 3, 2) if task == "multiclass" else (50, 3)
    prediction = torch.rand(shape, generator=DRAWS)
    if task == "multiclass":
        prediction = prediction / prediction.sum(-1, keepdim=True)
    order = torch.randperm(50, generator=DRAWS)
    whole = task_scores(task, prediction, target)
    shuffled = task_scores(task, prediction[order], target[order])
    alone = task_scores(task, prediction[:, 1:2], target[:, 1:2])
    for name, values in whole.tasks.items():
        assert shuffled.tasks[name] == pytest.approx(values, abs=1e-5), name
        assert alone.mean[name] == pytest.approx(values[1], abs=1e-6), name


def test_the_directions_of_all_names():
    target = (torch.rand(40, 1, generator=DRAWS) > 0.5).float()
    both = torch.rand(40, 1, generator=DRAWS)
    names = set(task_scores("classification", both, target).mean)
    names |= set(task_scores("multiclass", torch.stack([1 - both, both], -1), target).mean)
    names |= set(task_scores("regression", both, target, train_mean=torch.zeros(1)).mean)
    lower = {"rmse", "mae", "rmse_of_mean", "mae_of_mean", "calibration_error"}
    for name in names:
        assert higher_is_better(f"test/{name}") == (name not in lower), name
        # whatever the target is called
        assert higher_is_better(f"test/{name}/loss of binding") == (name not in lower), name
        assert higher_is_better(f"test/{name}/MAPK accuracy") == (name not in lower), name


def test_outputs_are_those_of_all_batches():
    outputs = TaskOutputs()
    one, two = torch.rand(3, 2), torch.rand(2, 2)
    outputs.update(one, one + 1)
    outputs.update(two, two + 1)
    prediction, target, bound = outputs.compute()
    assert torch.equal(prediction, torch.cat([one, two]))
    assert torch.equal(target, torch.cat([one, two]) + 1)
    assert bound is None
    outputs.reset()
    assert outputs.prediction == []
