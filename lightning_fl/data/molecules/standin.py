"""Stand-in molecules for a first run without a network: enumerated, labelled by an equation, the same bits every time.

Molecules are substituted ring systems and chains. The label is Delaney's equation for aqueous solubility (J. Chem. Inf.
Comput. Sci. 44, 2004, doi:10.1021/ci034243x, the ESOL equation)

    logS = 0.16 - 0.63 cLogP - 0.0062 MW + 0.066 RB - 0.74 AP

with cLogP the octanol/water partition coefficient, MW the molecular weight in g/mol, RB the number of rotatable bonds
and AP the share of aromatic atoms among the heavy atoms; logS in log10(mol/L). To this each molecule's assay adds its
offset and its noise. All molecules of a Bemis-Murcko scaffold are measured in one assay, so clients made by scaffold
differ in their labels as well as in their molecules.

Differs from the paper: cLogP is Crippen's (RDKit), not Daylight's; offsets and noise are ours.
"""

from itertools import combinations_with_replacement, product
from statistics import NormalDist

import torch
from rdkit import Chem
from rdkit.Chem.Descriptors import MolWt  # type: ignore[attr-defined]
from rdkit.Chem.rdMolDescriptors import CalcCrippenDescriptors, CalcNumRotatableBonds
from rdkit.Chem.Scaffolds.MurckoScaffold import MurckoScaffoldSmilesFromSmiles

from lightning_fl.core.seeding import derive_seed
from lightning_fl.data.molecules.table import MoleculeTable

__all__ = ["ASSAYS", "STANDIN_SEED", "delaney_log_solubility", "enumerate_molecules", "esol_standin", "normal_noise"]

#: Assays: name to (offset, standard deviation of the noise), both in log10(mol/L).
ASSAYS = {"assay_a": (0.0, 0.1), "assay_b": (0.4, 0.2), "assay_c": (-0.5, 0.3), "assay_d": (0.2, 0.6)}

#: What all that is drawn for stand-ins is derived from.
STANDIN_SEED = 2004
# two open places each; "[H]" closes one
_RINGS = (
    "c1cc({0})ccc1{1}",
    "c1cc({0})cnc1{1}",
    "c1c({0})ncnc1{1}",
    "c1c({0})occ1{1}",
    "c1c({0})scc1{1}",
    "c1c({0})[nH]cc1{1}",
    "c1c({0})ocn1",
    "c1c({0})scn1",
    "c1n[nH]c({0})c1{1}",
    "Cn1cnc({0})c1{1}",
    "c1ccc2c(c1)cc({0})cc2{1}",
    "c1ccc2c(c1)nc({0})cc2{1}",
    "c1ccc2c(c1)c({0})c({1})[nH]2",
    "c1ccc2c(c1)cc({0})o2",
    "c1ccc2c(c1)cc({0})s2",
    "c1ccc2c(c1)nc({0})s2",
    "c1ccc2c(c1)OC({0})C2{1}",
    "c1ccc2c(c1)CC({0})C2{1}",
    "c1ccc2c(c1)CC({0})NC2{1}",
    "C1CC({0})CC1{1}",
    "C1CCC({0})CC1{1}",
    "C1CCC({0})CCC1{1}",
    "C1CC({0})OC1{1}",
    "C1CC({0})OCC1{1}",
    "C1NC({0})CC1{1}",
    "C1CNC({0})CC1{1}",
    "C1C({0})NCCO1",
    "C1C({0})NCC({1})N1",
    "C1CC2CC({0})C1C2{1}",
    "O=C1CCC({0})CC1{1}",
    "O=C1CCC({0})N1{1}",
    "C1C({0})C1{1}",
    "C1CC({0})C1{1}",
)
_LINKED = ("c1ccccc1{link}c1ccc({0})c({1})c1", "c1ccncc1{link}c1ccc({0})c({1})c1", "C1CCCCC1{link}c1ccc({0})c({1})c1")
_LINKS = ("", "C", "CC", "O", "OC", "N", "S", "C(=O)", "C(=O)N", "C=C", "S(=O)(=O)")
_SUBSTITUENTS = (
    "[H]",
    "C",
    "CC",
    "C(C)C",
    "O",
    "OC",
    "N",
    "N(C)C",
    "F",
    "Cl",
    "Br",
    "C#N",
    "C(=O)O",
    "C(=O)N",
    "C(F)(F)F",
)
_STARTS = ("", "O", "Cl")
_ENDS = ("C", "O", "N", "Cl", "Br", "C#N", "C(=O)O", "C(=O)OC", "C(=O)N", "OC", "S")
_CHAINS = ("CC", "CCC", "CCCC", "CCCCC", "CCCCCC", "CCCCCCCC", "CC(C)C", "CC(C)CC", "CC=CC")
_PAIRS_PER_CORE = 18


