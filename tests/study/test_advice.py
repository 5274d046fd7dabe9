"""Advice from tables of results made here, and from short runs."""

import json
import math
import re
import signal
import warnings
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import yaml
from tiny import TinyClients, TinyModule, regression_set

import lightning_fl
from lightning_fl.core.errors import ConfigurationError
from lightning_fl.data import IID, Partitioned
from lightning_fl.recipe.file import class_name
from lightning_fl.study.advice import Results, Way, advise_on, choose, gain, suspects, title
from lightning_fl.study.advice_runs import AdviceRecord
from lightning_fl.study.advise import Advisor
from lightning_fl.study.cells import make_cells
from lightning_fl.study.intervals import paired_interval, seeds_needed

CLIENTS = ("north", "south", "west")
#: Gains of three seeds whose interval is above zero, below it, and around it.
UP, DOWN, AROUND = (0.10, 0.11, 0.12), (-0.10, -0.11, -0.12), (-0.10, 0.02, 0.11)
TOGETHER = ~np.eye(3, dtype=bool)
#: north and south together, west alone.
PAIR = np.zeros((3, 3), dtype=bool)
PAIR[0, 1] = PAIR[1, 0] = True


def gains(arms):
    """Arm -> gains of the seeds, of all clients or by client."""
    rows = {}
    for arm, of in {"local": (0.0,) * 3, **arms}.items():
        by_client = of if isinstance(of, dict) else dict.fromkeys(CLIENTS, of)
        rows |= {
            (arm, seed): {client: values[seed] for client, values in by_client.items()}
            for seed in range(len(by_client["north"]))
        }
    return pd.DataFrame(rows.values(), index=pd.MultiIndex.from_tuples(rows), columns=list(CLIENTS))


def advice(test, validation=None, *, structures=None, notes=()):
    validation = {arm: of for arm, of in test.items() if arm != "pooled"} if validation is None else validation
    results = Results("acc", gains(validation), gains(test), structures or {})
    return advise_on(results, {arm: {"strategy": arm} for arm in ("local", *test)}, notes)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (UP, "better"),
        (DOWN, "worse"),
        (AROUND, "undecided"),
        ((0.5,), "undecided"),
        ((), "undecided"),
        ((0.0,) * 3, "undecided"),
    ],
)
def test_verdicts_follow_intervals(values, expected):
    assert paired_interval(values).verdict == expected


@pytest.mark.parametrize(
    ("test", "validation", "recommended", "first"),
    [
        (
            {"fedavg": UP},
            None,
            "fedavg",
            "Is federating worth it? Yes: +0.110 [+0.085, +0.135] acc over training alone by FedAvg",
        ),
        ({"fedavg": AROUND}, {"fedavg": UP}, "fedavg", "Is federating worth it? Undecided"),
        ({"fedavg": DOWN}, {"fedavg": UP}, "fedavg", "Is federating worth it? No: -0.1"),
        ({"fedavg": DOWN}, None, "local", "Is federating worth it? No: no federated way"),
        ({"fedavg": AROUND}, {"fedavg": DOWN}, "local", "Is federating worth it? Undecided: no federated way"),
        ({"fedavg": UP}, {"fedavg": DOWN}, "local", "Is federating worth it? Undecided: no federated way"),
        ({"fedavg": (0.1,)}, None, "fedavg", "Is federating worth it? Undecided"),
        (
            {"fedavg": UP, "pooled": (9.0, 9.0, 9.1)},
            {"fedavg": UP, "pooled": (9.0, 9.0, 9.1)},
            "fedavg",
            "Is federating worth it? Yes",
        ),
    ],
)
def test_the_arm_is_chosen_on_validation_data_and_reported_on_test_data(test, validation, recommended, first):
    found = advice(test, validation)
    assert found.recommended == recommended
    assert found.sentences[0].startswith(first)
    assert (title(recommended) in found.sentences[0]) == (recommended != "local")


def test_an_undecided_answer_says_how_many_seeds_would_decide():
    some = (-0.02, 0.06, 0.08)
    needed = seeds_needed(paired_interval(some))
    assert f"3 seeds; about {needed} would decide" in advice({"fedavg": some}, {"fedavg": UP}).sentences[0]
    assert "would decide" not in advice({"fedavg": UP}).sentences[0]


