"""DPFL in a run: against a plain loop written from the paper's algorithm, and what composes with it."""

import pandas as pd
import pytest
import torch
from corners import FailingTurns
from hooks import Cohorts, hooks
from tiny import TinyClients, TinyModule
from torch import nn
from torchmetrics import MeanMetric
from two_kinds import SIZES, TwoKinds, flat, fresh_models, loaded, train_all, trainer

from lightning_fl.callbacks import (
    BestClientModels,
    Callback,
    ClientArrivals,
    CollaborationGraph,
    LocalTraining,
    ModelCheckpoint,
    PersonalLayers,
)
from lightning_fl.callbacks.collaboration.collaboration_graph import read_graph
from lightning_fl.core.errors import ConfigurationError
from lightning_fl.core.seeding import generator
from lightning_fl.engine.round.averaging import average_in_place
from lightning_fl.engine.weights.flat import Weights
from lightning_fl.functional.dpfl import batched_greedy_collaborators, greedy_collaborators
from lightning_fl.strategies import FedAvg

NUM = len(SIZES)


def validation_loss(data: TinyClients, client: int, weights: torch.Tensor) -> float:
    module = TinyModule()
    nn.utils.vector_to_parameters(weights, module.parameters())
    x, y = data.sets[client, "val"].tensors
    with torch.no_grad():
        return float(nn.functional.mse_loss(module(x), y))


def plain_dpfl(rounds: int, budget: int | None, init_epochs: int, every: int = 1, never_worse: bool = False):
    """Algorithm 1, one client after another, with torch alone; fresh averages. Returns models, Omega and every C."""
    data, models = TwoKinds(), fresh_models()
    candidates: dict[int, list[int]] = {}
    history = []
    for turn in range(rounds):
        ends = train_all(models, data, init_epochs if turn == 0 else 1)

        def average(members: list[int], ends: list[torch.Tensor] = ends) -> torch.Tensor:
            total = sum(SIZES[i] for i in members)
            return sum(SIZES[i] / total * ends[i].double() for i in members).float()

        chosen = {}
        for k in range(NUM):

            def reward(others: frozenset[int], k: int = k) -> float:
                return -validation_loss(data, k, average([k, *sorted(others)]))

            others = [i for i in range(NUM) if i != k] if turn == 0 else candidates[k]
            draws = generator(3, turn, k, "collaborators")
            if turn % every:
                chosen[k] = history[-1][k]
                continue
            if turn == 0:
                result = batched_greedy_collaborators(
                    lambda v, k=k: -validation_loss(data, k, v[0]), [ends[k]], others, dict(enumerate(SIZES)),
                    SIZES[k], lambda batch, ends=ends: [[ends[i]] for i in batch], budget, draws,
                )  # fmt: skip
                candidates[k] = result.chosen
            else:
                result = greedy_collaborators(reward, others, budget, draws)
            chosen[k] = result.never_worse if never_worse else result.chosen
            assert not never_worse or reward(frozenset(chosen[k])) >= reward(frozenset())
        history.append(chosen)
        for k, model in enumerate(models):
            nn.utils.vector_to_parameters(average([k, *chosen[k]]).clone(), model.parameters())
    return [flat(model) for model in models], candidates, history


