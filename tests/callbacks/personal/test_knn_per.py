"""kNN-Per: against a plain loop, with everything that trains, and what is asked of a module."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule
from tiny import TinyClients, TinyModule, digest, quiet_trainer
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from lightning_fl import ConfigurationError, FederatedDataModule, FederatedTrainer
from lightning_fl.callbacks import (
    IFCA,
    BestClientModels,
    Callback,
    CollaborationGraph,
    FineTuning,
    KNNPer,
    ModelCheckpoint,
    PersonalLayers,
)
from lightning_fl.engine.probes.layer_records import exact_targets, layer_records
from lightning_fl.functional.neighbors import Neighbors
from lightning_fl.strategies import Ditto, FedAvg

pytestmark = pytest.mark.filterwarnings("ignore:.*shuffle.*")


class Blobs(FederatedDataModule):
    """Two clients with two features and three classes, float64; the second one's labels are turned by one."""

    def __init__(self, sizes: tuple[int, int] = (14, 9), targets: Any = None, parts: tuple[str, ...] = ()) -> None:
        super().__init__(batch_size=5, shuffle=True)
        self.sets = {}
        for client, size in enumerate(sizes):
            for number, split in enumerate(("train", "val", "test")):
                draws = torch.Generator().manual_seed(10 * client + number)
                count = size if split == "train" else 7
                labels = torch.arange(count) % 3
                x = torch.randn(count, 2, dtype=torch.float64, generator=draws) + 1.5 * labels.unsqueeze(1)
                y = (labels + client) % 3
                self.sets[client, split] = TensorDataset(x, y if targets is None else targets(x, y))
        self.parts = parts or ("train", "val", "test")

    @property
    def num_clients(self) -> int:
        return 2

    def client_data(self, client: int, split: str) -> TensorDataset | None:
        return self.sets[client, split] if split in self.parts or split == "train" else None


class Classifier(LightningModule):
    """A body and a head; what it logs and predicts is its own affair."""

    outputs = 3

    def __init__(self, dropout: float = 0.0, norm: bool = False) -> None:
        super().__init__()
        draws = torch.Generator().manual_seed(4)
        self.body = nn.Sequential(
            nn.Linear(2, 4), nn.BatchNorm1d(4) if norm else nn.Identity(), nn.Tanh(), nn.Dropout(dropout)
        ).double()
        self.head = nn.Linear(4, self.outputs).double()
        with torch.no_grad():
            for layer in (self.body[0], self.head):
                layer.weight.copy_(torch.randn(layer.weight.shape, generator=draws))
                layer.bias.zero_()

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))

    def loss(self, outputs: Tensor, y: Tensor) -> Tensor:
        return nn.functional.cross_entropy(outputs, y)

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        return self.loss(self(batch[0]), batch[1])

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        self.log("val_loss", self.loss(self(batch[0]), batch[1]))

    def test_step(self, batch: list[Tensor], batch_idx: int) -> None:
        outputs = self(batch[0])
        self.log("test_loss", self.loss(outputs, batch[1]))
        self.log("test_acc", (outputs.argmax(1) == batch[1].flatten()).double().mean())

    def predict_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        return self(batch[0]).softmax(1)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


def trainer(*callbacks: Callback, root: Path | None = None, **settings: Any) -> FederatedTrainer:
    given = {"max_rounds": 2, "local_epochs": 1, "seed": 3, "default_root_dir": root}
    return quiet_trainer(*callbacks, **(given | settings))


def plain_knn(
    module: Classifier, data: Blobs, client: int, split: str, k: int, scale: float = 1.0
) -> list[list[float]]:
    """p_knn of every sample of a split, in Python's numbers."""
    keys, labels = data.sets[client, "train"].tensors
    module.eval()
    with torch.no_grad():
        memory = module.body(keys).tolist()
        queries = module.body(data.sets[client, split].tensors[0]).tolist()
    found = []
    for query in queries:
        near = sorted((sum((a - b) ** 2 for a, b in zip(query, key, strict=True)), j) for j, key in enumerate(memory))
        kernel = {j: math.exp(-squared / (len(query) * scale)) for squared, j in near[:k]}
        total = math.fsum(kernel.values())
        found.append([math.fsum(w for j, w in kernel.items() if labels[j] == c) / total for c in range(3)])
    return found


