"""A user's own Fabric loop on two processes; each rank writes what it saw to ``rank{r}.json`` in the folder given."""

import json
import sys
from pathlib import Path

import torch
from lightning.fabric import Fabric
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import lightning_fl.strategies  # registers the names with Fabric

NUM_SAMPLES = (30, 10)
LEARNING_RATE = 0.5


def error_of(call) -> str:
    try:
        call()
    except lightning_fl.FederatedError as error:
        return f"{type(error).__name__}: {error}"
    return "none"


def main(folder: Path) -> None:
    fabric = Fabric(strategy="fedavg", devices=2, accelerator="cpu")
    fabric.launch()
    rank, strategy = fabric.global_rank, fabric.strategy

    model = nn.Linear(2, 1, bias=False)
    model.register_buffer("count", torch.tensor(3 + 4 * rank))
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[0.1, -2.0 + rank]]))
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    model, optimizer = fabric.setup(model, optimizer)
    loader = fabric.setup_dataloaders(DataLoader(TensorDataset(torch.arange(7)), batch_size=2))
    samples = [int(x) for (batch,) in loader for x in batch]

    inputs = torch.tensor([[1.0, 2.0 + rank]])
    fabric.backward(model(inputs).square().sum())
    gradient = model.weight.grad.tolist()
    optimizer.step()
    local = model.weight.tolist()
    strategy.average(model, num_samples=NUM_SAMPLES[rank])
    average, count = model.weight.tolist(), int(model.count)
    optimizer.step()  # the optimiser still holds the weights that were averaged
    stepped = model.weight.tolist()

    exchanged = strategy.exchange({5 - 2 * rank: ["of", rank], 2 - 2 * rank: torch.tensor(rank)})
    errors = [
        error_of(lambda: strategy.average(model, num_samples=1.0 if rank == 0 else -2.0)),
        error_of(lambda: strategy.average(model, num_samples=0)),
    ]
    if rank == 1:
        with torch.no_grad():
            model.weight.fill_(torch.nan)
    errors.append(error_of(lambda: strategy.average(model)))
    seen = {
        "strategy": strategy.name,
        "samples": samples,
        "gradient": gradient,
        "local": local,
        "average": average,
        "count": count,
        "stepped": stepped,
        "clients": list(exchanged),
        "values": [value.tolist() if isinstance(value, torch.Tensor) else value for value in exchanged.values()],
        "ranks": strategy.place_clients(4, [5, 1, 3, 2]),
        "errors": errors,
    }
    (folder / f"rank{rank}.json").write_text(json.dumps(seen))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
