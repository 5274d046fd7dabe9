"""The commands of docs/molecules.md, in their order, on a table of the kind that the page describes."""

import re
import shlex
from pathlib import Path

import pandas as pd
import pytest

from lightning_fl import predict
from lightning_fl.cli import main
from lightning_fl.data.molecules.standin import make_standin

PAGE = Path(__file__).parents[2] / "docs" / "molecules.md"


def blocks(kind):
    return re.findall(rf"```{kind}\n(.*?)```", PAGE.read_text(), flags=re.S)


def write_tables():
    table = make_standin("esol", target_names=["y"], target_units=[""])
    smiles, values = table.smiles[::4], table.targets[::4, 0]
    frame = pd.DataFrame(
        {"smiles": smiles, "lab": ["north", "south", "west"] * (len(smiles) // 3) + ["north"] * (len(smiles) % 3)}
    )
    frame["toxic"] = [str(int(value > values.median())) for value in values]
    frame["inhibits"] = ["" if number % 4 == 0 else str(int(number % 8 < 3)) for number in range(len(frame))]
    frame.loc[len(frame)] = ["C(C)(C)(C)(C)C", "west", "1", "0"]  # five bonds
    frame.loc[len(frame)] = frame.iloc[0]
    frame.to_csv("assays.csv", index=False)
    pd.DataFrame({"id": ["a", "b", "c"], "smiles": ["CCO", "no molecule", "c1ccccc1O"]}).to_csv(
        "library.csv", index=False
    )


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:1 of .* SMILES in assays.csv cannot be read")
@pytest.mark.filterwarnings("ignore:.*targets without metrics")
def test_every_command_of_the_page(capsys, quick_pictures):
    write_tables()
    (recipe,) = [text for text in blocks("yaml") if text.startswith("# assays.yaml")]
    Path("assays.yaml").write_text(recipe)
    commands = [line for text in blocks("bash") for line in text.splitlines()]
    assert len(commands) == 3
    for command in commands:
        name, *words = shlex.split(command)
        assert name == "lightning-fl"
        assert main(words) == 0, capsys.readouterr().err
    run = Path("runs/assays/version_0")
    assert {"roc_test.png", "calibration_test.png"} <= {path.name for path in (run / "figures").iterdir()}
    assert (run / "splits.json").is_file()
    predicted, spread = pd.read_csv("predicted.csv"), pd.read_csv("spread.csv")
    assert predicted["id"].tolist() == ["a", "b", "c"]
    for name in ("toxic", "inhibits"):
        assert predicted[name].notna().tolist() == [True, False, True]
        assert predicted[name].dropna().between(0, 1).all()
        assert (spread[f"{name}_std"].dropna() >= 0).all()
    assert predicted["error"].notna().tolist() == [False, True, False]
    assert predicted["similarity"].dropna().between(0, 1).all()
    (python,) = blocks("python")
    assert 'predict("runs/assays/version_0"' in python
    assert len(predict(str(run), ["CCO", "c1ccccc1O"])) == 2
