"""Fused steps on the flat vector are the optimiser's own up to rounding, and leave its state as it keeps it."""

import pytest
import torch
from rounding import assert_equal_up_to_rounding
from test_flat_optimizer import Chosen, gradients, network, same_state
from tiny import ManualModule, TinyClients, TinyModule, quiet_trainer, same_bits, weights_of

from lightning_fl import ConfigurationError, FederatedTrainer
from lightning_fl.callbacks import ModelCheckpoint
from lightning_fl.engine.turn import trial_step
from lightning_fl.engine.turn.flat_optimizer import FlatOptimizer, settle_steps_
from lightning_fl.engine.weights.flat import FlatModule

SETTINGS = [
    (torch.optim.SGD, {"lr": 0.1}),
    (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "dampening": 0.1, "weight_decay": 0.01}),
    (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True, "maximize": True}),
    (torch.optim.Adam, {"lr": 0.01, "weight_decay": 0.1, "amsgrad": True}),
    (torch.optim.AdamW, {"lr": 0.01}),
    (torch.optim.Adagrad, {"lr": 0.01, "lr_decay": 0.1, "initial_accumulator_value": 0.2}),
]
NAMES = [f"{kind.__name__}-{'-'.join(settings)}" for kind, settings in SETTINGS]


def assert_close(first: list[torch.Tensor], second: list[torch.Tensor], *, steps: int) -> None:
    for one, other in zip(first, second, strict=True):
        assert_equal_up_to_rounding(other, one, steps=steps)


@pytest.fixture
def fused_calls(monkeypatch):
    """The names of torch's fused kernels, each time one is called."""
    calls: list[str] = []
    for name in ("_fused_sgd_", "_fused_adam_", "_fused_adamw_", "_fused_adagrad_"):
        kernel = getattr(torch, name)

        def noted(*args, _name=name, _kernel=kernel, **options):
            calls.append(_name)
            return _kernel(*args, **options)

        monkeypatch.setattr(torch, name, noted)
    return calls


@pytest.mark.parametrize(("kind", "settings"), SETTINGS, ids=NAMES)
def test_steps_by_one_kernel_agree_to_rounding_and_the_state_is_given_back(kind, settings, fused_calls):
    plain, flat = network(), network()
    flat_module = FlatModule(flat)
    own, optimizer = kind(plain.parameters(), **settings), kind(flat.parameters(), **settings)
    for step in range(6):
        gradients(step, plain, flat)
        for group in (*own.param_groups, *optimizer.param_groups):
            group["lr"] = 0.01 * (step + 1)  # as a scheduler does
        own.step()
        if step % 3 == 0:  # taken up from what was given back, as a kept state is
            stepper = FlatOptimizer.of(optimizer, flat_module, fused=True)
            assert stepper is not None
        assert stepper.step()
        assert_close(weights_of(plain), weights_of(flat), steps=step + 1)
        if step % 3 == 2:
            stepper.release()
    assert len(fused_calls) == 6
    assert not any(group["fused"] for group in optimizer.param_groups)  # the user's own settings
    first, second = own.state_dict()["state"], optimizer.state_dict()["state"]
    assert first.keys() == second.keys()
    for number, state in first.items():
        assert state.keys() == second[number].keys()
        for key, value in state.items():
            assert (value is None) == (second[number][key] is None)
            if value is not None:
                assert value.dtype == second[number][key].dtype
                assert_equal_up_to_rounding(second[number][key], value, steps=6)
    own.step()  # the optimiser's own step goes on with it
    optimizer.step()
    assert_close(weights_of(plain), weights_of(flat), steps=7)


@pytest.mark.parametrize("kind", [torch.optim.RMSprop, torch.optim.NAdam, torch.optim.RAdam, torch.optim.Adamax])
def test_optimisers_without_a_fused_kernel_keep_their_bits(kind, fused_calls):
    plain, flat = network(), network()
    own, optimizer = kind(plain.parameters(), lr=0.01), kind(flat.parameters(), lr=0.01)
    stepper = FlatOptimizer.of(optimizer, FlatModule(flat), fused=True)
    for step in range(3):
        gradients(step, plain, flat)
        own.step()
        assert stepper.step()
    stepper.release()
    assert same_bits(weights_of(plain), weights_of(flat))
    assert same_state(own, optimizer)
    assert not fused_calls


def test_a_count_of_steps_lies_where_the_step_wants_it():
    meta = torch.device("meta")
    state = settle_steps_({"step": torch.tensor(3.0), "exp_avg": torch.ones(2)}, meta, torch.float64)
    assert state["step"].device == meta
    assert state["step"].dtype == torch.float64
    assert state["exp_avg"].device.type == "cpu"
    assert settle_steps_({"step": 4}, torch.device("cpu"), torch.float32)["step"].dtype == torch.float32
    assert settle_steps_({"sum": 1}, meta, torch.float32) == {"sum": 1}


def fit(folder, module, ckpt_path=None, rounds=4, **settings) -> tuple[list[torch.Tensor], FederatedTrainer]:
    trainer = quiet_trainer(
        ModelCheckpoint(every_n_rounds=1),
        max_rounds=rounds,
        default_root_dir=folder,
        enable_checkpointing=True,
        **settings,
    )
    trainer.fit(module, TinyClients(), ckpt_path=ckpt_path)
    return weights_of(module), trainer


