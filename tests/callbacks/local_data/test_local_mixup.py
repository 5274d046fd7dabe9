"""Mixup on unchanged modules: what is mixed, and with what."""

from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule
from tiny import TinyClients, TinyModule, same_bits, weights_of
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss
from torch.utils.data import TensorDataset
from torch_geometric.data import Batch, Data

from lightning_fl import ConfigurationError, FederatedTrainer
from lightning_fl.callbacks import LocalMixup
from lightning_fl.core.seeding import generator
from lightning_fl.functional import mix, sample_gamma
from lightning_fl.functional.survival import cox_loss
from lightning_fl.functional.task_metrics import masked_cross_entropy
from lightning_fl.models import MoleculeModel, SurvivalModel


class Holder:
    """All that the callback needs of a trainer: the module."""

    def __init__(self, module: LightningModule) -> None:
        self.module = module


def draws() -> torch.Generator:
    return generator(0, "test")


def expected_draws(alpha: float, size: int) -> tuple[float, Tensor]:
    same = draws()
    gamma = float(sample_gamma(alpha, same))
    return gamma, torch.randperm(size, generator=same)


def around(mixup: LocalMixup, module: LightningModule, batch: Any, compute: Any = None) -> Any:
    compute = compute or (lambda changed: module.training_step(changed, 0))
    return mixup.around_training_step(Holder(module), batch, compute, draws())  # type: ignore[arg-type]


def test_inputs_and_real_targets_are_mixed_alike() -> None:
    x, y = torch.randn(6, 3), torch.randn(6, 1)
    seen: list[list[Tensor]] = []
    around(LocalMixup(alpha=1.0), TinyModule(), [x, y], lambda batch: seen.append(batch))
    gamma, partners = expected_draws(1.0, 6)
    assert 0 < gamma < 1
    torch.testing.assert_close(seen[0][0], gamma * x + (1 - gamma) * x[partners])
    torch.testing.assert_close(seen[0][1], gamma * y + (1 - gamma) * y[partners])


def test_a_gamma_for_every_sample() -> None:
    x, y = torch.randn(6, 3), torch.randn(6, 1)
    seen: list[list[Tensor]] = []
    around(LocalMixup(alpha=1.0, per_sample=True), TinyModule(), [x, y], lambda batch: seen.append(batch))
    same = draws()
    gamma = sample_gamma(1.0, same, (6,))[:, None]
    partners = torch.randperm(6, generator=same)
    assert len(set(gamma.flatten().tolist())) == 6
    torch.testing.assert_close(seen[0][0], gamma * x + (1 - gamma) * x[partners])
    torch.testing.assert_close(seen[0][1], gamma * y + (1 - gamma) * y[partners])


def test_a_gamma_for_every_graph_is_mixed_before_the_head() -> None:
    module, batch = GraphModule(), graphs()
    loss = around(LocalMixup(alpha=1.0, layer="readout", per_sample=True), module, batch)
    same = draws()
    gamma = sample_gamma(1.0, same, (4,))[:, None]
    partners = torch.randperm(4, generator=same)
    embeddings = module.readout(batch)
    embeddings = gamma * embeddings + (1 - gamma) * embeddings[partners]
    torch.testing.assert_close(
        loss, mse_loss(module.head(embeddings), gamma * batch.y + (1 - gamma) * batch.y[partners])
    )


def test_without_mixing_a_gamma_for_every_sample_changes_nothing() -> None:
    batch = [torch.randn(6, 3), torch.randn(6, 1)]
    seen: list[Any] = []
    around(LocalMixup(alpha=0.0, per_sample=True), TinyModule(), batch, lambda same: seen.append(same))
    assert seen[0] is batch


def test_numbers_of_classes_have_no_gamma_for_every_sample() -> None:
    batch = (torch.randn(4, 3), torch.tensor([0, 1, 2, 0]))
    with pytest.raises(ConfigurationError, match="LocalMixup.per_sample=true"):
        around(LocalMixup(per_sample=True), Classifier(), batch)


def test_a_linear_layers_output_mixes_like_its_input() -> None:
    module = TinyModule()
    batch = [torch.randn(5, 3), torch.randn(5, 1)]
    torch.testing.assert_close(
        around(LocalMixup(alpha=1.0, layer="linear"), module, batch), around(LocalMixup(alpha=1.0), module, batch)
    )
    assert not module.linear._forward_hooks


