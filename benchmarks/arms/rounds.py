"""What an arm tells the benchmark: when its imports and its rounds ended, and the weights it ended with.

Between rounds it waits for its next turn.
"""

import json
import os
import socket
import time
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from torch import nn

PACKAGES = ("torch", "torchvision", "torch-geometric", "lightning", "numpy", "flwr", "ray", "pfl")

_record: dict[str, Any] = {"imported": None, "begins": [], "ends": []}
_benchmark: list[socket.socket] = []


def imported() -> None:
    """To be called once the arm's imports are done."""
    _record["imported"] = time.monotonic()


def end_of_round() -> None:
    """To be called at the end of every round, in every process that goes on to the next one by itself."""
    _record["ends"].append(time.monotonic())
    if "BENCH_TURNS" in os.environ:
        if not _benchmark:
            _benchmark.append(socket.socket(socket.AF_UNIX))
            _benchmark[0].connect(os.environ["BENCH_TURNS"])
        _benchmark[0].sendall(b".")
        _benchmark[0].recv(1)
    _record["begins"].append(time.monotonic())


def finish(network: nn.Module) -> None:
    """Write the record, with the sum of the absolute weights; buffers do not count, not every peer averages them."""
    _record["checksum"] = sum(float(value.detach().double().abs().sum()) for value in network.parameters())
    _record["versions"] = dict(_versions(PACKAGES))
    Path(os.environ["BENCH_RECORD"]).write_text(json.dumps(_record))


def _versions(packages: Iterable[str]) -> Iterable[tuple[str, str]]:
    for package in packages:
        try:
            yield package, version(package)
        except PackageNotFoundError:
            continue
