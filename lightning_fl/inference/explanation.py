"""Attribution of a prediction to the atoms of a molecule by integrated gradients.

Sundararajan, Taly, Yan, "Axiomatic Attribution for Deep Networks", ICML 2017, https://arxiv.org/abs/1703.01365: see
:mod:`lightning_fl.functional.integrated_gradients`. The baseline is the molecule with atom features of zero.
"""

import copy
import io
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lightning_fl.core.errors import ConfigurationError, DataError, did_you_mean, listed
from lightning_fl.functional.integrated_gradients import integrated_gradients
from lightning_fl.models import MoleculeModel

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Explanation:
    """Contributions of atoms to a prediction: in the data's units for a regression, log-odds for a classification."""

    smiles: str
    target: str  #: name of the predicted quantity
    atoms: Tensor  #: contributions in the order of the SMILES, float64 [V]; positive raises the prediction
    prediction: float  #: for the molecule
    baseline: float  #: for atom features of zero; ``prediction - baseline`` is the sum of ``atoms``
    unit: str


def explain(
    model: MoleculeModel,
    smiles: str,
    *,
    target: str | int = 0,
    target_class: int = 1,
    names: list[str] | None = None,
    units: list[str] | None = None,
    num_points: int = 128,
) -> Explanation:
    """Compute the contributions of a molecule's atoms to a prediction, in float64.

    Args:
        model: a trained model; not modified.
        target: number from 0, or one of ``names``.
        target_class: class to explain for a multiclass model.
        names: of the targets, as ``units``.
        num_points: of the quadrature.

    Raises:
        ConfigurationError: unknown target or class, or a model that also reads descriptors.
        DataError: the SMILES cannot be read.
    """
    from lightning_fl.data.molecules.featurizer import encode_smiles, molecule_graphs

    if not isinstance(model, MoleculeModel):
        raise ConfigurationError(f"model: cannot explain a {type(model).__name__}; use a MoleculeModel.")
    if model.hparams["descriptor_dim"]:
        raise ConfigurationError("the model reads descriptors, which belong to no atom: train without features.")
    known = names or [str(number) for number in range(model.num_targets)]
    if isinstance(target, str) and target not in known:
        raise ConfigurationError(f"target={target!r}: unknown{did_you_mean(target, known)}; there are {listed(known)}.")
    number = known.index(target) if isinstance(target, str) else target
    if not 0 <= number < model.num_targets:
        raise ConfigurationError(f"target={target}: the model has {model.num_targets} targets, counted from 0.")
    if model.task == "multiclass" and not 0 <= target_class < model.num_classes:
        raise ConfigurationError(f"target_class={target_class}: the model has classes 0 to {model.num_classes - 1}.")
    graphs = molecule_graphs(encode_smiles([smiles]))
    if not len(graphs.x):
        raise DataError(f"the SMILES {smiles!r} is invalid or has no atoms.")

    from torch_geometric.data import Batch, Data

    twin = copy.deepcopy(model).double().eval().requires_grad_(False)
    edges = graphs.edge_attr.double()

    def compute(x: Tensor) -> Tensor:
        batch = Batch.from_data_list([Data(x=x, edge_index=graphs.edge_index, edge_attr=edges)])
        output = (twin(batch) if twin.task == "regression" else twin.raw_outputs(batch))[0, number]
        return output[target_class] if output.ndim else output

    x = graphs.x.double()
    with torch.enable_grad():
        atoms = integrated_gradients(compute, x, num_points=num_points).sum(1)
    with torch.no_grad():
        prediction, baseline = float(compute(x)), float(compute(torch.zeros_like(x)))
    unit = "" if units is None or units[number] == "not given" else units[number]
    unit = unit if model.task == "regression" else "log-odds"
    return Explanation(smiles, known[number], atoms, prediction, baseline, unit)


def draw_explanation(found: Explanation) -> "Figure":
    """Draw the molecule with coloured atoms: red raises the prediction, blue lowers it."""
    import matplotlib
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize
    from matplotlib.figure import Figure
    from PIL import Image
    from rdkit import Chem
    from rdkit.Chem.Draw import rdMolDraw2D

    most = float(found.atoms.abs().max()) or 1.0
    colours = ScalarMappable(Normalize(-most, most), matplotlib.colormaps["coolwarm"])
    molecule = Chem.MolFromSmiles(found.smiles)
    drawer = rdMolDraw2D.MolDraw2DCairo(900, 640)
    shown = {place: tuple(map(float, colours.to_rgba(value.numpy())[:3])) for place, value in enumerate(found.atoms)}
    rdMolDraw2D.PrepareAndDrawMolecule(
        drawer,
        molecule,
        highlightAtoms=list(shown),
        highlightAtomColors=shown,
        highlightAtomRadii=dict.fromkeys(shown, 0.4),
        highlightBonds=[],
    )
    drawer.FinishDrawing()
    figure = Figure(figsize=(9.0, 5.8), layout="constrained")
    axes = figure.add_subplot()
    axes.imshow(Image.open(io.BytesIO(drawer.GetDrawingText())))
    axes.axis("off")
    unit = f" {found.unit}" if found.unit else ""
    of_atoms = f"{found.prediction - found.baseline:+.3g} of it from the atoms"
    figure.suptitle(f"{found.target}: {found.prediction:.3g}{unit}, {of_atoms}", fontsize=11)
    figure.supxlabel(found.smiles, fontsize=8, color="0.4")
    figure.colorbar(colours, ax=axes, label=f"contribution of an atom{unit and ' /'}{unit}", shrink=0.8)
    return figure
