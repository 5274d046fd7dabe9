import gzip
import math
from pathlib import Path

import pytest
import torch
import yaml
from lightning.pytorch import LightningModule
from rounding import rounding
from torch import nn

from lightning_fl import FederatedTrainer
from lightning_fl.core.errors import ConfigurationError, DataError
from lightning_fl.data.cards.catalogue import TableCard, load_card
from lightning_fl.data.partition import IID, GroupBy
from lightning_fl.data.tables.dataset import TableSchema, column_statistics, read_c45, read_csv, standardize
from lightning_fl.data.tables.module import TableData

# UCI Adult's layout: blanks after commas, missing values, a full stop after test rows, a blank line at the end.
ROW = "{age}, {work}, 7, {education}, 9, Never-married, Sales, Husband, White, Male, 0, 0, 40, {country}, {income}"


def _adult(n, dot="", first=0):
    rows = [
        ROW.format(
            age=20 + first + i,
            work=("Private", "?", "State-gov")[i % 3],
            education=("Doctorate", "Bachelors", "11th", "HS-grad")[i % 4],
            country="United-States",
            income=("<=50K", ">50K")[i % 2] + dot,
        )
        for i in range(n)
    ]
    return "\n".join(rows) + "\n\n"


@pytest.fixture
def adult(tmp_path):
    folder = tmp_path / "adult"
    folder.mkdir()
    (folder / "adult.data").write_text(_adult(40))
    with gzip.open(folder / "adult.test.gz", "wt") as stream:
        stream.write("|1x3 Cross validator\n" + _adult(16, ".", first=5))
    return str(folder)


@pytest.fixture
def table(tmp_path):
    def write(text, name="own.csv"):
        (tmp_path / name).write_text(text)
        return str(tmp_path / name)

    return write


def _ready(**arguments):
    data = TableData(**({"partitioner": IID(num_clients=1), "split_seed": 0} | arguments))
    data.prepare_data()
    data.setup("fit")
    return data


def _rows(data, client, split):
    subset = data.client_data(client, split)
    features, targets = subset.dataset.tensors
    return features[subset.indices], targets[subset.indices]


OWN = "age,colour,site,sick\n30,red,a,no\n40,,a,yes\n?,blue,b,no\n\n60,red,b,yes\n50,red,b,no\n"


def test_adult_by_doctorate(adult):
    with pytest.warns(UserWarning, match=r"adult.test.gz is not the file that card adult describes"):
        data = _ready(name="adult", data_root=adult, partitioner=GroupBy(column="doctorate"), split=(0.8, 0.2, 0.0))
    assert data.client_names() == ["doctorate", "non-doctorate"]
    assert data.classes == ["<=50K", ">50K"]
    assert data.num_classes == 2
    assert {split: data.num_samples(split) for split in ("train", "val", "test")} == {
        "train": [8, 24],
        "val": [2, 6],
        "test": [4, 12],
    }
    # Six numeric columns; 3 + 4 + 1 + 1 + 1 + 1 + 1 + 1 categories.
    assert data.num_features == 6 + 13
    assert "workclass=?" in data.feature_names
    assert not any("doctorate" in name or "income" in name for name in data.feature_names)
    for client in range(2):
        features, targets = _rows(data, client, "test")
        assert features.dtype == torch.float32
        assert targets.dtype == torch.int64
        assert features[:, data.feature_names.index("education=Doctorate")].eq(1 - client).all()
        assert targets.tolist() == ([0] * 4 if client == 0 else [1, 0, 1] * 4)
    record = data.describe()
    assert record["source"] == "measured"
    assert record["rows"] == {"train": 40, "test": 16}
    assert [file["file"] for file in record["files"]] == ["adult.data", "adult.test.gz"]
    assert record["files"][0]["verified"] is False
    assert record["num_features"] == 19


def test_numbers_are_standardised_by_all_clients_training_rows(adult):
    with pytest.warns(UserWarning, match="is not the file"):
        data = _ready(name="adult", data_root=adult, partitioner=IID(num_clients=3), split=(0.5, 0.5, 0.0))
    age = data.feature_names.index("age")
    training = torch.cat([_rows(data, client, "train")[0] for client in range(3)])[:, age]
    assert abs(float(training.mean())) < rounding(torch.float32, 40)  # a sum of forty numbers of about 1
    assert abs(float(training.square().mean()) - 1) < rounding(torch.float32, 40)
    # The same line for the test data, whose ages 25..40 begin 5 later than the training data's 20..59.
    scale = float(data._held["train"].tensors[0][1, age] - data._held["train"].tensors[0][0, age])
    difference = data._held["test"].tensors[0][:, age] - data._held["train"].tensors[0][:16, age]
    torch.testing.assert_close(difference, torch.full((16,), 5 * scale), rtol=1e-4, atol=1e-5)
    assert data._held["train"].tensors[0][:, data.feature_names.index("fnlwgt")].eq(0).all()  # constant


