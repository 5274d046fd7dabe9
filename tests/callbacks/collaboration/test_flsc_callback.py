"""FLSC in a run: the numbers worked out, a plain loop written from the paper, and where it is another algorithm."""

from pathlib import Path

import pytest
import torch
from bowls import TWO, Bowl, Bowls, Starts, descend, points, roll
from hooks import hooks
from torch import Tensor

from lightning_fl.callbacks import FLSC
from lightning_fl.core.cohort import Cohort

BOWLS: tuple[Bowl, ...] = (*TWO, (20, 2.0, (0.5,)), (15, 1.5, (-2.0,)))


def plain(starts: list[float], bowls: tuple[Bowl, ...], num_best: int, rounds: int) -> tuple[Tensor, list[list[int]]]:
    """The models after some rounds, and what clients then choose."""
    models = torch.tensor(starts, dtype=torch.float64)

    def best(bowl: Bowl) -> list[int]:
        losses = [bowl[1] / 2 * (float(w) - bowl[2][0]) ** 2 for w in models]
        return sorted(range(len(models)), key=lambda k: (losses[k], k))[:num_best]

    for _ in range(rounds):
        chosen = [best(bowl) for bowl in bowls]
        learned = [descend(bowl, models[own].mean()) for bowl, own in zip(bowls, chosen, strict=True)]
        new = models.clone()
        for k in range(len(models)):
            makers = [i for i, own in enumerate(chosen) if k in own]
            if makers:
                total = sum(bowls[i][0] for i in makers)
                new[k] = sum(bowls[i][0] * float(learned[i]) for i in makers) / total
        models = new
    return models[:, None], [best(bowl) for bowl in bowls]


def test_numbers_worked_out(tmp_path: Path) -> None:
    """A starts from 1.5 and ends at 1.595, B starts from 0 and ends at -0.51."""
    flsc = FLSC(num_clusters=3, num_best=2, initial_noise=0.1)
    run = roll(
        Bowls(*BOWLS[:3]),
        flsc,
        Starts(1.0, -1.0, 2.0),
        hooks(select_clients=lambda trainer: Cohort.of([0, 1])),
        root=tmp_path,
        max_rounds=1,
    )
    assert flsc.losses[:2].tolist() == [[0.5, 4.5, 0.0], [6.0, 0.0, 13.5]]
    assert flsc.clusters == [2, 1, -1]
    expected = torch.tensor([[0.01625], [-0.51], [1.595]], dtype=torch.float64)
    torch.testing.assert_close(points(run), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("num_best", [1, 2, 3])
def test_a_run_is_the_papers_algorithm(num_best: int, tmp_path: Path) -> None:
    starts = [1.0, -1.0, 2.0]
    run = roll(
        Bowls(*BOWLS),
        FLSC(num_clusters=3, num_best=num_best, initial_noise=0.1),
        Starts(*starts),
        root=tmp_path,
        max_rounds=3,
    )
    models, chosen = plain(starts, BOWLS, num_best, 3)
    torch.testing.assert_close(points(run), models, rtol=0, atol=1e-10)
    for row, own in zip(run.collaboration.personalisation, chosen, strict=True):  # used, not only trained
        if num_best < 3:
            assert row.nonzero().flatten().tolist() == sorted(own)
        assert float(row.max()) == pytest.approx(1 / num_best)


def test_with_all_of_them_the_models_become_one(tmp_path: Path) -> None:
    """FedAvg from the mean of the first models."""
    starts, settings = [1.0, -1.0, 2.0], {"max_rounds": 2}
    every = FLSC(num_clusters=3, num_best=3, initial_noise=0.1)
    run = roll(Bowls(*BOWLS), every, Starts(*starts), root=tmp_path / "a", **settings)
    together = roll(Bowls(*BOWLS), root=tmp_path / "b", start=(2 / 3,), **settings)
    assert len(set(points(run)[:, 0].tolist())) == 1
    torch.testing.assert_close(points(run)[:1], points(together), rtol=0, atol=1e-10)


def test_a_model_that_nobody_chose_stays_as_it_is(tmp_path: Path) -> None:
    """Though all clients are there, and nobody has ever fed it."""
    starts = (1.0, -1.0, 2.0, 50.0)
    flsc = FLSC(num_clusters=4, num_best=2, initial_noise=0.1)
    run = roll(Bowls(*BOWLS), flsc, Starts(*starts), root=tmp_path, max_rounds=3)
    assert float(points(run)[3]) == 50.0
    torch.testing.assert_close(points(run), plain(list(starts), BOWLS, 2, 3)[0], rtol=0, atol=1e-10)
