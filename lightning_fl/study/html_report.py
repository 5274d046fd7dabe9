"""HTML page of a study: tables, claims, figures, settings and commands."""

import math
import shlex
from collections import Counter
from functools import partial
from pathlib import Path

from lightning_fl.files.yaml import dump_yaml
from lightning_fl.recipe.shipped import available_studies
from lightning_fl.runtime.table import Column, Value, label_column
from lightning_fl.study.claims import cell_name
from lightning_fl.study.declaration import FULL, Study
from lightning_fl.study.figures import draw_claims, draw_curves, draw_distributions, draw_results
from lightning_fl.study.finished_run import FinishedRun
from lightning_fl.study.page import Part, Picture, draw_pictures, facts, source_badge, write_page
from lightning_fl.study.results import StudyResults
from lightning_fl.study.study_tables import chosen_columns, claims_table, group_cells, results_table

_STATISTICS = {
    "mean": "mean over clients",
    "worst": "worst client",
    "best": "best client",
    "std": "standard deviation over clients",
    "last_mean": "mean over clients, averaged over the last rounds (LastRounds) instead of the best round",
    "last_worst": "worst client of each of the last rounds, averaged over them",
    "gain": "mean gain over the clients' own local training",
    "rsd": "standard deviation of these gains over clients",
    "ipr": "share of clients that gain over local training",
    "harmed": "share of clients that lose against local training",
    "ari": "adjusted Rand index of the coalitions against the clients' known groups (GroupAgreement)",
}
_ABOUT_CLAIMS = (
    "The difference is left side minus right side, paired by seed. A claim holds if its whole interval is on the"
    " claimed side, does not hold if it is on the other side, and is undecided otherwise."
)


def write_html(results: StudyResults, out: Path) -> Path:
    """Write ``report.html`` into the study's folder, which also contains the runs; returns its path."""
    study, environment = results.study, dict(results.environment)
    packages = environment.pop("packages", {})
    badges = dict(source_badge(source) for source in sorted({cell.data_source for cell in results.cells} - {""}))
    statuses = Counter(cell.status for cell in results.cells)
    badges |= {f"runs {status}: {count}": status for status, count in statuses.items()}
    verdicts = Counter(answer.verdict for answer in results.answers)
    badges |= {f"claims, {verdict}: {count}": verdict for verdict, count in verdicts.items()}
    meanings = "; ".join(f"{name}: {_STATISTICS[name]}" for name in study.table.statistics)
    claims = Part.of_table(claims_table(results.answers, study.table.digits)) if results.answers else []
    hours = sum(cell.seconds or 0.0 for cell in results.cells) / 3600
    about_runs = f"{len(results.cells)} runs, {hours:.2f} hours of training in total."
    version = f"lightning-fl {environment['lightning-fl']}"
    version += f", commit {environment['commit']}" if environment.get("commit") else ""
    pictures = _pictures(results, out)
    return write_page(
        out / "report.html",
        study.title,
        f"study {study.name}, scale {study.scale} · {version} · {environment.get('time', '')}",
        badges,
        {
            "Table": [*Part.of_table(results_table(results)), Part(f"{meanings}.")],
            "Claims": [*claims, Part(_ABOUT_CLAIMS)] if claims else [],
            "Figures": [Part(pictures=pictures) if pictures else Part("No finished runs.")],
            "Runs": [
                Part(f"{about_runs} Paths are relative to the study's folder."),
                Part(table=_runs_table(results), summary="all runs", is_open="failed" in statuses),
            ],
            "Settings": _settings(study),
            "Versions and machine": [Part(table=facts({**environment, **packages}))],
            "Commands": [Part(code="\n".join(_commands(results)))],
        },
    )


def _pictures(results: StudyResults, out: Path) -> list[Picture]:
    study = results.study
    panels = {
        ", ".join(column): {
            ", ".join(row): [
                FinishedRun.read(out / cell.run_folder)
                for cell in cells
                if cell.status == "done" and (out / cell.run_folder / "summary.json").is_file()
            ]
            for row, cells in of_rows.items()
        }
        for column, of_rows in group_cells(results).items()
    }
    figures = {
        f"{name}: {_STATISTICS[name]}": partial(draw_results, results, name)
        for name in study.table.statistics
        if any(not math.isnan(cell.values[name]) for cell in results.cells)
    }
    draws = partial(draw_curves, panels, study.metric), partial(draw_distributions, panels, study.metric, study.split)
    curves, distributions = (partial(draw, percent=study.table.percent) for draw in draws)
    return draw_pictures(
        {
            **figures,
            "claims": partial(draw_claims, results),
            "learning curves on validation data": curves,
            "distribution over clients": distributions,
        }
    )


def _runs_table(results: StudyResults) -> list[Column]:
    cells = results.cells
    links = ["" if cell.failure else cell.run_folder or cell.log for cell in cells]
    return [
        label_column("run", [cell_name(cell.arm, cell.place) for cell in cells]),
        label_column("seed", [cell.seed for cell in cells]),
        Column("status", [Value(cell.status, state=cell.status) for cell in cells], is_label=True),
        label_column("data", [cell.data_source for cell in cells]),
        label_column("rounds", ["" if cell.rounds is None else cell.rounds for cell in cells]),
        label_column("seconds", ["" if cell.seconds is None else f"{cell.seconds:.1f}" for cell in cells]),
        Column(
            "folder, log or error",
            [Value(c.failure or link, link=link) for c, link in zip(cells, links, strict=True)],
            is_label=True,
        ),
    ]


def _settings(study: Study) -> list[Part]:
    parts = [Part("Chosen before, on other seeds:"), Part(table=chosen_columns(study))] if study.chosen else []
    for name, arm in study.arms.items():
        overrides = dump_yaml(arm.overrides) if arm.overrides else ""
        summary = f"{name}: {Path(arm.recipe).name}{', changed' if overrides else ''}"
        parts.append(Part(code=overrides or "unchanged", summary=summary))
    return [*parts, Part(code=dump_yaml(study.as_dict(), width=110), summary="full declaration")]


def _commands(results: StudyResults) -> list[str]:
    study, environment = results.study, results.environment
    scale = [] if study.scale == FULL else ["--scale", study.scale]
    lines = [f"pip install lightning-fl=={environment['lightning-fl']}"]
    if environment.get("commit"):
        lines = [f"git checkout {environment['commit'].rstrip('+')}", "uv sync"]
    name = study.name if available_studies().get(study.name) == study.path else study.path.name
    return [*lines, shlex.join(["lightning-fl", "study", name, *scale])]
