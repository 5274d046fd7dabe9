"""``lightning-fl personalize``: a personal model for a new data file from a finished run's shared models."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from annotated_types import Ge, Lt
from rich.text import Text

from lightning_fl.cli.options import File, Run, Word
from lightning_fl.core.escaping import terminal
from lightning_fl.core.validation import Seed
from lightning_fl.data.source import STAND_IN
from lightning_fl.inference.trained_run import TrainedRun, check_out
from lightning_fl.runtime.table import Column, Table, Value, metric_column, number_value, print_table

if TYPE_CHECKING:
    from lightning_fl.inference.personalization import Personalization

#: Rows of the table; of more models, those with the largest shares are shown.
_MOST_ROWS = 30


def personalize(
    run: Run,
    file: File,
    *,
    out: File | None = None,
    holdout: Annotated[float, Word("SHARE"), Ge(0), Lt(1)] = 0.5,
    monitor: str | None = None,
    seed: Annotated[Seed, Word("N")] | None = None,
    force: bool = False,
    trust: bool = False,
    accelerator: str = "auto",
) -> int:
    """Mix a run's shared models for a client's samples, write the personal model and print a table.

    Args:
        file: labelled samples of one client, of the kind that the run was trained on: a CSV file with the run's
            columns, a .npz file of images, or a folder of images
        out: the personal model, an ordinary Lightning checkpoint (default: RUN/personal/FILE.ckpt)
        holdout: fraction of the samples to evaluate on; the others decide the models' shares. 0: all samples do both
        monitor: validation metric that decides the shares, such as val/acc: from 0 to 1 if higher is better, at least
            0 if lower is better, then exp(-value) is used (default: an accuracy or the like, else a loss)
        seed: seed of the holdout (default: the run's)
    """
    trained = TrainedRun.read(run)
    trained.refuse_personal_layers("train them on the new client's data, or give a run without PersonalLayers")
    summary, is_named = trained.summary, out is not None
    out = out or run / "personal" / f"{file.name.partition('.')[0]}.ckpt"
    check_out(out, run, file, named=is_named, replace=force)
    made = trained.make(trust=trust, accelerator=accelerator)

    from lightning_fl.inference.personalization import personalize

    with trained.reading_record() as record:
        dataset = made.data.newcomer_data(str(file), record)
    found = personalize(
        made.model,
        list(trained.shared),
        dataset,
        out=out,
        monitor=monitor,
        holdout=holdout,
        seed=summary["seed"] if seed is None else seed,
        like=made.data,
        accelerator=accelerator,
        **made.settings,
    )
    _print(found, summary, run, file, out)
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
    score = metric_name(found.monitor, "val")
    full = {metric_name(name, "val"): name for name in found.shared}
    metrics = of_all_targets({name: found.shared[whole] for name, whole in full.items()})

    lines = [
        [Value(f"shared_{k}"), number_value(importance[k]), Value(f"{shares[k]:.1%}")]
        + [number_value(metric.clients.get(k, math.nan)) for metric in metrics.values()]
        for k in shown
    ]
    empty = Value("")
    if len(shown) < len(shares):
        more, rest = len(shares) - len(shown), 1 - math.fsum(shares[k] for k in shown)
        lines.append([Value(f"... and {more} more"), empty, Value(f"{rest:.1%}"), *[empty] * len(metrics)])
    for label, values in (("uniform mixture", found.uniform), ("personal model", found.personal)):
        lines.append([Value(label, state="summary"), empty, empty])
        lines[-1] += [number_value(values.get(full[name], math.nan), state="summary") for name in metrics]
    models, scores, parts, *others = zip(*lines, strict=True)
    columns = [
        Column("model", models, is_label=True, min_width=15),
        Column(f"score υ\n{score if found.higher_is_better else f'exp(-{score})'}", scores),
        Column("share", parts),
    ]
    for place, ((name, metric), numbers) in enumerate(zip(metrics.items(), others, strict=True)):
        columns.append(metric_column(name, metric.higher_is_better, numbers, place))
    is_stand_in = summary.get("data_source") == STAND_IN
    console.print(Text(title, "bold"), soft_wrap=True)
    print_table(Table("", columns, notes, is_stand_in, num_summaries=2, elsewhere="in a wider window"), console)
    console.print(Text(f"personal model: {out}"), soft_wrap=True)
