import shlex
import shutil

import pytest
from processes import run

from lightning_fl.recipe.shipped import available_recipes


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    from lightning_fl.cli.completion import completion_script

    path = tmp_path_factory.mktemp("completion") / "lightning-fl.bash"
    path.write_text(completion_script("bash"))
    return path


def complete(script, *cases):
    """What bash offers for the last of some words, in each case."""
    code = (
        f"source {script}; function=$(complete -p lightning-fl | sed 's/.*-F \\([^ ]*\\).*/\\1/');"
        ' offer() { COMP_WORDS=(lightning-fl "$@"); COMP_CWORD=$#; COMP_LINE="${COMP_WORDS[*]}"; COMPREPLY=();'
        ' COMP_POINT=${#COMP_LINE}; $function lightning-fl "${COMP_WORDS[-1]}" "${COMP_WORDS[-2]}";'
        ' echo "${COMPREPLY[*]}"; };'
    )
    ended = run("bash", "-c", code + "".join(f" offer {shlex.join(words)};" for words in cases))
    assert (ended.code, ended.err) == (0, "")
    return [line.split() for line in ended.out.splitlines()]


OFFERED = {
    ("re",): ["recipes"],
    ("fit", "--trainer.max"): ["--trainer.max_rounds"],
    ("fit", "--trainer.precision", "bf"): ["bf16-mixed", "bf16-true"],
    ("validate", "--model", "Mol"): ["MoleculeModel"],
    ("fit", "--model.encoder", "g"): ["gcn", "gat", "gin", "gine"],
    ("fit", "--data.source", ""): ["auto", "real", "standin"],
    ("fit", "--trainer.callbacks", "DRO"): ["DROClientSampling"],
    ("fit", "--trainer.strategy", "feda"): ["fedadagrad", "fedadam", "fedavg", "fedavgm"],
    ("personalize", "run", "new.csv", "--accelerator", "cu"): ["cuda"],
    ("personalize", "run", "new.csv", "--ho"): ["--holdout"],
    ("predict", "run", "new.csv", "--model", "b"): ["best"],
    ("predict", "--ck"): ["--ckpt_path"],
    ("compare", "run", "--split", "te"): ["test"],
    ("compare", "run", "--base"): ["--baseline"],
    ("recipes", "--c"): ["--copy"],
    ("datasets", "fre"): ["freesolv"],
    ("study", "dig"): ["digits"],
    ("study", "digits", "--wo"): ["--workers"],
    ("completion", ""): ["bash", "zsh"],
    ("fit", "--ckpt_path", "la"): ["last"],
}


@pytest.mark.processes
def test_bash_offers(script, tmp_path):
    assert dict(zip(OFFERED, complete(script, *OFFERED), strict=True)) == OFFERED
    # shipped recipes and one's own
    (tmp_path / "drfa_mine.yaml").write_text("")
    (tmp_path / "drfa_mine.txt").write_text("")
    names = [name for name in available_recipes() if name.startswith("drfa")]
    assert complete(script, ("fit", "--config", "drfa")) == [[*names, "drfa_mine.yaml"]]


@pytest.mark.processes
@pytest.mark.slow
def test_zsh_script(command, tmp_path):
    code, out, _ = command("completion", "zsh")
    assert code == 0
    assert out.startswith("#compdef lightning-fl\n")
    assert "--trainer.max_rounds" in out
    zsh = shutil.which("zsh")
    if zsh is not None:
        (tmp_path / "script").write_text(out)
        assert run(zsh, "-n", tmp_path / "script").code == 0
