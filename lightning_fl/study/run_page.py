"""HTML page of a run: tables, curves, figures, settings and commands."""

import base64
import math
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from lightning_fl.core.escaping import page_environment
from lightning_fl.data.source import STAND_IN_LABEL
from lightning_fl.files.atomic import write_whole
from lightning_fl.files.user_file import refuse_link_out
from lightning_fl.files.yaml import dump_yaml
from lightning_fl.recipe.trust import predict_command
from lightning_fl.runtime.drawing import BAD, GOOD
from lightning_fl.study.finished_run import FinishedRun, RunMetric
from lightning_fl.study.hover import add_tooltips
from lightning_fl.study.html_report import images_of

__all__ = ["write_run_page"]

#: Columns of a table.
_MAX_METRICS = 12
#: Panels of curves.
_MAX_CURVES = 4
#: Tooltips of a curve.
_MAX_TOOLTIPS = 60
#: Column of a curve, its label and style.
_LINES: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("mean", "average", {"color": GOOD, "marker": "o"}),
    ("worst", "worst", {"color": BAD, "marker": "s", "linestyle": "--"}),
)
_SPLITS = {"test": "Test", "val": "Validation", "train": "Training"}
#: Linked files of a run.
_FILES = ("config.yaml", "summary.json", "metrics.csv", "splits.json", "*.csv", "figures/*.png", "models/*.ckpt")


def write_run_page(folder: str | Path, out: Path | None = None) -> Path:
    """Write a run's page, which links to the run's other files; returns its path.

    Args:
        folder: as for :meth:`~lightning_fl.study.finished_run.FinishedRun.read`, which may raise.
        out: default ``report.html`` in the run's folder.
    """
    run = FinishedRun.read(folder)
    summary = run.summary
    method = summary.get("method", run.algorithm)
    environment = page_environment()
    page = environment.get_template("run.html.j2").render(
        title=f"{method}: {summary.get('title', run.folder.name)}",
        subtitle=f"{len(run.clients)} clients, seed {run.seed} · {run.folder}",
        source=run.data_source,
        stand_in_label=STAND_IN_LABEL,
        interrupted=run.interrupted,
        rounds=run.rounds,
        best_round=summary.get("best_round"),
        tables=[_table(run, split) for split in run.splits() if split != "train"],
        figures=[*images_of("curves on validation data", lambda: _draw_curves(run)), *_pictures(run.folder)],
        facts=_facts(run),
        recipe=dump_yaml(run.config, width=110) if run.config else "",
        versions=summary.get("versions", {}),
        repeat=_repeat(run),
        files=_files(run.folder),
    )
    path = out or run.folder / "report.html"
    write_whole(path, page)
    return path


def _table(run: FinishedRun, split: str) -> dict[str, Any]:
    """A row per client and per statistic; bold where a model is better than the local one or the other way round."""
    evaluated, names = str(run.summary.get("evaluated", "the shared model")), run.metric_names(split)
    if split == "val" and run.rounds is not None and run.summary.get("best_round") not in (None, run.rounds):
        # Local models are those of the best round, so that the last validation does not compare.
        evaluated = f"the models of round {run.rounds}, the last"
        names = [name for name in names if not name.startswith("local/")]
    metrics = {name: run.metric(name, split) for name in names[:_MAX_METRICS]}

    def row(title: str, numbers: Sequence[float]) -> dict[str, Any]:
        values = dict(zip(metrics, numbers, strict=True))
        better = [_is_better(value, _rival(name, values), metrics[name]) for name, value in values.items()]
        return {"name": title, "cells": [_cell(*pair) for pair in zip(numbers, better, strict=True)]}

    rows = [row(name, [metric.clients.get(name, math.nan) for metric in metrics.values()]) for name in run.clients]
    rows += [row(word, [getattr(metric, part) for metric in metrics.values()]) for part, word in _PARTS.items()]
    arrows = [f"{name} {'↑' if metric.higher_is_better else '↓'}" for name, metric in metrics.items()]
    compares = any(_rival(name, dict.fromkeys(metrics, 0.0)) is not None for name in metrics)
    more = f"; {len(names) - _MAX_METRICS} more metrics are in summary.json" if len(names) > _MAX_METRICS else ""
    return {
        "split": split,
        "title": _SPLITS[split],
        "note": f"Evaluated: {evaluated}{more}." + (" Bold: better than the other, local or not." if compares else ""),
        "header": arrows,
        "rows": rows,
    }


