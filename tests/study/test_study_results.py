import json
import math
from pathlib import Path

import pytest
from rich.console import Console
from study_tiny import finish, results_of, tiny_cells

from lightning_fl.study.environment import describe_environment, package_commit
from lightning_fl.study.results import CellResult, StudyResults
from lightning_fl.study.study_tables import print_results, results_table, write_markdown
from lightning_fl.study.table import Table

PUBLISHED = {"source": "A paper", "values": {"b": {"left": {"mean": [60, 1]}}}}


def header(table: Table) -> list[str]:
    return [column.name for column in table.columns]


def rows(table: Table) -> list[list[str]]:
    return [list(map(str, row)) for row in table.rows]


def best(table: Table) -> list[list[bool]]:
    return [[value.best for value in row] for row in table.rows]


def test_a_cell_gives_what_its_run_recorded(tmp_path):
    cell = results_of(tmp_path).cells[7]
    assert (cell.arm, cell.place, cell.seed, cell.status) == ("b", {"data": "left"}, 1, "done")
    metric = {"mean": 0.621, "worst": 0.521, "best": 0.721, "std": 0.1}
    gains = {"gain": 0.2, "rsd": 0.05, "ipr": 0.75, "harmed": 0.25}
    assert {name: value for name, value in cell.values.items() if not math.isnan(value)} == metric | gains
    assert (cell.higher_is_better, cell.data_source, cell.rounds, cell.seconds) == (True, "measured", 9, 10.0)
    assert (tmp_path / "out" / cell.run_folder / "summary.json").is_file()
    assert cell.commit == "abc"


def test_the_agreement_with_known_groups_is_a_statistic(tmp_path):
    study, cells = tiny_cells(tmp_path, claims=["ari(b) > 0.5"], table={"statistics": ["mean", "ari"]})
    for cell in cells:
        finish(cell, 0.5)
        (file,) = cell.folder.glob("version_*/summary.json")
        if cell.arm == "b":
            record = json.loads(file.read_text())
            record["group_agreement"] = {"adjusted_rand_index": 0.8 + 0.01 * cell.seed, "rounds": 3}
            file.write_text(json.dumps(record))
    results = StudyResults.of(study, cells, tmp_path / "out", {})
    found = {cell.arm: cell.values["ari"] for cell in results.cells if cell.seed == 1}
    assert found["b"] == 0.81
    assert math.isnan(found["a"])
    assert {answer.verdict for answer in results.answers} == {"holds"}


def test_the_last_rounds_stand_beside_the_best_one(tmp_path):
    study, cells = tiny_cells(
        tmp_path, claims=["last_worst(b) > worst(a)"], table={"statistics": ["mean", "last_mean"]}
    )
    for cell in cells:
        finish(cell, 0.5)
        (file,) = cell.folder.glob("version_*/summary.json")
        record = json.loads(file.read_text())
        metrics = record["metrics"]["test"]["acc"]
        record["last_rounds"] = {"test": {"acc": metrics | {"mean": 0.3, "worst": 0.45 + 0.01 * cell.seed}}}
        file.write_text(json.dumps(record))
    results = StudyResults.of(study, cells, tmp_path / "out", {})
    assert (results.cells[0].values["last_mean"], results.cells[0].values["mean"]) == (0.3, 0.5)
    assert results.answers[0].verdict == "holds"  # 0.45, 0.46, 0.47 against 0.4
    assert rows(results_table(results))[0][1:3] == ["0.500 ± 0.000", "0.300 ± 0.000"]
    results.write(tmp_path / "out")
    assert StudyResults.read(tmp_path / "out").cells[0].values["last_worst"] == 0.45


def test_how_far_a_cell_is(tmp_path):
    study, cells = tiny_cells(tmp_path)
    cells[1].prepare()
    cells[1].record_start(False, "")
    (cells[2].folder / "version_0").mkdir(parents=True)
    found = StudyResults.of(study, cells, tmp_path / "out", {}).cells
    assert [cell.status for cell in found[:4]] == ["open", "cut off", "cut off", "open"]
    assert math.isnan(found[0].values["mean"])


def test_a_run_without_the_metric_failed(tmp_path):
    _, cells = tiny_cells(tmp_path)
    finish(cells[0], 0.5)
    found = CellResult.of(cells[0], "auc", tmp_path / "out")
    assert found.status == "failed"
    assert "has no test metric 'auc' (did you mean 'acc'?). It has acc (test)" in found.failure


