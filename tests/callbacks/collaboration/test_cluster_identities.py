"""What the originals of IFCA, CFL, FeSEM and KMeans say that must hold, on bowls, where all can be worked out."""

from pathlib import Path
from typing import Any

import pytest
import torch
from bowls import TWO, Bowl, Bowls, Starts, descend, points, roll
from corners import CornerModule, MixedClients, fit
from torch import Tensor

from lightning_fl.callbacks import CFL, IFCA, Callback, FeSEM, KMeans
from lightning_fl.engine.weights.flat import Weights

#: Two pairs of clients.
PAIRS: tuple[Bowl, ...] = ((10, 1.0, (2.0,)), (30, 3.0, (-1.0,)), (20, 2.0, (1.5,)), (15, 1.5, (-2.0,)))


class Learned(Callback):
    """What clients learned in every round, and the models before it."""

    def __init__(self) -> None:
        self.starts: list[Tensor] = []
        self.ends: list[dict[int, Tensor]] = []

    def on_round_start(self, trainer: Any) -> None:
        self.starts.append(points(trainer))
        self.ends.append({})

    def on_client_end(self, trainer: Any, client: int) -> None:
        self.ends[-1][client] = trainer.client_weights().vectors[torch.float64][:1].cpu().clone()


def test_ifca_chooses_before_the_training_by_the_received_models(tmp_path: Path) -> None:
    """Losses are those of the received models on all training data, and turns start from the one that was chosen."""
    ifca, learned = IFCA(num_clusters=2, initial_noise=0.1), Learned()
    roll(Bowls(*TWO), ifca, Starts(0.2, -3.0), learned, root=tmp_path, max_rounds=1)
    expected = [[0.5 * 1.8**2, 0.5 * 5**2], [1.5 * 1.2**2, 1.5 * 2**2]]
    torch.testing.assert_close(ifca.losses, torch.tensor(expected, dtype=torch.float64))
    assert ifca.clusters == [0, 0]
    for client, bowl in enumerate(TWO):
        torch.testing.assert_close(learned.ends[0][client], descend(bowl, torch.tensor([0.2], dtype=torch.float64)))


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


def test_both_sides_of_a_split_start_from_the_parents_model(tmp_path: Path) -> None:
    """A side is the parent's model plus the mean update of its own clients."""
    cfl, learned = CFL(mean_norm=10.0, client_norm=0.0, norms="absolute"), Learned()
    run = roll(Bowls(*PAIRS), cfl, learned, root=tmp_path, max_rounds=1)
    assert cfl.assignment == [0, 1, 0, 1]
    assert float(learned.starts[0][0]) == 1.0
    for model, members in enumerate(([0, 2], [1, 3])):
        total = sum(PAIRS[k][0] for k in members)
        mean = sum(PAIRS[k][0] / total * (float(learned.ends[0][k]) - 1.0) for k in members)
        assert float(points(run)[model]) == pytest.approx(1.0 + mean, abs=1e-12)


def test_fesems_distance_falls_in_both_half_steps(tmp_path: Path) -> None:
    """Assigning to the nearest centre, then moving centres to their clients' means (by samples)."""
    fesem, learned = FeSEM(num_clusters=2), Learned()
    run = roll(Bowls(*PAIRS), fesem, learned, root=tmp_path, max_rounds=4)
    sizes = [one[0] for one in PAIRS]
    after = [*learned.starts[1:], points(run)]
    for turn in range(1, 4):
        ends = [float(learned.ends[turn][client]) for client in range(4)]

        def distance(labels: list[int], centres: Tensor, ends: list[float] = ends) -> float:
            return sum(m * (w - float(centres[k])) ** 2 for m, w, k in zip(sizes, ends, labels, strict=True))

        before = distance(fesem.assignments[turn - 1], learned.starts[turn])
        assigned = distance(fesem.assignments[turn], learned.starts[turn])
        moved = distance(fesem.assignments[turn], after[turn])
        assert moved <= assigned + 1e-12 <= before + 2e-12


def test_kmeans_groups_what_was_learned_from_a_common_start_once(tmp_path: Path) -> None:
    kmeans, learned = KMeans(num_clusters=2), Learned()
    roll(Bowls(*PAIRS), kmeans, learned, root=tmp_path, max_rounds=3)
    assert learned.starts[0].unique().tolist() == [1.0]
    assert [labels for labels in kmeans.assignments[1:] if labels != kmeans.assignments[0]] == []
    groups = kmeans.assignments[0]
    assert groups[0] == groups[2] != groups[1] == groups[3]


@pytest.mark.parametrize("order", [(1, 0, 3, 2), (3, 2, 1, 0)])
def test_kmeans_does_not_depend_on_the_order_of_clients(order: tuple[int, ...], tmp_path: Path) -> None:
    """The same clients in another order make the same groups, and their models up to rounding."""
    first, second = KMeans(num_clusters=2), KMeans(num_clusters=2)
    one = roll(Bowls(*PAIRS), first, root=tmp_path / "a", max_rounds=3)
    other = roll(Bowls(*(PAIRS[k] for k in order)), second, root=tmp_path / "b", max_rounds=3)
    for place, client in enumerate(order):
        own: list[Weights] = [run.client_model(k) for run, k in ((one, client), (other, place))]
        values = [weights.vectors[torch.float64] for weights in own]
        torch.testing.assert_close(values[0], values[1], rtol=0, atol=1e-12)


def test_identical_clients_are_never_split() -> None:
    data = MixedClients(pure=True)
    for client in range(1, 6):
        data.sets[client, "train"] = data.sets[0, "train"]
    data.sizes = (24,) * 6
    cfl = CFL(mean_norm=1e9, client_norm=0.0, norms="absolute")
    fit(cfl, data=data, module=CornerModule(), max_rounds=3)
    assert cfl.splits == []
