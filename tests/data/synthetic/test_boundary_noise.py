"""The two clients of DRFLM's Example 1: where labels are wrong, and what each algorithm makes of them."""

import pytest
import torch

from lightning_fl import FederatedTrainer
from lightning_fl.callbacks import Callback, DROClientSampling, LocalMixup
from lightning_fl.core.seeding import generator
from lightning_fl.data import BoundaryNoise
from lightning_fl.data.synthetic.boundary_noise import boundary_samples
from lightning_fl.models import ClassificationModel


def test_labels_are_wrong_in_the_strip_alone_and_as_often_as_said() -> None:
    x, y = boundary_samples(20_000, 3, 0.7, 0.4, generator(0, "test"))
    right = (x[:, 0] > 0).long()
    strip = (x[:, 0] <= -1) & (x[:, 0] >= -1.4)
    assert torch.equal(y[~strip], right[~strip])
    assert float((y != right)[strip].double().mean()) == pytest.approx(0.7, abs=0.03)
    # half of the samples left of 0, 0.4 of these in the strip
    assert float(strip.double().mean()) == pytest.approx(0.2, abs=0.015)
    assert ((x[:, 0].abs() >= 1) & (x[:, 0].abs() <= 2)).all()
    assert ((x[:, 1:] >= -2) & (x[:, 1:] <= -1)).all()


def test_only_the_second_clients_labels_are_wrong_and_no_test_label_is() -> None:
    data = BoundaryNoise(flip_probability=1.0, width=1.0, train_samples=400, val_samples=0, test_samples=100)
    wrong = {}
    for client in range(2):
        for split in ("train", "test"):
            x, y = data.client_data(client, split).tensors  # type: ignore[arg-type, union-attr]
            wrong[client, split] = float((y != (x[:, 0] > 0)).double().mean())
    assert wrong.pop((1, "train")) == pytest.approx(0.5, abs=0.1)  # all that are left of 0
    assert set(wrong.values()) == {0.0}
    assert data.client_data(0, "val") is None
    again = BoundaryNoise(flip_probability=1.0, width=1.0, train_samples=400, val_samples=0, test_samples=100)
    assert torch.equal(again.client_data(1, "train").tensors[0], data.client_data(1, "train").tensors[0])  # type: ignore[union-attr]


def clean_error(*callbacks: Callback, flip_probability: float = 0.6, width: float = 0.5) -> float:
    """The share of 20,000 samples without noise that the last model gives the wrong class."""
    data = BoundaryNoise(
        flip_probability=flip_probability, width=width, val_samples=0, test_samples=0, batch_size=100, data_seed=0
    )
    torch.manual_seed(0)
    module = ClassificationModel(
        network="mlp", in_shape=[2], num_classes=2, hidden_sizes=[], learning_rate=0.5, optimizer="sgd"
    )
    trainer = FederatedTrainer(
        max_rounds=100,
        local_steps=5,
        callbacks=list(callbacks),
        enable_progress_bar=False,
        enable_checkpointing=False,
        logger=False,
    )
    trainer.fit(module, data)
    x, y = boundary_samples(20_000, 2, 0.0, 0.5, generator(1, "clean"))
    with torch.no_grad():
        return float((module(x).argmax(1) != y).double().mean())


@pytest.mark.slow
def test_example_1() -> None:
    """E(DRFA) > E(FedAvg) = E(DRFLM) = 0: the client whose labels are wrong has the larger loss, and all the weight.

    What it alone would learn from errs on at least part of the strip, which has a quarter of the clean samples.
    """
    sampling = DROClientSampling(cohort="all", step_size=0.05)
    fedavg, drfa = clean_error(), clean_error(sampling)
    drflm = clean_error(DROClientSampling(cohort="all", step_size=0.05), LocalMixup(alpha=1.0))
    assert fedavg < 0.005
    assert drflm < 0.005
    assert 0.03 < drfa <= 0.25
    assert sampling.weights[1] > 0.9