@pytest.mark.parametrize(
    ("validation", "expected"),
    [
        ({"fedavg": UP, "ditto": (0.11, 0.11, 0.12)}, "fedavg"),  # within a standard error: the simpler one
        ({"fedavg": (0.10, 0.11, 0.12), "ditto": (0.102, 0.112, 0.122)}, "fedavg"),  # even if better in every seed
        ({"fedavg": UP, "ditto": (0.20, 0.21, 0.22)}, "ditto"),
        *(({"fedavg": (0.9,) * 3, "ditto": (0.9, 0.9, 0.9 + one)}, "fedavg") for one in (0.011, 0.019, 0.022)),
        ({"fedavg": AROUND, "ditto": DOWN}, "local"),
        ({"fedavg": (0.1,), "ditto": (0.2,)}, "ditto"),  # one seed has no standard error
        ({"fedavg": (math.nan,) * 3, "ditto": UP}, "ditto"),
        ({"fedavg": UP, "ditto": (0.5, 0.6)}, "fedavg"),  # fewer seeds
    ],
)
def test_the_simplest_arm_near_the_best_is_chosen(validation, expected):
    table = gains(validation)
    assert choose(Results("acc", table, table)) == expected


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (UP, "+0.110 [+0.085, +0.135]"),
        ((0.5,), "+0.5"),
        ((0.009708742, 0.009708741, 0.009708743), "+0.009709 [+0.009709, +0.009709]"),  # equal but for rounding
        ((200.0, 300.0, 400.0), "+300 [+52, +548]"),
    ],
)
def test_numbers_have_as_many_digits_as_they_support(values, expected):
    assert f"{paired_interval(values)}" == expected


def test_differences_are_paired_by_seed_and_one_client_can_be_left_out():
    table = gains({"fedavg": {"north": UP, "south": UP, "west": DOWN}, "ditto": (0.2, 0.3)})
    assert gain(table, "ditto", over="fedavg").n == 2
    assert gain(table.drop(columns="west"), "fedavg").mean == pytest.approx(0.11)


@pytest.mark.parametrize(
    ("ditto", "said"),
    [
        (UP, "1 undecided (Ditto +0 [+0, +0])."),
        ((0.0, 0.02, 0.01), "1 worse (Ditto -0.1"),
        ((0.31, 0.33, 0.34), "1 better (Ditto +0.2"),
    ],
)
def test_what_is_decided_between_federated_arms(ditto, said):
    found = advice({"fedavg": UP, "ditto": ditto}, {"fedavg": UP, "ditto": UP})
    assert found.recommended == "fedavg"
    assert f"Other ways against FedAvg, on test data: {said}" in found.sentences[2]


def test_each_client_has_an_answer_of_its_own():
    found = advice({"fedavg": {"north": UP, "south": AROUND, "west": DOWN}}, {"fedavg": UP})
    assert [interval.verdict for interval in found.clients.values()] == ["better", "undecided", "worse"]
    assert "1 better (north); 1 worse (west); 1 undecided (south)." in found.sentences[1]


@pytest.mark.parametrize(
    ("matrices", "said"),
    [
        ([PAIR, PAIR, TOGETHER], "{north, south} and {west}, exactly so in 2 of 3 seeds"),
        ([TOGETHER] * 3, "all clients together, exactly so in 3 of 3 seeds"),
        ([np.zeros((3, 3), dtype=bool)] * 3, "every client alone, exactly so in 3 of 3 seeds"),
        ([np.triu(TOGETHER)] * 3, "north with south, west; south with west; west with nobody"),
    ],
)
def test_with_whom(matrices, said):
    found = advice({"fedavg": UP, "hcct": UP}, structures={"hcct": matrices})
    assert any(said in sentence for sentence in found.sentences), found.sentences
    assert any("Better than all together (FedAvg)? Undecided: +0 [+0, +0]." in one for one in found.sentences)
    assert (found.structure, found.partners["north"].get("south", 0.0)) == ("hcct", np.mean(matrices, axis=0)[0, 1])


def test_a_graph_says_with_whom_only_if_it_is_recommended():
    structures = {"hcct": [PAIR] * 3, "dpfl": [TOGETHER] * 3}
    for dpfl, expected in ((DOWN, "hcct"), ((0.31, 0.33, 0.34), "dpfl")):
        assert advice({"fedavg": UP, "hcct": UP, "dpfl": dpfl}, structures=structures).structure == expected


@pytest.mark.parametrize(
    ("structures", "expected"),
    [
        ({"hcct": [PAIR, PAIR, TOGETHER]}, [2]),
        ({"hcct": [PAIR], "dpfl": [TOGETHER, TOGETHER]}, []),
        ({"hcct": [TOGETHER]}, []),
        ({"hcct": [np.zeros((3, 3), dtype=bool)]}, []),  # nobody with anybody
        ({}, []),
    ],
)
def test_clients_that_are_left_aside(structures, expected):
    assert suspects(structures) == expected


