import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread
from processes import run
from study_tiny import results_of, tiny_cells

from lightning_fl.study.environment import describe_environment
from lightning_fl.study.html_report import write_html
from lightning_fl.study.intervals import paired_interval
from lightning_fl.study.pivot import make_pivot
from lightning_fl.study.results import StudyResults

CLAIMS = ["mean(b) > mean(a)", "mean(a) > mean(b) where data=left", "mean(b) > mean(a) + 9"]
VOID = {"meta", "img", "link", "br", "hr", "input"}


class Page(HTMLParser):
    """What a page says, and what it would load."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open, self.texts, self.loads, self.images, self.tags = [], [], [], [], []
        self.pictures, self.said, self.names = [], [], []  # of SVG: titles, what marks say, ids
        self.feed(text)
        self.close()
        assert self.open == [], f"not closed: {self.open}"

    def handle_starttag(self, tag, attributes):
        self.look(tag, attributes)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.look(tag, attributes)

    def look(self, tag, attributes):
        self.tags.append(tag)
        if tag == "svg":
            self.pictures.append(dict(attributes)["aria-label"])
        for name, value in attributes:
            if name in ("src", "href", "srcset", "data", "action", "poster"):
                (self.images if tag == "img" else self.loads).append(value)
            elif name == "id":
                self.names.append(value)
            elif name == "xlink:href":
                assert value.startswith("#")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, text):
        (self.said if self.open[-1:] == ["title"] and "svg" in self.open else self.texts).append(text.strip())


def page_of(folder: Path, **changes) -> tuple[Page, str, StudyResults]:
    results = results_of(folder, environment=describe_environment(), **{"claims": CLAIMS, **changes})
    text = write_html(results, folder / "out").read_text(encoding="utf-8")
    return Page(text), text, results


@pytest.mark.slow
def test_it_says_what_the_table_and_the_claims_say(tmp_path):
    page, text, results = page_of(tmp_path)
    pivot = make_pivot(results)
    for word in [*pivot.header, *(cell for row in pivot.rows for cell in row if cell), *pivot.notes]:
        assert word in page.texts
    own, together = ([getattr(one, of) for one in results.answers] for of in ("verdict", "corrected"))
    assert [own.count(verdict) for verdict in ("holds", "does not hold", "undecided")] == [2, 3, 0]
    for verdict in ("holds", "does not hold", "undecided"):
        assert page.texts.count(verdict) == own.count(verdict) + together.count(verdict)
    assert '<td class="best">' in text
    for answer in results.answers:
        assert f"{answer.interval.mean:+.4f}" in page.texts
    assert "[+" in text


@pytest.mark.slow
def test_it_names_versions_machine_settings_and_how_to_repeat_it(tmp_path):
    page, text, results = page_of(tmp_path)
    environment = results.environment
    words = [text for text in page.texts if text]
    for package, version in environment["packages"].items():
        assert words[words.index(package) + 1] == version
    assert environment["cpu"] in text
    assert environment["commit"] in text
    assert any(line.startswith("lightning-fl study study.yaml") for found in page.texts for line in found.splitlines())
    assert any("max_rounds: 2" in found for found in page.texts)


@pytest.mark.slow
def test_a_scale_is_part_of_the_command(tmp_path):
    page, _, _ = page_of(tmp_path, scales={"small": {"seeds": [0, 1]}}, scale="small")
    assert any("study.yaml --scale small" in found for found in page.texts)


@pytest.mark.slow
def test_it_loads_nothing_and_runs_no_script(tmp_path):
    page, text, _ = page_of(tmp_path)
    # Links to the runs' folders, below the study's; nothing is loaded.
    assert page.loads
    assert all(re.fullmatch(r"cells/[^:]+", link) for link in page.loads)
    assert "script" not in page.tags
    assert page.images == []  # pictures are part of the page
    assert "default-src 'none'" in text
    assert set(re.findall(r"https?://[\w./-]+", text)) == {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}
    assert len(set(page.names)) == len(page.names)  # also over pictures
    assert set(re.findall(r"(?:url\(|xlink:href=\")#([^)\"]+)", text)) <= set(page.names)


@pytest.mark.slow
def test_marks_say_their_values(tmp_path):
    page, _, results = page_of(tmp_path)
    digits = results.study.table.digits + 1
    of_a = {
        cell.seed: cell.values["mean"] for cell in results.cells if cell.arm == "a" and cell.place["data"] == "left"
    }
    for seed, value in of_a.items():
        assert f"a, seed {seed}: {value:.{digits}f}" in page.said
    interval = paired_interval(list(of_a.values()))
    half = interval.mean - interval.low
    assert f"a: {interval.mean:.{digits}f} ± {half:.{digits}f} ({len(of_a)} seeds)" in page.said
    answer = results.answers[0]
    assert any(said.startswith(answer.claim) and f": {answer.interval.mean:+.4g} [" in said for said in page.said)
    assert any(re.match(r"a, round 1: \d", said) for said in page.said)
    assert any(re.match(r"b: 100% of clients up to \d", said) for said in page.said)


@pytest.mark.slow
def test_what_a_run_printed_is_text_and_no_markup(tmp_path):
    page, text, _ = page_of(tmp_path)
    assert "<b>it broke" not in text
    assert any("<b>it broke</b> & fell" in found for found in page.texts)


@pytest.mark.slow
def test_stand_ins_and_failures_are_seen_at_the_top(tmp_path):
    page, text, _ = page_of(tmp_path)
    top = text[: text.index('id="table"')]
    assert "stand-in" in top.lower()
    assert "runs failed: 1" in page.texts
    assert "<details open>" in text


@pytest.mark.slow
def test_pictures_are_those_that_can_be_drawn(tmp_path):
    page, _, results = page_of(tmp_path, table={"rows": ["arm"], "columns": ["data"], "statistics": ["mean", "ipr"]})
    assert len(page.pictures) == 5  # two statistics, claims, curves, distribution
    for cell in results.cells:  # their numbers stay, their curves and clients are gone
        if cell.run_folder:
            shutil.rmtree(tmp_path / "out" / cell.run_folder)
    less = Page(write_html(results, tmp_path / "out").read_text())
    assert len(less.pictures) == 3


def test_before_anything_is_done_there_is_a_page_without_pictures(tmp_path):
    study, cells = tiny_cells(tmp_path)
    (tmp_path / "out").mkdir()
    results = StudyResults.of(study, cells, tmp_path / "out", describe_environment())
    page = Page(write_html(results, tmp_path / "out").read_text())
    assert page.pictures == []
    assert "No finished runs." in page.texts


@pytest.mark.slow
def test_the_same_results_make_the_same_page(tmp_path):
    results = results_of(tmp_path, environment=describe_environment(), claims=CLAIMS)
    first = write_html(results, tmp_path / "out").read_bytes()
    assert write_html(results, tmp_path / "out").read_bytes() == first


@pytest.mark.processes
@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs Debian's chromium; .ci/run installs it")
def test_a_browser_without_a_network_shows_it(tmp_path):
    """The pictures' colours are on the screen, and the page fits its width."""
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