def test_claims_are_answered_in_the_unit_of_the_table(tmp_path):
    left, right, share = results_of(tmp_path, table={"percent": True}).answers
    assert (left.axes, left.verdict, left.interval.n) == ({"data": "left"}, "holds", 3)
    assert left.interval.mean == pytest.approx(10.1)
    assert (right.interval.n, right.reason) == (2, "no mean(b, data=right) for seed 2")
    assert (share.verdict, share.interval.mean) == ("holds", 0.0)


def test_the_table(tmp_path):
    results = results_of(
        tmp_path, published=PUBLISHED, table={"statistics": ["mean", "ipr"], "percent": True, "digits": 2}
    )
    pivot = results_table(results)
    assert header(pivot) == ["arm", "left mean", "left mean, published", "left ipr", "right mean", "right ipr"]
    assert rows(pivot) == [
        ["a", "52.00 ± 2.00", "", "–", "52.00 ± 2.00", "–"],
        # 60, 62.1, 64.2; on the right without the last: 2.1 / sqrt(2)
        [
            "b",
            "62.10 ± 2.10",
            "60.00 ± 1.00",
            "75.00 [46.77, 91.11]",
            "61.05 ± 1.48 (n=2) †",
            "75.00 [40.93, 92.85] (n=2) †",
        ],
    ]
    # of several arms alone; a has no gains
    assert best(pivot) == [[False] * 6, [False, True, False, False, True, False]]
    assert pivot.notes == [
        "acc on test data in percent, higher is better; mean ± standard deviation over 3 seeds (0, 1, 2), scale full.",
        "ipr: with Wilson's 95 % interval over the clients of all seeds, taken as independent.",
        "† stand-in data: embedded examples, not the measured data.",
        "Published: A paper.",
    ]


def test_other_layouts(tmp_path):
    both = results_table(results_of(tmp_path, table={"rows": ["data", "arm"], "statistics": ["worst"], "digits": 2}))
    assert header(both) == ["data", "arm", "worst"]
    assert [row[:2] for row in rows(both)] == [["left", "a"], ["left", "b"], ["right", "a"], ["right", "b"]]
    assert rows(both)[0][2] == "0.42 ± 0.02"


def test_rows_that_are_not_run_are_left_out_and_those_that_failed_say_so(tmp_path):
    study, cells = tiny_cells(tmp_path, exclude=[{"arm": "a"}], seeds=[0])
    for cell in cells:
        cell.prepare()
        cell.record_start(False, "x" if cell.place["data"] == "left" else "y")
    cells[0].record_end(1.0, 2)
    finish(cells[1], 0.5, source="simulated")
    pivot = results_table(StudyResults.of(study, cells, tmp_path / "out", {}))
    assert rows(pivot) == [["b", "failed", "failed", "0.500 §", "0.400 §"]]
    assert pivot.notes[0].endswith("higher is better; of 1 seed (0), scale full.")
    assert pivot.notes[1] == "§ simulated data."
    _, cells = tiny_cells(tmp_path)
    notes = results_table(StudyResults.of(study, cells, tmp_path / "out", {})).notes
    assert notes[-1] == "10 of 12 cells are not done."


def test_runs_of_several_commits_are_named(tmp_path):
    study, cells = tiny_cells(tmp_path)
    for cell, commit in zip(cells, ("b", "a"), strict=False):
        finish(cell, 0.5)
        cell.record_start(False, commit)
    notes = results_table(StudyResults.of(study, cells, tmp_path / "out", {})).notes
    assert "The runs used 2 commits of the package: a, b." in notes


def test_the_best_value_is_the_highest_or_the_lowest_of_the_arms_at_a_place(tmp_path):
    for name in "12":
        (tmp_path / name).mkdir()
    by_place = results_table(results_of(tmp_path / "1", table={"rows": ["data", "arm"], "statistics": ["mean", "std"]}))
    # std is 0.1 everywhere: no value is better than the others
    assert [row[2:] for row in best(by_place)] == [[False, False], [True, False], [False, False], [True, False]]
    across = results_table(
        results_of(tmp_path / "2", table={"rows": ["data"], "columns": ["arm"], "statistics": ["mean"]})
    )
    assert header(across) == ["data", "a mean", "b mean"]
    assert best(across) == [[False, False, True]] * 2


def test_best_values_are_bold_in_markdown(tmp_path):
    results, out = results_of(tmp_path), tmp_path / "out"
    write_markdown(results, out)
    text = (out / "table.md").read_text()
    assert "| a | 0.520 ± 0.020 |" in text
    assert "| b | **0.621 ± 0.021** |" in text


