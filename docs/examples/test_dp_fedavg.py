from pathlib import Path

import pytest
import torch
from dp_fedavg import DPFedAvg
from trial import Parabolas, train, weights_of

from lightning_fl import ConfigurationError
from lightning_fl.engine.client import ClientReport
from lightning_fl.engine.weights.flat import Span, Weights
from lightning_fl.strategies import Contribution, ModelUpdate

CURVES = ((10, 1.0, 2.0), (30, 3.0, -1.0))


def by_hand(clipping_norm: float, rounds: int) -> float:
    """Algorithm 1 without noise, in plain numbers: two steps of 0.1 at each of two clients."""
    shared = 1.0
    for _ in range(rounds):
        changes = []
        for _, curvature, centre in CURVES:
            w = shared
            for _ in range(2):
                w -= 0.1 * curvature * (w - centre)
            changes.append(max(-clipping_norm, min(clipping_norm, w - shared)))
        shared += sum(changes) / len(changes)
    return shared


@pytest.mark.parametrize("clipping_norm", [0.01, 0.3, 100.0])
def test_clipping_against_plain_numbers(clipping_norm: float, tmp_path: Path) -> None:
    strategy = DPFedAvg(clipping_norm=clipping_norm, noise_multiplier=0.0)
    trainer = train(Parabolas(*CURVES), rounds=3, root=tmp_path, strategy=strategy)
    assert weights_of(trainer) == [pytest.approx(by_hand(clipping_norm, 3), rel=1e-12)]


def test_the_noise_has_the_deviation_that_is_promised() -> None:
    """z S / n = 2 x 0.3 / 4 in each of 40,000 weights; the estimate's standard error is 0.4 %, five of them are 2 %."""
    size = 40_000
    layer = Span("layer", torch.float64, 0, size - 1, trainable=True)  # the last entry is nobody's
    zero = Weights({torch.float64: torch.zeros(size, dtype=torch.float64)})
    four = [Contribution(client, 1.0, ClientReport()) for client in range(4)]
    update = ModelUpdate(0, zero, zero, contributions=four, num_clients=4, spans=[layer])
    strategy = DPFedAvg(clipping_norm=0.3, noise_multiplier=2.0)
    first, second = (strategy.aggregate(update).vectors[torch.float64] for _ in range(2))
    for noise in (first, second):
        assert noise.std() == pytest.approx(0.15, rel=0.02)
        assert noise[-1] == 0
    assert abs(torch.corrcoef(torch.stack([first[:-1], second[:-1]]))[0, 1]) < 0.025  # five standard errors


def test_a_resumed_run_has_the_same_bits(tmp_path: Path) -> None:
    def run(folder: str, rounds: int, ckpt_path: str | None = None) -> list[float]:
        root = tmp_path / folder
        return weights_of(train(Parabolas(*CURVES), rounds=rounds, root=root, strategy=DPFedAvg(), ckpt_path=ckpt_path))

    run("part", 2)
    assert run("part", 5, "last") == run("whole", 5)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"clipping_norm": 0}, "DPFedAvg.clipping_norm=0"),
        ({"noise_multiplier": -1}, "DPFedAvg.noise_multiplier=-1"),
    ],
)
def test_wrong_numbers_are_named(setting: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        DPFedAvg(**setting)
