"""``lightning-fl advise``: refusals, and one whole run in processes of its own."""

import json
import re
import signal
from pathlib import Path

import pytest
import yaml
from processes import SUPPORT


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["tiny.yaml", "--budget", "30"], "--budget 30"),
        (["tiny.yaml", "--budget", "1d"], "--budget 1d"),
        (["tiny.yaml", "--seeds", "0"], "seeds=0"),
        (["tine.yaml"], "tine.yaml"),
        (["fedcollab_digit"], "did you mean 'fedcollab_digits'"),
        ([], "recipe"),
    ],
)
def test_refusals_are_one_line(tiny, command, words, name):
    code, out, err = command("advise", *words)
    assert (code, out) == (2, "")
    assert re.search(name, err), err
    assert len(err.splitlines()) == 1


@pytest.mark.slow
@pytest.mark.processes
def test_a_recipe_gets_advice_which_goes_on_after_an_interrupt(tiny, command, start_warm):
    def advise(*words):
        return start_warm(SUPPORT / "warm_study.py", "advise", *words, "--seeds", "2", "--max_rounds", "2")

    recipe = yaml.safe_load(Path("tiny.yaml").read_text())
    recipe["data"]["init_args"]["split"] = [0.75, 0.0, 0.25]
    Path("tiny.yaml").write_text(yaml.safe_dump(recipe))
    Path("empty.yaml").write_text(yaml.safe_dump({"model": recipe["model"]}))
    code, _, err = advise("empty.yaml").end()
    assert (code, err.count("\n")) == (2, 1)
    assert err.startswith("error: empty.yaml: data not given")

    interrupted = advise("tiny.yaml")
    interrupted.until_it_prints("local, seed 0: started")
    interrupted.send_signal(signal.SIGINT)
    code, _, err = interrupted.end()
    assert code == 130
    assert "To resume: lightning-fl advise tiny.yaml" in err

    code, out, err = advise("tiny.yaml").end()
    assert (code, err) == (0, ""), out
    folder = Path("runs/advise/tiny")
    found = json.loads((folder / "advice.json").read_text())
    assert found["metric"] == "rmse"
    assert all(f"- {sentence}" in out for sentence in found["sentences"])
    assert {arm: interval["n"] for arm, interval in found["arms"].items()}.items() >= {"fedavg": 2, "ditto": 2}.items()
    page = (folder / "report.html").read_text()
    assert "Advice" in page
    assert page.count("lightning-fl advise tiny.yaml --seeds 2 --max_rounds 2") == 2  # the heading, and to repeat it
    again = advise("tiny.yaml").end()
    assert (again.code, "started" in again.out) == (0, False)

    assert "a fifth of each client's training data" in out
    recommended = yaml.safe_load((folder / "recommended.yaml").read_text())
    assert recommended["data"]["init_args"].pop("split") == pytest.approx([0.6, 0.15, 0.25])
    del recipe["data"]["init_args"]["split"]
    assert {**recommended, "trainer": None} == {**recipe, "trainer": None}
    code, _, err = command("fit", "--config", folder / "recommended.yaml", "--trainer.enable_progress_bar", "false")
    assert code == 0, err
    assert list(folder.glob("recommended/version_0/models/*.ckpt"))