@pytest.mark.parametrize(
    ("others", "avoid", "said"),
    [
        ((0.20, 0.22, 0.23), ["west"], "Should the others avoid west? Yes: +0.1"),
        (UP, [], "Should the others avoid west? Undecided: +0"),
        ((0.0, 0.01, 0.0), [], "Should the others avoid west? No: -0.1"),
    ],
)
def test_a_client_to_avoid_is_one_without_which_the_others_are_better(others, avoid, said):
    without = {"north": others, "south": others, "west": DOWN}
    found = advice({"fedavg": UP, "fedavg-without-west": without})
    assert found.avoid == avoid
    assert any(sentence.startswith(said) for sentence in found.sentences), found.sentences


@pytest.mark.parametrize(
    ("pooled", "said"),
    [
        ((0.3, 0.31, 0.31), "Would pooling the data add anything? Yes: +0.1"),
        (UP, "Would pooling the data add anything? Undecided"),
        (DOWN, "Would pooling the data add anything? No"),
    ],
)
def test_what_pooling_adds(pooled, said):
    assert any(sentence.startswith(said) for sentence in advice({"fedavg": UP, "pooled": pooled}).sentences)


def test_the_share_of_poolings_gain_that_is_reached():
    """FedAvg's mean is 0.11, that of pooling 0.22; Ditto reaches a half in every seed."""
    found = advice({"fedavg": UP, "ditto": (0.105, 0.11, 0.115), "pooled": (0.21, 0.22, 0.23)})
    assert found.shares["fedavg"].mean == pytest.approx(0.5)
    assert found.shares["fedavg"].low < 0.5 < found.shares["fedavg"].high
    assert [found.shares["ditto"].low, found.shares["ditto"].high] == pytest.approx([0.5, 0.5], abs=1e-6)
    assert "Ditto 50% [50%, 50%]" in found.sentences[-1]


@pytest.mark.parametrize("pooled", [DOWN, AROUND, (0.3,)])
def test_without_a_gain_of_pooling_there_is_no_share_of_it(pooled):
    assert advice({"fedavg": UP, "pooled": pooled}).shares == {}


def test_notes_come_last_and_everything_is_valid_json():
    found = advice({"fedavg": (0.5,)}, notes=["Left out: Ditto."])
    assert found.sentences[-1] == "Left out: Ditto."
    content = json.loads(json.dumps(found.as_dict(), allow_nan=False))
    assert content["arms"]["fedavg"] == {
        "mean": 0.5, "low": None, "high": None, "n": 1, "p_value": None, "deviation": None, "verdict": "undecided"
    }  # fmt: skip


def test_the_half_of_the_validation_data_that_chooses_is_not_seen_before(tmp_path):
    seen = {"fit": [], "test": []}

    class Spy(TinyModule):
        def validation_step(self, batch, batch_idx):
            seen[stage].extend(batch[1].flatten().tolist())
            return super().validation_step(batch, batch_idx)

    module, data = Spy(), TinyClients()
    trainer = lightning_fl.FederatedTrainer(max_rounds=2, callbacks=[AdviceRecord()], default_root_dir=tmp_path)
    stage = "fit"
    trainer.fit(module, data)
    stage = "test"
    with warnings.catch_warnings(action="error"):  # the checkpoint's data are the run's
        trainer.test(module, data)
    targets = [TinyClients().client_data(client, "val").tensors[1].flatten().tolist() for client in range(3)]
    assert seen["fit"] == 2 * [value for of in targets for value in of[::2]]
    assert seen["test"] == [value for of in targets for value in of[1::2]]


@pytest.mark.slow
def test_from_python(tmp_path, capsys):
    """Every arm is run once; a second call runs nothing; a broken arm is left out by name."""
    arguments = {"out": tmp_path / "out", "seeds": 2, "max_rounds": 2, "logger": False, "seed": 5}
    found = lightning_fl.advise(TinyModule(), TinyClients(), **arguments)
    assert list(found.arms) == ["fedavg", "fine-tuning", "hcct", "fedcollab", "ditto", "dpfl"]
    assert all(interval.n == 2 for interval in found.arms.values())
    assert {path.name for path in arguments["out"].iterdir()} >= {
        *("advice.json", "report.html", "results.csv", "table.md", "claims.csv")
    }
    page = (arguments["out"] / "report.html").read_text()
    assert page.count("lightning_fl.advise(module, data)") == 2  # the heading, and to repeat it
    assert lightning_fl.FederatedTrainer(**found.trainer_arguments(), enable_progress_bar=False).max_rounds == 2
    capsys.readouterr()
    again = lightning_fl.advise(TinyModule(), TinyClients(), **arguments)
    assert again.as_dict() == found.as_dict()
    assert "started" not in capsys.readouterr().out


@pytest.mark.slow
def test_other_data_make_other_runs(tmp_path):
    arguments = {"out": tmp_path, "seeds": 1, "max_rounds": 1, "logger": False}
    for names in ("abc", "xy", "xyz"):
        data = {name: regression_set(40, seed) for seed, name in enumerate(names)}
        assert list(lightning_fl.advise(TinyModule(), data, **arguments).clients) == list(names)


