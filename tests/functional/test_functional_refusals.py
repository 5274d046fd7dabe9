"""What the functions of the papers refuse: the type of error, and the argument or client at fault."""

import math
from collections.abc import Callable, Iterator
from functools import partial

import pytest
import torch

from lightning_fl.core.errors import ConfigurationError, DataError
from lightning_fl.core.seeding import generator
from lightning_fl.functional import (
    batched_greedy_collaborators,
    choose_bids,
    coalition_objective,
    collaboration_weights,
    conformal_quantile,
    contribution_weights,
    cosine_similarities,
    draw_cohort,
    draw_contributors,
    draw_subset,
    floored_importance,
    gram_matrix,
    greedy_collaborators,
    importance_weights,
    join_coalitions,
    join_group,
    join_most_similar,
    kmeans_from_gram,
    least_merged_cosine,
    loss_estimate,
    mix,
    most_discriminative_layer,
    optimal_bipartition,
    partition_from_gram,
    partition_utility,
    perturbed,
    project_simplex,
    reimbursement_share,
    remembered_cosines,
    reward_ranks,
    sample_dirichlet,
    sample_gamma,
    sampling_weights_update,
    schedule,
    shapley_exact,
    shapley_first_order,
    shapley_permutations,
    solve_coalitions,
    squared_distances,
    standings,
    thresholded_cosines,
    update_norms,
    with_cosines,
)
from lightning_fl.functional.integrated_gradients import integrated_gradients
from lightning_fl.functional.shapley import FirstOrderShapley

NAN, INF = math.nan, math.inf
EYE, ONES, PAIR = torch.eye(2), torch.ones(2), torch.tensor([[0.0, 0.5], [0.5, 0.0]])
BIDDER = {1: 1}

Row = tuple[Callable[[], object], type[Exception], str]


def _matrix(*rows: list[float]) -> torch.Tensor:
    return torch.tensor(rows)


def _coalitions() -> Iterator[Row]:
    calls = (
        lambda *args: coalition_objective([0] * len(args[0]), *args),
        solve_coalitions,
        lambda *args: join_coalitions([0] * len(args[0]), *args, [0]),
    )
    for distances, counts, capacity, name in (
        (torch.zeros(2, 3), [1, 1], 1.0, r"distances of shape \[2, 3\]"),
        (torch.zeros(2), [1, 1], 1.0, "distances of shape"),
        (torch.zeros(0, 0), [], 1.0, "distances of shape"),
        (_matrix([0.0, NAN], [NAN, 0.0]), [1, 1], 1.0, "distances.*finite"),
        (_matrix([0.0, INF], [INF, 0.0]), [1, 1], 1.0, "distances.*finite"),
        (_matrix([0.0, 0.5], [0.4, 0.0]), [1, 1], 1.0, "distances.*symmetric"),
        (_matrix([0.0, 5e-8], [4e-8, 0.0]), [1, 1], 1.0, "distances.*symmetric"),
        (_matrix([0.1, 0.5], [0.5, 0.0]), [1, 1], 1.0, "distances.*diagonal"),
        (PAIR, [1, 1, 1], 1.0, "num_samples="),
        (PAIR, [1, 0], 1.0, r"num_samples=\[1.0, 0.0\]"),
        (PAIR, [1.0, NAN], 1.0, "num_samples="),
        (PAIR, [1, 1], -0.1, "capacity=-0.1"),
        (PAIR, [1, 1], INF, "capacity=inf"),
        (PAIR, [1, 1], NAN, "capacity=nan"),
    ):
        yield from ((partial(call, distances, counts, capacity), ConfigurationError, name) for call in calls)
    yield lambda: coalition_objective([0, 1, 0], PAIR, [1, 1], 1.0), ConfigurationError, r"assignment is .* \[3\]"
    yield lambda: coalition_objective(torch.zeros(2), PAIR, [1, 1], 1.0), ConfigurationError, "assignment"
    yield lambda: solve_coalitions(PAIR, [1, 1], 1.0, num_restarts=0), ConfigurationError, "num_restarts=0"
    for newcomers in ([1, 1], [2], [-1]):
        yield lambda who=newcomers: join_coalitions([0, 0], PAIR, [1, 1], 1.0, who), ConfigurationError, "newcomers"
    yield lambda: join_coalitions([-1, 0], PAIR, [1, 1], 1.0, [1]), ConfigurationError, "assignment"


