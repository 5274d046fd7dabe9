"""``lightning-fl personalize``: a personal model for a new data file from a finished run's shared models."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jsonargparse import ArgumentParser, Namespace
from rich.text import Text

from lightning_fl.cli.options import add_shared
from lightning_fl.core.terminal import terminal
from lightning_fl.data.source import STAND_IN, STAND_IN_LABEL
from lightning_fl.inference.trained_run import TrainedRun, check_out
from lightning_fl.runtime.table import Column, Table, Value, metric_column, print_table

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
    run = TrainedRun.read(config.run)
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
    from lightning_fl.core.metrics import metric_name
    from lightning_fl.trainer.report import of_all_targets

    console = terminal()
    measured = f"metrics of {found.num_held_out} others" if found.num_held_out else "and so are the metrics"
    title = f"{folder} on {data.name}: shares by {found.monitor} of {found.num_scored} samples, {measured}"
    notes = [f"the run was interrupted after round {summary['rounds']}"] if summary.get("interrupted") else []
    importance, shares = found.importance.tolist(), found.mixture.tolist()
    shown = sorted(sorted(range(len(shares)), key=lambda k: (-shares[k], k))[:_MOST_ROWS])
    more = len(shares) - len(shown)
    rest = [f"{1 - math.fsum(shares[k] for k in shown):.1%}"] if more else []
    labels = [*(f"shared_{k}" for k in shown), *([f"... and {more} more"] if more else [])]
    score = metric_name(found.monitor, "val")

    def values(texts: Sequence[str], *last: str) -> list[Value]:
        """Those of the models, of the others together, and of the two mixtures."""
        blank = [""] * (len(labels) - len(texts)) + (["", ""] if not last else [])
        return [*map(Value, [*texts, *blank, *last[:1]]), *(Value(text, state="summary") for text in last[1:])]

    columns = [
        Column("model", values(labels, "uniform mixture", "personal model"), is_label=True, min_width=15),
        Column(
            f"score υ\n{score if found.higher_is_better else f'exp(-{score})'}",
            values([_number(importance[k]) for k in shown]),
        ),
        Column("share", values([f"{shares[k]:.1%}" for k in shown] + rest)),
    ]
    full = {metric_name(name, "val"): name for name in found.shared}
    for place, (name, metric) in enumerate(
        of_all_targets({n: found.shared[whole] for n, whole in full.items()}).items()
    ):
        mixed = [_number(of.get(full[name], math.nan)) for of in (found.uniform, found.personal)]
        texts = [_number(metric.clients.get(k, math.nan)) for k in shown]
        columns.append(metric_column(name, metric.higher_is_better, values(texts, *mixed), place))
    if summary.get("data_source") == STAND_IN:
        console.print(Text(f" {STAND_IN_LABEL} ", "bold black on yellow"))
    console.print(Text(title, "bold"), soft_wrap=True)
    print_table(Table("", columns, notes, num_summaries=2, elsewhere="in a wider window"), console)
    console.print(Text(f"personal model: {out}"), soft_wrap=True)


def _number(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.4g}"
