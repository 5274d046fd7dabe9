"""Predictions of a run whose clients were evaluated with their neighbours, which are in no file."""

import json
from pathlib import Path

import pytest
import torch
from test_prediction_uncertainty import NEW, _fit, _label, _number

from lightning_fl import predict


@pytest.mark.slow
@pytest.mark.parametrize("values", [_number, _label])
def test_molecules_have_neighbours_whatever_their_task_and_files_have_none(values) -> None:
    """Numbers are learnt on a scale of the model's, labels are real numbers: the model says both."""
    name = values.__name__.removeprefix("_")
    plain, run = (_fit(f"{name}{len(more)}", values, callbacks=more, dropout=0.0) for more in ((), ("KNNPer",)))
    with pytest.warns(UserWarning, match="KNNPer .* neighbours"):
        found = predict(run, NEW)
    assert found["y"].tolist() == predict(plain, NEW)["y"].tolist()
    summaries = [json.loads((folder / "summary.json").read_text()) for folder in (plain, run)]
    assert summaries[1]["evaluated"] == "the shared model, interpolated with 10 neighbours (share 0.5)"
    alone, mixed = (summary["metrics"]["test"]["loss"]["mean"] for summary in summaries)
    assert mixed != pytest.approx(alone, rel=1e-3)
    files = [sorted(path.name for path in (folder / "models").iterdir()) for folder in (plain, run)]
    assert files[0] == files[1]
    held = torch.load(Path(run) / "models" / files[1][0], weights_only=True)
    assert set(held) == set(torch.load(Path(plain) / "models" / files[0][0], weights_only=True))
