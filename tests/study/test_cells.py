import hashlib
import json
from dataclasses import replace

import pytest
import yaml
from study_tiny import TINY, finish, tiny_cells, write_study

from lightning_fl.data.cards.lookup import load_card
from lightning_fl.study.cells import make_cells


@pytest.fixture
def cells(tmp_path):
    return tiny_cells(tmp_path)[1]


def named(cells, name):
    return next(cell for cell in cells if cell.name == name)


def test_a_cell_for_every_arm_place_and_seed(cells, tmp_path):
    assert [cell.name for cell in cells[:4]] == [
        "a, data=left, seed 0",
        "a, data=left, seed 1",
        "a, data=left, seed 2",
        "a, data=right, seed 0",
    ]
    assert len(cells) == len({cell.folder for cell in cells}) == 2 * 2 * 3
    assert cells[0].folder.parent == tmp_path / "out" / "cells"
    assert cells[0].folder.name.startswith("a,data=left,seed=0-")
    assert cells[0].variant == cells[1].variant != cells[3].variant


def test_its_words_are_those_of_fit(cells, tmp_path):
    cell = named(cells, "b, data=right, seed 1")
    cell.prepare()
    overrides = [cell.folder / f"override_{number}.yaml" for number in range(2)]
    assert cell.arguments() == [
        *("fit", "--config", str(tmp_path / "r.yaml")),
        *(word for path in overrides for word in ("--config", str(path))),
        *("--seed_everything", "1", "--trainer.seed", "1"),
        *("--trainer.default_root_dir", str(cell.folder), "--trainer.enable_progress_bar", "false"),
    ]
    assert [yaml.safe_load(path.read_text()) for path in overrides] == cell.layers
    assert cell.layers == [{"data.name": "other"}, TINY["arms"]["b"]["overrides"]]
    assert json.loads((cell.folder / "cell.json").read_text()) == cell.content


@pytest.mark.parametrize(
    "change",
    [
        {"overrides": {"trainer.max_rounds": 3}},
        {"grid": {"data": {"left": {"data.name": "x"}, "right": {}}}},
        {"arms": {"a": {"recipe": "r.yaml", "overrides": {"z": 1}}}},
        {"scale": "s", "scales": {"s": {"overrides": {"z": 1}}}},
    ],
)
def test_a_changed_declaration_is_another_cell(cells, tmp_path, change):
    _, others = tiny_cells(tmp_path, **change)
    assert others[0].name == cells[0].name
    assert others[0].folder != cells[0].folder


def test_axes_of_any_permitted_name_stand_in_the_name_of_a_recipe(tmp_path):
    study = write_study(
        tmp_path, arms={"a": "{0}_{data.set}"}, grid={"data.set": {"digits": {}}, "0": {"fedavg": {}, "local": {}}}
    )
    assert [cell.recipe.stem for cell in make_cells(study, tmp_path)[::3]] == ["fedavg_digits", "local_digits"]


def test_a_changed_recipe_is_another_cell_and_more_seeds_and_arms_are_not(cells, tmp_path):
    _, more = tiny_cells(tmp_path, seeds=[0, 7], arms={**TINY["arms"], "c": "r.yaml"}, title="y")
    assert named(more, "a, data=left, seed 0").folder == cells[0].folder
    study = write_study(tmp_path)
    (tmp_path / "r.yaml").write_text("trainer: {max_rounds: 10}\n")
    assert make_cells(study, tmp_path / "out")[0].folder != cells[0].folder


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_other_data_under_the_same_name_make_another_cell(tmp_path, kind):
    data = tmp_path / "mine"
    file = data if kind == "file" else data / "one.csv"
    file.parent.mkdir(exist_ok=True)
    file.write_text("a\n1\n")
    _, before = tiny_cells(tmp_path, scale="s", scales={"s": {"overrides": {"data.path": str(data)}}})
    finish(before[0], 0.5)
    _, same = tiny_cells(tmp_path, scale="s", scales={"s": {"overrides": {"data.path": str(data)}}})
    assert same[0].folder == before[0].folder
    assert not same[0].ran_on_other_data()
    file.write_text("a\n22\n")
    _, other = tiny_cells(tmp_path, scale="s", scales={"s": {"overrides": {"data.path": str(data)}}})
    assert other[0].finished() is None
    assert other[0].ran_on_other_data()
    assert not other[1].ran_on_other_data()


