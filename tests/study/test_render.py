"""Comparisons as tables, and the rendering of any table."""

import io
import math
from itertools import pairwise

import pandas as pd
import pytest
from rich.console import Console

from lightning_fl.core.escaping import csv_table
from lightning_fl.data.source import STAND_IN_LABEL
from lightning_fl.study.comparison_table import STATISTICS, comparison_table
from lightning_fl.study.render import comparison_tables, to_latex, to_markdown, to_terminal


@pytest.fixture
def frame():
    """Two rows: mean 0.5 and 0.75, worst 0.25 and 0.125."""
    return rows(a={"mean": 0.5, "worst": 0.25}, b={"mean": 0.75, "worst": 0.125})


def rows(*, metric="acc", higher=True, **groups):
    made = []
    for label, values in groups.items():
        of_row = {
            "metric": metric,
            "label": label,
            "split": "test",
            "higher_is_better": higher,
            "source": "measured",
            "num_seeds": 1,
            "seeds": "0",
            "num_clients": 3,
            "gain_over": "",
        }
        of_row |= dict.fromkeys((*STATISTICS, *(f"{name}_seed_std" for name in STATISTICS)), math.nan)
        made.append(of_row | {"mean": 1.0, "worst": 1.0} | values)
    return pd.DataFrame(made)


def printed(frame, width=80, color=False, warnings=()):
    console = Console(file=io.StringIO(), width=width, force_terminal=color, color_system="standard" if color else None)
    to_terminal(frame, console, warnings)
    return console.file.getvalue()


def column(frame, header):
    (table,) = comparison_tables(frame)
    return next(column for column in table.columns if column.header == header)


def texts(frame, header):
    return list(map(str, column(frame, header).values))


def best(frame, header):
    return [value.best for value in column(frame, header).values]


DIFFERENCE = {"baseline": "b", "difference_num_seeds": 3, "mean_difference_low": -0.125, "mean_difference_high": 0.625}
ONE_SEED = {"difference_num_seeds": 1, "mean_difference_low": math.nan, "mean_difference_high": math.nan}


@pytest.mark.parametrize(
    ("key", "header", "values", "expected"),
    [
        ("mean", "mean", [0.0123456, 0.5], ["0.012", "0.500"]),
        ("mean", "mean", [0.0123456, 0.05], ["0.0123", "0.0500"]),
        ("mean", "mean", [1.23456, 0.5], ["1.235", "0.500"]),
        ("mean", "mean", [-12.3456, 0.5], ["-12.35", "0.50"]),
        ("mean", "mean", [123456.0, 0.5], ["1.235e+05", "0.5"]),
        ("mean", "mean", [0.0, 0.0], ["0", "0"]),
        ("mean", "mean", [1.5e9, 0.5], ["1.5e+09", "0.5"]),
        ("mean", "mean", [math.nan, 0.5], ["-", "0.500"]),
        ("mean", "mean", [math.inf, 0.5], ["inf", "0.500"]),
        ("rounds", "rounds", [40.0, 50.0], ["40", "50"]),
        ("megabytes_sent", "MB sent", [1.5, math.nan], ["1.500", "-"]),
        ("seconds", "time [s]", [12.345, 1.0], ["12.3", "1.0"]),
    ],
)
def test_a_column_has_as_many_decimals_as_its_largest_value_needs(key, header, values, expected):
    assert texts(rows(a={key: values[0]}, b={key: values[1]}), header) == expected


@pytest.mark.parametrize(
    ("of_row", "header", "expected"),
    [
        ({"mean": 12.3456, "mean_seed_std": 0.456}, "mean", "12.35 ± 0.46"),
        ({"ipr": 2 / 3, "ipr_seed_std": 0.12345}, "IPR", "67% ± 12%"),
        ({"rounds": 40.0, "rounds_seed_std": 0.0}, "rounds", "40"),
        ({"mean_difference": 0.25} | DIFFERENCE, "mean minus baseline", "+0.250 [-0.125, +0.625]"),
        ({"mean_difference": 0.25} | DIFFERENCE | ONE_SEED, "mean minus baseline", "+0.250"),
        ({"mean_difference": 0.0} | DIFFERENCE, "mean minus baseline", "+0.000 [-0.125, +0.625]"),
    ],
)
def test_spreads(of_row, header, expected):
    assert texts(rows(a=of_row), header) == [expected]


