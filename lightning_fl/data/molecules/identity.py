"""Which molecules are the same: by canonical SMILES, or by InChIKey without stereochemistry; computed once."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, get_args

from lightning.fabric.utilities.rank_zero import rank_zero_info, rank_zero_warn

from lightning_fl.core.errors import ConfigurationError, DataError
from lightning_fl.files.atomic import remove_leftovers, whole_file

__all__ = ["IDENTITIES", "Identity", "molecule_identities"]

#: By what two molecules are the same.
Identity = Literal["smiles", "inchikey_no_stereo"]
IDENTITIES: tuple[Identity, ...] = get_args(Identity)

_VERSION = 1
_LINE_FROM = 5000


def molecule_identities(
    smiles: Sequence[str], identity: Identity = "smiles", cache: Path | None = None
) -> list[str | None]:
    """What is the same text for molecules that are the same.

    Args:
        smiles: n SMILES strings.
        identity: ``"smiles"``: RDKit's canonical SMILES, with stereochemistry, isotopes and charges.
            ``"inchikey_no_stereo"``: the first block of the standard InChIKey (formula and connections), which
            stereoisomers, many tautomers and isotopologues share; of what InChI cannot say, the canonical SMILES
            without stereochemistry.
        cache: folder that keeps them under a sum of the SMILES; ``None`` to keep nothing. A damaged entry is made
            again, a folder that cannot be written is done without.

    Returns:
        n texts; ``None`` for SMILES that RDKit cannot read.

    Raises:
        ConfigurationError: ``identity`` is unknown.
    """
    if identity not in IDENTITIES:
        raise ConfigurationError(f"identity={identity!r}: expected one of {', '.join(IDENTITIES)}.")
    distinct = sorted(set(smiles))
    found = None
    path = None if cache is None else _path(cache, distinct, identity)
    if path is not None:
        found = _load(path, len(distinct))
    if found is None:
        if len(distinct) > _LINE_FROM:
            rank_zero_info(f"Comparing {len(distinct):,} molecules")
        found = _compute(distinct, identity)
        if path is not None:
            _save(path, found)
    known = dict(zip(distinct, found, strict=True))
    return [known[text] for text in smiles]


def _compute(smiles: Sequence[str], identity: Identity) -> list[str | None]:
    from rdkit.Chem import MolToSmiles
    from rdkit.Chem.inchi import MolToInchiKey
    from rdkit.rdBase import BlockLogs

    from lightning_fl.data.molecules.codes import read_molecule

    found: list[str | None] = []
    with BlockLogs():  # what cannot be read is reported with its row elsewhere
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


def _path(cache: Path, smiles: Sequence[str], identity: Identity) -> Path:
    import rdkit

    content = json.dumps([f"identities {_VERSION}, {identity}, rdkit {rdkit.__version__}", list(smiles)])
    return cache / f"{hashlib.sha256(content.encode()).hexdigest()}.{identity}.json"


def _load(path: Path, length: int) -> list[str | None] | None:
    """Kept identities; ``None`` where there are none."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(content, list) or len(content) != length:
            raise DataError(f"it does not hold {length} molecules")
        if not all(entry is None or isinstance(entry, str) for entry in content):
            raise DataError("it holds something else than texts")
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return None
    except (OSError, ValueError, RecursionError, DataError) as error:
        rank_zero_warn(f"kept identities {path} are damaged ({type(error).__name__}) and are made again.")
        return None
    return content


def _save(path: Path, found: Sequence[str | None]) -> None:
    try:
        remove_leftovers(path.parent)
        with whole_file(path, by_several=True) as file:
            file.write(json.dumps(list(found)).encode())
    except OSError as error:
        rank_zero_warn(
            f"cannot keep the molecules' identities in {path.parent} ({error}), so they are computed in every run: set"
            " LIGHTNING_FL_CACHE to a folder that can be written."
        )
