"""Flower's partitioners give here what they give there."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

flower = pytest.importorskip("flwr_datasets.partitioner")
datasets = pytest.importorskip("datasets")

from lightning_fl import ConfigurationError, DataError, Partitioned  # noqa: E402
from lightning_fl.data import FromFlower, MoleculeCSV  # noqa: E402

LABELS = torch.from_numpy(np.random.default_rng(1).integers(0, 4, 200))


class Named(TensorDataset):
    def column(self, name: str) -> list[str] | None:
        return [f"site {index % 3}" for index in range(len(self))] if name == "site" else None


def data(count: int = 200) -> Named:
    return Named(torch.arange(count, dtype=torch.float32)[:, None], LABELS[:count])


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("IidPartitioner", {"num_partitions": 7}),
        ("LinearPartitioner", {"num_partitions": 4}),
        ("SizePartitioner", {"partition_sizes": [20, 30, 150]}),
        ("DirichletPartitioner", {"num_partitions": 4, "partition_by": "label", "alpha": 0.5, "min_partition_size": 1}),
        ("PathologicalPartitioner", {"num_partitions": 4, "partition_by": "label", "num_classes_per_partition": 2}),
        ("ShardPartitioner", {"num_partitions": 5, "partition_by": "label", "num_shards_per_partition": 2}),
    ],
)
@pytest.mark.parametrize("seed", [0, 5])
def test_the_same_samples_as_in_flower(name: str, arguments: dict[str, Any], seed: int) -> None:
    partitioner = FromFlower(partitioner=name, arguments=arguments)
    found = partitioner(data(), seed)
    kind = getattr(flower, name)
    there = kind(**arguments, **({"seed": seed} if "partition_by" in arguments else {}))
    there.dataset = datasets.Dataset.from_dict({"row": list(range(200)), "label": LABELS.tolist()})
    assert partitioner.num_clients == there.num_partitions == len(found)
    for client, indices in enumerate(found):
        assert indices.tolist() == sorted(there.load_partition(client)["row"])
    assert [part.tolist() for part in found] == [part.tolist() for part in partitioner(data(), seed)]


def test_natural_ids_are_named_clients() -> None:
    partitioner = FromFlower(partitioner="NaturalIdPartitioner", arguments={"partition_by": "site"})
    assert partitioner.num_clients is None
    federated = Partitioned(data(), partitioner)
    federated.setup()
    assert federated.client_names() == ["site 0", "site 1", "site 2"]
    assert all(row % 3 == 2 for of in federated.held_rows(2).values() for row in of)


def test_rows_of_one_molecule_are_not_merged_across_named_clients(tmp_path: Path) -> None:
    rows = [f"{'C' * (number % 10 + 1)},{number},site {number % 3}\n" for number in range(60)]
    (tmp_path / "sites.csv").write_text("smiles,y,site\n" + "".join(rows))
    partitioner = FromFlower(partitioner="NaturalIdPartitioner", arguments={"partition_by": "site"})
    given: dict[str, Any] = {"path": str(tmp_path / "sites.csv"), "target_columns": ["y"], "duplicates": "merge_mean"}
    held = []
    for options in ({"partitioner": partitioner}, {"group_column": "site"}):
        data = MoleculeCSV(**given, **options, split_seed=0)
        data.prepare_data()
        data.setup()
        held.append(
            (data.client_names(), [data.held_rows(client) for client in range(3)], data.dataset.targets.tolist())
        )
    assert held[0] == held[1]


def test_a_seed_of_one_s_own_stays() -> None:
    arguments = {"num_partitions": 4, "partition_by": "label", "alpha": 0.5, "min_partition_size": 1, "seed": 3}
    partitioner = FromFlower(partitioner="DirichletPartitioner", arguments=arguments)
    assert all(torch.equal(a, b) for a, b in zip(partitioner(data(), 0), partitioner(data(), 1), strict=True))


def test_faults() -> None:
    with pytest.raises(ConfigurationError, match=r"FromFlower.partitioner='Dirichlet'.*IidPartitioner"):
        FromFlower(partitioner="Dirichlet")
    with pytest.raises(ConfigurationError, match=r"FromFlower.arguments .*IidPartitioner: .*'alpha'"):
        FromFlower(partitioner="IidPartitioner", arguments={"num_partitions": 2, "alpha": 1})
    partitioner = FromFlower(partitioner="NaturalIdPartitioner", arguments={"partition_by": "city"})
    with pytest.raises(DataError, match="'city' of every sample: FromFlower needs one"):
        partitioner(data(), 0)
    both = {"train": data(), "test": data(50)}
    with pytest.raises(DataError, match="FromFlower .* train, test"):
        partitioner.partition_splits(both, 0)
    few = {"num_partitions": 4, "partition_by": "label", "num_classes_per_partition": 9}
    with pytest.raises(DataError, match="PathologicalPartitioner of flwr-datasets"):
        FromFlower(partitioner="PathologicalPartitioner", arguments=few)(data(), 0)