@pytest.mark.parametrize(
    "make",
    [
        lambda n: {"partitioner": IID(num_clients=n)},
        lambda n: {"num_samples": [n, 1]},
        lambda n: {"module": TinyModule(learning_rate=1 / n)},
        lambda n: {"data": Partitioned(regression_set(40, seed=1), IID(num_clients=n))},
        lambda n: {"data": Partitioned(regression_set(40, seed=n), IID(num_clients=2))},
    ],
    ids=["partitioner", "num_samples", "hyper-parameters", "partitioner of the data", "samples of the data"],
)
def test_other_arguments_make_other_runs(tmp_path, monkeypatch, make):
    def first_look(advisor):
        return make_cells(advisor._study({"first-look": Way("a first look")}), advisor.out)[0].folder

    monkeypatch.setattr(Advisor, "advise", first_look)  # instead of advice
    unchanged = {"module": TinyModule(), "data": regression_set(40, seed=1), "out": tmp_path}
    first, same, other = (lightning_fl.advise(**unchanged | make(n)) for n in (2, 2, 3))
    assert first == same != other


def test_a_signal_between_two_runs_interrupts(tmp_path, monkeypatch):
    def advise(advisor):
        advisor.signal_number = signal.SIGINT
        return advice({"fedavg": UP})

    monkeypatch.setattr(Advisor, "advise", advise)
    with pytest.raises(KeyboardInterrupt):
        lightning_fl.advise(TinyModule(), TinyClients(), out=tmp_path)


@pytest.mark.parametrize(
    ("callbacks", "kept"),
    [
        (["LabelNoise", "HCCT"], ["LabelNoise"]),
        ("LocalMixup", ["LocalMixup"]),
        ({"class_path": "lightning_fl.callbacks.LabelNoise", "init_args": {"share": 0.2}}, ["LabelNoise"]),
        ([{"class_path": "FineTuning"}, {"class_path": "PretrainedWeights"}], ["PretrainedWeights"]),
        (["HCCT", {"class_path": "EarlyStopping", "init_args": {"patience": 30}}], ["EarlyStopping"]),
        (None, []),
    ],
)
@pytest.mark.parametrize("key", ["callbacks", "callbacks+"])
def test_callbacks_of_data_and_model_and_what_ends_runs_stay(tmp_path, key, callbacks, kept):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(yaml.safe_dump({"trainer": {key: callbacks}, "model": {}, "data": {}}))
    advisor = Advisor(
        recipe=recipe, out=tmp_path, runner=lambda _: None, metric=None, seeds=1, max_rounds=1, pooled=False
    )
    advisor._stop = [{"class_path": "EarlyStopping", "init_args": {"patience": 10}}]
    settings = advisor._settings("ditto", Way("Ditto", ["BestClientModels"], strategy="ditto"))
    own = [] if "EarlyStopping" in kept else ["EarlyStopping"]
    assert list(map(class_name, settings["callbacks"])) == [*kept, "BestClientModels", *own]


def test_a_recommended_recipe_has_nothing_of_the_former_strategy(tmp_path):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(yaml.safe_dump({"trainer.strategy": "FedProx", "trainer.strategy.mu": 0.3, "trainer.seed": 1}))
    advisor = Advisor(
        recipe=recipe, out=tmp_path, runner=lambda _: None, metric=None, seeds=1, max_rounds=1, pooled=False
    )
    content = yaml.safe_load(advisor.recommended(SimpleNamespace(settings={"strategy": "Ditto"}, recommended="ditto")))
    assert {key: content[key] for key in content if key != "trainer"} == {"trainer.seed": 1}
    assert content["trainer"]["strategy"] == "Ditto"


def without_validation():
    data = TinyClients()
    data.sets |= {(client, "val"): None for client in range(3)}
    return data


@pytest.mark.slow
@pytest.mark.parametrize(
    ("data", "options", "fault"),
    [
        (without_validation, {}, "Give each client validation data"),
        (lambda: TinyClients(sizes=(24,)), {}, "2 to 1000 clients"),
        (TinyClients, {"metric": "los"}, "'los' (did you mean 'loss'?)"),
        (TinyClients, {"seeds": 0}, "seeds=0"),
        (TinyClients, {"local_epochs": 0}, "local_epochs=0"),
    ],
)
def test_what_cannot_be_advised_on_is_refused_after_a_round(tmp_path, data, options, fault):
    with pytest.raises(ConfigurationError, match=re.escape(fault)):
        lightning_fl.advise(TinyModule(), data(), out=tmp_path, logger=False, **options)
    assert len(list(tmp_path.glob("cells/*/version_*"))) <= 1
