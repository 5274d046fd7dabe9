"""Predictions for new samples as a table: the input columns, then the predictions of a run's models."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from lightning.fabric.utilities.rank_zero import rank_zero_warn
from torch.utils.data import Subset

from lightning_fl import callbacks
from lightning_fl.core.errors import ConfigurationError, DataError, FederatedError
from lightning_fl.core.seeding import isolated_draws, seed_default_generators, seeded_as
from lightning_fl.data.module import FederatedDataModule
from lightning_fl.data.molecules.descriptors import morgan_generator
from lightning_fl.data.molecules.module import MoleculeDataModule
from lightning_fl.data.shared import SharedDataModule
from lightning_fl.data.unlabelled import NewSamples, Reading, Unlabelled, name_of_source
from lightning_fl.inference import uncertainty
from lightning_fl.inference.forward import Naming, Outputs, Predictor, free_name, mean_outputs, model_columns
from lightning_fl.inference.models import LoadedModel, choose_models, load_models
from lightning_fl.inference.options import CalibrationMethod, PredictionOptions
from lightning_fl.inference.trained_run import Made, TrainedRun
from lightning_fl.runtime.calibration_file import TargetCalibration

if TYPE_CHECKING:
    import pandas as pd

#: Column with the reason why a row has no prediction.
ERROR_COLUMN = "error"


@dataclass(frozen=True)
class _Model:
    """A loaded model, with its calibration and its passes with dropout if requested."""

    name: str
    predictor: Predictor
    calibration: tuple[CalibrationMethod, list[TargetCalibration]] | None
    passes: uncertainty.DropoutPasses | None

    def __call__(self, chunk: Unlabelled) -> Outputs:
        outputs = self.predictor(chunk)
        if self.calibration is None:
            return outputs
        method, targets = self.calibration
        return uncertainty.calibrated(outputs, targets, method)


class RunPredictor:
    """Models of the finished run in a folder, loaded once for any number of samples.

    Raises:
        ConfigurationError: unknown run or model, or options that do not fit them.
        CheckpointError: a file of the run is damaged.
        DataError: the run's data, needed for ``similarity``, cannot be read.

    Attributes:
        models: the loaded models, each with a ``name``.
    """

    def __init__(self, run: str | Path, options: PredictionOptions | None = None) -> None:
        self._options = asked = options or PredictionOptions()
        self.run = TrainedRun.read(run)
        loaded, made = self._load(self.run)
        for name in self.run.summary.get("callbacks", ()):
            if note := getattr(getattr(callbacks, name, None), "prediction_note", None):
                rank_zero_warn(f"{self.run.folder}: {name} evaluated models {note}. These predictions lack that.")
        self._data = made.data
        # The other cores read molecules, which takes longer than the model.
        own = 1 if isinstance(made.data, MoleculeDataModule) else None
        self._num_threads: int | None = made.settings.get("num_threads") or own
        self._naming = Naming.of(self.run.summary["data"])
        members = [(each.name, each, self.run) for each in loaded]
        for number, folder in enumerate(asked.others, start=2):
            other = TrainedRun.read(folder)
            uncertainty.check_same_data(self.run, other)
            members += [(f"{each.name}_{number}", each, other) for each in self._load(other)[0]]
        asked.check_models(len(members))
        self.models = [self._prepare(name, each, of, made) for name, each, of in members]
        self._widths: list[float] | None = None
        if asked.interval is not None:
            name, kind = loaded[0].calibration_name, "regression"
            measured = uncertainty.calibrations_of(self.run, name, "--interval", kind, self._naming)
            self._widths = uncertainty.half_widths(measured, asked.interval, self._naming)
        self._similarity = _TrainingSimilarity(made.data, self.run.summary) if asked.similarity else None

    def _load(self, run: TrainedRun) -> tuple[list[LoadedModel], Made]:
        asked = self._options
        return load_models(run, choose_models(run, asked.model), trust=asked.trust, accelerator=asked.accelerator)

    def _prepare(self, name: str, model: LoadedModel, run: TrainedRun, made: Made) -> _Model:
        asked, calibration, passes = self._options, None, None
        predictor = Predictor(
            model.module,
            made.data,
            accelerator=asked.accelerator,
            precision=made.settings.get("precision"),
            batch_size=asked.batch_size,
        )
        if asked.calibrate is not None:
            named, kind = model.calibration_name, "classification"
            measured = uncertainty.calibrations_of(run, named, "--calibrate", kind, self._naming)
            calibration = asked.calibrate, measured
        if asked.mc_dropout is not None:
            passes = uncertainty.DropoutPasses(model.module, asked.mc_dropout, run.summary["seed"])
        return _Model(name, predictor, calibration, passes)

    def chunks(self, source: NewSamples) -> "Iterator[pd.DataFrame]":
        """Predict in chunks, in the order of the rows.

        Args:
            source: a CSV file, ``-`` for standard input, a table, a list of SMILES, or images in a folder or ``.npz``.

        Yields:
            All input columns, the predictions of each target, and ``error``, empty if there is a prediction. A name
            that is already used becomes ``NAME_predicted``.

        Raises:
            DataError: the source is missing, damaged or empty, or no row could be predicted.
        """
        asked = self._options
        reading = Reading(rows=asked.rows, workers=asked.workers, smiles_column=asked.smiles_column)
        waiting: list[Unlabelled] = []  # chunks before the first prediction, which tells the columns
        names: list[str] | None = None
        first_error = ""
        with self.run.reading_record() as record:
            for number, chunk in enumerate(self._data.unlabelled_data(source, record, reading)):
                first_error = first_error or next(iter(chunk.errors.values()), "")
                before = torch.get_num_threads()
                try:  # not while the caller has the last table
                    torch.set_num_threads(self._num_threads or before)
                    columns = self._predict(chunk, number) if chunk.kept else {}
                finally:
                    torch.set_num_threads(before)
                if names is None:
                    if not columns:
                        waiting.append(chunk)
                        continue
                    names = list(columns)
                    for each in waiting:
                        yield self._table(each, {}, names)
                yield self._table(chunk, columns, names)
        if names is None:
            count = sum(len(chunk.frame) for chunk in waiting)
            what = f"none of its {count} rows can be predicted; first error: {first_error}"
            raise DataError(f"{name_of_source(source)}: {what}.")

    def _predict(self, chunk: Unlabelled, number: int) -> dict[str, np.ndarray]:
        """Columns of k predictions; their names may still be those of input columns."""
        asked, naming = self._options, self._naming
        with isolated_draws():
            seed_default_generators(self.run.summary["seed"], number, "predictions")
            outputs = [model(chunk) for model in self.models]
        mean = outputs[0] if len(outputs) == 1 else mean_outputs(outputs)
        columns, more = model_columns(mean, naming), dict[str, np.ndarray]()
        if self._widths is not None:
            more |= uncertainty.interval_columns(mean, self._widths, naming)
        if asked.mc_dropout is not None:
            passes = [(model, model.passes) for model in self.models if model.passes is not None]
            members = [run(lambda model=model: model(chunk), number) for model, run in passes]  # type: ignore[misc]
            more |= uncertainty.spread_columns(uncertainty.total_spread(members), naming)
        elif asked.spread:
            spread = uncertainty.total_spread([[of_model] for of_model in outputs])
            more |= uncertainty.spread_columns(spread, naming)
        if len(outputs) > 1:
            for model, of_model in zip(self.models, outputs, strict=True):
                more |= {f"{name}@{model.name}": of for name, of in model_columns(of_model, naming).items()}
        return columns | {free_name(name, columns): values for name, values in more.items()}

    def _table(self, chunk: Unlabelled, columns: dict[str, np.ndarray], names: Sequence[str]) -> "pd.DataFrame":
        count, kept = len(chunk.frame), np.asarray(chunk.kept, dtype=int)
        errors: list[str | None] = [chunk.errors.get(row) for row in range(count)]
        near: dict[str, np.ndarray | None] = {}
        if self._similarity is not None:
            near |= self._similarity(chunk) if chunk.kept else dict.fromkeys(self._similarity.columns)
        table = chunk.frame.copy()
        for name, values in ({name: columns.get(name) for name in names} | near).items():
            table[free_name(name, table.columns)] = _filled(values, kept, count)
        for name in names:
            values = columns.get(name)
            # a target without validation values has no interval, and no calibrated probability
            end = name.removesuffix("_predicted")
            if self._widths is not None and end.endswith(("_lower", "_upper")) and end.rpartition("_")[0] in names:
                continue
            if self._options.calibrate is not None and values is not None and np.isnan(values).all():
                continue
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
        **options: of :class:`~lightning_fl.inference.options.PredictionOptions`, such as ``model`` and ``interval``.

    Returns:
        The input columns, predictions by the targets' names (``TARGET_predicted`` where that is taken), and ``error``.

    Raises:
        ConfigurationError, CheckpointError: as :class:`RunPredictor`.
        DataError: the samples are missing, damaged or empty, or none can be predicted.

    Example::

        from lightning_fl import predict

        table = predict("runs/drflm_esol/version_0", ["CCO", "c1ccccc1O"])
    """
    import pandas as pd

    table = pd.concat(list(RunPredictor(run, PredictionOptions(**options)).chunks(samples)))
    if isinstance(samples, pd.DataFrame):
        table.index = samples.index
    return table


