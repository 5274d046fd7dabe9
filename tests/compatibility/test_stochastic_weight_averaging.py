"""Lightning's ``StochasticWeightAveraging``: a client alone trains as in Lightning; shared models are averaged."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import StochasticWeightAveraging
from processes import SUPPORT, Process, succeed_as_two_ranks
from reference import (
    Clients,
    Linear,
    assert_same_weights,
    federated_trainer,
    fit_whole_and_resumed,
    fitted,
    leave_out,
    linear,
    make,
    train_both,
)
from torch import nn
from weight_averaging_run import run

from lightning_fl.callbacks import Callback
from lightning_fl.core.errors import FederatedError


class Halved(Linear):
    """The rate is halved every second epoch, until the callback sets it."""

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=self.lr, momentum=0.9)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)]


def _normed(self: Any) -> None:
    self.net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 1))


_MODULES = {"plain": Linear, "scheduled": Halved, "normed": linear("Normed", Halved, build=_normed)}
_SETTINGS: dict[str, Callable[[], StochasticWeightAveraging]] = {
    "fraction": lambda: StochasticWeightAveraging(0.02, annealing_epochs=2),
    "epoch": lambda: StochasticWeightAveraging([0.2], swa_epoch_start=3, annealing_strategy="linear"),
    "from the start": lambda: StochasticWeightAveraging(0.02, swa_epoch_start=0.0, annealing_epochs=0),
    "own average": lambda: StochasticWeightAveraging(
        0.02, swa_epoch_start=2, avg_fn=lambda old, new, count: (old + new) / (1 + count / count)
    ),
}


@pytest.mark.parametrize("settings", _SETTINGS)
@pytest.mark.parametrize("module", _MODULES)
def test_one_client_is_lightnings_run(module: str, settings: str, tmp_path: Path) -> None:
    theirs = _SETTINGS[settings]()
    given = {"federated": {"callbacks": [_SETTINGS[settings]()]}, "lightning": {"callbacks": [theirs]}}
    own, _, reference, _ = train_both(_MODULES[module], tmp_path, epochs=5, **given)
    # After BatchNorm's pass Lightning steps once more, with gradients of the epoch before.
    theirs.transfer_weights(theirs._average_model, reference)
    assert_same_weights(own, reference, atol=2**-46, moved=False)


def test_an_average_that_never_starts_leaves_the_model(tmp_path: Path) -> None:
    """Lightning's callback puts the initial weights in the place of the trained ones."""
    late = {"callbacks": [StochasticWeightAveraging(0.02, swa_epoch_start=50)]}
    own, _, reference, _ = train_both(Halved, tmp_path, federated=late)
    assert_same_weights(own, reference, atol=2**-46)


class Starts(Callback):
    """Keeps the shared model at the start of each round."""

    def __init__(self) -> None:
        self.states: list[dict[str, torch.Tensor]] = []

    def on_round_start(self, trainer: Any) -> None:
        trainer.loop.flat.load(trainer.models[0])
        self.states.append({name: value.clone() for name, value in trainer.module.state_dict().items()})


def test_the_average_of_several_clients_is_what_is_used(tmp_path: Path) -> None:
    """By hand: the shared models at the start of rounds 2, 3 and 4; BatchNorm's statistics by weights of the clients.

    Client 2 first takes part after the start, client 3 never: rates go by the round, not by a client's turns.
    """
    module, data = make(_MODULES["normed"]), Clients((8, 4, 12, 8))
    starts = Starts()
    averaging = StochasticWeightAveraging(0.02, swa_epoch_start=2, annealing_epochs=2)
    callbacks = [leave_out([[0, 1], [1, 0], [0, 1], [0, 2]]), averaging, starts]
    trainer = fitted(tmp_path, module, data, max_rounds=4, callbacks=callbacks, enable_checkpointing=True)
    for name, parameter in module.named_parameters():
        mean = torch.stack([state[name] for state in starts.states[1:]]).mean(0)
        torch.testing.assert_close(parameter.detach(), mean)
    counts = {0: 8, 1: 4, 2: 12, 3: 8}
    hidden = {client: module.net[0](data.client_data(client, "train").tensors[0]) for client in counts}
    expected = sum(counts[client] / 32 * _batch_means(hidden[client]) for client in counts)
    torch.testing.assert_close(module.net[1].running_mean, expected)
    assert int(module.net[1].num_batches_tracked) == 3
    assert module.net[1].momentum == 0.1
    rates = {client: state.groups[0][0]["lr"] for client, state in trainer.client_states.items() if state.groups}
    assert rates == pytest.approx({0: 0.02, 1: 0.035, 2: 0.02})
    exported = torch.load(trainer.run_log.directory / "models" / "shared_0.ckpt", weights_only=True)["state_dict"]
    for name, value in module.state_dict().items():
        assert torch.equal(value, exported[name])


