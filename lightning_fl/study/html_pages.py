"""HTML pages of a run and of a study: tables, figures, settings and commands."""

import base64
import math
import operator
import os
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from matplotlib.figure import Figure

from lightning_fl.core.client_names import rows_of
from lightning_fl.files.user_file import refuse_link_out
from lightning_fl.files.yaml import dump_yaml
from lightning_fl.recipe.shipped import available_studies
from lightning_fl.recipe.trust import predict_command
from lightning_fl.runtime.table import Column, Value, label_column, label_columns, number_value
from lightning_fl.study.claims import STATISTICS, cell_name
from lightning_fl.study.declaration import FULL, Study
from lightning_fl.study.figures import draw_claims, draw_curves, draw_distributions, draw_results
from lightning_fl.study.finished_run import FinishedRun, RunMetric
from lightning_fl.study.page import Part, Picture, draw_pictures, facts, source_badge, write_page
from lightning_fl.study.results import CellResult, StudyResults
from lightning_fl.study.study_tables import chosen_columns, claims_table, group_cells, results_table

#: Columns of a table.
_MAX_METRICS = 12
#: Panels of curves.
_MAX_CURVES = 4
_SPLITS = {"test": "Test", "val": "Validation"}
_STATISTICS = {"mean": "average", "worst": "worst", "best": "best", "std": "standard deviation"}
#: Linked files of a run.
_FILES = ("config.yaml", "summary.json", "metrics.csv", "splits.json", "*.csv", "figures/*.png", "models/*.ckpt")

_ABOUT_CLAIMS = (
    "The difference is left side minus right side, paired by seed. A claim holds if its whole interval is on the"
    " claimed side, does not hold if it is on the other side, and is undecided otherwise."
)


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
    for path in sorted(run.folder.glob("figures/*.png")):
        image = base64.b64encode(refuse_link_out(path, run.folder).read_bytes()).decode("ascii")
        pictures.append(Picture(path.stem.replace("_", " "), source=f"data:image/png;base64,{image}"))
    files = {path.relative_to(run.folder).as_posix(): None for name in _FILES for path in sorted(run.folder.glob(name))}
    settings = [Part(table=facts(_run_facts(run)))]
    if run.recipe:
        settings.append(Part(code=dump_yaml(run.recipe, width=110), summary="full recipe"))
    out = out or run.folder / "report.html"
    return write_page(
        out,
        f"{summary.get('method', run.algorithm)}: {summary.get('title', run.folder.name)}",
        f"{len(run.client_names)} clients, seed {run.seed} · {run.folder}",
        badges,
        {
            **{title: _metrics_table(run, split) for split, title in _SPLITS.items() if split in run.splits()},
            "Figures": [Part(pictures=pictures) if pictures else Part("No figures.")],
            "Settings": [*settings, Part(table=facts(summary.get("versions", {})), summary="versions")],
            "Commands": [Part(code="\n".join(_run_commands(run)))],
            "Files": [Part(links=[os.path.relpath(run.folder / name, out.parent) for name in files])],
        },
    )


def _metrics_table(run: FinishedRun, split: str) -> list[Part]:
    """A row per client and per statistic; bold where a model is better than the local one or the other way round."""
    evaluated, names = str(run.summary.get("evaluated", "the shared model")), run.metric_names(split)
    metrics = {name: run.metric(name, split) for name in names[:_MAX_METRICS]}
    clients = rows_of(run.client_names, [metric.clients for metric in metrics.values()])
    numbers = {
        name: [metric.clients.get(client, math.nan) for client in clients]
        + [getattr(metric, statistic) for statistic in _STATISTICS]
        for name, metric in metrics.items()
    }
    columns = [label_column("client", [*clients, *_STATISTICS.values()])]
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
    is_better = operator.gt if metric.higher_is_better else operator.lt  # false for NaN
    values = [
        number_value(value, best=is_better(value, rival), title="not measured" if math.isnan(value) else repr(value))
        for value, rival in zip(own, numbers.get(other, [math.nan] * len(own)), strict=True)
    ]
    return Column(f"{metric.name} {'↑' if metric.higher_is_better else '↓'}", values)


def _draw_curves(run: FinishedRun) -> Figure | None:
    """Mean and worst client of the first validation metrics over rounds; ``None`` without curves."""
    figure = draw_curves({name: {run.algorithm: [run]} for name in run.metric_names("val")[:_MAX_CURVES]})
    if figure is not None and run.summary.get("best_round"):
        for axes in (one for one in figure.axes if one.get_xlabel() == "round"):
            axes.axvline(run.summary["best_round"], color="0.6", linewidth=0.8)
    return figure


def _run_facts(run: FinishedRun) -> dict[str, str]:
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


def _run_commands(run: FinishedRun) -> list[str]:
    if not run.recipe:
        return ["# started from Python: run the script again with the seed above"]
    folder = str(run.folder)
    again = ["lightning-fl", "fit", "--config", f"{folder}/config.yaml"]
    commands = [
        shlex.join(again),
        shlex.join([*again, "--ckpt_path", f"{folder}/checkpoints/last.ckpt"]) if run.interrupted else None,
        predict_command(run.folder, run.recipe, run.summary),
        shlex.join(["lightning-fl", "compare", folder, "OTHER_RUN"]),
        shlex.join(["tensorboard", "--logdir", folder]),
    ]
    return [command for command in commands if command is not None]