class TestBest:
    @pytest.mark.parametrize(("key", "header"), [("mean", "mean"), ("worst", "worst client"), ("best", "best client")])
    def test_of_a_metric(self, key, header):
        for higher, expected in ((True, [False, True]), (False, [True, False]), (None, [False, False])):
            assert best(rows(a={key: 0.5}, b={key: 0.75}, higher=higher), header) == expected

    @pytest.mark.parametrize(
        ("key", "header", "better"),
        [
            ("gain", "mean gain", "high"), ("ipr", "IPR", "high"), ("std", "std over clients", "low"),
            ("rsd", "RSD", "low"), ("harmed", "harmed", "low"), ("megabytes_sent", "MB sent", "low"),
            ("megabytes_received", "MB received", "low"), ("rounds", "rounds", ""), ("seconds", "time [s]", ""),
        ],
    )  # fmt: skip
    def test_independent_of_the_metric(self, key, header, better):
        for higher in (True, False, None):
            found = best(rows(a={key: 0.5}, b={key: 0.75}, higher=higher), header)
            assert found == [better == "low", better == "high"]

    def test_rows_that_do_not_agree_on_the_direction(self):
        for higher in (None, False):
            frame = rows(a={"mean": 0.5}, b={"mean": 0.75, "higher_is_better": higher})
            assert best(frame, "mean") == [False, False]
            assert comparison_tables(frame)[0].title.startswith("test acc, 3 clients")

    @pytest.mark.parametrize(
        ("values", "expected"),
        [
            ([0.7501, 0.7502], [False, False]),
            ([0.7501, 0.7502, 0.5], [True, True, False]),
            ([math.nan, 0.75], [False, False]),
            ([0.5], [False]),
        ],
    )
    def test_equal_texts_and_single_values(self, values, expected):
        frame = rows(**{label: {"mean": value} for label, value in zip("abc", values, strict=False)})
        assert best(frame, "mean") == expected

    def test_beside_a_row_that_diverged(self):
        frame = rows(higher=False, a={"mean": 0.6}, b={"mean": 0.89}, c={"mean": 49617.5})
        assert best(frame, "mean") == [True, False, False]


def test_title(frame):
    def title():
        return comparison_tables(frame)[0].title

    assert title() == "test acc (higher is better), 3 clients, seed 0, data: measured"
    frame["higher_is_better"] = False
    frame["num_clients"] = [3, 5]
    frame[["num_seeds", "seeds"]] = [4, "0, 1, 2, 7"]
    assert title() == "test acc (lower is better), 3 to 5 clients, seeds 0-2, 7, data: measured"
    frame["seeds"] = ["0, 1", "3"]
    frame["higher_is_better"] = None
    frame["source"] = ["measured", "stand-in"]
    assert title() == "test acc, 3 to 5 clients, data: measured and stand-in"
    assert (texts(frame, ""), texts(frame, "seeds")) == (["a [measured]", "b [stand-in]"], ["0, 1", "3"])


def test_notes(frame):
    assert comparison_tables(frame)[0].notes == ["Communication was not counted."]
    frame["megabytes_sent"] = 0.0
    assert comparison_tables(frame)[0].notes == []
    frame["num_seeds"] = [2, 3]
    frame["seeds"] = ["0, 1", "0, 1, 2"]
    frame["num_clients"] = [3, 2]
    frame["higher_is_better"] = None
    frame["gain_over"] = ["each run's own local training", ""]
    frame["baseline"], frame["difference_num_seeds"] = "a", [2, 2]
    frame.loc[1, "mean"] = math.nan
    found = "\n".join(comparison_tables(frame)[0].notes)
    for words in (
        "±: standard deviation over seeds.",
        "row minus a, paired by seed (2 pairs)",
        "over each run's own local training.",
        "The rows have different seeds",
        "different numbers of clients: 3 in a, 2 in b.",
        "Not finite in at least one run: b.",
        "direction of acc is unknown",
    ):
        assert words in found


