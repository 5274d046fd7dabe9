import json
import math
from pathlib import Path

import pandas as pd
import pytest
from rich.console import Console
from study_tiny import finish, record, results_of, tiny_cells, write_study

from lightning_fl.core.environment import describe_environment, package_commit
from lightning_fl.runtime.table import Table
from lightning_fl.study.cells import make_cells
from lightning_fl.study.results import CellResult, StudyResults
from lightning_fl.study.study_tables import claims_table, print_results, results_table, write_markdown

PUBLISHED = {"source": "A paper", "values": {"b": {"left": {"mean": [60, 1]}}}}


def header(table: Table) -> list[str]:
    return [column.name for column in table.columns]


def rows(table: Table) -> list[list[str]]:
    return [list(map(str, row)) for row in table.rows]


def best(table: Table) -> list[list[bool]]:
    return [[value.best for value in row] for row in table.rows]


def current(study, cells, folder) -> StudyResults:
    return StudyResults.of(study, cells, folder / "out", {})


def test_a_cell_gives_what_its_run_recorded(tmp_path):
    cell = results_of(tmp_path).cells[7]
    assert (cell.arm, cell.place, cell.seed, cell.status) == ("b", {"data": "left"}, 1, "done")
    metric = {"mean": 0.621, "worst": 0.521, "best": 0.721, "std": 0.1}
    gains = {"gain": 0.2, "rsd": 0.05, "ipr": 0.75, "harmed": 0.25}
    assert {name: value for name, value in cell.values.items() if not math.isnan(value)} == metric | gains
    assert (cell.higher_is_better, cell.data_source, cell.rounds, cell.seconds) == (True, "measured", 9, 10.0)
    assert (tmp_path / "out" / cell.run_folder / "summary.json").is_file()
    assert cell.commit == "abc"


def test_agreement_with_groups_and_last_rounds(tmp_path):
    claims = ["ari(b) > 0.5", "last_worst(b) > worst(a)"]
    study, cells = tiny_cells(tmp_path, claims=claims, table={"statistics": ["mean", "last_mean"]})
    for cell in cells:
        last = {"mean": 0.3, "worst": 0.45 + 0.01 * cell.seed}
        last |= {"std": 0.1, "best": 0.5, "higher_is_better": True, "clients": {}}
        more = {"group_agreement": {"adjusted_rand_index": 0.8 + 0.01 * cell.seed}} if cell.arm == "b" else {}
        finish(cell, 0.5, last_rounds={"test": {"acc": last}}, **more)
    results = current(study, cells, tmp_path)
    found = {cell.arm: cell.values for cell in results.cells if cell.seed == 1}
    assert (found["b"]["ari"], found["a"]["last_mean"], found["a"]["mean"]) == (0.81, 0.3, 0.5)
    assert math.isnan(found["a"]["ari"])
    assert {answer.verdict for answer in results.answers} == {"holds"}  # 0.45, 0.46, 0.47 against 0.4
    assert rows(results_table(results))[0][1:3] == ["0.500 ± 0.000", "0.300 ± 0.000"]
    results.write(tmp_path / "out")
    assert StudyResults.read(tmp_path / "out").cells[0].values["last_worst"] == 0.45


def test_status_of_cells(tmp_path):
    study, cells = tiny_cells(tmp_path)
    cells[1].prepare()
    cells[1].record_start(False, "")
    (cells[2].folder / "version_0").mkdir(parents=True)
    found = current(study, cells, tmp_path).cells
    assert [cell.status for cell in found[:4]] == ["open", "cut off", "cut off", "open"]
    assert math.isnan(found[0].values["mean"])
    finish(cells[0], 0.5)
    without_metric = CellResult.of(cells[0], "auc", tmp_path / "out")
    assert without_metric.status == "failed"
    assert "has no test metric 'auc' (did you mean 'acc'?). It has acc (test)" in without_metric.failure


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
    table = results_table(results)
    assert header(table) == ["arm", "left mean", "left mean, published", "left ipr", "right mean", "right ipr"]
    # b: 60, 62.1, 64.2; on the right without the last: 2.1 / sqrt(2)
    shares = ["75.00 [46.77, 91.11]", "75.00 [40.93, 92.85] (n=2) †"]
    assert rows(table) == [
        ["a", "52.00 ± 2.00", "", "–", "52.00 ± 2.00", "–"],
        ["b", "62.10 ± 2.10", "60.00 ± 1.00", shares[0], "61.05 ± 1.48 (n=2) †", shares[1]],
    ]
    # of several arms alone; a has no gains
    assert best(table) == [[False] * 6, [False, True, False, False, True, False]]
    assert table.notes == [
        "acc on test data in percent, higher is better; mean ± standard deviation over 3 seeds (0, 1, 2), scale full.",
        "ipr: with Wilson's 95 % interval over the clients of all seeds, taken as independent.",
        "† stand-in data: embedded examples, not the measured data.",
        "Published: A paper.",
    ]


