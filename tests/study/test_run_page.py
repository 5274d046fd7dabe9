"""The page of one run."""

import json
import math
import re
from pathlib import Path

import pytest
from study_tiny import record
from test_html_report import Page

from lightning_fl.cli import main
from lightning_fl.core.errors import CheckpointError, ConfigurationError
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
    metrics = {"test": METRICS, "val": {name: METRICS[name] for name in ("acc", "local/acc")}}
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
        "metrics": metrics,
    }
    (run / "summary.json").write_text(json.dumps(content))
    return run


def test_everything_is_on_one_page_that_loads_nothing(folder: Path) -> None:
    path = write_run_page(folder)
    assert path == folder / "report.html"
    page = Page(path.read_text())
    said = " ".join(page.texts)
    for words in ("DRFLM: Digits & numbers", "2 clients, seed 7", "finished after 2 rounds", "best round: 1"):
        assert words in said, words
    assert "<south>" in page.texts  # as it is written, no element
    assert "max_rounds: 2" in said
    assert f"lightning-fl fit --config {folder}/config.yaml" in said
    assert all(image.startswith("data:image/") for image in page.images)
    assert len(page.images) == 1
    assert page.pictures == ["curves on validation data"]
    assert {"config.yaml", "summary.json", "metrics.csv", "figures/parity_test.png"} <= set(page.loads)
    assert all((folder / link).exists() for link in page.loads)


def test_the_better_of_shared_and_local_models_is_marked_and_exact_values_are_told(folder: Path) -> None:
    text = write_run_page(folder).read_text()
    rows = dict(re.findall(r'<tr><td class="label">(.*?)</td>(.*?)</tr>', text.partition('id="val"')[0]))
    assert 'class="best" title="0.5">0.5<' in rows["north"]
    assert 'class="best"' not in rows["&lt;south&gt;"]  # both alike
    assert '<td title="0.2">0.2' in rows["north"]  # with nothing beside it
    assert 'title="not measured">-' in rows["&lt;south&gt;"]
    assert 'class="best" title="0.75">0.75' in rows["average"]


def test_each_table_says_of_which_models_it_is(folder: Path) -> None:
    test, _, validation = write_run_page(folder).read_text().partition('id="val"')
    validation = validation.partition("</div>")[0]
    assert "Evaluated: the shared model." in test
    assert "round 2, the last" in validation
    assert "local/acc" in test
    assert "local/acc" not in validation  # of other rounds


def test_an_interrupted_run_says_so_and_how_it_goes_on(folder: Path) -> None:
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
    assert main(["show", str(folder), "--out", str(folder / "no" / "mine.html")]) == 2
    assert "there is no folder" in capsys.readouterr().err
    assert main(["show", str(folder), "--out", str(folder / "config.yaml")]) == 2
    assert "is an input" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["figures/parity_test.png", "figures", "config.yaml", "metrics.csv", "summary.json"])
def test_nothing_outside_of_the_run_is_shown(name: str, folder: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    (folder / name).rename(outside)
    (folder / name).symlink_to(outside)
    with pytest.raises(ConfigurationError, match=name):
        write_run_page(folder)


def test_what_is_no_run_is_refused_by_name(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"nowhere is not a folder"):
        write_run_page(tmp_path / "nowhere")
    (folder / "summary.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"summary\.json is damaged"):
        write_run_page(folder)
