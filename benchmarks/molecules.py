"""What the package's own molecule models cost: rounds of a GCN, and SMILES read, against the ways they replace.

    uv run --group bench python benchmarks/molecules.py [rounds|recipe|layers|smiles FILE] [--repeats 7]

Arms run one after another inside every repeat, in one process with one thread. Printed are the ratio of the fastest
rounds, and the median and the range of the ratios within a repeat. ``rounds``: 3 clients of ESOL-like stand-ins, 5
steps of 32, loggers and checkpoints as by default. ``recipe``: the round of ``drflm_esol_paper`` with its sampling,
mixup and validation. ``layers``: forward and backward passes alone, over batch sizes and sizes of molecules.
``smiles``: a text file with a SMILES a line, by 1, 2 and more processes. The arm "PyG's layers" is the same model whose
encoder and readout are PyG's.
"""

import argparse
import itertools
import logging
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import overhead
import torch
import torch.nn.functional as F
from lightning.pytorch import LightningModule
from overhead import RoundTimes, bare
from torch import Tensor, nn
from torch_geometric.loader import DataLoader as GraphLoader
from torch_geometric.nn import GCN as PyGGCN
from torch_geometric.nn.aggr import SumAggregation
from workloads import Clients, molecules

from lightning_fl import FederatedTrainer
from lightning_fl.callbacks import DROClientSampling, LocalMixup
from lightning_fl.data import MoleculeNet, Scaffold
from lightning_fl.data.molecules.featurizer import ATOM_DIM, encode_smiles
from lightning_fl.models import MoleculeModel
from lightning_fl.models.gcn import GCN
from lightning_fl.models.segments import molecule_matrix

Arm = Callable[[], tuple[list[float], float]]

HIDDEN, LAYERS = 128, 3


class PyGModel(MoleculeModel):
    """The model with PyG's own layers."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        plain = PyGGCN(ATOM_DIM, HIDDEN, LAYERS)
        plain.load_state_dict(self.encoder.state_dict())
        self.encoder, self.readout = plain, SumAggregation()


class BareModel(LightningModule):
    """As one would write it by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.readout = PyGGCN(ATOM_DIM, HIDDEN, LAYERS), SumAggregation()
        self.head = nn.Sequential(nn.Linear(HIDDEN, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 1))

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        graphs = self.readout(self.encoder(batch.x, batch.edge_index), index=batch.batch, dim_size=batch.num_graphs)
        return F.mse_loss(self.head(graphs), batch.y)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01)


def weights_sum(module: nn.Module) -> float:
    """Sum of the absolute parameters: arms that did the same steps end with the same, within rounding."""
    return sum(float(value.detach().double().abs().sum()) for value in module.parameters())


def ours(module: MoleculeModel, data: Any, rounds: int, **settings: Any) -> tuple[list[float], float]:
    """Ends of rounds, and the sum of the weights."""
    times = RoundTimes()
    callbacks = [times, *settings.pop("callbacks", [])]
    with tempfile.TemporaryDirectory() as root:
        trainer = FederatedTrainer(
            max_rounds=rounds,
            optimizer_state="fresh",
            callbacks=callbacks,
            default_root_dir=root,
            enable_progress_bar=False,
            **settings,
        )
        trainer.fit(module, data)
    return times.ends, weights_sum(module)


def fresh(kind: type[MoleculeModel], standardize_targets: bool = False) -> MoleculeModel:
    torch.manual_seed(7)
    return kind(hidden_dim=HIDDEN, num_layers=LAYERS, readout="sum", standardize_targets=standardize_targets)


def rounds_arms(rounds: int) -> dict[str, Arm]:
    dataset, num_clients, batch_size, steps = molecules(1128), 3, 32, 5
    graphs = [dataset.get(int(i)) for i in dataset.indices()]
    shares = [share.tolist() for share in torch.arange(1128).chunk(num_clients)]
    loaders = [GraphLoader([graphs[i] for i in share], batch_size=batch_size, shuffle=True) for share in shares]

    def take(client: int, _: int) -> Iterable[Any]:
        for _, batch in zip(range(steps), loaders[client], strict=False):
            yield batch

    def run(kind: type[MoleculeModel], shuffle: bool) -> Arm:
        return lambda: ours(fresh(kind), Clients(dataset, num_clients, batch_size, shuffle), rounds, local_steps=steps)

    return {
        "bare loop, PyG's DataLoader, shuffled, PyG's layers": lambda: bare(BareModel(), take, num_clients, rounds),
        "lightning-fl, PyG's layers, shuffled": run(PyGModel, True),
        "lightning-fl, shuffled": run(MoleculeModel, True),
        "lightning-fl, PyG's layers": run(PyGModel, False),
        "lightning-fl": run(MoleculeModel, False),
    }


def recipe_arms(rounds: int) -> dict[str, Arm]:
    def run(kind: type[MoleculeModel]) -> Arm:
        def arm() -> tuple[list[float], float]:
            data = MoleculeNet(name="esol", partitioner=Scaffold(num_clients=3), split=[0.8, 0.1, 0.1], batch_size=32)
            callbacks = [
                DROClientSampling(step_size=0.001, floor=0.0, num_loss_batches=1),
                LocalMixup(alpha=0.1, layer="readout"),
            ]
            return ours(
                fresh(kind, standardize_targets=True),
                data,
                rounds,
                local_steps=5,
                check_val_every_n_rounds=1,
                callbacks=callbacks,
            )

        return arm

    return {"lightning-fl, PyG's layers": run(PyGModel), "lightning-fl": run(MoleculeModel)}


