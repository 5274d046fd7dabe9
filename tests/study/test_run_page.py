"""The page of one run, and the tooltips of its figures."""

import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from page_reader import Page
from study_tiny import record

from lightning_fl.cli import main
from lightning_fl.core.errors import ConfigurationError
from lightning_fl.study.page import add_tooltips, svg_element
from lightning_fl.study.run_page import write_run_page

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
    assert "Evaluated: the shared model." in test
    assert "round 2, the last" in validation
    assert "local/acc" in test
    assert "local/acc" not in validation  # of another round


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
