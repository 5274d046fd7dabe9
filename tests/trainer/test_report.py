import io
import math
from types import SimpleNamespace

import pytest
import torch
from lightning.pytorch import LightningModule
from rich.cells import cell_len
from rich.console import Console
from torch import nn
from torch.utils.data import TensorDataset

from lightning_fl import FederatedDataModule, FederatedTrainer
from lightning_fl.core.metrics import LoggedValue, summarize, summarize_gains
from lightning_fl.data.source import STAND_IN_LABEL
from lightning_fl.runtime.table import print_table
from lightning_fl.trainer.report import _next_steps, client_table, constant_line, print_report, target_table


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
    return [list(map(str, row)) for row in table.rows]


def style_of(table, row: int, column: int) -> str:
    return table.columns[column].values[row].state


class TestTable:
    def test_rows_and_statistics(self):
        table = client_table(metrics_of(rmse=[1.0, 4.0, 1.0], r2=[0.5, 0.25, 0.75]), ["a", "b", "c"], {0: 10, 2: 30})
        assert [column.header for column in table.columns] == [
            *("client", "samples", "rmse\N{NO-BREAK SPACE}↓", "r2\N{NO-BREAK SPACE}↑")
        ]
        assert cells(table) == [
            ["a", "10", "1", "0.5"],
            ["b", "", "4", "0.25"],
            ["c", "30", "1", "0.75"],
            ["average", "", "2", "0.5"],
            ["worst", "", "4 b", "0.25 b"],
            ["best", "", "1", "0.75"],
            ["standard deviation", "", f"{math.sqrt(2):.4g}", f"{math.sqrt(0.125 / 3):.4g}"],
        ]

    def test_best_and_worst_stand_out(self):
        table = client_table(metrics_of(rmse=[1.0, 4.0, 2.0], r2=[0.5, 0.25, 0.75]), ["a", "b", "c"])
        assert [style_of(table, row, 1) for row in range(3)] == ["better", "worse", ""]
        assert [style_of(table, row, 2) for row in range(3)] == ["", "worse", "better"]

    def test_equal_values_do_not(self):
        table = client_table(metrics_of(rmse=[1.0, 1.0]), ["a", "b"])
        assert [style_of(table, row, 1) for row in range(2)] == ["", ""]

    def test_missing_values(self):
        rows = cells(client_table(metrics_of(rmse=[math.nan, 2.0], mae=[math.nan, math.nan]), ["a", "b"]))
        assert rows[0] == ["a", "-", "-"]
        assert rows[2:] == [
            ["average", "2", "-"],
            ["worst", "2 b", "-"],
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
        assert rows[30][0] == f"... and 10 more, none worse in {name}"
        assert [row[0] for row in rows[31:]] == ["average", "worst", "best", "standard deviation"]

    def test_thirty_clients_are_shown_in_order(self):
        rows = cells(client_table(metrics_of(loss=[float(-i) for i in range(30)]), [str(i) for i in range(30)]))
        assert [row[0] for row in rows[:30]] == [str(i) for i in range(30)]
        assert len(rows) == 34

    def test_names_are_not_markup(self):
        output = io.StringIO()
        print_table(client_table(metrics_of(loss=[1.0]), ["[bold]a"], title="[red]"), Console(file=output, width=80))
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
    def test_clients_without_a_value_are_named(self, trainer):
        class Gaps(Mean):
            def test_step(self, batch):
                self.log("test/mae", torch.where(batch[0].mean() == 2, math.nan, batch[0].mean()))

        module, data = Gaps(), Constants([1.0, 2.0, 6.0], "measured")
        trainer.fit(module, data)
        trainer.test(module, data)
        assert f"mae is NaN for {data.client_names()[1]}: left out" in report_of(trainer)

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
        lines = output.splitlines()
        folder = trainer.log_dir
        assert lines[lines.index(f"run: {folder}") :] == [
            f"run: {folder}",
            f"report: lightning-fl show {folder}",
            f"compare: lightning-fl compare {folder} OTHER_RUN",
        ]
        assert not any(line.startswith("best round") for line in lines)  # nothing was validated

    def test_samples_stand_beside_every_client_wherever_it_is_hosted(self, trainer, monkeypatch):
        module, data = Mean(), Constants([1.0, 2.0, 6.0], "measured")
        trainer.test(module, data)
        before = report_of(trainer)
        assert " samples " in before
        monkeypatch.setattr(type(trainer), "hosted_clients", [0, 2], raising=False)  # the report opens nobody's data
        assert report_of(trainer) == before

    def test_nothing_evaluated(self, trainer):
        trainer.fit(Mean(), Constants([1.0], "stand-in"))
        output = report_of(trainer)
        assert "nothing was evaluated" in output
        assert STAND_IN_LABEL in output
        assert trainer.log_dir in output.replace("\n", "")

    def test_other_ranks_are_silent(self, trainer, monkeypatch):
        trainer.fit(Mean(), Constants([1.0], "measured"))
        monkeypatch.setattr(type(trainer), "is_global_zero", False, raising=False)
        assert report_of(trainer) == ""


def printed(width, metrics, names=("a", "b"), gains=()):
    """What a run on clients with these test metrics ends with."""
    output = io.StringIO()
    datamodule = SimpleNamespace(evaluated_model="the shared model", source="user", client_names=lambda: list(names))
    trainer = SimpleNamespace(
        evaluated_model="the shared model",
        is_global_zero=True, is_set_up=True, module=None, datamodule=datamodule, log_dir="here",
        checkpoint_callback=None,
        federation=SimpleNamespace(
            metrics={"test": metrics},
            gains={"test": dict(gains)},
            evaluated_samples={"test": dict.fromkeys(range(len(names)), 5)},
        ),
    )  # fmt: skip
    print_report(trainer, Console(file=output, width=width))
    return output.getvalue()


def of_targets(values, targets=("NR-AR", "SR-p53"), clients=2):
    """Each metric's mean over targets, and that of each target."""
    return summarize(
        {
            client: {
                **{f"test/{name}": LoggedValue(value, 1.0) for name, value in values.items()},
                **{
                    f"test/{name}/{target}": LoggedValue(value + client + number, 1.0)
                    for name, value in values.items()
                    for number, target in enumerate(targets)
                },
            }
            for client in range(clients)
        }
    )


class TestTargets:
    def test_a_row_per_target(self):
        metrics = summarize(
            {
                0: {"auroc/NR-AR": LoggedValue(0.5, 1.0), "mcc/NR-AR": LoggedValue(0.25, 1.0)},
                1: {"auroc/NR-AR": LoggedValue(0.75, 1.0), "auroc/SR-p53": LoggedValue(1.0, 1.0)},
            }
        )
        table = target_table(metrics)
        assert [column.header.split()[0] for column in table.columns] == ["target", "clients", "auroc", "mcc"]
        assert cells(table) == [["NR-AR", "2", "0.625", "0.25"], ["SR-p53", "1", "1", "-"]]

    def test_targets_come_in_the_order_of_the_data(self):
        """Also those that the first client has not measured, and numbers where there are no names."""
        first, second = {"auroc/10": LoggedValue(0.5, 1.0)}, {"auroc/9": LoggedValue(0.5, 1.0)}
        metrics = summarize(
            {0: {**first, "auroc/c": LoggedValue(0.5, 1.0)}, 1: {**second, "auroc/a": LoggedValue(1, 1.0)}}
        )
        rows = [row[0] for row in cells(target_table(metrics, ["a", "b", "c"]))]
        assert rows == ["a", "c", "9", "10"]

    def test_targets_have_a_table_of_their_own(self):
        said = printed(120, of_targets({"auroc": 0.5, "mcc": 0.25}))
        first, second = said.split("mean over clients of each target")
        assert "NR-AR" not in first
        assert "auroc" in first
        assert "NR-AR" in second
        assert "SR-p53" in second

    def test_a_run_without_targets_has_one_table(self):
        metrics = summarize({client: {"test/loss/dataloader_idx_0": LoggedValue(1.0, 1.0)} for client in range(2)})
        assert "each target" not in printed(100, metrics)

    def test_local_models_targets_are_in_no_table(self):
        metrics = of_targets({"auroc": 0.5})
        local = {name.replace("test/", "test/local/"): metric for name, metric in metrics.items()}
        assert "local/auroc/NR-AR" not in printed(150, metrics | local)

    def test_gains_are_of_the_means(self):
        gain = summarize_gains({0: 0.75, 1: 0.5}, {0: 0.5, 1: 0.5}, True)
        none = summarize_gains({0: 0.5, 1: 0.5}, {0: 0.5, 1: 0.5}, True)
        gains = {"test/auroc": gain, "test/auroc/NR-AR": gain, "test/rmse_of_mean": none}
        said = printed(200, of_targets({"auroc": 0.5}), gains=gains.items())
        assert [line.partition(":")[0] for line in said.splitlines() if "gain over local" in line] == ["auroc"]


CLASSIFICATION = {
    "loss": 1.284,
    "auroc": 0.5626,
    "average_precision": 0.07411,
    "balanced_accuracy": 0.5719,
    "mcc": -0.00407612,
    "calibration_error": 0.4404,
}


class TestWidth:
    @pytest.mark.parametrize("width", [60, 76, 80, 90, 100, 140])
    def test_numbers_and_names_are_whole_and_no_line_is_too_long(self, width):
        said = printed(width, of_targets(CLASSIFICATION), ["laboratory_0", "laboratory_1"])
        assert "…" not in said
        assert max(map(cell_len, said.splitlines())) <= width

    def test_what_is_not_shown_is_named(self):
        said = printed(70, of_targets(CLASSIFICATION))
        assert "too narrow for: calibration error ↓, mcc ↑: see them in summary.json" in " ".join(said.split())
        assert "too narrow" not in printed(140, of_targets(CLASSIFICATION))


class TestWaysOn:
    """What stands below the table."""

    def test_the_best_round_and_what_to_do_next(self, tmp_path):
        folder = tmp_path / "my runs" / "version_0"
        names = (
            "figures/a.png",
            "figures/b.png",
            "models/a.ckpt",
            "config.yaml",
            "summary.json",
            "events.out.tfevents.1",
        )
        for name in names:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).touch()
        checkpoint = SimpleNamespace(best_round=7, best_value=0.25, monitor="val/rmse", last_round=10)
        trainer = SimpleNamespace(
            log_dir=str(folder), checkpoint_callback=checkpoint, federation=SimpleNamespace(current_round=7)
        )
        assert list(_next_steps(trainer, f"lightning-fl predict {folder} FILE")) == [
            "best round: 7 of 10 by val/rmse, 0.25",
            f"run: {folder}",
            f"pictures: {folder / 'figures'} (2)",
            f"curves: tensorboard --logdir '{folder}'",
            f"predict: lightning-fl predict {folder} FILE",
            f"report: lightning-fl show '{folder}'",
            f"compare: lightning-fl compare '{folder}' OTHER_RUN",
        ]

    def test_an_error_stands_beside_that_of_a_constant_with_its_unit(self):
        metrics = metrics_of(rmse=[0.5, 0.7], rmse_of_mean=[2.0, 3.0])
        line = constant_line(metrics, ["logD"])
        assert line == "rmse 0.6 logD on average; the training data's mean, for all, has 2.5"
        assert constant_line(metrics_of(acc=[0.5, 0.7]), []) == ""
        assert "rmse 0.6 on average" in constant_line(metrics, ["a", "b"])
