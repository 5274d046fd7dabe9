"""Every shipped study is read, says what it should, and each of its arms is parsed by the parser of ``fit``."""

import pytest

from lightning_fl.cli import make_parser
from lightning_fl.recipe.instantiate import instantiate
from lightning_fl.recipe.parser import parse
from lightning_fl.recipe.shipped import available_studies, find_recipe, recipe_headline
from lightning_fl.study.cells import make_cells
from lightning_fl.study.declaration import FULL
from lightning_fl.study.study_file import load_study

STUDIES = available_studies()


@pytest.fixture(scope="module")
def parser():
    return make_parser("fit")


def test_studies_are_found_by_name_and_by_path():
    assert "digits" in STUDIES
    for name, path in STUDIES.items():
        assert find_recipe(name, "study") == find_recipe(str(path), "study") == path


@pytest.mark.parametrize("name", STUDIES)
def test_it_says_what_it_is(name):
    text = STUDIES[name].read_text()
    head = [line for line in text.splitlines() if line.startswith("#")]
    assert text.startswith("\n".join(head))  # one block, at the top
    assert recipe_headline(STUDIES[name]) == head[0].removeprefix("# ")
    assert f"# Run:      lightning-fl study {name}" in head
    assert sum(line.startswith("# Expected: ") for line in head) == 1
    assert sum(line.startswith("# Data:     ") for line in head) == 1
    assert max(map(len, text.splitlines())) <= 120


@pytest.mark.slow
@pytest.mark.parametrize("name", STUDIES)
def test_every_arm_is_a_recipe_with_settings_that_exist(name, parser, tmp_path):
    study = load_study(STUDIES[name])
    assert study.claims
    assert "small" in study.scales
    for scale in study.scales:
        scaled = load_study(STUDIES[name], scale)
        cells = make_cells(scaled, tmp_path / scale)
        assert len(cells) == len(list(scaled.places())) * len(scaled.run_seeds)
        for cell in {cell.variant: cell for cell in cells}.values():
            cell.prepare()
            made = instantiate(parser, parse("fit", parser, cell.arguments()[1:]))
            assert made.trainer.default_root_dir == str(cell.folder)
    assert len(list(load_study(STUDIES[name], FULL).places())) >= len(list(load_study(STUDIES[name], "small").places()))
