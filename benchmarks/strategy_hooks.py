"""What a strategy's hooks cost that do nothing: time per round against FedAvg's, each hook defined by itself.

    uv run --group bench python benchmarks/strategy_hooks.py [--repeats 9] [--cpu-time] [--strategies]

The GNN of ``overhead.py`` without loggers and checkpoints (3 clients, 5 steps a round), whose rounds are short. Arms
run by turns in one process with one thread; ratios are taken within a repeat, their median is printed with the least
and the largest. All arms end with the same weights. With ``--strategies`` the arms are the shipped ones instead.
"""

import argparse
import itertools
import logging
import statistics
import time
import warnings
from collections.abc import Callable
from typing import Any

import overhead
import torch
from workloads import Clients, GraphModule, molecules

from lightning_fl import strategies
from lightning_fl.strategies import ClientTurn, ClientUpdate, FedAvg, ModelUpdate

#: Without FedFA, which measures by a validation_step that this module does not have.
SHIPPED = (
    *("FedAvg", "FedProx", "FedNova", "SCAFFOLD", "FedAvgM", "FedAdagrad", "FedAdam", "FedYogi", "QFedAvg", "MaxFL"),
    *("Ditto", "APFL", "PerFedAvg", "PFedMe"),
)


def hooks() -> dict[str, Any]:
    """Every hook, doing nothing."""

    def client_loss(self: FedAvg, loss: torch.Tensor, module: torch.nn.Module) -> torch.Tensor:
        return loss

    def begin_client(self: FedAvg, turn: ClientTurn) -> None: ...

    def correct_gradient_(self: FedAvg, turn: ClientTurn, gradient: Any, weights: Any) -> None: ...

    def end_client(self: FedAvg, turn: ClientTurn, weights: Any) -> None: ...

    def client_update(self: FedAvg, turn: ClientTurn, weights: Any) -> ClientUpdate:
        return ClientUpdate(weights)

    def aggregate(self: FedAvg, update: ModelUpdate) -> Any:
        return update.average

    def evaluation_weights(self: FedAvg, turn: ClientTurn) -> Any:
        return turn.start

    found = (client_loss, begin_client, correct_gradient_, end_client, client_update, aggregate, evaluation_weights)
    return {hook.__name__: hook for hook in found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--cpu-time", action="store_true", help="process time instead of wall time, on a busy machine")
    parser.add_argument("--strategies", action="store_true", help="the shipped strategies with their own defaults")
    arguments = parser.parse_args()
    overhead.clock = time.process_time if arguments.cpu_time else time.perf_counter
    warnings.filterwarnings("ignore")
    logging.getLogger("lightning").setLevel(logging.ERROR)
    torch.set_num_threads(1)

    dataset = molecules(1128)
    node_dim = dataset.get(int(next(iter(dataset.indices())))).x.shape[1]

    def arm(make: Callable[[], Any]) -> tuple[float, float]:
        torch.manual_seed(7)
        module, data = GraphModule(node_dim), Clients(dataset, 3, 32, False)
        strategy = make()
        settings = {"local_steps": 5, "logger": False, "enable_checkpointing": False}
        ends, checksum = overhead.ours(module, data, arguments.rounds, strategy=strategy, **settings)
        return 1e3 * statistics.median(after - before for before, after in itertools.pairwise(ends)), checksum

    every = hooks()
    owns = {"FedAvg": {}, "FedAvg again": {}, **{name: {name: hook} for name, hook in every.items()}, "all": every}
    arms = {name: type("Neutral", (FedAvg,), own) for name, own in owns.items()}
    if arguments.strategies:
        arms = {name: getattr(strategies, name) for name in SHIPPED}
    times: dict[str, list[float]] = {name: [] for name in arms}
    sums = set()
    for repeat in range(arguments.repeats + 1):
        for name in list(arms) if repeat % 2 else list(arms)[::-1]:
            milliseconds, checksum = arm(arms[name])
            sums.add(checksum)
            if repeat:  # the first one warms up
                times[name].append(milliseconds)
    print("| hook | ms per round | x FedAvg | least | largest |\n|---|---|---|---|---|")
    for name, of_arm in times.items():
        ratios = [one / plain for one, plain in zip(of_arm, times["FedAvg"], strict=True)]
        print(
            f"| {name} | {statistics.median(of_arm):.2f} | {statistics.median(ratios):.3f} | {min(ratios):.3f} |"
            f" {max(ratios):.3f} |"
        )
    if not arguments.strategies:
        print(f"\nsame weights: {'yes' if len(sums) == 1 else 'NO'}")


if __name__ == "__main__":
    main()
