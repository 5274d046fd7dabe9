"""What a run's curves are written to.

``metrics.csv`` is read again by a resumed run; TensorBoard has one file, with an order of its own.
"""

import contextlib
import csv
import functools
import io
import os
import re
import sys
import threading
import weakref
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from lightning.fabric.utilities.rank_zero import rank_zero_warn
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from lightning.pytorch.loggers.csv_logs import ExperimentWriter

from lightning_fl.files.atomic import write_whole

#: Curves beside a metric's own that are no client's.
_OF_ALL = "(?:worst|std|gain|ipr|rsd|harmed)$|step/"

Row = dict[str, Any]


class WholeCSVLogger(CSVLogger):
    """Lightning's ``CSVLogger``, saved once a round, in UTF-8; after an ``OSError`` its file is as before."""

    def __init__(self, save_dir: str | Path, version: str) -> None:
        super().__init__(save_dir, name="", version=version, flush_logs_every_n_steps=sys.maxsize)
        # Made while the folder is empty: it warns of what it finds.
        self._experiment: ExperimentWriter = _Table(log_dir=self.log_dir)
        self.num_rows = 0

    def log_metrics(self, metrics: dict[str, Any], step: int | None = None) -> None:
        super().log_metrics(metrics, step)
        self.num_rows += 1


class _Table(ExperimentWriter):
    def save(self) -> None:
        if not self.metrics:
            return
        path, text = Path(self.metrics_file_path), io.StringIO(newline="")
        columns = sorted(set(self.metrics_keys).union(*self.metrics))
        writer = csv.DictWriter(text, columns)
        if columns == self.metrics_keys:
            writer.writerows(self.metrics)
            end = path.stat().st_size
            try:
                with path.open("ab") as file:
                    file.write(text.getvalue().encode(errors="backslashreplace"))
            except OSError:
                os.truncate(path, end)
                raise
        else:
            writer.writeheader()
            if self.metrics_keys:
                with path.open(encoding="utf-8", newline="") as before:
                    writer.writerows(csv.DictReader(before))
            writer.writerows(self.metrics)
            write_whole(path, text.getvalue())
        self.metrics, self.metrics_keys = [], columns


class OneFileTensorBoardLogger(TensorBoardLogger):
    """Lightning's ``TensorBoardLogger`` whose file stays open after a fit, for the test that follows.

    Its tab "Custom Scalars" has the average beside the worst client, and all clients in one chart, for each metric.
    """

    def __init__(self, save_dir: str | Path, version: str) -> None:
        super().__init__(save_dir, name="", version=version, default_hp_metric=False)
        self._names: set[str] = set()
        self._has_layout = False

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        metrics = {name: value for name, value in metrics.items() if value is not None}  # others are named in advance
        self._names |= set(metrics)
        if any(name.startswith("val") for name in metrics):
            self._add_layout()
        super().log_metrics(metrics, step)

    def log_hyperparams(self, params: Any, metrics: Any = None, step: int | None = None) -> None:
        """Log settings and metrics. TensorBoard shows those of a file's first record, so it names a test's, too."""
        tests = {name.replace("/val/", "/test/", 1): None for name in metrics or {}}
        super().log_hyperparams(params, metrics and tests | metrics, step)

    def finalize(self, status: str) -> None:
        """Flush the file; it is closed with the logger."""
        if self._experiment is not None:
            self._add_layout()
            self.experiment.flush()
            if not hasattr(self, "_closing"):
                self._closing = weakref.finalize(self, self.experiment.close)

    def _add_layout(self) -> None:
        # TensorBoard takes the first layout of a file.
        if not self._has_layout and (layout := curve_layout(self._names)):
            self.experiment.add_custom_scalars(layout)
            self._has_layout = True


def curve_layout(names: Iterable[str]) -> dict[str, dict[str, list[object]]]:
    """What TensorBoard's custom scalars show: category -> chart -> its kind and the curves' names, as expressions.

    Of these curves, a metric is what has a curve ``NAME/worst`` beside it.
    """
    known = set(names)
    # Validation first.
    metrics = sorted((name for name in known if f"{name}/worst" in known), key=lambda name: (name[:3] != "val", name))
    own = {}
    for name in metrics:  # without the curves of its targets, which are metrics as well
        inner = [f"{re.escape(other[len(name) + 1 :])}(?:/|$)" for other in metrics if other.startswith(f"{name}/")]
        own[name] = re.compile(f"{re.escape(name)}/(?!{'|'.join([_OF_ALL, *inner])}).+")
    charts: dict[str, dict[str, list[object]]] = {
        "average and worst client": {
            name: ["Multiline", [f"^{re.escape(name)}$", f"^{re.escape(name)}/worst$"]] for name in metrics
        },
        "every client": {
            name: ["Multiline", [f"^{own[name].pattern}$"]]
            for name in metrics
            if any(own[name].fullmatch(other) for other in known)
        },
    }
    return {category: of_category for category, of_category in charts.items() if of_category}


def read_rows(table: Path) -> list[Row | None]:
    """The rows of ``metrics.csv`` in order, each without what was not logged in it; ``None`` for a damaged one.

    The numbers are those that were written, to the bit. Damage that ends the CSV ends the list.
    """
    rows: list[Row | None] = []
    with table.open(encoding="utf-8", errors="replace", newline="") as file, contextlib.suppress(csv.Error):
        rows.extend(map(_numbers, csv.DictReader(file)))
    return rows


def _numbers(row: dict[Any, Any]) -> Row | None:
    if None in row or None in row.values():  # longer or shorter than the header
        return None
    with contextlib.suppress(ValueError):
        numbers = {name: _number(text) for name, text in row.items() if text}
        return numbers if isinstance(numbers.get("step"), int) else None
    return None


def _number(text: str) -> int | float:
    try:
        return int(text)
    except ValueError:
        return float(text)


def rows_before(table: Path, current_round: int, state: Mapping[str, Any]) -> list[Row]:
    """The rows of a run's curves up to a checkpoint; a warning tells how many are lost."""
    unwritten: list[Row] = list(state.get("unwritten", []))  # older versions kept the latest rows in checkpoints
    expected = state["num_rows"] - len(unwritten) if "num_rows" in state else None
    if expected == 0:
        return unwritten
    try:
        found = read_rows(table)[:expected]
    except OSError as error:
        why = "is not there" if isinstance(error, FileNotFoundError) else f"cannot be read ({error.strerror})"
        rank_zero_warn(f"{table} {why}: the curves begin at round {current_round + 1}.")
        return unwritten
    rows = [row for row in found if row is not None]
    total = len(found) if expected is None else expected
    if (lost := total - len(rows)) > 0:
        what = f"{lost} of {total} rows up to round {current_round} cannot be read and are missing in this run's curves"
        rank_zero_warn(f"{table} is damaged: {what}. Its models and figures are not affected.")
    if expected is None:  # a checkpoint of an older version does not know the number of rows
        rows = [row for row in rows if row["step"] <= current_round]
    return [*rows, *unwritten]


def own_loggers(root: Path, run: str) -> list[Any]:
    """The loggers of a run's folder."""
    _quiet_writers()
    return [OneFileTensorBoardLogger(root, run), WholeCSVLogger(root, run)]


@functools.cache
def _quiet_writers() -> None:
    """Hide the traceback of TensorBoard's thread on a full disk: its next call raises the same error here."""
    others = threading.excepthook

    def hook(args: threading.ExceptHookArgs) -> None:
        if not (isinstance(args.exc_value, OSError) and type(args.thread).__module__.startswith("tensorboard.")):
            others(args)

    threading.excepthook = hook
