"""The commands that need no torch."""

import gc
import hashlib
import sys
from pathlib import Path

import pytest
from processes import run

import lightning_fl
from lightning_fl.cli import COMMANDS
from lightning_fl.core.errors import ConfigurationError
from lightning_fl.data.cards.lookup import available_cards
from lightning_fl.files import user_file
from lightning_fl.recipe import help, shipped
from lightning_fl.recipe.shipped import available_recipes, recipe_headline


def test_help_names_every_command(command):
    code, out, _ = command("--help")
    assert code == 0
    for name, entry in COMMANDS.items():
        assert f"    {name} " in out
        assert " ".join(entry.help.split()) in " ".join(out.split())


def test_the_help_of_a_command_is_made_again_only_after_a_change(command, monkeypatch, tmp_path):
    cache, source = tmp_path / "cache", tmp_path / "package" / "recipe" / "help.py"
    source.parent.mkdir(parents=True)
    source.write_text("")
    monkeypatch.setattr(help, "__file__", str(source))
    monkeypatch.setenv("LIGHTNING_FL_CACHE", str(cache))
    code, text, _ = command("recipes", "--help")
    assert code == 0
    assert "--copy" in text
    (kept,) = (cache / "help").glob("recipes-*.txt")
    kept.write_text(kept.read_text().replace("--copy", "--kept"))
    assert command("recipes", "-h") == (0, text.replace("--copy", "--kept"), "")
    assert command("datasets", "--help")[1].startswith("usage: lightning-fl datasets ")
    monkeypatch.setenv("COLUMNS", "50")
    assert "--kept" not in command("recipes", "--help")[1]
    monkeypatch.delenv("COLUMNS")
    source.write_text("# edited")
    assert command("recipes", "--help")[1] == text
    assert kept.read_text().endswith(text)
    kept.write_bytes(b"\xff")  # damaged
    assert command("recipes", "--help")[1] == text
    monkeypatch.setenv("LIGHTNING_FL_CACHE", str(source))  # not a folder
    assert command("recipes", "--help")[1] == text


def test_no_command_shows_the_help_as_an_error(command):
    code, out, err = command()
    assert (code, out) == (2, "")
    assert "usage: lightning-fl COMMAND" in err


def test_version(command):
    assert command("--version") == (0, f"lightning-fl {lightning_fl.__version__}\n", "")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["recipse"], "error: no command 'recipse' (did you mean 'recipes'?). There are fit, validate,"),
        (["--max_rounds"], "error: --max_rounds"),
        (["recipes", "--cpoy"], "error: unrecognized arguments: --cpoy"),
        (["recipes", "drfa_esl"], "error: no shipped recipe 'drfa_esl' (did you mean 'drfa_esol'?). There are "),
        (["datasets", "esl"], "error: no card named 'esl' (did you mean 'esol'?)"),
        (["completion", "fish"], "error: shell: "),
    ],
)
def test_errors(command, words, message):
    code, out, err = command(*words)
    assert (code, out) == (2, "")
    assert err.startswith(message)
    assert err.count("\n") == 1


def test_recipes_lists_names_and_headlines(command):
    code, out, _ = command("recipes")
    assert code == 0
    lines = dict(line.split(maxsplit=1) for line in out.splitlines())
    assert list(lines) == list(available_recipes())
    assert lines["drflm_esol"].startswith("DRFLM on ESOL")


def test_garbage_is_collected_again_when_a_command_begins(command):
    gc.disable()  # as the program does for its imports
    assert command("recipes")[0] == 0
    assert gc.isenabled()


def test_recipes_prints_one(command):
    code, out, _ = command("recipes", "drfa_esol")
    assert code == 0
    assert out == available_recipes()["drfa_esol"].read_text()


