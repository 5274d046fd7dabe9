"""``lightning-fl predict RUN FILE``: predictions of a finished run for new samples.

``predict --config RECIPE --ckpt_path FILE`` predicts a recipe's test data, see :mod:`lightning_fl.recipe`.
"""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from jsonargparse import ArgumentError, ArgumentParser, Namespace

from lightning_fl.core.errors import ConfigurationError
from lightning_fl.core.escaping import csv_table
from lightning_fl.files.atomic import whole_file
from lightning_fl.inference.trained_run import check_out

if TYPE_CHECKING:
    import pandas as pd

    from lightning_fl.inference.predict import RunPredictor

__all__ = ["USAGE", "add_arguments", "is_of_recipe", "parse", "run"]

USAGE = """%(prog)s RUN FILE [--out FILE] [options]
       %(prog)s --config RECIPE --ckpt_path last|best|FILE [--KEY VALUE ...]   (a recipe's own test data)"""

_STANDARD_OUTPUT = "-"
#: Options that only the form with a recipe has.
_OF_RECIPE = ("--config", "--ckpt_path", "--print_config", "--seed_everything", "--data", "--trainer", "--model.")


def is_of_recipe(words: Sequence[str]) -> bool:
    """Whether the words after the command are a recipe's."""
    return any(word.startswith("--model.") or word.partition("=")[0].partition(".")[0] in _OF_RECIPE for word in words)


def add_arguments(parser: ArgumentParser, command: str) -> None:
    """Add the arguments of ``predict RUN FILE``."""
    parser.add_argument("run", type=str, help="Folder of a finished run: the one with config.yaml and summary.json.")
    parser.add_argument(
        "file",
        type=str,
        help="New samples, of the kind that the run was trained on, without targets: a CSV file with a column of SMILES"
        " or with a table's columns, a folder or a .npz file of images; - for standard input.",
    )
    parser.add_argument(
        "--out", type=str, default=_STANDARD_OUTPUT, help="CSV file for the table (default: standard output)."
    )
    parser.add_argument("--force", action="store_true", help="Replace the file if it exists.")
    parser.add_argument(
        "--model",
        type=str | None,
        default=None,
        metavar="NAME",
        help="A client's name; shared or shared_K; best: the client's that did best on its own validation data; all:"
        " every model in columns of its own, and their mean; snapshots: the same of the shared model after several"
        " rounds (default: the shared model).",
    )
    parser.add_argument(
        "--smiles_column", type=str | None, default=None, help="The column of SMILES (default: the run's)."
    )
    parser.add_argument(
        "--similarity",
        action="store_true",
        help="Add the Tanimoto similarity to the nearest training molecule; reads the run's data.",
    )
    parser.add_argument(
        "--interval",
        type=float | None,
        default=None,
        metavar="LEVEL",
        help="Add TARGET_lower and TARGET_upper, which contain the true value with this probability, such as 0.9. Needs"
        " a run with the Calibration callback.",
    )
    parser.add_argument(
        "--calibrate",
        type=str | None,
        default=None,
        metavar="platt|isotonic",
        help="Calibrate probabilities on validation data. Needs a run with the Calibration callback.",
    )
    parser.add_argument(
        "--spread", action="store_true", help="Add TARGET_std, the standard deviation over the models that predict."
    )
    parser.add_argument(
        "--with",
        dest="others",
        type=str,
        nargs="+",
        default=[],
        metavar="RUN",
        help="Runs of the same recipe with other seeds; their models predict too.",
    )
    parser.add_argument(
        "--mc_dropout",
        type=int | None,
        default=None,
        metavar="N",
        help="Add TARGET_std over N passes with dropout (and over the models, if several predict).",
    )
    parser.add_argument(
        "--batch_size",
        type=int | None,
        default=None,
        help="Batch size (default: that of the run's evaluations).",
    )
    parser.add_argument("--chunk_rows", type=int, default=2_000, help="Rows in memory at a time.")
    parser.add_argument(
        "--workers", type=int | None, default=None, help="Processes that read molecules (default: one per core)."
    )
    parser.add_argument(
        "--trust",
        action="store_true",
        help="Allow the run's config.yaml to name classes outside lightning_fl, whose code then runs.",
    )
    parser.add_argument("--accelerator", type=str, default="auto", help="cpu, cuda or auto.")


def parse(command: str, parser: ArgumentParser, words: Sequence[str]) -> Namespace:
    """Parse the words after the command.

    Raises:
        ConfigurationError: the run or the file is not given.
    """
    try:
        return parser.parse_args(list(words))
    except ArgumentError as error:
        if "arguments are required" not in str(error):
            raise
        raise ConfigurationError(
            "give a finished run and a file of new samples: lightning-fl predict RUN FILE; or, for the test data of a"
            " recipe, lightning-fl predict --config RECIPE --ckpt_path best."
        ) from error


def run(command: str, config: Namespace, parser: ArgumentParser, arguments: Sequence[str]) -> int:
    """Predict and write."""
    out = None if config.out == _STANDARD_OUTPUT else Path(config.out).expanduser()
    if out is not None:
        read = Path(config.file).expanduser()
        check_out(out, Path(config.run).expanduser(), read, named=True, replace=config.force)

    from lightning_fl.inference.predict import RunPredictor

    predictor = RunPredictor(
        config.run,
        model=config.model,
        trust=config.trust,
        accelerator=config.accelerator,
        batch_size=config.batch_size,
        rows=config.chunk_rows,
        workers=config.workers,
        smiles_column=config.smiles_column,
        similarity=config.similarity,
        others=config.others,
        interval=config.interval,
        calibrate=config.calibrate,
        spread=config.spread,
        mc_dropout=config.mc_dropout,
    )
    _print_model(predictor)
    try:
        with whole_file(out) if out is not None else nullcontext(sys.stdout.buffer) as file:
            rows, failed = _write(predictor.chunks(config.file), file)
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
    ended = (
        f"interrupted after round {summary['rounds']}" if summary.get("interrupted") else f"{summary['rounds']} rounds"
    )
    shown = f"{names[0]}" if len(names) == 1 else f"{len(names)} models and their mean"
    print(f"model: {shown} of {predictor.run.folder} ({ended})", file=sys.stderr)


def _write(tables: "Iterator[pd.DataFrame]", file: IO[bytes]) -> tuple[int, int]:
    """Write the chunks as they come; returns the numbers of rows and of those without a prediction."""
    rows = failed = 0
    with _progress() as advance:
        for table in tables:
            text = csv_table(table, header=rows == 0)
            file.write(text.encode(errors="backslashreplace"))
            rows += len(table)
            failed += int(table.iloc[:, -1].notna().sum())
            advance(len(table))
    file.flush()
    return rows, failed


@contextmanager
def _progress() -> Iterator[Any]:
    """Context with a progress display on terminals; yields a function that adds rows."""
    if not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
        yield lambda count: None
        return
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    from lightning_fl.core.terminal import terminal

    columns = (
        SpinnerColumn(),
        TextColumn("{task.completed:,.0f} rows"),
        TimeElapsedColumn(),
        TextColumn("{task.speed:,.0f} rows/s", style="dim"),
    )
    with Progress(*columns[:3], console=terminal(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=None)
        yield lambda count: progress.advance(task, count)
