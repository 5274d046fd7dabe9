"""Uncertainty of predictions: conformal intervals, calibrated probabilities, the spread of several models.

For M equally likely models whose N passes with dropout have means m_j and variances v_j, the spread is the root of
``mean_j v_j + mean_j (m_j - m)^2`` by the law of total variance; v_j is 0 without dropout. Dropout as a sample of
models: Y. Gal, Z. Ghahramani, Dropout as a Bayesian approximation (ICML 2016, https://arxiv.org/abs/1506.02142). The
spread measures the disagreement of models and does not include the noise of measurements.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from lightning_fl.core.errors import ConfigurationError, listed
from lightning_fl.core.seeding import derive_seed, isolated_draws
from lightning_fl.functional.conformal import quantile_of_counts
from lightning_fl.functional.probability_calibration import apply_isotonic, apply_platt
from lightning_fl.inference.forward import Naming, Outputs, model_columns
from lightning_fl.inference.options import CalibrationMethod
from lightning_fl.inference.trained_run import TrainedRun
from lightning_fl.runtime.calibration_file import TargetCalibration, read_calibration

#: Recorded fields that describe the distribution over clients and not how a sample is read.
_DISTRIBUTION_FIELDS = {"client_names", "client_sizes", "duplicates", "left_out", "num_clients", "partitioner"}
_DISTRIBUTION_FIELDS |= {"division", "fold", "folds", "split", "split_seed", "stratified", "train_shares"}


def calibrations_of(run: TrainedRun, model: str, option: str, kind: str, naming: Naming) -> list[TargetCalibration]:
    """Read the calibrations of a model's T targets from ``calibration.json``, for an option on targets of this kind."""
    found = read_calibration(run.folder)
    if found is None:
        raise ConfigurationError(f"{option}: {run.folder} has no calibration.json: train with callback Calibration.")
    if model not in found:
        known = listed(list(found), most=8)
        raise ConfigurationError(f"{option}: {run.folder / 'calibration.json'} has {known}, not the model {model}.")
    targets = found[model]
    named = zip(_names(naming, targets), targets, strict=True)
    other = [name for name, target in named if target.num_samples and target.kind != kind]
    if other:
        instead = "--calibrate" if kind == "regression" else "--interval"
        which = f"{listed(other, most=8)} {'is' if len(other) == 1 else 'are'} not"
        raise ConfigurationError(f"{option} is for {kind}, {which}: use {instead}.")
    return targets


def half_widths(targets: Sequence[TargetCalibration], level: float, naming: Naming) -> list[float]:
    """Half-widths of the intervals of T targets, in their units; NaN where a target has no validation samples."""
    widths = []
    for name, target in zip(_names(naming, targets), targets, strict=True):
        width = quantile_of_counts(target.scores or {}, target.num_clients, level)
        if not target.num_samples and any(other.num_samples for other in targets):
            width = np.nan  # no interval of this target
        elif not np.isfinite(width):
            most = target.num_samples / (target.num_samples + max(target.num_clients, 1))
            possible = quantile_of_counts(target.scores or {}, target.num_clients, max(most - 1e-6, 1e-9)) < np.inf
            reason = f"at most {most:.3g} is possible" if possible else "too few of their predictions are finite"
            what = f"{target.num_samples} validation samples of {target.num_clients} clients, {reason}"
            raise ConfigurationError(f"--interval {level:g}: {name} has {what}: lower the level.")
        widths.append(width)
    return widths


def _names(naming: Naming, targets: Sequence[TargetCalibration]) -> Sequence[str]:
    return naming.targets if len(naming.targets) == len(targets) else list(map(str, range(len(targets))))


