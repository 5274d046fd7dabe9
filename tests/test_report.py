import io
import math

import pytest
import torch
from lightning.pytorch import LightningModule
from rich.console import Console
from rich.text import Text
from torch import nn
from torch.utils.data import TensorDataset

from lightning_fl import FederatedDataModule, FederatedTrainer
from lightning_fl.data.source import STAND_IN_LABEL
from lightning_fl.metrics import LoggedValue, summarize
from lightning_fl.report import client_table, print_report


def metrics_of(**columns: list[float]):
    """Metrics by name (``_`` for ``/``) from each client's values."""
    return summarize(
        {
            client: {name: LoggedValue(column[client], 1.0) for name, column in columns.items()}
            for client in range(len(next(iter(columns.values()))))
        }
    )


def cells(table) -> list[list[str]]:
    """The text of every row."""
    columns = [[str(cell) for cell in column.cells] for column in table.columns]
    return [list(row) for row in zip(*columns, strict=True)]


def style_of(table, row: int, column: int) -> str:
    cell = list(table.columns[column].cells)[row]
    return " ".join(str(span.style) for span in cell.spans)


class TestTable:
    def test_rows_and_statistics(self):
        table = client_table(metrics_of(rmse=[1.0, 4.0, 1.0], r2=[0.5, 0.25, 0.75]), ["a", "b", "c"], {0: 10, 2: 30})
        assert [str(column.header) for column in table.columns] == [
            "client",
            "samples",
            "rmse\nlower is better",
            "r2\nhigher is better",
        ]
        assert cells(table) == [
            ["a", "10", "1", "0.5"],
            ["b", "", "4", "0.25"],
            ["c", "30", "1", "0.75"],
            ["average", "", "2", "0.5"],
            ["worst", "", "4\nb", "0.25\nb"],
            ["best", "", "1", "0.75"],
            ["standard deviation", "", f"{math.sqrt(2):.4g}", f"{math.sqrt(0.125 / 3):.4g}"],
        ]

    def test_best_and_worst_stand_out(self):
        table = client_table(metrics_of(rmse=[1.0, 4.0, 2.0], r2=[0.5, 0.25, 0.75]), ["a", "b", "c"])
        assert [style_of(table, row, 1) for row in range(3)] == ["green", "red", ""]
        assert [style_of(table, row, 2) for row in range(3)] == ["", "red", "green"]

    def test_equal_values_do_not(self):
        table = client_table(metrics_of(rmse=[1.0, 1.0]), ["a", "b"])
        assert [style_of(table, row, 1) for row in range(2)] == ["", ""]

    def test_missing_values(self):
        rows = cells(client_table(metrics_of(rmse=[math.nan, 2.0], mae=[math.nan, math.nan]), ["a", "b"]))
        assert rows[0] == ["a", "-", "-"]
        assert rows[2:] == [
            ["average", "2", "-"],
            ["worst", "2\nb", "-"],
            ["best", "2", "-"],
            ["standard deviation", "0", "-"],
        ]

    @pytest.mark.parametrize(("name", "sign"), [("loss", -1), ("accuracy", 1)])
    def test_of_many_clients_the_worst(self, name, sign):
        values = [float(i * 7 % 40) for i in range(40)]  # 0..39 in another order
        values[5] = math.nan
        rows = cells(client_table(metrics_of(**{name: values}), [f"client {i}" for i in range(40)]))
        known = [client for client in range(40) if client != 5]
        worst_first = sorted(known, key=lambda client: sign * values[client])
        assert [row[0] for row in rows[:30]] == [f"client {client}" for client in worst_first[:30]]
        assert rows[30][0] == f"... and 10 more,\nnone worse in {name}"
        assert [row[0] for row in rows[31:]] == ["average", "worst", "best", "standard deviation"]

    def test_thirty_clients_are_shown_in_order(self):
        rows = cells(client_table(metrics_of(loss=[float(-i) for i in range(30)]), [str(i) for i in range(30)]))
        assert [row[0] for row in rows[:30]] == [str(i) for i in range(30)]
        assert len(rows) == 34

    def test_names_are_not_markup(self):
        output = io.StringIO()
        Console(file=output, width=80).print(client_table(metrics_of(loss=[1.0]), ["[bold]a"], title=Text("[red]")))
        assert "[bold]a" in output.getvalue()
        assert "[red]" in output.getvalue()


class Mean(LightningModule):
    """Predicts one number for everybody: the mean of the clients' means, in one step."""

    def __init__(self):
        super().__init__()
        self.value = nn.Parameter(torch.zeros(1))

    def training_step(self, batch):
        return (self.value - batch[0]).square().mean() / 2

    def test_step(self, batch):
        self.log("test/mae", (self.value - batch[0]).abs().mean())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1.0)


class Constants(FederatedDataModule):
    def __init__(self, constants, source):
        super().__init__()
        self.constants = constants
        self.source = source

    @property
    def num_clients(self):
        return len(self.constants)

    def client_data(self, client, split):
        return TensorDataset(torch.full((2 + client if split == "test" else 3, 1), self.constants[client]))


def report_of(trainer) -> str:
    output = io.StringIO()
    print_report(trainer, Console(file=output, width=100))
    return output.getvalue()


@pytest.fixture
def trainer(tmp_path):
    return FederatedTrainer(
        accelerator="cpu", logger=False, max_rounds=1, default_root_dir=tmp_path, enable_progress_bar=False
    )


class TestReport:
    @pytest.mark.parametrize(("source", "labels"), [("stand-in", 1), ("measured", 0)])
    def test_table_of_the_test(self, trainer, source, labels):
        module, data = Mean(), Constants([1.0, 2.0, 6.0], source)
        trainer.fit(module, data)
        trainer.test(module, data)
        output = report_of(trainer)
        assert output.count(STAND_IN_LABEL) == labels
        assert f"test of Mean, data: {source}" in output
        numbers = [line.replace("│", " ").split() for line in output.splitlines()]
        assert ["client_2", "4", "3"] in numbers  # 4 test samples; the model says 3, this client 6
        assert ["average", "2"] in numbers
        assert ["worst", "3"] in numbers
        assert output.splitlines()[-1] == f"run: {trainer.log_dir}"

    def test_samples_stand_beside_every_client_wherever_it_is_hosted(self, trainer, monkeypatch):
        module, data = Mean(), Constants([1.0, 2.0, 6.0], "measured")
        trainer.test(module, data)
        before = report_of(trainer)
        assert " samples " in before
        monkeypatch.setattr(type(trainer), "hosted_clients", [0, 2])  # the report opens nobody's data
        assert report_of(trainer) == before

    def test_nothing_evaluated(self, trainer):
        trainer.fit(Mean(), Constants([1.0], "stand-in"))
        output = report_of(trainer)
        assert "nothing was evaluated" in output
        assert STAND_IN_LABEL in output
        assert trainer.log_dir in output.replace("\n", "")

    def test_other_ranks_are_silent(self, trainer, monkeypatch):
        trainer.fit(Mean(), Constants([1.0], "measured"))
        monkeypatch.setattr(type(trainer), "is_global_zero", False)
        assert report_of(trainer) == ""
