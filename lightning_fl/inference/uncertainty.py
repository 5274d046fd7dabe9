"""How far predictions can be trusted: conformal intervals, calibrated probabilities, the spread of several models.

Of M models whose N passes with dropout have means m_j and variances v_j, the spread is the root of
``mean_j v_j + mean_j (m_j - m)^2``, the law of total variance with each model as likely; v_j is 0 without dropout.
Dropout as a sample of models: Y. Gal, Z. Ghahramani, Dropout as a Bayesian approximation (ICML 2016,
https://arxiv.org/abs/1506.02142). It is the models' disagreement, not the error: measurements' noise is not in it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor, nn

from lightning_fl.core.errors import ConfigurationError, listed
from lightning_fl.core.seeding import derive_seed, isolated_draws
from lightning_fl.core.validation import check_counts, check_numbers
from lightning_fl.functional.conformal import quantile_of_counts
from lightning_fl.functional.probability_calibration import apply_isotonic, apply_platt
from lightning_fl.inference.columns import Naming, model_columns
from lightning_fl.inference.forward import Outputs
from lightning_fl.inference.trained_run import TrainedRun
from lightning_fl.runtime.calibration_file import TargetCalibration, read_calibration

__all__ = [
    "CalibrationMethod",
    "DropoutPasses",
    "Uncertainty",
    "calibrated",
    "calibrations_of",
    "check_same_data",
    "half_widths",
    "interval_columns",
    "spread_columns",
    "total_spread",
]

CalibrationMethod = Literal["platt", "isotonic"]

#: What of the record of a run's data says who holds which samples, and not how a sample is read.
_OF_SHARES = frozenset(
    {"client_names", "client_sizes", "num_clients", "partitioner", "split", "split_seed", "stratified", "train_shares"}
)


@dataclass(frozen=True)
class Uncertainty:
    """What is asked for beside the predictions.

    Attributes:
        interval: wanted coverage of intervals, in (0, 1); columns ``TARGET_lower`` and ``TARGET_upper``.
        calibrate: how probabilities are corrected.
        spread: the standard deviation over the models that predict; columns ``TARGET_std``.
        mc_dropout: passes with dropout, at least 2, whose deviation is in ``TARGET_std``.
    """

    interval: float | None = None
    calibrate: CalibrationMethod | None = None
    spread: bool = False
    mc_dropout: int | None = None

    def __post_init__(self) -> None:
        check_numbers("", interval=self.interval, above=0, below=1, mend=", such as 0.9")
        check_counts("", mc_dropout=self.mc_dropout, at_least=2)
        if self.calibrate not in (None, *get_args(CalibrationMethod)):
            raise ConfigurationError(
                f"calibrate={self.calibrate!r}: choose one of {', '.join(get_args(CalibrationMethod))}."
            )

    def check_models(self, count: int) -> None:
        """Refuse what ``count`` models together cannot give."""
        if self.spread and self.mc_dropout is None and count < 2:
            raise ConfigurationError(
                "--spread is over several predictions, and one model predicts: add --model all or snapshots, --with"
                " RUN (a run with another seed) or --mc_dropout N."
            )
        if self.interval is not None and count > 1:
            raise ConfigurationError(
                f"--interval is measured for each model alone, and the mean of {count} models predicts: name one with"
                " --model."
            )

    @property
    def has_spread(self) -> bool:
        """Whether there are columns of it."""
        return self.spread or self.mc_dropout is not None


def calibrations_of(run: TrainedRun, model: str, asked: str, kind: str, naming: Naming) -> list[TargetCalibration]:
    """What the run measured of a model's T targets.

    Args:
        run: the run.
        model: its name.
        asked: the option that needs it, for messages.
        kind: of targets that it is for.
        naming: of the targets.

    Raises:
        ConfigurationError: the run measured nothing, not this model, or targets of the other kind.
        CheckpointError: the file is damaged.
    """
    found = read_calibration(run.folder)
    if found is None:
        raise ConfigurationError(
            f"{asked}: {run.folder} has no calibration.json: train with the callback Calibration (in"
            " trainer.callbacks), which measures the models on validation data."
        )
    if model not in found:
        raise ConfigurationError(
            f"{asked}: {run.folder / 'calibration.json'} says nothing of the model {model}, which had no validation"
            f" data or is not of the end of the run. It knows {listed(list(found), most=8)}."
        )
    targets = found[model]
    names = naming.targets if len(naming.targets) == len(targets) else tuple(map(str, range(len(targets))))
    other = [name for name, target in zip(names, targets, strict=True) if target.kind != kind]
    if other:
        mend = "--calibrate" if kind == "regression" else "--interval"
        what = "numbers" if kind == "regression" else "labels 0 and 1"
        raise ConfigurationError(
            f"{asked} is for {what}, which {listed(other, most=8)} {'is' if len(other) == 1 else 'are'} not: there is"
            f" {mend} for these."
        )
    return targets


def half_widths(targets: Sequence[TargetCalibration], level: float, naming: Naming) -> list[float]:
    """Half the widths of the intervals of T targets, in their units.

    Raises:
        ConfigurationError: a target has too few validation samples for the level.
    """
    widths = []
    for place, target in enumerate(targets):
        width = quantile_of_counts(target.scores or {}, target.num_clients, level)
        if not np.isfinite(width):
            name = naming.targets[place] if len(naming.targets) == len(targets) else str(place)
            most = target.num_samples / (target.num_samples + max(target.num_clients, 1))
            reason = (
                f"such intervals reach to {most:.3g} at most"
                if quantile_of_counts(target.scores or {}, target.num_clients, max(most - 1e-6, 1e-9)) < np.inf
                else "too few of their predictions are finite"
            )
            raise ConfigurationError(
                f"--interval {level:g}: {name} has {target.num_samples} validation samples of {target.num_clients}"
                f" clients, with which {reason}: ask for less, or train with more validation data."
            )
        widths.append(width)
    return widths


def calibrated(outputs: Outputs, targets: Sequence[TargetCalibration], method: CalibrationMethod) -> Outputs:
    """Probabilities [k, T], corrected; NaN for a target that had no label in validation."""
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
    """``TARGET_lower`` and ``TARGET_upper`` of each of T targets."""
    values = _one_output(outputs, len(widths), "--interval")
    width = values.new_tensor(widths)
    lower, upper = ({"": side.reshape(outputs[""].shape)} for side in (values - width, values + width))
    low, high = model_columns(lower, naming), model_columns(upper, naming)
    return {f"{name}_{end}": of[name] for name in low for end, of in (("lower", low), ("upper", high))}


def spread_columns(spread: Outputs, naming: Naming) -> dict[str, np.ndarray]:
    """``COLUMN_std`` for every column of numbers that the models have."""
    found = model_columns(spread, naming)
    return {f"{name}_std": values for name, values in found.items() if values.dtype.kind == "f"}


def total_spread(members: Sequence[Sequence[Outputs]]) -> Outputs:
    """The standard deviation by the law of total variance, entry by entry.

    Args:
        members: of each of M models its passes, one or more.
    """
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
    """Predictions of a model with its dropout layers as in training, and all else as in evaluation.

    Args:
        module: in evaluation mode.
        count: number of passes.
        seed: of the run.

    Raises:
        ConfigurationError: the module has no layer of dropout, or none that zeroes anything.
    """

    def __init__(self, module: nn.Module, count: int, seed: int) -> None:
        kinds = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)
        self._layers = [layer for layer in module.modules() if isinstance(layer, kinds) and layer.p > 0]
        if not self._layers:
            raise ConfigurationError(
                f"--mc_dropout {count}: {type(module).__name__} has no dropout layer with a probability above 0: train"
                " with dropout (model.init_args.dropout of this package's models), or take --spread over several."
            )
        self._count, self._seed = count, seed

    def __call__(self, predict: Callable[[], Outputs], chunk: int) -> list[Outputs]:
        """The passes over the chunk of this number, the same whenever it is asked for."""
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
    """Refuse a run whose models would see the samples in another way.

    Who held which samples may differ; a table's scale, which clients' shares decide, may not.

    Raises:
        ConfigurationError: its record of the data, or the class of its model or data, is another one.
    """
    if _plain(run.summary["data"]) != _plain(other.summary["data"]) or _kinds(run) != _kinds(other):
        raise ConfigurationError(
            f"--with {other.folder}: its data or its kind of model are not those of {run.folder}: give runs of one"
            " recipe that differ in their seed."
        )


def _plain(record: Mapping[str, object]) -> str:
    """What a record says of how samples are read."""
    return repr(sorted((name, value) for name, value in record.items() if name not in _OF_SHARES))


def _kinds(run: TrainedRun) -> tuple[str, ...]:
    named = (run.recipe[part] for part in ("model", "data"))
    return tuple(str(part.get("class_path")) if isinstance(part, dict) else str(part) for part in named)


def _one_output(outputs: Outputs, num_targets: int, asked: str) -> Tensor:
    """Values [k, T] of a model that returns one tensor."""
    values = outputs.get("")
    if len(outputs) != 1 or values is None or values.numel() != len(values) * num_targets:
        raise ConfigurationError(f"{asked}: the model does not return one tensor with {num_targets} values per sample.")
    return values.reshape(len(values), num_targets)