def write_study_page(
    results: StudyResults, out: Path, first: Mapping[str, Sequence[Part]] | None = None, command: str = ""
) -> Path:
    """Write ``report.html`` into the study's folder, which also contains the runs; returns its path.

    ``first`` has sections above the others; ``command`` made the results, if not ``lightning-fl study``.
    """
    study, environment = results.study, dict(results.environment)
    packages = environment.pop("packages", {})
    badges = dict(source_badge(source) for source in sorted({cell.data_source for cell in results.cells} - {""}))
    statuses = Counter(cell.status for cell in results.cells)
    badges |= {f"runs {status}: {count}": status for status, count in statuses.items()}
    verdicts = Counter(answer.verdict for answer in results.answers)
    badges |= {f"claims, {verdict}: {count}": verdict for verdict, count in verdicts.items()}
    meanings = "; ".join(f"{name}: {STATISTICS[name]}" for name in study.table.statistics)
    claims = Part.of_table(claims_table(results)) if results.answers else []
    hours = sum(cell.seconds or 0.0 for cell in results.cells) / 3600
    about_runs = f"{len(results.cells)} runs, {hours:.2f} hours of training in total."
    version = f"lightning-fl {environment['lightning-fl']}"
    version += f", commit {environment['commit']}" if environment.get("commit") else ""
    pictures = _study_pictures(results, out)
    return write_page(
        out / "report.html",
        study.title,
        f"{command or f'study {study.name}, scale {study.scale}'} · {version} · {environment.get('time', '')}",
        badges,
        {
            **(first or {}),
            "Table": [*Part.of_table(results_table(results)), Part(f"{meanings}.")],
            "Claims": [*claims, Part(_ABOUT_CLAIMS)] if claims else [],
            "Figures": [Part(pictures=pictures) if pictures else Part("No finished runs.")],
            "Runs": [
                Part(f"{about_runs} Paths are relative to the study's folder."),
                Part(table=_runs_table(results, out), summary="all runs", is_open="failed" in statuses),
            ],
            "Settings": _study_settings(study),
            "Versions and machine": [Part(table=facts({**environment, **packages}))],
            "Commands": [Part(code="\n".join(_study_commands(results, out, command)))],
        },
    )


def _study_pictures(results: StudyResults, out: Path) -> list[Picture]:
    def read(cells: Sequence[CellResult]) -> list[FinishedRun]:
        folders = [out / cell.run_folder for cell in cells if cell.status == "done"]
        return [FinishedRun.read(folder) for folder in folders if (folder / "summary.json").is_file()]

    study, grouped = results.study, group_cells(results)
    panels = {column: {row: read(cells) for row, cells in of_rows.items()} for column, of_rows in grouped.items()}
    metric, split, percent = study.metric, study.split, study.table.percent
    return draw_pictures(
        {
            **{f"{name}: {STATISTICS[name]}": partial(draw_results, results, name) for name in results.measured},
            "claims": partial(draw_claims, results),
            "learning curves on validation data": partial(draw_curves, panels, metric, percent=percent),
            "distribution over clients": partial(draw_distributions, panels, metric, split, percent=percent),
        }
    )


def _runs_table(results: StudyResults, out: Path) -> list[Column]:
    cells = results.cells
    paths = ["" if cell.failure else cell.run_folder or cell.log for cell in cells]
    links = [path if (out / path).exists() else "" for path in paths]
    return label_columns(
        {
            "run": [cell_name(cell.arm, cell.place) for cell in cells],
            "seed": [cell.seed for cell in cells],
            "status": [Value(cell.status, state=cell.status) for cell in cells],
            "data": [cell.data_source for cell in cells],
            "rounds": ["" if cell.rounds is None else cell.rounds for cell in cells],
            "seconds": ["" if cell.seconds is None else f"{cell.seconds:.1f}" for cell in cells],
            "folder, log or error": [
                Value(c.failure or at, link=to) for c, at, to in zip(cells, paths, links, strict=True)
            ],
        }
    )


def _study_settings(study: Study) -> list[Part]:
    parts = [Part("Chosen before, on other seeds:"), Part(table=chosen_columns(study))] if study.chosen else []
    for name, arm in study.arms.items():
        overrides = dump_yaml(arm.overrides) if arm.overrides else ""
        summary = f"{name}: {Path(arm.recipe).name}{', changed' if overrides else ''}"
        parts.append(Part(code=overrides or "unchanged", summary=summary))
    return [*parts, Part(code=dump_yaml(study.as_dict(), width=110), summary="full declaration")]


def _study_commands(results: StudyResults, out: Path, command: str) -> list[str]:
    study, environment = results.study, results.environment
    folder = [] if out == Path("runs") / study.name / study.scale else ["--out", str(out)]
    scale = [] if study.scale == FULL else ["--scale", study.scale]
    seeds = ["--seeds", *map(str, study.run_seeds)]
    lines = [f"pip install lightning-fl=={environment['lightning-fl']}"]
    if environment.get("commit"):
        lines = [f"git checkout {environment['commit'].rstrip('+')}", "uv sync"]
    name = study.name if available_studies().get(study.name) == study.path else str(study.path)
    return [*lines, command or shlex.join(["lightning-fl", "study", name, *scale, *seeds, *folder])]