@pytest.mark.slow
@pytest.mark.parametrize(
    ("budget", "every", "init_epochs", "never_worse"),
    [(None, 1, 1, False), (None, 1, 1, True), (2, 1, 3, False), (1, 2, 2, False), (0.4, 1, 1, True), (0, 1, 1, False)],
)
def test_a_run_is_the_papers_algorithm(budget, every, init_epochs, never_worse):
    limit = 2 if budget == 0.4 else budget
    expected, candidates, history = plain_dpfl(5, limit, init_epochs, every, never_worse)
    graph = CollaborationGraph(budget=budget, every_n_rounds=every, init_epochs=init_epochs, never_worse=never_worse)
    run = trainer(graph, rounds=5)
    run.fit(TinyModule(), TwoKinds())
    assert graph.candidates == candidates
    assert graph.chosen == history
    assert graph.rounds == [1, 2, 3, 4, 5]
    for client in range(NUM):
        torch.testing.assert_close(loaded(run, client), expected[client])
        assert limit is None or all(len(chosen[client]) <= limit for chosen in graph.chosen)
        assert all(set(chosen[client]) <= set(candidates[client]) for chosen in graph.chosen)
    if limit is None:  # clients 0 to 2 have one function, 3 and 4 its negative
        assert all(set(graph.chosen[-1][k]) <= ({0, 1, 2} if k < 3 else {3, 4}) for k in range(NUM))
        assert any(graph.chosen[-1].values())


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["greedy", "full"])
def test_loners_keep_their_models_and_may_be_chosen(kind, tmp_path):
    graph = CollaborationGraph(graph=kind, loners=[0, 3], watched=[0, 1])
    run, local = trainer(graph, rounds=4, root=tmp_path), trainer(LocalTraining(), rounds=4)
    data = TwoKinds()
    for one in (run, local):
        one.fit(TinyModule(), data)
    assert all(run.client_model(k).equal(local.client_model(k)) for k in (0, 3))
    assert not run.client_model(2).equal(local.client_model(2))
    assert all(chosen[k] == [] for chosen in graph.chosen for k in (0, 3))
    assert any(0 in chosen[k] for chosen in graph.chosen for k in (1, 2))
    if kind == "full":  # 2 and 4 choose four others each, two of them watched
        assert run.round_metrics["graph/watched_share"] == 0.5


def test_a_random_graph_has_the_budget_and_stays():
    graph = CollaborationGraph(graph="random", budget=2)
    run = trainer(graph)
    run.fit(TinyModule(), TwoKinds())
    assert all(len(others) == 2 and k not in others for k, others in graph.candidates.items())
    assert graph.chosen == [graph.candidates] * 3
    assert len({tuple(others) for others in graph.candidates.values()}) > 1
    assert [int(received[:, 2].sum()) for received in graph.received] == [2 * NUM] * 3
    again = CollaborationGraph(graph="random", budget=2)
    trainer(again, rounds=1).fit(TinyModule(), TwoKinds())
    assert again.candidates == graph.candidates


def test_a_graph_of_the_users_own(tmp_path):
    data = TwoKinds()
    names = data.client_names()
    table = pd.DataFrame(0, index=names, columns=names)
    table.loc[names[1], names[0]] = table.loc[names[2], [names[0], names[4]]] = 1
    path = tmp_path / "graph.csv"
    table.to_csv(path)
    graph = CollaborationGraph(graph=str(path))
    run = trainer(graph, rounds=2, root=tmp_path, enable_checkpointing=True)
    run.fit(TinyModule(), data)
    assert graph.candidates == {0: [], 1: [0], 2: [0, 4], 3: [], 4: []}
    first = torch.tensor([[1, 0, 0, 0, 0], [2 / 3, 1 / 3, 0, 0, 0]], dtype=torch.float64)  # 16 and 8 samples
    torch.testing.assert_close(run.collaboration.aggregation[:2], first)
    assert torch.equal(run.collaboration.personalisation, torch.eye(NUM, dtype=torch.float64))
    written = pd.read_csv(tmp_path / "version_0" / "communication.csv")
    edges = [(names[1], names[0]), (names[2], names[0]), (names[2], names[4])]
    size = flat(TinyModule()).nbytes
    assert written.values.tolist() == [[turn, *edge, 1, size, 1] for turn in (1, 2) for edge in edges]
    assert list(written.columns) == ["round", "client", "received_from", "models", "bytes", "chosen"]
    table.loc[names[0], names[1]] = 3
    table.to_csv(path)
    with pytest.raises(ConfigurationError, match=r"graph\.csv: row client_0, column client_1 is 3"):
        trainer(CollaborationGraph(graph=str(path))).fit(TinyModule(), data)
    table.drop(columns=names[3]).to_csv(path)
    with pytest.raises(ConfigurationError, match=r"graph\.csv: .*client_3"):
        trainer(CollaborationGraph(graph=str(path))).fit(TinyModule(), data)


