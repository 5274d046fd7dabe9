import io

import pytest
from rich.console import Console
from study_tiny import finish, tiny_cells

from lightning_fl.study.workers import StudyDisplay


@pytest.fixture
def cells(tmp_path):
    return tiny_cells(tmp_path)[1]


def plain(cells, workers=2):
    file = io.StringIO()
    return StudyDisplay(cells, workers, Console(file=file, width=40)), file


def test_plain_lines_say_what_starts_and_how_it_ended(cells):
    finish(cells[0], 0.5)
    with plain(cells)[0] as display:
        file = display._console.file
        for cell in cells[1:4]:
            cell.prepare()
            cell.record_start(False, "")
        display.started(cells[1], False)
        display.started(cells[2], True)
        finish(cells[1], 0.5)
        display.ended(cells[1], 61.2, None)
        cells[2].log.write_text("error: no\n")
        cells[2].record_end(3.0, 2)
        display.ended(cells[2], 3.0, 90.0)
        display.stopping("SIGTERM")
        display.ended(cells[3], 4.0, 30.0)
        display.tick({cells[4]: 3.0}, 30.0)
    assert file.getvalue().splitlines() == [
        "12 cells, 1 done, 2 workers",
        "a, data=left, seed 1: started",
        "a, data=left, seed 2: resumed",
        "a, data=left, seed 1: done in 0:01:01 | 2/12 done, remaining time unknown",
        "a, data=left, seed 2: failed after 0:00:03: no | 2/12 done, 1 failed, 0:01:30 left",
        "SIGTERM: running cells finish their round and save it (repeat to stop at once)",
        "a, data=right, seed 0: stopped | 2/12 done, 1 failed, 0:00:30 left",
    ]


def test_a_terminal_shows_the_cells_at_work_with_their_rounds(cells):
    file = io.StringIO()
    console = Console(file=file, width=100, force_terminal=True, force_interactive=True, color_system=None)
    runs = [cell.folder / "version_0" for cell in cells[:3]]
    for run in runs:
        run.mkdir(parents=True)
    for run in runs[:2]:
        (run / "metrics.csv").write_text("step,loss\n7,0.5\n")
    (runs[0] / "config.yaml").write_text("trainer: {max_rounds: 40}\n")
    with StudyDisplay(cells, 1, console) as display:
        display.started(cells[0], False)
        display.tick(dict.fromkeys(cells[:3], 12.0), 125.0)
        shown = file.getvalue()
        finish(cells[3], 0.5)
        display.ended(cells[3], 3.0, 90.0)
    assert "12 cells, 0 done, 1 worker\n" in shown
    assert "started" not in shown
    assert "0/12 cells done" in shown
    assert "0:02:05 left" in shown
    assert "  a, data=left, seed 0: round 7/40, 0:00:12" in shown
    assert "  a, data=left, seed 1: round 7, 0:00:12" in shown
    assert "  a, data=left, seed 2: 0:00:12" in shown
    assert "a, data=right, seed 0: done in 0:00:03 | 1/12 done, 0:01:30 left" in file.getvalue()
