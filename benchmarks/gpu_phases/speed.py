"""Ratios of rounds: against bare loops on the same device, and of the options for speed against each other."""

import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import overhead
import torch

from gpu_phases.common import TASKS, Arm, Options, Row, cores, fit, has, supports, synchronize
from lightning_fl import ConfigurationError


def _count_work_that_is_done(options: Options) -> None:
    """Rounds of all arms end when the device has done what it was asked for."""

    def now() -> float:
        synchronize(options)
        return time.perf_counter()

    overhead.clock = now


def _gap(ends: list[float]) -> float:
    """Seconds of a round after the first, in the median."""
    return statistics.median(after - before for before, after in itertools.pairwise(ends))


def _bare(task: str, options: Options, rounds: int) -> float:
    """A round of a loop by hand, on batches that were made once and lie on the device."""
    device, data = options.torch_device, TASKS[task].data(options.tiny)
    torch.manual_seed(7)
    if task == "gnn":
        from torch_geometric.data import Batch

        chunks = [[data.dataset[int(i)] for i in share] for share in data.shares]
        cut: Any = [
            [Batch.from_data_list(one[at : at + 32]).to(device) for at in range(0, len(one), 32)] for one in chunks
        ]
    else:
        tensors = [tensor.to(device) for tensor in data.dataset.tensors]  # type: ignore[attr-defined]
        shares = [share.to(device) for share in data.shares]
        cut = [list(zip(*(one[share].split(data.batch_size) for one in tensors), strict=True)) for share in shares]
    ends, _ = overhead.bare(TASKS[task].module().to(device), lambda client, _: cut[client], len(cut), rounds)
    return _gap(ends)


def _against_bare(task: str, options: Options) -> Iterator[Row]:
    if task == "gnn" and not has("torch_geometric"):
        yield Row(task, "not run", note="needs torch_geometric")
        return
    _count_work_that_is_done(options)
    ratios, times = [], []
    for repeat in range(2 if options.tiny else 4):
        bare, own = _bare(task, options, 3), _gap(fit(options, task, 3)[1])
        if repeat:
            ratios.append(own / bare)
            times.append(own)
    yield Row(f"{task}: round against a bare loop", f"{statistics.median(ratios):.2f}", "1.0", _ms(times))


def _ms(times: list[float]) -> str:
    return f"{1e3 * statistics.median(times):.2f} ms a round"


_ARMS: dict[str, dict[str, Any]] = {
    "one after another": {},
    "fused": {"fused_optimizers": True},
    "stacked": {"stacked_clients": 100},
    "stacked, fused": {"stacked_clients": 100, "fused_optimizers": True},
    "reduce-overhead": {"compile": {"mode": "reduce-overhead"}},
}


def _hundred(task: str, options: Options) -> Iterator[Row]:
    """100 clients: a bare loop's round over that of each option."""
    _count_work_that_is_done(options)
    seconds: dict[str, list[float]] = {"bare": []}
    refused: dict[str, str] = {}
    for repeat in range(2 if options.tiny else 3):
        took = _bare(task, options, 3)
        if repeat:
            seconds["bare"].append(took)
        for name, settings in _ARMS.items():
            if options.stand_in and "compile" in settings:
                continue
            if name in refused or not all(map(supports, settings)):
                continue
            try:
                took = _gap(fit(options, task, 3, **settings)[1])
            except ConfigurationError as error:
                refused[name] = str(error)[:160]
                continue
            if repeat:
                seconds.setdefault(name, []).append(took)
    yield Row(f"{task}: bare loop", _ms(seconds["bare"]))
    for name, times in seconds.items():
        if name != "bare":
            times_faster = statistics.median(b / t for b, t in zip(seconds["bare"], times, strict=True))
            aim = "10" if name.startswith("stacked") else ""
            yield Row(f"{task}: {name}, times faster than the bare loop", f"{times_faster:.2f}", aim, _ms(times))
    for name, reason in refused.items():
        yield Row(f"{task}: {name}", "refused", note=reason)


def _processes(task: str, options: Options) -> Iterator[Row]:
    """The same rounds by processes on the CPU; ranks run this script again, arm and all."""
    devices = 2 if options.tiny else min(cores(), 16)
    trainer, ends = fit(options, task, 3, accelerator="cpu", devices=devices)
    if trainer.is_global_zero:
        yield Row(f"{task}: {devices} processes on the CPU", _ms([_gap(ends)]))


def _optimizers(options: Options) -> Iterator[Row]:
    """Steps on one vector: torch's own choice against its fused kernel."""
    for size in (60_000,) if options.tiny else (60_000, 1_000_000, 10_000_000):
        for kind in (torch.optim.SGD, torch.optim.Adam):
            took = {}
            for fused in (None, True):
                vector = torch.nn.Parameter(torch.ones(size, device=options.torch_device))
                vector.grad = torch.ones_like(vector)
                more = {"momentum": 0.9} if kind is torch.optim.SGD else {}
                optimizer = kind([vector], lr=1e-3, fused=fused, **more)  # type: ignore[arg-type]
                took[fused] = _time(optimizer.step, options)
            ratio = f"{took[True] / took[None]:.2f}"
            yield Row(f"{kind.__name__} on {size:,}: fused", ratio, "below 1", f"{1e6 * took[None]:.0f} us plain")


def _time(step: Callable[[], Any], options: Options) -> float:
    for _ in range(3 if options.tiny else 20):
        step()
    synchronize(options)
    count = 5 if options.tiny else 100
    began = time.perf_counter()
    for _ in range(count):
        step()
    synchronize(options)
    return (time.perf_counter() - began) / count


ARMS: dict[str, Arm] = {
    "gnn": partial(_against_bare, "gnn"),
    "lenet": partial(_against_bare, "lenet"),
    "100 mlp": partial(_hundred, "mlp"),
    "100 lenet": partial(_hundred, "lenet"),
    "mlp on processes": partial(_processes, "mlp"),
    "lenet on processes": partial(_processes, "lenet"),
    "optimizers": _optimizers,
}