def test_a_file_of_one_s_own(table):
    data = _ready(path=table(OWN), target="sick", partitioner=GroupBy(column="site"), split=(1.0, 0.0, 0.0))
    assert data.feature_names == ["age", "colour=blue", "colour=red", "colour=?", "site=a", "site=b"]
    assert data.classes == ["no", "yes"]
    features, targets = data._held["train"].tensors
    assert targets.tolist() == [0, 1, 0, 1, 0]
    # Ages 30, 40, 60, 50: mean 45, variance (15² + 5² + 15² + 5²) / 4 = 125; the missing one becomes the mean.
    torch.testing.assert_close(features[:, 0], torch.tensor([-15.0, -5.0, 0.0, 15.0, 5.0]) / math.sqrt(125))
    assert features[:, 1:4].tolist() == [[0, 1, 0], [0, 0, 1], [1, 0, 0], [0, 1, 0], [0, 1, 0]]
    assert data.client_names() == ["a", "b"]
    assert data.source == "user"
    assert data.describe()["file"] == "own.csv"


def test_a_short_row_lacks_its_last_values(table):
    frame = read_csv(Path(table("a,b,c\n1,u,2\n3\n")))
    assert frame.loc[3].tolist() == ["3", None, None]


def test_columns_are_chosen(table):
    path = table(OWN)
    assert _ready(path=path, target="sick", drop=["site", "colour"]).feature_names == ["age"]
    assert _ready(path=path, target="sick", columns=["site"]).feature_names == ["site=a", "site=b"]
    dropped = _ready(path=path, target="sick", columns=["age"], partitioner=GroupBy(column="site"))
    assert dropped.client_names() == ["a", "b"]
    numbers = _ready(path=path, target="sick", columns=["age"], categorical=["age"])
    assert numbers.feature_names == ["age=30", "age=40", "age=50", "age=60", "age=?"]


def test_a_gap_has_several_names_among_numbers_and_is_a_category_among_texts(table):
    data = _ready(
        path=table("x,c,sick\n1,NA,no\nNA,b,yes\nnan,b,no\n3,null,yes\n"), target="sick", split=(1.0, 0.0, 0.0)
    )
    assert data.feature_names == ["x", "c=NA", "c=b", "c=null"]
    # 1 and 3: mean 2, deviation 1; what is missing becomes the mean
    assert data._held["train"].tensors[0][:, 0].tolist() == [-1.0, 0.0, 0.0, 1.0]


@pytest.mark.parametrize("column", ["dose", "sick"])
def test_numbers_among_texts_that_become_categories_are_named(table, column):
    """A column of categories, or of classes, in which some cells are numbers."""
    rows = ["1,no", "low,yes", "high,no", "low,yes"] if column == "dose" else ["1,0", "2,1", "3,x", "4,1"]
    with pytest.warns(UserWarning, match=rf"column '{column}' holds numbers and [13] texts, row"):
        data = _ready(path=table("\n".join(["dose,sick", *rows])), target="sick", split=(1.0, 0.0, 0.0))
    assert data.classes == (["no", "yes"] if column == "dose" else ["0", "1", "x"])


def test_a_target_of_fractions_with_a_text_has_no_classes(table):
    with pytest.raises(DataError, match="target column 'y'.*are no classes"):
        _ready(path=table("x,y\n1,0.5\n2,1.5\n3,2.5\n4,none yet\n"), target="y")


def test_whole_numbers_as_classes_keep_their_order(table):
    rows = "".join(f"{i},{(2, 10, 1)[i % 3]}\n" for i in range(9))
    data = _ready(path=table("x,class\n" + rows), target="class", split=(1.0, 0.0, 0.0))
    assert data.classes == ["1", "2", "10"]
    assert data._held["train"].tensors[1].tolist() == [1, 2, 0] * 3


def test_another_target_of_a_card(adult):
    with pytest.warns(UserWarning, match="is not the file"):
        data = _ready(
            name="adult", data_root=adult, target="education", columns=["age", "income"], categorical=["income"]
        )
    assert data.classes == ["11th", "Bachelors", "Doctorate", "HS-grad"]
    assert data.feature_names == ["age", "income=<=50K", "income=>50K"]


