"""Data sets of the Hugging Face library as clients, made here and read from disk: models see what was put in."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

# The repository has a folder of this name, which Python takes for a package without a version.
datasets = pytest.importorskip("datasets", minversion="3")
from PIL import Image  # noqa: E402

from lightning_fl import ConfigurationError, DataError, FederatedTrainer  # noqa: E402
from lightning_fl.data import IID, ColumnDivision, FromFile, GroupBy, GroupDivision, HFDataset  # noqa: E402
from lightning_fl.data.cards.lookup import file_sha256  # noqa: E402
from lightning_fl.data.module import SPLITS  # noqa: E402
from lightning_fl.data.partition.from_file import split_file_text  # noqa: E402
from lightning_fl.models import ClassificationModel  # noqa: E402

GENERATOR = np.random.default_rng(0)
PIXELS = GENERATOR.integers(0, 256, (24, 5, 4), dtype=np.uint8)


def images(count: int = 24, **columns: Any) -> Any:
    features = {
        "image": datasets.Image(),
        "label": datasets.ClassLabel(names=["cat", "dog"]),
        "writer": datasets.Value("string"),
    }
    rows = {
        "image": [Image.fromarray(PIXELS[row]) for row in range(count)],
        "label": [row % 2 for row in range(count)],
        "writer": [f"w{row % 3}" for row in range(count)],
    }
    return datasets.Dataset.from_dict(rows | columns, features=datasets.Features(features))


def table(count: int = 20) -> Any:
    rows = range(count)
    return datasets.Dataset.from_dict(
        {
            "age": list(rows),
            "pair": [[float(row), -2.0 * row] for row in rows],
            "kind": [("a", "b", "c")[row % 3] for row in rows],
            "site": [("north", "south")[row % 2] for row in rows],
            "price": [0.5 * row for row in rows],
            "grade": [3 + row % 2 for row in rows],
        }
    )


def samples(data: HFDataset, client: int, split: Any = "train") -> tuple[torch.Tensor, torch.Tensor]:
    of = data.client_data(client, split)
    inputs, targets = zip(*[of[index] for index in range(len(of))], strict=True)
    return torch.stack(inputs), torch.stack(targets)


def test_a_constant_column_is_not_scaled_by_rounding(tmp_path: Path) -> None:
    """Whose deviation in float64 is not 0 for this number of rows."""
    constant = datasets.Dataset.from_dict({"x": [0.1] * 137, "price": [float(row) for row in range(137)]})
    constant.save_to_disk(str(tmp_path / "saved"))
    data = HFDataset(
        path=str(tmp_path / "saved"), target="price", partitioner=IID(num_clients=1), split=(1.0, 0.0, 0.0)
    )
    data.setup()
    assert samples(data, 0)[0].abs().max() < 1e-6


def test_images_by_a_column_of_clients(tmp_path: Path) -> None:
    images().save_to_disk(str(tmp_path / "saved"))
    data = HFDataset(
        path=str(tmp_path / "saved"), target="label", partitioner=GroupBy(column="writer"), split=(0.5, 0.25, 0.25)
    )
    data.setup()
    assert data.client_names() == ["w0", "w1", "w2"]
    assert data.class_names == ["cat", "dog"]
    rows = {client: data.held_rows(client) for client in range(3)}
    trained = sorted(row for of in rows.values() for row in of["train"])
    mean, std = (PIXELS[trained] / 255).mean(), (PIXELS[trained] / 255).std()
    for client in range(3):
        assert all(row % 3 == client for of in rows[client].values() for row in of)
        inputs, targets = samples(data, client)
        wanted = torch.tensor((PIXELS[rows[client]["train"]] / 255 - mean) / std).float()[:, None]
        torch.testing.assert_close(inputs, wanted)
        assert targets.tolist() == [row % 2 for row in rows[client]["train"]]
    assert data.describe()["image_shape"] == [1, 5, 4]
    assert data.source == "user"


def test_a_model_is_trained_on_them_the_same_way_twice(tmp_path: Path) -> None:
    datasets.DatasetDict({"train": images(), "test": images(12)}).save_to_disk(str(tmp_path / "saved"))
    found = []
    for _ in range(2):
        data = HFDataset(path=str(tmp_path / "saved"), target="label", partitioner=IID(num_clients=2), batch_size=4)
        model = ClassificationModel(network="mlp", in_shape=(1, 5, 4), num_classes=2, hidden_sizes=[4])
        torch.manual_seed(0)
        trainer = FederatedTrainer(max_rounds=2, local_steps=2, seed=0, logger=False, enable_progress_bar=False)
        for parameter in model.parameters():
            torch.nn.init.constant_(parameter, 0.1)
        trainer.fit(model, data)
        found.append(trainer.test(model, data)["test/loss"].mean)
        assert data.num_samples("test") == [6, 6]
    assert found[0] == found[1]


def test_rows_numbers_lists_and_categories(tmp_path: Path) -> None:
    table().to_parquet(str(tmp_path / "rows.parquet"))
    data = HFDataset(
        path=str(tmp_path / "rows.parquet"),
        target="price",
        drop=["site", "grade"],
        partitioner=GroupBy(column="site"),
        normalize=False,
    )
    data.setup()
    for client, site in enumerate(("north", "south")):
        inputs, targets = samples(data, client)
        rows = torch.tensor(data.held_rows(client)["train"])
        assert data.client_names()[client] == site
        assert set((rows % 2).tolist()) == {client}
        kinds = torch.nn.functional.one_hot(rows % 3, 3).float()
        wanted = torch.cat([torch.stack([rows, rows, -2 * rows], 1).float(), kinds], 1)
        assert torch.equal(inputs, wanted)
        assert torch.equal(targets, 0.5 * rows.float()[:, None])
    assert data.classes == []
    assert data.describe()["num_features"] == 6


def test_whole_numbers_and_texts_are_classes(tmp_path: Path) -> None:
    table().to_csv(str(tmp_path / "rows.csv"))
    for target, classes in (("grade", ["3", "4"]), ("kind", ["a", "b", "c"])):
        data = HFDataset(
            path=str(tmp_path / "rows.csv"), target=target, columns=["age"], partitioner=IID(num_clients=2)
        )
        data.setup()
        assert data.classes == classes
        rows = data.held_rows(0)["train"]
        assert samples(data, 0)[1].tolist() == [row % len(classes) for row in rows]


def test_a_path_is_no_pattern(tmp_path: Path) -> None:
    for name, target in (("b[1]*", 0.5), ("b1x", 7.0)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "t[x].csv").write_text(f"age,price\n1,{target}\n2,{target}\n3,{target}\n4,{target}\n")
        (tmp_path / name / "tx.csv").write_text("age,price\n1,9.5\n2,9.5\n")
    path = str(tmp_path / "b[1]*" / "t[x].csv")
    data = HFDataset(path=path, target="price", partitioner=IID(num_clients=1), split=(0.5, 0.25, 0.25))
    data.prepare_data()
    data.setup("fit")
    assert samples(data, 0)[1].unique().tolist() == [0.5]
    with pytest.raises(ConfigurationError, match=r"b\[1\]\*"):
        HFDataset(path=str(tmp_path / "b[1]*"), target="price", partitioner=IID(num_clients=1)).prepare_data()


def test_a_path_may_begin_with_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "folder").mkdir()
    table().to_csv(str(tmp_path / "rows.csv"))
    table().to_csv(str(tmp_path / "folder" / "train.csv"))
    table().save_to_disk(str(tmp_path / "saved"))
    for name in ("rows.csv", "folder", "saved"):
        data = HFDataset(path=f"~/{name}", target="price", columns=["age"], partitioner=IID(num_clients=2))
        data.setup()
        assert (data.source, data.describe()["name"]) == ("user", name)


def test_a_split_file_is_for_the_same_file(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"

    def ready(partitioner: Any) -> HFDataset:
        data = HFDataset(path=str(path), target="price", columns=["age"], partitioner=partitioner)
        data.setup()
        return data

    table().to_csv(str(path))
    data, known = ready(IID(num_clients=2)), file_sha256(path)
    (tmp_path / "splits.json").write_text(split_file_text(data, range(2)) or "")
    again = FromFile(path=str(tmp_path / "splits.json"))
    assert [ready(again).held_rows(client) for client in range(2)] == [data.held_rows(client) for client in range(2)]
    table().select(range(19, -1, -1)).to_csv(str(path))
    with pytest.raises(DataError, match=f"sum {known}, these have {file_sha256(path)}"):
        ready(again)


def test_an_empty_cell_may_be_left_out_and_is_no_group(tmp_path: Path) -> None:
    parts = [None if row == 3 else SPLITS[row % 3] for row in range(20)]
    table().add_column("part", parts).to_parquet(str(tmp_path / "rows.parquet"))

    def ready(division: Any) -> HFDataset:
        path = str(tmp_path / "rows.parquet")
        partitioner = IID(num_clients=1)
        data = HFDataset(path=path, target="price", columns=["age"], partitioner=partitioner, division=division)
        data.setup()
        return data

    held = ready(ColumnDivision(column="part", leave_out=[""])).held_rows(0)
    assert held == {split: [row for row in range(20) if parts[row] == split] for split in SPLITS}
    with pytest.raises(DataError, match=r"GroupDivision.column='part': sample 3"):
        ready(GroupDivision(column="part"))


def test_parts_by_any_name_and_pooled(tmp_path: Path) -> None:
    datasets.DatasetDict({"first": table(12), "second": table(8)}).save_to_disk(str(tmp_path / "saved"))
    given: dict[str, Any] = {"path": str(tmp_path / "saved"), "target": "price", "partitioner": IID(num_clients=2)}
    with pytest.raises(DataError, match=r"has no part 'train'.* first, second"):
        HFDataset(**given).setup()
    parts = {"train": "first", "test": "second"}
    data = HFDataset(**given, columns=["age"], parts=parts)
    data.setup()
    assert sum(data.num_samples("test")) == 8
    pooled = HFDataset(**given, columns=["age"], parts=parts, pooled=True)
    pooled.setup()
    assert sum(sum(pooled.num_samples(split)) for split in ("train", "val", "test")) == 20


def test_images_of_other_sizes(tmp_path: Path) -> None:
    mixed = [Image.fromarray(PIXELS[row][: 3 + row % 2]) for row in range(24)]
    images(image=mixed).save_to_disk(str(tmp_path / "saved"))
    given: dict[str, Any] = {"path": str(tmp_path / "saved"), "target": "label", "partitioner": IID(num_clients=2)}
    with pytest.raises(DataError, match=r"the images have shapes from \[1, 3, 4\] to \[1, 4, 4\]: give HFDataset.size"):
        HFDataset(**given).setup()
    data = HFDataset(**given, size=(6, 8), channels=3)
    data.setup()
    assert samples(data, 0)[0].shape[1:] == (3, 6, 8)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"target": "pric"}, r"has no column 'pric' \(did you mean 'price'\?\)"),
        ({"drop": ["nothing"]}, r"has no column 'nothing'"),
        ({"image": "age"}, r"HFDataset.image='age': .* has no columns of images"),
        ({"path": "rows.txt"}, r"rows\.txt"),
        ({"path": "nobody/nothing"}, r"HFDataset.path='nobody/nothing' cannot be read: .* Check the name"),
        ({"columns": ["age", "hole"]}, r"'hole' of row 2 is empty or not finite"),
        ({"target": "hole"}, r"rows\.parquet: 'hole' of row 2"),
    ],
)
def test_what_cannot_be_read_is_said(changes: dict[str, Any], said: str, tmp_path: Path) -> None:
    table().add_column("hole", [1.0, 2.0, None, *[0.0] * 17]).to_parquet("rows.parquet")
    Path("rows.txt").write_text("x")
    given: dict[str, Any] = {"path": "rows.parquet", "target": "price", "partitioner": IID(num_clients=2)}
    with pytest.raises((DataError, ConfigurationError), match=said):
        HFDataset(**(given | changes)).setup()
