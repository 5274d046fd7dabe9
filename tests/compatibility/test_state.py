"""Parameters and buffers of all kinds, and what of a module's state belongs to whom."""

import copy
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hooks import Cohorts
from reference import (
    Clients,
    Linear,
    Validated,
    assert_same_weights,
    federated_trainer,
    fitted,
    leave_out,
    linear,
    make,
    samples,
    train_both,
)
from torch import Tensor, nn

from lightning_fl.callbacks import PersonalLayers
from lightning_fl.core.errors import ConfigurationError


def _linear_with(**buffers: Tensor) -> type[Any]:
    def build(self: Any) -> None:
        for name, value in buffers.items():
            self.register_buffer(name, value.clone())

    return linear(build=build)


# -- layers against Lightning's Trainer -----------------------------------------------------------------------------


def _net(*layers: Callable[[], nn.Module]) -> type[Any]:
    return linear(build=lambda self: setattr(self, "net", nn.Sequential(*(layer() for layer in layers))))


Normalised = _net(partial(nn.Linear, 3, 4), partial(nn.BatchNorm1d, 4), nn.ReLU, partial(nn.Linear, 4, 1))


class Tied(Linear):
    """The same parameter in two places."""

    def __init__(self) -> None:
        super().__init__()
        first, second = nn.Linear(3, 3), nn.Linear(3, 3)
        second.weight = first.weight
        self.net = nn.Sequential(first, nn.Tanh(), second, nn.Linear(3, 1))  # type: ignore[assignment]


class SharesMemory(Linear):
    """Two parameters that are different objects over the same memory."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)
        self.second.weight.data = self.first.weight.data
        self.register_buffer("shown", self.first.weight.data)

    def loss(self, batch: Any) -> Tensor:
        x, y = batch
        return nn.functional.mse_loss(self.net(self.second(self.first(x).tanh())), y)


class SharesTransposed(SharesMemory):
    """A decoder with the encoder's weights, transposed; a bias that is the other's in another shape."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 4), nn.Linear(4, 3)
        self.second.weight = nn.Parameter(self.first.weight.t())
        self.scale = nn.Parameter(self.first.bias.data.view(2, 2))

    def loss(self, batch: Any) -> Tensor:
        return super().loss(batch) + self.scale.square().mean()

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), lr=0.05)


class Recurrent(Linear):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(1, 4, batch_first=True), nn.Linear(4, 1)

    def loss(self, batch: Any) -> Tensor:
        x, y = batch
        return nn.functional.mse_loss(self.head(self.lstm(x.unsqueeze(-1))[0][:, -1]), y)


class Averages(Linear):
    """An exponential average of the weights in a copy, and one of the loss in a buffer that is assigned anew."""

    def __init__(self) -> None:
        super().__init__()
        self.average = copy.deepcopy(self.net).requires_grad_(False)
        self.register_buffer("level", torch.zeros(()))
        self.register_buffer("count", torch.zeros((), dtype=torch.long))

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = self.loss(batch)
        self.level = 0.9 * self.level + 0.1 * loss.detach()  # type: ignore[has-type]
        self.count += 1
        return loss

    @torch.no_grad()
    def on_train_batch_end(self, *_: Any) -> None:
        for own, new in zip(self.average.parameters(), self.net.parameters(), strict=True):
            own.lerp_(new, 0.1)