class Logistic(LightningModule):
    def __init__(self, num_features, num_classes):
        super().__init__()
        self.linear = nn.Linear(num_features, num_classes)

    def training_step(self, batch, batch_idx):
        features, targets = batch
        loss = nn.functional.cross_entropy(self.linear(features), targets)
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        features, targets = batch
        self.log("accuracy", (self.linear(features).argmax(1) == targets).float().mean())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.5)


def test_a_federation_learns_from_a_table(table, tmp_path):
    rows = "".join(f"{i % 7},{'ab'[i % 2]},{('low', 'high')[(i % 7) > 3]}\n" for i in range(140))
    data = TableData(
        path=table("x,site,class\n" + rows), target="class", partitioner=GroupBy(column="site"), batch_size=8
    )
    data.prepare_data()
    data.setup("fit")
    module = Logistic(data.num_features, data.num_classes)
    trainer = FederatedTrainer(max_rounds=4, accelerator="cpu", devices=1, default_root_dir=str(tmp_path))
    trainer.fit(module, data)
    with torch.no_grad():
        right = [
            (module.linear(x).argmax(1) == y).float().mean() for x, y in (_rows(data, c, "test") for c in range(2))
        ]
    assert min(right) > 0.9


def test_standardize_by_hand():
    training = torch.tensor([[1.0, 4.0, float("nan")], [3.0, 4.0, float("nan")]], dtype=torch.float64)
    numbers = torch.tensor([[1.0, 9.0, 5.0], [float("nan"), 4.0, float("nan")]], dtype=torch.float64)
    mean, std = column_statistics(training)
    assert (mean.tolist(), std.tolist()) == ([2.0, 4.0, 0.0], [1.0, 0.0, 0.0])
    standardized = standardize(numbers, mean, std)
    assert standardized.dtype == torch.float32
    assert standardized.tolist() == [[-1.0, 0.0, 0.0], [0.0, 0.0, 0.0]]


def test_one_hot_without_numbers_and_the_other_way_round(table):
    frame = read_csv(Path(table("x,c\n1,u\n2,v\n")))
    categories = TableSchema.of([frame], ["c"], None, "here")
    assert categories.numbers(frame).shape == (2, 0)
    assert categories.one_hot(frame).tolist() == [[1, 0], [0, 1]]
    numeric = TableSchema.of([frame], ["x"], None, "here")
    assert numeric.one_hot(frame).shape == (2, 0)
    assert numeric.numbers(frame).tolist() == [[1], [2]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "name=None, path=None: give one of them"),
        ({"name": "adult", "path": "x.csv"}, "give one of them"),
        ({"path": "x.csv", "target": "y", "data_root": "d"}, "path='x.csv' and data_root='d'"),
        ({"path": "x.csv"}, "path='x.csv' without target"),
        ({"path": "x.csv", "target": "y", "columns": []}, "name one or more columns to learn from"),
        ({"path": "x.csv", "target": "y", "columns": ["y"]}, "without the target"),
        ({"path": "x.csv", "target": "y", "columns": ["a"], "drop": ["b"]}, "or those to drop"),
        ({"name": "esol"}, "card 'esol' describes molecules, not a table: use MoleculeNet"),
    ],
)
def test_arguments_are_checked_at_once(arguments, message):
    with pytest.raises(ConfigurationError, match=message):
        TableData(partitioner=IID(num_clients=1), **arguments)