def mixed(module: Classifier, data: Blobs, client: int, split: str, k: int, share: float, scale: float = 1.0) -> Tensor:
    with torch.no_grad():
        own = module(data.sets[client, split].tensors[0]).softmax(1)
    return (
        share * torch.tensor(plain_knn(module, data, client, split, k, scale), dtype=torch.float64) + (1 - share) * own
    )


def shared(run: FederatedTrainer, client: int = 0) -> Classifier:
    """A module of its own with what a client uses."""
    module = Classifier()
    names = [span.name for span in run.loop.flat.spans()]
    assert set(names) <= set(module.state_dict())
    present = run.loop.flat.collect().clone()
    run.loop.flat.load(run.client_model(client))
    module.load_state_dict({name: value.clone() for name, value in run.module.state_dict().items()})  # type: ignore[union-attr]
    run.loop.flat.load(present)
    return module


def nll(probabilities: Tensor, y: Tensor) -> float:
    return -float(probabilities[torch.arange(len(y)), y].log().mean())


# -- numbers -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("k", "share", "scale"), [(3, 0.5, 1.0), (10, 0.25, 0.3), (20, 1.0, 2.0)])
def test_a_plain_loop_says_the_same(k: int, share: float, scale: float) -> None:
    """Losses and metrics that the module logs, and what it predicts; 20 neighbours are more than samples."""
    data, module = Blobs(), Classifier()
    run = trainer(KNNPer(k=k, interpolation=share, scale=scale), max_rounds=3)
    run.fit(module, data)
    found = run.metrics["val"]["val_loss"].clients
    tested = run.test(module, data)
    predicted = run.predict(module, data)
    for client in (0, 1):
        own = shared(run, client)
        expected = {split: mixed(own, data, client, split, k, share, scale) for split in ("val", "test")}
        labels = {split: data.sets[client, split].tensors[1] for split in ("val", "test")}
        assert found[client] == pytest.approx(nll(expected["val"], labels["val"]), rel=1e-10)
        assert tested["test_loss"].clients[client] == pytest.approx(nll(expected["test"], labels["test"]), rel=1e-10)
        right = float((expected["test"].argmax(1) == labels["test"]).double().mean())
        assert tested["test_acc"].clients[client] == pytest.approx(right, rel=1e-10)
        torch.testing.assert_close(torch.cat(predicted[client]), expected["test"], rtol=1e-10, atol=1e-12)


def test_validation_chooses_the_share_with_the_fewest_errors_for_each_client() -> None:
    data, module = Blobs(), Classifier()
    run = trainer(KNNPer(k=3, interpolation="validation"), max_rounds=3, optimizer_state="fresh")
    run.fit(module, data)
    tested, chosen = run.test(module, data), []
    for client in (0, 1):
        own, labels = shared(run, client), data.sets[client, "val"].tensors[1]
        shares = [mixed(own, data, client, "val", 3, step / 10) for step in range(11)]
        scores = [(int((found.argmax(1) != labels).sum()), nll(found, labels)) for found in shares]
        chosen.append(scores.index(min(scores)) / 10)
        expected = nll(mixed(own, data, client, "test", 3, chosen[-1]), data.sets[client, "test"].tensors[1])
        assert tested["test_loss"].clients[client] == pytest.approx(
            expected, rel=1e-7
        )  # as logged, in single precision
    assert chosen[1] > chosen[0] >= 0  # the second client, whom the shared model does not fit, trusts itself more


