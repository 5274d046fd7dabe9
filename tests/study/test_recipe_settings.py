import pytest

from lightning_fl.study.recipe_settings import group_runs, recipe_differences, recipe_lines, recipe_settings

FIVE = dict.fromkeys(("trainer.a", "trainer.b", "trainer.c", "trainer.d", "trainer.e"), 0)


def mixup(alpha):
    return {"class_path": "lightning_fl.callbacks.LocalMixup", "init_args": {"alpha": alpha}}


def rows(*runs):
    return group_runs([(None, run) for run in runs])


def folders(groups):
    return {label: [run.folder.name for run in runs] for label, runs in groups.items()}


def test_settings_by_their_paths():
    config = {
        "seed_everything": 3,
        "trainer": {
            "max_rounds": 5,
            "default_root_dir": "runs",
            "enable_progress_bar": False,
            "callbacks": [mixup(0.4), {"class_path": "GainFigure"}, mixup(0.1), {"class_path": "LocalTraining"}],
        },
        "model": {"class_path": "my.Model", "init_args": {"hidden_sizes": [64, 32], "dropout": None}},
    }
    assert recipe_settings(config) == {
        "trainer.max_rounds": "5",
        "trainer.callbacks.LocalMixup": '"LocalMixup"',
        "trainer.callbacks.LocalMixup.alpha": "0.4",
        "trainer.callbacks.LocalMixup[2]": '"LocalMixup"',
        "trainer.callbacks.LocalMixup[2].alpha": "0.1",
        "trainer.callbacks.LocalTraining": '"LocalTraining"',
        "model": '"Model"',
        "model.hidden_sizes": "[64, 32]",
        "model.dropout": "null",
    }
    assert recipe_settings({}) == {}


class TestRows:
    def test_runs_that_differ_in_the_seed_and_what_watches_are_one(self, make_run):
        first = make_run("b", [1.0], seed=1)
        second = make_run("a", [1.0], seed=0, callbacks=[{"class_path": "LearningCurves"}])
        assert folders(rows(first, second)) == {"FedAvg": ["a", "b"]}

    def test_labels_are_the_algorithm_where_that_tells_rows_apart(self, make_run):
        plain, mixed = make_run("a", [1.0]), make_run("b", [1.0], callbacks=[mixup(0.4)])
        mixed.summary["callbacks"] = ["LocalMixup"]
        assert folders(rows(plain, mixed)) == {"FedAvg": ["a"], "FedAvg + LocalMixup": ["b"]}

    def test_else_what_differs_in_the_recipe(self, make_run):
        runs = [make_run(f"r{alpha}", [1.0], callbacks=[mixup(alpha)]) for alpha in (0.2, 0.4)]
        for run in runs:
            run.summary["callbacks"] = ["LocalMixup"]
        runs.append(make_run("other", [1.0], config={"trainer.max_rounds": 9}))
        assert folders(rows(*runs)) == {
            "FedAvg + LocalMixup alpha=0.2": ["r0.2"],
            "FedAvg + LocalMixup alpha=0.4": ["r0.4"],
            "FedAvg": ["other"],
        }

    @pytest.mark.parametrize(
        ("configs", "labels"),
        [
            (
                [{"trainer.lr": 1, "model.init_args.lr": 2}, {"trainer.lr": 3, "model.init_args.lr": 4}],
                ["FedAvg trainer.lr=1 model.lr=2", "FedAvg trainer.lr=3 model.lr=4"],
            ),
            (
                [FIVE, dict.fromkeys(FIVE, 1), dict.fromkeys(FIVE, 1) | {"trainer.e": 2}],
                ["FedAvg a=0 b=0 c=0 e=0", "FedAvg a=1 b=1 c=1 e=1", "FedAvg a=1 b=1 c=1 e=2"],
            ),
        ],
        ids=["one name is written out", "three settings, more only to tell rows apart"],
    )
    def test_which_settings_a_label_has(self, make_run, configs, labels):
        assert list(rows(*(make_run(str(n), [1.0], config=config) for n, config in enumerate(configs)))) == labels

    def test_runs_started_from_python_are_rows_of_their_own(self, make_run):
        runs = [make_run(name, [1.0], seed=seed, config=False) for seed, name in enumerate("ab")]
        found = rows(*runs)
        assert folders(found) == {"FedAvg": ["a"], f"FedAvg ({runs[1].folder})": ["b"]}
        assert folders(group_runs([("mine", run) for run in runs])) == {"mine": ["a", "b"]}

    def test_own_labels_come_first(self, make_run):
        labelled, automatic = make_run("a", [1.0]), make_run("b", [1.0])
        found = group_runs([("FedAvg", labelled), (None, automatic)])
        assert folders(found) == {"FedAvg": ["a"], f"FedAvg ({automatic.folder})": ["b"]}


class TestDifferences:
    def test_between_rows(self, make_run):
        groups = {
            "a": [make_run("a", [1.0])],
            "b": [make_run("b", [1.0], callbacks=[mixup(0.4)], config={"trainer.max_rounds": 9})],
            "c": [make_run("c", [1.0], config=False)],
        }
        assert recipe_differences(groups) == {
            "trainer.max_rounds": {"a": "5", "b": "9"},
            "trainer.callbacks.LocalMixup": {"a": None, "b": '"LocalMixup"'},
            "trainer.callbacks.LocalMixup.alpha": {"a": None, "b": "0.4"},
        }
        # What only one row has, its label tells.
        assert recipe_lines(groups) == ["trainer.max_rounds: 5 (a), 9 (b)"]

    def test_lines_leave_out_what_labels_tell_and_count_many_rows(self, make_run):
        runs = [make_run(str(n), [1.0], config={"trainer.max_rounds": 5 + (n > 0)}) for n in range(5)]
        assert recipe_lines({f"FedAvg max_rounds={5 + (n > 0)} {n}": [run] for n, run in enumerate(runs)}) == []
        lines = recipe_lines({f"row {n}": [run] for n, run in enumerate(runs)})
        assert lines == ["trainer.max_rounds: 5 (row 0), 6 (row 1 and 3 more rows)"]
