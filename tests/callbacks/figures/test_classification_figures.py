import math

import pytest
import torch
from lightning.pytorch import LightningModule
from sklearn import metrics
from torch.utils.data import TensorDataset

from lightning_fl.callbacks import CalibrationFigure, ParityFigure, PrecisionRecallFigure, ROCFigure
from lightning_fl.callbacks.figures.plots.classification import classification_curve, draw_classification
from lightning_fl.callbacks.predictions import pair_outputs
from lightning_fl.core.errors import DataError
from lightning_fl.data import FederatedDataModule
from lightning_fl.trainer.trainer import FederatedTrainer

NAN = math.nan
FIGURES = {"roc": ROCFigure, "precision_recall": PrecisionRecallFigure, "calibration": CalibrationFigure}


def draws(count, seed=0):
    generator = torch.Generator().manual_seed(seed)
    probability = torch.rand(count, generator=generator, dtype=torch.float64)
    return probability, (torch.rand(count, generator=generator) < probability).double()


def test_areas_are_scikit_learns():
    probability, label = draws(200)
    x, y, area = classification_curve("roc", probability, label)
    assert area == pytest.approx(metrics.roc_auc_score(label, probability))
    assert area == pytest.approx(metrics.auc(x, y))
    assert (x[0], y[0], x[-1], y[-1]) == (0, 0, 1, 1)
    x, y, precision = classification_curve("precision_recall", probability, label)
    assert precision == pytest.approx(metrics.average_precision_score(label, probability))
    assert x[0] == 1
    assert y[0] == pytest.approx(label.mean().item())


def test_the_calibration_error_is_that_of_torchmetrics():
    from torchmetrics.functional.classification import binary_calibration_error

    probability, label = draws(300)
    x, y, error = classification_curve("calibration", probability, label)
    assert error == pytest.approx(binary_calibration_error(probability, label.long(), n_bins=10).item(), abs=1e-6)
    first = probability < 0.1
    assert (x[0], y[0]) == pytest.approx((probability[first].mean().item(), label[first].mean().item()))


def test_perfect_calibration_has_no_error():
    probability = torch.tensor([0.25] * 4 + [0.75] * 4, dtype=torch.float64)
    label = torch.tensor([1.0, 0, 0, 0, 1, 1, 1, 0], dtype=torch.float64)
    assert classification_curve("calibration", probability, label)[2] == 0


@pytest.mark.parametrize("kind", FIGURES)
def test_a_client_with_one_class_is_named_and_counts_among_all(kind):
    probability, label = draws(50)
    points = {0: (probability, label), 1: (torch.tensor([0.9]).double(), torch.ones(1).double())}
    figure = draw_classification(kind, {"y": points}, ["a", "b"])
    labels = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    together = (torch.cat([probability, points[1][0]]), torch.cat([label, points[1][1]]))
    assert labels == [
        f"a ({classification_curve(kind, probability, label)[2]:.3f})",
        f"all ({classification_curve(kind, *together)[2]:.3f})",
        "one class only:\nb",
    ]


def test_many_targets_are_small_panels_and_those_of_one_class_are_named():
    probability, label = draws(40)
    panels = {f"task {number}": {0: (probability, label)} for number in range(40)}
    panels["flat"] = {0: (probability, torch.zeros(40).double())}
    figure = draw_classification("roc", panels, ["a"])
    assert len(figure.axes) == 30
    assert figure._suptitle.get_text() == "ROC, the first 30 of 40 targets; one class only: flat"
    with pytest.raises(DataError, match="both classes"):
        draw_classification("roc", {"flat": panels["flat"]}, ["a"])


def test_what_predict_step_may_return():
    binary, classes = torch.rand(5, 2), torch.rand(5, 3)
    labels = torch.tensor([[0.0, 1], [1, NAN], [0, 0], [1, 1], [0, 1]])
    found = pair_outputs([binary[:2], binary[2:]], labels, classes=True)
    assert torch.equal(found[0], binary.double())
    found = pair_outputs([classes], torch.tensor([0, 2, 1, 0, 1]), classes=True)
    assert found[0].shape == (5, 1, 3)
    found = pair_outputs([torch.rand(5, 2, 4)], labels, classes=True)
    assert found[0].shape == (5, 2, 4)
    for outputs in ([torch.rand(4, 3)], ["text"]):
        with pytest.raises(DataError, match="predict_step"):
            pair_outputs(outputs, labels, classes=True)


class Tabular(FederatedDataModule):
    num_clients = 2
    source = "measured"
    target_names = ("active", "toxic")
    target_units = ("not given", "not given")

    def client_data(self, client, split):
        probability, _ = draws(30, client)
        labels = torch.stack([(probability > 0.5).float(), (probability > 0.2 + 0.7 * client).float()], 1)
        labels[3, 0] = NAN
        return TensorDataset(probability.float()[:, None].repeat(1, 2), labels)


class Same(LightningModule):
    def __init__(self, factor=1.0):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor(factor))

    def training_step(self, batch, batch_idx):
        return self.weight.square()

    def test_step(self, batch, batch_idx):
        self.log("test/loss", self.weight)

    def predict_step(self, batch, batch_idx):
        return batch[0] * self.weight

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def run(root, *callbacks, factor=1.0):
    trainer = FederatedTrainer(
        callbacks=list(callbacks), default_root_dir=root, logger=False, enable_progress_bar=False, devices=1
    )
    trainer.test(Same(factor), Tabular())
    return trainer


def test_pictures_of_a_run(tmp_path):
    callbacks = [kind() for kind in FIGURES.values()] + [ROCFigure(target="toxic"), ParityFigure(target=None)]
    trainer = run(tmp_path, *callbacks)
    found = {path.name for path in (tmp_path / "version_0" / "figures").iterdir()}
    assert found == {f"{kind}_test.png" for kind in FIGURES} | {"roc_test_1.png", "parity_test_all.png"}
    assert trainer.is_global_zero


@pytest.mark.parametrize("kind", FIGURES.values())
def test_what_is_no_probability_is_said(tmp_path, kind):
    with pytest.warns(UserWarning, match=rf"{kind.picture}_test.*predict_step"):
        run(tmp_path, kind(), factor=2.0)


def test_a_target_that_is_not_there_is_said(tmp_path):
    with pytest.warns(UserWarning, match=r"target='toxik'.*did you mean 'toxic'"):
        run(tmp_path, ROCFigure(target="toxik"))
    with pytest.warns(UserWarning, match="target=2"):
        run(tmp_path, ROCFigure(target=2))