@pytest.mark.parametrize(
    ("text", "arguments", "message"),
    [
        (OWN, {"target": "sik"}, r"own.csv has no column 'sik' \(did you mean 'sick'\?\). It has age, colour"),
        (OWN, {"columns": ["ag"]}, "no column 'ag'"),
        (OWN, {"drop": ["colours"]}, "no column 'colours'"),
        (OWN, {"drop": ["age", "colour", "site"]}, "no column to learn from besides the target 'sick'"),
        (OWN, {"categorical": ["sick"]}, "categorical=.*'sick' is none of the columns to learn from"),
        (
            OWN,
            {"categorical": ["site"]},
            r"column 'colour': 4 values are not finite numbers: row 2 'red', row",
        ),
        (OWN, {"partitioner": GroupBy(column="town")}, "no column 'town'"),
        (OWN, {"partitioner": GroupBy(column="colour")}, r"column 'colour' has no value in 1 rows: row 3 '\?'"),
        ("a,sick\n1,no\n2,?\n", {}, "1 different values: there is nothing to learn"),
        ("a,sick\n1,no\n2,?\n3,yes\n", {}, r"target column 'sick': 1 values are none of the classes no, yes: row 3"),
        ("a,sick\n1,no\n2,no\n", {}, "1 different values: there is nothing to learn"),
        ("a,sick\n1,0.5\n2,0.7\n", {}, "2 different values, such as '0.5': they are no classes"),
        ("a,sick\n1,\n2,\n", {}, "0 different values: there is nothing to learn"),
        ("a,sick\n", {}, "no rows of data, only a header"),
        ("a,sick\n\n\n", {}, "no rows of data, only a header"),
        ("", {}, "own.csv is empty"),
        ("a,b,sick\n1,?,no\n2,,yes\n", {}, "column 'b' has no value in any row: drop it"),
        ("a,sick\n" + "".join(f"n{i},{i % 2}\n" for i in range(1001)), {}, "1001 different values, such as 'n0'"),
        ("a,sick\n" + "".join(f"1,n{i}\n" for i in range(1001)), {}, "1001 different values, .* are no classes"),
        ('a,sick\n"1,no\n', {}, "cannot be read as a table"),
        (
            "a,sick\n1,no\n2,yes\ninf,no\n3,yes\n",
            {},
            "column 'a': 1 values are not finite numbers: row 4 'inf'. Correct them, or name the columns of categories",
        ),
        ("a,sick\n1,no\n2,yes\n12 mg,no\n", {}, "row 4 '12 mg'.*without its unit"),
        ("a,sick\n1,no\n-1e200,yes\n", {}, r"column 'a': 1 values are above 1e\+150, .*: row 3 '-1e200'"),
    ],
)
def test_tables_are_checked(table, text, arguments, message):
    with pytest.raises(DataError, match=message):
        _ready(**({"path": table(text), "target": "sick"} | arguments))


def test_files_are_checked(tmp_path, adult):
    with pytest.raises(DataError, match="is no file .looked for"):
        _ready(path=str(tmp_path / "absent.csv"), target="y")
    with pytest.raises(DataError, match="adult.data of data set adult was not found"):
        TableData(name="adult", partitioner=IID(num_clients=1)).setup("fit")
    short = tmp_path / "short.data"
    short.write_text("1, 2\n\n3\n")
    with pytest.raises(DataError, match="short.data, line 3 has 1 values for the 2 columns a, b"):
        read_c45(short, ["a", "b"])
    short.write_text("| nothing but a comment\n")
    with pytest.raises(DataError, match="short.data has no rows of data"):
        read_c45(short, ["a", "b"])
    broken = tmp_path / "broken.data.gz"
    broken.write_bytes(gzip.compress(b"1,2\n" * 1000)[:-20])
    with pytest.raises(DataError, match=r"broken.data.gz cannot be read"):
        read_c45(broken, ["a", "b"])


def test_names_are_known_once_the_data_are_read(table):
    data = TableData(path=table(OWN), target="sick", partitioner=IID(num_clients=2))
    for name in ("classes", "feature_names", "num_classes", "num_features"):
        with pytest.raises(DataError, match="the rows are not read yet"):
            getattr(data, name)


def test_the_card_of_adult():
    card = load_card("adult")
    assert isinstance(card, TableCard)
    assert card.num_rows == 32_561 + 16_281
    assert [file.name for file in card.files] == ["adult.data", "adult.test"]
    assert len(card.columns) == 15
    assert card.details()["groups"] == "doctorate (doctorate, non-doctorate; from education)"
    assert card.details()["target"] == "income: <=50K, >50K"
    assert card.details()["columns"].startswith("age, workclass (categories), fnlwgt")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"files": []}, r"files: got 0 files; give the training data"),
        ({"rows": {"train": 1, "test": None}}, "rows.test=None with 2 files"),
        ({"rows": {"train": 0, "test": 1}}, "train=0: give a count"),
        ({"columns.names": ["a", "a"]}, "columns.names: give two or more names, all different"),
        ({"columns.classes": ["one"]}, "columns.classes: give two or more names"),
        ({"columns.target": "incom"}, r"columns.target: there is no column 'incom' \(did you mean 'income'\?\)"),
        ({"columns.categorical": ["income"]}, "columns.categorical: there is no column 'income'"),
        ({"columns.derived": [{"name": "x"}]}, r"columns.derived\[0\]: missing key 'column'"),
        (
            {"columns.derived": [{"name": "age", "column": "age", "values": ["1"], "label": "a", "other": "b"}]},
            r"columns.derived\[0\]: name='age', values=\['1'\]: give a name that no column has",
        ),
        (
            {"columns.derived": [{"name": "x", "column": "agee", "values": ["1"], "label": "a", "other": "b"}]},
            "there is no column 'agee'",
        ),
        ({"standin": "digits"}, "standin='digits': expected one of"),
    ],
)
def test_a_card_is_checked(tmp_path, change, message):
    content = yaml.safe_load(load_card("adult").path.read_text())
    for key, value in change.items():
        *parents, last = key.split(".")
        entry = content
        for parent in parents:
            entry = entry[parent]
        entry[last] = value
    path = tmp_path / "own.yaml"
    path.write_text(yaml.safe_dump(content))
    with pytest.raises(ConfigurationError, match=message):
        load_card(path)


