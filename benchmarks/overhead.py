"""What the engine costs beyond the arithmetic: time per round against bare loops that do the same local steps.

    uv run --group bench python benchmarks/overhead.py [cnn|gnn|all] [--repeats 5]

Arms run one after another inside every repeat, in one process with one thread; ratios are taken within a repeat and
their median is printed, so that a busy machine disturbs them little. All arms of a task end with the same weights
(the checksum column); the shuffled arm visits the same number of samples in another order.
"""

import argparse
import itertools
import logging
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.utils.data import DataLoader
from torch_geometric.data import Batch
from torch_geometric.loader import DataLoader as GraphLoader
from workloads import Clients, GraphModule, ImageModule, checksum, images, molecules

from lightning_fl import FederatedTrainer
from lightning_fl.callbacks import Callback

Arm = Callable[[], tuple[list[float], float]]


class RoundTimes(Callback):
    """Process time and wall time at the end of every round."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def on_round_end(self, trainer: FederatedTrainer) -> None:
        self.ends.append(clock())


clock = time.perf_counter


def bare(module: Any, batches_of: Callable[[int, int], Iterable[Any]], num_clients: int, rounds: int) -> Any:
    """FedAvg with equal clients as one would write it by hand."""
    shared = {name: value.clone() for name, value in module.state_dict().items()}
    ends = []
    for round_number in range(rounds):
        total = {name: torch.zeros_like(value) for name, value in shared.items()}
        for client in range(num_clients):
            module.load_state_dict(shared)
            optimizer = module.configure_optimizers()
            for batch in batches_of(client, round_number):
                optimizer.zero_grad()
                module.training_step(batch, 0).backward()
                optimizer.step()
            for name, value in module.state_dict().items():
                total[name] += value
        shared = {name: value / num_clients for name, value in total.items()}
        float(next(iter(shared.values())).sum())  # waits for a GPU
        ends.append(clock())
    module.load_state_dict(shared)
    return ends, checksum(module)


def ours(module: Any, data: Clients, rounds: int, **settings: Any) -> Any:
    """The same through the engine, with its default loggers and checkpoints."""
    times = RoundTimes()
    with tempfile.TemporaryDirectory() as root:
        trainer = FederatedTrainer(
            max_rounds=rounds,
            optimizer_state="fresh",
            callbacks=[times],
            default_root_dir=root,
            enable_progress_bar=False,
            **settings,
        )
        trainer.fit(module, data)
    return times.ends, checksum(module)


def cnn(rounds: int) -> dict[str, Arm]:
    """20 clients x 250 images, LeNet, batch 16, one epoch a round."""
    dataset, num_clients, batch_size = images(5000), 20, 16
    shares = torch.arange(5000).chunk(num_clients)
    loaders = [DataLoader(torch.utils.data.Subset(dataset, share.tolist()), batch_size=batch_size) for share in shares]
    cut = [
        list(zip(dataset.tensors[0][share].split(batch_size), dataset.tensors[1][share].split(batch_size), strict=True))
        for share in shares
    ]

    def fresh() -> ImageModule:
        torch.manual_seed(7)
        return ImageModule()

    return {
        "bare loop, DataLoader": lambda: bare(fresh(), lambda client, _: loaders[client], num_clients, rounds),
        "bare loop, batches cut once": lambda: bare(fresh(), lambda client, _: cut[client], num_clients, rounds),
        "lightning-fl": lambda: ours(fresh(), Clients(dataset, num_clients, batch_size, False), rounds),
        "lightning-fl, shuffled": lambda: ours(fresh(), Clients(dataset, num_clients, batch_size, True), rounds),
    }


def gnn(rounds: int) -> dict[str, Arm]:
    """3 clients x 376 molecules, GCN, batch 32, 5 steps a round."""
    dataset, num_clients, batch_size, steps = molecules(1128), 3, 32, 5
    graphs = [dataset.get(int(i)) for i in dataset.indices()]
    shares = [share.tolist() for share in torch.arange(1128).chunk(num_clients)]
    first = [[share[i * batch_size : (i + 1) * batch_size] for i in range(steps)] for share in shares]
    loaders = [GraphLoader(graphs, batch_sampler=batches) for batches in first]
    shuffled = [GraphLoader([graphs[i] for i in share], batch_size=batch_size, shuffle=True) for share in shares]
    cached = [[Batch.from_data_list([graphs[i] for i in batch]) for batch in batches] for batches in first]
    node_dim = graphs[0].x.shape[1]

    def fresh() -> GraphModule:
        torch.manual_seed(7)
        return GraphModule(node_dim)

    def take(client: int, _: int) -> Iterable[Any]:
        for _, batch in zip(range(steps), shuffled[client], strict=False):
            yield batch

    return {
        "bare loop, PyG DataLoader": lambda: bare(fresh(), lambda client, _: loaders[client], num_clients, rounds),
        "bare loop, PyG DataLoader, shuffled": lambda: bare(fresh(), take, num_clients, rounds),
        "bare loop, batches collated once": lambda: bare(fresh(), lambda c, _: cached[c], num_clients, rounds),
        "lightning-fl": lambda: ours(
            fresh(), Clients(dataset, num_clients, batch_size, False), rounds, local_steps=steps
        ),
        "lightning-fl, no loggers, no checkpoints": lambda: ours(
            fresh(),
            Clients(dataset, num_clients, batch_size, False),
            rounds,
            local_steps=steps,
            logger=False,
            enable_checkpointing=False,
        ),
        "lightning-fl, shuffled": lambda: ours(
            fresh(), Clients(dataset, num_clients, batch_size, True), rounds, local_steps=steps
        ),
    }


def measure(task: str, arms: dict[str, Arm], repeats: int, floor: str, loader: str) -> None:
    """Run the arms and print a Markdown table."""
    per_round: dict[str, list[float]] = {name: [] for name in arms}
    sums: dict[str, float] = {}
    for repeat in range(repeats + 1):
        for name, arm in arms.items():
            ends, sums[name] = arm()
            gaps = [after - before for before, after in itertools.pairwise(ends)]
            if repeat:  # the first one warms up
                per_round[name].append(statistics.median(gaps))
    print(f"\n### {task}\n\n| arm | ms per round | x {floor} | x {loader} | checksum |\n|---|---|---|---|---|")
    for name, times in per_round.items():
        ratios = [
            statistics.median(a / b for a, b in zip(times, per_round[other], strict=True)) for other in (floor, loader)
        ]
        print(
            f"| {name} | {1e3 * statistics.median(times):.2f} | {ratios[0]:.3f} | {ratios[1]:.3f} | {sums[name]:.4f} |"
        )


def main() -> None:
    global clock
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", nargs="?", default="all", choices=["cnn", "gnn", "all"])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--rounds", type=int, help="rounds per arm and repeat (10 for cnn, 40 for gnn)")
    parser.add_argument("--cpu-time", action="store_true", help="process time instead of wall time, on a busy machine")
    arguments = parser.parse_args()
    if arguments.cpu_time:
        clock = time.process_time
    warnings.filterwarnings("ignore")
    logging.getLogger("lightning").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    if arguments.task in ("cnn", "all"):
        arms = cnn(arguments.rounds or 10)
        measure("CNN: 20 clients x 250 images", arms, arguments.repeats, *list(arms)[1::-1])
    if arguments.task in ("gnn", "all"):
        arms = gnn(arguments.rounds or 40)
        names = list(arms)
        measure("GNN: 3 clients, 5 steps a round", arms, arguments.repeats, names[2], names[1])


if __name__ == "__main__":
    main()
