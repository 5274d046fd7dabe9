"""Samples of two linear models."""

import json
import math

import pytest
import torch
from lightning.pytorch import LightningModule
from torch import nn

from lightning_fl import FederatedTrainer
from lightning_fl.core.seeding import generator
from lightning_fl.data import SyntheticMixture
from lightning_fl.data.module import SPLITS
from lightning_fl.data.partition import mixture_counts, mixture_shares
from lightning_fl.data.synthetic.mixture import linear_samples
from lightning_fl.models import ClassificationModel


def linear_accuracy(w, theta, noise_std):
    """How often <w, x> and <theta, x> + noise have the same sign: jointly normal, 1 - arccos(correlation) / pi."""
    correlation = float(w @ theta) / float(w.norm()) / math.hypot(float(theta.norm()), noise_std)
    return 1 - math.acos(max(-1.0, min(1.0, correlation))) / math.pi


def tensors(data, client, split="train"):
    return data.client_data(client, split).tensors


def test_without_noise_every_sample_lies_on_one_of_the_two_models():
    data = SyntheticMixture(num_clients=6, task="regression", mixture="20:80", noise_std=0.0, data_seed=4)
    for client in range(6):
        for split in SPLITS:
            x, y = tensors(data, client, split)
            residuals = (y - x @ data.coefficients.T).abs()  # [n, 2]
            assert (residuals.min(1).values < 1e-4).all()
            of_a = int((residuals.argmin(1) == 0).sum())
            share = 0.8 if client < 3 else 0.2
            assert (of_a, len(x) - of_a) == data.client_counts(client, split)
            assert abs(of_a - share * len(x)) <= 0.5 + 1e-9


@pytest.mark.slow
def test_least_squares_finds_the_coefficients():
    data = SyntheticMixture(
        num_clients=2, task="regression", mixture="0:100", min_samples=4000, max_samples=4000, data_seed=1
    )
    for client in range(2):
        x, y = tensors(data, client)
        found = torch.linalg.lstsq(x, y).solution[:, 0]
        # standard error σ / √n
        assert (found - data.coefficients[client]).abs().max() < 5 / math.sqrt(4000)
        residual = (y[:, 0] - x @ found).var()
        assert abs(float(residual) - 1) < 5 * math.sqrt(2 / 4000)


def test_features_and_coefficients_have_their_spread():
    data = SyntheticMixture(num_features=2000, min_samples=50, max_samples=50, data_seed=0, coefficient_std=3.0)
    assert abs(float(data.coefficients.std()) - 3) < 4 * 3 / math.sqrt(2 * 4000)
    x, _ = tensors(data, 0)
    assert abs(float(x.var()) - 1) < 4 * math.sqrt(2 / x.numel())
    assert abs(float(x.mean())) < 4 / math.sqrt(x.numel())


def test_classes_are_the_signs():
    classes = SyntheticMixture(num_clients=3, data_seed=2)
    reals = SyntheticMixture(num_clients=3, task="regression", data_seed=2)
    for client in range(3):
        (x, y), (same_x, real) = tensors(classes, client), tensors(reals, client)
        assert torch.equal(x, same_x)
        assert torch.equal(y, (real[:, 0] > 0).long())
        assert (real.shape, real.dtype, y.dtype) == ((len(x), 1), torch.float32, torch.int64)


def test_signs_are_noisy_as_declared():
    theta, w = torch.tensor([3.0, 4.0]), torch.tensor([1.0, -0.2])
    x, y = linear_samples(theta[None], [40000], noise_std=2.0, rng=generator(0, "accuracy"))
    expected = linear_accuracy(w, theta, 2.0)
    found = float(((x @ w > 0) == (y > 0)).float().mean())
    assert abs(found - expected) < 4 * math.sqrt(expected * (1 - expected) / 40000)


