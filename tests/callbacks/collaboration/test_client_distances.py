import copy
import threading
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from client_distances import pairwise_distances
from hypothesis import given, settings
from hypothesis import strategies as st
from processes import LIMIT
from rounding import assert_equal_up_to_rounding, rounding
from torch import Tensor, nn

import lightning_fl.callbacks.collaboration.discriminators.networks as module
from lightning_fl.callbacks.collaboration.discriminators.distances import (
    PairwiseDistances,
    distance,
    distance_error,
    spread_order,
    training_size,
)
from lightning_fl.callbacks.collaboration.discriminators.networks import (
    DiscriminatorSettings,
    evaluate,
    first_weights,
    layers,
    local_step_,
)
from lightning_fl.core.errors import TrainingError
from lightning_fl.core.seeding import generator

# Odd sizes, so that vectorised loops have remainders.
ODD = DiscriminatorSettings(
    hidden=23, learning_rate=0.3, max_rounds=60, patience=4, batch_size=5, max_train=7, max_validation=19
)
SMALL = DiscriminatorSettings(
    hidden=16, learning_rate=0.3, max_rounds=60, patience=4, batch_size=3, max_train=8, max_validation=20
)


def shifted_clients(sizes: list[int], num_features: int, seed: int = 0, shift: float = 0.5) -> list[Tensor]:
    draws = torch.Generator().manual_seed(seed)
    return [
        torch.randn(size, num_features, generator=draws) + shift * (client % 3) * torch.eye(num_features)[0]
        for client, size in enumerate(sizes)
    ]


