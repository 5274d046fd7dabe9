"""``metrics.csv``: what Lightning's logger writes, read back to the bit."""

import math
from pathlib import Path

import pytest
from full_disk import files_of_at_most
from lightning.pytorch.loggers import CSVLogger

from lightning_fl.runtime.curve_table import WholeCSVLogger, read_rows


def _rows(number: int) -> list[tuple[dict[str, float], int]]:
    rows = [({"b": 1 / (3 + step), "a,x": float("nan"), 'q"é': float(step)}, step) for step in range(number)]
    rows.insert(number // 2, ({"late": 1e-300, "infinite": math.inf}, 7))
    return rows


def test_it_writes_what_lightning_s_logger_does(tmp_path: Path) -> None:
    ours, theirs = WholeCSVLogger(tmp_path, "ours"), CSVLogger(tmp_path, name="", version="theirs")
    for row, step in _rows(40):
        for logger in (ours, theirs):
            logger.log_metrics(row, step)
    for logger in (ours, theirs):
        logger.finalize("success")
    files = [(tmp_path / name / "metrics.csv").read_bytes() for name in ("ours", "theirs")]
    assert files[0] == files[1]


def test_rows_come_back_to_the_bit(tmp_path: Path) -> None:
    logger = WholeCSVLogger(tmp_path, "run")
    for row, step in _rows(20):
        logger.log_metrics(row, step)
    logger.save()
    expected = [{**row, "step": step} for row, step in _rows(20)]
    assert str(sorted(map(str, map(sorted, (row.items() for row in expected))))) == str(
        sorted(map(str, map(sorted, (row.items() for row in read_rows(tmp_path / "run" / "metrics.csv") if row))))
    )


def test_rows_that_do_not_fit_leave_the_file_as_it_was(tmp_path: Path) -> None:
    logger, path = WholeCSVLogger(tmp_path, "run"), tmp_path / "run" / "metrics.csv"
    logger.log_metrics({"Zürich": 1.0}, 1)
    logger.save()
    before = path.read_bytes()
    for name in ("Zürich", "new"):  # rows are added, and the file is replaced
        logger.log_metrics({name: 1 / 3}, 2)
        with files_of_at_most(len(before) + 5), pytest.raises(OSError, match="File too large"):
            logger.save()
        assert path.read_bytes() == before
    logger.save()
    rows = [{"Zürich": 1.0, "step": 1}, {"Zürich": 1 / 3, "step": 2}, {"new": 1 / 3, "step": 2}]
    assert read_rows(path) == rows


def test_damage_is_seen_row_by_row(tmp_path: Path) -> None:
    table = tmp_path / "metrics.csv"
    table.write_bytes(b"a,step\r\n1.5,1\r\n\xff,2\r\n2.5,3\r\n3.5\r\n,5\r\n4.5,x\r\n")
    assert read_rows(table) == [{"a": 1.5, "step": 1}, None, {"a": 2.5, "step": 3}, None, {"step": 5}, None]
    table.write_bytes(b"")
    assert read_rows(table) == []
