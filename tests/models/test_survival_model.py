"""The survival model on data whose hazards are known, alone and federated, and what it refuses."""

import math
from pathlib import Path

import pytest
import torch
from torch.utils.data import TensorDataset

from lightning_fl import ConfigurationError, DataError, FederatedTrainer, TrainingError
from lightning_fl.data import ColumnDivision, GroupBy, TableData
from lightning_fl.functional.survival import concordance_index, cox_loss
from lightning_fl.models import SurvivalModel
from lightning_fl.models.survival import ConcordanceIndex

TRUE = torch.tensor([1.0, -0.5, 0.0])


def patients(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Exponential times with the hazard exp(TRUE x), a third of them censored at random."""
    draws = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 3, generator=draws)
    times = torch.empty(count).exponential_(generator=draws) / (x @ TRUE).exp()
    censored = torch.empty(count).exponential_(0.5, generator=draws)
    return x, torch.minimum(times, censored), (times <= censored).float()


def write(path: Path, clients: int = 3, count: int = 120) -> str:
    lines = ["site,fold,a,b,c,days,dead"]
    for client in range(clients):
        x, times, events = patients(count, client)
        for row in range(count):
            fold = "train" if row < count * 2 // 3 else "test"
            values = ",".join(f"{float(value):.6f}" for value in x[row])
            lines.append(f"s{client},{fold},{values},{float(times[row]):.6f},{int(events[row])}")
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def data(path: str, **settings: object) -> TableData:
    given = {"target": "days", "event": "dead", "drop": ["site", "fold"], "split": (1.0, 0.0, 0.0), "batch_size": 40}
    return TableData(
        path=path, partitioner=GroupBy(column="site"), division=ColumnDivision(column="fold"), **(given | settings)
    )  # type: ignore[arg-type]


def test_a_federation_learns_the_hazards(tmp_path: Path) -> None:
    trainer = FederatedTrainer(
        max_rounds=30, local_epochs=1, logger=False, enable_progress_bar=False, seed=0, default_root_dir=tmp_path
    )
    model, clients = SurvivalModel(in_features=3, learning_rate=0.2, optimizer="sgd"), data(write(tmp_path / "a.csv"))
    trainer.fit(model, clients)
    found = model.network[0].weight.detach().flatten()
    assert found[0] > 0.6
    assert found[1] < -0.2
    assert abs(float(found[2])) < 0.3
    metrics = trainer.test(model, clients)
    for client in range(3):
        x, y = map(torch.stack, zip(*clients.client_data(client, "test"), strict=True))
        scores = model(x).detach()
        expected = concordance_index(scores, *y.unbind(1))
        assert metrics["test/c_index"].clients[client] == pytest.approx(expected, rel=1e-6)
        assert metrics["test/loss"].clients[client] == pytest.approx(float(cox_loss(scores, *y.unbind(1))), rel=1e-5)
        assert expected > 0.6


def test_a_network_and_what_it_predicts() -> None:
    model = SurvivalModel(in_features=3, hidden_sizes=[4, 2], dropout=0.1, ties="efron")
    x, times, events = patients(6, 0)
    assert model.eval().predict_step([x, torch.stack([times, events], 1)], 0).shape == (6,)
    assert [part.weight.shape for part in model.network if isinstance(part, torch.nn.Linear)] == [
        (4, 3),
        (2, 4),
        (1, 2),
    ]
    torch.testing.assert_close(model.predict_step(x, 0), model(x))


def test_the_metric_counts_all_samples() -> None:
    metric = ConcordanceIndex()
    x, times, events = patients(50, 4)
    for part in torch.arange(50).split(20):
        metric.update(x[part, 0], times[part], events[part])
    assert float(metric.compute()) == pytest.approx(concordance_index(x[:, 0], times, events))
    metric.reset()
    metric.update(x[:1, 0], times[:1], events[:1])
    assert math.isnan(float(metric.compute()))


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        ("-3,1", r"'days' has values .*row 2 '-3'"),
        ("soon,1", "'days' has values .*row 2 'soon'"),
        (",1", "'days' has values"),
        ("3,2", "'dead' has values .*row 2 '2'"),
    ],
)
def test_times_and_events_are_checked_before_training(tmp_path: Path, cells: str, message: str) -> None:
    path = tmp_path / "a.csv"
    path.write_text(f"site,fold,a,days,dead\ns0,train,1,{cells}\ns0,train,2,5,1\ns0,test,2,5,0\n")
    with pytest.raises(DataError, match=message):
        data(str(path)).prepare_data()


def test_nobody_died(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("site,fold,a,days,dead\ns0,train,1,3,0\ns0,test,2,5,0\n")
    with pytest.raises(DataError, match="'dead' has no event"):
        data(str(path)).prepare_data()
    with pytest.raises(ConfigurationError, match="columns=.*'dead'"):
        data(str(path), drop=None, columns=["a", "dead"])


def test_classes_are_no_times(tmp_path: Path) -> None:
    trainer = FederatedTrainer(max_rounds=1, local_steps=1, logger=False, enable_progress_bar=False, seed=0)
    path = tmp_path / "a.csv"
    path.write_text("site,a,b,c,sick\n" + "s0,1,2,3,yes\ns0,2,3,4,no\n" * 6)
    with pytest.raises(TrainingError, match="time and an event"):
        trainer.fit(
            SurvivalModel(in_features=3),
            TableData(path=str(path), target="sick", drop=["site"], partitioner=GroupBy(column="site")),
        )


def test_new_patients_are_encoded_as_the_run_encoded_its_own(tmp_path: Path) -> None:
    clients = data(write(tmp_path / "a.csv"))
    clients.prepare_data()
    clients.setup()
    record = clients.describe()
    new = tmp_path / "new.csv"
    new.write_text("a,b,c,days,dead\n1.0,2.0,3.0,10,1\n")
    found = clients.newcomer_data(str(new), record)
    assert isinstance(found, TensorDataset)
    assert found.tensors[1].tolist() == [[10.0, 1.0]]
