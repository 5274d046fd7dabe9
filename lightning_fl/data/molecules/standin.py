"""Stand-in molecules for a first run without a network: enumerated, labelled by equations, the same bits every time.

Molecules are substituted ring systems and chains.

- ``esol``: Delaney's equation for aqueous solubility (J. Chem. Inf. Comput. Sci. 44, 2004, doi:10.1021/ci034243x)

      logS = 0.16 - 0.63 cLogP - 0.0062 MW + 0.066 RB - 0.74 AP

  with cLogP the octanol/water partition coefficient, MW the molecular weight in g/mol, RB the number of rotatable bonds
  and AP the share of aromatic atoms among the heavy atoms; logS in log10(mol/L). Each molecule's assay adds its offset
  and noise (:data:`ASSAYS`). All molecules of a Bemis-Murcko scaffold are measured in one assay, so clients made by
  scaffold differ in labels as well as in molecules.
- ``bbbp``: passage into the brain. Clark's equation (J. Pharm. Sci. 88, 1999, doi:10.1021/js980402t)

      logBB = 0.139 + 0.152 cLogP - 0.0148 PSA

  with PSA the polar surface area in square angstrom; 1 where logBB with noise of deviation 0.3 is above 0.
- ``tox21``: for every assay a weighted score of lipophilicity, size, polarity and aromaticity, with noise of half its
  deviation; 1 for the highest scores, 6 to 17 % of the molecules. A fifth of the labels is missing.
- ``aqsoldb``: Delaney's equation as measured by nine laboratories (:data:`LABORATORIES`), which hold from half of the
  molecules down to a thirtieth, many in common.

Differs from the papers: cLogP and PSA are Crippen's and Ertl's (RDKit); weights, thresholds, offsets, noise are ours.
"""

from collections.abc import Sequence
from itertools import combinations_with_replacement, product
from statistics import NormalDist

import torch
from rdkit.Chem import CanonSmiles, Mol, MolFromSmiles
from rdkit.Chem.Descriptors import MolWt  # type: ignore[attr-defined]
from rdkit.Chem.rdMolDescriptors import CalcCrippenDescriptors, CalcNumRotatableBonds, CalcTPSA
from rdkit.Chem.Scaffolds.MurckoScaffold import MurckoScaffoldSmilesFromSmiles

from lightning_fl.core.seeding import derive_seed
from lightning_fl.data.molecules.table import MoleculeTable

#: Assays: name -> (offset, standard deviation of the noise), both in log10(mol/L).
ASSAYS = {"assay_a": (0.0, 0.1), "assay_b": (0.4, 0.2), "assay_c": (-0.5, 0.3), "assay_d": (0.2, 0.6)}

#: Laboratories: name -> (share of the molecules, offset, standard deviation of the noise), the latter in log10(mol/L).
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

#: Seed of all stand-ins.
STANDIN_SEED = 2004

#: SMILES, targets [n, T], and further columns.
_Made = tuple[list[str], torch.Tensor, dict[str, list[str | None]]]

