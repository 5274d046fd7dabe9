from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def tables(monkeypatch):
    if not FOLDER.exists():
        pytest.skip("the benchmarks are not in this distribution")
    monkeypatch.syspath_prepend(FOLDER)
    return pytest.importorskip("peer_tables")


def record(arm, repeat, seconds, checksum=100.0, task="gnn", **changes):
    return {
        "run": "r", "task": task, "arm": arm, "federation": task, "rounds": 4, "repeat": repeat, "machine": "here",
        "status": "ok", "started": 10.0, "imported": 12.0, "ends": [15.0, 15.0 + seconds, 15.0 + 2 * seconds, 99.0],
        "seconds": 90.0, "rss_mib": 800.0, "pss_mib": 700.0, "processes": 1, "checksum": checksum,
        "versions": {"torch": "2"}, **changes,
    }  # fmt: skip


def test_a_round_is_the_median_gap_and_start_up_begins_with_the_process(tables):
    values = tables.quantities(record("bare-kept", 0, 2.0))
    assert (values["round"], values["start"], values["since_imports"]) == (2.0, 5.0, 3.0)


def test_ratios_pair_arms_of_the_same_repeat(tables):
    # the second repeat is ten times slower for both, and the third lacks the bare loop
    runs = [record("bare-kept", 0, 1.0), record("bare-kept", 1, 10.0), record("bare-kept", 2, 1.0, status="failed")]
    runs += [record("lightning-fl", 0, 1.1), record("lightning-fl", 1, 12.0), record("lightning-fl", 2, 1.0)]
    assert tables.paired_ratios(runs, "lightning-fl", "bare-kept", "round") == pytest.approx([1.1, 1.2])


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
    assert "| lightning-fl-shuffled / bare-shuffled | s per round | 1.30 | 1.30 | at most 0.7: missed |" in text
    assert "| flower / lightning-fl | s per round | 5.00 | 5.00 | at least 4: met |" in text
    assert text.count("| same |") == 2
    assert "| off by 1e-02 |" in text
    assert "lightning-fl-shuffled, repeat 2: failed with exit code 1" in text
    assert "no disk" in text
    assert "torch 2" in text
