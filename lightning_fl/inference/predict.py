"""Predictions for new samples as a table: the input columns, then the predictions of a run's models."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from lightning.fabric.utilities.rank_zero import rank_zero_warn

from lightning_fl import callbacks
from lightning_fl.core.errors import DataError
from lightning_fl.core.seeding import isolated_draws, seed_default_generators
from lightning_fl.core.validation import Count, checked
from lightning_fl.data.molecules.module import MoleculeDataModule
from lightning_fl.data.unlabelled import NewSamples, Reading, Unlabelled, name_of_source
from lightning_fl.inference.columns import Naming, free_name, mean_outputs, model_columns
from lightning_fl.inference.forward import Outputs, Predictor
from lightning_fl.inference.models import choose_models, load_models
from lightning_fl.inference.trained_run import TrainedRun
from lightning_fl.inference.uncertainty import (
    CalibrationMethod,
    DropoutPasses,
    Uncertainty,
    calibrated,
    calibrations_of,
    check_same_data,
    half_widths,
    interval_columns,
    spread_columns,
    total_spread,
)

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["ERROR_COLUMN", "RunPredictor", "predict"]

#: Column with the reason why a row has no prediction.
ERROR_COLUMN = "error"


@dataclass(frozen=True)
class _Predicted:
    """Outputs of each model for a chunk, and their spread if requested."""

    models: list[Outputs]
    spread: Outputs | None = None


class RunPredictor:
    """Models of a finished run, loaded once for any number of samples.

    Args:
        run: the run's folder.
        model: "shared", "shared_K", a client's name, "best", "all" or "snapshots", see
            :func:`lightning_fl.inference.models.choose_models`; ``None`` for the shared model.
        trust: allow classes outside of this package in the run's ``config.yaml``, whose code is executed.
        accelerator: "cpu", "cuda" or "auto".
        batch_size: maximum number of samples; ``None`` for the run's evaluation batch size.
        rows: maximum number of rows in memory.
        workers: processes that read molecules; ``None`` for one per core, or one for few molecules.
        smiles_column: column of SMILES; default the run's.
        similarity: add the Tanimoto similarity to the nearest training molecule; reads the run's data.
        others: folders of runs of the same recipe with other seeds, whose models are added.
        interval: add conformal intervals with this coverage (regression).
        calibrate: calibrate probabilities with "platt" or "isotonic" (classification).
        spread: add the standard deviation over models.
        mc_dropout: add the standard deviation over this many passes with dropout; depends on ``rows`` and
            ``batch_size``.

    Raises:
        ConfigurationError: unknown run or model, or an argument out of range.
        CheckpointError: a file of the run is damaged.
        DataError: the run's data, needed for ``similarity``, cannot be read.

    Attributes:
        run: the run.
        models: the loaded models.
    """

    @checked
    def __init__(
        self,
        run: str | Path,
        *,
        model: str | None = None,
        trust: bool = False,
        accelerator: str = "auto",
        batch_size: Count | None = None,
        rows: Count = 2_000,
        workers: Count | None = None,
        smiles_column: str | None = None,
        similarity: bool = False,
        others: Sequence[str | Path] = (),
        interval: float | None = None,
        calibrate: CalibrationMethod | None = None,
        spread: bool = False,
        mc_dropout: int | None = None,
    ) -> None:
        self._uncertainty = Uncertainty(interval, calibrate, spread, mc_dropout)
        self.run = TrainedRun.read(Path(run).expanduser())
        self.models, made = load_models(self.run, choose_models(self.run, model), trust=trust, accelerator=accelerator)
        for name in self.run.summary.get("callbacks", ()):
            if note := getattr(getattr(callbacks, name, None), "prediction_note", None):
                rank_zero_warn(f"{self.run.folder}: {name} evaluated models {note}. These predictions lack that.")
        self._data = made.data
        self._reading = Reading(rows=rows, workers=workers, smiles_column=smiles_column)
        # The other cores read molecules, which takes longer than the model.
        own = 1 if isinstance(made.data, MoleculeDataModule) else None
        self._num_threads: int | None = made.settings.get("num_threads") or own
        self._naming = Naming.of(self.run.summary["data"])
        runs = [(each.calibration_name, self.run) for each in self.models]
        for number, folder in enumerate(others, start=2):
            other = TrainedRun.read(Path(folder).expanduser())
            check_same_data(self.run, other)
            found, _ = load_models(other, choose_models(other, model), trust=trust, accelerator=accelerator)
            self.models += [replace(each, name=f"{each.name}_{number}") for each in found]
            runs += [(each.calibration_name, other) for each in found]
        self._uncertainty.check_models(len(self.models))
        self._predictors = [
            Predictor(
                each.module,
                made.data,
                accelerator=accelerator,
                precision=made.settings.get("precision"),
                batch_size=batch_size,
            )
            for each in self.models
        ]
        self._prepare_uncertainty(runs)
        self._similarity = None
        if similarity:
            from lightning_fl.inference.similarity import TrainingSimilarity

            self._similarity = TrainingSimilarity(made.data, self.run.summary["seed"])

    def _prepare_uncertainty(self, runs: Sequence[tuple[str, TrainedRun]]) -> None:
        """Read calibrations and find dropout layers, if requested.

        Args:
            runs: for each model its name in ``calibration.json`` and its run.
        """
        asked, naming = self._uncertainty, self._naming
        self._widths: list[float] | None = None
        if asked.interval is not None:
            measured = calibrations_of(self.run, self.models[0].calibration_name, "--interval", "regression", naming)
            self._widths = half_widths(measured, asked.interval, naming)
        self._calibrations = [
            calibrations_of(run, name, "--calibrate", "classification", naming)
            for name, run in runs
            if asked.calibrate is not None
        ]
        self._passes = [
            DropoutPasses(each.module, asked.mc_dropout, run.summary["seed"])
            for each, (_, run) in zip(self.models, runs, strict=True)
            if asked.mc_dropout is not None
        ]

    def _predict(self, chunk: Unlabelled, number: int) -> _Predicted:
        """Predict the chunk with this number."""
        with isolated_draws():
            seed_default_generators(self.run.summary["seed"], number, "predictions")
            models = [self._outputs(place, chunk) for place in range(len(self.models))]
        if not self._uncertainty.has_spread:
            return _Predicted(models)
        members = [[outputs] for outputs in models]
        if self._passes:
            members = [
                passes(partial(self._outputs, place, chunk), number) for place, passes in enumerate(self._passes)
            ]
        return _Predicted(models, total_spread(members))

    def _outputs(self, place: int, chunk: Unlabelled) -> Outputs:
        """Outputs of one model, calibrated if requested."""
        outputs = self._predictors[place](chunk)
        if self._uncertainty.calibrate is None:
            return outputs
        return calibrated(outputs, self._calibrations[place], self._uncertainty.calibrate)

    def chunks(self, source: NewSamples) -> "Iterator[pd.DataFrame]":
        """Predict in chunks, in the order of the rows.

        Args:
            source: a CSV file, ``-`` for standard input, a table, or a list of SMILES; a folder or ``.npz`` file of
                images.

        Yields:
            All input columns, the predictions of each target, and ``error``, empty if there is a prediction. A name
            that is already used becomes ``NAME_predicted``.

        Raises:
            DataError: the source is missing, damaged or empty, or no row could be predicted.
        """
        tables = self._tables(source)
        while True:
            with _threads(self._num_threads):
                table = next(tables, None)
            if table is None:
                return
            yield table

    def _tables(self, source: NewSamples) -> "Iterator[pd.DataFrame]":
        waiting: list[tuple[Unlabelled, _Predicted | None]] = []
        known: list[str] | None = None
        first_error = ""
        with self.run.reading_record() as record:
            for number, chunk in enumerate(self._data.unlabelled_data(source, record, self._reading)):
                first_error = first_error or next(iter(chunk.errors.values()), "")
                outputs = self._predict(chunk, number) if chunk.kept else None
                waiting.append((chunk, outputs))
                if known is None:
                    if outputs is None:  # columns still unknown
                        continue
                    known = list(self._columns(outputs))
                yield from (self._table(each, of_models, known) for each, of_models in waiting)
                waiting = []
        if known is None:
            count = sum(len(chunk.frame) for chunk, _ in waiting)
            raise DataError(
                f"{name_of_source(source)}: none of its {count} rows can be predicted; first error: {first_error}."
            )

    def _columns(self, predicted: _Predicted) -> dict[str, np.ndarray]:
        """Columns of k predictions, before names are made unique."""
        outputs = predicted.models
        mean = outputs[0] if len(outputs) == 1 else mean_outputs(outputs)
        columns = model_columns(mean, self._naming)
        if self._widths is not None:
            columns |= interval_columns(mean, self._widths, self._naming)
        if predicted.spread is not None:
            columns |= spread_columns(predicted.spread, self._naming)
        if len(outputs) > 1:
            for model, of_model in zip(self.models, outputs, strict=True):
                columns |= {f"{name}@{model.name}": of for name, of in model_columns(of_model, self._naming).items()}
        return columns

    def _table(self, chunk: Unlabelled, outputs: _Predicted | None, names: Sequence[str]) -> "pd.DataFrame":
        columns = {} if outputs is None else self._columns(outputs)
        count, kept = len(chunk.frame), np.asarray(chunk.kept, dtype=int)
        errors: list[str | None] = [chunk.errors.get(row) for row in range(count)]
        if chunk.kept and self._similarity is not None:
            columns |= self._similarity(chunk)
        table = chunk.frame.copy()
        for name in [*names, *(() if self._similarity is None else self._similarity.columns)]:
            table[free_name(name, table.columns)] = _filled(columns.get(name), kept, count)
        for name in names:
            values = columns.get(name)
            if values is not None and values.dtype.kind == "f" and not np.isfinite(values).all():
                for row in kept[~np.isfinite(values)]:
                    errors[row] = errors[row] or "the prediction is not finite"
        table[free_name(ERROR_COLUMN, table.columns)] = np.asarray(errors, dtype=object)
        return table


def predict(run: str | Path, samples: NewSamples, **options: Any) -> "pd.DataFrame":
    """Predict new samples with a finished run's model, like ``lightning-fl predict RUN FILE``.

    Args:
        run: the run's folder.
        samples: a CSV file, a table, or a list of SMILES; a folder or ``.npz`` file of images. Needs no targets.
        **options: of :class:`RunPredictor`, such as ``model`` and ``interval``.

    Returns:
        The input columns, the predictions under the targets' names (``TARGET_predicted`` if the samples have that
        column), and ``error``.

    Raises:
        ConfigurationError, CheckpointError: as :class:`RunPredictor`.
        DataError: the samples are missing, damaged or empty, or none can be predicted.

    Example::

        from lightning_fl import predict

        table = predict("runs/drflm_esol/version_0", ["CCO", "c1ccccc1O"])
    """
    import pandas as pd

    table = pd.concat(list(RunPredictor(run, **options).chunks(samples)))
    if isinstance(samples, pd.DataFrame):
        table.index = samples.index
    return table


@contextmanager
def _threads(number: int | None) -> Iterator[None]:
    """Set torch's number of threads temporarily; ``None`` changes nothing."""
    before = torch.get_num_threads()
    try:
        if number is not None:
            torch.set_num_threads(number)
        yield
    finally:
        torch.set_num_threads(before)


def _filled(values: np.ndarray | None, kept: np.ndarray, count: int) -> np.ndarray:
    """Values [k] at their rows of n; missing ones are NaN, or ``None`` if not floating point."""
    if values is not None and values.dtype.kind != "f":
        column = np.full(count, None, dtype=object)
    else:
        column = np.full(count, np.nan, dtype=np.float32 if values is None else values.dtype)
    if values is not None:
        column[kept] = values
    return column