def test_the_best_value_is_that_of_the_arms_at_a_place_in_any_layout(tmp_path):
    for name in "12":
        (tmp_path / name).mkdir()
    layout = {"rows": ["data", "arm"], "statistics": ["mean", "std", "worst"], "digits": 2}
    by_place = results_table(results_of(tmp_path / "1", table=layout))
    assert header(by_place) == ["data", "arm", "mean", "std", "worst"]
    assert [row[:2] for row in rows(by_place)] == [["left", "a"], ["left", "b"], ["right", "a"], ["right", "b"]]
    assert rows(by_place)[0][4] == "0.42 ± 0.02"
    # std is 0.1 everywhere: no value is better than the others
    assert [row[2:4] for row in best(by_place)] == [[False, False], [True, False], [False, False], [True, False]]
    layout = {"rows": ["data"], "columns": ["arm"], "statistics": ["mean", "ari"]}  # ari has no values
    across = results_table(results_of(tmp_path / "2", table=layout))
    assert header(across) == ["data", "a mean", "b mean"]
    assert best(across) == [[False, False, True]] * 2


@pytest.mark.parametrize(("metric", "is_known"), [("acc", True), ("loss", True), ("foo", False)])
def test_no_value_is_the_best_of_a_metric_of_unknown_direction(tmp_path, metric, is_known):
    study, cells = tiny_cells(tmp_path, metric=metric, grid={})
    for cell in cells:
        one = record({"x": 0.5 + (cell.arm == "b"), "y": 0.5}, metric == "acc")
        finish(cell, 0.5, metrics={"test": {metric: one}})
    results = StudyResults.of(study, cells, tmp_path / "out", {"lightning-fl": "1"})
    assert (results.higher_is_better is not None) == is_known
    assert any(map(any, best(results_table(results)))) == is_known


def test_unfinished_cells_and_commits(tmp_path):
    study, cells = tiny_cells(tmp_path, exclude=[{"arm": "a"}], seeds=[0])
    for cell in cells:
        cell.prepare()
        cell.record_start(False, "x" if cell.place["data"] == "left" else "y")
    cells[0].record_end(1.0, 2)
    finish(cells[1], 0.5, source="simulated")
    table = results_table(current(study, cells, tmp_path))
    assert rows(table) == [["b", "failed", "failed", "0.500 §", "0.400 §"]]
    assert table.notes[0].endswith("higher is better; of 1 seed (0), scale full.")
    assert table.notes[1] == "§ simulated data."
    study, cells = tiny_cells(tmp_path)
    for cell, commit in zip(cells, ("b", "a"), strict=False):
        finish(cell, 0.5)
        cell.record_start(False, commit)
    notes = results_table(current(study, cells, tmp_path)).notes
    assert notes[-2:] == ["The runs used 3 commits of the package: a, b, y.", "8 of 12 cells are not done."]


def test_rows_columns_and_answers_without_results_are_left_out(tmp_path):
    study, cells = tiny_cells(tmp_path, claims=["mean(b) < 1"])
    untouched = current(study, cells, tmp_path)
    assert header(results_table(untouched)) == ["arm", "left mean", "left worst", "right mean", "right worst"]
    assert len(rows(results_table(untouched))) == len(rows(claims_table(untouched))) == 2
    for cell in cells[6:9]:  # of b on the left
        finish(cell, 0.5)
    results = current(study, cells, tmp_path)
    assert rows(results_table(results)) == [["b", "0.500 ± 0.000", "0.400 ± 0.000"]]
    claims = claims_table(results)
    assert ([row[1] for row in rows(claims)], claims.notes[-1]) == (["data=left"], "1 answer without results.")
    write_markdown(results, tmp_path)
    assert "1 answer without results." in (tmp_path / "claims.md").read_text()
    assert [answer.interval.n for answer in results.answers] == [3, 0]  # all are in claims.csv


