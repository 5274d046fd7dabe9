"""The same federated training twice: by this package, and by a plain loop of PyG and torch judged by scikit-learn.

Molecules classified with gaps (Tox21 or BBBP), the same clients, splits and settings for both arms; weights, batches
and dropout are drawn by each arm's own random numbers. Printed is how many differences of the AUROC of a task and
client exceed two of their standard errors (Hanley and McNeil 1982, of both areas). Needs the measured file:
``lightning-fl datasets tox21``.


    uv run python benchmarks/plain_pyg.py --data tox21 --rounds 20 --seeds 0 1 2
"""

import argparse
import copy
import statistics
import tempfile
import warnings
from collections import defaultdict
from typing import Any

import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GCN, global_mean_pool

from lightning_fl import FederatedTrainer
from lightning_fl.callbacks import ModelCheckpoint
from lightning_fl.data import MoleculeNet, Scaffold
from lightning_fl.models import MoleculeModel

CLIENTS, WIDTH, LAYERS, DROPOUT, RATE, BATCH = 3, 128, 3, 0.2, 1e-3, 32
Areas = dict[tuple[int, int], tuple[float, int, int]]  # client, task -> area, positives, negatives


class Plain(nn.Module):
    """PyG's GCN, mean readout and two layers."""

    def __init__(self, node_dim: int, tasks: int) -> None:
        super().__init__()
        self.encoder = GCN(node_dim, WIDTH, LAYERS, dropout=DROPOUT)
        self.head = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Dropout(DROPOUT), nn.Linear(WIDTH, tasks))

    def forward(self, batch: Any) -> Tensor:
        return self.head(global_mean_pool(self.encoder(batch.x, batch.edge_index), batch.batch, batch.num_graphs))


def areas(outputs: Tensor, labels: Tensor, client: int) -> Areas:
    """scikit-learn's area under the curve, where a task has both labels."""
    found: Areas = {}
    for task in range(labels.shape[1]):
        there = ~labels[:, task].isnan()
        label = labels[there, task]
        positives = int(label.sum())
        if 0 < positives < len(label):
            area = roc_auc_score(label.numpy(), outputs[there, task].numpy())
            found[client, task] = (float(area), positives, len(label) - positives)
    return found


def mean(found: Areas) -> float:
    """Over the tasks of each client, then over the clients."""
    clients = defaultdict(list)
    for (client, _), (area, _, _) in found.items():
        clients[client].append(area)
    return statistics.mean(statistics.mean(of) for of in clients.values())


def measured(model: nn.Module, parts: list[list[Any]]) -> Areas:
    """Of the plain model on every client's part."""
    model.eval()
    found: Areas = {}
    with torch.no_grad():
        for client, part in enumerate(parts):
            batches = list(DataLoader(part, batch_size=256))
            outputs = torch.cat([model(batch) for batch in batches])
            found |= areas(outputs, torch.cat([batch.y for batch in batches]), client)
    return found


def plain_loop(data: MoleculeNet, rounds: int, seed: int) -> Areas:
    """Federated averaging in twenty lines; the best round by validation is tested."""
    torch.manual_seed(seed)
    everyone = range(CLIENTS)
    parts = {name: [list(data.client_data(client, name)) for client in everyone] for name in ("train", "val", "test")}
    first = parts["train"][0][0]
    shared = Plain(first.x.shape[1], first.y.shape[1])
    clients = [copy.deepcopy(shared) for _ in range(CLIENTS)]
    optimizers = [torch.optim.Adam(client.parameters(), RATE) for client in clients]
    loaders = [DataLoader(part, batch_size=BATCH, shuffle=True) for part in parts["train"]]
    sizes = [len(part) for part in parts["train"]]
    best, kept = 0.0, copy.deepcopy(shared.state_dict())
    for _ in range(rounds):
        for client, optimizer, loader in zip(clients, optimizers, loaders, strict=True):
            client.load_state_dict(shared.state_dict())
            client.train()
            for batch in loader:
                there = ~batch.y.isnan()
                optimizer.zero_grad()
                logits = client(batch)
                nn.functional.binary_cross_entropy_with_logits(logits[there], batch.y[there]).backward()
                optimizer.step()
        states = [client.state_dict() for client in clients]
        shared.load_state_dict(
            {
                name: sum(size * state[name] for size, state in zip(sizes, states, strict=True)) / sum(sizes)
                for name in states[0]
            }
        )
        value = mean(measured(shared, parts["val"]))
        if value > best:
            best, kept = value, copy.deepcopy(shared.state_dict())
    shared.load_state_dict(kept)
    return measured(shared, parts["test"])


