"""Every shipped study is read, says what it should, and each of its arms is parsed by the parser of ``fit``."""

import itertools
import json
import re
from pathlib import Path

import pandas as pd
import pytest

from lightning_fl.cli import main
from lightning_fl.recipe.file import flat_settings
from lightning_fl.recipe.instantiate import instantiate
from lightning_fl.recipe.parser import parse
from lightning_fl.recipe.shipped import available_studies, find_recipe, recipe_headline
from lightning_fl.study.cells import make_cells
from lightning_fl.study.declaration import FULL
from lightning_fl.study.study_file import load_study

STUDIES = available_studies()
KEPT = sorted((Path(__file__).parents[1] / "docs" / "results").glob("*.csv"))


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


def object_of(key):
    """What a setting is of: the model, the data, or one of the trainer's."""
    first, *rest = key.replace("+", "").split(".")
    return (first, *rest[:1]) if first == "trainer" else first


def combinations(cell):
    """The recipe with each of its layers, and two layers that set parts of the same object."""
    layers = [
        (json.dumps(layer, sort_keys=True, default=str), {object_of(key) for key, _ in flat_settings(layer)})
        for layer in cell.layers
    ]
    found = {(text, other) for (text, one), (other, two) in itertools.combinations(layers, 2) if one & two}
    return found | {(cell.recipe, text) for text, _ in layers} | {(cell.recipe, "")}


@pytest.mark.slow
@pytest.mark.parametrize("name", STUDIES)
def test_every_arm_is_a_recipe_with_settings_that_exist(name, parser, tmp_path):
    """With the places and scales at which its recipe or layers meet for the first time."""
    study = load_study(STUDIES[name])
    assert study.claims
    assert "small" in study.scales
    tried, places = set(), {}
    for scale in study.scales:
        scaled = load_study(STUDIES[name], scale)
        cells = make_cells(scaled, tmp_path / scale)
        places[scale] = len(list(scaled.places()))
        assert len(cells) == places[scale] * len(scaled.run_seeds)
        for cell in {cell.variant: cell for cell in cells}.values():
            if combinations(cell) <= tried:
                continue
            tried |= combinations(cell)
            cell.prepare()
            made = instantiate(parser, parse("fit", parser, cell.arguments()[1:]))
            assert made.trainer.default_root_dir == str(cell.folder)
    assert places[FULL] >= places["small"]


@pytest.mark.parametrize("kept", KEPT, ids=lambda path: path.stem)
def test_kept_results_are_drawn_without_running(kept, tmp_path, capsys):
    """Their values are those of the file, and the first answer's difference is the one that pandas finds."""
    name, _, scale = kept.stem.partition(".")
    options = ["--scale", scale] if scale else []
    assert main(["study", name, "--from", str(kept), "--out", str(tmp_path), *options]) == 0
    assert f"study: {tmp_path}" in capsys.readouterr().out
    study = load_study(STUDIES[name])
    axes = list(study.grid)
    given, drawn = (pd.read_csv(path, dtype=dict.fromkeys(axes, str)) for path in (kept, tmp_path / "results.csv"))
    keys = ["arm", *axes, "seed"]
    drawn = drawn[drawn["status"] == "done"].set_index(keys)[["mean", "worst"]]
    pd.testing.assert_frame_equal(drawn.sort_index(), given.set_index(keys)[["mean", "worst"]].sort_index())
    claims = pd.read_csv(tmp_path / "claims.csv", keep_default_na=False, dtype=str)
    claim = claims[~claims["n"].isin(["", "0"])].iloc[0]
    (statistic, left), (_, right) = re.findall(r"(\w+)\(([\w+]+)\)", claim["claim"])
    at = dict(pair.split("=") for pair in claim["at"].split(", ") if pair)
    values = given[(given[list(at)] == pd.Series(at)).all(axis="columns")].pivot(
        columns="arm", index="seed", values=statistic
    )
    differences = (values[left] - values[right]).dropna()
    assert int(claim["n"]) == len(differences) >= min(5, len(study.seeds))
    assert float(claim["mean"]) == pytest.approx(differences.mean() * (100 if study.table.percent else 1), rel=1e-9)
