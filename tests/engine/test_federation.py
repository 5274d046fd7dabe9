"""The state of a federation, made and changed without a trainer."""

import io
from dataclasses import fields

import pytest
import torch
from engine_alone import make_loop
from tiny import TinyClients, TinyModule

from lightning_fl import Collaboration
from lightning_fl.core.cohort import Cohort
from lightning_fl.core.errors import ConfigurationError
from lightning_fl.engine.client import ClientState
from lightning_fl.engine.federation import Federation
from lightning_fl.engine.round.training import train_round
from lightning_fl.engine.weights.flat import FlatModule, Weights

SIZES = (24, 10, 18)


def constant(like: Weights, value: float) -> Weights:
    made = like.clone()
    for vector in made.vectors.values():
        vector.fill_(value)
    return made


def values(model: Weights) -> set[float]:
    return {value for vector in model.vectors.values() for value in vector.tolist()}


@pytest.fixture
def federation() -> Federation:
    """Two models, all ones and all fours; clients 0 and 2 use the first, client 1 the second."""
    state = Federation(num_samples=list(SIZES))
    state.begin(FlatModule(TinyModule()), 3)
    start = state.models[0]
    state.collaboration = Collaboration.coalitions([0, 1, 0], list(SIZES))
    state.models = [constant(start, 1.0), constant(start, 4.0)]
    return state


def test_it_begins_with_the_modules_weights_for_all() -> None:
    module, state = TinyModule(), Federation(num_samples=list(SIZES))
    flat = FlatModule(module)
    state.begin(flat, 3)
    (model,) = state.models
    assert all(torch.equal(vector, flat.weights.vectors[dtype]) for dtype, vector in model.vectors.items())
    assert state.collaboration.aggregation.tolist() == [[pytest.approx(size / 52) for size in SIZES]]
    assert state.communication.model_bytes == 4 * 4  # three weights and a bias in single precision


def test_several_models_take_what_changed_in_the_first_and_keep_the_rest(federation: Federation) -> None:
    module = TinyModule()
    flat = FlatModule(module)
    flat.load(federation.models[0])
    module.linear.bias.data = torch.full((1,), 7.0)
    federation.adopt(flat)
    bias, weight = (next(span for span in flat.spans() if span.name == f"linear.{name}") for name in ("bias", "weight"))
    assert [model.part(bias).tolist() for model in federation.models] == [[7.0], [7.0]]
    assert [model.part(weight).tolist() for model in federation.models] == [[1.0] * 3, [4.0] * 3]


def test_a_mixture_is_what_a_client_uses(federation: Federation) -> None:
    mixing = torch.tensor([[0.25, 0.75], [0.0, 1.0], [1.0, 0.0]])
    federation.collaboration = Collaboration(federation.collaboration.aggregation, mixing)
    assert values(federation.shared_model(0)) == {0.25 * 1 + 0.75 * 4}
    assert federation.shared_model(1) is federation.models[1]


def test_as_many_models_stay_and_another_number_starts_from_the_clients_own(federation: Federation) -> None:
    before = list(federation.models)
    federation.collaboration = Collaboration.coalitions([0, 0, 1], list(SIZES))
    assert [after is model for after, model in zip(federation.models, before, strict=True)] == [True, True]
    federation.collaboration = Collaboration.fedavg(list(SIZES))  # clients used 1, 1 and 4
    (model,) = federation.models
    assert list(values(model)) == [pytest.approx((24 * 1 + 10 * 1 + 18 * 4) / 52)]


def test_a_collaboration_of_other_clients_is_refused(federation: Federation) -> None:
    with pytest.raises(ConfigurationError, match="the collaboration has 4 clients, the data have 3"):
        federation.collaboration = Collaboration.local(4)


def test_personal_layers_and_final_models_come_before_shared_ones(federation: Federation) -> None:
    flat = FlatModule(TinyModule())
    federation.keep_local(flat, ["linear.bias"])
    assert federation.communication.model_bytes == 3 * 4
    federation.client_store("personal_layers")[0] = {"linear.bias": torch.tensor([9.0])}
    cpu = torch.device("cpu")
    assert values(federation.client_model(0, cpu)) == {1.0, 9.0}
    assert values(federation.client_model(2, cpu)) == {1.0}
    assert values(federation.models[0]) == {1.0}, "the shared model is not the one that is written to"
    federation.client_store("final_models")[0] = constant(federation.models[0], 7.0).state_dict()
    assert values(federation.client_model(0, cpu)) == {7.0}


def test_an_evaluation_goes_on_without_what_only_training_reads(federation: Federation) -> None:
    federation.client_states[0] = ClientState(global_step=5)
    federation.resting_clients, federation.absent_clients = {1}, {2}
    federation.means["val_loss"] = torch.tensor(1.0)
    kept = federation.for_evaluation()
    emptied = {"client_states": {}, "resting_clients": set(), "means": {}}
    for field in fields(Federation):
        assert getattr(kept, field.name) == emptied.get(field.name, getattr(federation, field.name)), field.name
    assert federation.client_states[0].global_step == 5


def test_another_time_is_another_object(federation: Federation) -> None:
    models, collaboration = [federation.models[1]], Collaboration.fedavg(list(SIZES))
    then = federation.with_models(models, collaboration, {"final_models": {}}, 2)
    assert (then.models, then.collaboration, then.current_round) == (models, collaboration, 2)
    assert (len(federation.models), federation.current_round, federation.client_stores) == (2, 0, {})


def test_a_saved_state_trains_on_to_the_same_bits() -> None:
    """Without a trainer: two rounds, against one round, a checkpoint that is read back, and one round."""
    settings = {"local_steps": 3, "optimizer_state": "keep", "seed": 7}

    def round_of(loop) -> None:
        train_round(loop, Cohort.of(range(3)))
        loop.federation.current_round += 1

    whole = make_loop(TinyModule(dropout=0.3, norm=True), TinyClients(SIZES), **settings)
    round_of(whole)
    file = io.BytesIO()
    torch.save(whole.federation.state_dict(whole.processes), file)
    round_of(whole)

    resumed = make_loop(TinyModule(learning_rate=0.05, dropout=0.3, norm=True), TinyClients(SIZES), **settings)
    file.seek(0)
    state = torch.load(file, weights_only=True)
    resumed.federation.load_state_dict(state, resumed.flat, resumed.processes)
    assert resumed.federation.current_round == 1
    round_of(resumed)
    for vector, other in zip(
        whole.federation.models[0].vectors.values(), resumed.federation.models[0].vectors.values(), strict=True
    ):
        assert torch.equal(vector, other)
    assert resumed.federation.communication.summary(list("abc")) == whole.federation.communication.summary(list("abc"))


def test_weights_alone_leave_what_training_goes_on_from(federation: Federation) -> None:
    loop = make_loop(TinyModule(), TinyClients(SIZES), local_steps=2)
    train_round(loop, Cohort.of(range(3)))
    loop.federation.current_round, loop.federation.wall_time_seconds = 1, 2.5
    state = loop.federation.state_dict(loop.processes)
    fresh = make_loop(TinyModule(), TinyClients(SIZES))
    fresh.federation.load_state_dict(state, fresh.flat, fresh.processes, weights_only=True)
    assert fresh.federation.current_round == 1
    assert fresh.federation.client_states == {}
    assert fresh.federation.wall_time_seconds == 0
    assert fresh.federation.communication.summary(["a", "b", "c"])["bytes_sent"] == 0
