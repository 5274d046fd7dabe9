"""The page of a study."""

import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread
from page_reader import Page
from processes import run
from study_tiny import results_of, tiny_cells

from lightning_fl.core.environment import describe_environment
from lightning_fl.study.html_report import write_html
from lightning_fl.study.intervals import paired_interval
from lightning_fl.study.results import StudyResults
from lightning_fl.study.study_tables import results_table

CLAIMS = ["mean(b) > mean(a)", "mean(a) > mean(b) where data=left", "mean(b) > mean(a) + 9"]


def page_of(folder: Path, **changes) -> tuple[Page, str, StudyResults]:
    folder.mkdir(exist_ok=True)
    results = results_of(folder, environment=describe_environment(), **{"claims": CLAIMS, **changes})
    text = write_html(results, folder / "out").read_text(encoding="utf-8")
    return Page(text), text, results


@pytest.mark.slow
def test_the_page_of_a_study(tmp_path):
    page, text, results = page_of(tmp_path, scales={"small": {"seeds": [0, 1, 2]}}, scale="small")
    shown = page.texts
    # tables
    table = results_table(results)
    values = [str(value) for row in table.rows for value in row if value.text]
    assert {*(column.name for column in table.columns), *values, *table.notes} <= set(shown)
    assert '<td class="best">' in text
    own, together = ([getattr(one, of) for one in results.answers] for of in ("verdict", "corrected"))
    assert [own.count(verdict) for verdict in ("holds", "does not hold", "undecided")] == [2, 3, 0]
    for verdict in ("holds", "does not hold", "undecided"):
        assert shown.count(verdict) == own.count(verdict) + together.count(verdict)
    for answer in results.answers:
        assert any(found.startswith(f"{answer.interval.mean:+.4f} [") for found in shown)
    # versions, machine, settings, command
    environment, words = results.environment, [found for found in shown if found]
    for package, version in environment["packages"].items():
        assert words[words.index(package) + 1] == version
    assert environment["cpu"] in text
    assert environment["commit"] in text
    assert any("lightning-fl study study.yaml --scale small" in found for found in shown)
    assert any("max_rounds: 2" in found for found in shown)
    # stand-ins and failures are at the top; output of a run is text
    assert "stand-in" in text[: text.index('id="table"')].lower()
    assert "runs failed: 1" in shown
    assert "<details open>" in text
    assert "<b>it broke" not in text
    assert any("<b>it broke</b> & fell" in found for found in shown)
    # links to the runs below the study's folder; nothing is loaded
    assert page.links
    assert all(re.fullmatch(r"cells/[^:]+", link) for link in page.links)
    assert "script" not in page.tags
    assert page.images == []
    assert "default-src 'none'" in text
    assert set(re.findall(r"https?://[\w./-]+", text)) == {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}
    assert len(set(page.ids)) == len(page.ids)
    assert set(re.findall(r"(?:url\(|xlink:href=\")#([^)\"]+)", text)) <= set(page.ids)
    assert write_html(results, tmp_path / "out").read_text() == text


@pytest.mark.slow
def test_tooltips_have_the_values(tmp_path):
    page, _, results = page_of(tmp_path)
    digits = results.study.table.digits + 1
    of_a = {
        cell.seed: cell.values["mean"] for cell in results.cells if cell.arm == "a" and cell.place["data"] == "left"
    }
    for seed, value in of_a.items():
        assert f"a, seed {seed}: {value:.{digits}f}" in page.tooltips
    interval = paired_interval(list(of_a.values()))
    half = interval.mean - interval.low
    assert f"a: {interval.mean:.{digits}f} ± {half:.{digits}f} ({len(of_a)} seeds)" in page.tooltips
    answer = results.answers[0]
    assert any(tip.startswith(answer.claim) and f": {answer.interval.mean:+.4g} [" in tip for tip in page.tooltips)
    assert any(re.match(r"a, round 1: \d", tip) for tip in page.tooltips)
    assert any(re.match(r"b: 100% of clients up to \d", tip) for tip in page.tooltips)


@pytest.mark.slow
def test_figures_are_those_that_can_be_drawn(tmp_path):
    page, _, results = page_of(tmp_path, table={"rows": ["arm"], "columns": ["data"], "statistics": ["mean", "ipr"]})
    assert len(page.pictures) == 5  # two statistics, claims, curves, distribution
    for cell in results.cells:  # their numbers stay, their curves and clients are gone
        if cell.run_folder:
            shutil.rmtree(tmp_path / "out" / cell.run_folder)
    assert len(Page(write_html(results, tmp_path / "out").read_text()).pictures) == 3


def test_before_a_cell_is_done_there_is_a_page_without_figures(tmp_path):
    study, cells = tiny_cells(tmp_path)
    (tmp_path / "out").mkdir()
    results = StudyResults.of(study, cells, tmp_path / "out", describe_environment())
    page = Page(write_html(results, tmp_path / "out").read_text())
    assert page.pictures == []
    assert "No finished runs." in page.texts


@pytest.mark.processes
@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs Debian's chromium; .ci/run installs it")
def test_a_browser_without_a_network_shows_it(tmp_path):
    """The figures' colours are on the screen, and the page fits its width."""
    page_of(tmp_path)
    words = "--headless --no-sandbox --disable-gpu --no-first-run --disable-background-networking --hide-scrollbars"
    quiet = "--disable-component-update --disable-sync --disable-quic --host-resolver-rules=MAP=*=0.0.0.0"
    shot = tmp_path / "page.png"
    command = ["chromium", *words.split(), *quiet.split(), f"--user-data-dir={tmp_path / 'profile'}"]
    url = (tmp_path / "out" / "report.html").as_uri()
    ended = run(*command, "--window-size=1200,3000", f"--screenshot={shot}", url)
    assert ended.code == 0, ended.err
    pixels = (imread(shot)[..., :3] * 255).round().astype(int)
    for color in ((0, 114, 178), (213, 94, 0)):  # of the two arms, and of the two verdicts
        assert (np.abs(pixels - color).max(-1) < 3).sum() > 20, color
    assert (pixels[:, -5:] == 255).all()  # nothing runs over the right edge
