import numpy as np
import pytest
import torch

from lightning_fl.inference.forward import Naming, cut_batches, free_name, mean_outputs, model_columns


def columns(values, **naming):
    return {name: list(of) for name, of in model_columns({"": values}, Naming(**naming)).items()}


def test_targets_have_a_column_each():
    values = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    assert columns(values, targets=("a", "b")) == {"a": [1, 3], "b": [2, 4]}
    assert columns(values[:, :1], targets=("a",)) == columns(values[:, 0], targets=("a",)) == {"a": [1, 3]}


def test_classes_have_a_column_each_and_the_likeliest_is_named():
    values = torch.tensor([[0.2, 0.8], [0.75, 0.25]])
    found = columns(values.double(), targets=("ill",), classes=("no", "yes"))
    assert list(found) == ["ill", "ill=no", "ill=yes"]
    assert found["ill"] == ["yes", "no"]
    np.testing.assert_allclose([found["ill=no"], found["ill=yes"]], values.T)
    assert columns(torch.tensor([1, 0]), targets=("ill",), classes=("no", "yes")) == {"ill": ["yes", "no"]}


def test_several_targets_with_classes():
    values = torch.tensor([[[0.1, 0.7, 0.2], [0.5, 0.25, 0.25]]])
    found = columns(values, targets=("a", "b"))
    assert list(found) == ["a", "a=0", "a=1", "a=2", "b", "b=0", "b=1", "b=2"]
    assert (found["a"], found["b"], found["b=0"]) == (["1"], ["0"], [0.5])


def test_outputs_that_fit_no_target():
    values = torch.arange(6.0).reshape(2, 3)
    assert list(columns(values, targets=("a",))) == ["prediction_0", "prediction_1", "prediction_2"]
    assert columns(values[:, 0], targets=("a",), classes=("x", "y")) == {"prediction": [0, 3]}
    named = model_columns({"mean": values[:, :1], "deep": values.reshape(2, 3, 1)}, Naming(("a",)))
    assert list(named) == ["a_mean", "deep_0", "deep_1", "deep_2"]


def test_the_record_names_targets():
    assert Naming.of({"target_names": ["a", "b"], "classes": None}) == Naming(("a", "b"))
    assert Naming.of({"target": "ill", "classes": ["no", "yes"]}) == Naming(("ill",), ("no", "yes"))
    assert Naming.of({"classes": ["0", "1"]}) == Naming(("label",), ("0", "1"))
    assert Naming.of({}) == Naming(("prediction",))
    assert Naming.of({"target": "months", "event": "dead"}) == Naming(("prediction",))  # hazards, not months


def test_a_name_that_is_taken():
    assert free_name("a", ["b"]) == "a"
    assert free_name("a", ["a"]) == "a_predicted"
    assert free_name("a", ["a", "a_predicted", "a_predicted_2"]) == "a_predicted_3"


def test_the_mean_over_models():
    models = [
        {"": torch.tensor([1.0, 2.0]), "n": torch.tensor([1])},
        {"": torch.tensor([3.0, 8.0]), "n": torch.tensor([2])},
    ]
    assert {name: values.tolist() for name, values in mean_outputs(models).items()} == {"": [2.0, 5.0]}


@pytest.mark.parametrize(
    ("count", "sizes", "expected"),
    [
        (5, None, [2, 2, 1]),
        (4, None, [2, 2]),
        (5, [1] * 5, [2, 2, 1]),
        (4, [100, 28, 1, 1], [2, 2]),
        (4, [100, 29, 1, 1], [1, 2, 1]),
        (3, [1, 500, 1], [1, 1, 1]),
    ],
)
def test_batches_have_a_most_of_samples_and_of_atoms(count, sizes, expected):
    assert cut_batches(count, 2, sizes) == expected
