"""AFL, a setting of DROClientSampling: its numbers, a plain loop, its limits, and the average that is its answer."""

from pathlib import Path
from typing import Any

import pytest
import torch
from observers import AfterRounds, Resting
from parabolas import CURVES, RATE, OneWeight, TwoParabolas, number, trainer
from tiny import TinyClients, TinyModule, digest

from lightning_fl import FederatedTrainer
from lightning_fl.callbacks import Callback, DROClientSampling, ModelCheckpoint, PersonalLayers
from lightning_fl.core.cohort import Cohort, Participant
from lightning_fl.functional import project_simplex


class Watched(Callback):
    """What every round begins with and ends with: the weight, its average over rounds, and lambda."""

    def __init__(self) -> None:
        self.starts: list[float] = []
        self.averages: list[float] = []
        self.lambdas: list[list[float]] = []

    def on_client_start(self, run: FederatedTrainer, client: int) -> None:
        if client == 0 or not self.starts:
            self.starts.append(number(run.client_weights()))

    def on_round_end(self, run: FederatedTrainer) -> None:
        self.averages.append(number(run.models[0]))
        sampling = run.callback(DROClientSampling)
        self.lambdas.append([] if sampling is None else sampling.weights.tolist())


def afl(rounds: int, step_size: float = 0.1, **more: Any) -> tuple[FederatedTrainer, Watched]:
    watched = Watched()
    run = trainer(
        DROClientSampling(method="afl", step_size=step_size), watched, max_rounds=rounds, local_steps=1, **more
    )
    run.fit(OneWeight(), TwoParabolas())
    return run, watched


def test_the_numbers_of_two_parabolas() -> None:
    """From w = 1, where the losses are 0.5 and 6, with weights of a half: Π(0.55, 1.1) = (0.225, 0.775).

    The clients step to 1.1 and 0.4, of which the mean is 0.75. There the losses are 0.78125 and 4.59375, so that lambda
    becomes Π(0.303125, 1.234375) = (0.034375, 0.965625); the steps lead to 0.875 and 0.225, the weighted mean of which
    is 0.37125.
    """
    _, watched = afl(3)
    assert watched.lambdas[0] == pytest.approx([0.225, 0.775], rel=1e-12)
    assert watched.lambdas[1] == pytest.approx([0.034375, 0.965625], rel=1e-12)
    assert watched.starts == pytest.approx([1.0, 0.75, 0.37125], rel=1e-12)
    assert watched.averages[:2] == pytest.approx([0.75, (0.75 + 0.37125) / 2], rel=1e-12)


def test_a_plain_loop_says_the_same() -> None:
    run, watched = afl(6, step_size=0.03)
    w, weights, seen = 1.0, torch.tensor([0.5, 0.5], dtype=torch.float64), []
    for turn in range(6):
        assert watched.starts[turn] == pytest.approx(w, rel=1e-10)
        losses = torch.tensor([c / 2 * (w - centre) ** 2 for c, centre in CURVES], dtype=torch.float64)
        ends = [w - RATE * c * (w - centre) for c, centre in CURVES]
        w = sum(float(weight) * end for weight, end in zip(weights, ends, strict=True))
        weights = project_simplex(weights + 0.03 * losses)
        seen.append(w)
        assert watched.lambdas[turn] == pytest.approx(weights.tolist(), rel=1e-10)
        assert watched.averages[turn] == pytest.approx(sum(seen) / len(seen), rel=1e-10)
    assert number(run.models[0]) == watched.averages[-1]
    # ... and is what clients are evaluated with
    found = run.metrics["val"]["val_loss"].clients
    expected = {i: c / 2 * (watched.averages[-1] - centre) ** 2 for i, (c, centre) in enumerate(CURVES)}
    assert found == pytest.approx(expected, rel=1e-10)
    assert run.evaluated_model == "the shared model, averaged over the rounds"


def test_a_client_without_weight_does_not_train_but_is_asked_and_comes_back() -> None:
    """Π(1, 6.5) = (0, 1): from 0.75 the second client alone steps to 0.225."""
    _, watched = afl(12, step_size=1.0)
    assert watched.lambdas[0] == [0.0, 1.0]
    assert 2 * watched.averages[1] - watched.averages[0] == pytest.approx(0.225, rel=1e-12)
    assert max(first for first, _ in watched.lambdas[1:]) > 0


