"""What a :class:`MoleculeModel` predicts: taken from the clients' targets, learned, measured, kept in checkpoints."""

import warnings
from functools import partial
from pathlib import Path

import pytest
import small_models
import torch
from processes import succeed
from sklearn.metrics import average_precision_score, roc_auc_score
from small_models import collate, molecule_model, plain_trainer, silence
from tiny import quiet_trainer
from torch_geometric.loader import DataLoader

from lightning_fl import FederatedDataModule
from lightning_fl.core.errors import ConfigurationError, DataError, FederatedError
from lightning_fl.data import IID, MoleculeCSV
from lightning_fl.inference.personalization import personalize
from lightning_fl.models import MoleculeModel
from lightning_fl.models.tasks import TASKS, infer_task
from lightning_fl.models.training_targets import pool_ranges, target_ranges

NAN = float("nan")
make_model = partial(molecule_model, hidden_dim=8, num_layers=1)


def molecule(seed, target, bound=None):
    """A molecule whose atoms tell its target, a target of T entries."""
    graph = small_models.molecule(2 + seed % 4, seed)
    graph.y = torch.as_tensor(target).float().reshape(1, -1)
    graph.x += graph.y.nan_to_num(0.5).mean()
    if bound is not None:
        graph.y_bound = torch.as_tensor(bound).float().reshape(1, -1)
    return graph


def molecules(targets, first=0, bounds=None):
    return [
        molecule(first + number, target, None if bounds is None else bounds[number])
        for number, target in enumerate(targets)
    ]


class Laboratories(FederatedDataModule):
    """Clients that hold lists of molecules, the same ones in all splits unless given."""

    def __init__(self, *clients, names=None, without=(), **splits):
        super().__init__(batch_size=4)
        self.clients, self.splits, self.without = clients, splits, without
        if names:
            self.target_names = names

    @property
    def num_clients(self) -> int:
        return len(self.clients)

    def client_data(self, client, split):
        return None if split in self.without else self.splits.get(split, self.clients)[client]


def binary(count, num_targets=1, seed=0):
    return (torch.rand(count, num_targets, generator=torch.Generator().manual_seed(seed)) > 0.5).float()


def make_trainer(folder, **arguments):
    settings = {"max_rounds": 2, "local_steps": 2, "seed": 1, "enable_checkpointing": True}
    return quiet_trainer(default_root_dir=folder, devices=1, **(settings | arguments))


def fitted(folder, data, model=None, **arguments):
    model, trainer = model or make_model(), make_trainer(folder, **arguments)
    trainer.fit(model, data)
    return model, trainer


@pytest.fixture
def said(monkeypatch):
    """What the model says when it knows its task."""
    lines = []
    monkeypatch.setattr("lightning_fl.models.molecule.rank_zero_info", lines.append)
    return lines


# What is taken from the targets


def test_labels_of_all_clients_make_a_classification(tmp_path, said):
    """Each client alone has one class; the second target is measured at the second only."""
    one = molecules([[0, NAN]] * 5)
    two = molecules([[1, 0], [1, 1], [NAN, 1]], first=20)
    model, _ = fitted(tmp_path, Laboratories(one, two))
    assert said == ["task: classification, 2 targets, as all training targets are 0 or 1"]
    assert (model.task, model.num_targets, model.num_classes) == ("classification", 2, 2)
    assert (model.hparams.task, model.hparams.num_targets) == ("classification", 2)
    predicted = model(collate(one))
    assert predicted.shape == (5, 2)
    assert ((predicted > 0) & (predicted < 1)).all()


def test_one_value_of_one_client_makes_a_regression(tmp_path, said):
    model, trainer = fitted(tmp_path, Laboratories(molecules(binary(6)), molecules([[0], [0.5]], first=20)))
    assert (model.task, model.num_targets) == ("regression", 1)
    assert said == ["task: regression, 1 target between 0 and 1"]
    assert "val/rmse" in trainer.metrics["val"]


def test_several_classes_are_counted_over_clients(tmp_path):
    one, two = molecules([[0], [1], [1], [0]]), molecules([[3], [0]], first=20)
    model, trainer = fitted(tmp_path, Laboratories(one, two), make_model(task="multiclass"))
    assert (model.num_classes, model.hparams.num_classes) == (4, 4)
    predicted = model(collate(two))
    assert predicted.shape == (2, 1, 4)
    torch.testing.assert_close(predicted.sum(-1), torch.ones(2, 1))
    assert {"val/accuracy", "val/auroc"} <= set(trainer.metrics["val"])


