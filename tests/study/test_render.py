import io
import math

import pandas as pd
import pytest
from rich.console import Console

from lightning_fl.core.escaping import csv_table
from lightning_fl.data.source import STAND_IN_LABEL
from lightning_fl.study.comparison_table import STATISTICS, comparison_table
from lightning_fl.study.render import to_latex, to_markdown, to_terminal
from lightning_fl.study.table_columns import make_columns, make_rows, table_notes, table_title


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


def printed(frame, width=80, color=False, **options):
    console = Console(
        file=io.StringIO(), width=width, force_terminal=color, color_system="standard" if color else None, **options
    )
    to_terminal(frame, console)
    return console.file.getvalue()


def column(frame, key):
    return next(column for column in make_columns(frame) if column.key == key)


class TestNumbers:
    @pytest.mark.parametrize(
        ("values", "texts"),
        [
            ([0.0123456, 0.5], ["0.012", "0.500"]),
            ([0.0123456, 0.05], ["0.0123", "0.0500"]),
            ([1.23456, 0.5], ["1.235", "0.500"]),
            ([-12.3456, 0.5], ["-12.35", "0.50"]),
            ([123456.0, 0.5], ["123456", "0"]),
            ([0.0, 0.0], ["0", "0"]),
            ([1.5e9, 0.5], ["1.5e+09", "0.5"]),
            ([math.nan, 0.5], ["-", "0.500"]),
            ([math.inf, 0.5], ["inf", "0.500"]),
        ],
    )
    def test_a_column_has_as_many_decimals_as_its_largest_value_needs(self, values, texts):
        found = column(rows(a={"mean": values[0]}, b={"mean": values[1]}), "mean")
        assert list(found.values) == texts

    def test_spreads_have_the_decimals_of_their_values(self):
        found = column(rows(a={"mean": 12.3456, "mean_seed_std": 0.456}), "mean")
        assert found.cell(0) == "12.35 ± 0.46"

    def test_shares_are_percentages(self):
        found = column(rows(a={"ipr": 2 / 3, "ipr_seed_std": 0.12345}), "ipr")
        assert found.cell(0) == "67% ± 12%"

    def test_differences_have_a_sign_and_their_interval(self):
        of_row = {"mean_difference": 0.25, "mean_difference_low": -0.125, "mean_difference_high": 0.625}
        of_row |= {"baseline": "b", "difference_num_seeds": 3}
        found = column(rows(a=of_row), "mean_difference")
        assert found.cell(0) == "+0.250 [-0.125, +0.625]"
        of_row |= {"mean_difference_low": math.nan, "mean_difference_high": math.nan, "difference_num_seeds": 1}
        assert column(rows(a=of_row), "mean_difference").cell(0) == "+0.250"

    def test_a_difference_of_nothing_keeps_its_interval(self):
        of_row = {"mean_difference": 0.0, "mean_difference_low": -0.125, "mean_difference_high": 0.125}
        found = column(rows(a=of_row | {"baseline": "b", "difference_num_seeds": 3}), "mean_difference")
        assert found.cell(0) == "+0.000 [-0.125, +0.125]"

    def test_rounds_and_megabytes(self):
        of_row = {"rounds": 40.0, "rounds_seed_std": 0.0, "megabytes_sent": 1.5, "seconds": 12.345}
        frame = rows(a=of_row, b={"rounds": 50.0, "rounds_seed_std": 0.0, "megabytes_sent": math.nan})
        assert [column(frame, "rounds").cell(number) for number in (0, 1)] == ["40", "50"]
        assert [column(frame, "megabytes_sent").cell(number) for number in (0, 1)] == ["1.500", "-"]
        assert column(frame, "seconds").cell(0) == "12.3"


