"""Spreads and dropout as functions, then the options of ``lightning-fl predict`` on runs of molecules."""

import json
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from finished_runs import SMALL, fit, iid
from torch import nn

from lightning_fl import predict
from lightning_fl.cli import main
from lightning_fl.core.errors import ConfigurationError
from lightning_fl.functional import apply_isotonic, apply_platt
from lightning_fl.functional.conformal import quantile_of_counts
from lightning_fl.inference.forward import Naming
from lightning_fl.inference.uncertainty import DropoutPasses, calibrated, half_widths, total_spread
from lightning_fl.runtime.calibration_file import TargetCalibration, read_calibration

NEW = ["CCO", "CCCCN", "CCCCCCF"]


@cache  # tests only read the runs
def _fit(name, values, *, seed=3, callbacks=("Calibration",), dropout=0.3):
    rows = [f"{'C' * n}{end},{values(n, end)},{end}" for n in range(1, 13) for end in "ONF"]
    Path(f"{name}.csv").write_text("\n".join(["smiles,y,lab", *rows]) + "\n")
    model = {"hidden_dim": 8, "num_layers": 2, "learning_rate": 0.1, "dropout": dropout}
    data = {"path": f"{name}.csv", "target_columns": ["y"], "group_column": "lab", "split": [0.5, 0.25, 0.25]}
    parts = {"class_path": "MoleculeModel", "init_args": model}, {"class_path": "MoleculeCSV", "init_args": data}
    return fit(*parts, callbacks, seed=seed, root=f"runs/{name}{seed}").absolute()


def _number(n, end):
    return 0.3 * n


def _label(n, end):
    return int(n % 3 == 0)


def test_the_law_of_total_variance() -> None:
    generator = torch.Generator().manual_seed(0)
    draws = torch.randn(3, 5, 4, 2, generator=generator, dtype=torch.float64)  # models, passes, samples, targets
    found = total_spread([[{"": one} for one in member] for member in draws])[""]
    # With as many passes of each model, it is the deviation of all passes together.
    assert torch.allclose(found, draws.reshape(15, 4, 2).std(0, correction=0))
    single = total_spread([[{"": draws[0, 0]}], [{"": draws[1, 0]}]])[""]
    assert torch.allclose(single, (draws[0, 0] - draws[1, 0]).abs() / 2)
    assert not total_spread([[{"": draws[0, 0]}]])[""].any()


def test_only_dropout_is_in_training() -> None:
    module = nn.Sequential(nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Dropout(0.0)).eval()
    passes = DropoutPasses(module, 2, seed=7)
    modes, x = [], torch.ones(3, 4)

    def run():
        modes.append([part.training for part in module])
        return {"": module(x)}

    before = torch.random.get_rng_state()
    one, two = passes(run, 0)
    assert modes == [[False, True, False]] * 2
    assert not any(part.training for part in module)
    assert torch.equal(before, torch.random.get_rng_state())
    assert not torch.equal(one[""], two[""])
    assert all(torch.equal(a[""], b[""]) for a, b in zip((one, two), passes(run, 0), strict=True))
    assert not torch.equal(passes(run, 1)[0][""], one[""])


def test_a_target_without_a_label_has_no_calibrated_probability() -> None:
    known = TargetCalibration("classification", 4, 1, None, (2.0, 0.0), ([0.0, 1.0], [0.25, 0.75]))
    none = TargetCalibration("classification", 0, 0)
    values = torch.tensor([[0.2, 0.5], [0.6, 0.5]])
    for method, wanted in (("platt", [0.04 / 0.68, 0.36 / 0.52]), ("isotonic", [0.35, 0.55])):
        found = calibrated({"": values}, [known, none], method)[""]
        assert found[:, 0].tolist() == pytest.approx(wanted, rel=1e-5)
        assert found[:, 1].isnan().all()


def test_widths_need_enough_samples() -> None:
    nine = TargetCalibration("regression", 9, 1, {0: 5, 32: 4})
    assert half_widths([nine], 0.5, Naming(("y",))) == [1.0]
    assert half_widths([nine], 0.9, Naming(("y",))) == [2.0]
    of_one, missing = half_widths([nine, TargetCalibration("regression", 0, 0, {})], 0.9, Naming(("y", "z")))
    assert (of_one, bool(np.isnan(missing))) == (2.0, True)


def test_intervals_and_spreads_of_a_regression(capsys) -> None:
    run, other = _fit("number", _number), _fit("number", _number, seed=4)
    plain, found = predict(run, NEW), predict(run, NEW, interval=0.5, mc_dropout=4)
    measured = read_calibration(run)["shared_0"][0]
    width = quantile_of_counts(measured.scores, measured.num_clients, 0.5)
    assert list(found) == ["smiles", "y", "y_lower", "y_upper", "y_std", "error"]
    assert (found["y"] == plain["y"]).all()  # dropout is for the spread alone
    assert found["y_upper"].to_numpy() == pytest.approx(plain["y"].to_numpy() + width, rel=1e-5)
    assert found["y_lower"].to_numpy() == pytest.approx(plain["y"].to_numpy() - width, rel=1e-5)
    assert (found["y_std"] > 0).all()
    assert (predict(run, NEW, mc_dropout=4)["y_std"] == found["y_std"]).all()
    seeds = predict(run, NEW, others=[other], spread=True)
    one, two = plain["y"].to_numpy(), predict(other, NEW)["y"].to_numpy()
    assert seeds["y"].to_numpy() == pytest.approx((one + two) / 2, rel=1e-5)
    assert seeds["y_std"].to_numpy() == pytest.approx(np.abs(one - two) / 2, rel=1e-3)
    for words, message in (
        (["--spread"], "--spread needs several models"),
        (["--interval", "0.5", "--with", str(other)], "--interval needs a single model, not 2"),
        (["--interval", "0.999"], "--interval 0.999"),
        (["--calibrate", "platt"], "--calibrate is for classification, y is not: use --interval"),
    ):
        Path("new.csv").write_text("smiles\nCCO\n")
        capsys.readouterr()
        assert main(["predict", str(run), "new.csv", *words]) == 2
        assert message in capsys.readouterr().err


