"""A new client's file is preprocessed like the run's data, from the run's record alone."""

import json
import re

import numpy as np
import pytest
import torch
from image_files import cycle, pictures, write_npz
from PIL import Image

from lightning_fl.core.errors import ConfigurationError, DataError
from lightning_fl.data import IID, ImageData, ImageDomains, ImageFolders, MoleculeCSV, MoleculeNet, Silos, TableData
from lightning_fl.data.cards.lookup import load_card
from lightning_fl.data.shifts import Inversion


def record_of(data):
    data.prepare_data()
    data.setup("fit")
    return json.loads(json.dumps(data.describe()))


def batch_of(data, dataset, index):
    return data.on_after_batch_transfer([part[index] for part in dataset.tensors], 0)


class TestTables:
    TEXT = "x,c,const,y\n1,u,3,no\n4,?,3,yes\n,v,3,no\n10,u,3,yes\n5,v,3,yes\n7,u,3,no\n"

    @pytest.fixture
    def run(self, tmp_path):
        (tmp_path / "run.csv").write_text(self.TEXT)
        path = str(tmp_path / "run.csv")
        data = TableData(path=path, target="y", partitioner=IID(num_clients=2), split=(0.5, 0.25, 0.25), split_seed=0)
        return data, record_of(data)

    def test_incomplete_rows_are_left_out_as_in_the_run(self, tmp_path):
        path = tmp_path / "gaps.csv"
        path.write_text("x,z,y\n1,1,no\n4,,yes\n2,3,no\n10,5,yes\n5,,yes\n7,2,no\n")
        for incomplete, count in (("leave_out", 4), ("keep", 6)):
            data = TableData(path=str(path), target="y", partitioner=IID(num_clients=2), incomplete=incomplete)
            assert len(data.newcomer_data(str(path), record_of(data))) == count

    def test_a_row_without_a_category_is_left_out_and_an_unknown_one_refused(self, tmp_path):
        (tmp_path / "run.csv").write_text("x,c,y\n1,u,no\n4,v,yes\n2,u,no\n10,v,yes\n")
        path = str(tmp_path / "run.csv")
        data = TableData(path=path, target="y", partitioner=IID(num_clients=2), incomplete="leave_out")
        record, new = record_of(data), tmp_path / "new.csv"
        new.write_text("x,c,y\n1,,no\n4,?,yes\n2,v,no\n")
        found = data.newcomer_data(str(new), record)
        assert found.tensors[0][:, 1:].tolist() == [
            [float(value == "v") for value in record["encoding"]["categories"]["c"]]
        ]
        new.write_text("x,c,y\n1,,no\n4,w,yes\n")
        with pytest.raises(DataError, match="'c' has values .*row 3 'w'"):
            data.newcomer_data(str(new), record)

    def fresh(self, run):
        return TableData(path=run[0].path, target="y", partitioner=IID(num_clients=2))

    def test_the_same_rows_have_the_same_features(self, run, tmp_path):
        data, record = run
        (tmp_path / "new.csv").write_text("y,const,extra,c,x\nyes,3,a,u,10\nno,4,b,v,\n")  # columns in another order
        found = self.fresh(run).newcomer_data(str(tmp_path / "new.csv"), record)
        features, _ = data._held["train"].tensors
        assert torch.equal(found.tensors[0][0], features[3])
        assert found.tensors[0][1, :2].tolist() == [0.0, 0.0]  # a missing number is the mean; the other is constant
        assert found.tensors[1].tolist() == [record["classes"].index("yes"), record["classes"].index("no")]

    def test_statistics_are_those_of_the_run(self, run, tmp_path):
        record = run[1]
        (tmp_path / "new.csv").write_text("x,c,const,y\n100,u,3,no\n200,u,3,no\n")
        found = self.fresh(run).newcomer_data(str(tmp_path / "new.csv"), record)
        place = record["encoding"]["numeric"].index("x")
        mean, std = record["encoding"]["mean"][place], record["encoding"]["std"][place]
        assert found.tensors[0][:, place].tolist() == pytest.approx([(100 - mean) / std, (200 - mean) / std])

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("x,const,y\n1,3,no\n", "has no column 'c'"),
            ("x,c,const\n1,u,3\n", "has no column 'y'"),
            ("x,c,const,y\n1,w,3,no\n", "'c' has values .*row 2 'w'"),
            ("x,c,const,y\n1,u,3,no\nz,u,3,no\n", "'x' has values .*row 3 'z'"),
            ("x,c,const,y\n1,u,3,maybe\n", "'y' has values"),
            ("x,c,const,y\n", "has no rows of data"),
        ],
    )
    def test_what_does_not_fit_is_refused(self, run, tmp_path, text, message):
        (tmp_path / "new.csv").write_text(text)
        with pytest.raises(DataError, match=message):
            self.fresh(run).newcomer_data(str(tmp_path / "new.csv"), run[1])

    def test_files_and_records(self, run, tmp_path):
        with pytest.raises(DataError, match=r"new\.txt"):
            self.fresh(run).newcomer_data("new.txt", run[1])
        with pytest.raises(DataError, match=r"new\.csv"):
            self.fresh(run).newcomer_data("new.csv", run[1])
        with pytest.raises(ConfigurationError, match="encoding"):
            self.fresh(run).newcomer_data("new.csv", {})

    def test_a_card_derives_its_columns(self, tmp_path):
        card = load_card("adult")
        (derived,) = card.derived
        (tmp_path / "new.csv").write_text(f"{derived.column},{card.target}\n{derived.values[0]},{card.classes[0]}\n")
        data = TableData(name="adult", partitioner=IID(num_clients=2), columns=[derived.name])
        encoding = {"numeric": [], "categories": {derived.name: sorted([derived.label, derived.other])}}
        record = {
            "target": card.target,
            "classes": list(card.classes),
            "encoding": encoding | {"mean": [], "std": []},
        }
        found = data.newcomer_data(str(tmp_path / "new.csv"), record)
        expected = [float(value == derived.label) for value in encoding["categories"][derived.name]]
        assert found.tensors[0].tolist() == [expected]


