"""Averaging models against copying them: time per client as the model grows.

    uv run --group bench python benchmarks/aggregation.py [--parameters 60000 1000000 10000000] [--threads 1 2]

Every arm goes through the same clients' float32 vectors and all arms take turns within each repeat; ratios are taken
within a repeat, and their median is printed. "Copy" is ``buffer.copy_(weights)`` for each client, all into one buffer;
"copy, a buffer each" writes to as many buffers as there are vectors. An arm that averages makes its sum, adds every
client and takes the value, as a round does. As many distinct vectors as take 512 MiB (40 at most) stand for the clients
in turn, so that large models come from memory and not from a cache.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

from lightning_fl.engine.weights.flat import Weights
from lightning_fl.engine.weights.weighted_sum import WeightedSum

BYTES_AT_HAND = 512 * 2**20
#: Models that are stacked, or handed over together, at a time.
TOGETHER = 10
COPY = "copy"


def arms(num_parameters: int, num_clients: int) -> dict[str, Callable[[], object]]:
    """What is timed, each for all clients."""
    draws = torch.Generator().manual_seed(0)
    start = 0.05 * torch.randn(num_parameters, generator=draws)
    distinct = max(TOGETHER, min(40, BYTES_AT_HAND // (4 * num_parameters)))
    models = [start + 0.01 * torch.randn(num_parameters, generator=draws) for _ in range(distinct)]
    clients = [models[i % distinct] for i in range(num_clients)]
    buffers = [torch.empty_like(model) for model in models]
    shares = (torch.arange(num_clients) + 1.0) / sum(range(1, num_clients + 1))
    reference = Weights({torch.float32: start})

    def copy() -> None:
        for model in clients:
            buffers[0].copy_(model)

    def copy_each() -> None:
        for i, model in enumerate(clients):
            buffers[i % distinct].copy_(model)

    def stream() -> Tensor:
        total = torch.zeros_like(start)
        for model, share in zip(clients, shares.tolist(), strict=True):
            total.add_(model, alpha=share)
        return total

    def stack() -> Tensor:
        total = torch.zeros_like(start)
        for first in range(0, num_clients, TOGETHER):
            part = slice(first, first + TOGETHER)
            total += shares[part] @ torch.stack(clients[part])
        return total

    def one_by_one() -> Weights:
        total = WeightedSum(reference)
        for model, share in zip(clients, shares.tolist(), strict=True):
            total.add_(Weights({torch.float32: model}), share)
        return total.value(1.0)

    def at_hand() -> Weights:
        total = WeightedSum(reference)
        total.add_all_([(Weights({torch.float32: m}), s) for m, s in zip(clients, shares.tolist(), strict=True)])
        return total.value(1.0)

    return {
        COPY: copy,
        "copy, a buffer each": copy_each,
        "float32, one after another": stream,
        f"float32, torch.stack of {TOGETHER}": stack,
        "WeightedSum, one after another": one_by_one,
        "WeightedSum, all at hand": at_hand,
    }


def measure(of_size: dict[str, Callable[[], object]], num_clients: int, repeats: int) -> dict[str, list[float]]:
    """Seconds per client of every arm in every repeat, after one that warms up."""
    seconds: dict[str, list[float]] = {name: [] for name in of_size}
    for repeat in range(repeats + 1):
        for name, arm in of_size.items():
            began = time.perf_counter()
            arm()
            if repeat:
                seconds[name].append((time.perf_counter() - began) / num_clients)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parameters", type=int, nargs="+", default=[60_000, 1_000_000, 10_000_000])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=7)
    arguments = parser.parse_args()
    print("| parameters | threads | arm | ms per client | x copy (range) |\n|---|---|---|---|---|")
    for num_parameters in arguments.parameters:
        of_size = arms(num_parameters, arguments.clients)
        for threads in arguments.threads:
            torch.set_num_threads(threads)
            for name, times in (seconds := measure(of_size, arguments.clients, arguments.repeats)).items():
                ratios = [a / b for a, b in zip(times, seconds[COPY], strict=True)]
                print(
                    f"| {num_parameters:,} | {threads} | {name} | {1e3 * statistics.median(times):.4g}"
                    f" | {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f}) |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
