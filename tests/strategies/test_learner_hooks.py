"""What a strategy may change in a round, and what is kept of it. Numbers of whole runs are in ``test_battery.py``."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from bowls import FOUR, TWO, Bowls, LossIsNaN, Regrouped, points, roll
from learners import Everything, Neutral
from observers import AfterRounds, Learned, Resting
from parabolas import OneWeight, TwoParabolas, Watched, parabolas, trainer
from tiny import ManualModule, TinyClients, TinyModule, digest
from torch import Tensor, nn

from lightning_fl import ConfigurationError, FederatedTrainer
from lightning_fl.callbacks import (
    HCCT,
    IFCA,
    Callback,
    CollaborationGraph,
    DROClientSampling,
    LocalTraining,
    PersonalLayers,
    ShapleyRewards,
    SoftAveraging,
    TierBidding,
    Tokens,
    UniformSampling,
)
from lightning_fl.callbacks.callback import RENAMED_HOOKS
from lightning_fl.engine.client import ClientTurn, ClientUpdate
from lightning_fl.engine.learner import ModelUpdate
from lightning_fl.engine.weights.flat import Weights
from lightning_fl.strategies import SCAFFOLD, Ditto, FedAvg, FedProx

# -- neutral, and on what comes with it --------------------------------------------------------------------------------


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "whole"])
def test_neutral_hooks_keep_the_bits_of_fedavg(optimizer: str) -> None:
    class Chosen(TinyModule):
        def configure_optimizers(self) -> torch.optim.Optimizer:
            if optimizer == "adam":
                return torch.optim.Adam(self.parameters(), lr=0.01, weight_decay=0.1)
            return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9, weight_decay=0.1)

        if optimizer == "whole":

            def optimizer_step(self, epoch: int, batch_idx: int, optimizer: Any, closure: Any = None) -> None:
                optimizer.step(closure=closure)

    found = []
    for strategy in (FedAvg(), Neutral()):
        run = trainer(PersonalLayers(layers=["linear.bias"]), strategy=strategy, gradient_clip_val=1.0)
        run.fit(Chosen(dropout=0.2, norm=True), TinyClients())
        found.append((digest(run.models[0]), run.metrics["val"], run.communication.summary(["a", "b", "c"])))
    assert found[0] == found[1]


def test_unreached_and_personal_and_frozen_parameters_are_not_corrected() -> None:
    class Unreached(TinyModule):
        def __init__(self) -> None:
            super().__init__()
            self.spare, self.frozen = nn.Linear(2, 2), nn.Linear(2, 2)
            self.frozen.requires_grad_(False)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.05, weight_decay=0.5)

    class One(FedAvg):
        """Adds one to every entry there is, but for those of ``spare``."""

        def correct_gradient_(self, turn: ClientTurn, gradient: Weights, weights: Weights) -> None:
            seen.append({dtype: vector.clone() for dtype, vector in gradient.floating()})
            for _, vector in gradient.floating():
                vector.add_(1.0)
            names = {span.name: span for span in run.loop.flat.spans()}
            for name in ("spare.weight", "spare.bias"):
                gradient.vectors[torch.float32][names[name].begin : names[name].end] = 0.0

    seen: list[dict[torch.dtype, Tensor]] = []
    module = Unreached()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    run = trainer(PersonalLayers(layers=["linear.bias"]), strategy=One(), max_rounds=1, local_steps=1)
    run.fit(module, TinyClients())
    plain_module = Unreached()
    plain = trainer(PersonalLayers(layers=["linear.bias"]), max_rounds=1, local_steps=1)
    plain.fit(plain_module, TinyClients())
    after, unchanged = module.state_dict(), plain_module.state_dict()
    for name in ("spare.weight", "spare.bias", "frozen.weight", "frozen.bias"):
        assert torch.equal(after[name], before[name]), name  # not even decayed
    assert torch.equal(after["linear.bias"], unchanged["linear.bias"])
    torch.testing.assert_close(after["linear.weight"], unchanged["linear.weight"] - 0.05)
    assert len(seen) == 3


def test_a_correction_is_clipped_and_comes_once_in_an_accumulation() -> None:
    class Large(FedAvg):
        def correct_gradient_(self, turn: ClientTurn, gradient: Weights, weights: Weights) -> None:
            calls.append(turn.client)
            for _, vector in gradient.floating():
                vector.fill_(100.0)

    calls: list[int] = []
    module = TinyModule()
    before = module.linear.weight.detach().clone()
    run = trainer(
        strategy=Large(),
        max_rounds=1,
        local_steps=1,
        accumulate_grad_batches=2,
        gradient_clip_val=0.1,
        gradient_clip_algorithm="value",
    )
    run.fit(module, TinyClients())
    assert calls == [0, 1, 2]
    torch.testing.assert_close(module.linear.weight, before - 0.05 * 0.1)


def test_a_module_that_steps_by_itself_is_corrected_too() -> None:
    models = []
    for kind in (ManualModule, TinyModule):
        run = trainer(strategy=FedProx(mu=2.0))
        run.fit(kind(), TinyClients())
        models.append(run.models[0])
    plain = trainer()
    plain.fit(TinyModule(), TinyClients())
    torch.testing.assert_close(models[0].vectors, models[1].vectors)
    assert not models[0].equal(plain.models[0])


# -- states: of whom, and when they are forgotten ----------------------------------------------------------------------


def test_a_turn_that_fails_changes_nothing_that_is_kept() -> None:
    watched = Watched()
    run = trainer(LossIsNaN(1, 2), watched, strategy=Everything(), on_client_error="skip", max_rounds=3)
    with pytest.warns(UserWarning, match="client 1 .* is left out of round 2"):
        run.fit(OneWeight(), TwoParabolas())
    kept = [json.dumps(of_round[1], default=lambda value: value.tolist()) for of_round in watched.kept]
    assert kept[0] == kept[1] != kept[2]


def test_weights_that_cannot_be_added_forget_what_the_turn_has_kept() -> None:
    class Diverges(Ditto):
        def client_update(self, turn: ClientTurn, weights: Weights) -> ClientUpdate:
            return ClientUpdate(turn.combine((float("nan") if turn.client == 0 else 1.0, weights)))

    watched = Watched()
    run = trainer(watched, strategy=Diverges(), on_client_error="skip", max_rounds=1)
    with pytest.warns(UserWarning, match="client 0 .* the weights are not finite"):
        run.fit(OneWeight(), TwoParabolas())
    assert list(watched.kept[0]) == [1]


def test_the_sums_are_of_those_who_arrived(tmp_path: Path) -> None:
    """The third client's weights could be added, its control could not."""
    far = (10, 1.0, (8e12,))
    settings: dict[str, Any] = {"root": tmp_path, "on_client_error": "skip", "max_rounds": 1}
    for callbacks in ([], [Regrouped([0, 0, 0], [0, 0, 0])]):
        with pytest.warns(UserWarning, match="client 2 .* is left out of round 1"):
            run = roll(Bowls(*TWO, far), *callbacks, strategy=SCAFFOLD(), **settings)
        torch.testing.assert_close(points(run), points(roll(Bowls(*TWO), strategy=SCAFFOLD(), **settings)))


