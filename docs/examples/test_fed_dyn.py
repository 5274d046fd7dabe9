from pathlib import Path

import pytest
from fed_dyn import FedDyn
from trial import Parabolas, train, weights_of

from lightning_fl import ConfigurationError

CURVES = ((10, 1.0, 2.0), (30, 3.0, -1.0))


def by_hand(alpha: float, rounds: int) -> float:
    """Algorithm 1 in plain numbers."""
    shared, h, gradients = 1.0, 0.0, [0.0, 0.0]
    for _ in range(rounds):
        learned = []
        for client, (_, curvature, centre) in enumerate(CURVES):
            w = shared
            for _ in range(2):
                w -= 0.1 * (curvature * (w - centre) - gradients[client] + alpha * (w - shared))
            gradients[client] -= alpha * (w - shared)
            learned.append(w)
        h -= alpha * sum(w - shared for w in learned) / len(CURVES)
        shared = sum(learned) / len(learned) - h / alpha
    return shared


@pytest.mark.parametrize("alpha", [0.1, 1.0])
def test_against_the_algorithm_in_plain_numbers(alpha: float, tmp_path: Path) -> None:
    trainer = train(Parabolas(*CURVES), rounds=4, root=tmp_path, strategy=FedDyn(alpha))
    assert weights_of(trainer) == [pytest.approx(by_hand(alpha, 4), rel=1e-10)]


def test_it_leads_to_the_optimum_of_the_mean_loss(tmp_path: Path) -> None:
    """(1 x 2 - 3 x 1) / (1 + 3), wherever the clients' own optima are."""
    trainer = train(Parabolas(*CURVES), rounds=120, root=tmp_path, strategy=FedDyn(1.0))
    assert weights_of(trainer) == [pytest.approx(-0.25, abs=1e-9)]


def test_a_resumed_run_has_the_same_bits(tmp_path: Path) -> None:
    def run(folder: str, rounds: int, ckpt_path: str | None = None) -> list[float]:
        root = tmp_path / folder
        return weights_of(
            train(Parabolas(*CURVES), rounds=rounds, root=root, strategy=FedDyn(0.5), ckpt_path=ckpt_path)
        )

    run("part", 2)
    assert run("part", 5, "last") == run("whole", 5)


def test_a_wrong_alpha_is_named() -> None:
    with pytest.raises(ConfigurationError, match="FedDyn.alpha=0"):
        FedDyn(0)