def ranges(*parts):
    return pool_ranges(torch.stack([target_ranges(torch.tensor(part)) for part in parts]))


def test_ranges_of_parts_are_those_of_the_whole():
    parts = [[[1.0, NAN], [2.5, 7.0]], [[-3.0, NAN]]]
    assert ranges(*parts).tolist() == [[3, 1], [-3, 7], [2.5, 7], [1, 0]]
    assert torch.equal(ranges(*parts), target_ranges(torch.tensor(parts[0] + parts[1])))


@pytest.mark.parametrize(
    ("values", "task", "found", "words"),
    [
        ([[0.0], [1.0]], None, "classification", "classification, 1 target"),
        ([[0.0, 1.0]], "regression", "regression", "regression, 2 targets between 0 and 1"),
        ([[0.0], [4.0]], None, "regression", "whole numbers up to 4: set task='multiclass'"),
        ([[-1.0], [1.0]], None, "regression", "regression, 1 target between -1 and 1"),
        ([[0.0, NAN], [1.0, NAN]], "classification", "classification", "classification, 2 targets"),
    ],
)
def test_what_targets_ask_for(values, task, found, words):
    taken, _, said = infer_task(ranges(values), task)
    assert taken == found
    assert words in said


def test_labels_are_checked_where_everything_is_given(tmp_path):
    data = Laboratories(molecules([[0.2], [0.9]]))
    with pytest.raises(DataError, match="task='classification'"):
        fitted(tmp_path, data, make_model(task="classification", num_targets=1))
    with pytest.raises(DataError, match="task='multiclass'"):
        fitted(tmp_path, data, make_model(task="multiclass", num_targets=1, num_classes=3))


@pytest.mark.parametrize(
    ("task", "train", "split", "wrong", "message"),
    [
        (None, 1, "val", 2, r"val labels of client 1 \(client_1\), target 1 .* 1 and 2,"),
        (None, 1, "test", 0.5, "test labels of client 1 .* 0.5 and 1, .*fractional"),
        ("multiclass", 2, "test", 3, " 1 and 3, .* 0 to 2: .*num_classes=4"),
        ("multiclass", 2, "val", -1, " -1 and 1, .* 0 to 2"),
    ],
)
def test_labels_that_only_an_evaluation_has_are_refused_before_training(tmp_path, task, train, split, wrong, message):
    def data(value):
        other = molecules([[0, 1], [NAN, value]], first=20)
        clients = [molecules([[0, train], [1, 0], [train, 1]])] * 2
        return Laboratories(*clients, without={"val", "test"} - {split}, **{split: [clients[0], other]})

    trained = []
    model = make_model(task=task)
    model.on_train_start = lambda: trained.append(1)
    with pytest.raises(DataError, match=message):
        fitted(tmp_path, data(wrong), model)
    assert not trained
    fitted(tmp_path, data(train), make_model(task=task))


def test_labels_that_are_refused_are_told_by_their_targets_name(tmp_path):
    clients = [molecules([[0, 1], [1, 0]])] * 2
    data = Laboratories(*clients, names=["toxic", "soluble"], val=[clients[0], molecules([[0, 3]], first=20)])
    with pytest.raises(DataError, match=r"val labels of client 1 \(client_1\), target 'soluble', .* 3 and 3"):
        fitted(tmp_path, data)


def test_labels_of_an_evaluation_alone_are_checked_too(tmp_path):
    model, trainer = fitted(tmp_path, Laboratories(molecules([[0], [1], [1]])))
    with pytest.raises(DataError, match="test labels of a batch, target 0 .* 0 and 2"):
        trainer.test(model, Laboratories(molecules([[0], [2]])))


def test_another_number_of_targets_than_given(tmp_path):
    with pytest.raises(ConfigurationError, match=r"num_targets=1: .*\[2\]|num_targets=1: .*instead of"):
        fitted(tmp_path, Laboratories(molecules(torch.randn(4, 2))), make_model(num_targets=1))


def test_clients_of_different_numbers_of_targets(tmp_path):
    data = Laboratories(molecules([[0, 1]]), molecules([[1]], first=20))
    with pytest.raises(ConfigurationError, match="different shapes"):
        fitted(tmp_path, data)