class TestBest:
    def marks(self, key, first, second, **options):
        return list(column(rows(a={key: first}, b={key: second}, **options), key).best)

    @pytest.mark.parametrize("key", ["mean", "worst", "best"])
    def test_of_a_metric(self, key):
        assert self.marks(key, 0.5, 0.75) == [False, True]
        assert self.marks(key, 0.5, 0.75, higher=False) == [True, False]
        assert self.marks(key, 0.5, 0.75, higher=None) == [False, False]

    def test_rows_that_do_not_agree_on_the_direction(self):
        frame = rows(a={"mean": 0.5}, b={"mean": 0.75, "higher_is_better": None})
        assert list(column(frame, "mean").best) == [False, False]
        assert table_title(frame).startswith("test acc, 3 clients")
        frame["higher_is_better"] = [True, False]
        assert list(column(frame, "mean").best) == [False, False]

    @pytest.mark.parametrize(
        ("key", "higher"),
        [
            ("gain", True), ("ipr", True), ("std", False), ("rsd", False), ("harmed", False),
            ("megabytes_sent", False), ("megabytes_received", False),
        ],
    )  # fmt: skip
    def test_of_what_does_not_depend_on_the_metric(self, key, higher):
        for of_metric in (True, False, None):
            assert self.marks(key, 0.5, 0.75, higher=of_metric) == [not higher, higher]

    @pytest.mark.parametrize("key", ["rounds", "seconds"])
    def test_neither_rounds_nor_times_are_better(self, key):
        assert self.marks(key, 1.0, 2.0) == [False, False]

    def test_what_reads_the_same_is_as_good(self):
        assert self.marks("mean", 0.7501, 0.7502) == [False, False]
        three = rows(a={"mean": 0.7501}, b={"mean": 0.7502}, c={"mean": 0.5})
        assert list(column(three, "mean").best) == [True, True, False]

    def test_a_row_without_value_is_not_best_and_one_row_neither(self):
        assert self.marks("mean", math.nan, 0.75) == [False, False]
        assert list(column(rows(a={"mean": 0.5}), "mean").best) == [False]


class TestWords:
    def test_title(self, frame):
        assert table_title(frame) == "test acc (higher is better), 3 clients, seed 0, data: measured"
        frame["higher_is_better"] = False
        frame["num_clients"] = [3, 5]
        frame[["num_seeds", "seeds"]] = [4, "0, 1, 2, 7"]
        assert table_title(frame) == "test acc (lower is better), 3 to 5 clients, seeds 0-2, 7, data: measured"
        frame["seeds"] = ["0, 1", "3"]
        frame["higher_is_better"] = None
        frame["source"] = ["measured", "stand-in"]
        assert table_title(frame) == "test acc, 3 to 5 clients, data: measured and stand-in"
        assert [(row.label, row.seeds) for row in make_rows(frame)] == [("a [measured]", "0, 1"), ("b [stand-in]", "3")]

    def test_notes(self, frame):
        assert table_notes(frame) == ["Communication was not counted."]
        frame["megabytes_sent"] = 0.0
        assert table_notes(frame) == []
        frame["num_seeds"] = [2, 3]
        frame["seeds"] = ["0, 1", "0, 1, 2"]
        frame["num_clients"] = [3, 2]
        frame["higher_is_better"] = None
        frame["gain_over"] = ["each run's own local training", ""]
        frame["baseline"], frame["difference_num_seeds"] = "a", [2, 2]
        frame.loc[1, "mean"] = math.nan
        found = "\n".join(table_notes(frame))
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
        assert "\x1b[32m0.750\x1b[0m" in text
        assert "\x1b[32m 0.250\x1b[0m" in text
        assert text.count("\x1b[32m") == 2

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

    def test_nothing_is_left_out_where_all_fits(self, frame):
        assert "too narrow" not in printed(frame)

    def test_a_table_per_metric_and_the_warnings(self, frame):
        both = pd.concat([frame, rows(metric="rmse", higher=False, a={}, b={})])
        console = Console(file=io.StringIO(), width=80)
        to_terminal(both, console, ["data.name is [a] in b"])
        text = console.file.getvalue()
        assert text.startswith("warning: data.name is [a] in b\n")
        assert text.index("test acc (higher") < text.index("test rmse (lower")

    def test_stand_ins_have_their_label(self, frame):
        assert STAND_IN_LABEL not in printed(frame)
        frame["source"] = ["measured", "stand-in"]
        assert f"\x1b[1;30;43m {STAND_IN_LABEL} \x1b[0m" in printed(frame, color=True)

    def test_labels_are_no_markup(self):
        assert "[red]x" in printed(rows(**{"[red]x": {}}))