def _batch_means(hidden: torch.Tensor) -> torch.Tensor:
    return torch.stack([batch.mean(0) for batch in hidden.detach().split(4)]).mean(0)


def test_a_resumed_run_has_the_same_average(tmp_path: Path) -> None:
    given = {"callbacks": [_SETTINGS["epoch"]()]}
    options: dict[str, Any] = {"optimizer_state": "keep", **given}
    (whole, cut, resumed), trainers = fit_whole_and_resumed(_MODULES["normed"], tmp_path, **options)
    assert_same_weights(resumed, whole)
    assert not torch.equal(cut.net[0].weight, whole.net[0].weight)
    again = federated_trainer(tmp_path / "whole", max_rounds=4, callbacks=[_SETTINGS["epoch"]()])
    path = trainers[0].run_log.directory / "checkpoints" / "last.ckpt"
    again.fit(module := make(_MODULES["normed"]), Clients((8, 12)), ckpt_path=path)  # no round is left
    assert_same_weights(module, whole)
    again = federated_trainer(tmp_path / "longer", max_rounds=6, **options)
    again.fit(module := make(_MODULES["normed"]), Clients((8, 12)), ckpt_path=path)
    longer = federated_trainer(tmp_path / "longer", max_rounds=6, **options)
    longer.fit(expected := make(_MODULES["normed"]), Clients((8, 12)))
    assert_same_weights(module, expected)


@pytest.mark.slow
@pytest.mark.processes
def test_processes_average_to_the_same_bits(tmp_path: Path, start_warm: Callable[..., Process]) -> None:
    succeed_as_two_ranks(start_warm, SUPPORT / "weight_averaging_run.py", tmp_path)
    one = run(tmp_path / "one")
    for rank in (0, 1):
        other = torch.load(tmp_path / f"rank_{rank}.pt")
        assert all(torch.equal(value, other[name]) for name, value in one.items())


def _manual(self: Any) -> None:
    super(Linear, self).__init__()
    self.net, self.automatic_optimization = nn.Linear(3, 1), False


def _two_groups(self: Any) -> Any:
    return torch.optim.SGD([{"params": [one], "lr": 0.1} for one in self.parameters()])


class Derived(StochasticWeightAveraging):
    """A callback of its own."""


@pytest.mark.parametrize(
    ("module", "callback", "options", "name"),
    [
        (linear("Manual", build=_manual), StochasticWeightAveraging(0.1), {}, "Manual"),
        (
            linear("Groups", configure_optimizers=_two_groups),
            StochasticWeightAveraging([0.1], swa_epoch_start=1),
            {},
            "swa_lr",
        ),
        (Linear, StochasticWeightAveraging(0.1), {"stacked_clients": 2}, "StochasticWeightAveraging"),
        (Linear, Derived(0.1), {}, "Derived"),
    ],
)
def test_refused(module: Any, callback: Any, options: dict[str, Any], name: str, tmp_path: Path) -> None:
    with pytest.raises(FederatedError, match=name):
        federated_trainer(tmp_path, max_rounds=2, callbacks=[callback], **options).fit(make(module), Clients())