def test_a_share_of_none_is_fedavg_to_the_bit() -> None:
    runs = []
    for callbacks in ([KNNPer(interpolation=0.0)], []):
        run, module, data = trainer(*callbacks), Classifier(), Blobs()
        run.fit(module, data)
        found = [run.metrics["val"], run.test(module, data), run.communication.summary(data.client_names())]
        runs.append((found, [torch.cat(of) for of in run.predict(module, data).values()]))
    (first, predicted), (second, expected) = runs
    assert first == second
    assert all(map(torch.equal, predicted, expected))


class Numbers(Classifier):
    outputs = 2

    def loss(self, outputs: Tensor, y: Tensor) -> Tensor:
        return nn.functional.mse_loss(outputs[~y.isnan()], y[~y.isnan()])

    def predict_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        return self(batch[0])


def two_numbers(x: Tensor, y: Tensor) -> Tensor:
    """Sums and products; every third product is missing."""
    targets = torch.stack([x.sum(1), x.prod(1)], 1)
    targets[::3, 1] = torch.nan
    return targets


def test_numbers_are_mixed_with_the_mean_of_the_neighbours_that_have_them() -> None:
    data, module = Blobs(targets=two_numbers), Numbers()
    run = trainer(KNNPer(k=4, interpolation=0.4))
    run.fit(module, data)
    predicted = run.predict(module, data)
    for client in (0, 1):
        keys, targets = data.sets[client, "train"].tensors
        with torch.no_grad():
            module.eval()
            memory = module.body(keys)
            queries = module.body(data.sets[client, "test"].tensors[0])
            own = module.head(queries)
        for query, row, made in zip(queries, own, torch.cat(predicted[client]), strict=True):
            squared = (memory - query).square().sum(1)
            near = squared.argsort(stable=True)[:4]
            for column in (0, 1):
                known = [j for j in near.tolist() if not targets[j, column].isnan()]
                kernel = [math.exp(-float(squared[j]) / 4) for j in known]
                mean = sum(w * float(targets[j, column]) for w, j in zip(kernel, known, strict=True)) / sum(
                    kernel or [1]
                )
                expected = 0.4 * mean + 0.6 * float(row[column]) if known else float(row[column])
                assert float(made[column]) == pytest.approx(expected, rel=1e-9, abs=1e-12)


class Standardised(Numbers):
    """Learns numbers on a scale of its own, and says so."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("target_mean", torch.tensor([50.0, -3.0]).double())
        self.register_buffer("target_scale", torch.tensor([10.0, 2.0]).double())

    def loss(self, outputs: Tensor, y: Tensor) -> Tensor:
        return super().loss(outputs, (y - self.target_mean) / self.target_scale)

    def predict_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        return self(batch[0]) * self.target_scale + self.target_mean


def test_numbers_on_a_scale_of_the_module() -> None:
    """All shares to the single nearest sample: the prediction is its target, in the data's unit."""
    data, module = Blobs(targets=lambda x, y: 50 + 9 * torch.stack([x.sum(1), x.prod(1)], 1)), Standardised()
    run = trainer(KNNPer(k=1, interpolation=1.0))
    run.fit(module, data)
    predicted = torch.cat(run.predict(module, data)[0])
    targets = data.sets[0, "train"].tensors[1]
    assert all(float((targets - row).abs().sum(1).min()) < 1e-9 for row in predicted)


# -- training knows nothing of it --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("strategy", "more"),
    [
        (FedAvg, list),
        (FedAvg, lambda: [CollaborationGraph(budget=2)]),
        (FedAvg, lambda: [IFCA(num_clusters=2)]),
        (Ditto, list),
    ],
)
def test_training_has_the_same_bits(strategy: type[FedAvg], more: Any) -> None:
    """With dropout, statistics, momentum that is kept, metrics' names and personal layers."""
    runs = []
    for extra in ([KNNPer(k=3)], []):
        run = trainer(
            *more(), *extra, PersonalLayers(layers=["head.bias"]), strategy=strategy(), optimizer_state="keep"
        )
        run.fit(Classifier(dropout=0.3, norm=True), Blobs())
        runs.append(run)
    with_, without = runs
    assert [digest(model) for model in with_.models] == [digest(model) for model in without.models]
    assert with_.metrics["train"] == without.metrics["train"]
    assert with_.communication.summary(["a", "b"]) == without.communication.summary(["a", "b"])  # no byte is sent
    if not isinstance(more() and more()[0], CollaborationGraph):  # which goes by the models' own validation
        assert with_.metrics["val"] != without.metrics["val"]


