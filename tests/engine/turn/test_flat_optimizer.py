"""Steps on the flat vector are the steps that the optimiser takes by itself, to the bit."""

import copy

import pytest
import torch
from lightning.pytorch import LightningModule
from tiny import TinyClients, TinyModule, quiet_trainer, same_bits, weights_of
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from lightning_fl.engine.turn.flat_optimizer import FlatOptimizer
from lightning_fl.engine.weights.flat import FlatModule
from lightning_fl.strategies import FedProx

SETTINGS = [
    (torch.optim.SGD, {"lr": 0.1}),
    (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}),
    (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True, "maximize": True}),
    (torch.optim.Adam, {"lr": 0.01, "weight_decay": 0.1, "amsgrad": True}),
    (torch.optim.AdamW, {"lr": 0.01}),
    (torch.optim.NAdam, {"lr": 0.01}),
    (torch.optim.RAdam, {"lr": 0.01}),
    (torch.optim.Adamax, {"lr": 0.01}),
    (torch.optim.Adagrad, {"lr": 0.01, "lr_decay": 0.1}),
    (torch.optim.RMSprop, {"lr": 0.01, "centered": True, "momentum": 0.5}),
]
NAMES = [f"{kind.__name__}-{'-'.join(settings)}" for kind, settings in SETTINGS]


