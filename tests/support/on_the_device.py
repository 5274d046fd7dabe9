"""A run on a CUDA device of software against the same run on the CPU: no mistake of devices, and the same bits."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from cuda_standin.device import StandIn

from lightning_fl.cli import main


def results(accelerator: str, root: Path, words: list[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """:func:`results_in` a folder after a run there that words ask for."""
    more = ["--trainer.accelerator", accelerator, "--trainer.devices", "1", "--trainer.default_root_dir", str(root)]
    assert main(["fit", "--config", "smaller.yaml", *more, *words]) == 0
    return results_in(root)


def results_in(root: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Metrics of the one run in a folder, and its last checkpoint's tensors by their places in the file."""
    (summary,) = root.rglob("summary.json")
    tensors: dict[str, Any] = {}
    for path in sorted(root.rglob("last.ckpt")):
        _tensors_in(torch.load(path, map_location="cpu", weights_only=False), "", tensors)
    return json.loads(summary.read_text())["metrics"], tensors


def assert_same_on_the_device(
    host: tuple[dict[str, Any], dict[str, Any]], words: list[str], another_path: bool
) -> None:
    """Run ``smaller.yaml`` on the device; its results are the CPU's.

    Args:
        host: the CPU's :func:`results`.
        words: what that run was asked for.
        another_path: whether the CPU takes a path of its own, which adds in another order.
    """
    on_host, of_host = host
    with StandIn() as standin:
        on_device, of_device = results("cuda", Path("on_the_device"), words)
    assert not standin.refusals
    assert standin.waits  # it did run there
    assert list(of_device) == list(of_host)
    if another_path:
        assert _numbers(on_device) == pytest.approx(_numbers(on_host), rel=1e-3, abs=1e-4, nan_ok=True)
        return
    assert on_device == on_host
    different = [place for place, value in of_host.items() if not torch.equal(value, of_device[place])]
    # The device has a generator of its own, which a checkpoint keeps; the CPU's is another.
    assert [place for place in different if "rng" not in place and "random" not in place] == []


def _numbers(value: Any, place: str = "") -> dict[str, float]:
    if isinstance(value, dict):
        return {k: v for key, one in value.items() for k, v in _numbers(one, f"{place}/{key}").items()}
    return {place: value} if isinstance(value, int | float) else {}


def _tensors_in(value: Any, place: str, found: dict[str, Any]) -> None:
    if isinstance(value, torch.Tensor):
        found[place] = value
    elif isinstance(value, dict | list | tuple):
        for key, one in value.items() if isinstance(value, dict) else enumerate(value):
            _tensors_in(one, f"{place}/{key}", found)
