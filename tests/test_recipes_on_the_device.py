"""Recipes on a CUDA device of software that the fast tests try, or beside test_recipes with settings of their own."""

from pathlib import Path

import pytest
from on_the_device import assert_same_on_the_device, results
from test_recipes import RECIPES, data_root, elsewhere, with_less_work, words_of

__all__ = ["data_root", "elsewhere"]

_MOLECULES = ("--model.hidden_dim", "4", "--data.source", "real")


@pytest.mark.filterwarnings("ignore:.*is not the file that card:UserWarning")
@pytest.mark.parametrize(
    "words",
    [
        ("fedavg_digits",),
        ("fedavg_digits", "--trainer.stacked_clients", "4"),
        ("drflm_esol", *_MOLECULES, "--trainer.callbacks+=ForestReference"),
        ("drflm_adult",),
        pytest.param(("private_heads_chembl", *_MOLECULES), marks=pytest.mark.slow),
        pytest.param(("fedavg_esol", *_MOLECULES, "--model.encoder", "gat"), marks=pytest.mark.slow),
    ],
    ids=" ".join,
)
def test_a_recipe_has_the_results_of_the_cpu(words: tuple[str, ...], quick_pictures: None) -> None:
    name, *more = words
    Path("smaller.yaml").write_text(with_less_work(RECIPES[name]))
    asked = ["--trainer.max_rounds", "2", *words_of(name), *more]
    assert_same_on_the_device(results("cpu", Path("cpu"), asked), asked, another_path="--model.hidden_dim" in more)