class TestImages:
    @pytest.fixture
    def run(self, tmp_path):
        write_npz(tmp_path / "run.npz")
        data = ImageData(
            name=str(tmp_path / "run.npz"),
            source="real",
            partitioner=IID(num_clients=2),
            split_seed=0,
            augment=["flip"],
            shifts=[Inversion(clients=[1])],
        )
        return data, record_of(data)

    def fresh(self, run, **kwargs):
        return ImageData(name=run[0].origin.name, source="real", partitioner=IID(num_clients=2), **kwargs)

    def test_all_parts_normalised_as_the_run(self, run, tmp_path):
        shape = (4, *run[1]["image_shape"][1:], 1)
        images = np.arange(np.prod(shape)).reshape(shape).astype(np.uint8)
        np.savez(
            tmp_path / "new.npz",
            train_images=images[:3],
            train_labels=cycle(3),
            test_images=images[3:],
            test_labels=cycle(1),
        )
        data = self.fresh(run)
        found = data.newcomer_data(str(tmp_path / "new.npz"), run[1])
        assert found.tensors[1].tolist() == [0, 1, 2, 0]
        batch, _ = batch_of(data, found, slice(None))
        known = run[1]["normalization"]
        expected = (images[..., 0] / 255 - known["mean"][0]) / known["std"][0]
        np.testing.assert_allclose(batch[:, 0], expected, atol=1e-5)

    def test_size_and_colours_are_converted_as_the_run_did(self, run, tmp_path):
        write_npz(tmp_path / "new.npz", size=12)
        data = self.fresh(run, size=8, channels=3)
        record = run[1] | {"image_shape": [3, 8, 8]}
        assert data.newcomer_data(str(tmp_path / "new.npz"), record).tensors[0].shape[1:] == (3, 8, 8)

    def test_what_does_not_fit_is_refused(self, run, tmp_path):
        record = run[1]
        shape = record["image_shape"]
        write_npz(tmp_path / "large.npz", size=12)
        with pytest.raises(DataError, match=f"{re.escape('[1, 12, 12]')}.*{re.escape(str(shape))}"):
            self.fresh(run).newcomer_data(str(tmp_path / "large.npz"), record)
        np.savez(tmp_path / "more.npz", train_images=pictures(8), train_labels=cycle(8, 8))
        with pytest.raises(DataError, match="3 classes"):
            self.fresh(run).newcomer_data(str(tmp_path / "more.npz"), record)
        np.savez(tmp_path / "unlabelled.npz", train_images=pictures(8))
        with pytest.raises(DataError, match="train_labels"):
            self.fresh(run).newcomer_data(str(tmp_path / "unlabelled.npz"), record)
        with pytest.raises(DataError, match=r"gone\.npz"):
            self.fresh(run).newcomer_data("gone.npz", record)
        with pytest.raises(ConfigurationError, match=r"ends in .npz"):
            self.fresh(run).newcomer_data("new.csv", record)

    def test_a_domain_of_its_own(self, tmp_path):
        for name in ("one", "two", "new"):
            write_npz(tmp_path / f"{name}.npz", size=10)
        names = [str(tmp_path / f"{name}.npz") for name in ("one", "two")]
        data = ImageDomains(domains=names, size=8)
        record = record_of(data)
        fresh = ImageDomains(domains=names, size=8)
        found = fresh.newcomer_data(str(tmp_path / "new.npz"), record)
        assert found.tensors[0].shape[1:] == (3, 8, 8)
        assert torch.equal(batch_of(fresh, found, slice(4))[0], batch_of(data, found, slice(4))[0])

    def test_a_further_silo(self, tmp_path):
        for silo, classes in (("north", "ab"), ("south", "bc"), ("new", "ca")):
            for place, name in enumerate(classes):
                folder = tmp_path / silo / name
                folder.mkdir(parents=True)
                for number in range(4):
                    Image.new("RGB", (8, 8), (60 * place + number,) * 3).save(folder / f"{number}.png")
        data = ImageFolders(root=str(tmp_path), silos=["north", "south"], size=8)
        record = record_of(data)
        fresh = ImageFolders(root=str(tmp_path / "elsewhere"), size=8)
        found = fresh.newcomer_data(str(tmp_path / "new"), record)
        assert found.tensors[1].tolist() == [0] * 4 + [2] * 4
        batch, _ = batch_of(fresh, found, slice(4))
        np.testing.assert_allclose(batch[:, 0, 0, 0], ((60 + np.arange(4)) / 255 - 0.5) / 0.5, atol=1e-5)
        with pytest.raises(DataError, match="nowhere"):
            fresh.newcomer_data(str(tmp_path / "nowhere"), record)


