"""Further stand-ins for a first run without a network, of the same computed molecules: classes, gaps, laboratories.

- ``bbbp``: whether a molecule passes into the brain. Clark's equation (J. Pharm. Sci. 88, 1999, doi:10.1021/js980402t)

      logBB = 0.139 + 0.152 cLogP - 0.0148 PSA

  with PSA the polar surface area in square angstrom; 1 where logBB with noise of deviation 0.3 is above 0.
- ``tox21``: for every assay a score of lipophilicity, size, polarity and aromaticity, weighted for this assay, with
  noise of half its deviation; 1 for the highest scores, from 6 to 17 % of the molecules. A fifth of the labels is
  missing.
- ``aqsoldb``: Delaney's equation as nine laboratories would measure it (:data:`LABORATORIES`), which hold from half of
  the molecules down to a fiftieth, many the same.

Differs from the papers: cLogP and PSA are Crippen's and Ertl's (RDKit); weights, thresholds, offsets and noise are
ours.
"""

from collections.abc import Callable, Sequence

import torch
from rdkit import Chem
from rdkit.Chem.Descriptors import MolWt  # type: ignore[attr-defined]
from rdkit.Chem.rdMolDescriptors import CalcCrippenDescriptors, CalcTPSA

from lightning_fl.core.seeding import derive_seed
from lightning_fl.data.molecules.standin import (
    STANDIN_SEED,
    delaney_log_solubility,
    enumerate_molecules,
    esol_standin,
    normal_noise,
)
from lightning_fl.data.molecules.table import MoleculeTable

__all__ = ["LABORATORIES", "clark_log_bb", "make_standin"]

#: Laboratories: name to (share of the molecules, offset, standard deviation of the noise), the latter in log10(mol/L).
LABORATORIES = {
    "A": (0.50, 0.0, 0.3),
    "B": (0.35, 0.2, 0.2),
    "C": (0.25, -0.3, 0.4),
    "D": (0.20, 0.5, 0.2),
    "E": (0.12, -0.6, 0.3),
    "F": (0.08, 0.3, 0.6),
    "G": (0.06, 0.0, 0.1),
    "H": (0.04, -0.9, 0.5),
    "I": (0.03, 0.8, 0.8),
}
_NOISE_OF_LOG_BB = 0.3
_GAPS_PER_CENT = 20


def make_standin(name: str, *, target_names: Sequence[str], target_units: Sequence[str]) -> MoleculeTable:
    """The stand-in of a card.

    Args:
        name: ``"esol"``, ``"bbbp"``, ``"tox21"`` or ``"aqsoldb"``.
        target_names: names of the targets, those of the data set which is replaced; one but for ``tox21``.
        target_units: their units.
    """
    if name == "esol":
        return esol_standin(target_name=target_names[0], target_unit=target_units[0])
    make: Callable[[Sequence[str], Sequence[str]], MoleculeTable] = {
        "bbbp": _bbbp,
        "tox21": _tox21,
        "aqsoldb": _aqsoldb,
    }[name]
    return make(target_names, target_units)


def clark_log_bb(molecule: Chem.Mol) -> float:
    """Clark's equation of the module's head: log10 of the concentrations' ratio, brain to blood."""
    return 0.139 + 0.152 * CalcCrippenDescriptors(molecule)[0] - 0.0148 * CalcTPSA(molecule)


def _bbbp(names: Sequence[str], units: Sequence[str]) -> MoleculeTable:
    smiles, scaffolds = enumerate_molecules()
    values = [clark_log_bb(Chem.MolFromSmiles(text)) + normal_noise(_NOISE_OF_LOG_BB, "logBB", text) for text in smiles]
    return _table("BBBP", smiles, torch.tensor(values)[:, None].gt(0).float(), names, units, {"scaffold": scaffolds})


def _tox21(names: Sequence[str], units: Sequence[str]) -> MoleculeTable:
    smiles, scaffolds = enumerate_molecules()
    features = torch.tensor([_features(Chem.MolFromSmiles(text)) for text in smiles], dtype=torch.float64)
    features = (features - features.mean(0)) / features.std(0)
    labels = []
    for number, name in enumerate(names):
        weights = torch.tensor([normal_noise(1.0, "weight", name, str(of)) for of in range(features.shape[1])])
        scores = features @ weights.double()
        scores += scores.std() * torch.tensor([normal_noise(0.5, name, text) for text in smiles], dtype=torch.float64)
        active = 0.06 + 0.01 * (number % 12)
        label = (scores > scores.quantile(1 - active)).float()
        gaps = [derive_seed(STANDIN_SEED, "gap", name, text) % 100 < _GAPS_PER_CENT for text in smiles]
        labels.append(label.masked_fill(torch.tensor(gaps), torch.nan))
    return _table("Tox21", smiles, torch.stack(labels, dim=1), names, units, {"scaffold": scaffolds})


def _aqsoldb(names: Sequence[str], units: Sequence[str]) -> MoleculeTable:
    every, scaffold_of = enumerate_molecules()
    smiles, scaffolds, values, sources = [], [], [], []
    exact = [delaney_log_solubility(Chem.MolFromSmiles(text)) for text in every]
    for laboratory, (share, offset, deviation) in LABORATORIES.items():
        for text, scaffold, value in zip(every, scaffold_of, exact, strict=True):
            if derive_seed(STANDIN_SEED, laboratory, text) / 2.0**63 < share:
                smiles.append(text)
                scaffolds.append(scaffold)
                sources.append(laboratory)
                values.append(round(value + offset + normal_noise(deviation, "noise", laboratory, text), 3))
    targets = torch.tensor(values, dtype=torch.float32)[:, None]
    return _table("AqSolDB", smiles, targets, names, units, {"Source": sources, "scaffold": scaffolds})


def _features(molecule: Chem.Mol) -> list[float]:
    aromatic = sum(atom.GetIsAromatic() for atom in molecule.GetAtoms()) / molecule.GetNumHeavyAtoms()
    return [CalcCrippenDescriptors(molecule)[0], MolWt(molecule), CalcTPSA(molecule), aromatic]


def _table(
    of: str,
    smiles: list[str],
    targets: torch.Tensor,
    names: Sequence[str],
    units: Sequence[str],
    columns: dict[str, list[str]],
) -> MoleculeTable:
    columns["scaffold"] = [scaffold or "acyclic" for scaffold in columns["scaffold"]]
    return MoleculeTable(
        smiles=smiles,
        targets=targets,
        target_names=list(names),
        target_units=list(units),
        columns={name: list(values) for name, values in columns.items()},
        rows=list(range(2, len(smiles) + 2)),
        place=f"the stand-in for {of}",
    )