@pytest.mark.slow
@pytest.mark.parametrize("keep", ["fresh", "keep"])
@pytest.mark.parametrize(("kind", "settings"), [SETTINGS[1], SETTINGS[3], SETTINGS[5]], ids=["SGD", "Adam", "Adagrad"])
def test_runs_agree_to_rounding_and_go_on_with_the_same_bits(kind, settings, keep, fused_calls, tmp_path):
    own, _ = fit(tmp_path / "own", Chosen(kind, **settings), optimizer_state=keep)
    assert not fused_calls
    whole, _ = fit(tmp_path / "whole", Chosen(kind, **settings), optimizer_state=keep, fused_optimizers=True)
    assert len(fused_calls) == 4 * (3 + 2 + 3)  # rounds x batches of the three clients
    assert_close(own, whole, steps=4 * 3)  # rounds x batches of the client with the most
    assert not same_bits(own, weights_of(Chosen(kind, **settings)))
    half = tmp_path / "half"
    _, stopped = fit(half, Chosen(kind, **settings), rounds=2, optimizer_state=keep, fused_optimizers=True)
    path = f"{stopped.log_dir}/checkpoints/last.ckpt"
    resumed, _ = fit(half, Chosen(kind, **settings), path, optimizer_state=keep, fused_optimizers=True)
    assert same_bits(whole, resumed)
    state = stopped.federation.client_states[0]
    if keep == "keep" and kind is not torch.optim.SGD:
        assert all(one["step"].device.type == "cpu" for one in state.optimizers[0]["state"].values())


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "settings"), [SETTINGS[1], SETTINGS[3], SETTINGS[5]], ids=["SGD", "Adam", "Adagrad"])
def test_stacked_clients_take_fused_steps_too(kind, settings, fused_calls, tmp_path):
    runs = []
    for fused in (False, True):
        folder = tmp_path / str(fused)
        runs.append(fit(folder, Chosen(kind, step_size=None, **settings), stacked_clients=3, fused_optimizers=fused)[0])
        assert len(fused_calls) == (4 * 3 if fused else 0)  # rounds x steps of the client with the most
    assert_close(*runs, steps=4 * 3)


@pytest.mark.parametrize(
    ("kind", "least", "setting", "fuses"),
    [
        (torch.optim.Adam, 1, "auto", True),
        (torch.optim.AdamW, 1, "auto", True),
        (torch.optim.Adam, 10**6, "auto", False),
        (torch.optim.Adam, 1, False, False),
        (torch.optim.SGD, 1, "auto", False),  # does not gain, which is not worth a warning
    ],
)
@pytest.mark.filterwarnings("error:trainer.fused_optimizers")
def test_by_default_steps_of_large_modules_are_fused(kind, least, setting, fuses, fused_calls, tmp_path, monkeypatch):
    plain, _ = fit(tmp_path / "plain", Chosen(kind, lr=0.01), fused_optimizers=False)
    monkeypatch.setattr(trial_step, "_LEAST_WEIGHTS", least)
    found, trainer = fit(tmp_path / "found", Chosen(kind, lr=0.01), fused_optimizers=setting)
    assert bool(fused_calls) == fuses
    assert_close(plain, found, steps=4 * 3)
    assert fuses or same_bits(plain, found)
    assert trainer.identity["trainer.fused_optimizers"] == str(least == 1 and setting == "auto")


@pytest.mark.slow
def test_a_resumed_run_keeps_its_kind_of_steps(fused_calls, tmp_path, monkeypatch):
    monkeypatch.setattr(trial_step, "_LEAST_WEIGHTS", 1)
    for before in ("auto", False):
        _, first = fit(tmp_path / str(before), Chosen(lr=0.01), rounds=1, fused_optimizers=before)
        fused_calls.clear()
        _, resumed = fit(tmp_path, Chosen(lr=0.01), f"{first.log_dir}/checkpoints/last.ckpt", rounds=2)
        assert bool(fused_calls) == (before == "auto")
        assert not resumed.differs


WORDS = "trainer.fused_optimizers has no effect on {}"


@pytest.mark.parametrize(("kind", "skips"), [(torch.optim.RMSprop, ()), (torch.optim.SGD, (0, 1))])
def test_what_is_not_fused_is_said_once(kind, skips, fused_calls, tmp_path, recwarn):
    fit(tmp_path, Chosen(kind, skips, lr=0.01), fused_optimizers=True)
    said = [str(one.message) for one in recwarn if "fused_optimizers" in str(one.message)]
    assert len(said) == 1
    assert said[0].startswith(WORDS.format(kind.__name__))
    assert not fused_calls


def test_what_is_not_fused_is_said_of_stacked_clients(tmp_path):
    with pytest.warns(UserWarning, match=WORDS.format("RMSprop")):
        fit(tmp_path, Chosen(torch.optim.RMSprop, step_size=None, lr=0.01), stacked_clients=3, fused_optimizers=True)


def test_an_optimizer_step_of_the_modules_own_is_named(tmp_path):
    class Own(TinyModule):
        def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_closure=None):
            optimizer.step(closure=optimizer_closure)

    with pytest.warns(UserWarning, match=WORDS.format("SGD")):
        fit(tmp_path, Own(), fused_optimizers=True)


def test_manual_optimisation_is_refused(tmp_path):
    with pytest.raises(ConfigurationError, match="trainer.fused_optimizers=True"):
        fit(tmp_path, ManualModule(), fused_optimizers=True)


def test_halves_of_a_step_go_on_the_flat_vector_too(monkeypatch, tmp_path):
    """bf16-mixed keeps float32 weights, and has no scaler that takes part in steps."""
    taken: list[bool] = []
    step = FlatOptimizer.step
    monkeypatch.setattr(FlatOptimizer, "step", lambda self: (taken.append(True), step(self))[1])
    flat, _ = fit(tmp_path, Chosen(), precision="bf16-mixed")
    assert len(taken) == 4 * 8
    monkeypatch.setattr(FlatOptimizer, "of", classmethod(lambda *_, **__: None))
    plain, _ = fit(tmp_path, Chosen(), precision="bf16-mixed")
    assert len(taken) == 4 * 8
    assert same_bits(flat, plain)
