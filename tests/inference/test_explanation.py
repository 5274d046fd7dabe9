from pathlib import Path

import pytest
import torch

from lightning_fl.cli import main
from lightning_fl.inference.explanation import draw_explanation, explain
from lightning_fl.models import MoleculeModel

ASPIRIN = "CC(=O)Oc1ccccc1C(=O)O"


def make(**arguments):
    torch.manual_seed(0)
    return MoleculeModel(**({"hidden_dim": 16, "num_layers": 2, "task": "regression", "num_targets": 1} | arguments))


@pytest.mark.parametrize("encoder", ["gcn", "gine", "attentivefp", "dmpnn"])
def test_the_atoms_sum_to_the_difference_from_the_baseline(encoder):
    model = make(encoder=encoder, readout="sum")
    model.set_target_statistics(torch.tensor([3.0]), torch.tensor([2.0]))
    found = explain(model, ASPIRIN, num_points=400)
    assert found.atoms.shape == (13,)
    # ReLUs make kinks, at which the quadrature errs by about one over the number of its points
    scale = float(found.atoms.abs().sum())
    assert float(found.atoms.sum()) == pytest.approx(found.prediction - found.baseline, abs=0.01 * scale)


def test_the_prediction_is_the_models():
    from torch_geometric.data import Batch, Data

    from lightning_fl.data.molecules.featurizer import encode_smiles, molecule_graphs

    model = make(encoder="gine").eval()
    graphs = molecule_graphs(encode_smiles([ASPIRIN]))
    batch = Batch.from_data_list([Data(x=graphs.x, edge_index=graphs.edge_index, edge_attr=graphs.edge_attr)])
    assert explain(model, ASPIRIN, num_points=4).prediction == pytest.approx(model(batch).item(), rel=1e-4)
    binary = make(encoder="gine", task="classification").eval()
    found = explain(binary, ASPIRIN, num_points=4)
    assert torch.tensor(found.prediction).sigmoid().item() == pytest.approx(binary(batch).item(), rel=1e-4)
    assert found.unit == "log-odds"


def test_equal_atoms_have_equal_shares():
    found = explain(make(encoder="gcn"), "CCC", num_points=16)
    assert found.atoms[0].item() == pytest.approx(found.atoms[2].item(), rel=1e-9)


def test_the_model_stays_as_it_is():
    model = make().train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    explain(model, "CCO", num_points=4)
    assert model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.requires_grad and parameter.grad is None for parameter in model.parameters())


def test_targets_by_name_and_several_classes():
    model = make(num_targets=2)
    names = ["solubility", "toxicity"]
    by_name = explain(model, "CCO", target="toxicity", names=names, units=["mol/L", "not given"], num_points=4)
    assert by_name.unit == ""
    assert torch.equal(by_name.atoms, explain(model, "CCO", target=1, num_points=4).atoms)
    several = make(task="multiclass", num_classes=3)
    assert not torch.equal(
        explain(several, "CCO", target_class=0, num_points=4).atoms,
        explain(several, "CCO", target_class=2, num_points=4).atoms,
    )


def test_the_picture_says_what_it_shows():
    found = explain(make(), ASPIRIN, num_points=4)
    figure = draw_explanation(found)
    assert figure._suptitle.get_text().startswith(f"0: {found.prediction:.3g}, ")
    assert len(figure.axes) == 2  # the molecule and the bar


@pytest.mark.slow
def test_the_command(capsys):
    words = ["fit", "--config", "fedavg_esol", "--data.source", "standin", "--trainer.max_rounds", "1"]
    assert main([*words, "--trainer.devices", "1", "--model.hidden_dim", "8"]) == 0
    capsys.readouterr()
    run = "runs/fedavg_esol/version_0"
    assert main(["explain", run, ASPIRIN, "--out", "aspirin.png"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("measured log solubility in mols per litre: ")
    assert [line.split(":")[0] for line in lines[1:]] == [f"atom {place}" for place in range(13)]
    assert Path("aspirin.png").read_bytes().startswith(b"\x89PNG")
    for more, message in [
        (["--out", "aspirin.png"], "aspirin.png"),
        (["--out", "aspirin.txt"], "give a name that ends in .png, .svg or .pdf"),
        (["--out", "b.png", "--target", "sol"], "target='sol'"),
        (["--out", "b.png", "--model", "all"], "one model is explained at a time"),
        (["--out", "b.png", "--model", "snapshots"], "one model is explained at a time"),
        (["--out", "b.png", "--model", "nobody"], "nobody"),
    ]:
        assert main(["explain", run, ASPIRIN, *more]) == 2
        assert message in capsys.readouterr().err
    assert not Path("b.png").exists()