# -- which model -------------------------------------------------------------------------------------------------------

WAYS: dict[str, tuple[Any, Any, str]] = {
    "FedAvg": (FedAvg, list, "the shared model"),
    "Ditto": (Ditto, list, "each client's own model, trained alongside the shared model"),
    "fine-tuned": (
        FedAvg,
        lambda: [FineTuning(steps=2, every_evaluation=True)],
        "the shared model, fine-tuned by 2 steps",
    ),
    "best rounds": (FedAvg, lambda: [BestClientModels()], "the shared model, of its best round"),
    "own layers": (
        FedAvg,
        lambda: [PersonalLayers(layers=["head"])],
        "the shared model, with each client's own layers",
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_the_model_that_is_interpolated_is_the_exported_one(way: str, tmp_path: Path) -> None:
    """Whose predictions in plain Lightning are the run's, when a hook mixes them by hand as the documentation says."""
    strategy, more, words = WAYS[way]
    data = Blobs()
    checkpoint = ModelCheckpoint(monitor="val_loss")
    run = trainer(
        *more(), KNNPer(k=3), checkpoint, strategy=strategy(), max_rounds=3, root=tmp_path, enable_checkpointing=True
    )
    module = Classifier(norm=True)
    run.fit(module, data)
    tested = run.test(module, data, ckpt_path=run.trained_checkpoint)["test_loss"].clients
    assert run.evaluated_model == f"{words}, interpolated with 3 neighbours (share 0.5)"
    for client in (0, 1):
        plain = Classifier(norm=True)
        file = Path(run.log_dir) / "models" / f"client_{client}.ckpt"
        plain.load_state_dict(torch.load(file, weights_only=True)["state_dict"])
        plain.eval()
        (x, y), (own, labels) = (data.sets[client, split].tensors for split in ("test", "train"))
        with torch.no_grad():
            embeddings = plain.body(own)
            neighbors = Neighbors.of(embeddings, plain.head(embeddings), labels, "classes", k=3)
            plain.head.register_forward_hook(lambda _, given, made, mix=neighbors: mix.mixed(given[0], made, 0.5))
            assert tested[client] == pytest.approx(float(plain.loss(plain(x), y)), rel=1e-9)


def test_what_local_training_leaves_is_judged_alike() -> None:
    """Before and after an average the same measure counts."""
    seen = []

    class Seen(KNNPer):
        def around_evaluation(self, run: Any, client: int, weights: Any) -> Any:
            seen.append((run.current_round, client))
            return super().around_evaluation(run, client, weights)

    trainer(Seen(k=2), BestClientModels(before_averaging=True), max_rounds=1).fit(Classifier(), Blobs())
    of_round, of_best = [(0, 0), (0, 1), (1, 0), (1, 1)], [(1, 0), (1, 1)]
    assert seen == of_round + of_best


# -- what is asked of a module -----------------------------------------------------------------------------------------


class Forbidden(Classifier):
    """Nothing may be trained."""

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        pytest.fail("it trains")


class NoLinear(Forbidden):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Tanh(), nn.Bilinear(2, 2, 3).double()  # type: ignore[assignment]


class NoValidation(Forbidden):
    validation_step = LightningModule.validation_step


class Twice(Forbidden):
    def forward(self, x: Tensor) -> Tensor:
        return (super().forward(x) + super().forward(x)) / 2


class Whole(Forbidden):
    """The head runs on three vectors for each sample."""

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x).unsqueeze(1).expand(-1, 3, -1)).mean(1)


class Turned(Forbidden):
    """Its loss is of other classes than its last layer's."""

    def loss(self, outputs: Tensor, y: Tensor) -> Tensor:
        return super().loss(outputs.roll(1, 1), y)