def test_a_graph_is_read_with_any_names_of_clients(tmp_path):
    names = ["NA", "07", "east"]
    path = tmp_path / "graph.csv"
    pd.DataFrame([[0, 1, 0], [0, 0, 1], [1, 0, 0]], index=names, columns=names).to_csv(path)
    assert read_graph(path, names) == {0: [1], 1: [2], 2: [0]}


HEADER = "," + ",".join(f"client_{client}" for client in range(NUM))
ROWS = [f"client_{client}" + ",0" * NUM for client in range(NUM)]


@pytest.mark.parametrize(
    ("content", "name"),
    [
        ("\n".join([HEADER, *ROWS, ROWS[2]]).encode(), "client_2"),
        (b"", ""),
        ("\n".join([HEADER, *ROWS[:-1], ROWS[-1] + ",0,0,0"]).encode(), ""),
        ("\n".join([HEADER, *ROWS, "Kliniken Süd" + ",0" * NUM]).encode("latin-1"), ""),
        (None, ""),
    ],
    ids=["a row twice", "empty", "a longer row", "Latin-1", "folder"],
)
def test_a_file_that_is_no_graph(content, name, tmp_path):
    path = tmp_path / "graph.csv"
    if content is None:
        path.mkdir()
    else:
        path.write_bytes(content)
    with pytest.raises(ConfigurationError, match=rf"graph\.csv.*{name}"):
        trainer(CollaborationGraph(graph=str(path))).fit(TinyModule(), TwoKinds())
    if content is not None:
        path.write_text("\n".join([HEADER, *ROWS]))
        trainer(CollaborationGraph(graph=str(path)), rounds=1).fit(TinyModule(), TwoKinds())


def test_what_is_received_is_counted():
    graph = CollaborationGraph(budget=2)
    seen = []
    run = trainer(graph, hooks(on_round_end=lambda trainer: seen.append(dict(trainer.round_metrics))), rounds=2)
    run.fit(TinyModule(), TwoKinds())
    first = {(k, j): count for k, j, count in graph.received[0].tolist()}
    # in the first round everybody's model comes once for the sum, and again until the budget is used up
    assert set(first) == {(k, j) for k in range(NUM) for j in range(NUM) if k != j}
    assert set(first.values()) <= {1, 2}
    expected = {(k, j, 1) for k, others in graph.candidates.items() for j in others}
    assert set(map(tuple, graph.received[1].tolist())) == expected
    second = seen[1]
    assert second["graph/models_received"] == len(expected)
    assert second["graph/megabytes_received"] == len(expected) * flat(TinyModule()).nbytes / 1e6
    edges = {(k, j) for k, others in graph.chosen[1].items() for j in others}
    assert second["graph/edges"] == len(edges)
    assert second["graph/sparsity"] == pytest.approx(1 - len(edges) / 20)
    assert second["graph/asymmetry"] == pytest.approx(sum((j, k) not in edges for k, j in edges) / max(len(edges), 1))


@pytest.mark.parametrize("personal", [[], ["linear.weight"]])
def test_what_is_received_is_what_the_run_accounts_for(personal, tmp_path):
    layers = [PersonalLayers(layers=personal)] if personal else []
    megabytes = []
    watch = hooks(on_round_end=lambda trainer: megabytes.append(trainer.round_metrics["graph/megabytes_received"]))
    run = trainer(CollaborationGraph(), *layers, watch, root=tmp_path)
    run.fit(TinyModule(), TwoKinds())
    account = run.run_log.summary["communication"]
    assert sum(megabytes) * 1e6 == pytest.approx(account["bytes_received"])
    written = pd.read_csv(tmp_path / "version_0" / "communication.csv")
    expected = {name: of_client["bytes_received"] for name, of_client in account["clients"].items()}
    assert written.groupby("client")["bytes"].sum().to_dict() == expected