class Loop:
    """Algorithm 1 as it is written: two copies of the server's network, a step each on own data, their average."""

    def __init__(
        self, features: list[Tensor], pair: tuple[int, int], given: DiscriminatorSettings, seed: int, fold: int = 0
    ) -> None:
        self.settings = given
        samples = [self.ordered(features[client], client, seed) for client in pair]
        if fold:
            samples = [x.flip(0) for x in samples]
        self.size = min(min(map(len, samples)) // 2, given.max_train or 10**9)
        self.train = [x[: self.size] for x in samples]
        self.held_out = [x[self.size : self.size + given.max_validation] for x in samples]
        self.turn = 0
        first = first_weights(features[0].shape[1], given.hidden, generator(seed, "client discriminator"))
        self.server = nn.Sequential(
            nn.Linear(features[0].shape[1], given.hidden), nn.ReLU(), nn.Linear(given.hidden, 1)
        )
        self.load(first)

    def load(self, weights: Tensor) -> None:
        inner, output, bias = (part[0] for part in layers(weights[None], self.settings.hidden))
        for parameter, value in zip(self.server.parameters(), (inner[:-1].T, inner[-1], output, bias), strict=True):
            parameter.data.copy_(value)

    @staticmethod
    def ordered(x: Tensor, client: int, seed: int) -> Tensor:
        return x[spread_order(torch.zeros(len(x)), generator(seed, client, "client discriminator"))]

    def round(self) -> None:
        locals_ = [copy.deepcopy(self.server) for _ in range(2)]
        size = min(self.size, self.settings.batch_size)
        rows = [(self.turn * size + k) % self.size for k in range(size)]
        self.turn += 1
        for network, own, label in zip(locals_, self.train, (1.0, 0.0), strict=True):
            x = own[rows]
            optimizer = torch.optim.SGD(network.parameters(), lr=self.settings.learning_rate)
            F.binary_cross_entropy_with_logits(network(x), torch.full((len(x), 1), label)).backward()
            optimizer.step()
        for shared, *parts in zip(self.server.parameters(), *(n.parameters() for n in locals_), strict=True):
            shared.data.copy_((parts[0] + parts[1]).detach() / 2)

    @torch.no_grad()
    def evaluate(self) -> tuple[tuple[float, float], float]:
        first, second = (self.server(x).squeeze(1) for x in self.held_out)
        accuracies = float((first > 0).double().mean()), float((second <= 0).double().mean())
        return accuracies, float(F.softplus(-first).mean() + F.softplus(second).mean())

    def best(self) -> tuple[tuple[float, float], int]:
        chosen, score, stale = (0.0, 0.0), -float("inf"), 0
        for number in range(1, self.settings.max_rounds + 1):
            self.round()
            if number % self.settings.eval_every:
                continue
            accuracy, loss = self.evaluate()
            new, perfect = -loss if self.settings.monitor == "loss" else sum(accuracy) / 2, min(accuracy) == 1
            stale += 1
            if new > score or perfect:
                chosen, score, stale = accuracy, new, 0
            if perfect or stale == self.settings.patience:
                break
        return chosen, number


class Ranks:
    """Processes played by threads: each has its clients, sums wait for all."""

    def __init__(self, hosts: list[list[int]]) -> None:
        self.hosts = hosts
        self.barrier = threading.Barrier(len(hosts))
        self.parts: dict[int, Tensor] = {}
        self.sent: list[Tensor] = []

    def reduce(self, rank: int, part: Tensor) -> Tensor:
        self.parts[rank] = part
        self.barrier.wait(LIMIT)
        total = torch.stack([self.parts[r] for r in range(len(self.hosts))]).sum(0)
        self.sent.append(part.clone())
        self.barrier.wait(LIMIT)
        return total

    def run(self, features: list[Tensor], *args: object, **kwargs: object) -> list[PairwiseDistances]:
        found: dict[int, PairwiseDistances | Exception] = {}

        def work(rank: int) -> None:
            held = {client: features[client] for client in self.hosts[rank]}
            try:
                found[rank] = pairwise_distances(
                    held, *args, num_clients=len(features), reduce=lambda part: self.reduce(rank, part), **kwargs
                )
            except Exception as error:
                found[rank] = error

        threads = [threading.Thread(target=work, args=(rank,)) for rank in range(len(self.hosts))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for result in found.values():
            if isinstance(result, Exception):
                raise result
        return [found[rank] for rank in range(len(self.hosts))]


def same(first: PairwiseDistances, second: PairwiseDistances) -> bool:
    names = ("distances", "standard_errors", "rounds", "best_rounds", "bytes_each_way")
    return all(torch.allclose(getattr(first, n), getattr(second, n), 0, 0, equal_nan=True) for n in names)


def flat(network: nn.Sequential) -> Tensor:
    hidden, _, output = network
    return torch.cat([hidden.weight.T.flatten(), hidden.bias, output.weight[0], output.bias]).detach()


def with_one(x: Tensor) -> Tensor:
    return F.pad(x, (0, 1), value=1.0)


def test_a_step_and_an_evaluation_are_those_of_a_module() -> None:
    """In two pairs at once, of which the client is first and second."""
    features = shifted_clients([30, 17], 5)
    loop = Loop(features, (0, 1), SMALL, seed=3)
    weights = torch.stack([first_weights(5, 16, generator(seed, "weights")) for seed in (1, 2)])
    labels, before = torch.tensor([1.0, 0.0]), weights.clone()
    held_out = torch.zeros(2, 22, dtype=torch.bool)
    held_out[:, :20] = True  # the last two of these do not count
    found = evaluate(before, with_one(torch.cat([loop.held_out[0], loop.train[0][:2]])), labels, held_out, 16)
    local_step_(weights, with_one(loop.train[0]), labels, 16, 0.7)
    for row, label in enumerate((1.0, 0.0)):
        loop.load(before[row])
        x, v = loop.train[0], loop.held_out[0]
        logits = loop.server(v).squeeze(1)
        assert int(found[row, 0]) == int(((logits > 0) == bool(label)).sum())
        loss = F.binary_cross_entropy_with_logits(logits, torch.full((len(v),), label), reduction="sum")
        assert_equal_up_to_rounding(found[row, 1], loss, steps=2)
        F.binary_cross_entropy_with_logits(loop.server(x), torch.full((len(x), 1), label)).backward()
        torch.optim.SGD(loop.server.parameters(), lr=0.7).step()
        loop.server.zero_grad()
        assert_equal_up_to_rounding(weights[row], flat(loop.server), steps=2)


def test_first_weights_are_drawn_as_a_linear_layers() -> None:
    inner, output, bias = layers(first_weights(25, 400, generator(0, "weights"))[None], 400)
    assert inner.shape == (1, 26, 400)
    assert output.shape == (1, 1, 400)
    assert bias.shape == (1, 1)
    assert 0.19 < inner.abs().max() <= 1 / 5
    assert 0.049 < output.abs().max() <= 1 / 20
    assert abs(float(inner.mean())) < 0.01


def test_weights_follow_the_plain_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """After thirty rounds; what is seen is what the evaluations get."""
    seen: list[Tensor] = []

    def watched(weights: Tensor, *arguments: object) -> Tensor:
        seen.append(weights.clone())
        return evaluate(weights, *arguments)

    monkeypatch.setattr(module, "evaluate", watched)
    features = shifted_clients([30, 17], 5)
    given = replace(SMALL, max_rounds=30, patience=9)
    pairwise_distances(features, given, seed=3)
    assert len(seen) == 2 * 2 * 3  # of either client and fold, every ten rounds
    for fold in (0, 1):
        loop = Loop(features, (0, 1), given, seed=3, fold=fold)
        for _ in range(30):
            loop.round()
        assert_equal_up_to_rounding(seen[fold - 2][0], flat(loop.server), steps=30)


def test_what_clients_receive_and_send_is_counted() -> None:
    given = DiscriminatorSettings(hidden=3, max_rounds=20, max_train=8)
    found = pairwise_distances(shifted_clients([40, 40, 8, 9], 5, shift=0.0), given, pairs=[(0, 1), (0, 2), (1, 2)])
    network = 4 * ((5 + 1) * 3 + 3 + 1)  # bytes of W1, b1, w2 and b2
    assert found.bytes_each_way.tolist() == [network * int(found.rounds[i].clamp(min=0).sum()) for i in range(4)]
    assert found.bytes_each_way[3] == 0 < found.bytes_each_way[2]


def test_what_is_counted_is_what_crosses_between_processes() -> None:
    features, ranks = shifted_clients([30, 30], 5), Ranks([[0], [1]])
    found, _ = ranks.run(features, SMALL)
    crossed = sum(part.numel() for part in ranks.sent if part.shape[-1] == 6 * 16 + 17)
    assert crossed == int(found.bytes_each_way.sum()) // 4


def test_only_pairs_that_are_apart_cross_between_processes() -> None:
    ranks = Ranks([[0, 1], [2, 3]])
    found, _ = ranks.run(shifted_clients([30, 30, 30, 30], 5), SMALL)
    width = 6 * 16 + 17
    crossed = sum(len(part) for part in ranks.sent if part.shape[-1] == width)
    assert crossed == 2 * int(found.rounds[:2, 2:].sum())


@pytest.mark.slow
@pytest.mark.parametrize("monitor", ["loss", "balanced_accuracy"])
def test_distances_are_those_of_the_plain_loop(monitor: str) -> None:
    features = shifted_clients([40, 31, 9, 5, 22], 12)
    given = DiscriminatorSettings(
        hidden=16, max_rounds=95, patience=3, max_train=8, max_validation=20, monitor=monitor, learning_rate=1.0
    )
    found = pairwise_distances(features, given, seed=1)
    for i in range(5):
        for j in range(i + 1, 5):
            loops = [Loop(features, (i, j), given, seed=1, fold=fold) for fold in (0, 1)]
            (first, first_rounds), (second, second_rounds) = (loop.best() for loop in loops)
            resolution = 1 / min(map(len, loops[0].held_out))
            mean = (first[0] + second[0]) / 2, (first[1] + second[1]) / 2
            assert found.distances[i, j] == pytest.approx(distance(mean), abs=resolution + 1e-9)
            assert abs(int(found.rounds[i, j]) - min(first_rounds, 90) - min(second_rounds, 90)) <= 20
            assert 0 < found.best_rounds[i, j] <= found.rounds[i, j]
    assert torch.equal(found.distances, found.distances.T)
    assert (found.distances.diagonal() == 0).all()
    assert (found.standard_errors.diagonal() == 0).all()
    assert torch.equal(found.standard_errors, found.standard_errors.T)


@pytest.mark.slow
def test_stacks_and_the_order_of_pairs_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to rounding, which may bring a sample to the other side or a stop to the next evaluation."""
    features = shifted_clients([30, 17, 30, 40, 9], 12)
    losses: list[float] = []

    def watched(*arguments: Tensor) -> Tensor:
        found = evaluate(*arguments)
        losses.extend(found[:, 1].tolist())
        return found

    monkeypatch.setattr(module, "evaluate", watched)
    given = replace(ODD, patience=9)
    usual = pairwise_distances(features, given)
    expected, pairs = sorted(losses), [(i, j) for i in range(5) for j in range(i)]
    for size in (1, 2**18):
        monkeypatch.setattr(module, "_CPU_CHUNK_BYTES", size)
        losses.clear()
        found = pairwise_distances(features, given, pairs=reversed(pairs))
        bound = rounding(torch.float32, steps=60)
        torch.testing.assert_close(torch.tensor(sorted(losses)), torch.tensor(expected), rtol=bound, atol=0)
        torch.testing.assert_close(found.distances, usual.distances, rtol=0, atol=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("hosts", [[[0, 1], [2, 3, 4]], [[4, 0], [], [3, 1, 2]], [[0], [1], [2], [3], [4]]])
def test_same_bits_in_any_number_of_processes(hosts: list[list[int]]) -> None:
    features = shifted_clients([30, 17, 30, 40, 9], 13)
    alone = pairwise_distances(features, ODD, seed=2)
    for found in Ranks(hosts).run(features, ODD, seed=2):
        assert same(found, alone)


def test_samples_stay_in_their_process() -> None:
    features = shifted_clients([20, 20, 20], 40, shift=2.0)
    ranks = Ranks([[0], [1], [2]])
    ranks.run(features, SMALL)
    crossed = torch.cat([part.float().flatten() for part in ranks.sent])
    assert torch.isin(torch.cat(features), crossed).double().mean() < 0.01  # but by chance


def test_equal_distributions_are_near_and_disjoint_ones_far() -> None:
    near = pairwise_distances(shifted_clients([1000] * 4, 10, shift=0.0)).distances
    assert near.max() < 0.12
    far = pairwise_distances([torch.eye(3)[client].repeat(300, 1) for client in range(3)])
    assert torch.equal(far.distances, 1 - torch.eye(3).double())
    assert (far.best_rounds == far.rounds).all()  # it stops as soon as it is never wrong


@pytest.mark.slow
def test_total_variation_of_labels_is_found() -> None:
    draws = torch.Generator().manual_seed(0)
    shares = torch.tensor([[0.5, 0.5, 0.0], [0.5, 0.0, 0.5], [0.2, 0.4, 0.4]])
    labels = [torch.multinomial(share, 600, replacement=True, generator=draws) for share in shares]
    found = pairwise_distances([F.one_hot(y, 3).float() for y in labels], groups=labels).distances
    expected = (shares[:, None] - shares[None]).abs().sum(2) / 2
    torch.testing.assert_close(found, expected.double(), rtol=0, atol=0.08)


def test_pairs_stop_by_themselves() -> None:
    """Pairs that are never wrong at once, pairs of equal clients for want of patience, the others at the end."""
    draws = torch.Generator().manual_seed(1)
    equal = [torch.randn(40, 5, generator=draws) for _ in range(2)]
    far = torch.full((40, 5), 3.0)
    given = replace(SMALL, max_rounds=95, patience=3, batch_size=8, learning_rate=1.0)
    found = pairwise_distances([*equal, far], given)
    assert found.rounds[1, 2] == found.best_rounds[1, 2] == 2 * 10  # of two folds
    assert found.best_rounds[0, 1] + 2 * 30 == found.rounds[0, 1] < 2 * 90
    patient = pairwise_distances([*equal, far], replace(given, patience=20))
    assert patient.rounds[0, 1] == 2 * 90  # the last evaluation
    assert patient.rounds[1, 2] == found.rounds[1, 2]


def test_chosen_pairs_only() -> None:
    features = shifted_clients([30, 17, 30, 40], 12)
    everything = pairwise_distances(features, SMALL)
    joining = pairwise_distances(features, SMALL, pairs=[(3, 0), (1, 3), (3, 0)])
    asked = torch.zeros(4, 4, dtype=torch.bool)
    asked[0, 3] = asked[3, 0] = asked[1, 3] = asked[3, 1] = True
    assert torch.equal(joining.distances[asked], everything.distances[asked])
    others = ~asked & ~torch.eye(4, dtype=torch.bool)
    assert joining.distances[others].isnan().all()
    assert (joining.rounds[others] == -1).all()
    assert pairwise_distances(features, SMALL, pairs=[]).distances.isnan().sum() == 12
    for found in Ranks([[0, 1], [2, 3]]).run(features, SMALL, pairs=[]):
        assert found.distances.isnan().sum() == 12


def test_training_sizes() -> None:
    assert training_size([9, 200], 48) == 4
    assert training_size([300, 200], 48) == 48
    assert training_size([300, 200]) == 100
    features = shifted_clients([30, 8, 30], 12)
    shared = DiscriminatorSettings(hidden=16, max_rounds=40, max_train=8, shared_size=True)
    four = DiscriminatorSettings(hidden=16, max_rounds=40, max_train=4)
    assert same(pairwise_distances(features, shared), pairwise_distances(features, four))


def test_inputs_and_default_generator_are_untouched() -> None:
    features = shifted_clients([40, 40, 40], 6)
    before, state = [x.clone() for x in features], torch.get_rng_state()
    pairwise_distances(features, SMALL)
    assert all(map(torch.equal, features, before))
    assert torch.equal(torch.get_rng_state(), state)
    assert not same(pairwise_distances(features, SMALL, seed=1), pairwise_distances(features, SMALL, seed=2))


@given(st.lists(st.integers(0, 4), min_size=1, max_size=60), st.integers(0, 99))
@settings(max_examples=50, deadline=None)
def test_every_beginning_of_an_order_is_stratified(groups: list[int], seed: int) -> None:
    labels = torch.tensor(groups)
    order = spread_order(labels, torch.Generator().manual_seed(seed))
    assert sorted(order.tolist()) == list(range(len(groups)))
    num_groups = len(set(groups))
    for m in range(1, len(groups) + 1):
        for label in set(groups):
            share = groups.count(label) / len(groups)
            # at t of the way a group has n t samples up to one, all groups together m
            assert abs(int((labels[order[:m]] == label).sum()) - m * share) <= 1 + num_groups * share


def test_distance() -> None:
    assert [distance((p, q)) for p, q in ((0.2, 0.3), (0.5, 0.5), (1.0, 0.5), (1.0, 1.0))] == [-0.5, 0, 0.5, 1]


def test_the_standard_error_is_that_of_draws() -> None:
    """Of many binomial draws; where all are right, it is not 0."""
    draws = torch.Generator().manual_seed(0)
    shares, counts = (0.7, 0.55), (40, 400)
    told = [torch.rand(20_000, n, generator=draws).lt(p).double().mean(1) for p, n in zip(shares, counts, strict=True)]
    spread = float((told[0] + told[1] - 1).std())
    assert distance_error(shares, counts) == pytest.approx(spread, rel=0.05)
    assert 0.02 < distance_error((1.0, 1.0), (40, 400)) < 0.03


def test_the_standard_error_counts_the_samples_of_one_fold() -> None:
    """The second trains on what the first validates, and errs as it does."""
    features = shifted_clients([200, 1200], 5, shift=0.0)
    for one in (DiscriminatorSettings(), DiscriminatorSettings(folds=1)):
        error = float(pairwise_distances(features, one).standard_errors[0, 1])
        assert error == pytest.approx((0.25 / 100 + 0.25 / 1100) ** 0.5, rel=0.05)


@pytest.mark.slow
def test_the_standard_error_is_the_spread_over_fresh_draws() -> None:
    """Sixty times both clients anew, so that the spread is known to 9 percent."""
    features = [client for seed in range(60) for client in shifted_clients([40, 40], 5, seed=seed)]
    pairs = [(2 * draw, 2 * draw + 1) for draw in range(60)]
    found = pairwise_distances(features, pairs=pairs)
    first, second = zip(*pairs, strict=True)
    spread, told = found.distances[first, second].std(), found.standard_errors[first, second].square().mean().sqrt()
    assert 0.8 < float(spread / told) < 1.2


def test_cross_fitting_is_the_mean_of_two_folds() -> None:
    """The second trains on the last samples: it is the first one for clients whose orders are the other way round."""
    features = shifted_clients([40, 31], 6)
    both = pairwise_distances(features, SMALL)
    loops = [Loop(features, (0, 1), SMALL, seed=0, fold=fold) for fold in (0, 1)]
    alone = pairwise_distances(features, replace(SMALL, folds=1))
    resolution = 1 / min(map(len, loops[0].held_out)) + 1e-9
    first, second = (distance(loop.best()[0]) for loop in loops)
    assert float(alone.distances[0, 1]) == pytest.approx(first, abs=resolution)
    assert float(both.distances[0, 1]) == pytest.approx((first + second) / 2, abs=resolution)


def test_a_loss_that_is_not_finite_is_an_error_everywhere() -> None:
    features = shifted_clients([12, 12, 12], 6, shift=0.0)
    wild = DiscriminatorSettings(learning_rate=1e38, max_rounds=20)
    with pytest.raises(TrainingError, match="clients 0 and 1 .*learning_rate"):
        pairwise_distances(features, wild)
    with pytest.raises(TrainingError, match="not finite"):
        Ranks([[0, 1], [2]]).run(features, wild)
