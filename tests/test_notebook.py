"""Jupyter: notebooks that are executed by nbconvert, with a kernel of their own."""

import json
import sys

import nbformat
import pytest
from processes import LIMIT, SUPPORT, nothing_left, run

pytestmark = [pytest.mark.processes, pytest.mark.slow]

SETUP = """
import os, sys, threading
sys.path.insert(0, {tests!r})
import lightning_fl, torch
from tiny import TinyClients, TinyModule
settings = dict(max_rounds=3, accelerator="cpu", logger=False, seed=5, default_root_dir={root!r})
"""
CELLS = [
    "one = lightning_fl.federate(TinyModule(), TinyClients(), devices=1, **settings)",
    "one",
    "one.metrics['test']",
    """
two = lightning_fl.federate(TinyModule(), TinyClients(), devices=2, **settings)
assert two.fabric.world_size == 2
assert two.models[0].equal(one.models[0]), "two processes differ from one"
assert not [thread for thread in threading.enumerate() if thread.name in ("peers", "signals")]
assert two.metrics["test"] == one.metrics["test"]
assert "LOCAL_RANK" not in os.environ, "the next trainer would think that somebody else had started it"
try:
    two.test(TinyModule(), TinyClients())
except lightning_fl.ConfigurationError as error:
    print("after:", error)
""",
    """
class Failing(TinyModule):
    def training_step(self, batch, batch_idx):
        if self.trainer.client == 1:  # on the other process
            raise ValueError("no such fever chart")
        return super().training_step(batch, batch_idx)

try:
    lightning_fl.federate(Failing(), TinyClients(), devices=2, **settings)
except lightning_fl.TrainingError as error:
    print("failed:", error)
""",
    """
again = lightning_fl.federate(TinyModule(), TinyClients(), devices=2, **settings)
assert again.models[0].equal(one.models[0])
""",
    """
try:
    lightning_fl.FederatedTrainer(devices=2, **settings)
except lightning_fl.ConfigurationError as error:
    print("refused:", error)
""",
]


@pytest.fixture(scope="module")
def outputs(tmp_path_factory):
    """What each cell of :data:`CELLS` puts out: kind of output -> text."""
    folder = tmp_path_factory.mktemp("notebook")
    setup = SETUP.format(tests=str(SUPPORT), root=str(folder / "runs"))
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in (setup, *CELLS)])
    nbformat.write(notebook, folder / "trial.ipynb")
    command = ["-m", "nbconvert", "--to", "notebook", "--execute", folder / "trial.ipynb", "--output", "done.ipynb"]
    limits = [f"--ExecutePreprocessor.{kind}_timeout={LIMIT:.0f}" for kind in ("startup", "iopub")]
    with nothing_left():
        ended = run(sys.executable, *command, *limits)
        assert ended.code == 0, ended.err
    return [_outputs(cell) for cell in json.loads((folder / "done.ipynb").read_text())["cells"][1:]]


def _outputs(cell):
    found = {}
    for output in cell["outputs"]:
        texts = output.get("data") or {output["name"]: output["text"]}
        for kind, text in texts.items():
            found.setdefault(kind, []).append("".join(text))
    return found


def test_a_fit_has_one_display_that_is_drawn_anew(outputs):
    displays = outputs[0]["text/html"]
    assert len(displays) == 1
    assert "TinyModule by FedAvg on 3 clients" in displays[0]
    assert "round 3/3" in displays[0]
    assert "━" in displays[0]
    assert "round 1/3" not in "".join(outputs[0].get("stdout", []))


def test_trainer_and_metrics_are_tables(outputs):
    trainer, metrics = outputs[1]["text/html"][0], outputs[2]["text/html"][0]
    assert "round 3 of 3" in trainer
    assert "version_0" in trainer
    assert metrics in trainer
    for word in ("client_0", "client_2", "average", "worst", "best", "standard deviation"):
        assert f"<th>{word}</th>" in metrics


def test_several_processes_are_forked_for_a_call(outputs):
    assert len(outputs[3]["text/html"]) == 1  # rank zero's alone
    said = "".join(outputs[3]["stdout"])
    assert "after: this trainer's processes ended with lightning_fl.federate: make another trainer" in said


def test_an_error_of_another_process_is_raised_and_the_kernel_lives_on(outputs):
    said = "".join(outputs[4]["stdout"])
    assert "failed: rank 1 (" in said
    assert "client 1 (client_1) failed in round 1" in said
    assert "no such fever chart" in said
    assert len(outputs[5]["text/html"]) == 1


def test_what_does_not_work_in_a_notebook_says_what_does(outputs):
    said = "".join(outputs[6]["stdout"])
    assert "refused: trainer.devices=2" in said
    assert "lightning_fl.federate(..., devices=2, accelerator='cpu')" in said
    assert "!lightning-fl fit --config recipe.yaml --trainer.devices 2" in said