_PARTS = {"mean": "average", "worst": "worst", "best": "best", "std": "standard deviation"}


def _rival(name: str, values: Mapping[str, float]) -> float | None:
    """Value of the local model for a metric of the other, and the other way round."""
    other = name.removeprefix("local/") if name.startswith("local/") else f"local/{name}"
    return values.get(other)


def _is_better(value: float, rival: float | None, metric: RunMetric) -> bool:
    return rival is not None and (value > rival if metric.higher_is_better else value < rival)


def _cell(value: float, best: bool) -> dict[str, Any]:
    if math.isnan(value):
        return {"text": "-", "exact": "not measured", "best": False}
    return {"text": f"{value:.4g}", "exact": repr(value), "best": best}


def _draw_curves(run: FinishedRun) -> Figure | None:
    """Mean and worst client of the first validation metrics over rounds; ``None`` without curves."""
    curves = {name: run.curve(name) for name in run.metric_names("val")[:_MAX_CURVES]}
    curves = {name: curve for name, curve in curves.items() if len(curve) > 1}
    if not curves:
        return None
    figure = Figure(figsize=(4.2 * len(curves), 3.0), layout="constrained")
    for axes, (name, curve) in zip(figure.subplots(1, len(curves), squeeze=False)[0], curves.items(), strict=True):
        every = max(1, len(curve) // 10)
        for part, label, style in _LINES:
            if curve[part].notna().any():
                axes.plot(curve["round"], curve[part], markevery=every, label=label, **style)
                points = zip(curve["round"], curve[part], strict=True)
                texts = [f"{label}, round {step:g}: {value:.4g}" for step, value in points]
                add_tooltips(axes, curve["round"], curve[part], texts, most=_MAX_TOOLTIPS)
        if run.summary.get("best_round"):
            axes.axvline(run.summary["best_round"], color="0.6", linewidth=0.8)
        axes.set(title=name, xlabel="round")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    return figure


def _pictures(folder: Path) -> list[dict[str, Any]]:
    found = []
    for path in sorted(folder.glob("figures/*.png")):
        data = base64.b64encode(refuse_link_out(path, folder).read_bytes()).decode("ascii")
        found.append({"title": path.stem.replace("_", " "), "source": f"data:image/png;base64,{data}", "wide": False})
    return found


def _facts(run: FinishedRun) -> dict[str, str]:
    summary = run.summary
    facts = {
        "method": summary.get("method", run.algorithm),
        "strategy": summary["strategy"],
        "callbacks": ", ".join(summary.get("callbacks") or []),
        "data": ", ".join(str(run.data[key]) for key in ("title", "name", "source") if run.data.get(key)),
        "partition": str(run.data.get("partition", "")),
        "seed": str(run.seed),
        "device": f"{summary.get('device', '')}, {summary.get('num_processes', 1)} process(es)",
        "wall time": "" if run.seconds is None else f"{run.seconds:.1f} s",
        "sent and received by all clients": ""
        if run.bytes_sent is None or run.bytes_received is None
        else f"{run.bytes_sent / 1e6:.1f} MB and {run.bytes_received / 1e6:.1f} MB",
        "resumed from": str(summary.get("resumed_from") or ""),
    }
    return {name: value for name, value in facts.items() if value}


def _repeat(run: FinishedRun) -> list[str]:
    if not run.config:
        return ["# started from Python: run the script again with the seed above"]
    folder = str(run.folder)
    again = ["lightning-fl", "fit", "--config", f"{folder}/config.yaml"]
    lines = [shlex.join(again)]
    if run.interrupted:
        lines.append(shlex.join([*again, "--ckpt_path", f"{folder}/checkpoints/last.ckpt"]))
    predict = predict_command(run.folder, run.config, run.summary)
    return [
        *lines,
        *([] if predict is None else [predict]),
        shlex.join(["lightning-fl", "compare", folder, "OTHER_RUN"]),
        shlex.join(["tensorboard", "--logdir", folder]),
    ]


def _files(folder: Path) -> list[str]:
    found: dict[str, None] = {}
    for pattern in _FILES:
        found.update(dict.fromkeys(path.relative_to(folder).as_posix() for path in sorted(folder.glob(pattern))))
    return list(found)
