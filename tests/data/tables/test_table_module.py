import gzip
import math
from pathlib import Path

import pytest
import torch
import yaml
from rounding import rounding
from table_files import OWN, ready

from lightning_fl import FederatedTrainer
from lightning_fl.data.cards.lookup import load_card
from lightning_fl.data.division import ColumnDivision, ListDivision
from lightning_fl.data.partition import IID, GroupBy
from lightning_fl.data.tables.dataset import TableSchema, column_statistics, read_csv, standardize
from lightning_fl.data.tables.module import TableData
from lightning_fl.models import ClassificationModel

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


def _rows(data, client, split):
    subset = data.client_data(client, split)
    features, targets = subset.dataset.tensors
    return features[subset.indices], targets[subset.indices]


def test_adult_by_doctorate(adult):
    with pytest.warns(UserWarning, match="adult.test.gz .*card adult"):
        data = ready(name="adult", data_root=adult, partitioner=GroupBy(column="doctorate"), split=(0.8, 0.2, 0.0))
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
    record, details = data.describe(), data.card.details()
    assert (record["source"], record["rows"], record["num_features"]) == ("measured", {"train": 40, "test": 16}, 19)
    assert details["groups"] == "doctorate (doctorate, non-doctorate; from education)"
    assert details["target"] == "income: <=50K, >50K"
    assert details["columns"].startswith("age, workclass (categories), fnlwgt")
    assert [file["file"] for file in record["files"]] == ["adult.data", "adult.test.gz"]
    assert record["files"][0]["verified"] is False


def test_numbers_are_standardised_by_all_clients_training_rows(adult):
    with pytest.warns(UserWarning, match="is not the file"):
        data = ready(name="adult", data_root=adult, partitioner=IID(num_clients=3), split=(0.5, 0.5, 0.0))
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
    data = ready(path=table(OWN), target="sick", partitioner=GroupBy(column="site"), split=(1.0, 0.0, 0.0))
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
    assert ready(path=path, target="sick", drop=["site", "colour"]).feature_names == ["age"]
    assert ready(path=path, target="sick", columns=["site"]).feature_names == ["site=a", "site=b"]
    dropped = ready(path=path, target="sick", columns=["age"], partitioner=GroupBy(column="site"))
    assert dropped.client_names() == ["a", "b"]
    numbers = ready(path=path, target="sick", columns=["age"], categorical=["age"])
    assert numbers.feature_names == ["age=30", "age=40", "age=50", "age=60", "age=?"]


def test_a_gap_has_several_names_among_numbers_and_is_a_category_among_texts(table):
    data = ready(
        path=table("x,c,sick\n1,NA,no\nNA,b,yes\nnan,b,no\n3,null,yes\n"), target="sick", split=(1.0, 0.0, 0.0)
    )
    assert data.feature_names == ["x", "c=NA", "c=b", "c=null"]
    # 1 and 3: mean 2, deviation 1; what is missing becomes the mean
    assert data._held["train"].tensors[0][:, 0].tolist() == [-1.0, 0.0, 0.0, 1.0]


@pytest.mark.parametrize("column", ["dose", "sick"])
def test_numbers_among_texts_that_become_categories_are_named(table, column):
    """A column of categories, or of classes, in which some cells are numbers."""
    rows = ["1,no", "low,yes", "high,no", "low,yes"] if column == "dose" else ["1,0", "2,1", "3,x", "4,1"]
    with pytest.warns(UserWarning, match=rf"column '{column}' .*[13] texts, row"):
        data = ready(path=table("\n".join(["dose,sick", *rows])), target="sick", split=(1.0, 0.0, 0.0))
    assert data.classes == (["no", "yes"] if column == "dose" else ["0", "1", "x"])


def test_whole_numbers_as_classes_keep_their_order(table):
    rows = "".join(f"{i},{(2, 10, 1)[i % 3]}\n" for i in range(9))
    data = ready(path=table("x,class\n" + rows), target="class", split=(1.0, 0.0, 0.0))
    assert data.classes == ["1", "2", "10"]
    assert data._held["train"].tensors[1].tolist() == [1, 2, 0] * 3


def test_a_whole_number_with_a_point_is_the_same_class(table):
    data = ready(path=table("x,class\n1,1\n2,1.0\n3,0\n4,0.0\n"), target="class", split=(1.0, 0.0, 0.0))
    assert data.classes == ["0", "1"]
    assert data._held["train"].tensors[1].tolist() == [1, 1, 0, 0]


@pytest.mark.parametrize("cell", ["{},5", "2024-01-{:02}", "patient {}"])
def test_a_column_of_texts_that_mostly_differ_is_named(table, cell):
    rows = "".join(f'"{cell.format(i)}",{i % 2}\n' for i in range(1, 31))
    with pytest.warns(UserWarning, match="'dose' has 30 different texts"):
        ready(path=table("dose,sick\n" + rows), target="sick", split=(1.0, 0.0, 0.0))


def test_another_target_of_a_card(adult):
    with pytest.warns(UserWarning, match="is not the file"):
        data = ready(
            name="adult", data_root=adult, target="education", columns=["age", "income"], categorical=["income"]
        )
    assert data.classes == ["11th", "Bachelors", "Doctorate", "HS-grad"]
    assert data.feature_names == ["age", "income=<=50K", "income=>50K"]


@pytest.mark.parametrize(("target", "task"), [("education", "classification"), ("age", "regression")])
def test_the_classes_of_a_card_are_categories_where_another_column_is_the_target(adult, target, task):
    with pytest.warns(UserWarning, match="is not the file"):
        data = ready(name="adult", data_root=adult, target=target, task=task)
    assert data.feature_names[-2:] == ["income=<=50K", "income=>50K"]


