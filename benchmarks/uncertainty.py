"""What intervals, calibrated probabilities and spreads are worth on clients' test data: ``uncertainty.py RUN...``.

Each RUN is a finished run of molecules with the Calibration callback, its data at hand. Printed for its shared model,
per client and over all test molecules: coverage and width of 90 % intervals and the rank correlation of the absolute
error with the deviation over 20 passes with dropout; for labels the expected calibration error (10 bins) and the Brier
score of the probabilities as they are, after Platt's calibration and after isotonic regression.
"""

import math
import sys
from pathlib import Path

import torch
from scipy.stats import spearmanr
from torch import Tensor
from torch_geometric.data import Batch
from torchmetrics.functional.classification import binary_calibration_error

from lightning_fl.core.errors import ConfigurationError
from lightning_fl.inference.forward import Naming
from lightning_fl.inference.models import choose_models, load_models
from lightning_fl.inference.trained_run import TrainedRun
from lightning_fl.inference.uncertainty import DropoutPasses, calibrated, calibrations_of, half_widths, total_spread
from lightning_fl.runtime.calibration_file import TargetCalibration

LEVEL, PASSES = 0.9, 20


def evaluate(folder: Path) -> None:
    """Print one run's lines."""
    run = TrainedRun.read(folder)
    (model,), made = load_models(run, choose_models(run, None), accelerator="cpu")
    made.data.prepare_data()
    made.data.setup("test")
    naming, module = Naming.of(run.summary["data"]), model.module.eval()
    parts: dict[str, tuple[Tensor, Tensor, Tensor]] = {}
    for client, name in enumerate(made.data.client_names()):
        data = made.data.client_data(client, "test")
        batch = Batch.from_data_list([data[place] for place in range(len(data))])
        with torch.inference_mode():
            prediction = module(batch)
            try:
                passes = DropoutPasses(module, PASSES, run.summary["seed"])
                spread = total_spread([passes(lambda batch=batch: {"": module(batch)}, client)])[""]
            except ConfigurationError:  # without dropout
                spread = torch.full_like(prediction, math.nan)
        parts[name] = prediction, batch.y, spread
    parts["all"] = tuple(torch.cat(column) for column in zip(*parts.values(), strict=True))  # type: ignore[assignment]
    regression = getattr(module, "task", "regression") == "regression"
    measured = calibrations_of(run, model.path.stem, "this", "regression" if regression else "classification", naming)
    print(f"\n{folder}: {measured[0].num_samples} validation samples of {measured[0].num_clients} clients")
    for name, (prediction, target, spread) in parts.items():
        words = _errors if regression else _probabilities
        print(f"  {name:12} n={len(target):5}  {words(prediction, target, spread, measured, naming)}")


def _errors(
    prediction: Tensor, target: Tensor, spread: Tensor, measured: list[TargetCalibration], naming: Naming
) -> str:
    width = prediction.new_tensor(half_widths(measured, LEVEL, naming))
    present, error = ~target.isnan(), (prediction - target).abs()
    inside = (error <= width)[present].double().mean()
    rank = spearmanr(spread[present], error[present]).statistic
    return f"coverage {inside:.3f} of {LEVEL} (+- {width.mean():.2f}); spread against |error|, Spearman {rank:.2f}"


def _probabilities(
    prediction: Tensor, target: Tensor, spread: Tensor, measured: list[TargetCalibration], naming: Naming
) -> str:
    words = []
    for name, values in (
        ("raw", prediction),
        ("platt", calibrated({"": prediction}, measured, "platt")[""]),
        ("isotonic", calibrated({"": prediction}, measured, "isotonic")[""]),
    ):
        present = ~(target.isnan() | values.isnan())
        p, y = values[present], target[present]
        ece = binary_calibration_error(p, y.int(), n_bins=10)
        words.append(f"{name}: ECE {ece:.3f} Brier {(p - y).square().mean():.3f}")
    present = ~target.isnan()
    rank = spearmanr(spread[present], (prediction - target).abs()[present]).statistic
    return f"{'; '.join(words)}; spread against |error|, Spearman {rank:.2f}"


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    for argument in sys.argv[1:]:
        evaluate(Path(argument))