def _partitions() -> Iterator[Row]:
    calls = (
        partition_from_gram,
        lambda *args: join_group(*args, [0] * len(args[0]), 0),
        lambda *args: partition_utility(*args, [0] * len(args[0])),
    )
    for gram, counts, tradeoff, name in (
        (torch.ones(2, 3), [1, 1], 1.0, r"gram of shape \[2, 3\]"),
        (torch.ones(0, 0), [], 1.0, "gram of shape"),
        (_matrix([1.0, NAN], [0.0, 1.0]), [1, 1], 1.0, "gram: .*finite"),
        (-EYE, [1, 1], 1.0, "gram: .*squared norms"),
        (EYE, [1], 1.0, r"num_samples=\[1.0\] for 2 clients"),
        (EYE, [1, 0], 1.0, "num_samples="),
        (EYE, [1, 1], -1.0, "tradeoff=-1.0"),
        (EYE, [1, 1], NAN, "tradeoff=nan"),
        (EYE, [1, 1], INF, "tradeoff=inf"),
    ):
        yield from ((partial(call, gram, counts, tradeoff), ConfigurationError, name) for call in calls)
    for labels, newcomer in (([0], 0), ([0, 0], 2), ([0, 0], -1)):
        yield partial(join_group, EYE, [1, 1], 1.0, labels, newcomer), ConfigurationError, "newcomer="
    yield lambda: partition_utility(EYE, [1, 1], 1.0, [0, 0, 0]), ConfigurationError, "3 labels .* 2 clients"
    for value in (-0.1, NAN, INF):
        yield partial(least_merged_cosine, value), ConfigurationError, "relative_trade_off="


def _greedy() -> Iterator[Row]:
    def on_sets(candidates: list[int], budget: int) -> object:
        return greedy_collaborators(lambda s: 0.0, candidates, budget, generator(0))

    def on_models(candidates: list[int], budget: int, own_weight: float = 1.0) -> object:
        weights = dict.fromkeys(candidates, own_weight)
        return batched_greedy_collaborators(
            lambda v: 0.0,
            [ONES],
            candidates,
            weights,
            own_weight,
            lambda batch: [[ONES] for _ in batch],
            budget,
            generator(0),
        )

    for call in (on_sets, on_models):
        yield partial(call, [1], -1), ConfigurationError, "budget=-1"
        yield partial(call, [1, 1], 1), ConfigurationError, r"candidates=\[1, 1\]"
    yield partial(on_models, [1, 2], 1, own_weight=0.0), ConfigurationError, r"weights of clients \[1, 2\]"


def _first_order(*added: tuple[int, float, torch.Tensor]) -> object:
    stream = FirstOrderShapley(torch.ones(3))
    for client, weight, model in added:
        stream.add(client, weight, model)
    return stream.values()


def _no_value(players: frozenset[int]) -> float:
    return NAN if players == {0, 1} else 0.0


