"""``pytest -p gpu_phases.force_device``: in-process tests that ask for one CPU device get $FORCED_DEVICE instead."""

import os
from collections.abc import Callable
from typing import Any

import torch


def pytest_configure() -> None:
    """Put other arguments into every trainer's Fabric; compare tensors whatever their device."""
    import lightning_fl.trainer.trainer as trainer

    device, made = os.environ["FORCED_DEVICE"], trainer.make_fabric

    def make(strategy: Any, accelerator: str, devices: Any, num_nodes: int, *rest: Any, **options: Any) -> Any:
        if str(devices) in ("1", "auto") and num_nodes == 1:
            accelerator, devices = device, 1
        return made(strategy, accelerator, devices, num_nodes, *rest, **options)

    trainer.make_fabric = make
    torch.testing.assert_close = _anywhere(torch.testing.assert_close)


def _anywhere(compare: Callable[..., None]) -> Callable[..., None]:
    def assert_close(actual: Any, expected: Any, **options: Any) -> None:
        compare(actual, expected, **{"check_device": False, **options})

    return assert_close
