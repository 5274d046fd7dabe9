from pathlib import Path

import pytest
from target_coalitions import TargetCoalitions
from trial import Parabolas, train, weights_of

from lightning_fl import ConfigurationError

#: Samples, curvature and centre; the latter two are also the targets.
CURVES = ((10, 1.0, 2.0), (30, 3.0, -9.0), (20, 1.0, 2.5))


def alone(curve: tuple[int, float, float], w: float = 1.0) -> float:
    for _ in range(2):
        w -= 0.1 * curve[1] * (w - curve[2])
    return w


def test_similar_targets_share_a_model(tmp_path: Path) -> None:
    callback = TargetCoalitions(num_coalitions=2)
    trainer = train(Parabolas(*CURVES), callback, rounds=1, root=tmp_path)
    first, second, third = map(alone, CURVES)
    own, other = (weights_of(trainer)[callback.labels[client]] for client in (0, 1))
    assert callback.labels[0] == callback.labels[2] != callback.labels[1]
    assert own == pytest.approx((10 * first + 20 * third) / 30, rel=1e-12)
    assert other == pytest.approx(second, rel=1e-12)


def test_one_coalition_is_fedavg(tmp_path: Path) -> None:
    one = train(Parabolas(*CURVES), TargetCoalitions(num_coalitions=1), rounds=2, root=tmp_path / "one")
    assert weights_of(one) == weights_of(train(Parabolas(*CURVES), rounds=2, root=tmp_path / "fedavg"))


def test_a_resumed_run_has_the_same_bits(tmp_path: Path) -> None:
    def run(folder: str, rounds: int, ckpt_path: str | None = None) -> list[float]:
        callback = TargetCoalitions(num_coalitions=2)
        return weights_of(
            train(Parabolas(*CURVES), callback, rounds=rounds, root=tmp_path / folder, ckpt_path=ckpt_path)
        )

    run("part", 2)
    assert run("part", 4, "last") == run("whole", 4)


def test_more_coalitions_than_clients_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="TargetCoalitions.num_coalitions=4"):
        train(Parabolas(*CURVES), TargetCoalitions(num_coalitions=4), rounds=1, root=tmp_path)