def test_the_first_round_may_be_longer():
    steps = []

    class Watch(Callback):
        def on_aggregate_end(self, trainer):
            steps.append([report.num_steps for report in trainer.client_reports.values()])

    trainer(CollaborationGraph(init_epochs=4), Watch(), rounds=2).fit(TinyModule(), TwoKinds())
    once = [size // 8 for size in SIZES]
    assert steps == [[4 * number for number in once], once]


#: Who takes part in the three rounds.
COHORTS = {1: [0, 1, 2], 2: [1, 2, 3], 3: [0, 1, 2, 3, 4]}


def test_who_takes_no_part_keeps_its_model_and_gives_none():
    graph = CollaborationGraph(graph="full")
    run = trainer(graph, Cohorts(COHORTS, NUM))
    models = []
    run.callbacks.append(
        hooks(on_round_end=lambda trainer: models.append([trainer.models[k].clone() for k in range(NUM)]))
    )
    run.fit(TinyModule(), TwoKinds())
    assert graph.chosen[0] == {0: [1, 2], 1: [0, 2], 2: [0, 1]}
    assert graph.chosen[1] == {1: [2, 3], 2: [1, 3], 3: [1, 2]}
    assert models[1][0].equal(models[0][0])
    assert not models[2][0].equal(models[0][0])
    greedy = CollaborationGraph()
    trainer(greedy, Cohorts(COHORTS, NUM)).fit(TinyModule(), TwoKinds())
    assert [sorted(chosen) for chosen in greedy.chosen] == list(COHORTS.values())
    assert set(greedy.candidates[3]) <= {1, 2}
    assert set(greedy.candidates[4]) <= {0, 1, 2, 3}


def test_newcomers_choose_among_all_who_are_there():
    graph = CollaborationGraph()
    trainer(graph, ClientArrivals(rounds={"client_4": 3}), rounds=4).fit(TinyModule(), TwoKinds())
    assert [4 in chosen for chosen in graph.chosen] == [False, False, True, True]
    assert not any(4 in graph.candidates[k] for k in range(4))


def test_personal_layers_are_part_of_what_is_judged():
    graph = CollaborationGraph()
    run = trainer(graph, PersonalLayers(layers=["linear.bias"]), rounds=2)
    run.fit(TinyModule(), TwoKinds())
    biases = {float(loaded(run, k)[-1]) for k in range(NUM)}
    assert len(biases) == NUM
    full = trainer(CollaborationGraph(graph="full"), PersonalLayers(layers=["linear.bias"]), rounds=2)
    full.fit(TinyModule(), TwoKinds())
    torch.testing.assert_close(loaded(full, 0)[:-1], loaded(full, 4)[:-1])
    assert loaded(full, 0)[-1] != loaded(full, 4)[-1]


def test_a_strategy_that_changes_the_average_has_both_models():
    class Halfway(FedAvg):
        def aggregate(self, update):
            half = update.start.clone()
            for dtype, vector in half.floating():
                vector.add_(update.average.vectors[dtype]).div_(2)
            return half

    run = trainer(CollaborationGraph(graph="full"), rounds=1, strategy=Halfway())
    run.fit(TinyModule(), TwoKinds())
    plain = trainer(CollaborationGraph(graph="full"), rounds=1)
    plain.fit(TinyModule(), TwoKinds())
    torch.testing.assert_close(loaded(run, 1), (flat(TinyModule()) + loaded(plain, 1)) / 2)


def test_a_strategy_that_refuses_every_average_keeps_the_models_of_the_start():
    class Refuses(FedAvg):
        def aggregate(self, update):
            return update.start

    run = trainer(CollaborationGraph(graph="full"), rounds=3, strategy=Refuses())
    run.fit(TinyModule(), TwoKinds())
    assert all(torch.equal(loaded(run, client), flat(TinyModule())) for client in range(NUM))


def test_the_models_memory_is_used_again(tmp_path):
    places: list[set[int]] = []

    class Watch(Callback):
        def on_round_end(self, trainer):
            places.append({vector.data_ptr() for model in trainer.models for vector in model.vectors.values()})

    checkpoint = ModelCheckpoint(monitor="val_loss", mode="max")  # the worst round is the first, an early one
    callbacks = [CollaborationGraph(graph="full"), Watch(), checkpoint]
    run = trainer(*callbacks, rounds=4, root=tmp_path, enable_checkpointing=True)
    run.fit(TinyModule(), TwoKinds())
    assert len(places[0]) == NUM
    assert places[0] == places[1] == places[3]
    assert checkpoint.best_round == 1
    one = trainer(CollaborationGraph(graph="full"), rounds=1)
    one.fit(TinyModule(), TwoKinds())
    models, _ = checkpoint.best_models(run)  # not those of the later rounds in the same memory
    assert all(kept.equal(first) for kept, first in zip(models, one.models, strict=True))


def test_failing_clients_are_left_out():
    graph = CollaborationGraph(graph="full")
    run = trainer(graph, FailingTurns((2, 1, None)), rounds=2, on_client_error="skip")
    with pytest.warns(UserWarning, match="client 1 .* is left out of round 2"):
        run.fit(TinyModule(), TwoKinds())
    assert sorted(graph.chosen[1]) == [0, 2, 3, 4]
    assert all(1 not in others for others in graph.chosen[1].values())


@pytest.mark.slow
def test_a_higher_metric_may_be_better():
    class Score(MeanMetric):
        higher_is_better = True

    class Scored(TinyModule):
        def __init__(self):
            super().__init__()
            self.score = Score()

        def validation_step(self, batch, batch_idx):
            self.score.update(-nn.functional.mse_loss(self(batch[0]), batch[1]))
            self.log("val/score", self.score)

    by_score, by_loss = CollaborationGraph(monitor="val/score"), CollaborationGraph()
    trainer(by_score).fit(Scored(), TwoKinds())
    trainer(by_loss).fit(TinyModule(), TwoKinds())
    assert by_score.chosen == by_loss.chosen


def test_the_average_in_place_is_the_matrix_product():
    draws = torch.Generator().manual_seed(0)
    stack = torch.randn(4, 40_000, generator=draws)
    stack[:, 7] = float("inf")
    stack[:, 8] = 0.1
    counts = torch.randint(0, 9, (4, 3), generator=draws)
    models = [Weights({torch.float32: stack[i].clone(), torch.int64: counts[i].clone()}) for i in range(4)]
    matrix = torch.tensor([[0.5, 0.25, 0, 0.25], [0, 1, 0, 0], [0.1, 0.2, 0.3, 0.4], [0, 0, 0.5, 0.5]]).double()
    average_in_place(models, matrix, [0, 1, 2])
    expected = matrix @ stack.double().nan_to_num(posinf=0.0)
    for k in range(3):
        found = models[k].vectors[torch.float32]
        assert found[7] == float("inf")
        assert found[8] == stack[0, 8]
        torch.testing.assert_close(found.nan_to_num(posinf=0.0), expected[k].float())
    assert torch.equal(models[3].vectors[torch.float32], stack[3])
    assert torch.equal(models[1].vectors[torch.float32], stack[1])
    assert torch.equal(models[0].vectors[torch.int64], counts[[0, 1, 3]].max(0).values)


@pytest.mark.slow
def test_a_plain_number_is_better_or_worse_by_its_name():
    """``val_score`` is the negative loss, and nothing but its name says that more of it is better."""

    class Scored(TinyModule):
        def validation_step(self, batch, batch_idx):
            super().validation_step(batch, batch_idx)
            self.log("val_score", -nn.functional.mse_loss(self(batch[0]), batch[1]))

    found = []
    for monitor in ("val_loss", "val_score"):
        graph = CollaborationGraph(monitor=monitor)
        run = trainer(graph, BestClientModels(monitor=monitor, before_averaging=True), rounds=4)
        run.fit(Scored(), TwoKinds())
        found.append((graph.chosen, [loaded(run, k).tolist() for k in range(NUM)]))
    assert found[0] == found[1]
    assert any(any(chosen.values()) for chosen in found[0][0][1:])