def test_a_federation_learns_from_a_table(table, tmp_path):
    rows = "".join(f"{i % 7},{'ab'[i % 2]},{('low', 'high')[(i % 7) > 3]}\n" for i in range(140))
    data = TableData(
        path=table("x,site,class\n" + rows), target="class", partitioner=GroupBy(column="site"), batch_size=8
    )
    data.prepare_data()
    data.setup("fit")
    module = ClassificationModel(
        network="mlp", in_shape=[data.num_features], num_classes=data.num_classes, hidden_sizes=[], learning_rate=0.5
    )
    trainer = FederatedTrainer(max_rounds=4, accelerator="cpu", devices=1, default_root_dir=str(tmp_path))
    trainer.fit(module, data)
    assert trainer.test(module, data)["test/acc"].worst > 0.9


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


def test_a_card_of_one_s_own_with_training_data_only(tmp_path):
    content = yaml.safe_load(load_card("adult").path.read_text())
    content |= {"name": "mine", "rows": {"train": 40, "test": None}}
    content["files"] = [{"name": "mine.data", "sha256": [], "addresses": []}]
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(content))
    (tmp_path / "mine.data").write_text(_adult(40))
    data = ready(name=str(path), data_root=str(tmp_path))
    assert [data.num_samples(split) for split in ("train", "val", "test")] == [[32], [4], [4]]
    assert data.describe()["files"][0]["file"] == "mine.data"


def test_incomplete_rows_are_left_out_where_asked(table):
    text = "age,colour,site,extra,sick\n30,red,a,,no\n40,,a,1,yes\n?,blue,b,1,no\n60,red,b,,yes\n50,blue,b,1,no\n"
    kept = ready(path=table(text), target="sick", drop=["extra"], incomplete="leave_out", split=(1, 0, 0))
    assert kept.describe()["rows"] == {"train": 3}
    assert kept.describe()["incomplete_rows_left_out"] == {"train": 2}
    assert ready(path=table(text), target="sick", drop=["extra"], split=(1, 0, 0)).describe()["rows"] == {"train": 5}


@pytest.mark.parametrize("gap", ["", "?", "NA", "nan"])
def test_a_row_with_a_gap_among_numbers_is_incomplete_by_any_name(table, gap):
    text = f"x,c,sick\n1,NA,no\n{gap},b,yes\n3,b,no\n4,NA,yes\n"
    data = ready(path=table(text), target="sick", incomplete="leave_out", split=(1, 0, 0))
    assert data.describe()["rows"] == {"train": 3}
    assert data.describe()["incomplete_rows_left_out"] == {"train": 1}
    assert data.feature_names == ["x", "c=NA", "c=b"]


def test_incomplete_rows_need_not_be_right_otherwise(table):
    text = "x,c,sick\n12 mg,,no\nlow,,yes\n3,b,no\nNA,b,no\n4,b,yes\n"
    data = ready(path=table(text), target="sick", incomplete="leave_out", split=(1, 0, 0))
    assert data.describe()["incomplete_rows_left_out"] == {"train": 3}
    assert data.feature_names == ["x", "c=b"]


def test_rows_that_a_published_split_does_not_cover_are_left_out(table):
    path = table("x,part,sick\n1,train,no\n2,,yes\n3,test,no\n4,train,yes\n5,,no\n")
    division = ColumnDivision(column="part", leave_out=[""])
    data = ready(path=path, target="sick", columns=["x"], division=division, split=(0.8, 0.0, 0.2))
    assert {split: list(of) for split, of in data.held_rows(0).items()} == {"train": [2, 5], "val": [], "test": [4]}
    assert data.held_source()["numbering"] == "rows"
    lists = table("train: [2, 5]\ntest: [4]\n", "lists.yaml")
    division = ListDivision(path=lists, unlisted="leave_out")
    again = ready(path=path, target="sick", columns=["x"], division=division, split=(0.8, 0.0, 0.2))
    assert again.held_rows(0) == data.held_rows(0)
    assert torch.equal(_rows(again, 0, "test")[0], _rows(data, 0, "test")[0])


def test_a_whole_number_with_a_point_is_the_same_category(table):
    text = "kind,age,sick\n1,30,no\n1.0,40,yes\n2,50,no\n2.0,60,yes\n10,70,no\n?,30,yes\n"
    data = ready(path=table(text), target="sick", categorical=["kind"], split=(1, 0, 0))
    assert data.feature_names == ["age", "kind=1", "kind=10", "kind=2", "kind=?"]
    features, _ = _rows(data, 0, "train")
    assert sorted(features[:, 1].tolist()) == [0, 0, 0, 0, 1, 1]
    only_points = ready(path=table(text.replace("1,30", "1.0,30").replace("2,50", "2.0,50").replace("10,", "10.0,")),
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
    with pytest.warns(UserWarning, match="card heart_disease"):
        data = ready(name="heart_disease", data_root=str(tmp_path), partitioner=GroupBy(column="site"))
    assert data.num_features == 15
    assert not {"num", "site", "slope", "disease"} & {name.partition("=")[0] for name in data.feature_names}
    assert data.classes == ["no", "yes"]
    _, targets = data.client_data(0, "train").dataset.tensors
    assert targets.tolist() == [int(i % 5 > 0) for i in range(60)]
    other = ready(name="heart_disease", data_root=str(tmp_path), target="fbs", columns=["age", "num"])
    assert other.feature_names == ["age", "num"]