def test_recipes_copies_one_or_all_and_never_overwrites(command):
    assert command("recipes", "drfa_esol", "--copy") == (0, "drfa_esol.yaml\n", "")
    assert Path("drfa_esol.yaml").read_text() == available_recipes()["drfa_esol"].read_text()
    Path("drfa_esol.yaml").write_text("mine")
    code, out, err = command("recipes", "--copy", ".")
    assert (code, out) == (2, "")
    assert err.startswith("error: drfa_esol.yaml already exists")
    assert [path.name for path in Path().glob("*.yaml")] == ["drfa_esol.yaml"]  # all or none
    assert Path("drfa_esol.yaml").read_text() == "mine"
    code, out, _ = command("recipes", "--copy", "mine/all")
    assert code == 0
    assert out.splitlines() == [f"mine/all/{name}.yaml" for name in available_recipes()]
    assert len(list(Path("mine/all").rglob("*.yaml"))) == len(available_recipes())


def test_recipes_says_that_a_folder_cannot_be_written(command):
    Path("file").write_text("")
    code, _, err = command("recipes", "drfa_esol", "--copy", "file")
    assert code == 2
    assert err.startswith("error: cannot write to file: ")
    assert "--copy DIR" in err


def test_datasets_lists_cards_with_their_whereabouts(command, monkeypatch, tmp_path):
    code, out, _ = command("datasets")
    assert code == 0
    assert "freesolv         FreeSolv, hydration free energy of small neutral molecules" in out
    assert "regression, 642 rows, licence: CC BY-NC-SA 4.0" in out
    assert "not found; a stand-in is available; lightning-fl datasets esol --fetch" in out
    assert "not found; to be fetched by hand" in out  # chembl_ic50 has no address
    (tmp_path / "SAMPL.csv").write_text("other")
    monkeypatch.setenv("LIGHTNING_FL_DATA", str(tmp_path))
    _, out, _ = command("datasets", "freesolv")
    assert f"status     here: {tmp_path / 'SAMPL.csv'} (its sum is not one of the card's)" in " ".join(
        out.replace("\n" + " " * 11, " ").split("\n")
    )
    assert "targets    expt [kcal/mol]" in out


def test_datasets_checks_sums(command, monkeypatch, tmp_path):
    card = tmp_path / "own.yaml"
    data = tmp_path / "own.csv"
    data.write_text("smiles,y\nCO,1\n")
    digest = hashlib.sha256(data.read_bytes()).hexdigest()
    content = (
        "name: own\ntitle: Own\ntask: regression\nformat: csv\n"
        "files: [{name: own.csv, sha256: [SUM], addresses: []}]\n"
        "columns: {smiles: smiles, targets: [{name: y, unit: one}], groups: []}\n"
        "rows: 1\nstandin: null\nlicence: none\ncitation: none\nnote: none\n"
    )
    card.write_text(content.replace("SUM", digest))
    code, out, _ = command("datasets", card, "--check")
    assert (code, out.startswith("own: own.csv of data set own was not found in ")) == (1, True)
    monkeypatch.setenv("LIGHTNING_FL_DATA", str(tmp_path))
    assert command("datasets", card, "--check") == (0, f"own: {data}, sha256 as in the card\n", "")
    card.write_text(content.replace("SUM", ""))
    code, out, _ = command("datasets", card, "--check")
    assert (code, out) == (0, f"own: {data}, sha256 {digest}; the card knows none to compare with\n")
    card.write_text(content.replace("SUM", "a" * 64))
    with pytest.warns(UserWarning, match="is not the file that card own describes"):
        code, out, _ = command("datasets", card, "--check")
    assert (code, out) == (1, f"own: {data}, sha256 {digest} is not the card's {'a' * 64}\n")


def test_datasets_fetch_says_what_cannot_be_had(command):
    code, out, _ = command("datasets", "--fetch")
    assert code == 1
    assert "esol: delaney-processed.csv of data set esol was not found" in out
    assert "LIGHTNING_FL_OFFLINE" in out
    assert "chembl_ic50: not found\n" in out  # nothing to fetch it from, and not asked for by name
    code, out, _ = command("datasets", "--check")
    assert (code, out.count("not found\n")) == (0, len(available_cards()) - 1)
    assert "digits: scikit-learn, nothing to compare\n" in out  # always there