@pytest.mark.parametrize("scale", [1.0, 0.125])
def test_a_target_without_validation_values_has_no_interval(scale) -> None:
    """Also where its values are in 0..1, as those of a class are."""
    parts = ("train", "val", "test")
    rows = [
        f"{'C' * n}{end},{0.3 * n},{'' if part == 'val' else scale * n},{part}"
        for n in range(1, 9)
        for end, part in zip("ONF", parts, strict=True)
    ]
    Path("two.csv").write_text("\n".join(["smiles,y,z,part", *rows]) + "\n")
    division = {"class_path": "ColumnDivision", "init_args": {"column": "part"}}
    data = iid("MoleculeCSV", 2, path="two.csv", target_columns=["y", "z"], division=division)
    run = fit(SMALL, data, ["Calibration"])
    found = predict(run, NEW, interval=0.5)
    assert found[["y", "z", "y_lower", "y_upper"]].notna().all(axis=None)
    assert found[["z_lower", "z_upper", "error"]].isna().all(axis=None)


def test_targets_keep_their_columns_beside_spreads_and_intervals_of_such_a_name() -> None:
    targets = ["y", "y_std", "y_lower"]
    rows = [f"{'C' * n}O,{0.3 * n},{0.1 * n},{0.2 * n}" for n in range(1, 13)]
    Path("names.csv").write_text("\n".join([",".join(["smiles", *targets]), *rows]) + "\n")
    model = {"class_path": "MoleculeModel", "init_args": SMALL["init_args"] | {"dropout": 0.3}}
    data = iid("MoleculeCSV", 2, path="names.csv", target_columns=targets, split=[0.5, 0.25, 0.25])
    run = fit(model, data, ["Calibration"])
    plain, found = predict(run, NEW), predict(run, NEW, interval=0.5, mc_dropout=4)
    pd.testing.assert_frame_equal(found[list(plain)], plain)
    assert (found["y_std_predicted"] > 0).all()
    assert (found["y_lower_predicted"] < found["y"]).all()


def test_calibrated_probabilities(capsys) -> None:
    run = _fit("label", _label)
    raw = torch.tensor(predict(run, NEW)["y"].tolist())
    measured = read_calibration(run)["shared_0"][0]
    assert measured.kind == "classification"
    platt = apply_platt(raw, torch.tensor(measured.platt))
    assert predict(run, NEW, calibrate="platt")["y"].to_numpy() == pytest.approx(platt.numpy(), rel=1e-5)
    isotonic = apply_isotonic(raw, measured.isotonic)
    assert predict(run, NEW, calibrate="isotonic")["y"].to_numpy() == pytest.approx(isotonic.numpy(), rel=1e-5)
    with pytest.raises(ConfigurationError, match="--interval is for regression, y is not"):
        predict(run, NEW, interval=0.5)
    number = _fit("number", _number)
    with pytest.raises(ConfigurationError, match="--with .*number3"):
        predict(run, NEW, others=[number], spread=True)


def test_runs_of_other_seeds_have_their_repeated_molecules_elsewhere() -> None:
    rows = [f"{'C' * n}{end},{0.3 * n}" for n in range(1, 13) for end in "ON"]
    Path("twice.csv").write_text("\n".join(["smiles,y", *rows, *rows]) + "\n")
    data = iid("MoleculeCSV", 2, path="twice.csv", target_columns=["y"])
    one, other = (fit(SMALL, data, seed=seed, root=f"runs/twice{seed}") for seed in (3, 4))
    counts = [json.loads((run / "summary.json").read_text())["data"]["duplicates"] for run in (one, other)]
    assert counts[0] != counts[1]
    assert (predict(one, NEW, others=[other], spread=True)["y_std"] > 0).all()


def test_runs_of_other_folds_and_divisions_are_combined() -> None:
    rows = [f"{'C' * n}{end},{0.3 * n},{part}" for n in range(1, 9) for end, part in (("O", "train"), ("N", "val"))]
    Path("folds.csv").write_text("\n".join(["smiles,y,part", *rows]) + "\n")
    by_column = {"class_path": "ColumnDivision", "init_args": {"column": "part"}}
    divisions = [{}, {"folds": 3}, {"folds": 3, "fold": 1}, {"folds": 4}, {"division": by_column}]
    runs = [
        fit(SMALL, iid("MoleculeCSV", 2, path="folds.csv", target_columns=["y"], **division), root=f"runs/{number}")
        for number, division in enumerate(divisions)
    ]
    assert (predict(runs[0], NEW, others=runs[1:], spread=True)["y_std"] > 0).all()


def test_a_run_without_calibration_is_refused() -> None:
    run = _fit("number", _number, callbacks=(), dropout=0.0)
    with pytest.raises(ConfigurationError, match="--interval: .* has no calibration.json"):
        predict(run, NEW, interval=0.9)
    with pytest.raises(ConfigurationError, match="--mc_dropout 3: MoleculeModel has no dropout layer"):
        predict(run, NEW, mc_dropout=3)
