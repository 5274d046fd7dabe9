"""``lightning-fl compare``: compare finished runs in tables and figures. Does not import torch."""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from lightning_fl.cli.options import Folder
from lightning_fl.core.errors import ConfigurationError, listed
from lightning_fl.core.escaping import csv_table, markdown, markdown_code
from lightning_fl.core.metrics import left_out
from lightning_fl.files.atomic import write_whole
from lightning_fl.files.names import file_names

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from lightning_fl.study.finished_run import FinishedRun

Split = Literal["test", "val", "train"]
_FIGURES = ("learning_curves", "client_values", "client_gains", "client_distribution")
#: Settings in which recipes differ: the first ones are listed, the others counted.
_MOST_SETTINGS = 12
#: Reasons in one error why runs are not comparable.
_MOST_DIFFERENCES = 4
#: Consequences of a missing file.
_WITHOUT = {
    "config.yaml": "started from Python, or the file is lost; without settings the run has a row of its own",
    "metrics.csv": "no curves are drawn",
}


def compare(
    runs: Sequence[str],
    *,
    recursive: bool = False,
    metric: Sequence[str] = (),
    split: Split = "test",
    baseline: str | None = None,
    reference: str | None = None,
    out: Folder | None = None,
    overwrite: bool = False,
    force: bool = False,
) -> int:
    """Print finished runs as a table, and write tables and figures.

    Args:
        runs: [LABEL=]RUN: folders of finished runs, or of versions of a run (the last finished one is used). Runs that
            differ only in the seed share a row, as do runs with the same LABEL
        recursive: use all finished runs below each RUN
        metric: metrics without their split, such as acc rmse (default: the first that is not a loss)
        split: split of the metrics
        baseline: label of the row to compare the others with, seed by seed, with 95 % t-intervals
        reference: run or label that gains of clients refer to, such as local training (default: each run's own local
            models, trained by LocalReference)
        out: write tables and figures (PNG and SVG) there
        overwrite: replace an earlier comparison in --out
        force: compare runs on different data, with a warning above the table
    """
    from lightning_fl.study.comparison_table import client_comparison, comparison_table, default_comparison_metric
    from lightning_fl.study.recipe_settings import find_mismatches, group_runs, recipe_lines
    from lightning_fl.study.render import to_latex, to_markdown, to_terminal

    groups = group_runs([found for word in runs for found in _labelled(word, recursive)])
    if reference is not None and reference not in groups and not Path(reference).expanduser().is_dir():
        what = f"--reference {reference}: neither a run's folder nor a row"
        raise ConfigurationError(f"{what}. The rows are {listed(groups)}.")
    over = None if reference is None else groups.get(reference) or _read(reference, recursive)
    differences = find_mismatches(groups if over is None else {**groups, "--reference": over})
    if differences and not force:
        more = len(differences) - _MOST_DIFFERENCES
        text = "; ".join(differences[:_MOST_DIFFERENCES]) + (f"; and {more} more differences" if more > 0 else "")
        raise ConfigurationError(f"these runs are not comparable: {text}. Leave out those that differ, or add --force.")
    metrics = list(metric) or [default_comparison_metric(groups, split)]
    frame = comparison_table(groups, metrics, split, reference=over, baseline=baseline)
    settings = recipe_lines(groups)
    if len(settings) > _MOST_SETTINGS:
        settings[_MOST_SETTINGS:] = [f"and {len(settings) - _MOST_SETTINGS} more settings"]
    if out is not None and not overwrite:
        patterns = ("table.*", "clients.csv", *(f"{figure}_*.png" for figure in _FIGURES))
        if present := sorted(path.name for pattern in patterns for path in out.glob(pattern)):
            raise ConfigurationError(f"{out} has {', '.join(present)} already: choose another, or add --overwrite.")
    differences += dict.fromkeys(
        f"{label}: {line}"
        for label, of_row in groups.items()
        for run in of_row
        for line in left_out({name: run.metric(name, split).clients for name in metrics})
    )
    _warn_of_missing([found for of_row in groups.values() for found in of_row], curves=out is not None)
    to_terminal(frame, warnings=differences, out=out)
    if settings:
        print("\n".join(["The recipes differ in", *(f"  {line}" for line in settings)]))
    if out is not None:
        clients = client_comparison(groups, metrics, split, reference=over)
        try:
            out.mkdir(parents=True, exist_ok=True)
            write_whole(out / "table.csv", csv_table(frame))
            write_whole(out / "clients.csv", csv_table(clients))
            write_whole(out / "table.tex", to_latex(frame, differences))
            write_whole(out / "table.md", _markdown(groups, to_markdown(frame, differences), settings))
            _draw(out, groups, frame, clients, split)
        except OSError as error:
            raise ConfigurationError(f"cannot write to {out}: {error}; choose another --out.") from error
        print(f"comparison: {out}")
    return 0


