from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def tables(monkeypatch):
    if not FOLDER.exists():
        pytest.skip("the benchmarks are not in this distribution")
    monkeypatch.syspath_prepend(FOLDER)
    return pytest.importorskip("peer_tables")


def record(arm, repeat, seconds, checksum=100.0, task="gnn", slowness=(1.0,) * 6, **changes):
    """Four rounds, of which the first warms up; the benchmark paused the arm for 5 s after each of them."""
    ends = [15.0]
    for each in seconds if isinstance(seconds, list) else [seconds] * 3:
        ends.append(ends[-1] + 5.0 + each)
    return {
        "run": "r", "task": task, "arm": arm, "federation": task, "rounds": 4, "repeat": repeat, "machine": "here",
        "status": "ok", "started": 10.0, "imported": 12.0, "ends": ends, "begins": [end + 5.0 for end in ends],
        "turns": [5.0] * 6, "processor": [4.0, 2.0, 2.0, 2.0, 0.5], "slowness": slowness,
        "rss_mib": 800.0, "pss_mib": 700.0, "processes": 1, "checksum": checksum, "versions": {"torch": "2"}, **changes,
    }  # fmt: skip


def test_a_round_lasts_from_its_turn_to_its_end_and_start_up_begins_with_the_process(tables):
    values = tables.quantities(record("bare-kept", 0, [2.0, 1.0, 9.0]))
    assert (values["round"], values["start"], values["since_imports"], values["wall"]) == (2.0, 5.0, 3.0, 30.0)


def test_ratios_pair_neighbouring_rounds_of_the_same_repeat(tables):
    # the second repeat is ten times slower for both, and the third lacks the bare loop
    runs = [record("bare-kept", 0, [1.0, 2.0, 1.0]), record("bare-kept", 1, 10.0)]
    runs += [
        record("lightning-fl", 0, [1.1, 2.4, 1.0]),
        record("lightning-fl", 1, 12.0),
        record("lightning-fl", 2, 1.0),
    ]
    runs += [record("bare-kept", 2, 1.0, status="failed")]
    pairs = tables.paired_ratios(runs, "lightning-fl", "bare-kept", tables.rounds)
    assert pairs == pytest.approx([1.1, 1.2, 1.0, 1.2, 1.2, 1.2])
    assert tables.best_decile(runs, "lightning-fl") == pytest.approx(1.0)


def test_rounds_with_slow_work_around_them_are_counted_and_left_out(tables):
    slow = (1.0, 1.0, 1.3, 1.0, 1.0)
    runs = [record("bare-kept", 0, [1.0, 1.0, 1.0]), record("lightning-fl", 0, [1.1, 9.0, 1.1], slowness=slow)]
    pairs = tables.paired_ratios(runs, "lightning-fl", "bare-kept", tables.quiet_rounds(runs))
    assert pairs == pytest.approx([1.1, 1.1])
    assert "1 of 6 rounds were slow." in tables.markdown(runs)


def test_markdown_names_missed_aims_other_weights_and_failures(tables):
    text = tables.markdown(
        [
            record("bare-kept", 0, 1.0),
            record("lightning-fl", 0, 1.3, checksum=100.0001),
            record("flower", 0, 6.5, checksum=101.0),
            record("bare-shuffled", 0, 1.0, checksum=7.0),
            record("lightning-fl-shuffled", 0, 1.3, checksum=7.0),
            record("lightning-fl-shuffled", 1, 1.0, status="failed with exit code 1", tail="no disk"),
        ]
    )
    assert (
        "| lightning-fl-shuffled / bare-shuffled | s per round | 1.30 (1.30 to 1.30) | 1.30 | 1.30 | 1.00 |"
        " at most 0.7: missed |"
    ) in text
    assert (
        "| flower / lightning-fl | s per round | 5.00 (5.00 to 5.00) | 5.00 | 5.00 | 1.00 | at least 4: met |" in text
    )
    assert text.count("| same |") == 2
    assert "| off by 1e-02 |" in text
    assert "lightning-fl-shuffled, repeat 2: failed with exit code 1" in text
    assert "no disk" in text
    assert "torch 2" in text