class Custom(Linear):
    """A bare parameter, one of them frozen halfway through."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def on_train_epoch_start(self) -> None:
        self.net.bias.requires_grad_(self.current_epoch < 1)

    def loss(self, batch: Any) -> Tensor:
        x, y = batch
        return nn.functional.mse_loss(self.scale * self.net(x), y)


def _compile_part(self: Any) -> None:
    self.net = torch.compile(self.net, backend="eager")


_LAYERS: dict[str, type[Any]] = {
    "Normalised": Normalised,
    "Tied": Tied,
    "SharesMemory": SharesMemory,
    "SharesTransposed": SharesTransposed,
    "Recurrent": Recurrent,
    # The power iteration of spectral_norm is in buffers.
    "Spectral": _net(lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(3, 4)), partial(nn.Linear, 4, 1)),
    "WeightNorm": _net(lambda: nn.utils.parametrizations.weight_norm(nn.Linear(3, 1))),
    "Averages": Averages,
    "Custom": Custom,
    "Compiled": linear(build=_compile_part),
    "CompiledInPlace": linear(build=lambda self: self.net.compile(backend="eager")),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", _LAYERS)
def test_layers(name: str, tmp_path: Path) -> None:
    own, _, reference, _ = train_both(_LAYERS[name], tmp_path)
    # A shared model is summed in fixed point: entries below 2^-22 may differ in the last bits.
    assert_same_weights(own, reference, atol=2**-46)


def test_tied_parameters_stay_tied(tmp_path: Path) -> None:
    module = make(Tied)
    federated_trainer(tmp_path, max_rounds=2).fit(module, Clients((4, 8)))
    first, _, second, _ = module.net  # type: ignore[misc]
    assert first.weight is second.weight
    assert module.net.state_dict()["0.weight"].data_ptr() == module.net.state_dict()["2.weight"].data_ptr()


def test_memory_that_parameters_share_stays_shared(tmp_path: Path) -> None:
    module = make(SharesTransposed)
    federated_trainer(tmp_path, max_rounds=2).fit(module, Clients((4, 8)))
    assert torch.equal(module.second.weight, module.first.weight.t())
    assert module.second.weight.data_ptr() == module.first.weight.data_ptr()
    assert torch.equal(module.scale.flatten(), module.first.bias)


def test_neighbours_in_one_memory_train_as_others(tmp_path: Path) -> None:
    """Parameters that interleave, and constant buffers over the same memory."""

    class Neighbours(Linear):
        def __init__(self) -> None:
            super().__init__()
            both, table = torch.randn(1, 6), torch.arange(6.0)
            self.even, self.odd = nn.Parameter(both[:, ::2]), nn.Parameter(both[:, 1::2])
            self.register_buffer("table", table)
            self.register_buffer("head", table[:3])
            self.register_buffer("same", torch.ones(1).expand(3))

        def loss(self, batch: Any) -> Tensor:
            x, y = batch
            return nn.functional.mse_loss(x @ (self.even + self.odd * self.head * self.same).T, y)

    own, _, reference, _ = train_both(Neighbours, tmp_path)
    assert_same_weights(own, reference, atol=2**-46)


# -- averages over clients ------------------------------------------------------------------------------------------


def test_batch_norm_statistics_are_averaged_and_counters_follow_the_largest(tmp_path: Path) -> None:
    """One step a client: running statistics are 0.9 start + 0.1 batch, averaged by samples; 1 and 3 batches counted."""

    class Stats(Linear):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(3, affine=False)

        def loss(self, batch: Any) -> Tensor:
            x, y = batch
            return nn.functional.mse_loss(self.net(self.norm(x)), y)

    module = make(Stats)
    sizes = (4, 12)
    federated_trainer(tmp_path, max_rounds=1).fit(module, Clients(sizes))
    expected_mean, expected_variance = torch.zeros(3), torch.zeros(3)
    for client, size in enumerate(sizes):
        mean, variance = torch.zeros(3), torch.ones(3)
        for batch in samples(client, size).tensors[0].split(4):
            mean = 0.9 * mean + 0.1 * batch.mean(0)
            variance = 0.9 * variance + 0.1 * batch.var(0)
        expected_mean += size / 16 * mean
        expected_variance += size / 16 * variance
    torch.testing.assert_close(module.norm.running_mean, expected_mean)
    torch.testing.assert_close(module.norm.running_var, expected_variance)
    assert int(module.norm.num_batches_tracked) == 3


def test_buffers_of_every_dtype(tmp_path: Path) -> None:
    """Client 0 adds 1, client 1 adds 2 to every buffer; clients have 4 and 12 samples."""
    start = {
        "doubles": torch.tensor([1.0, 2.0], dtype=torch.float64),
        "halfs": torch.tensor([1.0, 2.0], dtype=torch.float16),
        "brain": torch.tensor([1.0, 2.0], dtype=torch.bfloat16),
        "longs": torch.tensor([-7, 5]),
        "bytes": torch.tensor([1, 2], dtype=torch.uint8),
    }

    class Adds(_linear_with(**start, flag=torch.tensor([True, False]))):  # type: ignore[misc]
        def on_train_epoch_end(self) -> None:
            for name in start:
                getattr(self, name).add_(self.trainer.client + 1)
            self.flag[1] = self.trainer.client == 1

    module = Adds()
    federated_trainer(tmp_path, max_rounds=1).fit(module, Clients((4, 12)))
    assert module.doubles.tolist() == [2.75, 3.75]
    assert module.halfs.tolist() == [2.75, 3.75]
    assert module.brain.tolist() == [2.75, 3.75]
    assert module.longs.tolist() == [-5, 7]
    assert module.bytes.tolist() == [3, 4]
    assert module.flag.tolist() == [True, True]


@pytest.mark.parametrize("persistent", [True, False])
def test_a_buffer_that_user_code_assigns_anew(persistent: bool, tmp_path: Path) -> None:
    """Two rounds of level <- level / 2 + client, averaged with weights 1/4 and 3/4 each time."""

    class Assigns(Linear):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("level", torch.tensor([8.0, 0.0]), persistent=persistent)

        def on_train_epoch_end(self) -> None:
            self.level = self.level / 2 + self.trainer.client  # type: ignore[has-type, attr-defined]

    module = Assigns()
    federated_trainer(tmp_path, max_rounds=2).fit(module, Clients((4, 12)))
    once = torch.tensor([8.0, 0.0]) / 2 + 0.75
    torch.testing.assert_close(module.level, once / 2 + 0.75, rtol=0, atol=0)


def test_frozen_parameters_keep_every_bit(tmp_path: Path) -> None:
    """Also tiny ones, whatever the clients' weights in the average."""

    class Frozen(Linear):
        def __init__(self) -> None:
            super().__init__()
            self.frozen = nn.Linear(50, 50).requires_grad_(False)
            self.tiny = nn.Parameter(torch.logspace(-30, -1, 100), requires_grad=False)

    module = make(Frozen)
    federated_trainer(tmp_path, max_rounds=3).fit(module, Clients((4, 7, 12)))
    start = make(Frozen)
    for name in ("frozen.weight", "frozen.bias", "tiny"):
        assert torch.equal(module.get_parameter(name), start.get_parameter(name)), name
    assert not module.tiny.requires_grad
    assert not torch.equal(module.net.weight, start.net.weight)