@pytest.mark.parametrize("file", ["module.py", "package/module.py"])
@pytest.mark.parametrize(
    "overrides",
    [
        lambda name: {"model.class_path": name},
        lambda name: {"model": name},
        lambda name: {"model": {"class_path": name, "init_args": {"size": 1}}},
        lambda name: {"data": {"class_path": "Silos", "init_args": {"silos": [{"class_path": name}]}}},
        lambda name: {"trainer": {"callbacks": [name]}},
        lambda name: {"trainer.callbacks+": [{"class_path": "LastRounds"}, {"class_path": name}]},
        lambda name: {"trainer.strategy": name},
        lambda name: {"trainer": {"strategy": {"class_path": name}}},
    ],
)
def test_another_module_of_the_user_s_makes_another_cell(tmp_path, monkeypatch, overrides, file):
    monkeypatch.chdir(tmp_path)
    changes = overrides(file.removesuffix(".py").replace("/", ".") + ".MyClass")
    (tmp_path / file).parent.mkdir(exist_ok=True)
    folders = []
    for content in ("rate = 1", "rate = 1", "rate = 2"):
        (tmp_path / file).write_text(content)
        folders.append(tiny_cells(tmp_path, scale="s", scales={"s": {"overrides": changes}})[1][0].folder)
    assert folders[0] == folders[1] != folders[2]


