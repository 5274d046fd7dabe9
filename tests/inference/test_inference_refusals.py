"""Refusals of predictions, explanations and personalisation: the exception and the name of what is at fault."""

import math

import pytest
import torch
from constant_model import SAMPLES, Constant, Silent, write_models
from torch import nn
from torch.utils.data import TensorDataset

from lightning_fl.core.errors import CheckpointError, ConfigurationError, DataError
from lightning_fl.core.metrics import percentiles
from lightning_fl.inference.explanation import explain
from lightning_fl.inference.forward import Naming
from lightning_fl.inference.models import best_client
from lightning_fl.inference.options import PredictionOptions
from lightning_fl.inference.personalization import Newcomer, personalize
from lightning_fl.inference.trained_run import TrainedRun
from lightning_fl.inference.uncertainty import DropoutPasses, half_widths
from lightning_fl.models import MoleculeModel
from lightning_fl.runtime.calibration_file import TargetCalibration


def explained(*words, names=None, target=0, target_class=1, **arguments):
    model = MoleculeModel(**({"hidden_dim": 8, "num_layers": 1, "task": "regression", "num_targets": 2} | arguments))
    return explain(model, *words, target=target, target_class=target_class, names=names)


def mixed(folder, values, make=Constant, **options):
    return personalize(make(), write_models(folder, values), SAMPLES, accelerator="cpu", **options)


def damaged(folder):
    (path,) = write_models(folder, [0.5])
    path.write_bytes(path.read_bytes()[:300])
    personalize(Constant(), [path], SAMPLES, accelerator="cpu")


def without_weights(folder):
    torch.save({"weights": 1}, folder / "shared_0.ckpt")
    personalize(Constant(), [folder / "shared_0.ckpt"], SAMPLES, accelerator="cpu")


def hidden_divergence(folder):
    paths = write_models(folder, [0.5, 0.25])
    broken = torch.load(paths[1], weights_only=True)
    broken["state_dict"]["norm.weight"].fill_(math.nan)  # no score shows it
    torch.save(broken, paths[1])
    personalize(Constant(), paths, SAMPLES, accelerator="cpu")


def best_of(folder, metrics):
    """The best client by metrics of validation data, all lower is better where they do not say so."""
    (folder / "models").mkdir()
    names = list(next(iter(metrics.values()))["clients"])
    for name in names:
        (folder / "models" / f"{name}.ckpt").touch()
    of_val = {name: {"higher_is_better": False} | metric for name, metric in metrics.items()}
    return best_client(TrainedRun(folder, {"client_names": names, "metrics": {"val": of_val}}, {}))


def best_of_many(folder):
    values = {"clients": {"worst": 0.25}, "percentiles": percentiles([0.25] + [0.5] * 999)}
    best_of(folder, {"acc": {"higher_is_better": True} | values})


UNKNOWN = {"kendall_tau": {"clients": {"a": 0.1, "b": 0.9}}}  # a name whose direction nobody states


def test_a_metric_of_unknown_direction_chooses_no_client(tmp_path):
    assert best_of(tmp_path, UNKNOWN | {"loss": {"clients": {"a": 2.0, "b": 1.0}}}) == "b"


NINE = TargetCalibration("regression", 9, 1, {0: 5, 32: 4})
LOST = TargetCalibration("regression", 9, 1, {0: 5, 64 * 32: 4})
Y = Naming(("y",))
ROWS = [
    (lambda _: PredictionOptions(interval=1.5), ConfigurationError, "interval=1.5"),
    (lambda _: PredictionOptions(interval=math.nan), ConfigurationError, "interval=nan"),
    (lambda _: PredictionOptions(mc_dropout=1), ConfigurationError, "mc_dropout=1"),
    (lambda _: PredictionOptions(calibrate="plat"), ConfigurationError, "calibrate='plat'.*platt, isotonic"),
    (lambda _: DropoutPasses(nn.Linear(1, 1), 2, seed=0), ConfigurationError, "--mc_dropout 2: Linear"),
    (lambda _: half_widths([NINE], 0.95, Y), ConfigurationError, "--interval 0.95: y .*0.9 "),
    (lambda _: half_widths([LOST], 0.9, Y), ConfigurationError, "--interval 0.9: y .*finite"),
    (
        lambda _: explained("CCO", target="toxicty", names=["solubility", "toxicity"]),
        ConfigurationError,
        r"target='toxicty'.*did you mean 'toxicity'",
    ),
    (lambda _: explained("CCO", target=2), ConfigurationError, "target=2"),
    (
        lambda _: explained("CCO", target_class=3, num_targets=1, task="multiclass", num_classes=3),
        ConfigurationError,
        "target_class=3: .* 0 to 2",
    ),
    (lambda _: explained("nonsense"), DataError, "'nonsense'"),
    (lambda _: explain(nn.Linear(1, 1), "C"), ConfigurationError, "Linear"),
    (lambda _: explained("C", descriptor_dim=4), ConfigurationError, "descriptors"),
    (lambda _: Newcomer(SAMPLES, holdout=-0.1), ConfigurationError, "Newcomer.holdout=-0.1"),
    (lambda _: Newcomer(SAMPLES, holdout=1.0), ConfigurationError, "Newcomer.holdout=1.0"),
    (lambda _: Newcomer(TensorDataset(torch.ones(1, 1))), DataError, "1 samples .*holdout"),
    (lambda _: personalize(Constant(), [], SAMPLES), ConfigurationError, r"shared=\[\]"),
    (lambda at: mixed(at, [0.5, 1.5], monitor="val/acc"), ConfigurationError, "val/acc is 0.5, 1.5"),
    (lambda at: mixed(at, [0.5, -1.0], monitor="val/loss"), ConfigurationError, "val/loss is 0.5, -1"),
    (lambda at: mixed(at, [math.nan, math.nan]), ConfigurationError, "val/acc is NaN for all 2"),
    (lambda at: mixed(at, [0.5, 0.5], monitor="acc"), ConfigurationError, "monitor='acc'.*val/loss, val/acc"),
    (lambda at: mixed(at, [0.5], make=lambda: Constant(names=())), ConfigurationError, "monitor=None"),
    (lambda at: mixed(at, [0.5], make=Silent), ConfigurationError, "Silent .*validation_step"),
    (lambda at: mixed(at, [0.5], make=lambda: Constant(size=2)), CheckpointError, "shared_0.ckpt .*size mismatch"),
    (damaged, CheckpointError, "shared_0.ckpt"),
    (without_weights, CheckpointError, "state_dict"),
    (hidden_divergence, CheckpointError, "shared_1.ckpt .* shared_0.ckpt"),
    (best_of_many, ConfigurationError, "--model best: "),
    (lambda at: best_of(at, UNKNOWN), ConfigurationError, "--model best: .*validation metrics"),
]


@pytest.mark.parametrize(("call", "error", "name"), ROWS, ids=[row[2] for row in ROWS])
def test_refusals(tmp_path, call, error, name):
    with pytest.raises(error, match=name):
        call(tmp_path)