def test_a_clients_samples_depend_on_the_seed_and_the_client_only():
    few = SyntheticMixture(num_clients=3, mixture="random", data_seed=5)
    many = SyntheticMixture(num_clients=50, mixture="random", data_seed=5, val_samples=0)
    other = SyntheticMixture(num_clients=3, mixture="random", data_seed=6)
    for client in range(3):
        for split in ("train", "test"):
            assert all(map(torch.equal, tensors(few, client, split), tensors(many, client, split)))
        assert not torch.equal(tensors(few, client)[0][:50], tensors(other, client)[0][:50])
    assert not torch.equal(tensors(few, 0)[0][:50], tensors(few, 1)[0][:50])
    assert not torch.equal(tensors(few, 0)[0][:50], tensors(few, 0, "test")[0][:50])
    assert many.client_data(0, "val") is None
    assert many.num_samples("val") == [0] * 50


def test_sizes_are_drawn_from_the_range():
    data = SyntheticMixture(num_clients=400, min_samples=3, max_samples=6, data_seed=0)
    assert set(data.client_sizes()) == {3, 4, 5, 6}
    assert [len(tensors(data, client)[0]) for client in range(9)] == data.client_sizes()[:9]
    assert data.num_samples("test") == [100] * 400


@pytest.mark.slow
@pytest.mark.parametrize(("invert_test", "invert_validation"), [(False, None), (True, None), (True, False)])
def test_the_mixture_can_be_inverted(invert_test, invert_validation):
    data = SyntheticMixture(
        num_clients=4, mixture="linear", invert_test=invert_test, invert_validation=invert_validation, data_seed=0
    )
    inverted = {"train": False, "val": invert_test if invert_validation is None else invert_validation}
    inverted["test"] = invert_test
    shares = mixture_shares("linear", 4, 0)
    for split in SPLITS:
        for client, size in enumerate(data.num_samples(split)):
            expected = mixture_counts(shares, [size], [inverted[split]])[:, client, 0].tolist()
            assert list(data.client_counts(client, split)) == expected


def test_the_record_is_plain_and_complete(monkeypatch):
    monkeypatch.setenv("PL_GLOBAL_SEED", "9")
    data = SyntheticMixture(num_clients=4, mixture="30:70")
    record = json.loads(json.dumps(data.describe()))
    assert (record["source"], record["data_seed"], record["task"]) == ("synthetic", 9, "classification")
    assert record["shares_of_a"] == [0.7, 0.7, 0.3, 0.3]
    assert record["client_sizes"]["test"] == [100] * 4
    assert data.num_classes == 2


class _Line(LightningModule):
    def __init__(self, num_features):
        super().__init__()
        self.line = nn.Linear(num_features, 1)

    def training_step(self, batch, batch_idx):
        x, y = batch
        return nn.functional.mse_loss(self.line(x), y)

    def test_step(self, batch, batch_idx):
        x, y = batch
        self.log("test/mse", nn.functional.mse_loss(self.line(x), y))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.05)


def _tested(module, data, folder):
    trainer = FederatedTrainer(
        max_rounds=10, local_epochs=2, accelerator="cpu", devices=1, logger=False, enable_progress_bar=False,
        default_root_dir=folder,
    )  # fmt: skip
    trainer.fit(module, data)
    return {name: summary.mean for name, summary in trainer.test(module, data).items()}


def _one_distribution(task):
    return SyntheticMixture(
        num_clients=1, task=task, mixture="0:100", num_features=3, min_samples=2000, max_samples=2000,
        test_samples=2000, batch_size=100, data_seed=0,
    )  # fmt: skip


@pytest.mark.slow
def test_one_distribution_is_learned_as_well_as_its_noise_allows(tmp_path):
    data = _one_distribution("regression")
    mse = _tested(_Line(3), data, tmp_path)["test/mse"]
    assert abs(mse - 1) < 5 * math.sqrt(2 / 2000)  # σ² and the standard error of its estimate
    data = _one_distribution("classification")
    model = ClassificationModel(network="mlp", in_shape=[3], num_classes=2, hidden_sizes=[], learning_rate=0.5)
    best = linear_accuracy(data.coefficients[0], data.coefficients[0], 1.0)
    assert abs(_tested(model, data, tmp_path)["test/acc"] - best) < 0.01 + 4 * math.sqrt(best * (1 - best) / 2000)
