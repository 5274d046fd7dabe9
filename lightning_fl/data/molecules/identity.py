"""Identity of molecules: canonical SMILES, or InChIKey without stereochemistry."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from lightning.fabric.utilities.rank_zero import rank_zero_info

from lightning_fl.core.validation import checked
from lightning_fl.data.molecules.cache import load_or_compute

__all__ = ["Identity", "molecule_identities"]

#: Criterion by which two molecules are the same.
Identity = Literal["smiles", "inchikey_no_stereo"]

_VERSION = 1
_REPORT_FROM = 5000


@checked
def molecule_identities(
    smiles: Sequence[str], identity: Identity = "smiles", cache: Path | None = None
) -> list[str | None]:
    """Compute texts that are equal for equal molecules.

    Args:
        smiles: n SMILES strings.
        identity: ``"smiles"``: RDKit's canonical SMILES, with stereochemistry, isotopes and charges.
            ``"inchikey_no_stereo"``: the first block of the standard InChIKey (formula and connections), which
            stereoisomers, many tautomers and isotopologues share; without an InChI, the canonical SMILES without
            stereochemistry.
        cache: folder of :func:`~lightning_fl.data.molecules.cache.load_or_compute`.

    Returns:
        n texts; ``None`` for SMILES that RDKit cannot read.

    Raises:
        ConfigurationError: ``identity`` is unknown.
    """
    import rdkit

    distinct = sorted(set(smiles))
    found = load_or_compute(
        cache,
        f"identities {_VERSION}, {identity}, rdkit {rdkit.__version__}",
        distinct,
        lambda: _compute(distinct, identity),
        lambda value: _check(value, len(distinct)),
    )
    known = dict(zip(distinct, found, strict=True))
    return [known[text] for text in smiles]


def _compute(smiles: Sequence[str], identity: Identity) -> list[str | None]:
    from rdkit.Chem import MolToSmiles
    from rdkit.Chem.inchi import MolToInchiKey
    from rdkit.rdBase import BlockLogs

    from lightning_fl.data.molecules.codes import read_molecule

    if len(smiles) > _REPORT_FROM:
        rank_zero_info(f"Comparing {len(smiles):,} molecules")
    found: list[str | None] = []
    with BlockLogs():  # the data set reports unreadable SMILES with their rows
        for text in smiles:
            molecule = read_molecule(text)
            if molecule is None:
                found.append(None)
            elif identity == "smiles":
                found.append(MolToSmiles(molecule))
            else:
                key = MolToInchiKey(molecule)
                found.append(key.partition("-")[0] or MolToSmiles(molecule, isomericSmiles=False))
    return found


def _check(value: Any, length: int) -> None:
    if not isinstance(value, list) or len(value) != length:
        raise ValueError(f"not a list of {length} molecules")
    if not all(entry is None or isinstance(entry, str) for entry in value):
        raise ValueError("an identity is not text")