def test_all_is_written_and_read_back(tmp_path):
    chosen = {"setting": "rate", "value": 0.01, "candidates": [0.01, 0.1], "by": "val/acc", "seeds": [100, 101]}
    results, out = results_of(tmp_path, published=PUBLISHED, chosen=[chosen]), tmp_path / "out"
    results.write(out)
    write_markdown(results, out)
    again = StudyResults.read(out)
    assert again.study.as_dict() == results.study.as_dict()
    assert again.study.chosen == results.study.chosen
    assert str(again.cells) == str(results.cells)  # NaN is not equal to itself
    assert again.answers == results.answers
    assert again.environment == results.environment
    text = (out / "table.md").read_text()
    assert text.startswith("# A tiny study\n\n| arm | left mean | left mean, published | left worst |")
    for line in (
        "| a | 0.520 ± 0.020 |",
        "| b | **0.621 ± 0.021** |",
        "- b, data=right, seed 2: &lt;b>it broke&lt;/b> & fell (cells/",
        "| rate | 0.01 | 0.01, 0.1 | val/acc | 100, 101 |",
    ):
        assert line in text
    claims = (out / "claims.md").read_text()
    assert "| mean(b) > mean(a) | data=left | holds | holds | +0.1010 [+0.0985, +0.1035] | 3 |  |" in claims
    columns = "claim,at,verdict,verdict_holm,mean,low,high,n,p_value,deviation,p_value_holm,seeds_needed,reason"
    assert (out / "claims.csv").read_text().startswith(f"{columns}\nmean")
    assert not list(out.glob(".*.tmp"))


def test_a_table_that_pandas_wrote_is_read(tmp_path):
    """With a cell that is not done, its numbers of rounds are 9.0."""
    study, cells = tiny_cells(tmp_path)
    run = finish(cells[0], 0.5)
    current(study, cells, tmp_path).write(tmp_path / "out")
    table = tmp_path / "out" / "results.csv"
    pd.read_csv(table).to_csv(table, index=False)
    recorded = json.loads((run / "summary.json").read_text())["rounds"]
    assert [cell.rounds for cell in StudyResults.read(tmp_path / "out").cells[:2]] == [recorded, None]


def test_other_seeds_are_read_back_too(tmp_path):
    study = write_study(tmp_path, claims=["mean(b) > mean(a)"]).with_seeds([7, 8])
    cells = make_cells(study, tmp_path / "out")
    for cell in cells:
        finish(cell, 0.5 + 0.01 * cell.seed * (1 + (cell.arm == "b")))
    results = current(study, cells, tmp_path)
    results.write(tmp_path / "out")
    again = StudyResults.read(tmp_path / "out")
    assert again.study.run_seeds == (7, 8)
    assert again.answers == results.answers
    assert [answer.interval.n for answer in again.answers] == [2, 2]


def test_tables_of_shares_make_one_in_any_order(tmp_path):
    texts = []
    for share in (0, 1):
        folder = tmp_path / str(share)
        folder.mkdir()
        study, cells = tiny_cells(folder)
        for cell in cells[share::2]:
            finish(cell, 0.5)
        current(study, cells, folder).write(folder / "out")
        texts.append((folder / "out" / "results.csv").read_text())
    for first, second in (texts, texts[::-1]):
        (tmp_path / "all.csv").write_text(first + second.partition("\n")[2])
        assert {cell.status for cell in StudyResults.of_table(study, tmp_path / "all.csv").cells} == {"done"}


def test_no_claims(tmp_path):
    study, cells = tiny_cells(tmp_path)
    results = current(study, cells, tmp_path)
    (tmp_path / "out").mkdir()
    results.write(tmp_path / "out")
    write_markdown(results, tmp_path / "out")
    assert (tmp_path / "out" / "claims.csv").read_text() == ""
    assert "The study has no claims." in (tmp_path / "out" / "claims.md").read_text()


@pytest.mark.parametrize("width", [80, 160])
def test_the_terminal_shows_it_all_with_numbered_remarks(tmp_path, capsys, width):
    results = results_of(tmp_path)
    print_results(results, Path("out"), Console(width=width))
    out = capsys.readouterr().out
    assert out.startswith("A tiny study\n")
    assert "0.611 ± 0.015 (n=2) †" in out
    assert "† stand-in data" in out
    assert "does not hold" not in out
    assert "failed: b, data=right, seed 2: <b>it broke</b> & fell\n  log: out/cells/b,data=right,seed=2-" in out
    assert out.endswith("study: out\n")
    claims = out.partition("claims")[2].partition("failed:")[0]
    assert max(map(len, claims.splitlines())) <= width
    reasons = list(dict.fromkeys(answer.reason for answer in results.answers if answer.reason))
    assert reasons
    for number, reason in enumerate(reasons, 1):
        assert f"({number}) {reason}." in claims.replace("\n", " ").replace("  ", " ")
        assert claims.count(f"({number})") == sum(answer.reason == reason for answer in results.answers) + 1


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