def calibrated(outputs: Outputs, targets: Sequence[TargetCalibration], method: CalibrationMethod) -> Outputs:
    """Calibrated probabilities [k, T]; NaN for a target without validation labels."""
    values = _one_output(outputs, len(targets), "--calibrate")
    columns = []
    for place, target in enumerate(targets):
        column = values[:, place]
        if method == "platt" and target.platt is not None:
            column = apply_platt(column, torch.tensor(target.platt, dtype=torch.float64))
        elif method == "isotonic" and target.isotonic is not None:
            column = apply_isotonic(column, target.isotonic)
        else:
            column = torch.full_like(column, torch.nan, dtype=torch.float64)
        columns.append(column.to(values.dtype))
    return {"": torch.stack(columns, dim=1).reshape(outputs[""].shape)}


def interval_columns(outputs: Outputs, widths: Sequence[float], naming: Naming) -> dict[str, np.ndarray]:
    """``TARGET_lower`` and ``TARGET_upper`` for each of T targets."""
    values = _one_output(outputs, len(widths), "--interval")
    width = values.new_tensor(widths)
    lower, upper = ({"": side.reshape(outputs[""].shape)} for side in (values - width, values + width))
    low, high = model_columns(lower, naming), model_columns(upper, naming)
    return {f"{name}_{end}": of[name] for name in low for end, of in (("lower", low), ("upper", high))}


def spread_columns(spread: Outputs, naming: Naming) -> dict[str, np.ndarray]:
    """``COLUMN_std`` for every numeric column."""
    return {f"{name}_std": values for name, values in model_columns(spread, naming).items() if values.dtype.kind == "f"}


def total_spread(members: Sequence[Sequence[Outputs]]) -> Outputs:
    """Standard deviation by the law of total variance, entry by entry, of M models with one or more passes each."""
    spread: Outputs = {}
    for name, first in members[0][0].items():
        if not first.is_floating_point():
            continue
        passes = [torch.stack([one[name].double() for one in member]) for member in members]
        means = torch.stack([member.mean(0) for member in passes])
        within = torch.stack([member.var(0, correction=0) for member in passes]).mean(0)
        spread[name] = (within + means.var(0, correction=0)).sqrt().to(first.dtype)
    return spread


class DropoutPasses:
    """Predictions with dropout layers, at least one, in training mode and all others in evaluation mode."""

    def __init__(self, module: nn.Module, count: int, seed: int) -> None:
        kinds = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)
        self._layers = [layer for layer in module.modules() if isinstance(layer, kinds) and layer.p > 0]
        if not self._layers:
            what = f"{type(module).__name__} has no dropout layer with a probability above 0"
            raise ConfigurationError(f"--mc_dropout {count}: {what}: train with dropout, or use --spread.")
        self._count, self._seed = count, seed

    def __call__(self, predict: Callable[[], Outputs], chunk: int) -> list[Outputs]:
        """Predict the chunk with this number in all passes; deterministic."""
        found = []
        for layer in self._layers:
            layer.train()
        try:
            with isolated_draws():
                for number in range(self._count):
                    torch.manual_seed(derive_seed(self._seed, chunk, number, "dropout of predictions"))
                    found.append(predict())
        finally:
            for layer in self._layers:
                layer.eval()
        return found


def check_same_data(run: TrainedRun, other: TrainedRun) -> None:
    """Refuse a run with another data record or class of model or data; the distribution over clients may differ."""
    if _identity(run) != _identity(other):
        raise ConfigurationError(f"--with {other.folder}: needs the recipe of {run.folder} with another seed.")


def _identity(run: TrainedRun) -> tuple[str, ...]:
    """Everything that determines how samples are read, and the classes of model and data."""
    record = sorted((name, value) for name, value in run.summary["data"].items() if name not in _DISTRIBUTION_FIELDS)
    named = (run.recipe[part] for part in ("model", "data"))
    classes = [str(part.get("class_path")) if isinstance(part, dict) else str(part) for part in named]
    return repr(record), *classes


def _one_output(outputs: Outputs, num_targets: int, option: str) -> Tensor:
    """Values [k, T] of a model with a single output tensor."""
    values = outputs.get("")
    if len(outputs) != 1 or values is None or values.numel() != len(values) * num_targets:
        raise ConfigurationError(f"{option}: the model must return one tensor with {num_targets} values per sample.")
    return values.reshape(len(values), num_targets)