class Classifier(LightningModule):
    """Logits of three classes; the step returns a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(3, 3)

    def training_step(self, batch: Any, batch_idx: int) -> dict[str, Tensor]:
        return {"loss": cross_entropy(self.net(batch[0]), batch[1]), "kept": batch[1]}


def test_classes_are_not_mixed_where_a_module_steps_itself() -> None:
    """Two losses would be two steps; real targets take one loss."""
    module = Classifier()
    module.automatic_optimization = False
    with pytest.raises(ConfigurationError, match="Classifier optimises manually"):
        around(LocalMixup(alpha=1.0), module, (torch.randn(3, 3), torch.tensor([0, 1, 2])))
    around(LocalMixup(alpha=1.0), module, [torch.randn(3, 3), torch.randn(3, 1)], lambda batch: None)


def test_class_labels_give_the_loss_on_mixed_one_hot_targets() -> None:
    torch.manual_seed(0)
    module, x, labels = Classifier(), torch.randn(7, 3), torch.tensor([0, 1, 2, 0, 1, 2, 2])
    output = around(LocalMixup(alpha=1.0), module, (x, labels))
    gamma, partners = expected_draws(1.0, 7)
    one_hot = nn.functional.one_hot(labels, 3).float()
    expected = cross_entropy(module.net(mix(x, partners, gamma)), mix(one_hot, partners, gamma))
    torch.testing.assert_close(output["loss"], expected)
    assert torch.equal(output["kept"], labels)


def test_times_and_events_give_the_sum_of_two_losses() -> None:
    torch.manual_seed(0)
    x, times, events = torch.randn(7, 3), torch.rand(7), torch.tensor([1.0, 0, 1, 1, 0, 0, 1])
    module = SurvivalModel(in_features=3)
    gamma, partners = expected_draws(1.0, 7)
    scores = module(mix(x, partners, gamma))
    own, other = cox_loss(scores, times, events), cox_loss(scores, times[partners], events[partners])
    loss = around(LocalMixup(alpha=1.0), module, (x, torch.stack([times, events], 1)))
    torch.testing.assert_close(loss, gamma * own + (1 - gamma) * other)
    with pytest.raises(ConfigurationError, match="LocalMixup.per_sample=true"):
        around(LocalMixup(per_sample=True), module, (x, torch.stack([times, events], 1)))


class GraphModule(LightningModule):
    """Sum of nodes, then a head: small enough to do by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.readout = Pool()
        self.head = nn.Linear(2, 1)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        return mse_loss(self.head(self.readout(batch)), batch.y)


class Pool(nn.Module):
    def forward(self, batch: Batch) -> Tensor:
        return torch.zeros(batch.num_graphs, 2).index_add(0, batch.batch, batch.x)


def graphs() -> Batch:
    torch.manual_seed(1)
    edges = torch.empty(2, 0, dtype=torch.long)
    return Batch.from_data_list(
        [Data(x=torch.randn(n, 2), edge_index=edges, y=torch.randn(1, 1)) for n in (1, 4, 2, 3)]
    )


def test_graph_embeddings_are_mixed_before_the_head() -> None:
    module, batch = GraphModule(), graphs()
    before = batch.y.clone()
    loss = around(LocalMixup(alpha=1.0, layer="readout"), module, batch)
    gamma, partners = expected_draws(1.0, 4)
    embeddings = mix(module.readout(batch), partners, gamma)
    torch.testing.assert_close(loss, mse_loss(module.head(embeddings), mix(before, partners, gamma)))
    assert torch.equal(batch.y, before)


def test_targets_under_another_key_are_mixed_and_no_others() -> None:
    module, batch = GraphModule(), graphs()
    batch.value = batch.y + 1
    value, y = batch.value.clone(), batch.y.clone()
    seen: list[Any] = []
    mixup = LocalMixup(alpha=1.0, layer="readout", target_key="value")
    around(mixup, module, batch, lambda mixed: seen.append(mixed) or module.readout(mixed))
    gamma, partners = expected_draws(1.0, 4)
    torch.testing.assert_close(seen[0].value, mix(value, partners, gamma))
    assert torch.equal(seen[0].y, y)
    assert torch.equal(batch.value, value)