def test_without_ascent_its_steps_are_fedavgs_with_equal_weights() -> None:
    class Equal(Callback):
        def select_clients(self, run: FederatedTrainer) -> Cohort:
            return Cohort((Participant(0, 0, 0.5), Participant(1, 0, 0.5)))

    _, watched = afl(4, step_size=0.0)
    plain = Watched()
    trainer(Equal(), plain, max_rounds=4, local_steps=1).fit(OneWeight(), TwoParabolas())
    assert watched.starts == plain.starts  # to the bit
    assert watched.averages[0] == plain.averages[0]
    assert watched.averages[-1] == pytest.approx(sum(plain.averages) / 4, rel=1e-14)


def test_it_moves_the_bytes_of_fedavg() -> None:
    run, _ = afl(2, step_size=0.01)
    size = 2 * 8  # two rounds, one number
    of_one = {"bytes_received": size, "bytes_sent": size}
    assert run.communication.summary(["a", "b"])["clients"] == {"a": of_one, "b": of_one}


def fit(folder: Path, rounds: int, path: str | None = None, *more: Callback) -> FederatedTrainer:
    run = trainer(
        *more,
        DROClientSampling(method="afl", step_size=0.05),
        PersonalLayers(layers=["linear.bias"]),
        ModelCheckpoint(every_n_rounds=1),
        root=folder,
        max_rounds=rounds,
        local_steps=1,
        optimizer_state="keep",
        enable_checkpointing=True,
    )
    run.fit(TinyModule(dropout=0.2, norm=True), TinyClients(), ckpt_path=path)
    return run


def test_a_resumed_run_goes_on_from_the_latest_model_and_its_average(tmp_path: Path) -> None:
    whole = fit(tmp_path / "whole", 5)
    fit(tmp_path / "part", 2)
    resumed = fit(tmp_path / "part", 5, "last")
    ended = fit(tmp_path / "part", 5, "last")  # no round is left
    for run in (resumed, ended):
        assert digest(run.models[0]) == digest(whole.models[0])
        assert run.metrics["val"] == whole.metrics["val"]
        assert run.communication.summary(["a", "b", "c"]) == whole.communication.summary(["a", "b", "c"])
    again = fit(tmp_path / "part", 7, "last")
    assert digest(again.models[0]) == digest(fit(tmp_path / "long", 7).models[0])


def test_what_is_exported_is_the_average_and_whole_numbers_are_the_latest(tmp_path: Path) -> None:
    """A layer of normalisation counts the client's steps: one a round."""
    kept = AfterRounds(lambda run: run.models[0].clone())
    run = fit(tmp_path, 3, None, kept)
    checkpoint = run.callback(ModelCheckpoint)
    assert checkpoint is not None
    assert checkpoint.best_round is not None
    run.loop.flat.load(kept.found[checkpoint.best_round - 1])
    assert run.module is not None
    expected = run.module.state_dict()
    exported = torch.load(Path(run.log_dir) / "models" / "shared_0.ckpt", weights_only=True)["state_dict"]
    assert all(torch.equal(value, expected[name]) for name, value in exported.items())
    assert int(exported["before.0.num_batches_tracked"]) == checkpoint.best_round


@pytest.mark.filterwarnings("ignore:no client takes part")
def test_a_round_in_which_nobody_takes_part_leaves_the_average(tmp_path: Path) -> None:
    watched = Watched()
    run = trainer(DROClientSampling(method="afl"), Resting(3), watched, max_rounds=4, local_steps=1)
    run.fit(OneWeight(), TwoParabolas())
    _, plain = afl(3, step_size=0.01)
    assert watched.averages == [*plain.averages[:2], plain.averages[1], plain.averages[2]]


class LossLost(DROClientSampling):
    """The second client's loss is no number."""

    def _finite(self, run: Any, losses: Any) -> dict[int, float]:
        return super()._finite(run, {**losses, 1: float("nan")})


def test_a_loss_that_is_no_number_moves_nothing_of_its_client() -> None:
    """(0.5 + 0.05, 0.5) is projected to (0.525, 0.475)."""
    sampling = LossLost(method="afl", step_size=0.1)
    run = trainer(sampling, max_rounds=1, local_steps=1, on_client_error="skip")
    with pytest.warns(UserWarning, match="the loss of client_1 is not finite"):
        run.fit(OneWeight(), TwoParabolas())
    assert sampling.weights.tolist() == pytest.approx([0.525, 0.475], rel=1e-12)