def measure(title: str, arms: dict[str, Arm], repeats: int) -> None:
    """Run the arms and print a Markdown table with ratios to the first two."""
    per_round: dict[str, list[float]] = {name: [] for name in arms}
    fastest: dict[str, float] = dict.fromkeys(arms, float("inf"))
    sums: dict[str, float] = {}
    for repeat in range(repeats + 1):
        for name, arm in arms.items():
            ends, sums[name] = arm()
            if repeat:  # the first one warms up
                gaps = [b - a for a, b in itertools.pairwise(ends)]
                per_round[name].append(statistics.median(gaps))
                fastest[name] = min(fastest[name], *gaps)
    floors = list(arms)[:2]
    head = " | ".join(f"x {name}, fastest rounds | median (range)" for name in floors)
    print(f"\n### {title}\n\n| arm | ms per round | {head} | sum of weights |\n|{'---|' * 7}")
    for name, times in per_round.items():
        shown = []
        for other in floors:
            ratios = [a / b for a, b in zip(times, per_round[other], strict=True)]
            shown.append(f"{fastest[name] / fastest[other]:.2f}")
            shown.append(f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")
        print(f"| {name} | {1e3 * statistics.median(times):.2f} | {' | '.join(shown)} | {sums[name]:.4f} |")


def layers(repeats: int) -> None:
    """Forward and backward passes of encoder and readout."""
    print("\n| molecules | atoms each | PyG, ms | ratio | evaluation alone |\n|---|---|---|---|---|")
    for batch_size, atoms in itertools.product((32, 128, 512), (5, 13, 26, 60, 100)):
        chain = torch.stack([torch.arange(atoms - 1), torch.arange(1, atoms)])
        ring = torch.cat([chain, torch.stack([torch.arange(0, atoms - 5, 6), torch.arange(5, atoms, 6)])], dim=1)
        both = torch.stack([ring, ring.flip(0)], dim=2).reshape(2, -1)
        edges = torch.cat([both + atoms * i for i in range(batch_size)], dim=1)
        index = torch.arange(batch_size).repeat_interleave(atoms)
        x = torch.rand(batch_size * atoms, ATOM_DIM)
        plain, own, pool = PyGGCN(ATOM_DIM, HIDDEN, LAYERS), GCN(ATOM_DIM, HIDDEN, LAYERS), SumAggregation()
        ways: dict[str, Callable[[], Tensor]] = {
            "plain": lambda: pool(plain(x, edges), index=index, dim_size=batch_size),  # noqa: B023
            "own": lambda: own.read_out(x, edges, index, molecule_matrix(index, batch_size)),  # noqa: B023
        }
        times: dict[tuple[str, bool], list[float]] = {(name, learn): [] for name in ways for learn in (True, False)}
        for _ in range(3 * repeats):
            for (name, learn), spent in times.items():
                begin = time.perf_counter()
                with torch.set_grad_enabled(learn):
                    result = ways[name]()
                    if learn:
                        result.square().mean().backward()
                spent.append(time.perf_counter() - begin)
        medians = {key: 1e3 * statistics.median(spent) for key, spent in times.items()}
        ratios = [medians["own", learn] / medians["plain", learn] for learn in (True, False)]
        print(f"| {batch_size} | {atoms} | {medians['plain', True]:.2f} | {ratios[0]:.2f} | {ratios[1]:.2f} |")


def smiles(file: Path, repeats: int) -> None:
    """Molecules read by several processes."""
    texts = file.read_text().split()[:10000]
    times: dict[int, list[float]] = {workers: [] for workers in (1, 2, 4)}
    for _ in range(repeats):
        for workers, spent in times.items():
            begin = time.perf_counter()
            encode_smiles(texts, workers=workers)
            spent.append(time.perf_counter() - begin)
    for workers, spent in times.items():
        print(f"{len(texts):,} molecules, {workers} processes: {statistics.median(spent):.2f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=["rounds", "recipe", "layers", "smiles"])
    parser.add_argument("file", type=Path, nargs="?", help="of SMILES, for smiles")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--rounds", type=int, default=30, help="per arm and repeat")
    parser.add_argument("--cpu-time", action="store_true", help="process time of rounds, on a busy machine")
    arguments = parser.parse_args()
    if arguments.cpu_time:
        overhead.clock = time.process_time
    warnings.filterwarnings("ignore")
    logging.getLogger("lightning").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    if arguments.task == "rounds":
        measure("3 clients, 5 steps of 32", rounds_arms(arguments.rounds), arguments.repeats)
    elif arguments.task == "recipe":
        measure("The round of drflm_esol_paper", recipe_arms(arguments.rounds), arguments.repeats)
    elif arguments.task == "layers":
        layers(arguments.repeats)
    elif arguments.file is None:
        parser.error("smiles: name a file with a SMILES a line.")
    else:
        smiles(arguments.file, arguments.repeats)


if __name__ == "__main__":
    main()
