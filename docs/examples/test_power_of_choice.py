from pathlib import Path

import pytest
from power_of_choice import PowerOfChoice
from trial import Parabolas, train, weights_of

from lightning_fl import ConfigurationError

#: With a weight of 1 the losses are 0.5, 6 and 2; two steps of 0.1 lead to 1.19, -0.02 and 0.62.
CURVES = ((10, 1.0, 2.0), (30, 3.0, -1.0), (20, 1.0, -1.0))


@pytest.mark.parametrize(("size", "expected"), [(1, -0.02), (2, (-0.02 + 0.62) / 2), (3, (1.19 - 0.02 + 0.62) / 3)])
def test_the_clients_with_the_highest_loss_count_alike(size: int, expected: float, tmp_path: Path) -> None:
    trainer = train(Parabolas(*CURVES), PowerOfChoice(num_candidates=3, cohort_size=size), rounds=1, root=tmp_path)
    assert weights_of(trainer) == [pytest.approx(expected, rel=1e-12)]
    assert trainer.survivors == set([1, 2, 0][:size])


def test_candidates_are_drawn_by_their_samples(tmp_path: Path) -> None:
    """One candidate a round, of clients with 1 and 9 samples: the second in some nine rounds of ten."""
    drawn = []

    class Watched(PowerOfChoice):
        def on_round_end(self, trainer):  # type: ignore[no-untyped-def]
            drawn.extend(trainer.survivors)

    train(Parabolas((1, 0.0, 0.0), (9, 0.0, 0.0)), Watched(num_candidates=1, cohort_size=1), rounds=200, root=tmp_path)
    assert 160 <= sum(drawn) <= 195  # five standard deviations around 180


def test_a_resumed_run_has_the_same_bits(tmp_path: Path) -> None:
    def run(folder: str, rounds: int, ckpt_path: str | None = None) -> list[float]:
        callback = PowerOfChoice(num_candidates=2, cohort_size=1)
        return weights_of(
            train(Parabolas(*CURVES), callback, rounds=rounds, root=tmp_path / folder, ckpt_path=ckpt_path)
        )

    run("part", 2)
    assert run("part", 5, "last") == run("whole", 5)


def test_wrong_numbers_are_named() -> None:
    with pytest.raises(ConfigurationError, match="PowerOfChoice.cohort_size=3.*num_candidates=2"):
        PowerOfChoice(num_candidates=2, cohort_size=3)
    with pytest.raises(ConfigurationError, match="PowerOfChoice.num_batches=0"):
        PowerOfChoice(num_candidates=2, cohort_size=1, num_batches=0)
