"""What runs at all: tasks, precisions and options; recipes where the command line's packages are there."""

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from typing import Any

from gpu_phases.common import Arm, Options, Row, digest, fit, has, supports

_ONE_STEP: dict[str, Any] = {"local_steps": 2}
_SETTINGS: dict[str, tuple[str, dict[str, Any]]] = {
    "mlp": ("mlp", {}),
    "lenet": ("lenet", {}),
    "varied": ("varied", {}),
    "gnn": ("gnn", {}),
    "bf16-mixed": ("varied", {"precision": "bf16-mixed"}),
    "bf16-true": ("lenet", {"precision": "bf16-true"}),
    "64": ("mlp", {"precision": "64"}),
    "channels_last": ("varied", {"channels_last": True}),
    "deterministic": ("varied", {"deterministic": True}),
    "deterministic gnn": ("gnn", {"deterministic": True}),
    "keep": ("varied", {"optimizer_state": "keep"}),
    "skip": ("varied", {"on_client_error": "skip"}),
    "compile": ("varied", {"compile": True}),
    "compile reduce-overhead": ("varied", {"compile": {"mode": "reduce-overhead"}}),
    "compile reduce-overhead, accumulated": (
        "lenet",
        {"compile": {"mode": "reduce-overhead"}, "accumulate_grad_batches": 2},
    ),
    "fused": ("varied", {"fused_optimizers": True}),
    "stacked": ("lenet", {"stacked_clients": 4}),
    "two processes": ("lenet", {"processes_per_device": 2}),
    "profile": ("lenet", {"profile": True}),
}
_RECIPES = (
    "fedavg_digits",
    "drflm_esol",
    "drflm_esol --model.encoder gat",
    "drflm_esol --model.encoder mpnn --model.readout set2set",
    "drflm_esol --model.readout max --trainer.deterministic true",
    "hcct_digits",
    "dpfl_digits",
    "scaffold_digits",
    "fedcollab_digits",
    "pifl_digits",
)


def _run(name: str, options: Options) -> Iterator[Row]:
    task, settings = _SETTINGS[name]
    if options.stand_in and (settings.keys() & {"compile", "processes_per_device"}):
        yield Row(name, "not run", note="the software device knows one process, and compiles nothing")
        return
    if "processes_per_device" in settings and options.device != "cuda":
        settings = {"devices": 2}
    unknown = [setting for setting in settings if not supports(setting)]
    if unknown:
        yield Row(name, "not run", note=f"the trainer has no {unknown[0]}")
        return
    if task == "gnn" and not has("torch_geometric"):
        yield Row(name, "not run", note="needs torch_geometric")
        return
    trainer, _ = fit(options, task, 2, **({} if "accumulate_grad_batches" in settings else _ONE_STEP), **settings)
    if trainer.is_global_zero:
        yield Row(name, "ran", "ran", f"{task}, {trainer.fabric.device}, {digest(trainer)}")


def _recipe(words: str, options: Options) -> Iterator[Row]:
    if options.stand_in:
        yield Row(words, "not run", note="the command is a process of its own")
        return
    if not has("jsonargparse", "rdkit"):
        yield Row(words, "not run", note="recipes need jsonargparse and rdkit")
        return
    with tempfile.TemporaryDirectory() as root:
        command = [sys.executable, "-m", "lightning_fl", "fit", "--config", *words.split()]
        command += [f"--trainer.accelerator={options.device}", "--trainer.devices=1", "--trainer.max_rounds=2"]
        command += ["--trainer.enable_progress_bar=false", f"--trainer.default_root_dir={root}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    said = (done.stderr.strip() or done.stdout.strip()).splitlines()
    yield Row(words, "ran" if done.returncode == 0 else f"failed: {said[-1] if said else done.returncode}", "ran")


PARALLEL = True
ARMS: dict[str, Arm] = {
    **{name: partial(_run, name) for name in _SETTINGS},
    **{f"recipe {words}": partial(_recipe, words) for words in _RECIPES},
}