REFUSALS: list[Row] = [
    # cfl
    (lambda: update_norms(_matrix([-1.0]), [1]), ConfigurationError, "gram"),
    *[(partial(update_norms, EYE, counts), DataError, "num_samples=") for counts in ([1], [1, -1], [0, 0])],
    *[
        (partial(optimal_bipartition, wrong), ConfigurationError, "similarities")
        for wrong in (
            torch.zeros(1, 1),
            torch.zeros(2, 3),
            _matrix([1.0, 1.5], [1.5, 1.0]),
            _matrix([1.0, 0.1], [0.2, 1.0]),
            _matrix([1.0, NAN], [NAN, 1.0]),
        )
    ],
    # conformal, dirichlet
    *[(partial(conformal_quantile, ONES, x), ConfigurationError, "level=") for x in (0.0, 1.0, -1.0, NAN)],
    *[
        (partial(sample_dirichlet, x, 3, generator(0)), ConfigurationError, "concentration=")
        for x in (0.0, -1.0, INF, NAN)
    ],
    # discriminative_layer
    (lambda: most_discriminative_layer({}), ConfigurationError, "updates_by_layer"),
    (lambda: most_discriminative_layer({"a": torch.ones(2, 1), "b": torch.ones(3, 1)}), ConfigurationError, "'b'"),
    (lambda: most_discriminative_layer({"a": torch.ones(2, 1).long()}), ConfigurationError, "int64"),
    (lambda: most_discriminative_layer({"a": torch.ones(2, 1)}, [1, -1]), ConfigurationError, "num_samples="),
    (lambda: most_discriminative_layer({"a": _matrix([NAN], [1.0])}), DataError, "'a'"),
    *_greedy(),
    # drflm
    *[
        (partial(project_simplex, values, floor), ConfigurationError, name)
        for values, floor, name in (
            (torch.tensor([1, 2]), 0.0, "values of .*int64"),
            (EYE, 0.0, "values of shape"),
            (torch.ones(0), 0.0, "values of shape"),
            (torch.tensor([1.0, NAN]), 0.0, "values"),
            (torch.tensor([1.0, INF]), 0.0, "values"),
            (torch.ones(4), 0.3, "floor=0.3 for 4 .*0.25"),
            (torch.ones(4), -0.1, "floor=-0.1"),
        )
    ],
    *[
        (partial(sampling_weights_update, ONES / 2, losses, step, steps), ConfigurationError, name)
        for losses, step, steps, name in (
            (torch.ones(3), 0.1, 1, r"losses of shape \[3\]"),
            (ONES, -0.1, 1, "step_size=-0.1"),
            (ONES, 0.1, 0, "local_steps=0"),
            (torch.tensor([1.0, NAN]), 0.1, 1, "finite"),
        )
    ],
    *[
        (partial(loss_estimate, losses, clients, 3), ConfigurationError, "clients|losses")
        for losses, clients in ((ONES, [0]), (torch.ones(0), []), (ONES, [1, 1]), (ONES, [0, 3]))
    ],
    *[
        (partial(draw_cohort, torch.tensor(weights), 2, generator(0)), ConfigurationError, "weights")
        for weights in ([-0.1, 1.1], [0.0, 0.0], [NAN, 1.0])
    ],
    (lambda: draw_cohort(ONES, 0, generator(0)), ConfigurationError, "cohort_size=0"),
    *[(partial(draw_subset, 3, size, generator(0)), ConfigurationError, f"size={size}") for size in (0, 4)],
    *[
        (partial(mix, values, torch.tensor([1, 0]), gamma), ConfigurationError, name)
        for values, gamma, name in (
            (torch.tensor([1, 2]), 0.5, "one_hot"),
            (torch.ones(3), 0.5, "permutation"),
            (ONES, torch.ones(3), "gamma"),
            (ONES, 1.5, "gamma"),
        )
    ],
    *[(partial(sample_gamma, x, generator(0)), ConfigurationError, "alpha=") for x in (-0.1, INF, NAN)],
    *_coalitions(),
    # fedsoft
    (lambda: floored_importance(ONES, 2), ConfigurationError, "sigma=2"),
    (lambda: contribution_weights(EYE, [1]), ConfigurationError, "num_samples="),
    (lambda: draw_contributors(ONES, 0, generator(0)), ConfigurationError, "number=0"),
    (lambda: draw_contributors(torch.zeros(2), 1, generator(0)), ConfigurationError, "weights"),
    # gram
    *[
        (partial(gram_matrix, updates), ConfigurationError, name)
        for updates, name in (
            (torch.ones(3), r"updates of shape \[3\]"),
            (torch.ones(2, 3).long(), "updates of .*int64"),
            (torch.ones(0, 3), "updates of shape"),
            (torch.ones(3, 0), "updates"),
            ([], "updates"),
            ([torch.ones(2, 3), torch.ones(3, 3)], r"updates of shape \[3, 3\]"),
        )
    ],
    (lambda: cosine_similarities(torch.zeros(2, 3)), ConfigurationError, r"gram of shape \[2, 3\]"),
    (lambda: cosine_similarities(_matrix([-1.0])), ConfigurationError, "gram"),
    *[(partial(join_most_similar, EYE, [1, 1], labels), ConfigurationError, "labels=") for labels in ([0], [0, -2])],
    (lambda: join_most_similar(EYE, [1, 0], [0, -1]), ConfigurationError, "num_samples="),
    (lambda: remembered_cosines(EYE, EYE, torch.eye(3), 0.5), ConfigurationError, r"cosines of shape \[3, 3\]"),
    (lambda: remembered_cosines(EYE, EYE, EYE, 1.5), ConfigurationError, "memory=1.5"),
    (lambda: with_cosines(torch.eye(5), EYE), ConfigurationError, r"cosines of shape \[2, 2\]"),
    (lambda: squared_distances([(torch.zeros(3), torch.zeros(2, 4))]), ConfigurationError, r"centres .*\[2, 4\]"),
    (
        lambda: squared_distances([(ONES, torch.zeros(n, 2)) for n in (2, 1)]),
        ConfigurationError,
        r"centres of .*\[1, 2\]",
    ),
    (lambda: squared_distances([]), ConfigurationError, "blocks"),
    (lambda: squared_distances([(torch.tensor([NAN]), torch.zeros(2, 1))]), DataError, "centre"),
    *_partitions(),
    # ifca, integrated_gradients, kmeans, pfedgraph
    *[(partial(perturbed, x, 0.1, generator(0)), ConfigurationError, "weights of shape") for x in (EYE, ONES.long())],
    *[(partial(perturbed, ONES, x, generator(0)), ConfigurationError, f"scale={x}") for x in (0.0, -1.0, INF, NAN)],
    (lambda: integrated_gradients(torch.sum, ONES.long(), None, num_points=4), ConfigurationError, "int64"),
    (lambda: integrated_gradients(torch.sum, ONES, torch.ones(3)), ConfigurationError, "baseline"),
    (lambda: integrated_gradients(torch.sum, ONES, None, num_points=0), ConfigurationError, "num_points=0"),
    (lambda: integrated_gradients(lambda x: 2 * x, ONES), ConfigurationError, "compute"),
    *[
        (partial(kmeans_from_gram, gram, 1, seed=0), ConfigurationError, "gram")
        for gram in (torch.zeros(2, 3), torch.full((2, 2), NAN))
    ],
    *[
        (partial(kmeans_from_gram, EYE, **{"num_clusters": 1, "seed": 0, **change}), ConfigurationError, name)
        for change, name in (
            ({"num_clusters": 0}, "num_clusters=0"),
            ({"num_clusters": 3}, "num_clusters=3"),
            ({"seed": -1}, "seed=-1"),
        )
    ],
    *[
        (partial(kmeans_from_gram, EYE, 1, seed=0, weights=weights), ConfigurationError, "weights=")
        for weights in ([1.0], [1.0, 0.0])
    ],
    (lambda: collaboration_weights(EYE, [2, 3], 0), ConfigurationError, "alpha=0"),
    (lambda: collaboration_weights(EYE, [2], 0.8), ConfigurationError, "num_samples="),
    (lambda: thresholded_cosines(EYE, 2), ConfigurationError, "threshold=2"),
    # pifl, tokens
    *[
        (partial(importance_weights, "r2", torch.tensor(values), better), ConfigurationError, "r2 .*monitor")
        for values, better in (([0.5, 1.5], True), ([-0.1, 0.5], True), ([1.5, -2.0], False))
    ],
    (lambda: choose_bids([0.5, 0.5], [0.0], 0.1), ConfigurationError, "past_rewards="),
    (lambda: choose_bids([NAN], [0.0], 0.1), ConfigurationError, "importance="),
    (lambda: schedule(BIDDER, {}, -1, 2, generator(0)), ConfigurationError, "num_best=-1"),
    (lambda: schedule(BIDDER, {}, 1, 1, generator(0), available=[2, 2]), ConfigurationError, "available="),
    (lambda: schedule(BIDDER, {1: NAN}, 1, 1, generator(0)), ConfigurationError, "contribution"),
    (lambda: standings([], 1, 1.5), ConfigurationError, "decay=1.5"),
    (lambda: standings([(1, {0: NAN})], 2, 1.0), ConfigurationError, "contribution"),
    *[
        (partial(reimbursement_share, accuracy, best, 0.5, 0.5), ConfigurationError, "accuracy=")
        for accuracy, best in ((-0.1, 0.5), (0.5, -0.1), (NAN, 0.5), (0.5, INF))
    ],
    (lambda: reward_ranks({0: NAN}, {}), ConfigurationError, "contribution"),
    # shapley
    (lambda: shapley_exact(_no_value, 17), ConfigurationError, "num_players=17"),
    (lambda: shapley_exact(_no_value, 0), ConfigurationError, "num_players=0"),
    (lambda: shapley_exact(_no_value, 2), DataError, r"coalition \[0, 1\]"),
    (lambda: shapley_permutations(_no_value, 0, generator(0)), ConfigurationError, "num_players=0"),
    *[
        (
            partial(shapley_permutations, _no_value, 3, generator(0), num_permutations=count),
            ConfigurationError,
            f"num_permutations={count}",
        )
        for count in (2, 7)
    ],
    (lambda: shapley_permutations(_no_value, 2, generator(0)), DataError, r"coalition \[0, 1\]"),
    (_first_order, ConfigurationError, "weight"),
    (lambda: _first_order((1, 0.5, torch.ones(3)), (1, 0.5, torch.ones(3))), ConfigurationError, "client 1 "),
    (lambda: _first_order((2, -0.5, torch.ones(3))), ConfigurationError, "client 2 has weight -0.5"),
    (lambda: _first_order((2, 0.5, torch.ones(4))), ConfigurationError, r"client 2 .*\[\[4\]\].*\[\[3\]\]"),
    (lambda: _first_order((2, 0.5, torch.ones(3).long())), ConfigurationError, "client 2 .*int64"),
    (lambda: _first_order((2, 0.5, torch.tensor([1.0, INF, 1.0]))), DataError, "client 2 "),
    (lambda: FirstOrderShapley(torch.tensor([NAN])), DataError, "gradient"),
    (lambda: FirstOrderShapley(torch.ones(1, 3)), ConfigurationError, r"gradient of shape \[1, 3\]"),
    *[
        (partial(shapley_first_order, torch.ones(3), [0.5, 0.5], torch.ones(count, 3)), ConfigurationError, "2 weights")
        for count in (1, 3)
    ],
]


@pytest.mark.parametrize(("call", "error", "name"), REFUSALS)
def test_wrong_arguments_are_named(call: Callable[[], object], error: type[Exception], name: str) -> None:
    with pytest.raises(error, match=name):
        call()