def _filled(values: np.ndarray | None, kept: np.ndarray, count: int) -> np.ndarray:
    """Values [k] at their rows of n; missing ones are NaN, or ``None`` if not floating point."""
    if values is None:
        return np.full(count, np.nan, dtype=np.float32)
    real = values.dtype.kind == "f"
    column = np.full(count, np.nan if real else None, dtype=values.dtype if real else object)
    column[kept] = values
    return column


class _TrainingSimilarity:
    """Tanimoto similarity (Morgan fingerprints, https://doi.org/10.1021/ci100050t) to the nearest training molecule."""

    def __init__(self, data: FederatedDataModule, summary: Mapping[str, Any]) -> None:
        if not isinstance(data, MoleculeDataModule):
            raise ConfigurationError("similarity: the run's data are not molecules; remove this option.")
        try:
            with seeded_as(summary["seed"]):
                data.prepare_data()
                data.setup("fit")
        except FederatedError as error:
            raise DataError(f"similarity: the run's data cannot be read: {error}") from error
        if data.describe().get("sha256") != summary["data"].get("sha256"):
            raise DataError("similarity: the run's data file has changed since the training: restore it.")
        smiles = data.dataset.smiles
        self._clients: dict[str, list[Any]] = {}
        for client, name in enumerate(data.client_names()):
            part = SharedDataModule.client_data(data, client, "train")  # molecules, not graphs
            places = part.indices if isinstance(part, Subset) else []
            self._clients[name] = [found for place in places if (found := _fingerprint(smiles[place])) is not None]
        several = [f"similarity@{name}" for name in self._clients] if len(self._clients) > 1 else []
        self.columns = ["similarity", *several]

    def __call__(self, chunk: Unlabelled) -> dict[str, np.ndarray]:
        """Columns [k] for a chunk of molecules."""
        from rdkit.DataStructs import BulkTanimotoSimilarity

        smiles = chunk.data.smiles
        found = torch.zeros(len(self._clients), len(smiles))
        for place, text in enumerate(smiles):
            fingerprint = _fingerprint(text)
            for client, known in enumerate(self._clients.values()):
                found[client, place] = max(BulkTanimotoSimilarity(fingerprint, known), default=0.0)
        return dict(zip(self.columns, [found.max(dim=0).values.numpy(), *(row.numpy() for row in found)], strict=False))


def _fingerprint(smiles: str) -> Any:
    from rdkit import Chem

    molecule = Chem.MolFromSmiles(smiles)
    return None if molecule is None else morgan_generator(2048).GetFingerprint(molecule)
