"""Recipes of each kind on a CUDA device of software: no mistake of devices, and the results of the CPU to the bit."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from cuda_standin.device import StandIn
from test_recipes import FEWER_CLIENTS, LESS_WORK, RECIPES, SMALLER, data_root, elsewhere, quick_pictures

from lightning_fl.cli import main

__all__ = ["data_root", "elsewhere", "quick_pictures"]

_MOLECULES = ("--model.hidden_dim", "4", "--data.source", "real")
#: As those of graphs, networks that on a CPU take a faster path of our own, which adds in another order.
_ANOTHER_PATH = {"fedbn_digit_domains", "fedavg_cifar10"}
#: Recipe and what else is asked for; the first few are run everywhere, the others with the slow tests.
QUICK: tuple[tuple[str, ...], ...] = (
    ("fedavg_digits",),
    ("fedavg_digits", "--trainer.stacked_clients", "4"),
    ("drflm_esol", *_MOLECULES, "--trainer.callbacks+=ForestReference"),
    ("drflm_adult",),
)
SLOW: tuple[tuple[str, ...], ...] = (
    *((f"{name}_digits",) for name in ("hcct", "dpfl", "fedcollab", "flsc", "pfedgraph", "pifl", "shapley")),
    *((f"{name}_digits",) for name in ("ditto", "apfl", "perfedavg", "pfedme", "fedrep", "fedsoft", "knnper")),
    *((f"{name}_digits",) for name in ("scaffold", "fedprox", "fednova", "fedadam", "qfedavg", "afl", "finetune")),
    ("fedbn_digit_domains",),
    ("fedavg_cifar10",),  # augmented images
    ("fedavg_brca",),
    ("private_heads_chembl", *_MOLECULES),
    ("fedavg_esol", *_MOLECULES, "--model.encoder", "gat"),
)


def _results(accelerator: str, name: str, words: tuple[str, ...]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Metrics of a short run, and its last checkpoint's tensors on the host, by their places in the file."""
    root = Path(accelerator)
    asked = ["fit", "--config", "smaller.yaml", "--trainer.accelerator", accelerator, "--trainer.devices", "1"]
    asked += ["--trainer.default_root_dir", str(root), "--trainer.max_rounds", "2"]
    more = SMALLER.get(name) or ([] if name.startswith("pifl") else SMALLER.get(name.partition("_")[2], []))
    assert main([*asked, *more, *words]) == 0
    (summary,) = root.rglob("summary.json")
    tensors: dict[str, Any] = {}
    for path in sorted(root.rglob("last.ckpt")):
        _tensors_in(torch.load(path, map_location="cpu", weights_only=False), "", tensors)
    return json.loads(summary.read_text())["metrics"], tensors


def _numbers(value: Any, place: str = "") -> dict[str, float]:
    if isinstance(value, dict):
        return {k: v for key, one in value.items() for k, v in _numbers(one, f"{place}/{key}").items()}
    return {place: value} if isinstance(value, int | float) else {}


def _tensors_in(value: Any, place: str, found: dict[str, Any]) -> None:
    if isinstance(value, torch.Tensor):
        found[place] = value
    elif isinstance(value, dict):
        for key, one in value.items():
            _tensors_in(one, f"{place}/{key}", found)
    elif isinstance(value, list | tuple):
        for key, one in enumerate(value):
            _tensors_in(one, f"{place}/{key}", found)


@pytest.mark.filterwarnings("ignore:.*is not the file that card:UserWarning")
@pytest.mark.parametrize(
    "words", [*QUICK, *(pytest.param(words, marks=pytest.mark.slow) for words in SLOW)], ids=" ".join
)
def test_a_recipe_has_the_results_of_the_cpu(
    words: tuple[str, ...], quick_pictures: None, capsys: pytest.CaptureFixture[str]
) -> None:
    name, *more = words
    text = RECIPES[name].read_text()
    for before, after in LESS_WORK.items():
        text = re.sub(before, after, text)
    for before, after in FEWER_CLIENTS.get(name, {}).items():
        text = text.replace(before, after)
    Path("smaller.yaml").write_text(text)
    on_host, of_host = _results("cpu", name, tuple(more))
    with StandIn() as standin:
        on_device, of_device = _results("cuda", name, tuple(more))
    assert not standin.refusals
    assert standin.waits  # it did run there
    assert list(of_device) == list(of_host)
    if "model.hidden_dim" in "".join(more) or name in _ANOTHER_PATH:
        assert _numbers(on_device) == pytest.approx(_numbers(on_host), rel=1e-3, abs=1e-4, nan_ok=True)
        return
    assert on_device == on_host
    different = [place for place, value in of_host.items() if not torch.equal(value, of_device[place])]
    # The device has a generator of its own, which a checkpoint keeps; the CPU's is another.
    assert [place for place in different if "rng" not in place and "random" not in place] == []
