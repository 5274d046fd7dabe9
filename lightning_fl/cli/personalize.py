"""``lightning-fl personalize``: a personal model for a new data file from a finished run's shared models."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jsonargparse import ArgumentParser, Namespace
from rich.table import Table
from rich.text import Text

from lightning_fl.cli.options import add_shared
from lightning_fl.core.terminal import terminal
from lightning_fl.inference.trained_run import TrainedRun, check_out

if TYPE_CHECKING:
    from lightning_fl.inference.personalization import Personalization

__all__ = ["add_arguments", "run"]

#: Rows of the table; of more models, those with the largest shares are shown.
_MOST_ROWS = 30


def add_arguments(parser: ArgumentParser, command: str) -> None:
    """Add the command's arguments."""
    add_shared(parser, "run")
    parser.add_argument(
        "file",
        type=str,
        help="Labelled samples of one client, of the kind that the run was trained on: a CSV file with the run's"
        " columns, a .npz file of images, or a folder of images.",
    )
    parser.add_argument(
        "--out",
        type=str | None,
        default=None,
        metavar="FILE",
        help="The personal model, an ordinary Lightning checkpoint (default: RUN/personal/FILE.ckpt).",
    )
    parser.add_argument(
        "--holdout",
        type=float,
        default=0.5,
        help="Fraction of the samples to evaluate on; the others decide the models' shares. 0: all samples do both.",
    )
    parser.add_argument(
        "--monitor",
        type=str | None,
        default=None,
        help="Validation metric that decides the shares, such as val/acc: from 0 to 1 if higher is better, at least 0"
        " if lower is better, then exp(-value) is used (default: an accuracy or the like, else a loss).",
    )
    parser.add_argument("--seed", type=int | None, default=None, help="Seed of the holdout (default: the run's).")
    add_shared(parser, "--force", "--trust", "--accelerator")


def run(command: str, config: Namespace, parser: ArgumentParser, arguments: Sequence[str]) -> int:
    """Mix, write, print."""
    run = TrainedRun.read(Path(config.run).expanduser())
    run.refuse_personal_layers("train them on the new client's data, or give a run without PersonalLayers")
    folder, summary = run.folder, run.summary
    data = Path(config.file).expanduser()
    out = folder / "personal" / f"{data.name.partition('.')[0]}.ckpt" if config.out is None else Path(config.out)
    check_out(out, folder, data, named=config.out is not None, replace=config.force)
    made = run.make(trust=config.trust, accelerator=config.accelerator)

    from lightning_fl.inference.personalization import personalize

    with run.reading_record() as record:
        dataset = made.data.newcomer_data(str(data), record)
    found = personalize(
        made.model,
        list(run.shared),
        dataset,
        out=out,
        monitor=config.monitor,
        holdout=config.holdout,
        seed=summary["seed"] if config.seed is None else config.seed,
        like=made.data,
        accelerator=config.accelerator,
        **made.settings,
    )
    _print(found, summary, folder, data, out)
    return 0


def _print(found: "Personalization", summary: dict[str, Any], folder: Path, data: Path, out: Path) -> None:
    from lightning_fl.core.metrics import MetricSummary, metric_name
    from lightning_fl.data.source import STAND_IN_LABEL
    from lightning_fl.trainer.report import breakable, of_all_targets, table_that_fits

    console = terminal()
    if summary.get("data_source") == "stand-in":
        console.print(Text(f" {STAND_IN_LABEL} ", "bold black on yellow"))
    if summary.get("interrupted"):
        console.print(f"the run was interrupted after round {summary['rounds']}")
    measured = f"metrics of {found.num_held_out} others" if found.num_held_out else "and so are the metrics"
    title = f"{folder} on {data.name}: shares by {found.monitor} of {found.num_scored} samples, {measured}"
    console.print(Text(title, "bold"), soft_wrap=True)
    importance, shares = found.importance.tolist(), found.mixture.tolist()
    full = {metric_name(name, "val"): name for name in found.shared}
    order = sorted(range(len(shares)), key=lambda k: (-shares[k], k))
    shown = sorted(order[:_MOST_ROWS])

    def table_of(metrics: dict[str, MetricSummary]) -> Table:
        table = Table()
        table.add_column("model", no_wrap=True)
        score = metric_name(found.monitor, "val")
        table.add_column(Text(f"score υ\n{score if found.higher_is_better else f'exp(-{score})'}"), justify="right")
        table.add_column("share", justify="right")
        for name, metric in metrics.items():
            direction = "higher" if metric.higher_is_better else "lower"
            table.add_column(Text(f"{breakable(name)}\n{direction} is better"), justify="right")
        for k in shown:
            values = [_number(metric.clients.get(k, math.nan)) for metric in metrics.values()]
            table.add_row(f"shared_{k}", _number(importance[k]), f"{shares[k]:.1%}", *values)
        if len(shown) < len(shares):
            rest = f"{1 - math.fsum(shares[k] for k in shown):.1%}"
            table.add_row(f"... and {len(shares) - len(shown)} more", "", rest, *([""] * len(metrics)))
        table.add_section()
        for label, mixed, style in (("uniform mixture", found.uniform, ""), ("personal model", found.personal, "bold")):
            table.add_row(label, "", "", *(_number(mixed.get(full[name], math.nan)) for name in metrics), style=style)
        return table

    kept = of_all_targets({name: found.shared[whole] for name, whole in full.items()})
    console.print(table_that_fits(table_of, kept, console, "it in a wider window"))
    console.print(Text(f"personal model: {out}"), soft_wrap=True)


def _number(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.4g}"
