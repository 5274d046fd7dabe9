"""``pytest -p gpu_phases.force_device``: in-process tests that ask for one CPU device get $FORCED_DEVICE instead."""

import os
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch


def pytest_configure() -> None:
    """Put other arguments into every trainer's Fabric; compare tensors whatever their device."""
    import lightning_fl.trainer.trainer as module

    device, made = os.environ["FORCED_DEVICE"], module.make_fabric

    def make(trainer: Any, strategy: Any) -> Any:
        names = ("accelerator", "devices", "num_nodes", "precision", "plugins", "processes_per_device")
        asked = SimpleNamespace(**{name: getattr(trainer, name) for name in names})
        if str(asked.devices) in ("1", "auto") and asked.num_nodes == 1:
            asked.accelerator, asked.devices = device, 1
        return made(asked, strategy)

    module.make_fabric = make
    torch.testing.assert_close = _anywhere(torch.testing.assert_close)


def _anywhere(compare: Callable[..., None]) -> Callable[..., None]:
    def assert_close(actual: Any, expected: Any, **options: Any) -> None:
        compare(actual, expected, **{"check_device": False, **options})

    return assert_close
