"""Predictions for new samples as a table: the rows that were given, then what a run's models say of them."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from lightning_fl.data.molecules.module import MoleculeDataModule
from lightning_fl.data.unlabelled import NewSamples, Reading, Unlabelled, place_of
from lightning_fl.errors import DataError
from lightning_fl.options import check_counts
from lightning_fl.prediction.columns import Naming, free_name, mean_outputs, model_columns
from lightning_fl.prediction.forward import Outputs, Predictor
from lightning_fl.prediction.models import choose_models, load_models
from lightning_fl.trained_run import TrainedRun

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["ERROR_COLUMN", "RunPredictor", "predict"]

#: The column that says why a row has no prediction.
ERROR_COLUMN = "error"


class RunPredictor:
    """The models of a finished run that predict, loaded once for any number of samples.

    Args:
        run: the run's folder.
        model: a client's name, "shared", "shared_K", "best" (the client's that did best on its own validation data) or
            "all"; ``None`` for the shared model. See :func:`lightning_fl.prediction.models.choose_models`.
        trust: the run's ``config.yaml`` may name classes that are not of this package: their code runs.
        accelerator: "cpu", "cuda" or "auto".
        batch_size: most samples in a batch; ``None`` for as many as in an evaluation of the run.
        rows: most rows in a chunk: what is in memory at once.
        workers: processes that read molecules; ``None`` for one per core, or one for few.
        smiles_column: the column of SMILES, where it is another one than the run's.
        similarity: add the Tanimoto similarity to the nearest training molecule; the run's data are opened for it.

    Raises:
        ConfigurationError: there is no such run or model, or an argument is out of range.
        CheckpointError: a file of the run is damaged.
        DataError: the run's data, opened for ``similarity``, are not there.

    Attributes:
        run: the run.
        models: those that predict.
    """

    def __init__(
        self,
        run: str | Path,
        *,
        model: str | None = None,
        trust: bool = False,
        accelerator: str = "auto",
        batch_size: int | None = None,
        rows: int = 2_000,
        workers: int | None = None,
        smiles_column: str | None = None,
        similarity: bool = False,
    ) -> None:
        check_counts(self, batch_size=batch_size, rows=rows, workers=workers)
        self.run = TrainedRun.read(Path(run).expanduser())
        chosen = choose_models(self.run, model)
        self.models, made = load_models(self.run, chosen, trust=trust, accelerator=accelerator)
        self._data = made.data
        self._reading = Reading(rows=rows, workers=workers, smiles_column=smiles_column)
        # The other cores read molecules, for which a model waits; several threads would take them away.
        own = 1 if isinstance(made.data, MoleculeDataModule) else None
        self._num_threads: int | None = made.settings.get("num_threads") or own
        self._naming = Naming.of(self.run.summary["data"])
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
        self._similarity = None
        if similarity:
            from lightning_fl.prediction.similarity import TrainingSimilarity

            self._similarity = TrainingSimilarity(made.data)

    def chunks(self, source: NewSamples) -> "Iterator[pd.DataFrame]":
        """The table in chunks, in the order of the rows.

        Args:
            source: a file, ``-`` for standard input, a table, or a list of SMILES; a folder or ``.npz`` file of images.

        Yields:
            All columns and rows that were given; then, for each target, the predictions; then ``error``, empty where
            there is a prediction. A name that is taken becomes ``NAME_predicted``.

        Raises:
            DataError: the source is missing, damaged or empty, or of none of its rows there is a prediction.
        """
        tables = self._tables(source)
        while True:
            with _threads(self._num_threads):
                table = next(tables, None)
            if table is None:
                return
            yield table

    def _tables(self, source: NewSamples) -> "Iterator[pd.DataFrame]":
        waiting: list[tuple[Unlabelled, list[Outputs]]] = []
        known: list[str] | None = None
        first_error = ""
        with self.run.reading_record() as record:
            for chunk in self._data.unlabelled_data(source, record, self._reading):
                first_error = first_error or next(iter(chunk.errors.values()), "")
                outputs = [predictor(chunk) for predictor in self._predictors] if chunk.kept else []
                waiting.append((chunk, outputs))
                if not outputs and known is None:  # the columns are not known yet
                    continue
                if known is None:
                    known = list(self._columns(outputs))
                yield from (self._table(each, of_models, known) for each, of_models in waiting)
                waiting = []
        if known is None:
            raise DataError(
                f"{place_of(source)}: no prediction can be made for any of its"
                f" {sum(len(chunk.frame) for chunk, _ in waiting)} rows; the first: {first_error}."
            )

    def _columns(self, outputs: Sequence[Outputs]) -> dict[str, np.ndarray]:
        """The k predictions under the names that they would have alone."""
        if len(self.models) == 1:
            return model_columns(outputs[0], self._naming)
        columns = model_columns(mean_outputs(outputs), self._naming)
        for model, of_model in zip(self.models, outputs, strict=True):
            columns |= {f"{name}@{model.name}": of for name, of in model_columns(of_model, self._naming).items()}
        return columns

    def _table(self, chunk: Unlabelled, outputs: Sequence[Outputs], names: Sequence[str]) -> "pd.DataFrame":
        columns = self._columns(outputs) if outputs else {}
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


def predict(
    run: str | Path,
    samples: NewSamples,
    *,
    model: str | None = None,
    trust: bool = False,
    accelerator: str = "auto",
    batch_size: int | None = None,
    workers: int | None = None,
    smiles_column: str | None = None,
    similarity: bool = False,
) -> "pd.DataFrame":
    """Predict new samples with a finished run's model: ``lightning-fl predict RUN FILE`` from Python.

    Args:
        run: see :class:`RunPredictor`, as of all others.
        samples: a CSV file, a table, or a list of SMILES; a folder or ``.npz`` file of images. No targets are needed.
        model: the shared model, unless another is named.
        trust: let the run name classes of others.
        accelerator: "cpu", "cuda" or "auto".
        batch_size: most samples in a batch.
        workers: processes that read molecules; ``None`` for one per core, or one for few.
        smiles_column: where it is another one than the run's.
        similarity: to the nearest training molecule.

    Returns:
        The rows and columns that were given, the predictions under the targets' names (``TARGET_predicted`` where the
        samples have that column), and ``error``.

    Raises:
        ConfigurationError: there is no such run or model, or an argument is out of range.
        CheckpointError: a file of the run is damaged.
        DataError: the samples are missing, damaged or empty, or nothing can be predicted for any.

    Example::

        from lightning_fl import predict

        table = predict("runs/drflm_esol/version_0", ["CCO", "c1ccccc1O"])
    """
    import pandas as pd

    predictor = RunPredictor(
        run,
        model=model,
        trust=trust,
        accelerator=accelerator,
        batch_size=batch_size,
        workers=workers,
        smiles_column=smiles_column,
        similarity=similarity,
    )
    table = pd.concat(list(predictor.chunks(samples)))
    if isinstance(samples, pd.DataFrame):
        table.index = samples.index
    return table


@contextmanager
def _threads(number: int | None) -> Iterator[None]:
    """Meanwhile torch uses so many threads; ``None`` for as many as before."""
    before = torch.get_num_threads()
    try:
        if number is not None:
            torch.set_num_threads(number)
        yield
    finally:
        torch.set_num_threads(before)


def _filled(values: np.ndarray | None, kept: np.ndarray, count: int) -> np.ndarray:
    """Values [k] at their rows of n; NaN, or ``None`` for anything but floating numbers, where there is none."""
    if values is not None and values.dtype.kind != "f":
        column = np.full(count, None, dtype=object)
    else:
        column = np.full(count, np.nan, dtype=np.float32 if values is None else values.dtype)
    if values is not None:
        column[kept] = values
    return column