def test_the_layers_do_not_depend_on_what_was_known(tmp_path):
    """Drawn by the same random numbers, whether the data or the arguments tell; for one number bit by bit."""
    graphs = molecules(torch.randn(4, 1))
    inferred, given = make_model(), make_model(task="regression", num_targets=1)
    assert all(torch.equal(a, b) for a, b in zip(inferred.parameters(), given.parameters(), strict=True))
    one, _ = fitted(tmp_path / "a", Laboratories(graphs), inferred)
    two, _ = fitted(tmp_path / "b", Laboratories(graphs), given)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))


# Options


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"class_weights": 2.0}, "class_weights=2.0"),
        ({"min_negatives": 3}, "min_negatives=3"),
        ({"task_weights": [1.0, 2.0]}, "task_weights has 2"),
    ],
)
def test_options_are_checked_when_the_task_is_known(tmp_path, arguments, message):
    with pytest.raises(ConfigurationError, match=message):
        fitted(tmp_path, Laboratories(molecules(torch.randn(3, 1))), make_model(**arguments))


def test_balanced_weights_are_of_all_clients(tmp_path):
    one, two = binary(7, 2, seed=1), torch.tensor([[1.0, NAN], [NAN, 0.0], [0.0, 0.0]])
    model, _ = fitted(tmp_path, Laboratories(molecules(one), molecules(two, 20)), make_model(class_weights="balanced"))
    labels = torch.cat([one, two])
    expected = (labels == 0).sum(0) / (labels == 1).sum(0)
    torch.testing.assert_close(model.class_factors, expected)
    opened = MoleculeModel.load_from_checkpoint(next(Path(tmp_path).rglob("shared_0.ckpt")))
    torch.testing.assert_close(opened.class_factors, expected)


def test_weights_of_classes():
    counts = torch.tensor([[8.0, 2.0], [5.0, 0.0]]).double()
    binary, multiclass = TASKS["classification"], TASKS["multiclass"]
    assert binary.factors(counts, "balanced").tolist() == [4, 1]
    several = torch.tensor([[6.0, 3.0, 0.0]]).double()  # n / (C n_c), as scikit-learn has it; 1 without a sample
    torch.testing.assert_close(multiclass.factors(several, "balanced"), torch.tensor([[0.5, 1.0, 1.0]]))
    assert binary.factors(counts, 3.0).tolist() == [3, 3]
    assert binary.factors(counts, [1.0, 2.0]).tolist() == [1, 2]


def test_weights_of_targets_and_classes_are_in_the_loss():
    graphs = collate(molecules([[1.0, 0.0], [NAN, 1.0]]))
    model = make_model(task="classification", num_targets=2, class_weights=3.0, task_weights=[2.0, 0.5])
    silence(model).class_factors.fill_(3)  # what a fit learns
    with torch.no_grad():
        p = model(graphs)
    losses = [-2 * 3 * p[0, 0].log(), -0.5 * (1 - p[0, 1]).log(), -0.5 * 3 * p[1, 1].log()]
    torch.testing.assert_close(model.training_step(graphs, 0).detach(), torch.stack(losses).mean())


# Training and measuring


def test_a_round_is_a_plain_loop(tmp_path):
    """One client, plain SGD over the whole part: torch's loss and scikit-learn's metrics."""
    labels = binary(12, 2, seed=3).masked_fill(binary(12, 2, seed=4) * binary(12, 2, seed=5) > 0, NAN)
    graphs = molecules(labels)
    data = Laboratories(graphs)
    data.batch_size = len(graphs)
    start_of = make_model(task="classification", num_targets=2, learning_rate=0.5)
    model = make_model(task="classification", num_targets=2, learning_rate=0.5)
    model, trainer = fitted(tmp_path, data, model, max_rounds=3, local_steps=1)
    batch = collate(graphs)
    present = ~labels.isnan()
    optimizer = torch.optim.SGD(start_of.parameters(), lr=0.5)
    for _ in range(3):
        optimizer.zero_grad()
        atoms = start_of.encoder(batch.x, batch.edge_index, edge_attr=batch.edge_attr)
        logits = start_of.head(start_of.readout(atoms, index=batch.batch, dim_size=12))
        torch.nn.functional.binary_cross_entropy_with_logits(logits[present], labels[present]).backward()
        optimizer.step()
    with torch.no_grad():
        expected = start_of(batch)
        torch.testing.assert_close(model(batch), expected, atol=1e-5, rtol=1e-4)
    trainer.test(model, data)
    each = [(labels[present[:, t], t].numpy(), expected[present[:, t], t].numpy()) for t in range(2)]
    for name, score in (("auroc", roc_auc_score), ("average_precision", average_precision_score)):
        values = [score(*pair) for pair in each]
        assert trainer.metrics["test"][f"test/{name}"].mean == pytest.approx(sum(values) / 2, abs=1e-5)
        for number, value in enumerate(values):
            assert trainer.metrics["test"][f"test/{name}/{number}"].mean == pytest.approx(value, abs=1e-5)


