"""CSV files of predictions, one for each client's model on its own data."""

import contextlib
from collections.abc import Iterable, Mapping
from itertools import chain
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from lightning.fabric.utilities.rank_zero import rank_zero_warn
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, SequentialSampler, Subset, TensorDataset

from lightning_fl.core.errors import ConfigurationError, DataError
from lightning_fl.core.escaping import csv_table
from lightning_fl.data.loaders import is_dataset
from lightning_fl.data.module import Split
from lightning_fl.data.partition.partitioner import innermost
from lightning_fl.data.targets import dataset_targets
from lightning_fl.engine.batches.factory import plain_options
from lightning_fl.files.atomic import write_whole
from lightning_fl.files.names import client_files

if TYPE_CHECKING:
    from lightning_fl.trainer.trainer import FederatedTrainer


def write_predictions(trainer: "FederatedTrainer", outputs: Mapping[int, list[Any]], split: Split = "test") -> Path:
    """Write ``predictions/CLIENT.csv`` for clients with data on this rank into the run's folder, which is returned.

    ``file_names`` in ``summary.json`` lists clients whose names are not valid as file names.
    """
    folder = Path(trainer.log_dir) / "predictions"
    folder.mkdir(exist_ok=True)
    files = client_files(trainer.datamodule.client_names())
    for client, batches in outputs.items():
        if batches:
            data = trainer.datamodule.client_data(client, split)
            several = isinstance(batches[0], list)  # a list for each of several loaders
            outputs_of_client = list(chain(*batches)) if several else batches
            dataset = data.dataset if isinstance(data, DataLoader) else data
            known = not several and is_dataset(dataset) and not isinstance(dataset, IterableDataset)
            if known and isinstance(data, DataLoader) and not _is_in_order(data):
                what = f"the {split} loader of {files[client]} has an order of its own"
                rank_zero_warn(f"{what}, so its predictions are written without targets: use shuffle=False.")
                known = False
            table = prediction_table(dataset if known else None, outputs_of_client)
            write_whole(folder / f"{files[client]}.csv", csv_table(table))
    return folder


def _is_in_order(loader: DataLoader) -> bool:
    """Whether samples are read in their data set's order, by the loader or because the engine packs them."""
    own = type(loader).__iter__ is not DataLoader.__iter__ or type(loader.batch_sampler) not in (BatchSampler, NoneType)
    packed = type(innermost(loader.dataset)[0]) is TensorDataset and plain_options(loader) is not None
    return packed or (not own and isinstance(loader.sampler, SequentialSampler))


def prediction_table(dataset: Any, batches: list[Any]) -> pd.DataFrame:
    """One row per sample.

    Args:
        dataset: n samples; indices of a ``Subset`` are those of its data set. ``None`` for several loaders or a stream.
        batches: outputs of ``predict_step`` in the order of the samples: tensors [B] or [B, T], or dicts of them.

    Returns:
        Columns ``index``; ``smiles`` if the data set has them; ``target``; ``prediction`` (or the keys of the dicts).
        Several columns T are numbered: ``prediction_0``. Targets that would need reading every sample are left out.
    """
    joined = join_outputs(batches)
    count = max(map(len, joined.values()), default=0) if dataset is None else len(dataset)
    base, indices = (dataset.dataset, dataset.indices) if type(dataset) is Subset else (dataset, range(count))
    table: dict[str, Any] = {"index": list(indices)}
    if (smiles := getattr(base, "smiles", None)) is not None:
        table["smiles"] = [smiles[index] for index in indices]
    if dataset is not None:
        with contextlib.suppress(DataError):
            table |= numbered_columns("target", dataset_targets(dataset))
    check_count(joined, count)
    for name, values in joined.items():
        table |= numbered_columns(name or "prediction", values)
    return pd.DataFrame(table)


def join_outputs(batches: Iterable[Any]) -> dict[str, Tensor]:
    """Join ``predict_step``'s outputs of all batches on the CPU: name -> values [k, ...]; "" for a single tensor."""
    parts: dict[str, list[Tensor]] = {}
    for output in batches:
        named = output if isinstance(output, Mapping) else {"": output}
        if not all(isinstance(value, Tensor) for value in named.values()):
            kind = type(output).__name__
            raise ConfigurationError(f"predict_step must return a tensor or a dict of tensors, not a {kind}.")
        for name, value in named.items():
            values = torch.atleast_1d(value.detach()).cpu()
            half = values.dtype in (torch.bfloat16, torch.float16)  # unknown to NumPy
            parts.setdefault(str(name), []).append(values.float() if half else values)
    return {name: torch.cat(values) for name, values in parts.items()}


def check_count(outputs: Mapping[str, Tensor], count: int) -> None:
    """Refuse outputs without one row per sample."""
    for values in outputs.values():
        if len(values) != count:
            what = f"shape {list(values.shape)} for {count} samples"
            raise ConfigurationError(f"predict_step returned {what}: return a row for each.")


def numbered_columns(name: str, values: Tensor) -> dict[str, np.ndarray]:
    """Columns of values [k, ...]: ``NAME`` of a single one, else ``NAME_0``, ``NAME_1``, ..."""
    wide = values.reshape(len(values), -1)
    if wide.shape[1] == 1:
        return {name: wide[:, 0].numpy()}
    return {f"{name}_{column}": wide[:, column].numpy() for column in range(wide.shape[1])}