_LOG_BB_DEVIATION = 0.3
_PERCENT_MISSING = 20
# two open positions each; "[H]" closes one
_RINGS = (
    *("c1cc({0})ccc1{1}", "c1cc({0})cnc1{1}", "c1c({0})ncnc1{1}", "c1c({0})occ1{1}", "c1c({0})scc1{1}"),
    *("c1c({0})[nH]cc1{1}", "c1c({0})ocn1", "c1c({0})scn1", "c1n[nH]c({0})c1{1}", "Cn1cnc({0})c1{1}"),
    *("c1ccc2c(c1)cc({0})cc2{1}", "c1ccc2c(c1)nc({0})cc2{1}", "c1ccc2c(c1)c({0})c({1})[nH]2"),
    *("c1ccc2c(c1)cc({0})o2", "c1ccc2c(c1)cc({0})s2", "c1ccc2c(c1)nc({0})s2", "c1ccc2c(c1)OC({0})C2{1}"),
    *("c1ccc2c(c1)CC({0})C2{1}", "c1ccc2c(c1)CC({0})NC2{1}", "C1CC({0})CC1{1}", "C1CCC({0})CC1{1}"),
    *("C1CCC({0})CCC1{1}", "C1CC({0})OC1{1}", "C1CC({0})OCC1{1}", "C1NC({0})CC1{1}", "C1CNC({0})CC1{1}"),
    *("C1C({0})NCCO1", "C1C({0})NCC({1})N1", "C1CC2CC({0})C1C2{1}", "O=C1CCC({0})CC1{1}"),
    *("O=C1CCC({0})N1{1}", "C1C({0})C1{1}", "C1CC({0})C1{1}"),
)
_LINKED = ("c1ccccc1{link}c1ccc({0})c({1})c1", "c1ccncc1{link}c1ccc({0})c({1})c1", "C1CCCCC1{link}c1ccc({0})c({1})c1")
_LINKS = ("", "C", "CC", "O", "OC", "N", "S", "C(=O)", "C(=O)N", "C=C", "S(=O)(=O)")
_SUBSTITUENTS = (
    *("[H]", "C", "CC", "C(C)C", "O", "OC", "N", "N(C)C", "F", "Cl", "Br", "C#N", "C(=O)O", "C(=O)N"),
    *("C(F)(F)F",),
)
_STARTS = ("", "O", "Cl")
_ENDS = ("C", "O", "N", "Cl", "Br", "C#N", "C(=O)O", "C(=O)OC", "C(=O)N", "OC", "S")
_CHAINS = ("CC", "CCC", "CCCC", "CCCCC", "CCCCCC", "CCCCCCCC", "CC(C)C", "CC(C)CC", "CC=CC")
_PAIRS_PER_CORE = 18


def delaney_log_solubility(molecule: Mol) -> float:
    """Compute Delaney's equation, in log10(mol/L)."""
    linear: float = 0.16 - 0.63 * CalcCrippenDescriptors(molecule)[0] - 0.0062 * MolWt(molecule)
    return linear + 0.066 * CalcNumRotatableBonds(molecule) - 0.74 * _aromatic_share(molecule)


def make_standin(name: str, *, target_names: Sequence[str], target_units: Sequence[str]) -> MoleculeTable:
    """Make the stand-in of a card: a thousand molecules or more, with the column ``scaffold``, "acyclic" for chains.

    ``name`` is ``"esol"``, with a column ``assay``; ``"bbbp"``; ``"tox21"``, which alone may have several targets; or
    ``"aqsoldb"``, with a column ``Source``.
    """
    title, make = {
        "esol": ("ESOL", _esol),
        "bbbp": ("BBBP", _bbbp),
        "tox21": ("Tox21", _tox21),
        "aqsoldb": ("AqSolDB", _aqsoldb),
    }[name]
    every, scaffold_of = enumerate_molecules()
    smiles, targets, columns = make(every, scaffold_of, target_names)
    scaffolds = dict(zip(every, scaffold_of, strict=True))
    return MoleculeTable(
        smiles=smiles,
        targets=targets,
        target_names=list(target_names),
        target_units=list(target_units),
        columns={**columns, "scaffold": [scaffolds[text] or "acyclic" for text in smiles]},
        rows=list(range(2, len(smiles) + 2)),
        place=f"the stand-in for {title}",
    )


def clark_log_bb(molecule: Mol) -> float:
    """Compute Clark's equation: log10 of the ratio of concentrations, brain to blood."""
    return 0.139 + 0.152 * CalcCrippenDescriptors(molecule)[0] - 0.0148 * CalcTPSA(molecule)


def _esol(smiles: list[str], scaffolds: list[str], names: Sequence[str]) -> _Made:
    assays = [list(ASSAYS)[derive_seed(STANDIN_SEED, "assay", scaffold) % len(ASSAYS)] for scaffold in scaffolds]
    values = []
    for text, assay in zip(smiles, assays, strict=True):
        offset, deviation = ASSAYS[assay]
        exact = delaney_log_solubility(MolFromSmiles(text))
        values.append(round(exact + offset + normal_noise(deviation, "noise", text), 3))
    return smiles, torch.tensor(values, dtype=torch.float32)[:, None], {"assay": list(assays)}