def test_bounds_are_in_loss_and_metrics(tmp_path):
    values = torch.tensor([[1.0], [3.0], [2.0], [2.0]])
    graphs = molecules(values, bounds=[[0], [0], [1], [-1]])
    model, trainer = fitted(tmp_path, Laboratories(graphs), make_model(standardize_targets=False, task="regression"))
    trainer.test(model, Laboratories(graphs))
    with torch.no_grad():
        error = model(collate(graphs)) - values
    error[2].clamp_(max=0)
    error[3].clamp_(min=0)
    found = trainer.metrics["test"]
    assert found["test/rmse"].mean == pytest.approx(error.square().mean().sqrt().item(), rel=1e-5)
    assert found["test/mae"].mean == pytest.approx(error.abs().mean().item(), rel=1e-5)
    assert found["test/loss"].mean == pytest.approx(error.square().mean().item(), rel=1e-5)


@pytest.mark.parametrize("task", [None, "classification", "multiclass"])
def test_bounds_are_refused_by_row_where_classes_are_learned(tmp_path, task):
    cells = ["0", "1", "<1", *"01010101"]
    rows = [f"{smiles},{cell}" for smiles, cell in zip(SMILES, cells, strict=False)]
    (tmp_path / "labs.csv").write_text("\n".join(["smiles,y", *rows]))
    data = MoleculeCSV(
        path=str(tmp_path / "labs.csv"), target_columns=["y"], censored=True, partitioner=IID(num_clients=2)
    )
    with pytest.raises(DataError, match=r"row 4 '< 1'"):
        make_trainer(tmp_path).fit(make_model(task=task), data)


def test_bounds_of_any_data_are_refused_where_classes_are_learned(tmp_path):
    graphs = molecules(torch.tensor([[1.0], [0.0], [1.0], [0.0]]), bounds=[[0], [0], [1], [-1]])
    with pytest.raises(FederatedError, match="y_bound"):
        fitted(tmp_path, Laboratories(graphs), make_model(task="classification"))


def test_the_mean_predictor_is_beside_the_model_in_tests(tmp_path):
    train, test = torch.randn(6, 1), torch.randn(5, 1)
    data = Laboratories(molecules(train), test=[molecules(test, 30)])
    model, trainer = fitted(tmp_path, data)
    trainer.test(model, data)
    expected = (test - train.mean()).square().mean().sqrt().item()
    assert trainer.metrics["test"]["test/rmse_of_mean"].mean == pytest.approx(expected, rel=1e-5)
    assert "val/rmse_of_mean" not in trainer.metrics["val"]


def test_a_classification_with_balanced_classes_has_no_mean_predictor(tmp_path):
    data = Laboratories(molecules(binary(8)))
    model, trainer = fitted(tmp_path, data, make_model(task="classification", class_weights="balanced"))
    found = trainer.test(model, data)
    assert "test/auroc" in found
    assert not {"test/rmse_of_mean", "test/mae_of_mean"} & set(found)


def test_targets_have_their_names_and_what_cannot_be_measured_is_said_once(tmp_path):
    good, gone = [[0, 0], [1, 0], [1, 0], [0, 0]], [[0, NAN], [0, NAN], [0, NAN]]
    data = Laboratories(
        molecules([*good, [1, 1]]), molecules([*gone, [1, 1]], 20), names=["NR-AR", "worst"],
        val=[molecules(good, 40), molecules(gone, 60)], test=[molecules(good, 40), molecules(gone, 60)],
    )  # fmt: skip
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        _, trainer = fitted(tmp_path, data, max_rounds=3)
    lines = [str(one.message) for one in caught if "left out of the means" in str(one.message)]
    assert len(lines) == 1
    assert lines[0].startswith("val: targets without metrics, left out of the means: ")
    for words in (
        "worst (target 1) (one class at client_0)",
        "NR-AR (one class at client_1)",
        "worst (target 1) (no value at client_1)",
    ):
        assert words in lines[0]
    assert set(trainer.metrics["val"]["val/auroc/NR-AR"].clients) == {0}
    assert set(trainer.metrics["val"]["val/auroc"].clients) == {0}
    assert "val/auroc/worst" not in trainer.metrics["val"]