def test_a_client_that_failed_goes_on_from_what_it_kept_before() -> None:
    """Its optimiser would stay NaN for ever."""

    class Kept(TinyModule):
        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.Adam(self.parameters(), lr=0.01, foreach=False)
            return {"optimizer": optimizer, "lr_scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1)}

    def look(run: FederatedTrainer) -> Any:
        state = run.client_states[1].state_dict()
        return json.dumps(state, default=lambda value: value.tolist()), sorted(run.survivors)

    looks = AfterRounds(look)
    run = trainer(LossIsNaN(1, 2), looks, optimizer_state="keep", on_client_error="skip", max_rounds=3)
    with pytest.warns(UserWarning, match="client 1 .* is left out of round 2"):
        run.fit(Kept(), TinyClients())
    states, survivors = zip(*looks.found, strict=True)
    assert list(survivors) == [[0, 1, 2], [0, 2], [0, 1, 2]]
    assert states[0] == states[1] != states[2]


def test_a_server_s_state_stays_with_a_coalition_that_stays() -> None:
    class Counts(FedAvg):
        def aggregate(self, update: ModelUpdate) -> Weights:
            update.state["rounds"] = update.state.get("rounds", 0) + 1
            return update.average

    watched = Watched()
    regrouped = Regrouped([0, 0, 1], [1, 1, 0], [0, 1, 2], [0, 1, 2], since=1)
    trainer(regrouped, watched, strategy=Counts(), max_rounds=4).fit(OneWeight(), Bowls(*FOUR[:3]))
    counts = [[state["rounds"] for _, state in sorted(states.items())] for states in watched.states]
    assert counts == [[1, 1], [2, 2], [1, 1, 3], [2, 2, 4]]


# -- what callbacks do with it -----------------------------------------------------------------------------------------


def test_losses_that_choose_and_weigh_are_the_module_s_own() -> None:
    """A term of the strategy's that tells clients apart would change who is drawn, and who uses which model."""

    class Term(FedAvg):
        def client_loss(self, loss: Tensor, module: nn.Module) -> Tensor:
            return loss + 100.0

    for callback, read in ((DROClientSampling, "weights"), (IFCA, "losses")):
        found = []
        for strategy in (Term(), FedAvg()):
            chosen: Any = callback() if callback is DROClientSampling else callback(num_clusters=2)
            run = trainer(chosen, strategy=strategy)
            run.fit(TinyModule(), TinyClients())
            found.append(getattr(chosen, read))
        assert torch.equal(*found)


@pytest.mark.parametrize(
    "callbacks",
    [
        list,
        lambda: [DROClientSampling(cohort_size=2)],
        lambda: [UniformSampling(cohort_size=2)],
        lambda: [HCCT(relative_trade_off=0.3)],
        lambda: [IFCA(num_clusters=2)],
        lambda: [CollaborationGraph(graph="full")],
        lambda: [SoftAveraging(num_models=2)],
        lambda: [TierBidding(num_tiers=2, num_best=1, threshold=0.3)],
        lambda: [TierBidding(num_tiers=2, tokens=Tokens()), ShapleyRewards()],
        lambda: [ShapleyRewards()],
        lambda: [LocalTraining()],
    ],
    ids=lambda make: "-".join(type(one).__name__ for one in make()) or "FedAvg",
)
def test_a_round_without_anybody_leaves_models_as_they_are(callbacks: Any) -> None:
    watched = AfterRounds(lambda run: [digest(model) for model in run.models])
    made = callbacks()
    run = trainer(*made, Resting(2), watched, max_rounds=3, strategy=FedAvg() if made else Everything())
    with pytest.warns(UserWarning, match="no client takes part in round 2"):
        run.fit(TinyModule(), TinyClients())
    first, second, third = watched.found
    assert sorted(set(first)) == sorted(set(second))
    assert set(second) != set(third)
    assert run.metrics["val"]


# -- what is refused ---------------------------------------------------------------------------------------------------


def test_all_who_leave_themselves_out_leave_the_model_as_it_is() -> None:
    class Out(FedAvg):
        def client_update(self, turn: ClientTurn, weights: Weights) -> ClientUpdate:
            return ClientUpdate(weights, 0.0 if turn.client == 1 else 1.0)

    _, watched = parabolas(Out(), max_rounds=1)
    assert watched.weights == [pytest.approx(1.19, rel=1e-12)]

    class Nobody(FedAvg):
        def client_update(self, turn: ClientTurn, weights: Weights) -> ClientUpdate:
            return ClientUpdate(weights, 0.0)

    assert parabolas(Nobody(), max_rounds=1)[1].weights == [1.0]


def test_clients_trained_at_once_take_the_other_steps() -> None:
    found = []
    for stacked in (1, 3):
        run = trainer(strategy=Ditto(), stacked_clients=stacked)
        run.fit(TinyModule(), TinyClients())
        found.append((run.models[0].vectors, run.client_model(1).vectors))
    torch.testing.assert_close(found[0], found[1])


# -- composed ----------------------------------------------------------------------------------------------------------


def test_rows_of_a_graph_are_scaled() -> None:
    """Three clients, full graph: a client that scales itself by 0 is in nobody's model, not even its own average."""

    class Scales(FedAvg):
        def client_update(self, turn: ClientTurn, weights: Weights) -> ClientUpdate:
            return ClientUpdate(weights, {0: 1.0, 1: 3.0, 2: 0.0}[turn.client])

    learned = Learned()
    run = trainer(CollaborationGraph(graph="full"), learned, strategy=Scales(), max_rounds=1)
    run.fit(TinyModule(), TinyClients())
    shares = torch.tensor([24.0, 3 * 10.0, 0.0])
    trained = [learned.weights[client].vectors[torch.float32].cpu() for client in range(3)]
    expected = sum(share * one for share, one in zip((shares / shares.sum()).tolist(), trained, strict=True))
    for client in range(3):
        torch.testing.assert_close(run.models[client].vectors[torch.float32], expected)


def test_vectors_are_combined_and_measured_where_they_are_trained_and_shared() -> None:
    """A clipped update: 1 over its length times as long in the linear layer, whole in the statistics of BatchNorm."""

    class Clips(FedAvg):
        def client_update(self, turn: ClientTurn, weights: Weights) -> ClientUpdate:
            change = turn.combine((1.0, weights), (-1.0, turn.start))
            length = turn.dot(change, change) ** 0.5
            lengths.append(length)
            clipped = turn.combine((1.0, turn.start), (0.01 / length, change), elsewhere=weights)
            return ClientUpdate(clipped)

    lengths: list[float] = []
    found = {}
    for strategy in (Clips(), FedAvg()):
        module = TinyModule(norm=True)
        before = {name: value.clone() for name, value in module.state_dict().items()}
        personal = PersonalLayers(layers=["linear.bias"])
        run = trainer(personal, UniformSampling(cohort_size=1), strategy=strategy, max_rounds=1)
        run.fit(module, TinyClients())
        names = {span.name: span for span in run.loop.flat.spans()}
        parts = {name: (span.dtype, slice(span.begin, span.end)) for name, span in names.items()}
        shared = {name: run.models[0].vectors[dtype][part] for name, (dtype, part) in parts.items()}
        found[type(strategy)] = {name: value - before[name].flatten() for name, value in shared.items()}
    trained = ("linear.weight", "before.0.weight", "before.0.bias")
    whole = torch.cat([found[FedAvg][name] for name in trained])
    assert lengths == [pytest.approx(float(whole.norm()), rel=1e-5)]
    clipped = torch.cat([found[Clips][name] for name in trained])
    torch.testing.assert_close(clipped, whole * (0.01 / lengths[0]), rtol=1e-4, atol=1e-6)
    assert torch.equal(found[Clips]["before.0.running_mean"], found[FedAvg]["before.0.running_mean"])
    assert found[Clips]["before.0.num_batches_tracked"] == 2


@pytest.mark.parametrize("old", ["select_collaborators", "gradient_correction", "on_average_end"])
def test_a_hook_of_an_earlier_version_is_refused_with_the_present_one(old: str) -> None:
    with pytest.raises(ConfigurationError, match=f"Old.{old} .*{RENAMED_HOOKS[old].split(',')[0]}"):
        trainer(type("Old", (Callback,), {old: lambda self, run: None})())


def test_a_hook_that_is_none_is_named() -> None:
    class Misspelt(Callback):
        def on_round_begin(self, run: FederatedTrainer) -> None: ...

    with pytest.warns(UserWarning, match=r"Misspelt.on_round_begin is not a hook"):
        trainer(Misspelt())