def test_datasets_shows_images_and_where_they_may_lie(command, monkeypatch, tmp_path):
    _, out, _ = command("datasets", "mnist")
    assert "images     60,000 for train and 10,000 for test, 28 x 28 pixels, grey" in out
    assert "address    those of torchvision.datasets.MNIST" in out
    assert "status     not found; a stand-in is available; lightning-fl datasets mnist --fetch" in out
    _, out, _ = command("datasets", "digits")
    assert "file       none" in out
    assert "address    none needed" in out
    assert "status     here: scikit-learn" in out
    code, out, _ = command("datasets", "mnist", "--fetch")
    assert (code, "LIGHTNING_FL_OFFLINE" in out) == (1, True)
    folder = tmp_path / "MNIST" / "raw"
    folder.mkdir(parents=True)
    for part in ("train", "t10k"):
        for content in ("images-idx3-ubyte", "labels-idx1-ubyte"):
            (folder / f"{part}-{content}").write_text(part)
    monkeypatch.setenv("LIGHTNING_FL_DATA", str(tmp_path))
    _, out, _ = command("datasets", "mnist")
    assert f"status     here: {tmp_path}" in " ".join(out.split("\n" + " " * 11))
    code, out, _ = command("datasets", "mnist", "--check")
    digest = hashlib.sha256(b"train").hexdigest()
    assert (code, out.startswith(f"mnist: {tmp_path} (MNIST/raw/train")) == (0, True)
    assert f"sha256 {digest}, {digest}" in out
    assert out.endswith("; the card knows none to compare with\n")  # its sum is that of a .npz file


def test_datasets_shows_folders_as_published(command, monkeypatch, tmp_path):
    _, out, _ = command("datasets", "femnist")
    words = " ".join(out.split())
    assert "folder or a folder femnist or femnist/data or data/femnist/data with train/*.json and test/*.json" in words
    assert "status not found; a stand-in is available; to be fetched by hand" in words
    for part in ("train", "test"):
        (tmp_path / "femnist" / part).mkdir(parents=True)
        (tmp_path / "femnist" / part / "a.json").write_text("{}")
    monkeypatch.setenv("LIGHTNING_FL_DATA", str(tmp_path))
    _, out, _ = command("datasets", "femnist")
    assert f"status here: {tmp_path / 'femnist'} (2 files)" in " ".join(out.split())
    digest = hashlib.sha256(b"train/a.json\0" + b"2\ntest/a.json\0" + b"2\n").hexdigest()
    code, out, _ = command("datasets", "femnist", "--check")
    verdict = f"sha256 {digest} (of names and sizes); the card knows none to compare with"
    assert (code, out) == (0, f"femnist: {tmp_path / 'femnist'} (2 files), {verdict}\n")
    (tmp_path / "femnist" / "test" / "a.json").unlink()
    code, out, _ = command("datasets", "femnist", "--check")
    assert (code, "femnist/test" in out) == (1, True)


def test_an_installation_without_recipes_says_so(monkeypatch, tmp_path):
    monkeypatch.setattr(user_file, "_PLACES", (tmp_path / "a", tmp_path / "b"))
    with pytest.raises(ConfigurationError, match=r"no recipes found in .*/a/recipes or .*/b/recipes"):
        available_recipes()


def test_recipes_in_folders_are_named_with_them(monkeypatch, tmp_path):
    folder = tmp_path / "recipes"
    (folder / "folder").mkdir(parents=True)
    (folder / "folder" / "deep.yaml").write_text("# What it does.\n# More.\nseed_everything: 0\n")
    (folder / "bare.yaml").write_text("seed_everything: 0\n")
    monkeypatch.setattr(user_file, "_PLACES", (tmp_path,))
    recipes = available_recipes()
    assert list(recipes) == ["bare", "folder/deep"]
    assert [recipe_headline(path) for path in recipes.values()] == ["", "What it does."]
    assert shipped.find_recipe("folder/deep") == folder / "folder" / "deep.yaml"


def test_ctrl_c_before_a_run(command, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("lightning_fl.cli.recipes.recipes", interrupt)
    assert command("recipes") == (130, "", "interrupted\n")
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert command("recipes") == (130, "", "")


@pytest.mark.processes
def test_a_closed_pipe_is_no_error():
    line = f"set -o pipefail; {sys.executable} -m lightning_fl recipes | true; echo ${{PIPESTATUS[0]}}"
    ended = run("bash", "-c", line)
    assert (ended.out, ended.err) == ("141\n", "")