def _labelled(word: str, recursive: bool) -> Iterator[tuple[str | None, "FinishedRun"]]:
    label, equals, folder = word.partition("=")
    if not equals or Path(word).expanduser().is_dir():
        label, folder = "", word
    elif not label.strip() or not folder:
        raise ConfigurationError(f"{word!r}: give LABEL=RUN, such as FedAvg=runs/fedavg_digits, or a run's folder.")
    for found in _read(folder, recursive):
        yield label.strip() or None, found


def _read(folder: str, recursive: bool) -> list["FinishedRun"]:
    from lightning_fl.study.finished_run import FinishedRun, find_runs

    if recursive:
        found = find_runs(folder)
        finished = [run for run in found if not run.interrupted]
        if not finished:
            raise ConfigurationError(f"all runs below {folder} were interrupted: finish one with --ckpt_path last.")
        for run in found:
            if run.interrupted:
                print(f"{run.folder} was interrupted and is left out", file=sys.stderr)
        return finished
    path = Path(folder).expanduser()
    is_run = (path / "summary.json").is_file() or any(path.glob("version_*/summary.json"))
    if path.is_dir() and not is_run and (count := sum(1 for _ in path.rglob("summary.json"))):
        raise ConfigurationError(f"{path} is not a run's folder, {count} runs lie below it: add --recursive.")
    return [FinishedRun.read(path)]


def _warn_of_missing(runs: Sequence["FinishedRun"], *, curves: bool) -> None:
    without = {"config.yaml": [run for run in runs if not run.recipe]}
    if curves:
        without["metrics.csv"] = [run for run in runs if run.rounds is not None and run.curves.empty]
    for name, found in without.items():
        if found:
            folders = listed([str(run.folder) for run in found], most=_MOST_DIFFERENCES)
            print(f"warning: no {name}, or nothing in it, in {folders}: {_WITHOUT[name]}", file=sys.stderr)


def _markdown(groups: Mapping[str, Sequence["FinishedRun"]], tables: str, settings: Sequence[str]) -> str:
    """Content of ``table.md``."""
    parts = [tables]
    if settings:
        parts.append("\n".join(["The recipes differ in:\n", *(f"- {markdown_code(one)}" for one in settings), ""]))
    runs = [
        f"- {markdown(label)}: {', '.join(markdown_code(str(run.folder)) for run in found)}"
        for label, found in groups.items()
    ]
    return "\n".join([*parts, "\n".join(["Runs:\n", *runs, ""])])


def _draw(
    out: Path, groups: Mapping[str, Sequence["FinishedRun"]], frame: "pd.DataFrame", clients: "pd.DataFrame", split: str
) -> None:
    from lightning_fl.runtime.drawing import drawing
    from lightning_fl.study.figures import draw_client_values, draw_curves, draw_distributions
    from lightning_fl.study.page import svg_element

    for metric in dict.fromkeys(frame["metric"]):
        title, panels, of_metric = f"{split} {metric}", {"": groups}, clients[clients["metric"] == metric]
        over = " or ".join(text for text in dict.fromkeys(frame["gain_over"]) if text)
        spread = f"Distribution of {title} over clients"
        many = any(run.metric(metric, split).percentiles for of in groups.values() for run in of)
        draws: dict[str, Callable[[], Figure | None]] = {
            "learning_curves": partial(draw_curves, panels, metric, title=f"val {metric} during training"),
            "client_values": partial(draw_client_values, of_metric[:0] if many else of_metric),
            "client_distribution": partial(draw_distributions, panels, metric, split, title=spread),
            "client_gains": partial(draw_client_values, of_metric, gain_over=over),
        }
        (file_part,) = file_names([metric.replace("/", "_")])  # as the run's own figures are called
        for kind, draw in draws.items():
            name = f"{kind}_{file_part}"
            with drawing(name):
                if (figure := draw()) is not None:
                    image = BytesIO()
                    figure.savefig(image, format="png", dpi=150, bbox_inches="tight")
                    write_whole(out / f"{name}.png", image.getvalue())
                    write_whole(out / f"{name}.svg", svg_element(figure, name))