@pytest.mark.parametrize("persistent", [True, False])
def test_constant_buffers_keep_their_infinities(persistent: bool, tmp_path: Path) -> None:
    """A causal mask of minus infinity, as attention has it."""

    class Masked(Linear):
        def __init__(self) -> None:
            super().__init__()
            mask = torch.full((4, 4), float("-inf")).triu(1)
            self.register_buffer("mask", mask, persistent=persistent)

        def loss(self, batch: Any) -> Tensor:
            assert torch.isinf(self.mask).sum() == 6  # type: ignore[arg-type]
            return super().loss(batch)

    module = make(Masked)
    federated_trainer(tmp_path, max_rounds=2).fit(module, Clients((4, 7, 12)))
    assert torch.equal(module.mask, make(Masked).mask)


# -- randomness -----------------------------------------------------------------------------------------------------


class Drops(Linear):
    """Dropout in training, and what each client's weights are after its turn."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5), nn.Linear(8, 1))  # type: ignore[assignment]
        self.after: dict[tuple[int, int], Tensor] = {}

    def on_train_epoch_end(self) -> None:
        self.after[self.trainer.current_round, self.trainer.client] = torch.cat(
            [parameter.detach().flatten().clone() for parameter in self.parameters()]
        )


def test_dropout_does_not_depend_on_who_trained_before(tmp_path: Path) -> None:
    alone, second, others = make(Drops), make(Drops), make(Drops)
    for module, cohort in ((alone, [1]), (second, [0, 1]), (others, [2, 1, 0])):
        fitted(tmp_path, module, Clients((8, 8, 8)), max_rounds=1, callbacks=[leave_out([cohort])])
    assert torch.equal(alone.after[0, 1], second.after[0, 1])
    assert torch.equal(alone.after[0, 1], others.after[0, 1])


def test_dropout_differs_between_clients_rounds_and_seeds(tmp_path: Path) -> None:
    class Masks(Drops):
        def on_train_epoch_start(self) -> None:
            noise = nn.functional.dropout(torch.ones(64), 0.5)
            self.after[self.trainer.current_round, self.trainer.client] = noise

        def on_train_epoch_end(self) -> None: ...

    first, again, other = make(Masks), make(Masks), make(Masks)
    for module, seed in ((first, 0), (again, 0), (other, 1)):
        torch.manual_seed(int(torch.randint(100, ())))  # the state of the default generator does not matter
        federated_trainer(tmp_path, max_rounds=2, seed=seed).fit(module, Clients((4, 4)))
    masks = list(first.after.values())
    assert all(not torch.equal(masks[i], masks[j]) for i in range(4) for j in range(i))
    assert all(torch.equal(first.after[key], again.after[key]) for key in first.after)
    assert all(not torch.equal(first.after[key], other.after[key]) for key in first.after)


def test_the_callers_generators_are_left_as_they_were(tmp_path: Path) -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    federated_trainer(tmp_path, max_rounds=1).fit(make(Drops), Clients((8, 8)))
    assert torch.equal(torch.get_rng_state(), before)


# -- what clients share ---------------------------------------------------------------------------------------------


class Remembers(Linear):
    """A Python attribute and a buffer that both count batches."""

    def __init__(self) -> None:
        super().__init__()
        self.attribute = 0
        self.reset_attribute = 0
        self.register_buffer("buffer", torch.zeros(()))
        self.seen: list[tuple[int, int, int, float]] = []

    def on_train_epoch_start(self) -> None:
        self.reset_attribute = 0

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        self.attribute += 1
        self.reset_attribute += 1
        self.buffer += 1  # type: ignore[operator]
        self.seen.append((self.trainer.client, self.attribute, self.reset_attribute, float(self.buffer)))
        return self.loss(batch)


def test_attributes_are_shared_by_clients_and_buffers_are_not(tmp_path: Path) -> None:
    module = make(Remembers)
    federated_trainer(tmp_path, max_rounds=1).fit(module, Clients((8, 8)))
    assert module.seen == [(0, 1, 1, 1.0), (0, 2, 2, 2.0), (1, 3, 1, 1.0), (1, 4, 2, 2.0)]


def test_modes_of_submodules_survive_evaluation(tmp_path: Path) -> None:
    module = make(
        linear("PartlyEval", Normalised, build=lambda self: self.net[1].eval(), validation_step=lambda *_: None)
    )
    federated_trainer(tmp_path, max_rounds=2).fit(module, Clients((8, 8)))
    assert [part.training for part in module.net] == [True, False, True, True]  # type: ignore[attr-defined]
    assert int(module.net[1].num_batches_tracked) == 0  # type: ignore[index]


def test_a_client_predicts_with_what_it_was_given_alone(tmp_path: Path) -> None:
    """Outputs that are the module's own buffers, which the next client's values overwrite."""

    class Threshold(Measured):
        def on_train_epoch_end(self) -> None:
            self.threshold.fill_(self.trainer.client + 1)

        def predict_step(self, batch: Any, batch_idx: int) -> Any:
            return self.threshold

    module, data = make(Threshold), Clients((8, 8, 8))
    trainer = fitted(tmp_path, module, data, max_rounds=1, callbacks=[PersonalLayers(layers=["threshold"])])
    found = trainer.predict(module, data)
    assert {client: [float(value) for value in values] for client, values in found.items()} == {
        client: [client + 1.0] * 2 for client in range(3)
    }


# -- refusals -------------------------------------------------------------------------------------------------------


class Lazy(Linear):
    """Layers whose shapes the first batch tells; a step that leaves traces."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.LazyLinear(4), nn.LazyBatchNorm1d(), nn.Dropout(0.5), nn.LazyLinear(1))  # type: ignore[assignment]
        self.steps = 0
        self.register_buffer("seen", torch.zeros(()))

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        self.steps += 1
        self.seen += 1
        self.log("seen", self.seen)
        return self.loss(batch)