def test_of_hundreds_of_targets_the_means_are_logged(tmp_path):
    labels = binary(6, 617)
    _, trainer = fitted(tmp_path, Laboratories(molecules(labels)), max_rounds=1)
    found = set(trainer.metrics["val"])
    assert found == {
        f"val/{name}"
        for name in ("loss", "auroc", "average_precision", "balanced_accuracy", "mcc", "calibration_error")
    }


# Checkpoints


@pytest.mark.parametrize("task", ["classification", "multiclass", None])
def test_an_exported_model_needs_no_data(tmp_path, task):
    labels = torch.randn(6, 3) if task is None else binary(6, 3)
    graphs = molecules(labels)
    model, _ = fitted(tmp_path, Laboratories(graphs), make_model(task=task))
    loaded = MoleculeModel.load_from_checkpoint(next(Path(tmp_path).rglob("shared_0.ckpt")))
    batch = collate(graphs)
    assert torch.equal(loaded.eval()(batch), model.eval()(batch))
    assert (loaded.task, loaded.num_targets) == (task or "regression", 3)
    assert dict(loaded.hparams) == dict(model.hparams)


def test_a_model_of_before_tasks_is_a_regression(tmp_path):
    fitted(tmp_path, Laboratories(molecules(binary(4) + 0.5)))
    path = next(Path(tmp_path).rglob("shared_0.ckpt"))
    content = torch.load(path)
    old = ("task", "num_classes", "class_weights", "task_weights", "min_positives", "min_negatives", "log_targets")
    for name in old:
        del content["hyper_parameters"][name]
    torch.save(content, path)
    loaded = MoleculeModel.load_from_checkpoint(path)
    assert (loaded.hparams.task, loaded.hparams.num_targets) == ("regression", 1)


def test_a_resumed_run_ends_as_one_that_was_not_stopped(tmp_path):
    data = [molecules(binary(9, 2)), molecules(binary(5, 2, seed=1), 30)]
    whole, _ = fitted(tmp_path / "whole", Laboratories(*data), make_model(class_weights="balanced"), max_rounds=4)
    fitted(tmp_path / "parts", Laboratories(*data), make_model(class_weights="balanced"), max_rounds=2)
    resumed, trainer = make_model(class_weights="balanced"), make_trainer(tmp_path / "parts", max_rounds=4)
    trainer.fit(resumed, Laboratories(*data), ckpt_path="last")
    for name, value in whole.state_dict().items():
        assert torch.equal(value, resumed.state_dict()[name]), name


def test_an_evaluation_takes_the_task_of_the_checkpoint(tmp_path):
    """Of data without a training part, and of others in which the targets would say something else."""
    labels = binary(8, 2)
    model, _ = fitted(tmp_path, Laboratories(molecules(labels)), make_model(class_weights=2.0))
    for other in (
        Laboratories(molecules(labels)),
        Laboratories(molecules(labels), without=("train", "val")),
        Laboratories(molecules(labels), train=[molecules(torch.randn(8, 2))]),
    ):
        evaluated, trainer = make_model(class_weights=2.0), make_trainer(tmp_path)
        trainer.test(evaluated, other, ckpt_path="last")
        assert evaluated.task == "classification"
        assert torch.equal(evaluated.class_factors, model.class_factors)
        assert "test/auroc" in trainer.metrics["test"]


def test_a_newcomer_gets_a_model_of_the_runs_task(tmp_path):
    """Its own labels would all be of one class, or numbers of a regression."""
    fitted(tmp_path / "run", Laboratories(molecules(binary(8, 2))))
    shared = sorted((tmp_path / "run").rglob("shared_*.ckpt"))
    out = tmp_path / "mine.ckpt"
    found = personalize(make_model(), shared, molecules(binary(10, 2, seed=7), 50), out=out, monitor="val/auroc")
    assert 0 <= found.personal["val/auroc"] <= 1
    assert MoleculeModel.load_from_checkpoint(out).task == "classification"
    fitted(tmp_path / "values", Laboratories(molecules(torch.randn(8, 1))))
    shared = sorted((tmp_path / "values").rglob("shared_*.ckpt"))
    found = personalize(make_model(), shared, molecules(binary(10), 50), out=out)
    assert "val/rmse" in found.personal
    assert MoleculeModel.load_from_checkpoint(out).task == "regression"


