"""The personal model is the mixture that the scores say, to the last weight."""

import math

import pytest
import torch
from constant_model import SAMPLES, Constant, write_models
from lightning.pytorch import LightningModule
from torch import nn
from torch.utils.data import TensorDataset

from lightning_fl.inference.personalization import Newcomer, personalize
from lightning_fl.runtime.model_file import model_checkpoint


class Mean(LightningModule):
    """Predicts its weight: the loss is the mean squared error."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))

    def validation_step(self, batch, batch_idx):
        self.log("val/loss", (batch[0] - self.weight).square().mean() / 20)


@pytest.mark.slow
def test_scores_of_which_more_is_better_are_the_shares(tmp_path):
    paths = write_models(tmp_path, [0.2, 0.6, 0.0], counters=[5, 3, 90])
    out = tmp_path / "new" / "mine.ckpt"
    found = personalize(Constant(), paths, SAMPLES, out=out, monitor="val/acc", accelerator="cpu")
    assert found.importance.tolist() == pytest.approx([0.2, 0.6, 0.0])
    assert found.mixture.tolist() == pytest.approx([0.25, 0.75, 0.0])
    assert found.personal["val/acc"] == pytest.approx(0.25 * 0.2 + 0.75 * 0.6)
    assert found.uniform["val/acc"] == pytest.approx(0.8 / 3)
    assert found.shared["val/acc"].clients == pytest.approx({0: 0.2, 1: 0.6, 2: 0.0})
    assert (found.num_scored, found.num_held_out, found.higher_is_better) == (4, 4, True)
    mine = Constant.load_from_checkpoint(out, map_location="cpu")
    assert mine.weight.item() == pytest.approx(0.5)
    assert mine.norm.num_batches_tracked == 5  # the largest of those that count: the third has no share
    assert mine.opened
    assert torch.load(out, weights_only=True)["epoch"] == 7


def test_scores_of_which_less_is_better_go_through_exp(tmp_path):
    paths = write_models(tmp_path, [0.5, 2.0, math.inf])
    found = personalize(Constant(), paths[:2], SAMPLES, monitor="val/loss", accelerator="cpu")
    expected = torch.tensor([0.5, 2.0], dtype=torch.float64).neg().exp()
    torch.testing.assert_close(found.importance, expected)
    torch.testing.assert_close(found.mixture, expected / expected.sum())
    assert (found.monitor, found.higher_is_better, found.values) == ("val/loss", False, [0.5, 2.0])


def test_a_model_that_diverged(tmp_path):
    paths = write_models(tmp_path, [math.inf, 0.5, 2.0])
    found = personalize(Constant(names=("val/loss",)), paths, SAMPLES, accelerator="cpu")
    assert found.mixture[0] == 0
    assert found.uniform == {}
    fine = personalize(Constant(names=("val/loss",)), paths[1:], SAMPLES, accelerator="cpu")
    assert found.personal["val/loss"] == fine.personal["val/loss"]


def test_shares_come_from_the_one_part_and_metrics_from_the_other(tmp_path):
    paths = write_models(tmp_path, [1.0, 8.0], make=Mean)
    data = Newcomer(SAMPLES, holdout=0.25, seed=3)
    scored, held_out = (torch.cat([part[i][0] for i in range(len(part))]) for part in data._parts)
    assert sorted([*scored.tolist(), *held_out.tolist()]) == list(range(1, 9))
    assert len(held_out) == 2
    found = personalize(Mean(), paths, SAMPLES, holdout=0.25, seed=3, accelerator="cpu")
    losses = torch.tensor([float((scored - w).square().mean()) / 20 for w in (1.0, 8.0)], dtype=torch.float64)
    torch.testing.assert_close(found.importance, (-losses).exp(), atol=1e-6, rtol=1e-6)
    weight = float((found.mixture * torch.tensor([1.0, 8.0])).sum())
    assert found.personal["val/loss"] == pytest.approx(float((held_out - weight).square().mean()) / 20, rel=1e-5)
    assert found.uniform["val/loss"] == pytest.approx(float((held_out - 4.5).square().mean()) / 20, rel=1e-5)
    everything = personalize(Mean(), paths, SAMPLES, holdout=0, accelerator="cpu")
    assert (everything.num_scored, everything.num_held_out) == (8, 0)
    assert everything.shared["val/loss"].clients[0] == everything.values[0] == pytest.approx(140 / 8 / 20)


def test_one_model_is_the_personal_one_to_the_bit(tmp_path):
    (path,) = write_models(tmp_path, [1 / 3])
    out = tmp_path / "mine.ckpt"
    assert personalize(Constant(), [path], SAMPLES, out=out, accelerator="cpu").mixture.tolist() == [1.0]
    saved, own = torch.load(path, weights_only=True), torch.load(out, weights_only=True)
    assert all(torch.equal(value, own["state_dict"][name]) for name, value in saved["state_dict"].items())
    assert own["hyper_parameters"] == saved["hyper_parameters"]


def test_lazy_layers_have_the_shapes_of_the_checkpoint(tmp_path):
    class Lazy(LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = nn.LazyLinear(1)

        def validation_step(self, batch, batch_idx):
            self.log("val/loss", self.layer(batch[0]).square().mean())

    module = Lazy()
    module.layer(torch.ones(1, 3))
    torch.save(model_checkpoint(module, 1), tmp_path / "one.ckpt")
    found = personalize(Lazy(), [tmp_path / "one.ckpt"], TensorDataset(torch.ones(4, 3)), accelerator="cpu")
    assert found.mixture.tolist() == [1.0]


class Scaled(Mean):
    """Predicts its weight times that of its head."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(1, 1, bias=False)

    def validation_step(self, batch, batch_idx):
        self.log("val/loss", (batch[0] - self.head(self.weight)).square().mean() / 20)