def test_how_settings_were_chosen_is_told(tmp_path):
    chosen = [
        {"setting": "learning_rate", "value": 0.01, "candidates": [0.01, 0.1], "by": "val/acc", "seeds": [100, 101]}
    ]
    results, out = results_of(tmp_path, chosen=chosen), tmp_path / "out"
    write_markdown(results, out)
    assert "| learning_rate | 0.01 | 0.01, 0.1 | val/acc | 100, 101 |" in (out / "table.md").read_text()
    results.write(out)
    assert StudyResults.read(out).study.chosen == results.study.chosen


def test_all_is_written_and_read_back(tmp_path):
    results, out = results_of(tmp_path, published=PUBLISHED), tmp_path / "out"
    results.write(out)
    write_markdown(results, out)
    again = StudyResults.read(out)
    assert again.study.as_dict() == results.study.as_dict()
    assert str(again.cells) == str(results.cells)  # NaN is not equal to itself
    assert again.answers == results.answers
    assert again.environment == results.environment
    text = (out / "table.md").read_text()
    assert text.startswith("# A tiny study\n\n| arm | left mean | left mean, published | left worst |")
    assert "- b, data=right, seed 2: &lt;b>it broke&lt;/b> & fell (cells/" in text
    claims = (out / "claims.md").read_text()
    assert "| mean(b) > mean(a) | data=left | holds | holds | +0.1010 [+0.0985, +0.1035] | 3 |  |" in claims
    assert (
        (out / "claims.csv")
        .read_text()
        .startswith(
            "claim,at,verdict,verdict_holm,mean,low,high,n,p_value,deviation,p_value_holm,seeds_needed,reason\nmean"
        )
    )
    assert not list(out.glob(".*.tmp"))


def test_no_claims(tmp_path):
    study, cells = tiny_cells(tmp_path)
    results = StudyResults.of(study, cells, tmp_path / "out", {})
    (tmp_path / "out").mkdir()
    results.write(tmp_path / "out")
    write_markdown(results, tmp_path / "out")
    assert (tmp_path / "out" / "claims.csv").read_text() == ""
    assert "The study has no claims." in (tmp_path / "out" / "claims.md").read_text()


def test_the_terminal_shows_it_all(tmp_path, capsys):
    results = results_of(tmp_path)
    print_results(results, Path("out"), Console(width=160))
    out = capsys.readouterr().out
    assert "A tiny study" in out
    assert "0.611 ± 0.015 (n=2) †" in out
    assert "† stand-in data" in out
    assert "does not hold" not in out
    assert "failed: b, data=right, seed 2: <b>it broke</b> & fell\n  log: out/cells/b,data=right,seed=2-" in out
    assert out.endswith("study: out\n")


def test_remarks_stand_below_the_claims_so_that_80_columns_hold_them(tmp_path, capsys):
    results = results_of(tmp_path)
    reasons = list(dict.fromkeys(answer.reason for answer in results.answers if answer.reason))
    assert reasons
    print_results(results, Path("out"), Console(width=80))
    claims = capsys.readouterr().out.partition("claims")[2]
    assert max(map(len, claims.splitlines())) <= 80
    for number, reason in enumerate(reasons, 1):
        assert f"({number}) {reason}." in claims.replace("\n", " ").replace("  ", " ")
        of_reason = sum(answer.reason == reason for answer in results.answers)
        assert claims.count(f"({number})") == of_reason + 1


@pytest.mark.parametrize("width", [30, 44, 60, 80, 200])
def test_a_wide_table_is_cut_between_columns(tmp_path, capsys, width):
    results = results_of(tmp_path, published=PUBLISHED, claims=[])
    print_results(results, Path("out"), Console(width=width))
    lines = capsys.readouterr().out.partition("acc on test data")[0].splitlines()
    assert max(map(len, lines)) <= width
    out = "\n".join(lines)
    num_tables = out.count("┏")
    assert (num_tables == 1) == (width == 200)
    assert out.count("arm") == num_tables
    if width >= 44:
        assert "…" not in out
        assert all(value in out for row in rows(results_table(results)) for value in row)
        assert all("60.000 ± 1.000" not in line or "0.621" in line for line in lines)  # published beside measured


def test_the_environment_is_of_plain_values():
    found = describe_environment()
    assert found["cores"] >= 1
    assert found["packages"]["torch"]
    assert found["cpu"]
    assert found["commit"] == package_commit()