def test_an_ordinary_trainer_reads_the_loader(tmp_path):
    labels = binary(8, 3)
    trainer = plain_trainer(max_epochs=2, default_root_dir=tmp_path, enable_checkpointing=True)
    model = make_model(class_weights="balanced")
    loader = DataLoader(molecules(labels), batch_size=4)
    trainer.fit(model, loader, loader)
    assert (model.task, model.num_targets) == ("classification", 3)
    torch.testing.assert_close(model.class_factors, (labels == 0).sum(0) / (labels == 1).sum(0))
    fresh = make_model(class_weights="balanced")
    found = plain_trainer().test(fresh, loader, ckpt_path=trainer.checkpoint_callback.best_model_path)[0]
    assert found["test/auroc"] == pytest.approx(trainer.callback_metrics["val/auroc"].item(), abs=1e-6)


# A file, and several processes

SMILES = ["CCO", "CCN", "c1ccccc1", "CC(=O)O", "CCCl", "CCBr", "CCF", "C1CCCCC1", "CCS", "CC#N", "CCOC", "c1ccncc1"]


def laboratory_file(path, empty="c"):
    """Three laboratories, 12 molecules each, two targets with gaps; one has measured nothing."""
    lines = ["lab,smiles,A,B"]
    for number, lab in enumerate("abc"):
        for index, smiles in enumerate(SMILES):
            one, two = (index + number) % 2, "" if index % 3 == 0 else int(index % 5 < 2)
            lines.append(f"{lab},{smiles},,") if lab == empty else lines.append(f"{lab},{smiles},{one},{two}")
    path.write_text("\n".join(lines) + "\n")
    return path


def csv_module(path, **arguments):
    return MoleculeCSV(path=str(path), target_columns=["A", "B"], group_column="lab", **arguments)


def test_clients_without_labels(tmp_path):
    path = laboratory_file(tmp_path / "labs.csv")
    model = MoleculeModel(hidden_dim=8, num_layers=1)
    with pytest.raises(DataError, match=r"client 2 \(c\).*leave_out"):
        fitted(tmp_path, csv_module(path), model)
    data = csv_module(path, unlabelled="leave_out")
    with pytest.warns(UserWarning, match="1 of 3 clients have no target in .* are left out of the federation: c"):
        _, trainer = fitted(tmp_path, data, model)
    assert data.client_names() == ["a", "b"]
    assert data.describe()["left_out"] == ["c"]
    assert trainer.num_clients == 2
    everybody = csv_module(laboratory_file(tmp_path / "all.csv", empty=""), unlabelled="leave_out")
    everybody.setup("fit")
    assert everybody.client_names() == ["a", "b", "c"]
    # those who stay keep their samples
    assert [everybody.num_samples(split)[:2] for split in ("train", "val")] == [
        data.num_samples(split) for split in ("train", "val")
    ]
    with pytest.raises(DataError, match="none of the 2 clients has a target in its training samples"):
        data._leave_out_unlabelled(
            [{"train": torch.tensor([0])}, {"train": torch.tensor([1])}], torch.full((2, 2), NAN)
        )
    with pytest.raises(ConfigurationError, match="unlabelled='drop'"):
        csv_module(path, unlabelled="drop")


@pytest.mark.slow
@pytest.mark.processes
def test_any_number_of_processes_gives_the_same_bits(tmp_path, start_warm):
    """Two clients on one, two and three processes, of which one has no client."""
    path = laboratory_file(tmp_path / "labs.csv")
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(
        "seed_everything: 3\n"
        "trainer: {strategy: fedavg, max_rounds: 2, local_steps: 2, accelerator: cpu, num_threads: 1}\n"
        "model: {class_path: MoleculeModel, init_args: {hidden_dim: 8, num_layers: 1, class_weights: balanced}}\n"
        f"data: {{class_path: MoleculeCSV, init_args: {{path: {path}, target_columns: [A, B], group_column: lab,"
        " unlabelled: leave_out, batch_size: 4}}\n"
    )
    states = []
    for devices in (1, 2, 3):
        root = tmp_path / str(devices)
        succeed(
            start_warm(
                "-m", "lightning_fl", "fit", "--config", str(recipe),
                "--trainer.devices", str(devices), "--trainer.default_root_dir", str(root),
            )
        )  # fmt: skip
        content = torch.load(next(root.rglob("shared_0.ckpt")))
        assert content["hyper_parameters"]["task"] == "classification"
        states.append(content["state_dict"])
    for other in states[1:]:
        assert all(torch.equal(value, other[name]) for name, value in states[0].items())
