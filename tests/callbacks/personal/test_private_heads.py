"""A shared trunk with private heads: scales and heads stay with their clients, the trunk is averaged."""

import pytest
import torch
from torch_geometric.data import Data

from lightning_fl import FederatedTrainer
from lightning_fl.callbacks import LocalReference, PrivateHeads
from lightning_fl.core.errors import ConfigurationError
from lightning_fl.data import Silos
from lightning_fl.models import MoleculeModel
from lightning_fl.strategies import Ditto, MaxFL

NAN = float("nan")


def molecules(count, shift, seed, scale=1.0, binary=False):
    """Chains whose first target is theirs and whose second one nobody but the first client has."""
    generator = torch.Generator().manual_seed(seed)
    graphs = []
    for number in range(count):
        size = 2 + number % 3
        edges = [pair for i in range(size - 1) for pair in ((i, i + 1), (i + 1, i))]
        value = shift + scale * torch.randn(1, generator=generator).item()
        if binary:
            value = float(value > shift)
        graphs.append(
            Data(
                x=torch.randn(size, 3, generator=generator),
                edge_index=torch.tensor(edges).t().contiguous(),
                edge_attr=torch.ones(len(edges), 2),
                y=torch.tensor([[value, (value if binary else value / 2) if seed == 0 else NAN]]),
            )
        )
    return graphs


def laboratories(**arguments):
    return Silos(
        {
            "north": {"train": molecules(12, 100.0, 0, **arguments), "val": molecules(6, 100.0, 0, **arguments)},
            "south": {"train": molecules(9, -3.0, 1, 0.1, **arguments), "val": molecules(6, -3.0, 1, **arguments)},
        },
        batch_size=4,
    )


def make_model(**arguments):
    torch.manual_seed(0)
    sizes = {"node_dim": 3, "edge_dim": 2, "hidden_dim": 8, "num_layers": 2, "num_targets": 2}
    return MoleculeModel(**(sizes | arguments))


def fit(tmp_path, model, callbacks, data=None, rounds=2, ckpt_path=None, **settings):
    trainer = FederatedTrainer(
        max_rounds=rounds,
        local_steps=3,
        accelerator="cpu",
        devices=1,
        default_root_dir=str(tmp_path),
        enable_progress_bar=False,
        callbacks=callbacks,
        **settings,
    )
    trainer.fit(model, data or laboratories(), ckpt_path=ckpt_path)
    return trainer


def state_of(trainer, name):
    return torch.load(f"{trainer.log_dir}/models/{name}.ckpt", weights_only=True)["state_dict"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return fit(tmp_path_factory.mktemp("trained"), make_model(), [PrivateHeads()])


def test_every_client_has_the_scale_of_its_own_targets(trained):
    data = laboratories()
    for client, name in enumerate(("north", "south")):
        values = torch.cat([graph.y for graph in data.client_data(client, "train")]).double()
        state = state_of(trained, name)
        assert state["target_mean"][0].item() == pytest.approx(values[:, 0].mean().item(), rel=1e-6)
        assert state["target_scale"][0].item() == pytest.approx(values[:, 0].std(correction=0).item(), rel=1e-5)
    south = state_of(trained, "south")
    assert (south["target_mean"][1].item(), south["target_scale"][1].item()) == (0, 1)  # which it has not measured


def test_the_trunk_is_shared_and_heads_are_not(trained):
    north, south, shared = (state_of(trained, name) for name in ("north", "south", "shared_0"))
    start = make_model().state_dict()
    for name in north:
        if name.startswith(("encoder", "readout")):
            assert torch.equal(north[name], south[name])
            assert torch.equal(north[name], shared[name])
        elif name.startswith("head"):
            assert not torch.equal(north[name], south[name])
            assert torch.equal(shared[name], start[name])  # nobody's head is in the shared model


@pytest.mark.parametrize("strategy", [Ditto, MaxFL])
def test_further_trainings_of_a_client_begin_with_its_scale_and_head(tmp_path, strategy):
    """On targets near 1e6 no other scale comes to anything."""
    clients = {
        name: {"train": molecules(12, shift, seed), "val": molecules(6, shift, seed)}
        for seed, (name, shift) in enumerate({"north": 1e6, "south": 0.0}.items())
    }
    kept = {}

    class Heard(strategy):
        def end_client(self, turn, weights):
            super().end_client(turn, weights)
            kept[turn.client] = dict(turn.kept)
            if strategy is Ditto:
                kept[turn.client]["own loss"] = turn.training_loss(turn.kept["own"])

    trainer = fit(tmp_path, make_model(), [PrivateHeads()], Silos(clients, batch_size=4), strategy=Heard())
    for client, name in enumerate(clients):
        for figure in kept[client].keys() & {"threshold", "loss", "own loss"}:
            assert 0 < kept[client][figure] < 10, (name, figure)
    assert trainer.metrics["val"]["val/rmse"].worst < 10


def test_training_alone_has_the_same_start(tmp_path):
    # One client: the federation is the client, and its reference must be the same to the last bit.
    data = Silos({"north": {"train": molecules(12, 100.0, 0), "val": molecules(6, 100.0, 0)}}, batch_size=4)
    trainer = fit(tmp_path, make_model(), [PrivateHeads(), LocalReference()], data)
    metrics = trainer.metrics["val"]
    assert metrics["val/rmse"].clients == metrics["val/local/rmse"].clients
    assert metrics["val/rmse"].mean < 50  # on the scale of values around 100


def test_a_resumed_run_has_the_same_bits(tmp_path):
    whole = fit(tmp_path / "whole", make_model(), [PrivateHeads(), LocalReference()], rounds=4)
    half = fit(tmp_path / "half", make_model(), [PrivateHeads(), LocalReference()], rounds=2)
    last = f"{half.log_dir}/checkpoints/last.ckpt"
    resumed = fit(tmp_path / "on", make_model(), [PrivateHeads(), LocalReference()], rounds=4, ckpt_path=last)
    for name in ("north", "south", "shared_0"):
        one, two = state_of(whole, name), state_of(resumed, name)
        assert all(torch.equal(one[key], two[key]) for key in one)


def test_a_classification_has_no_scale_to_keep(tmp_path):
    trainer = fit(tmp_path, make_model(task="classification"), [PrivateHeads()], laboratories(binary=True))
    assert trainer.federation.personal.patterns == ["head"]


def test_classes_are_not_weighed_over_different_targets(tmp_path):
    model = make_model(task="classification", class_weights="balanced")
    with pytest.raises(ConfigurationError, match="class_weights='balanced'"):
        fit(tmp_path, model, [PrivateHeads()], laboratories(binary=True))


def test_the_reference_may_be_named_before_it(tmp_path):
    orders = [LocalReference(), PrivateHeads()], [PrivateHeads(), LocalReference()]
    one, other = (fit(tmp_path / str(number), make_model(), order) for number, order in enumerate(orders))
    assert one.metrics["val"] == other.metrics["val"]


def test_unknown_layers(tmp_path):
    with pytest.raises(ConfigurationError, match=r"layers=.*'tail' matches no layer"):
        fit(tmp_path, make_model(), [PrivateHeads(layers=["tail"])])
