"""Which atoms of a molecule a prediction comes from: integrated gradients, as numbers and as a picture.

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

__all__ = ["Explanation", "draw_explanation", "explain"]

_PICTURE = (900, 640)


@dataclass(frozen=True)
class Explanation:
    """What atoms have to do with a prediction.

    Attributes:
        smiles: the molecule.
        target: what is predicted.
        atoms: of each atom, in the order of the SMILES, float64 [V]: positive where it raises the prediction. In the
            data's units of a regression, in log-odds of a classification.
        prediction: of the whole molecule, in the same units.
        baseline: of the molecule with atom features of zero; the atoms' numbers sum to the difference.
        unit: of the numbers.
    """

    smiles: str
    target: str
    atoms: Tensor
    prediction: float
    baseline: float
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
    """The atoms' shares in a model's prediction for one molecule; computed in float64.

    Args:
        model: a trained one, which stays as it is.
        smiles: the molecule.
        target: which of its targets: number from 0, or one of ``names``.
        target_class: of a model of several classes, the one that is explained.
        names: of the targets.
        units: of the targets.
        num_points: of the quadrature.

    Raises:
        ConfigurationError: there is no such target or class, or the model reads descriptors, which are of no atom.
        DataError: the SMILES cannot be read.
    """
    from lightning_fl.data.molecules.featurizer import encode_smiles

    if not isinstance(model, MoleculeModel):
        raise ConfigurationError(f"a {type(model).__name__} is explained by nothing here: give a MoleculeModel.")
    if model.hparams["descriptor_dim"]:
        raise ConfigurationError(
            "the model reads descriptors of the whole molecule beside its graph (features), which belong to no atom:"
            " train one without them to be explained by atoms."
        )
    known = names or [str(number) for number in range(model.num_targets)]
    if isinstance(target, str) and target not in known:
        raise ConfigurationError(f"no target {target!r}{did_you_mean(target, known)}: there are {listed(known)}.")
    number = known.index(target) if isinstance(target, str) else target
    if not 0 <= number < model.num_targets:
        raise ConfigurationError(f"target={target}: the model has {model.num_targets}, counted from 0.")
    if model.task == "multiclass" and not 0 <= target_class < model.num_classes:
        raise ConfigurationError(f"target_class={target_class}: the model has classes 0 to {model.num_classes - 1}.")
    graphs = encode_smiles([smiles]).graphs()
    if not len(graphs.x):
        raise DataError(f"the SMILES {smiles!r} cannot be read, or has no atom: correct it.")

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
    return Explanation(
        smiles, known[number], atoms, prediction, baseline, unit if model.task == "regression" else "log-odds"
    )


def draw_explanation(found: Explanation) -> "Figure":
    """The molecule with its atoms coloured: red raises the prediction, blue lowers it; a bar says by how much."""
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
    drawer = rdMolDraw2D.MolDraw2DCairo(*_PICTURE)
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
    figure.suptitle(
        f"{found.target}: {found.prediction:.3g}{unit}, of which {found.prediction - found.baseline:+.3g} by the atoms",
        fontsize=11,
    )
    figure.supxlabel(found.smiles, fontsize=8, color="0.4")
    figure.colorbar(colours, ax=axes, label=f"share of an atom{unit and ' /'}{unit}", shrink=0.8)
    return figure
