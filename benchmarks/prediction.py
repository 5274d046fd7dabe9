"""Molecules per second of ``lightning-fl predict``: reading, features, the model, and the whole.

    uv run python benchmarks/prediction.py [--molecules 5000] [--repeats 5] [--workers 2]

In every repeat all parts are timed in turn on the same molecules, in one process with one torch thread: reading the CSV
file, making features of SMILES in this process and in several, the passes of a GCN of the recipes' size (width 128,
three layers) in batches of 128, and the whole from file to file. The median is given, of rates and of their ratios to
the model's.
"""

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from lightning_fl.data import MoleculeNet
from lightning_fl.data.molecules.dataset import MoleculeDataset
from lightning_fl.data.molecules.featurizer import encode_smiles
from lightning_fl.data.molecules.standin import make_standin
from lightning_fl.data.molecules.table import MoleculeTable
from lightning_fl.data.partition import IID
from lightning_fl.data.unlabelled import Reading, Unlabelled, read_rows
from lightning_fl.inference.forward import Naming, Predictor, model_columns
from lightning_fl.models import MoleculeModel


def _molecules(count: int) -> MoleculeTable:
    """Molecules of ESOL's stand-in, over and over."""
    table = make_standin("esol", target_names=["y"], target_units=[""])
    smiles = [table.smiles[place % len(table.smiles)] for place in range(count)]
    return MoleculeTable(smiles, torch.full((count, 1), torch.nan), ["y"], [""], {}, list(range(count)), "molecules")


def _whole(data: MoleculeNet, predictor: Predictor, source: Path, out: Path, workers: int) -> None:
    record = {"target_names": ["y"], "target_units": [""]}
    with out.open("w") as file:
        for chunk in data.unlabelled_data(str(source), record, Reading(workers=workers)):
            columns = model_columns(predictor(chunk), Naming(("y",)))
            chunk.frame.assign(**columns).to_csv(file, index=False)


def _rate(count: int, part: Callable[[], object]) -> float:
    start = time.perf_counter()
    part()
    return count / (time.perf_counter() - start)


def main() -> None:
    """Time and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--molecules", type=int, default=5000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    torch.set_num_threads(1)
    count = options.molecules
    table = _molecules(count)
    data = MoleculeNet(source="standin", partitioner=IID(num_clients=2))
    predictor = Predictor(MoleculeModel(), data, accelerator="cpu")
    dataset = MoleculeDataset(table)
    chunk = Unlabelled(None, dataset, list(range(count)), sizes=dataset.slices["x"].diff().tolist())  # type: ignore[arg-type]
    rates: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        source, out = Path(folder, "new.csv"), Path(folder, "out.csv")
        source.write_text("\n".join(["smiles", *table.smiles]) + "\n")
        parts: dict[str, Callable[[], object]] = {
            "reading the file": lambda: list(read_rows(str(source), 2000)),
            "features, 1 process": lambda: encode_smiles(table.smiles, workers=1),
            f"features, {options.workers} processes": lambda: encode_smiles(table.smiles, workers=options.workers),
            "the model": lambda: predictor(chunk),
            "whole, 1 process": lambda: _whole(data, predictor, source, out, 1),
            f"whole, {options.workers} processes": lambda: _whole(data, predictor, source, out, options.workers),
        }
        predictor(chunk)  # what is made once
        for _ in range(options.repeats):
            for name, part in parts.items():
                rates.setdefault(name, []).append(_rate(count, part))
    atoms = int(dataset.slices["x"][-1]) / count
    print(f"| {count} molecules, {atoms:.1f} atoms each | molecules a second | x the model |")
    print("|---|---|---|")
    for name, values in rates.items():
        ratios = [value / model for value, model in zip(values, rates["the model"], strict=True)]
        print(f"| {name} | {statistics.median(values):,.0f} | {statistics.median(ratios):.3f} |")


if __name__ == "__main__":
    main()