class TestTerminal:
    def test_the_best_is_green(self, frame):
        text = printed(frame, color=True)
        assert "\x1b[1;32m0.750\x1b[0m" in text
        assert "\x1b[1;32m 0.250\x1b[0m" in text
        assert text.count("\x1b[1;32m") == 2

    @pytest.mark.parametrize("width", [40, 60, 80, 100, 160])
    def test_no_wider_than_the_terminal_and_nothing_cut(self, make_run, width):
        moved = {"bytes_sent": 10**9, "bytes_received": 10**9}
        groups = {
            f"FedAvg + DROClientSampling + LocalMixup alpha={alpha}": [
                make_run(f"{alpha}{seed}", [0.5, 0.25 * alpha], seed=seed, gains=[0.1, -0.2], communication=moved)
                for seed in (0, 1)
            ]
            for alpha in (1, 2)
        }
        text = printed(comparison_table(groups, baseline=next(iter(groups))), width)
        assert max(map(len, text.splitlines())) <= width
        assert "…" not in text
        words = " ".join(text.split())
        assert "±0.000" in text
        assert ("The terminal is too narrow for: best client, time [s]" in words) == (width < 160)
        assert "worst" in text

    def test_a_table_per_metric_and_the_warnings(self, frame):
        both = pd.concat([frame, rows(metric="rmse", higher=False, **{"[red]x": {}, "b": {}})])
        text = printed(both, warnings=["data.name is [a] in b"])
        found = [
            text.index(part) for part in ("warning: data.name is [a] in b\n", "test acc (h", "test rmse (", "[red]x")
        ]
        assert all(first < second for first, second in pairwise(found))
        assert found[0] == 0
        assert "too narrow" not in text

    def test_stand_ins_have_their_label(self, frame):
        assert STAND_IN_LABEL not in printed(frame)
        frame["source"] = ["measured", "stand-in"]
        assert f"\x1b[1;30;43m {STAND_IN_LABEL} \x1b[0m" in printed(frame, color=True)


class TestMarkdown:
    def test_a_table(self, frame):
        frame["megabytes_sent"] = [1.0, math.nan]
        assert to_markdown(frame).splitlines() == [
            "test acc (higher is better), 3 clients, seed 0, data: measured",
            "",
            "|  | mean | worst client | MB sent |",
            "| --- | ---: | ---: | ---: |",
            "| a | 0.500 | **0.250** | 1.000 |",
            "| b | **0.750** | 0.125 | - |",
        ]

    def test_labels_are_escaped(self):
        assert "| a\\|b\\*c_d\\`e&lt;f>[g]\\\\ |" in to_markdown(rows(**{"a|b*c_d`e<f>[g]\\": {}}))

    def test_seeds_notes_label_and_warnings(self, frame):
        frame["source"] = "stand-in"
        frame["seeds"] = ["0", "1"]
        text = to_markdown(frame, ["a_b differ"])
        assert text.startswith(f"> **Warning:** a_b differ  \n\n**{STAND_IN_LABEL}**\n\ntest acc (")
        for part in ("|  | seeds | mean |", "| a | 0 | 0.500 |", "\n\n- The rows have different seeds"):
            assert part in text


class TestLatex:
    def test_a_table(self, frame):
        frame["ipr"], frame["ipr_seed_std"] = [0.5, math.nan], [0.25, math.nan]
        text = to_latex(frame)
        assert text.startswith("% \\usepackage{booktabs,graphicx}\n")
        assert "\\begin{tabular}{lrrr}\n\\toprule\n & mean & worst client & IPR \\\\\n\\midrule\n" in text
        assert "a & $0.500$ & $\\mathbf{0.250}$ & $50\\% \\pm 25\\%$ \\\\\n" in text
        assert "b & $\\mathbf{0.750}$ & $0.125$ & -- \\\\\n\\bottomrule\n\\end{tabular}}\n\\end{table}\n" in text
        assert text.count("{") == text.count("}")
        assert text.count("$") % 2 == 0

    def test_labels_and_captions_are_escaped(self):
        frame = rows(**{"a&b_c%d#e$f{g}~^\\<>|": {"source": "stand-in"}})
        text = to_latex(frame, ["50 % of x_y"])
        label = (
            "a\\&b\\_c\\%d\\#e\\$f\\{g\\}\\textasciitilde{}\\textasciicircum{}\\textbackslash{}\\textless{}"
            "\\textgreater{}\\textbar{} & "
        )
        assert label in text
        assert f"\\caption{{{STAND_IN_LABEL}. Warning: 50 \\% of x\\_y. test acc (higher is better), 3 clients" in text


def test_csv_has_every_digit_and_nothing_for_nothing(frame):
    frame["mean"] = [1 / 3, 2 / 3]
    back = pd.read_csv(io.StringIO(csv_table(frame)), float_precision="round_trip")
    assert list(back["mean"]) == [1 / 3, 2 / 3]
    assert list(back.columns) == list(frame.columns)
    assert "nan" not in csv_table(frame)
