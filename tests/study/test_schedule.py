import pytest
from study_tiny import finish, tiny_cells

from lightning_fl.study.workers import known_seconds, next_cell, seconds_left


@pytest.fixture
def cells(tmp_path):
    return tiny_cells(tmp_path)[1]


def test_a_variant_takes_the_median_of_what_its_cells_took(cells):
    for cell, seconds in zip(cells[:3], (10.0, 30.0, 12.0), strict=True):
        finish(cell, 0.5, seconds=seconds)
        cell.record_start(False, "")
        cell.record_end(seconds + 2, 0)
    assert known_seconds(cells) == {cells[0].variant: 14.0}


def test_the_training_counts_where_attempts_were_cut_off(cells):
    finish(cells[0], 0.5, seconds=40.0)
    cells[0].record_start(False, "")
    cells[0].record_start(True, "")
    cells[0].record_end(15.0, 0)
    assert known_seconds(cells) == {cells[0].variant: 40.0}


def test_unknown_variants_come_first_one_each_then_the_longest(cells):
    one, two = cells[0].variant, cells[3].variant
    assert next_cell(cells, [], {}) is cells[0]
    assert next_cell(cells[1:], [cells[0]], {}) is cells[3]
    known = {cell.variant: 1.0 for cell in cells} | {two: 3.0}
    assert next_cell(cells, [], known) is cells[3]
    del known[one]
    assert next_cell(cells, [], known) is cells[0]


def test_what_was_cut_off_is_ended_first(cells):
    folder = cells[5].folder / "version_0" / "checkpoints"
    folder.mkdir(parents=True)
    (folder / "last.ckpt").write_text("")
    assert next_cell(cells, [], {cells[5].variant: 1.0}) is cells[5]


def test_time_left_by_hand(cells):
    known = {cells[0].variant: 10.0, cells[3].variant: 20.0}
    assert seconds_left(cells, {}, {}, 2) is None
    # 3 of 10, 3 of 20, 6 of their mean
    assert seconds_left(cells, {}, known, 2) == (30 + 60 + 6 * 15) / 2
    # 4 of 10 seconds are left of one, the other is over its time
    assert seconds_left([], {cells[0]: 6.0, cells[1]: 12.0}, known, 2) == 4.0
    assert seconds_left([cells[2]], {cells[3]: 2.0}, known, 4) == 18.0
