"""Files of a FedCollab run: distances between clients, coalitions, and exported models."""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from lightning_fl.core.errors import ConfigurationError
from lightning_fl.core.escaping import csv_table, csv_value
from lightning_fl.engine.weights.flat import FlatModule, Weights
from lightning_fl.files.tensors import read_numpy, read_torch


def read_distances(path: Path, names: list[str]) -> Tensor:
    """Read distances [N, N], NaN for missing pairs: CSV by clients' names, or ``.npy`` in their order.

    Raises:
        ConfigurationError: the file cannot be read, or is not a matrix of distances of these clients.
    """
    import pandas as pd  # takes a second to import

    advice = "Give a CSV file with the clients' names in its first row and column, or a .npy matrix in their order."
    try:
        if path.suffix == ".npy":
            arrays = read_numpy(path, ".npy", f"{advice[0].lower()}{advice[1:]}", error=ConfigurationError)
            matrix = torch.from_numpy(arrays[""]).double()
        else:
            table = pd.read_csv(path, index_col=0, dtype={0: str})
            table.index = table.index.astype(str).map(csv_value)
            table.columns = table.columns.map(csv_value)
            if not set(names) & set(table.index) or list(table.index) != list(table.columns):
                raise ValueError("its first row and column are not the names of this run's clients")
            matrix = torch.from_numpy(table.reindex(index=names, columns=names).to_numpy("float64", copy=True))
    except ConfigurationError as error:
        raise ConfigurationError(f"FedCollab: distances in {error}") from error
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ConfigurationError(f"FedCollab: distances in {path} cannot be read: {error}. {advice}") from error
    if matrix.shape != (len(names), len(names)):
        raise ConfigurationError(
            f"FedCollab: distances in {path} have shape {tuple(matrix.shape)} for {len(names)} clients. {advice}"
        )
    matrix.fill_diagonal_(0.0)
    known = ~torch.isnan(matrix)
    symmetric = torch.equal(known, known.T) and torch.allclose(matrix.nan_to_num(), matrix.T.nan_to_num())
    if not symmetric or not bool(matrix[known].isfinite().all()):
        raise ConfigurationError(
            f"FedCollab: distances in {path} are not a symmetric matrix of finite numbers (NaN where unknown)."
        )
    return matrix


def distance_table(names: Sequence[str], distances: Tensor) -> str:
    """Content of ``distances.csv`` for distances [N, N]."""
    import pandas as pd  # takes a second to import

    table = pd.DataFrame(distances.numpy(), index=pd.Index(names, name="client"), columns=list(names))
    return csv_table(table, index=True)


def read_coalitions(run: Path, names: Sequence[str]) -> dict[int, int]:
    """Read client -> coalition of a finished run, whose clients must be this run's."""
    import pandas as pd  # takes a second to import

    path = run / "coalitions.csv"
    try:
        table = pd.read_csv(path, converters={"client": csv_value}).set_index("client")["coalition"].astype(int)
    except (OSError, ValueError, KeyError) as error:
        raise ConfigurationError(
            f"FedCollab.structure={str(run)!r}: {path} cannot be read ({error}). Give the folder of a FedCollab run."
        ) from error
    missing = sorted(set(table.index) - set(names))
    if missing:
        raise ConfigurationError(
            f"FedCollab.structure={str(run)!r}: the data lack its clients {', '.join(missing)}. Give data with all"
            " clients of that run, with the same names, and new ones."
        )
    return {client: int(table[name]) for client, name in enumerate(names) if name in table.index}


def read_model(run: Path, label: int, module: nn.Module, flat: FlatModule) -> Weights:
    """Read the exported model of a run's coalition into ``module``, which it must fit, with its weights ``flat``."""
    path = run / "models" / f"shared_{label}.ckpt"
    advice = "Join a run with the same model, made with save_models (the default)."
    kind = f"a model of the kind {type(module).__name__} is"
    content = read_torch(path, kind, advice, error=ConfigurationError, place=f"FedCollab.structure: {path}")
    try:
        module.load_state_dict(content["state_dict"])
    except (AttributeError, KeyError, RuntimeError, TypeError) as error:
        raise ConfigurationError(
            f"FedCollab.structure: {path} is not {kind} ({str(error).splitlines()[0]}). {advice}"
        ) from error
    return flat.collect().clone()
