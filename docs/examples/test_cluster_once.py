from pathlib import Path
from typing import Any

import pytest
from cluster_once import ClusterOnce
from trial import Parabolas, train, weights_of

from lightning_fl import ConfigurationError
from lightning_fl.callbacks import UniformSampling

#: Two clients that want 2, two that want -2.
CURVES = ((10, 1.0, 2.0), (10, 1.0, 2.2), (20, 1.0, -2.0), (10, 1.0, -2.2))


def test_clients_that_pull_the_same_way_are_put_together_once(tmp_path: Path) -> None:
    clusters = ClusterOnce(threshold=1.0, after_rounds=2)
    trainer = train(Parabolas(*CURVES), clusters, rounds=60, root=tmp_path)
    assert clusters.assignments[:2] == [[0, 0, 0, 0]] * 2
    assert clusters.assignments[2:] == [[0, 0, 1, 1]] * 58
    assert weights_of(trainer) == [pytest.approx(2.1, abs=1e-4), pytest.approx(-(2 * 2.0 + 2.2) / 3, abs=1e-4)]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"threshold": 2.0}, [0, 0, 0, 0]),
        ({"threshold": 0.0, "metric": "euclidean"}, [0, 1, 2, 3]),
        ({"threshold": 0.1, "metric": "euclidean"}, [0, 0, 1, 1]),
    ],
)
def test_the_threshold_says_how_many(settings: dict[str, Any], expected: list[int], tmp_path: Path) -> None:
    """Cosine distances are 0 and 2; from one model two steps lead 0.19 of the way, so that 0.038 part two clients."""
    clusters = ClusterOnce(**settings)
    train(Parabolas(*CURVES), clusters, rounds=2, root=tmp_path)
    assert clusters.assignment == expected


def test_one_cluster_is_fedavg_to_the_bit(tmp_path: Path) -> None:
    together = train(Parabolas(*CURVES), ClusterOnce(threshold=3.0), rounds=4, root=tmp_path / "a")
    assert weights_of(together) == weights_of(train(Parabolas(*CURVES), rounds=4, root=tmp_path / "b"))


def test_who_takes_no_part_joins_later_and_a_resumed_run_has_the_same_bits(tmp_path: Path) -> None:
    def run(folder: str, rounds: int, ckpt_path: str | None = None) -> tuple[list[float], list[list[int]]]:
        clusters = ClusterOnce(threshold=1.0)
        sampled = UniformSampling(cohort_size=3)
        root = tmp_path / folder
        trainer = train(Parabolas(*CURVES), clusters, sampled, rounds=rounds, root=root, ckpt_path=ckpt_path)
        return weights_of(trainer), clusters.assignments

    run("part", 2)
    whole = run("whole", 8)
    assert run("part", 8, "last") == whole
    assert whole[1][-1] == [0, 0, 1, 1]


@pytest.mark.parametrize(("name", "value"), [("threshold", -1.0), ("threshold", float("nan")), ("after_rounds", 0)])
def test_wrong_numbers_are_named(name: str, value: float) -> None:
    with pytest.raises(ConfigurationError, match=f"ClusterOnce.{name}={value}"):
        ClusterOnce(**{"threshold": 1.0, name: value})  # type: ignore[arg-type]