def test_lazy_layers_get_their_shapes_before_training(tmp_path: Path) -> None:
    """Nothing is trained by that: a module with these initial weights, made by hand, learns the same."""
    modules, starts = [make(Lazy), make(Lazy)], []

    class Starts(Cohorts):
        def on_fit_start(self, trainer: Any) -> None:
            starts.append({name: value.clone() for name, value in trainer.module.state_dict().items()})

    for module in modules:
        torch.manual_seed(int(torch.randint(100, ())))  # the caller's generator does not matter
        callbacks = [Starts({}, num_clients=2)]
        federated_trainer(tmp_path, max_rounds=2, callbacks=callbacks).fit(module, Clients((8, 12)))
    assert_same_weights(modules[0], modules[1], moved=False)
    assert all(torch.equal(starts[0][name], starts[1][name]) for name in starts[0])
    assert modules[0].steps == 2 * (2 + 3)
    assert starts[0]["net.1.running_mean"].tolist() == [0.0] * 4
    assert float(starts[0]["seen"]) == 0.0
    plain = make(Lazy)
    plain.net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 1))
    plain.load_state_dict(starts[0])
    federated_trainer(tmp_path, max_rounds=2).fit(plain, Clients((8, 12)))
    assert_same_weights(modules[0], plain, moved=False)