def ours(data: MoleculeNet, rounds: int, seed: int) -> Areas:
    """The same with the package's model, engine and metrics."""
    torch.manual_seed(seed)
    model = MoleculeModel(
        encoder="gcn", hidden_dim=WIDTH, num_layers=LAYERS, dropout=DROPOUT, optimizer="adam", learning_rate=RATE
    )
    with tempfile.TemporaryDirectory() as folder:
        trainer = FederatedTrainer(
            max_rounds=rounds, local_epochs=1, optimizer_state="keep", accelerator="cpu", devices=1, seed=seed,
            num_threads=1, callbacks=[ModelCheckpoint(monitor="val/auroc")], logger=False, enable_progress_bar=False,
            default_root_dir=folder,
        )  # fmt: skip
        trainer.fit(model, data)
        trainer.test(model, data, ckpt_path="best")
        outputs = trainer.predict(model, data, ckpt_path="best")
    assert outputs is not None
    found: Areas = {}
    for client, batches in outputs.items():
        labels = torch.cat([graph.y for graph in data.client_data(client, "test")])
        found |= areas(torch.cat(batches), labels, client)
    logged = trainer.metrics["test"]["test/auroc"].mean
    assert abs(logged - mean(found)) < 1e-5, f"logged is {logged}, scikit-learn says {mean(found)}"
    return found


def variance(area: float, positives: int, negatives: int) -> float:
    """Of an area under the curve, Hanley and McNeil 1982."""
    one, two = area / (2 - area), 2 * area**2 / (1 + area)
    spread = area * (1 - area) + (positives - 1) * (one - area**2) + (negatives - 1) * (two - area**2)
    return spread / (positives * negatives)


def main() -> None:
    """Train, compare, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", choices=["tox21", "bbbp"], default="tox21")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    pairs: dict[tuple[int, int], list[tuple[tuple[float, int, int], tuple[float, int, int]]]] = defaultdict(list)
    print("| seed | plain loop | lightning-fl |\n|---|---|---|")
    for seed in given.seeds:
        data = MoleculeNet(
            name=given.data, source="real", partitioner=Scaffold(num_clients=CLIENTS), split=(0.8, 0.1, 0.1),
            batch_size=BATCH, invalid="skip",
        )  # fmt: skip
        federated = ours(data, given.rounds, seed)
        plain = plain_loop(data, given.rounds, seed)
        print(f"| {seed} | {mean(plain):.3f} | {mean(federated):.3f} |")
        for key in plain.keys() & federated.keys():
            pairs[key].append((plain[key], federated[key]))
    beyond, differences = [], []
    for key, found in sorted(pairs.items()):
        difference = statistics.mean(b[0] - a[0] for a, b in found)
        error = sum(variance(*a) + variance(*b) for a, b in found) ** 0.5 / len(found)
        differences.append(difference)
        if abs(difference) > 2 * error:
            beyond.append(f"client {key[0]}, task {key[1]}: {difference:+.3f} ± {error:.3f}")
    print(f"\n{len(pairs)} tasks of clients, mean difference {statistics.mean(differences):+.4f}, of which")
    print(f"{len(beyond)} beyond two standard errors: {'; '.join(beyond) or 'none'}")


if __name__ == "__main__":
    main()
