"""Which settings give the same bits, and how far the others are from each other."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from gpu_phases.common import Arm, Options, Row, Varied, digest, fit, has, supports
from lightning_fl import FederatedTrainer


def _distance(first: FederatedTrainer, second: FederatedTrainer) -> str:
    pairs = [(one.cpu(), second.models[0].vectors[dtype].cpu()) for dtype, one in first.models[0].floating()]
    return f"{max(float((one - other).abs().max()) for one, other in pairs):.1e}"


def _twice(task: str, options: Options) -> Iterator[Row]:
    if task == "gnn" and not has("torch_geometric"):
        yield Row(task, "not run", note="needs torch_geometric")
        return
    for deterministic in (False, True):
        try:
            runs = [fit(options, task, 2, deterministic=deterministic)[0] for _ in range(2)]
        except Exception as error:
            yield Row(f"{task}, deterministic={deterministic}", f"{type(error).__name__}: {error}"[:200], "runs")
            continue
        same = digest(runs[0]) == digest(runs[1])
        yield Row(f"{task} twice, deterministic={deterministic}", _word(same), "same", _distance(*runs))
        if options.device != "cpu" and not deterministic:
            on_cpu = fit(Options("cpu", options.tiny), task, 2)[0]
            yield Row(f"{task}, largest difference to a CPU", _distance(runs[0], on_cpu))


def _word(same: bool) -> str:
    return "same" if same else "different"


def _options(options: Options) -> Iterator[Row]:
    plain = fit(options, "varied", 3)[0]
    for name in ("fused_optimizers", "stacked_clients"):
        if not supports(name):
            continue
        if name == "stacked_clients":
            module = {"module": _without_draws()}
            first, second = (
                fit(options, "varied", 3, **module)[0],
                fit(options, "varied", 3, stacked_clients=4, module=_without_draws())[0],
            )
        else:
            first, second = plain, fit(options, "varied", 3, **{name: True})[0]
        yield Row(f"{name} against plain", _word(digest(first) == digest(second)), "", _distance(first, second))


def _without_draws() -> Varied:
    torch.manual_seed(7)
    return Varied(dropout=0.0)


def _tf32(options: Options) -> Iterator[Row]:
    if options.device != "cuda":
        yield Row("TF32 in convolutions", "not run", note="CPUs have none")
        return
    runs = []
    for allowed in (True, False):
        torch.backends.cudnn.allow_tf32 = allowed
        runs.append(fit(options, "varied", 2, module=_without_draws())[0])
    yield Row("TF32 in convolutions against none, largest difference", _distance(*runs))


def _processes(options: Options) -> Iterator[Row]:
    """Ranks run this script again, arm and all: a lone run and one of two processes on one device."""
    if options.stand_in:
        yield Row("two processes on one device", "not run", note="the software device knows one process")
        return
    shared: dict[str, Any] = {"devices": 2} if options.device == "cpu" else {"processes_per_device": 2}
    if not all(map(supports, shared)):
        yield Row("two processes on one device", "not run", note="the trainer has no processes_per_device")
        return
    two = fit(options, "varied", 2, module=_without_draws(), **shared)[0]
    if two.is_global_zero:
        yield Row("two processes on one device", digest(two), note=f"{two.fabric.world_size} processes")


def _one(options: Options) -> Iterator[Row]:
    one = fit(options, "varied", 2, module=_without_draws())[0]
    yield Row("one process on one device", digest(one), "that of two processes")


PARALLEL = True
ARMS: dict[str, Arm] = {
    **{task: partial(_twice, task) for task in ("mlp", "varied", "gnn")},
    "options": _options,
    "TF32": _tf32,
    "one process": _one,
    "two processes": _processes,
}