def _bbbp(smiles: list[str], scaffolds: list[str], names: Sequence[str]) -> _Made:
    values = [clark_log_bb(MolFromSmiles(text)) + normal_noise(_LOG_BB_DEVIATION, "logBB", text) for text in smiles]
    return smiles, torch.tensor(values)[:, None].gt(0).float(), {}


def _tox21(smiles: list[str], scaffolds: list[str], names: Sequence[str]) -> _Made:
    molecules = map(MolFromSmiles, smiles)
    rows = [[CalcCrippenDescriptors(one)[0], MolWt(one), CalcTPSA(one), _aromatic_share(one)] for one in molecules]
    features = torch.tensor(rows, dtype=torch.float64)
    features = (features - features.mean(0)) / features.std(0)
    labels = []
    for number, name in enumerate(names):
        weights = torch.tensor([normal_noise(1.0, "weight", name, str(of)) for of in range(features.shape[1])])
        scores = features @ weights.double()
        scores += scores.std() * torch.tensor([normal_noise(0.5, name, text) for text in smiles], dtype=torch.float64)
        active = 0.06 + 0.01 * (number % 12)
        label = (scores > scores.quantile(1 - active)).float()
        gaps = [derive_seed(STANDIN_SEED, "gap", name, text) % 100 < _PERCENT_MISSING for text in smiles]
        labels.append(label.masked_fill(torch.tensor(gaps), torch.nan))
    return smiles, torch.stack(labels, dim=1), {}


def _aqsoldb(every: list[str], scaffolds: list[str], names: Sequence[str]) -> _Made:
    smiles, values, sources = [], [], []
    exact = [delaney_log_solubility(MolFromSmiles(text)) for text in every]
    for laboratory, (share, offset, deviation) in LABORATORIES.items():
        for text, value in zip(every, exact, strict=True):
            if derive_seed(STANDIN_SEED, laboratory, text) / 2.0**63 < share:
                smiles.append(text)
                sources.append(laboratory)
                values.append(round(value + offset + normal_noise(deviation, "noise", laboratory, text), 3))
    return smiles, torch.tensor(values, dtype=torch.float32)[:, None], {"Source": list(sources)}


def _aromatic_share(molecule: Mol) -> float:
    aromatic: int = sum(atom.GetIsAromatic() for atom in molecule.GetAtoms())
    return aromatic / molecule.GetNumHeavyAtoms()


def enumerate_molecules() -> tuple[list[str], list[str]]:
    """Enumerate distinct canonical SMILES, and their scaffolds."""
    cores = [*_RINGS, *(core.replace("{link}", link) for core, link in product(_LINKED, _LINKS))]
    pairs = list(combinations_with_replacement(_SUBSTITUENTS, 2))
    scaffold_of: dict[str, str] = {}
    for core in cores:
        scaffold = MurckoScaffoldSmilesFromSmiles(core.format("[H]", "[H]"))  # no substituent has a ring
        # a different choice of pairs for each core, so that a scaffold does not determine its substituents
        chosen = sorted((derive_seed(STANDIN_SEED, core, *pair), *pair) for pair in pairs)[:_PAIRS_PER_CORE]
        for _, first, second in chosen:
            scaffold_of.setdefault(CanonSmiles(core.format(first, second)), scaffold)
    for start, chain, end in product(_STARTS, _CHAINS, _ENDS):
        scaffold_of.setdefault(CanonSmiles(start + chain + end), "")
    return list(scaffold_of), list(scaffold_of.values())


def normal_noise(deviation: float, *keys: str) -> float:
    """The normal quantile of a number in (0, 1) derived from keys, without a generator or an order of draws."""
    uniform = (derive_seed(STANDIN_SEED, *keys) + 0.5) / 2.0**63
    return NormalDist(0.0, deviation).inv_cdf(min(max(uniform, 1e-12), 1 - 1e-12))
