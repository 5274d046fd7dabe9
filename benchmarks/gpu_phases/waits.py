"""Where the host waits for the device: torch's own warnings, by the innermost line of the package."""

import traceback
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from gpu_phases.common import Arm, Options, Row, fit, has
from gpu_phases.stand_in import waits_so_far

_SHOWN = 12


def _waits(task: str, settings: dict[str, Any], options: Options) -> Iterator[Row]:
    name = f"{task}{''.join(f', {key}={value}' for key, value in settings.items())}"
    if options.device != "cuda":
        yield Row(name, "not run", note="torch counts waits for CUDA devices only")
        return
    if task == "gnn" and not has("torch_geometric"):
        yield Row(name, "not run", note="needs torch_geometric")
        return
    fit(options, task, 1, **settings)  # first calls wait for what is made once
    found: Counter[str] = Counter()
    if options.stand_in:
        before = waits_so_far()
        trainer, _ = fit(options, task, 3, **settings)
        found = waits_so_far() - before
    else:
        with _noting(found):
            trainer, _ = fit(options, task, 3, **settings)
    steps = sum(state.global_step for state in trainer.federation.client_states.values())
    turns = 3 * trainer.num_clients
    total = sum(found.values())
    yield Row(f"{name}: waits", total, note=f"{steps} steps in {turns} turns")
    for place, count in found.most_common(_SHOWN):
        yield Row(place, count, note=f"{count / steps:.2f} a step, {count / turns:.2f} a turn")


@contextmanager
def _noting(found: Counter[str]) -> Iterator[None]:
    """Count torch's warnings of waits."""

    def noted(message: Any, *_: Any, **__: Any) -> None:
        if "synchroniz" in str(message):
            found[_place()] += 1

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = noted
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode("default")


def _place() -> str:
    frames = [frame for frame in traceback.extract_stack() if "/lightning_fl/" in frame.filename]
    if not frames:
        return "elsewhere"
    return f"{frames[-1].filename.rpartition('/lightning_fl/')[2]}:{frames[-1].lineno}"


PARALLEL = True
ARMS: dict[str, Arm] = {
    "mlp": partial(_waits, "mlp", {}),
    "varied": partial(_waits, "varied", {}),
    "gnn": partial(_waits, "gnn", {}),
    "stacked": partial(_waits, "lenet", {"stacked_clients": 16}),
}