class Remakes(Scaled):
    def on_load_checkpoint(self, checkpoint):
        self.head = nn.Linear(1, 1, bias=False)


class Adds(Remakes):
    def __init__(self) -> None:
        super().__init__()
        del self.head


@pytest.mark.parametrize("kind", [Remakes, Adds])
def test_layers_that_are_made_when_a_checkpoint_is_loaded(kind, tmp_path):
    paths = write_models(tmp_path, [1.0, 8.0], make=Scaled)
    files = [tmp_path / f"{name}.ckpt" for name in ("expected", "found")]
    expected, found = (
        personalize(make(), paths, SAMPLES, out=file, accelerator="cpu")
        for make, file in zip((Scaled, kind), files, strict=True)
    )
    assert (found.values, found.personal) == (expected.values, expected.personal)
    before, after = (torch.load(file, weights_only=True)["state_dict"] for file in files)
    assert before == after
    assert before["head.weight"] != torch.load(paths[0], weights_only=True)["state_dict"]["head.weight"]


def test_nothing_fits_and_all_have_the_same_share(tmp_path):
    found = personalize(Constant(), write_models(tmp_path, [0.0, 0.0]), SAMPLES, monitor="val/acc", accelerator="cpu")
    assert found.mixture.tolist() == [0.5, 0.5]
    found = personalize(Constant(), write_models(tmp_path, [0.5, math.nan]), SAMPLES, accelerator="cpu")
    assert (found.monitor, found.mixture.tolist()) == ("val/acc", [1.0, 0.0])


def test_few_samples():
    one = TensorDataset(torch.ones(1, 1))
    assert Newcomer(one, holdout=0).num_samples("val") == [1, 0]
    two = TensorDataset(torch.ones(2, 1))
    assert [Newcomer(two, holdout=share).num_samples("val") for share in (0.01, 0.99)] == [[1, 1], [1, 1]]


def test_batches_are_as_large_as_the_runs_evaluation_batches():
    like = Newcomer(SAMPLES)
    like.eval_batch_size = 3
    assert Newcomer(SAMPLES, like=like).eval_batch_size == 3
