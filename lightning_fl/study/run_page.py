"""HTML page of a run: tables, curves, figures, settings and commands."""

import base64
import math
import shlex
from collections.abc import Mapping
from pathlib import Path

from matplotlib.figure import Figure

from lightning_fl.files.user_file import refuse_link_out
from lightning_fl.files.yaml import dump_yaml
from lightning_fl.recipe.trust import predict_command
from lightning_fl.runtime.table import Column, Value, label_column
from lightning_fl.study.figures import draw_curves
from lightning_fl.study.finished_run import FinishedRun, RunMetric
from lightning_fl.study.page import Part, Picture, draw_pictures, facts, source_badge, write_page

#: Columns of a table.
_MAX_METRICS = 12
#: Panels of curves.
_MAX_CURVES = 4
_SPLITS = {"test": "Test", "val": "Validation"}
_STATISTICS = {"mean": "average", "worst": "worst", "best": "best", "std": "standard deviation"}
#: Linked files of a run.
_FILES = ("config.yaml", "summary.json", "metrics.csv", "splits.json", "*.csv", "figures/*.png", "models/*.ckpt")


def write_run_page(folder: str | Path, out: Path | None = None) -> Path:
    """Write a run's page, which links to the run's other files; returns its path.

    The default is ``report.html`` in the run's folder, which :meth:`FinishedRun.read` reads.
    """
    run = FinishedRun.read(folder)
    summary = run.summary
    after = "" if run.rounds is None else f" after {run.rounds} rounds"
    badges = dict([source_badge(run.data_source)])
    badges[f"{'interrupted' if run.interrupted else 'finished'}{after}"] = "cut off" if run.interrupted else "done"
    if summary.get("best_round"):
        badges[f"best round: {summary['best_round']}"] = ""
    pictures = draw_pictures({"curves on validation data": lambda: _draw_curves(run)})
    pictures += [_image(path, run.folder) for path in sorted(run.folder.glob("figures/*.png"))]
    files = {path.relative_to(run.folder).as_posix(): None for name in _FILES for path in sorted(run.folder.glob(name))}
    settings = [Part(table=facts(_facts(run)))]
    if run.recipe:
        settings.append(Part(code=dump_yaml(run.recipe, width=110), summary="full recipe"))
    return write_page(
        out or run.folder / "report.html",
        f"{summary.get('method', run.algorithm)}: {summary.get('title', run.folder.name)}",
        f"{len(run.client_names)} clients, seed {run.seed} · {run.folder}",
        badges,
        {
            **{title: _table(run, split) for split, title in _SPLITS.items() if split in run.splits()},
            "Figures": [Part(pictures=pictures) if pictures else Part("No figures.")],
            "Settings": [*settings, Part(table=facts(summary.get("versions", {})), summary="versions")],
            "Commands": [Part(code="\n".join(_commands(run)))],
            "Files": [Part(links=list(files))],
        },
    )


def _table(run: FinishedRun, split: str) -> list[Part]:
    """A row per client and per statistic; bold where a model is better than the local one or the other way round."""
    evaluated, names = str(run.summary.get("evaluated", "the shared model")), run.metric_names(split)
    if split == "val" and run.rounds is not None and run.summary.get("best_round") not in (None, run.rounds):
        # Local models are those of the best round, so that the last validation does not compare.
        evaluated = f"the models of round {run.rounds}, the last"
        names = [name for name in names if not name.startswith("local/")]
    metrics = {name: run.metric(name, split) for name in names[:_MAX_METRICS]}
    numbers = {
        name: [metric.clients.get(client, math.nan) for client in run.client_names]
        + [getattr(metric, statistic) for statistic in _STATISTICS]
        for name, metric in metrics.items()
    }
    columns = [label_column("client", [*run.client_names, *_STATISTICS.values()])]
    columns += [_column(metric, numbers) for metric in metrics.values()]
    note = f"Evaluated: {evaluated}."
    if len(names) > _MAX_METRICS:
        note += f" {len(names) - _MAX_METRICS} more metrics are in summary.json."
    if any(f"local/{name}" in metrics for name in metrics):
        note += " Bold: better than the other, local or not."
    return [Part(note), Part(table=columns)]


def _column(metric: RunMetric, numbers: Mapping[str, list[float]]) -> Column:
    other = metric.name.removeprefix("local/") if metric.name.startswith("local/") else f"local/{metric.name}"
    own = numbers[metric.name]
    sign = 1 if metric.higher_is_better else -1
    values = [
        Value("-", title="not measured")
        if math.isnan(value)
        else Value(f"{value:.4g}", best=sign * value > sign * rival, title=repr(value))  # False for NaN
        for value, rival in zip(own, numbers.get(other, [math.nan] * len(own)), strict=True)
    ]
    return Column(f"{metric.name} {'↑' if metric.higher_is_better else '↓'}", values)


def _draw_curves(run: FinishedRun) -> Figure | None:
    """Mean and worst client of the first validation metrics over rounds; ``None`` without curves."""
    figure = draw_curves({name: {run.algorithm: [run]} for name in run.metric_names("val")[:_MAX_CURVES]})
    if figure is not None and run.summary.get("best_round"):
        for axes in figure.axes:
            axes.axvline(run.summary["best_round"], color="0.6", linewidth=0.8)
    return figure


def _image(path: Path, folder: Path) -> Picture:
    data = base64.b64encode(refuse_link_out(path, folder).read_bytes()).decode("ascii")
    return Picture(path.stem.replace("_", " "), source=f"data:image/png;base64,{data}")


def _facts(run: FinishedRun) -> dict[str, str]:
    summary, sent, received = run.summary, run.megabytes("sent"), run.megabytes("received")
    moved = "" if math.isnan(sent + received) else f"{sent:.1f} MB and {received:.1f} MB"
    found = {
        "method": summary.get("method", run.algorithm),
        "strategy": summary["strategy"],
        "callbacks": ", ".join(summary.get("callbacks") or []),
        "data": ", ".join(str(run.data[key]) for key in ("title", "name", "source") if run.data.get(key)),
        "partition": str(run.data.get("partition", "")),
        "seed": str(run.seed),
        "device": f"{summary.get('device', '')}, {summary.get('num_processes', 1)} process(es)",
        "wall time": "" if run.seconds is None else f"{run.seconds:.1f} s",
        "sent and received by all clients": moved,
        "resumed from": str(summary.get("resumed_from") or ""),
    }
    return {name: value for name, value in found.items() if value}


def _commands(run: FinishedRun) -> list[str]:
    if not run.recipe:
        return ["# started from Python: run the script again with the seed above"]
    folder = str(run.folder)
    again = ["lightning-fl", "fit", "--config", f"{folder}/config.yaml"]
    lines = [shlex.join(again)]
    if run.interrupted:
        lines.append(shlex.join([*again, "--ckpt_path", f"{folder}/checkpoints/last.ckpt"]))
    predict = predict_command(run.folder, run.recipe, run.summary)
    return [
        *lines,
        *([] if predict is None else [predict]),
        shlex.join(["lightning-fl", "compare", folder, "OTHER_RUN"]),
        shlex.join(["tensorboard", "--logdir", folder]),
    ]