def test_a_script_beside_data_of_its_name_is_no_class(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("mine.csv", "mine.py"):
        (tmp_path / name).write_text("1")
    cell = tiny_cells(tmp_path, overrides={"data.path": "mine.csv", "model": "lightning_fl.models.MLP"})[1][0]
    assert list(cell.content["files"]) == ["mine.csv"]


@pytest.mark.parametrize("root", ["LIGHTNING_FL_DATA", "data.data_root"])
def test_other_files_than_a_card_describes_make_another_cell(tmp_path, monkeypatch, root):
    folder = tmp_path / "kept"
    folder.mkdir()
    overrides = {"data.name": "esol"}
    if root == "LIGHTNING_FL_DATA":
        monkeypatch.setenv(root, str(folder))
    else:
        overrides[root] = str(folder)
    folders = []
    for content in ("a\n1\n", "a\n2\n"):
        (folder / load_card("esol").files[0].name).write_text(content)
        _, found = tiny_cells(tmp_path, scale="s", scales={"s": {"overrides": overrides}})
        folders.append(found[0].folder)
    assert folders[0] != folders[1]


@pytest.fixture
def card_file(tmp_path, monkeypatch):
    """Where the file of a card lies, once it is written with the content that the card describes: an x."""
    card = load_card("esol")
    file = replace(card.files[0], sha256=(hashlib.sha256(b"x").hexdigest(),))
    monkeypatch.setattr("lightning_fl.study.cells.load_card", lambda name: replace(card, files=(file,)))
    monkeypatch.setenv("LIGHTNING_FL_DATA", str(tmp_path))
    return tmp_path / file.name


def first_cell(folder, **overrides):
    return tiny_cells(folder, scale="s", scales={"s": {"overrides": overrides}})[1][0]


def test_a_run_on_a_stand_in_counts_only_while_the_data_are_not_there(tmp_path, card_file):
    of_card = {"data.name": "esol"}
    of_stand_in = of_card | {"data.source": "standin"}
    stood_in, wanted = first_cell(tmp_path, **of_card), first_cell(tmp_path, **of_stand_in)
    finish(wanted, 0.5, source="stand-in")
    finish(stood_in, 0.5, source="stand-in")
    assert stood_in.finished().data_source == "stand-in"
    card_file.write_bytes(b"x")
    assert first_cell(tmp_path, **of_stand_in).finished().data_source == "stand-in"
    again = first_cell(tmp_path, **of_card)
    assert (again.folder, again.finished()) == (stood_in.folder, None)
    finish(again, 0.5, version=1)
    assert again.finished().data_source == "measured"


def killed(cell, files):
    """What a run leaves that is killed after a round."""
    (cell.folder / "version_0" / "checkpoints").mkdir(parents=True)
    (cell.folder / "version_0" / "checkpoints" / "last.ckpt").touch()
    (cell.folder / "version_0" / "splits.json").write_text(json.dumps({"files": files}))


@pytest.mark.parametrize("files", [[], [{"file": "esol.csv"}]])
def test_a_run_that_was_killed_on_a_stand_in_goes_on_only_while_the_data_are_not_there(tmp_path, card_file, files):
    cell = first_cell(tmp_path, **{"data.name": "esol"})
    killed(cell, files)
    assert cell.resumable()
    card_file.write_bytes(b"x")
    again = first_cell(tmp_path, **{"data.name": "esol"})
    assert (again.folder, again.resumable()) == (cell.folder, bool(files))


def test_a_killed_run_on_data_of_a_package_goes_on(tmp_path):
    assert not load_card("digits").files
    cell = first_cell(tmp_path, **{"data.name": "digits"})
    killed(cell, [])
    assert cell.resumable()


def test_only_a_whole_run_of_the_same_settings_is_done(cells):
    cell = cells[0]
    assert cell.finished() is None
    finish(cell, 0.5, interrupted=True)
    assert cell.finished() is None
    finish(cell, 0.5, version=1, metrics={"val": {"acc": {}}})
    assert cell.finished() is None
    finish(cell, 0.5, version=2, seed=9)
    assert cell.finished() is None
    (cell.folder / "version_3").mkdir()
    (cell.folder / "version_3" / "summary.json").write_text("{")
    assert cell.finished() is None
    run = finish(cell, 0.5, version=10)
    (cell.folder / "cell.json").write_text(json.dumps({**cell.content, "seed": 3}))
    assert cell.finished() is None  # of another cell
    (cell.folder / "cell.json").write_text(json.dumps(cell.content))
    assert cell.finished().folder == run


def test_it_resumes_from_a_checkpoint(cells):
    cell = cells[0]
    folder = cell.folder / "version_0" / "checkpoints"
    folder.mkdir(parents=True)
    assert not cell.resumable()
    (folder / "last.ckpt").write_text("")
    assert cell.resumable()
    assert cell.arguments()[-2:] == ["--ckpt_path", "last"]


@pytest.mark.parametrize(
    ("text", "rounds"),
    [
        ("", 0),
        ('"val,acc",step\n0.1,1\n', 1),
        ('"val,acc",step\n' + "".join(f"{'1' * 100},{step}\n" for step in range(1000)), 999),
        ("a," * 9000 + "step\n" + "".join(f"{'-1.2345678901234567e-100,' * 9000}{step}\n" for step in (7, 8)), 8),
        ("val,step\n0.1,3\n0.", 0),
    ],
    ids=["empty", "one", "many", "wide", "cut off"],
)
def test_rounds_are_those_of_the_last_complete_row(cells, text, rounds):
    assert cells[0].rounds() is None
    for version in (0, 2, 10):
        (cells[0].folder / f"version_{version}").mkdir(parents=True)
    (cells[0].folder / "version_2" / "metrics.csv").write_text(text)
    assert cells[0].rounds() == rounds


def test_attempts_are_put_down(cells):
    cell = cells[0]
    assert cell.attempts() == []
    assert cell.failure() is None
    cell.prepare()
    cell.record_start(False, "abc")
    cell.record_start(True, "def")
    cell.record_end(1.23456, 2)
    first, second = cell.attempts()
    assert (first["resumed"], first["commit"], "exit_code" in first) == (False, "abc", False)
    assert (second["resumed"], second["commit"], second["seconds"], second["exit_code"]) == (True, "def", 1.235, 2)
    with (cell.folder / "attempts.jsonl").open("a") as file:
        file.write('{"started": 3')
    assert len(cell.attempts()) == 2


def test_why_it_failed_is_its_last_error(cells):
    cell = cells[0]
    cell.prepare()
    cell.record_start(False, "")
    assert cell.failure() is None  # cut off
    cell.record_end(1.0, 2)
    assert cell.failure() == "exit code 2"
    cell.log.write_text("warning: x\nValueError: y\n\n")
    assert cell.failure() == "ValueError: y"
    cell.log.write_text("error: the loss is not finite\nLIGHTNING_FL_DEBUG=1 shows more\n")
    assert cell.failure() == "the loss is not finite"
    cell.record_start(False, "")
    cell.record_end(1.0, -9)
    assert cell.failure() == "killed by SIGKILL"
    cell.record_start(False, "")
    cell.record_end(1.0, 0)
    assert "needs a test step" in cell.failure()
    finish(cell, 0.5)
    cell.record_end(1.0, 2)
    assert cell.failure() is None


def test_a_cell_is_run_by_one_process_at_a_time(tmp_path):
    (cell, other, *_), (again, *_) = (tiny_cells(tmp_path)[1] for _ in range(2))
    assert cell.claim()
    assert not again.claim()
    assert other.claim()
    cell.lock.release()
    assert again.claim()
    finish(again, 0.5)
    again.lock.release()
    assert not cell.claim()