def delaney_log_solubility(molecule: Chem.Mol) -> float:
    """The ESOL equation of the module's head, in log10(mol/L)."""
    aromatic = sum(atom.GetIsAromatic() for atom in molecule.GetAtoms()) / molecule.GetNumHeavyAtoms()
    rotatable = CalcNumRotatableBonds(molecule)
    return (
        0.16
        - 0.63 * CalcCrippenDescriptors(molecule)[0]
        - 0.0062 * MolWt(molecule)
        + 0.066 * rotatable
        - 0.74 * aromatic
    )


def esol_standin(*, target_name: str, target_unit: str) -> MoleculeTable:
    """More than a thousand computed molecules in the shape of the ESOL data set.

    Args:
        target_name: name of the one target, that of the data set which is replaced.
        target_unit: its unit.

    Returns:
        A table with the columns ``assay`` (one of :data:`ASSAYS`) and ``scaffold`` (Bemis-Murcko, empty for chains).
    """
    smiles, scaffolds = enumerate_molecules()
    assays = [list(ASSAYS)[derive_seed(STANDIN_SEED, "assay", scaffold) % len(ASSAYS)] for scaffold in scaffolds]
    targets = [_measure(*pair) for pair in zip(smiles, assays, strict=True)]
    return MoleculeTable(
        smiles=smiles,
        targets=torch.tensor(targets, dtype=torch.float32)[:, None],
        target_names=[target_name],
        target_units=[target_unit],
        columns={"assay": list(assays), "scaffold": [scaffold or "acyclic" for scaffold in scaffolds]},
        rows=list(range(2, len(smiles) + 2)),
        place="the stand-in for ESOL",
    )


def enumerate_molecules() -> tuple[list[str], list[str]]:
    """Distinct canonical SMILES in the order of enumeration, and their scaffolds."""
    cores = [*_RINGS, *(core.replace("{link}", link) for core, link in product(_LINKED, _LINKS))]
    pairs = list(combinations_with_replacement(_SUBSTITUENTS, 2))
    scaffold_of: dict[str, str] = {}
    for core in cores:
        scaffold = MurckoScaffoldSmilesFromSmiles(core.format("[H]", "[H]"))  # no substituent has a ring
        # a different choice of pairs for each core, so that a scaffold does not determine its substituents
        chosen = sorted((derive_seed(STANDIN_SEED, core, *pair), *pair) for pair in pairs)[:_PAIRS_PER_CORE]
        for _, first, second in chosen:
            scaffold_of.setdefault(_canonical(core.format(first, second)), scaffold)
    for start, chain, end in product(_STARTS, _CHAINS, _ENDS):
        scaffold_of.setdefault(_canonical(start + chain + end), "")
    return list(scaffold_of), list(scaffold_of.values())


def _canonical(smiles: str) -> str:
    return Chem.MolToSmiles(Chem.MolFromSmiles(smiles))


def _measure(smiles: str, assay: str) -> float:
    offset, deviation = ASSAYS[assay]
    noise = normal_noise(deviation, "noise", smiles)
    return round(delaney_log_solubility(Chem.MolFromSmiles(smiles)) + offset + noise, 3)


def normal_noise(deviation: float, *keys: str) -> float:
    """The quantile of a number between 0 and 1 that is derived from keys: no generator, no order of drawing."""
    uniform = (derive_seed(STANDIN_SEED, *keys) + 0.5) / 2.0**63
    return NormalDist(0.0, deviation).inv_cdf(min(max(uniform, 1e-12), 1 - 1e-12))