def test_bounds_of_a_mixture() -> None:
    """Known where both point the same way, or one is a value; g a + (1 - g) b is at least that of lower bounds."""
    batch = graphs()
    batch.y_bound = torch.tensor([[0.0], [1.0], [-1.0], [1.0]])
    seen: list[Any] = []
    module = GraphModule()
    around(
        LocalMixup(alpha=1.0, layer="readout"), module, batch, lambda mixed: seen.append(mixed) or module.readout(mixed)
    )
    gamma, partners = expected_draws(1.0, 4)
    for row, partner in enumerate(partners.tolist()):
        own, other = batch.y_bound[row].item(), batch.y_bound[partner].item()
        expected = gamma * batch.y[row] + (1 - gamma) * batch.y[partner]
        if {own, other} == {1.0, -1.0}:
            assert seen[0].y[row].isnan()
        else:
            torch.testing.assert_close(seen[0].y[row], expected)
            assert seen[0].y_bound[row].item() == (own or other)
    assert batch.y_bound.tolist() == [[0], [1], [-1], [1]]


def test_numbers_of_classes_are_not_mixed() -> None:
    """The weighted sum of the losses with the labels of either partner, gaps and all."""
    torch.manual_seed(0)
    model = MoleculeModel(
        node_dim=2, edge_dim=1, hidden_dim=4, num_layers=1, task="multiclass", num_targets=2, num_classes=3
    )
    model.log = lambda *args, **kwargs: None  # type: ignore[method-assign]
    batch = graphs()
    batch.edge_attr = torch.empty(0, 1)
    batch.y = torch.tensor([[0.0, 2.0], [1.0, torch.nan], [2.0, 0.0], [torch.nan, 1.0]])
    loss = around(LocalMixup(alpha=1.0, layer="readout"), model, batch)
    gamma, partners = expected_draws(1.0, 4)
    embeddings = model.readout(model.encoder(batch.x, batch.edge_index), index=batch.batch, dim_size=4)
    logits = model.head(mix(embeddings, partners, gamma)).unflatten(1, (2, 3))
    expected = gamma * masked_cross_entropy(logits, batch.y) + (1 - gamma) * masked_cross_entropy(
        logits, batch.y[partners]
    )
    torch.testing.assert_close(loss, expected)


def test_never_mixing_is_plain_training() -> None:
    results = []
    for callbacks in ([], [LocalMixup(alpha=0.0)], [LocalMixup(alpha=1.0)]):
        module = TinyModule()
        FederatedTrainer(max_rounds=2, callbacks=callbacks, enable_progress_bar=False, logger=False).fit(
            module, TinyClients()
        )
        results.append(weights_of(module))
    assert same_bits(results[0], results[1])
    assert not same_bits(results[0], results[2])


def test_partners_are_of_the_same_client() -> None:
    """Clients on separate lines y = c: a mixed target of a client is its own c, whatever gamma is."""
    seen: dict[int, set[float]] = {0: set(), 1: set()}

    class Watching(TinyModule):
        def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
            seen[self.trainer.client].update(batch[1].flatten().tolist())  # type: ignore[attr-defined]
            return super().training_step(batch, batch_idx)

    data = TinyClients((8, 8))
    for client in (0, 1):
        data.sets[client, "train"] = TensorDataset(torch.randn(8, 3), torch.full((8, 1), float(client)))
    trainer = FederatedTrainer(max_rounds=3, callbacks=[LocalMixup(alpha=1.0)], enable_progress_bar=False, logger=False)
    trainer.fit(Watching(), data)
    assert seen == {0: {0.0}, 1: {1.0}}


def test_errors_name_the_layer() -> None:
    module, batch = GraphModule(), graphs()
    with pytest.raises(ConfigurationError, match="layer='readuot'.* readout"):
        LocalMixup(alpha=1.0, layer="readuot").on_fit_start(Holder(module))  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match=r"DataBatch: .*LocalMixup\.layer"):
        around(LocalMixup(alpha=1.0), module, batch)

    class Nodes(GraphModule):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = nn.Linear(2, 2)

        def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
            self.encoder(batch.x)
            return super().training_step(batch, batch_idx)

    with pytest.raises(ConfigurationError, match=r"layer: .*\(10, 2\) for 4"):
        around(LocalMixup(alpha=1.0, layer="encoder"), Nodes(), batch)

    class Twice(GraphModule):
        def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
            return super().training_step(batch, 0) + super().training_step(batch, 0)

    with pytest.raises(ConfigurationError, match="layer: .* 2 times"):
        around(LocalMixup(alpha=1.0, layer="readout"), Twice(), batch)