def network() -> nn.Module:
    """Sizes that are no multiples of any vector's length, a scalar, a buffer between."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(3, 5, 3), nn.BatchNorm2d(5), nn.Flatten(), nn.Linear(5 * 81, 37), nn.Linear(37, 7))
    module.register_parameter("scale", nn.Parameter(torch.tensor(1.5)))
    return module


def gradients(step: int, *modules: nn.Module) -> None:
    """The same gradients of a step in all modules."""
    for module in modules:
        torch.manual_seed(step)
        draws = torch.Generator().manual_seed(step)
        for parameter in module.parameters():
            parameter.grad = torch.randn(parameter.shape, generator=draws) * 10 ** torch.randint(-3, 3, ()).item()


def pair(kind, settings):
    plain, flat = network(), network()
    flat_module = FlatModule(flat)
    optimizer = kind(flat.parameters(), **settings)
    return plain, kind(plain.parameters(), **settings), flat, optimizer, flat_module


def same_state(first: torch.optim.Optimizer, second: torch.optim.Optimizer) -> bool:
    one, two = first.state_dict()["state"], second.state_dict()["state"]
    return one.keys() == two.keys() and all(
        one[number].keys() == two[number].keys()
        and all(torch.equal(torch.as_tensor(v), torch.as_tensor(two[number][k])) for k, v in one[number].items())
        for number in one
    )


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "settings"), SETTINGS, ids=NAMES)
def test_every_step_to_the_bit_and_the_state_given_back(kind, settings):
    plain, plain_optimizer, flat, optimizer, flat_module = pair(kind, settings)
    stepper = FlatOptimizer.of(optimizer, flat_module)
    assert stepper is not None
    for step in range(5):
        gradients(step, plain, flat)
        for group in (*plain_optimizer.param_groups, *optimizer.param_groups):
            group["lr"] = 0.01 * (step + 1)  # as a scheduler does
        plain_optimizer.step()
        assert stepper.step()
        assert same_bits(weights_of(plain), weights_of(flat))
    stepper.release()
    assert same_state(plain_optimizer, optimizer)
    # the gaps between parameters stay empty
    vector = flat_module.weights.vectors[torch.float32].clone()
    for span in flat_module.spans():
        if span.dtype == torch.float32:
            vector[span.begin : span.end] = 0
    assert not vector.any()


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "settings"), SETTINGS, ids=NAMES)
def test_a_state_is_taken_up_and_a_missing_gradient_goes_one_by_one(kind, settings):
    plain, plain_optimizer, flat, optimizer, flat_module = pair(kind, settings)
    for step in range(6):
        gradients(step, plain, flat)
        if step == 4:  # from here on the parameters are out of step
            plain[4].bias.grad = flat[4].bias.grad = None
        plain_optimizer.step()
        stepper = FlatOptimizer.of(optimizer, flat_module)
        if stepper is None or not stepper.step():
            assert step >= 4
            optimizer.step()
        else:
            stepper.release()
        assert same_bits(weights_of(plain), weights_of(flat))
    assert same_state(plain_optimizer, optimizer)


def test_vectors_are_used_again_for_the_same_parameters_only():
    module = network()
    flat_module = FlatModule(module)

    def made(*layers, earlier=None, kind=torch.optim.SGD, **settings):
        groups = [{"params": list(module[layer].parameters())} for layer in layers]
        return FlatOptimizer.of(kind(groups, lr=0.1, **settings), flat_module, earlier=earlier)

    first = made(3, 4)
    assert made(3, 4, earlier=first, momentum=0.9)._groups is first._groups
    assert type(made(3, 4, earlier=first, kind=torch.optim.Adam)._twin) is torch.optim.Adam
    assert made(4, 3, earlier=first)._groups is not first._groups
    assert made(4, earlier=first)._groups is not first._groups
    module[3].weight.requires_grad_(False)
    assert made(3, 4, earlier=first) is None


def test_steps_are_marked_for_a_profiler_of_torch():
    module = network()
    stepper = FlatOptimizer.of(torch.optim.SGD(module.parameters(), lr=0.1), FlatModule(module))
    gradients(0, module)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        assert stepper.step()
    assert "Optimizer.step#SGD.step" in {event.key for event in profile.key_averages()}


def refused(optimizer, module, flat_module=None):
    return FlatOptimizer.of(optimizer, flat_module or FlatModule(module)) is None


def test_what_is_left_to_the_optimiser_itself():
    module = network()
    flat_module = FlatModule(module)
    sgd = torch.optim.SGD(module.parameters(), lr=0.1)
    assert not refused(sgd, module, flat_module)

    class Own(torch.optim.SGD):
        pass

    assert refused(Own(module.parameters(), lr=0.1), module, flat_module)
    assert refused(torch.optim.LBFGS(module.parameters()), module, flat_module)
    for name in ("foreach", "fused"):
        assert refused(torch.optim.SGD(module.parameters(), lr=0.1, **{name: True}), module, flat_module)
    hooked = copy.copy(sgd)
    hooked.register_step_pre_hook(lambda *_: None)
    assert refused(hooked, module, flat_module)
    handle = register_optimizer_step_post_hook(lambda *_: None)
    assert refused(sgd, module, flat_module)
    handle.remove()
    counted = torch.optim.SGD(module.parameters(), lr=0.1)
    torch.optim.lr_scheduler.StepLR(counted, 1)  # which sets a step of its own
    assert not refused(counted, module, flat_module)
    counted.step = lambda closure=None: None
    assert refused(counted, module, flat_module)
    assert refused(torch.optim.SGD([nn.Parameter(torch.ones(3))], lr=0.1), module, flat_module)
    module[3].weight.requires_grad_(False)
    assert refused(sgd, module, flat_module)
    halves = network().bfloat16()
    assert refused(torch.optim.SGD(halves.parameters(), lr=0.1), halves)
    alone = nn.Linear(3, 1, bias=False)
    assert refused(torch.optim.SGD(alone.parameters(), lr=0.1), alone)  # nothing to bring together


def test_groups_and_their_order():
    plain, flat = network(), network()
    flat_module = FlatModule(flat)

    def groups(module):
        return [
            {"params": [*module[3].parameters(), *module[4].parameters()], "lr": 0.5},
            {"params": [*module[0].parameters(), *module[1].parameters(), module.scale], "weight_decay": 0.1},
        ]

    first = torch.optim.SGD(groups(plain), lr=0.1, momentum=0.9)
    second = torch.optim.SGD(groups(flat), lr=0.1, momentum=0.9)
    stepper = FlatOptimizer.of(second, flat_module)
    assert stepper is not None
    for step in range(3):
        gradients(step, plain, flat)
        first.step()
        assert stepper.step()
        assert same_bits(weights_of(plain), weights_of(flat))


@pytest.mark.parametrize("moved", ["before", "after"])
def test_a_parameter_that_user_code_has_moved_is_stepped_where_it_is(moved):
    module = network()
    optimizer, flat = torch.optim.SGD(module.parameters(), lr=1.0), FlatModule(module)
    stepper = FlatOptimizer.of(optimizer, flat) if moved == "after" else None
    gradients(0, module)
    before = [parameter.clone() for parameter in module.parameters()]
    module[0].weight.data = module[0].weight.data.clone()
    stepper = stepper or FlatOptimizer.of(optimizer, flat)
    assert not stepper.step()
    assert same_bits(before, list(module.parameters()))


class Chosen(TinyModule):
    """An optimiser with a scheduler, and a loss that leaves a parameter out in even or odd batches."""

    def __init__(self, kind=torch.optim.Adam, skips=(), step_size=1, **settings) -> None:
        super().__init__()
        self.kind, self.settings, self.skips, self.step_size = kind, settings or {"lr": 0.05}, skips, step_size
        self.extra = nn.Parameter(torch.ones(3))

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        return loss if batch_idx % 2 in self.skips else loss + self.extra.square().sum()

    def configure_optimizers(self):
        optimizer = self.kind(self.parameters(), **self.settings)
        if self.step_size is None:
            return optimizer
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, self.step_size, 0.5)]


@pytest.mark.slow
@pytest.mark.parametrize("keep", ["fresh", "keep"])
@pytest.mark.parametrize("skips", [(), (1,)])
@pytest.mark.parametrize(("kind", "settings"), [SETTINGS[1], SETTINGS[3]], ids=["SGD", "Adam"])
def test_a_run_has_the_bits_of_plain_steps(kind, settings, skips, keep, monkeypatch, tmp_path):
    def run() -> tuple[list[torch.Tensor], int]:
        torch.manual_seed(0)
        module: LightningModule = Chosen(kind, skips, step_size=2, **settings)
        trainer = quiet_trainer(
            max_rounds=3, local_steps=4, optimizer_state=keep, gradient_clip_val=0.5, default_root_dir=tmp_path
        )
        trainer.fit(module, TinyClients())
        return weights_of(module), len(taken)

    taken: list[bool] = []
    step = FlatOptimizer.step
    monkeypatch.setattr(FlatOptimizer, "step", lambda self: (taken.append(True), step(self))[1])
    flat, steps = run()
    assert steps
    monkeypatch.setattr(FlatOptimizer, "of", classmethod(lambda *_, **__: None))
    plain, more = run()
    assert more == steps  # none was added
    assert same_bits(flat, plain)


class TwoByHand(TinyModule):
    """An optimiser of the weight and one of the bias, stepped by hand."""

    def __init__(self, set_to_none: bool) -> None:
        super().__init__()
        self.automatic_optimization, self.set_to_none = False, set_to_none

    def training_step(self, batch, batch_idx):
        optimizers = self.optimizers()
        for optimizer in optimizers:
            optimizer.zero_grad(set_to_none=self.set_to_none)
        self.manual_backward(super().training_step(batch, batch_idx))
        for optimizer in optimizers:
            optimizer.step()

    def configure_optimizers(self):
        return [torch.optim.SGD([parameter], lr=0.05) for parameter in self.linear.parameters()]


def test_two_optimisers_of_corrected_gradients_that_are_zeroed_in_place(tmp_path):
    modules = [TwoByHand(set_to_none) for set_to_none in (True, False)]
    for module in modules:
        quiet_trainer(max_rounds=2, strategy=FedProx(mu=1.0), default_root_dir=tmp_path).fit(module, TinyClients())
    assert same_bits(*map(weights_of, modules))
