"""The pages of a run and of a study, and the tooltips of their figures."""

import json
import math
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.image import imread
from processes import run
from study_tiny import record, results_of, tiny_cells, write_study

from lightning_fl.cli import main
from lightning_fl.core.environment import describe_environment
from lightning_fl.core.errors import ConfigurationError
from lightning_fl.study import html_pages
from lightning_fl.study.cells import make_cells
from lightning_fl.study.figures import draw_claims
from lightning_fl.study.finished_run import FinishedRun
from lightning_fl.study.html_pages import write_run_page, write_study_page
from lightning_fl.study.intervals import paired_interval
from lightning_fl.study.page import add_tooltips, svg_element
from lightning_fl.study.results import StudyResults
from lightning_fl.study.study_tables import results_table

VOID = {"meta", "img", "link", "br", "hr", "input"}


class Page(HTMLParser):
    """Texts, tooltips and labels of SVG pictures, ids, links and images of a page with balanced tags."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open, self.texts, self.links, self.images, self.tags = [], [], [], [], []
        self.pictures, self.tooltips, self.ids = [], [], []
        self.feed(text)
        self.close()
        assert self.open == [], f"not closed: {self.open}"

    def handle_starttag(self, tag, attributes):
        self.handle_startendtag(tag, attributes)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append(tag)
        if tag == "svg":
            self.pictures.append(dict(attributes)["aria-label"])
        for name, value in attributes:
            if name in ("src", "href", "srcset", "data", "action", "poster"):
                (self.images if tag == "img" else self.links).append(value)
            elif name == "id":
                self.ids.append(value)
            elif name == "xlink:href":
                assert value.startswith("#")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, text):
        is_tooltip = self.open[-1:] == ["title"] and "svg" in self.open
        (self.tooltips if is_tooltip else self.texts).append(text.strip())


# -- a run -----------------------------------------------------------------------------------------------------------

METRICS = {
    "acc": record({"north": 0.5, "<south>": 1.0}, True),
    "loss": record({"north": 0.2, "<south>": math.nan}, False),
    "local/acc": record({"north": 0.25, "<south>": 1.0}, True) | {"mean": 0.5},
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    run = tmp_path / "runs" / "version_3"
    (run / "figures").mkdir(parents=True)
    (run / "figures" / "parity_test.png").write_bytes(b"\x89PNG tiny")
    (run / "metrics.csv").write_text("step,val/acc,val/acc/worst\n1,0.5,0.25\n2,0.75,0.5\n")
    (run / "config.yaml").write_text("seed_everything: 0\ntrainer:\n  max_rounds: 2\n")
    content = {
        "title": "Digits & numbers",
        "method": "DRFLM",
        "data_source": "measured",
        "data": {"name": "digits"},
        "strategy": "FedAvg",
        "callbacks": ["LocalMixup"],
        "seed": 7,
        "client_names": ["north", "<south>"],
        "rounds": 2,
        "best_round": 1,
        "interrupted": False,
        "metrics": {"test": METRICS, "val": {name: METRICS[name] for name in ("acc", "local/acc")}},
    }
    (run / "summary.json").write_text(json.dumps(content))
    return run


def test_everything_is_on_one_page_that_loads_nothing(folder: Path) -> None:
    path = write_run_page(folder)
    assert path == folder / "report.html"
    text = path.read_text()
    page = Page(text)
    shown = " ".join(page.texts)
    for words in ("DRFLM: Digits & numbers", "2 clients, seed 7", "finished after 2 rounds", "best round: 1"):
        assert words in shown, words
    assert "<south>" in page.texts
    assert "max_rounds: 2" in shown
    assert f"lightning-fl fit --config {folder}/config.yaml" in shown
    assert [image[:11] for image in page.images] == ["data:image/"]
    assert page.pictures == ["curves on validation data"]
    assert {"config.yaml", "summary.json", "metrics.csv", "figures/parity_test.png"} <= set(page.links)
    assert all((folder / link).exists() for link in page.links)
    # the better of shared and local models is bold, with exact values
    test, _, validation = text.partition('id="validation"')
    rows = dict(re.findall(r'<tr>\s*<td class="label">(.*?)</td>(.*?)</tr>', test, re.DOTALL))
    assert 'class="best" title="0.5">0.5<' in rows["north"]
    assert 'class="best"' not in rows["&lt;south&gt;"]  # both alike
    assert '<td title="0.2">0.2' in rows["north"]  # no local loss
    assert 'title="not measured">-' in rows["&lt;south&gt;"]
    assert 'class="best" title="0.75">0.75' in rows["average"]
    # each table names the models that were evaluated
    validation = validation.partition("</div>")[0]
    for part in (test, validation):
        assert "Evaluated: the shared model." in part
        assert "local/acc" in part


def test_an_interrupted_run_has_the_command_that_resumes_it(folder: Path) -> None:
    text = (folder / "summary.json").read_text().replace('"interrupted": false', '"interrupted": true')
    (folder / "summary.json").write_text(text)
    text = write_run_page(folder).read_text()
    assert "interrupted after 2 rounds" in text
    assert f"--ckpt_path {folder}/checkpoints/last.ckpt" in text


def test_the_command(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(folder.parent)]) == 0
    assert capsys.readouterr().out == f"report: {folder / 'report.html'}\n"
    assert main(["show", str(folder), "--out", str(folder / "mine.html")]) == 0
    assert (folder / "mine.html").is_file()
    elsewhere = folder.parent / "pages" / "mine.html"
    elsewhere.parent.mkdir()
    assert main(["show", str(folder), "--out", str(elsewhere)]) == 0
    links = Page(elsewhere.read_text(encoding="utf-8")).links
    assert links
    assert all((elsewhere.parent / link).exists() for link in links)
    for name in ("no/mine.html", "config.yaml"):
        assert main(["show", str(folder), "--out", str(folder / name)]) == 2
        assert name in capsys.readouterr().err


@pytest.mark.parametrize("name", ["figures/parity_test.png", "figures", "config.yaml", "metrics.csv", "summary.json"])
def test_nothing_outside_of_the_run_is_shown(name: str, folder: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    (folder / name).rename(outside)
    (folder / name).symlink_to(outside)
    with pytest.raises(ConfigurationError, match=name):
        write_run_page(folder)


def test_the_best_round_is_marked_on_rounds_only(folder: Path) -> None:
    moved = ("sent", "received")
    columns = {"step": [1, 2], "val/acc": [0.5, 0.75], **{f"communication/megabytes_{way}": [3, 6] for way in moved}}
    pd.DataFrame(columns).to_csv(folder / "metrics.csv", index=False)
    figure = html_pages._draw_curves(FinishedRun.read(folder))
    rounds, megabytes = ([list(line.get_xdata()) for line in axes.lines] for axes in figure.axes)
    assert [1, 1] in rounds
    assert [6, 12] in megabytes
    assert [1, 1] not in megabytes


def drawn(*points: tuple[float, float, str], most: int | None = None, limit: float = 10.0) -> Figure:
    figure = Figure(figsize=(4, 3))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.axis("off")
    axes.set(xlim=(0, limit), ylim=(0, limit))
    add_tooltips(axes, *zip(*[point[:2] for point in points], strict=True), [point[2] for point in points], most=most)
    return figure


def tooltips(figure: Figure) -> dict[str, tuple[float, float]]:
    """Text -> position in points from the left and from the top."""
    found = re.findall(
        r'<title>([^<]*)</title>.*?<use [^>]*x="([\d.]+)" y="([\d.]+)"', svg_element(figure, "x"), re.DOTALL
    )
    return {text: (float(x), float(y)) for text, x, y in found}


def test_a_tooltip_lies_over_its_point() -> None:
    found = tooltips(drawn((0.0, 0.0, "corner"), (5.0, 7.5, 'a & b < "c"')))
    assert found["corner"] == pytest.approx((0.0, 216.0))
    assert found['a &amp; b &lt; "c"'] == pytest.approx((144.0, 54.0))
    canvas = FigureCanvasAgg(drawn((5.0, 5.0, "invisible")))
    canvas.draw()
    assert (np.asarray(canvas.buffer_rgba()) == 255).all()


def test_points_that_are_not_drawn_do_not_move_others() -> None:
    figure = drawn((2.0, float("nan"), "not a number"), (900.0, 5.0, "outside"), (5.0, 5.0, "inside"))
    marks = re.findall(r"<title>([^<]*)</title>(.*?)</g>", svg_element(figure, "x"), re.DOTALL)
    at = {text: re.findall(r'<use [^>]*x="([\d.]+)" y="([\d.]+)"', inner) for text, inner in marks}
    assert {text for text, places in at.items() if places} == {"inside"}
    assert tuple(map(float, at["inside"][0])) == pytest.approx((144.0, 108.0))


def test_of_many_points_some_have_tooltips() -> None:
    found = tooltips(drawn(*[(float(index), 1.0, str(index)) for index in range(101)], most=11, limit=100.0))
    assert list(found) == [str(index) for index in range(0, 101, 10)]


def test_ids_in_two_pictures_differ() -> None:
    figure = Figure()
    figure.subplots().plot([0, 1], "o", clip_on=True)
    first, second = (set(re.findall(r' id="([^"]+)"', svg_element(figure, title))) for title in ("one", "two"))
    assert first
    assert not first & second


# -- a study ---------------------------------------------------------------------------------------------------------

CLAIMS = ["mean(b) > mean(a)", "mean(a) > mean(b) where data=left", "mean(b) > mean(a) + 9"]


def page_of(folder: Path, **changes) -> tuple[Page, str, StudyResults]:
    folder.mkdir(exist_ok=True)
    results = results_of(folder, environment=describe_environment(), **{"claims": CLAIMS, **changes})
    text = write_study_page(results, folder / "out").read_text(encoding="utf-8")
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
    assert any(f"lightning-fl study {results.study.path} --scale small" in found for found in shown)
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
    assert write_study_page(results, tmp_path / "out").read_text() == text


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
    assert len(Page(write_study_page(results, tmp_path / "out").read_text()).pictures) == 3


def test_every_answer_of_a_claim_is_drawn(tmp_path):
    """Also where the claim names values of the axis, or where one value begins with another."""
    grid = {"data": {"x": {}, "y": {}, "x2": {}}}
    figure = draw_claims(results_of(tmp_path, grid=grid, claims=["mean(a, data=x2) < mean(b)"]))
    assert len(figure.axes[0].get_yticks()) == 3


def test_the_command_names_the_seeds(tmp_path):
    study = write_study(tmp_path).with_seeds((7, 8))
    results = StudyResults.of(study, make_cells(study, tmp_path), tmp_path, describe_environment())
    texts = Page(write_study_page(results, tmp_path).read_text()).texts
    (commands,) = (text for text in texts if "lightning-fl study" in text)
    assert commands.splitlines()[-1] == f"lightning-fl study {study.path} --seeds 7 8 --out {tmp_path}"


def test_before_a_cell_is_done_there_is_a_page_without_figures(tmp_path):
    study, cells = tiny_cells(tmp_path)
    (tmp_path / "out").mkdir()
    results = StudyResults.of(study, cells, tmp_path / "out", describe_environment())
    page = Page(write_study_page(results, tmp_path / "out").read_text())
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