class TestMarkdown:
    def test_a_table(self, frame):
        frame["megabytes_sent"] = [1.0, math.nan]
        assert to_markdown(frame).splitlines() == [
            "test acc (higher is better), 3 clients, seed 0, data: measured",
            "",
            "|  | mean | worst client | MB sent |",
            "|---|---:|---:|---:|",
            "| a | 0.500 | **0.250** | 1.000 |",
            "| b | **0.750** | 0.125 | - |",
        ]

    def test_labels_are_escaped(self):
        text = to_markdown(rows(**{"a|b*c_d`e<f>[g]\\": {}}))
        assert "| a\\|b\\*c_d\\`e&lt;f>[g]\\\\ |" in text

    def test_seeds_notes_label_and_warnings(self, frame):
        frame["source"] = "stand-in"
        frame["seeds"] = ["0", "1"]
        text = to_markdown(frame, ["a_b differ"])
        assert text.startswith(f"> **Warning:** a_b differ  \n\n**{STAND_IN_LABEL}**\n\ntest acc (")
        assert "|  | seeds | mean |" in text
        assert "| a | 0 | 0.500 |" in text
        assert "\n\n- The rows have different seeds" in text


class TestLatex:
    def test_a_table(self, frame):
        frame["ipr"], frame["ipr_seed_std"] = [0.5, math.nan], [0.25, math.nan]
        text = to_latex(frame)
        assert text.startswith("% \\usepackage{booktabs,graphicx}\n")
        assert "\\begin{tabular}{lrrr}\n\\toprule\n & mean & worst client & IPR \\\\\n\\midrule\n" in text
        assert "a & $0.500$ & $\\mathbf{0.250}$ & $50\\% \\pm 25\\%$ \\\\\n" in text
        assert "b & $\\mathbf{0.750}$ & $0.125$ & -- \\\\\n\\bottomrule\n\\end{tabular}}\n\\end{table}\n" in text

    def test_labels_and_captions_are_escaped(self):
        text = to_latex(rows(**{"a&b_c%d#e$f{g}~^\\<>|": {}}), ["50 % of x_y"])
        label = (
            "a\\&b\\_c\\%d\\#e\\$f\\{g\\}\\textasciitilde{}\\textasciicircum{}\\textbackslash{}\\textless{}"
            "\\textgreater{}\\textbar{} & "
        )
        assert label in text
        assert "\\caption{Warning: 50 \\% of x\\_y. test acc (higher is better), 3 clients" in text

    def test_stand_ins_have_their_label_in_the_caption(self, frame):
        frame["source"] = "stand-in"
        assert f"\\caption{{{STAND_IN_LABEL}. test" in to_latex(frame)

    def test_braces_are_balanced(self, frame):
        text = to_latex(frame)
        assert text.count("{") == text.count("}")
        assert text.count("$") % 2 == 0


def test_csv_has_every_digit_and_nothing_for_nothing(frame):
    frame["mean"] = [1 / 3, 2 / 3]
    back = pd.read_csv(io.StringIO(csv_table(frame)), float_precision="round_trip")
    assert list(back["mean"]) == [1 / 3, 2 / 3]
    assert list(back.columns) == list(frame.columns)
    assert "nan" not in csv_table(frame)