def test_lazy_layers_that_a_batch_does_not_show_are_refused(tmp_path: Path) -> None:
    unused = linear(build=lambda self: setattr(self, "other", nn.LazyLinear(1)))
    message = r"'other.weight', 'other.bias' .*training_step"
    for stage in ("fit", "validate"):
        with pytest.raises(ConfigurationError, match=message):
            getattr(federated_trainer(tmp_path, max_rounds=1), stage)(unused(), Clients())


class Observed(Linear):
    """The range of what it has seen, as observers of quantisation keep it."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("low", torch.full((2,), torch.inf))
        self.register_buffer("high", torch.tensor(-torch.inf))

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        value = torch.tensor([2.0, 6.0][self.trainer.client])
        if self.trainer.client == 0 or self.current_epoch > 0:
            self.low[1] = torch.minimum(self.low[1], value)  # type: ignore[index]
        self.low[0] = torch.minimum(self.low[0], value)  # type: ignore[index]
        self.high = torch.maximum(self.high, value)
        return self.loss(batch)


@pytest.mark.parametrize(
    ("rounds", "low", "high"),
    # From 3, the lowest are 2 and 3 in the second round, the highest 3 and 6; of the second entry 2 and 6.
    [(1, [3.0, torch.inf], 3.0), (2, [2.25, 3.0], 3.75)],
)
def test_a_range_that_begins_at_infinity_becomes_the_mean_of_the_clients(
    rounds: int, low: list[float], high: float, tmp_path: Path
) -> None:
    """Three quarters of the samples are the first client's. What a client has not seen yet stays infinite."""
    module = make(Observed)
    federated_trainer(tmp_path, max_rounds=rounds).fit(module, Clients((12, 4)))
    assert module.low.tolist() == low  # type: ignore[operator]
    assert float(module.high) == high  # type: ignore[arg-type]


# -- what is changed outside of training ----------------------------------------------------------------------------


class Measured(Validated):
    """With a threshold and a count, besides its net."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("threshold", torch.zeros(()))
        self.register_buffer("count", torch.zeros((), dtype=torch.long))

    def on_validation_epoch_end(self) -> None: ...


def _counts(self: Measured, batch: Any, batch_idx: int) -> None:
    self.count += 1


@torch.no_grad()
def _shrinks(self: Measured) -> None:
    self.net.weight.mul_(0.5)


#: What is changed -> hook, what it does, and the names of what is lost.
_LOST: dict[str, tuple[str, Any, list[str]]] = {
    "nothing": ("on_validation_epoch_end", lambda self: self.threshold.mean(), []),
    "in place": ("on_validation_epoch_end", lambda self: self.threshold.fill_(2.0), ["threshold"]),
    "assigned": ("on_validation_epoch_end", lambda self: setattr(self, "threshold", torch.ones(())), ["threshold"]),
    "a parameter": ("on_validation_epoch_end", _shrinks, ["net.weight"]),
    "in a step": ("validation_step", _counts, ["count"]),
    "before the clients": ("on_validation_start", lambda self: self.threshold.fill_(2.0), ["threshold"]),
    "after the clients": ("on_validation_end", lambda self: self.threshold.fill_(2.0), ["threshold"]),
    "at the end of a fit": ("on_train_end", lambda self: self.threshold.fill_(2.0), ["threshold"]),
    "at its very end": ("on_fit_end", _shrinks, ["net.weight"]),
    "in a test": ("on_test_epoch_end", lambda self: self.threshold.fill_(2.0), ["threshold"]),
}


@pytest.mark.parametrize(("hook", "act", "names"), _LOST.values(), ids=_LOST)
def test_a_change_outside_of_training_is_named_once(
    hook: str, act: Any, names: list[str], tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    kind = linear("Changes", Measured, **({"test_step": Validated.validation_step} | {hook: act}))
    module, data = make(kind), Clients((8, 4))
    trainer = fitted(tmp_path, module, data, max_rounds=2)
    trainer.test(module, data)
    told = [str(warning.message) for warning in recwarn if "is lost" in str(warning.message)]
    assert len(told) == len(names)
    assert all(repr(name) in text for name, text in zip(names, told, strict=True))
