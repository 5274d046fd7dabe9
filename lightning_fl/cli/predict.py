"""``lightning-fl predict RUN FILE``: predictions of a finished run for new samples.

``predict --config RECIPE --ckpt_path FILE`` predicts a recipe's test data, see :mod:`lightning_fl.recipe`.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import IO, TYPE_CHECKING

from lightning_fl.cli.options import File, Run
from lightning_fl.core.errors import ConfigurationError
from lightning_fl.core.escaping import csv_table
from lightning_fl.files.atomic import whole_file
from lightning_fl.inference.options import PredictionOptions
from lightning_fl.inference.trained_run import check_out

if TYPE_CHECKING:
    import pandas as pd

    from lightning_fl.inference.predict import RunPredictor

USAGE = """%(prog)s RUN FILE [--out FILE] [options]
       %(prog)s --config RECIPE --ckpt_path last|best|FILE [--KEY VALUE ...]   (a recipe's own test data)"""

#: Options that only the form with a recipe has.
_OF_RECIPE = ("--config", "--ckpt_path", "--print_config", "--seed_everything", "--data", "--trainer", "--model.")


def is_of_recipe(words: Sequence[str]) -> bool:
    """Whether the words after the command are a recipe's."""
    return any(word.startswith("--model.") or word.partition("=")[0].partition(".")[0] in _OF_RECIPE for word in words)


def predict(run: Run, file: str, *, out: File | None = None, force: bool = False, options: PredictionOptions) -> int:
    """Predict new samples and write the table.

    Args:
        file: new samples, of the kind that the run was trained on, without targets: a CSV file with a column of SMILES
            or with a table's columns, a folder or a .npz file of images; - for standard input
        out: CSV file for the table (default: standard output)
    """
    if out == Path("-"):
        out = None
    if out is not None and out.suffix.lower() in (".xlsx", ".parquet"):
        raise ConfigurationError(f"--out {out}: the table is written as CSV, give it a name that ends in .csv.")
    if out is not None:
        check_out(out, run, Path(file).expanduser(), named=True, replace=force)

    from lightning_fl.inference.predict import RunPredictor

    predictor = RunPredictor(run, options)
    _print_model(predictor)
    try:
        with whole_file(out) if out is not None else nullcontext(sys.stdout.buffer) as table:
            rows, failed = _write(predictor.chunks(file), table)
    except OSError as error:
        if out is None or error.filename is None or Path(error.filename).parent != out.parent:
            raise
        raise ConfigurationError(f"cannot write {out}: {error.strerror}. Name another file with --out.") from error
    if failed:
        print(f"{failed} of {rows} rows have no prediction: the last column says why", file=sys.stderr)
    if out is not None:
        print(f"predictions: {out}", file=sys.stderr)
    return 0


def _print_model(predictor: "RunPredictor") -> None:
    """Name the model on standard error; standard output has the table only."""
    from lightning_fl.data.source import STAND_IN_LABEL

    summary, names = predictor.run.summary, [model.name for model in predictor.models]
    if summary.get("data_source") == "stand-in":
        print(f"warning: {STAND_IN_LABEL}: the run was trained on these, not on measured data", file=sys.stderr)
    rounds = summary["rounds"]
    ended = f"interrupted after round {rounds}" if summary.get("interrupted") else f"{rounds} rounds"
    shown = names[0] if len(names) == 1 else f"{len(names)} models and their mean"
    print(f"model: {shown} of {predictor.run.folder} ({ended})", file=sys.stderr)


def _write(tables: "Iterator[pd.DataFrame]", file: IO[bytes]) -> tuple[int, int]:
    """Write the chunks as they come; returns the numbers of rows and of those without a prediction."""
    rows = failed = 0
    with _progress() as advance:
        for table in tables:
            file.write(csv_table(table, header=rows == 0).encode(errors="backslashreplace"))
            rows += len(table)
            failed += int(table.iloc[:, -1].notna().sum())
            advance(len(table))
    file.flush()
    return rows, failed


@contextmanager
def _progress() -> Iterator[Callable[[int], None]]:
    """Context with a progress display on terminals; yields a function that adds rows."""
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    from lightning_fl.core.escaping import terminal

    columns = (SpinnerColumn(), TextColumn("{task.completed:,.0f} rows"), TimeElapsedColumn())
    console = terminal(stderr=True)
    off = not sys.stderr.isatty() or console.is_dumb_terminal
    with Progress(*columns, console=console, transient=True, disable=off) as progress:
        task = progress.add_task("", total=None)
        yield lambda count: progress.advance(task, count)
