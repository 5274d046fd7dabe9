"""Self-contained HTML page of a study: tables, claims, figures, settings and commands."""

import math
import shlex
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from markupsafe import Markup
from matplotlib.figure import Figure

from lightning_fl.core.escaping import page_environment
from lightning_fl.data.source import STAND_IN_LABEL
from lightning_fl.files.atomic import write_whole
from lightning_fl.files.yaml import dump_yaml
from lightning_fl.recipe.shipped import available_studies
from lightning_fl.runtime.drawing import drawing
from lightning_fl.study.cell_names import cell_name
from lightning_fl.study.claims import Answer
from lightning_fl.study.declaration import FULL
from lightning_fl.study.finished_run import FinishedRun
from lightning_fl.study.hover import inline_svg
from lightning_fl.study.pivot import make_pivot
from lightning_fl.study.report import CHOSEN_HEADER, chosen_rows
from lightning_fl.study.results import CellResult, StudyResults
from lightning_fl.study.study_figures import Runs, draw_claims, draw_curves, draw_distributions, draw_results

__all__ = ["images_of", "write_html"]

#: Figures of this width in inches take the whole width of the page.
_WIDE = 8.0
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


def write_html(results: StudyResults, out: Path) -> Path:
    """Write ``report.html`` into the study's folder, which also contains the runs; returns its path."""
    study = results.study
    environment = page_environment()
    page = environment.get_template("report.html.j2").render(
        study=study,
        pivot=make_pivot(results),
        explained={name: _STATISTICS[name] for name in study.table.statistics},
        chosen_header=CHOSEN_HEADER,
        chosen=chosen_rows(study),
        answers=[_answer(answer, study.table.digits) for answer in results.answers],
        has_places=any(answer.axes for answer in results.answers),
        has_needs=any(answer.seeds_needed for answer in results.answers),
        has_remarks=any(answer.reason for answer in results.answers),
        verdicts=Counter(answer.verdict for answer in results.answers),
        figures=_figures(results, _runs(results, out)),
        cells=[_cell(cell) for cell in results.cells],
        statuses=Counter(cell.status for cell in results.cells),
        hours=sum(cell.seconds or 0.0 for cell in results.cells) / 3600,
        sources=sorted({cell.data_source for cell in results.cells} - {""}),
        stand_in_label=STAND_IN_LABEL,
        recipes={name: _recipe(arm.recipe, arm.overrides) for name, arm in study.arms.items()},
        declaration=dump_yaml(study.as_dict(), width=110),
        environment=results.environment,
        repeat=_repeat(results),
    )
    path = out / "report.html"
    write_whole(path, page)
    return path


def _runs(results: StudyResults, out: Path) -> Runs:
    """The finished runs that still exist."""
    return {
        cell.key: FinishedRun.read(out / cell.run_folder)
        for cell in results.cells
        if cell.status == "done" and (out / cell.run_folder / "summary.json").is_file()
    }


def _figures(results: StudyResults, runs: Runs) -> list[dict[str, Any]]:
    """All figures that have something to show."""
    study = results.study
    found: list[tuple[str, Callable[[], Figure | None]]] = []
    for statistic in study.table.statistics:
        if any(not math.isnan(cell.values[statistic]) for cell in results.cells):
            title = f"{statistic}: {_STATISTICS[statistic]}"
            found.append((title, partial(draw_results, results, statistic)))
    unit = " in percentage points" if study.table.percent else ""
    shown = [answer for answer in results.answers if not math.isnan(answer.interval.mean)]
    if shown:
        found.append(("claims", partial(draw_claims, shown, unit)))
    curves = "learning curves on validation data, with the range over seeds"
    found.append((curves, partial(draw_curves, results, runs)))
    found.append(("distribution over clients", partial(draw_distributions, results, runs)))
    return [image for title, draw in found for image in images_of(title, draw)]


def images_of(title: str, draw: Callable[[], Figure | None]) -> list[dict[str, Any]]:
    """A list with the figure; empty if there is nothing to draw or drawing fails."""
    images: list[dict[str, Any]] = []
    with drawing(title):
        if (figure := draw()) is not None:
            images.append(
                {"title": title, "svg": Markup(inline_svg(figure, title)), "wide": figure.get_figwidth() > _WIDE}
            )
    return images


def _answer(answer: Answer, digits: int) -> dict[str, Any]:
    interval, more = answer.interval, digits + 1
    bounds = "" if math.isnan(interval.low) else f"[{interval.low:+.{more}f}, {interval.high:+.{more}f}]"
    return {
        "claim": answer.claim,
        "at": cell_name("", answer.axes),
        "verdict": answer.verdict,
        "corrected": answer.corrected,
        "corrected_kind": answer.corrected.replace(" ", "-"),
        "needs": answer.seeds_needed or "",
        "kind": answer.verdict.replace(" ", "-"),
        "difference": "" if math.isnan(interval.mean) else f"{interval.mean:+.{more}f}",
        "interval": bounds,
        "n": interval.n,
        "reason": answer.reason,
    }


def _cell(cell: CellResult) -> dict[str, Any]:
    return {
        "name": cell_name(cell.arm, cell.place),
        "seed": cell.seed,
        "status": cell.status,
        "kind": cell.status.replace(" ", "-"),
        "source": cell.data_source,
        "rounds": "" if cell.rounds is None else cell.rounds,
        "seconds": "" if cell.seconds is None else f"{cell.seconds:.1f}",
        "folder": cell.run_folder or cell.log,
        "failure": cell.failure,
    }


def _recipe(recipe: str, overrides: dict[str, Any]) -> dict[str, str]:
    return {"name": Path(recipe).name, "overrides": dump_yaml(overrides) if overrides else ""}


def _repeat(results: StudyResults) -> list[str]:
    """Commands that repeat the study."""
    study, environment = results.study, results.environment
    scale = [] if study.scale == FULL else ["--scale", study.scale]
    lines = [f"pip install lightning-fl=={environment['lightning-fl']}"]
    if environment.get("commit"):
        lines = [f"git checkout {environment['commit'].rstrip('+')}", "uv sync"]
    shipped = available_studies().get(study.name)
    name = study.name if shipped is not None and shipped == study.path else study.path.name
    return [*lines, shlex.join(["lightning-fl", "study", name, *scale])]