class TestMolecules:
    def test_the_same_columns_and_features(self, tmp_path):
        (tmp_path / "run.csv").write_text("structure,y,z,lab\nCCO,1,2,a\nCCN,3,,a\nCCC,5,6,b\nCC,1,1,b\n")
        (tmp_path / "new.csv").write_text("z,structure,y\n2,CCO,1\n,CCN,3\n")
        arguments = {"path": str(tmp_path / "run.csv"), "target_columns": ["y", "z"], "smiles_column": "structure"}
        data = MoleculeCSV(**arguments, group_column="lab", split=(1.0, 0.0, 0.0))
        found = MoleculeCSV(**arguments, group_column="lab").newcomer_data(str(tmp_path / "new.csv"), record_of(data))
        for old, new in zip(data.dataset[:2], found, strict=True):
            assert torch.equal(old.x, new.x)
            assert torch.equal(old.y.nan_to_num(-1), new.y.nan_to_num(-1))

    def test_a_client_may_have_measured_some_targets_only(self, tmp_path):
        (tmp_path / "run.csv").write_text("structure,y,z\nCCO,1,2\nCCN,3,4\n")
        (tmp_path / "new.csv").write_text("structure,y,z\nCCO,1,\n")
        arguments = {"path": str(tmp_path / "run.csv"), "target_columns": ["y", "z"], "smiles_column": "structure"}
        data = MoleculeCSV(**arguments, partitioner=IID(num_clients=2), split=(1.0, 0.0, 0.0))
        found = data.newcomer_data(str(tmp_path / "new.csv"), record_of(data))
        assert found.targets.nan_to_num(-1).tolist() == [[1, -1]]

    @pytest.mark.slow
    def test_a_card_names_the_columns(self, tmp_path):
        data = MoleculeNet(name="esol", source="standin", partitioner=IID(num_clients=2))
        with pytest.warns(UserWarning, match="STAND-IN"):
            record = record_of(data)
        (tmp_path / "new.csv").write_text(f"{data.card.smiles},{data.card.targets[0].name}\nCCO,-0.5\n")
        assert data.newcomer_data(str(tmp_path / "new.csv"), record).targets.tolist() == [[-0.5]]
        (tmp_path / "bad.csv").write_text(f"{data.card.smiles},other\nCCO,-0.5\n")
        with pytest.raises(DataError, match="has no column"):
            data.newcomer_data(str(tmp_path / "bad.csv"), record)
        with pytest.raises(DataError, match=r"new\.sdf"):
            data.newcomer_data("new.sdf", record)


def test_data_of_a_users_own_class_say_how_to_go_on():
    with pytest.raises(ConfigurationError, match="newcomer_data"):
        Silos.newcomer_data(Silos.__new__(Silos), "new.csv", {})
