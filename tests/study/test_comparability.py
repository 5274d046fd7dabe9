import pytest

from lightning_fl.study.recipe_settings import find_mismatches, same_data


def test_runs_of_one_recipe_with_several_seeds_compare(make_run):
    groups = {
        name: [make_run(f"{name}{seed}", [1.0, 0.5], seed=seed) for seed in (0, 1, 2)] for name in ("fedavg", "local")
    }
    assert find_mismatches(groups) == []
    assert find_mismatches({}) == []


@pytest.mark.parametrize(
    ("data", "line"),
    [
        ({"sha256": "cd" * 32}, 'data.sha256 is "abab'),
        ({"name": "mnist"}, 'data.name is "digits" in {a}, "mnist" in {b}'),
        ({"target_names": ["other"]}, 'data.target_names is null in {a}, ["other"] in {b}'),
        ({"partitioner": {"alpha": 5.0}}, 'data.partitioner is {{"name": "Dirichlet", "alpha": 0.5}} in {a}'),
        ({"split": [0.8, 0.1, 0.1]}, "data.split is [0.6, 0.1, 0.3] in {a}, [0.8, 0.1, 0.1] in {b}"),
        ({"split_seed": 3}, "data.split_seed is 0 in {a}, 3 in {b}"),
        ({"client_sizes": [1, 2]}, 'data.client_sizes is {{"train": [10, 10]}} in {a}, [1, 2] in {b}'),
        ({"source": "stand-in"}, 'data.source is "measured" in {a}, "stand-in" in {b}'),
        ({"normalization": None}, "data.normalization is "),
    ],
)  # fmt: skip
def test_each_difference_is_one_line(make_run, data, line):
    a, b = make_run("a", [1.0, 0.5]), make_run("b", [1.0, 0.5], data=data)
    (found,) = find_mismatches({"a": [a], "b": [b]})
    assert found.startswith(line.format(a=a.folder, b=b.folder))
    assert same_data(a, a)
    assert not same_data(a, b)


def test_what_only_describes_the_data_may_differ(make_run):
    words = {"licence": "other", "title": "other", "citation": "other", "verified": True}
    assert find_mismatches({"a": [make_run("a", [1.0])], "b": [make_run("b", [1.0], data=words)]}) == []


def test_clients_and_source_of_the_run_itself(make_run):
    a = make_run("a", [1.0])
    b = make_run("b", [1.0], client_names=["other"], data_source="stand-in")
    assert find_mismatches({"a": [a], "b": [b]}) == [
        f'data_source is "measured" in {a.folder}, "stand-in" in {b.folder}',
        f'client_names is ["c0"] in {a.folder}, ["other"] in {b.folder}',
    ]


def test_a_difference_of_many_runs_is_one_line(make_run):
    runs = [make_run(str(number), [1.0], data={"name": "mnist"} if number else None) for number in range(4)]
    (line,) = find_mismatches({str(number): [run] for number, run in enumerate(runs)})
    assert line == f'data.name is "digits" in {runs[0].folder}, "mnist" in {runs[1].folder} and 2 more'


ALIKE = {"split_seed": 5, "client_sizes": {"train": [3]}, "normalization": None}


def table_of(categories, mean):
    return {"encoding": {"categories": categories, "mean": [mean], "std": [1.0 + mean]}}


@pytest.mark.parametrize(
    ("data", "starts"),
    [
        ([{"split_seed": 100}, {"split_seed": 101}], []),
        ([{}, {"split_seed": 7}], ["data.split_seed is 0 in", "data.normalization", "data.client_sizes"]),
        ([ALIKE, ALIKE], []),
        ([ALIKE, ALIKE, ALIKE | {"client_sizes": {"train": [4]}}], ['data.client_sizes is {"train": [3]} in ']),
        ([{}, {"sha256": "cd" * 32}], ["data.sha256 is "]),
        ([table_of(["a"], 0.0), table_of(["a"], 0.5)], []),
        ([table_of(["a"], 0.0), table_of(["b"], 0.5)], ['data.encoding is {"categories": ["a"]} in ']),
    ],
    ids=["distance", "not following", "fixed", "fixed and others", "other data", "statistics", "categories"],
)
def test_between_seeds_what_follows_from_the_seed_may_differ(make_run, data, starts):
    runs = [make_run(str(seed), [1.0], seed=seed, data=of_seed) for seed, of_seed in enumerate(data)]
    found = find_mismatches({"a": runs})
    assert len(found) == len(starts)
    assert all(line.startswith(start) for line, start in zip(found, starts, strict=True)), found


def test_a_row_that_shares_no_seed_with_the_first(make_run):
    a, b = make_run("a", [1.0]), make_run("b", [1.0], seed=1)
    assert f"data.split_seed is 0 in {a.folder}, 1 in {b.folder}" in find_mismatches({"a": [a], "b": [b]})
    both = [make_run("b0", [1.0]), b]
    assert find_mismatches({"a": [a], "b": both}) == []


def test_an_interrupted_run(make_run):
    run = make_run("a", [1.0], interrupted=True, rounds=3)
    assert find_mismatches({"a": [run]}) == [f"{run.folder} was interrupted after round 3"]


def test_several_recipes_in_one_row(make_run):
    a = make_run("a", [1.0])
    b = make_run("b", [1.0], seed=1, config={"trainer.max_rounds": 9}, strategy="FedProx")
    assert find_mismatches({"mine": [a, b]}) == [
        f'algorithm of row \'mine\' is "FedAvg" in {a.folder}, "FedProx" in {b.folder}',
        f"trainer.max_rounds of row 'mine' is 5 in {a.folder}, 9 in {b.folder}",
    ]


def test_long_values_are_shown_from_where_they_differ(make_run):
    sizes = list(range(1000, 1100))
    a = make_run("a", [1.0], data={"client_sizes": sizes})
    b = make_run("b", [1.0], data={"client_sizes": [*sizes[:-1], 7]})
    (line,) = find_mismatches({"a": [a], "b": [b]})
    assert line == f"data.client_sizes is ...97, 1098, 1099] in {a.folder}, ...97, 1098, 7] in {b.folder}"
    a = make_run("c", [1.0], data={"sha256": "ab" * 32})
    b = make_run("d", [1.0], data={"sha256": "cd" * 32})
    (line,) = find_mismatches({"a": [a], "b": [b]})
    assert f'"{"ab" * 19}a... in ' in line