class OtherScale(Numbers):
    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        pytest.fail("it trains")

    def loss(self, outputs: Tensor, y: Tensor) -> Tensor:
        return super().loss(3 * outputs + 1, y)


class YesOrNo(Forbidden):
    outputs = 1

    def loss(self, outputs: Tensor, y: Tensor) -> Tensor:
        return nn.functional.binary_cross_entropy_with_logits(outputs, y)


def yes_or_no(x: Tensor, y: Tensor) -> Tensor:
    return (y > 0).double().unsqueeze(1)


@pytest.mark.parametrize(
    ("module", "arguments", "data", "message"),
    [
        (NoLinear, {}, {}, r"KNNPer.layer: NoLinear .* body, head"),
        (Forbidden, {"layer": "neck"}, {}, r"KNNPer.layer='neck': Forbidden .*body, bo"),
        (NoValidation, {}, {}, r"KNNPer .*NoValidation.*validation_step|KNNPer .*validation_step.*NoValidation"),
        (Twice, {}, {}, r"layer='head'"),
        (Whole, {}, {}, r"layer='head'"),
        (Forbidden, {"layer": "body.0"}, {}, r"as classes\) Forbidden logs val_loss = "),
        (Turned, {}, {}, r"the layer 'head': .*\(as classes\) Turned logs"),
        (OtherScale, {}, {"targets": two_numbers}, r"as values\) OtherScale logs val_loss = .*target_mean and tar"),
        (YesOrNo, {}, {"targets": yes_or_no}, r"KNNPer, of the layer 'head': .*task"),
        (YesOrNo, {"task": "values"}, {"targets": yes_or_no}, r"as values\) YesOrNo logs val_loss = .*KNNPer.task"),
        (Forbidden, {"task": "values"}, {}, r"do not fit targets of shape \[14\] and type torch.int64 as values"),
        (
            Forbidden,
            {"interpolation": "validation"},
            {"parts": ("test",)},
            r"KNNPer.interpolation=validation.*client_0, client_1",
        ),
    ],
)
def test_what_cannot_work_is_refused_before_training(
    module: type[Classifier], arguments: dict[str, Any], data: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        trainer(KNNPer(**arguments)).fit(module(), Blobs(**data))


def test_yes_and_no_as_real_numbers_are_mixed_where_the_task_is_named() -> None:
    class Answers(YesOrNo):
        training_step = Classifier.training_step

        def predict_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
            return self(batch[0]).sigmoid()

    data, module = Blobs(targets=yes_or_no), Answers()
    run = trainer(KNNPer(k=1, interpolation=1.0, task="binary"))
    run.fit(module, data)
    predicted = torch.cat(run.predict(module, data)[1])
    assert bool(((predicted < 1e-9) | (predicted > 1 - 1e-9)).all())
    assert 0 < float(predicted.mean()) < 1


def test_compiled_steps_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="KNNPer .*trainer.compile"):
        trainer(KNNPer(), compile={"backend": "eager"}).fit(Forbidden(), Blobs())


def test_bounds_are_no_values() -> None:
    from torch_geometric.data import Batch, Data

    graphs = [
        Data(x=torch.ones(1, 1), y=torch.tensor([[float(i), 2.0]]), y_bound=torch.tensor([[0, i]])) for i in (0, 1)
    ]
    found = exact_targets(Batch.from_data_list(graphs))
    assert torch.equal(found.isnan(), torch.tensor([[False, False], [False, True]]))
    assert torch.equal(exact_targets([torch.ones(2), torch.tensor([3, 4])]), torch.tensor([3, 4]))


def test_a_layer_that_gives_a_single_number() -> None:
    run, module = trainer(KNNPer(k=2)), TinyModule(norm=True)
    run.fit(module, TinyClients())
    run.loop.flat.to(run.fabric.device)  # after a run it is on the host
    records = layer_records(run.loop, 0, run.client_model(0), "val", "linear", module.linear)
    assert records is not None
    assert [len(part) for part in records] == [6, 6, 6]
