"""What the original of IFCA says that must hold, on bowls, where all can be worked out."""

from pathlib import Path

import pytest
import torch
from bowls import Bowl, Bowls, Starts, points, roll

from lightning_fl.callbacks import IFCA

#: Two pairs of clients.
PAIRS: tuple[Bowl, ...] = ((10, 1.0, (2.0,)), (30, 3.0, (-1.0,)), (20, 2.0, (1.5,)), (15, 1.5, (-2.0,)))


def test_ifca_with_equal_models_lets_all_choose_the_first_for_ever(tmp_path: Path) -> None:
    """The others stay where they are, as nobody trains them; so such starts are refused where they are made."""
    ifca = IFCA(num_clusters=2, initial_noise=0.1)
    run = roll(Bowls(*PAIRS), ifca, Starts(1.0, 1.0), root=tmp_path, max_rounds=1)
    assert ifca.assignments == [[0] * 4]
    assert float(points(run)[1]) == 1.0


def test_ifcas_options_are_one_with_a_single_step(tmp_path: Path) -> None:
    """Averages of models after one step are a step by the average of gradients (option I)."""
    starts = torch.tensor([1.5, -1.2], dtype=torch.float64)
    ifca = IFCA(num_clusters=2, initial_noise=0.1)
    run = roll(Bowls(*PAIRS), ifca, Starts(*starts.tolist()), root=tmp_path, max_rounds=1, local_steps=1)
    assert ifca.clusters == [0, 1, 0, 1]
    for model, members in enumerate(([0, 2], [1, 3])):
        total = sum(PAIRS[k][0] for k in members)
        gradient = sum(PAIRS[k][0] / total * PAIRS[k][1] * (starts[model] - PAIRS[k][2][0]) for k in members)
        assert float(points(run)[model]) == pytest.approx(float(starts[model] - 0.1 * gradient), abs=1e-12)
