"""``lightning-fl predict`` and ``personalize`` on runs of images and tables, whose own data are deleted."""

import io
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from finished_runs import fit, iid, mlp
from PIL import Image
from test_cli_personalize import assert_is_the_mixture, shares_of

from lightning_fl.models import ClassificationModel

pytestmark = pytest.mark.slow


def probabilities(run: Path, number: int, features: torch.Tensor) -> np.ndarray:
    module = ClassificationModel.load_from_checkpoint(run / f"models/shared_{number}.ckpt", map_location="cpu").eval()
    return module(features).softmax(dim=1).detach().numpy()


def test_images(command):
    rng = np.random.default_rng(0)
    for name, count in (("scans", 60), ("new", 30)):
        images = rng.integers(0, 256, (count, 4, 4), dtype=np.uint8)
        np.savez(f"{name}.npz", train_images=images, train_labels=np.arange(count) % 3)
    run = fit(mlp([1, 4, 4], 3), iid("ImageData", 2, name="scans.npz", source="real"), ["LocalTraining"])
    Path("scans.npz").unlink()
    known = json.loads((run / "summary.json").read_text())["data"]["normalization"]
    labels = torch.tensor(np.load("new.npz")["train_labels"])
    pixels = (torch.tensor(np.load("new.npz")["train_images"])[:, None] / 255 - known["mean"][0]) / known["std"][0]

    words = ("personalize", run, "new.npz", "--monitor", "val/acc", "--out", "mine.ckpt")
    code, out, err = command(*words, "--holdout", "0")
    assert (code, err) == (0, "")
    shares = shares_of(out)
    assert_is_the_mixture(run, "mine.ckpt", shares)
    # the accuracies by hand, with the mean and the deviation of the run's images
    right = [float(np.mean(probabilities(run, k, pixels).argmax(1) == labels.numpy())) for k in range(2)]
    torch.testing.assert_close(shares, torch.tensor(right) / sum(right), atol=2e-3, rtol=0)

    new = rng.integers(0, 256, (5, 4, 4), dtype=np.uint8)
    floats = (torch.from_numpy(new[:, None]) / 255 - known["mean"][0]) / known["std"][0]
    expected = probabilities(run, 0, floats)
    np.savez("five.npz", images=new)
    predict = ("predict", run, "--model", "shared_0")
    table = pd.read_csv(io.StringIO(command(*predict, "five.npz", "--chunk_rows", "2")[1]))
    columns = ["label=0", "label=1", "label=2"]
    assert list(table.columns) == ["array", "index", "label", *columns, "error"]
    np.testing.assert_allclose(table[columns], expected, rtol=1e-4)
    Path("new/deep").mkdir(parents=True)
    for number, image in enumerate(new):
        Image.fromarray(image).save(f"new/deep/{number}.png")
    Path("new/broken.png").write_bytes(b"no picture")
    Image.fromarray(new[0].repeat(2, axis=0)).save("new/long.png")
    table = pd.read_csv(io.StringIO(command(*predict, "new")[1]))
    assert list(table["file"]) == ["broken.png", *(f"deep/{number}.png" for number in range(5)), "long.png"]
    np.testing.assert_allclose(table[columns][1:6], expected, rtol=1e-4)
    assert "cannot be read as an image" in table["error"][0]
    assert "8, 4" in table["error"][6]
    code, _, err = command(*predict, "new.csv")
    assert code == 2
    assert "'new.csv'" in err


def test_tables(command):
    rng = np.random.default_rng(0)
    rows = pd.DataFrame({"age": rng.normal(50, 10, 60).round(1), "site": rng.choice(["a", "b"], 60)})
    rows.assign(ill=np.where(rows["age"] > 50, "yes", "no")).to_csv("ill.csv", index=False)
    run = fit(mlp([3], 2), iid("TableData", 2, path="ill.csv", target="ill"), ["LocalTraining"])
    Path("ill.csv").unlink()
    predict = ("predict", run, "new.csv", "--model", "shared_0")
    Path("new.csv").write_text("who,site,age\n1,a,61\n2,c,40\n3,b,\n4,b,old\n")
    code, out, err = command(*predict)
    assert code == 0, err
    table = pd.read_csv(io.StringIO(out))
    assert list(table.columns) == ["who", "site", "age", "ill", "ill=no", "ill=yes", "error"]
    assert [text.partition(":")[0] for text in table["error"][[1, 3]]] == ["site", "age"]
    known = json.loads((run / "summary.json").read_text())["data"]["encoding"]
    features = torch.tensor([[(61 - known["mean"][0]) / known["std"][0], 1, 0], [0, 0, 1]], dtype=torch.float32)
    expected = probabilities(run, 0, features)
    np.testing.assert_allclose(table.loc[[0, 2], ["ill=no", "ill=yes"]], expected, rtol=1e-5)
    assert list(table["ill"][[0, 2]]) == [["no", "yes"][place] for place in expected.argmax(axis=1)]
    code, _, err = command(*predict, "--smiles_column", "who")
    assert code == 2
    assert "smiles_column" in err

    rows[:20].assign(ill=["yes", "no"] * 10).to_csv("new.csv", index=False)
    code, out, err = command("personalize", run, "new.csv")
    assert (code, err) == (0, "")
    assert_is_the_mixture(run, run / "personal/new.ckpt", shares_of(out))
    Path("new.csv").write_text("age,ill\n1,yes\n2,no\n")
    code, _, err = command("personalize", run, "new.csv", "--force")
    assert code == 2
    assert "new.csv has no column 'site'" in err