def test_a_card_of_one_s_own_with_training_data_only(tmp_path):
    content = yaml.safe_load(load_card("adult").path.read_text())
    content |= {"name": "mine", "rows": {"train": 40, "test": None}}
    content["files"] = [{"name": "mine.data", "sha256": [], "addresses": []}]
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(content))
    (tmp_path / "mine.data").write_text(_adult(40))
    data = _ready(name=str(path), data_root=str(tmp_path))
    assert [data.num_samples(split) for split in ("train", "val", "test")] == [[32], [4], [4]]
    assert data.describe()["files"][0]["file"] == "mine.data"


def test_incomplete_rows_are_left_out_where_asked(table):
    text = "age,colour,site,extra,sick\n30,red,a,,no\n40,,a,1,yes\n?,blue,b,1,no\n60,red,b,,yes\n50,blue,b,1,no\n"
    kept = _ready(path=table(text), target="sick", drop=["extra"], incomplete="leave_out", split=(1, 0, 0))
    assert kept.describe()["rows"] == {"train": 3}
    assert kept.describe()["incomplete_rows_left_out"] == {"train": 2}
    assert _ready(path=table(text), target="sick", drop=["extra"], split=(1, 0, 0)).describe()["rows"] == {"train": 5}
    gaps = "age,extra,sick\n30,,no\n,1,yes\n"
    with pytest.raises(DataError, match="incomplete=leave_out leaves no row, for none has a value in each of"):
        _ready(path=table(gaps), target="sick", incomplete="leave_out", split=(1, 0, 0))
    with pytest.raises(ConfigurationError, match="incomplete='drop': give one of"):
        TableData(path="a.csv", target="sick", incomplete="drop", partitioner=IID(num_clients=1))


def test_a_whole_number_with_a_point_is_the_same_category(table):
    text = "kind,age,sick\n1,30,no\n1.0,40,yes\n2,50,no\n2.0,60,yes\n10,70,no\n?,30,yes\n"
    data = _ready(path=table(text), target="sick", categorical=["kind"], split=(1, 0, 0))
    assert data.feature_names == ["age", "kind=1", "kind=10", "kind=2", "kind=?"]
    features, _ = _rows(data, 0, "train")
    assert sorted(features[:, 1].tolist()) == [0, 0, 0, 0, 1, 1]
    only_points = _ready(path=table(text.replace("1,30", "1.0,30").replace("2,50", "2.0,50").replace("10,", "10.0,")),
                         target="sick", categorical=["kind"], split=(1, 0, 0))  # fmt: skip
    assert only_points.feature_names == ["age", "kind=1.0", "kind=10.0", "kind=2.0", "kind=?"]
    newcomer = only_points.newcomer_data(table("kind,age,sick\n1,30,no\n", "new.csv"), only_points.describe())
    assert newcomer.tensors[0][0, 1:].tolist() == [1, 0, 0, 0]


def test_the_card_of_heart_disease_learns_nothing_from_what_the_target_is_made_of(tmp_path):
    card = load_card("heart_disease")
    header = ",".join(card.columns)
    rows = [
        f"s{i % 2},5{i % 10},1,{1 + i % 4},120,20{i % 7},{i % 2},{i % 3},15{i % 9},0,1.{i % 5},,,,{i % 5}"
        for i in range(60)
    ]
    (tmp_path / "heart_disease_4sites.csv").write_text("\n".join([header, *rows]) + "\n")
    with pytest.warns(UserWarning, match="is not the file that card heart_disease describes"):
        data = _ready(name="heart_disease", data_root=str(tmp_path), partitioner=GroupBy(column="site"))
    assert data.num_features == 15
    assert not {"num", "site", "slope", "disease"} & {name.partition("=")[0] for name in data.feature_names}
    assert data.classes == ["no", "yes"]
    _, targets = data.client_data(0, "train").dataset.tensors
    assert targets.tolist() == [int(i % 5 > 0) for i in range(60)]
    other = _ready(name="heart_disease", data_root=str(tmp_path), target="fbs", columns=["age", "num"])
    assert other.feature_names == ["age", "num"]
