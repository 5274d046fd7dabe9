"""Data modules of molecules that a card describes: MoleculeNet's, ChEMBL's, DrugOOD's."""

from dataclasses import replace
from functools import partial
from typing import Any

from lightning_fl.core.errors import ConfigurationError
from lightning_fl.core.validation import checked
from lightning_fl.data.cards.kinds import CardTarget, MoleculeCard
from lightning_fl.data.cards.lookup import FoundFile, Source, file_sha256, find_file, load_card, real_or_standin
from lightning_fl.data.molecules.module import MoleculeDataModule
from lightning_fl.data.molecules.table import DrugOODPart, TargetTransform
from lightning_fl.data.shared import OpenedData
from lightning_fl.files.user_file import existing_file


class _CardModule(MoleculeDataModule):
    card: MoleculeCard

    def _describe_by(self, card: MoleculeCard) -> None:
        self.card, self.smiles_column, self.censored = card, card.smiles, card.censored
        self.transforms = {
            target.name: TargetTransform(target.transform, target.factor)
            for target in card.targets
            if target.transform is not None
        }

    def _open_file(self, found: FoundFile, card: MoleculeCard, **chosen: Any) -> OpenedData:
        """Open a file that a card describes; ``chosen`` are options of ``read_table`` for the record, too."""
        names, units = [target.name for target in card.targets], [target.unit for target in card.targets]
        options = {"file_format": card.format, "required": card.required, "not_targets": card.not_targets} | chosen
        table = self._read(found.path, targets=names or None, units=units or card.target_unit, **options)
        record = {"file": found.path.name, "sha256": found.sha256, "verified": found.verified}
        record |= {"rows": len(table.smiles)} | {key: value for key, value in chosen.items() if value}
        return OpenedData({"train": table}, "measured", card.describe() | record)


class MoleculeNet(_CardModule):
    """Molecules described by a card, such as ESOL, FreeSolv and Lipophilicity of MoleculeNet, or ChEMBL assays.

    Args:
        name: name of a card of the package (``lightning-fl datasets`` lists them), or path of another.
        source: ``"real"``: the file or an error. ``"auto"``: the file, else the card's stand-in with a warning, else an
            error. ``"standin"``: the stand-in.
        data_root: folder searched for the file first, before ``$LIGHTNING_FL_DATA``, cache and download.
        smiles_column: column of SMILES, if not the card's.
        target_columns: columns to predict, if not the card's.
        select: column -> value that rows must have there, such as ``{dataset: caco2_wang}`` for a file that holds
            several data sets; ``None`` for all rows.
        **kwargs: arguments of :class:`MoleculeDataModule`.

    Example:
        >>> from lightning_fl.data.partition import Scaffold
        >>> data = MoleculeNet(name="esol", source="standin", partitioner=Scaffold(num_clients=3), split_seed=1)
    """

    @checked
    def __init__(
        self,
        *,
        name: str = "esol",
        source: Source = "auto",
        data_root: str | None = None,
        smiles_column: str | None = None,
        target_columns: list[str] | None = None,
        select: dict[str, str] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self._describe_by(_with_columns(load_card(name, MoleculeCard), smiles_column, target_columns))
        column = self.card.select_column
        if column is not None and column not in (select or {}):
            raise ConfigurationError(f"name={name!r} holds several data sets: set select: {{{column}: NAME}}.")
        self.select = select
        self.source_choice: Source = source
        self.data_root = data_root

    def _open_table(self, *, allow_download: bool) -> OpenedData:
        find = partial(find_file, self.card, data_root=self.data_root, allow_download=allow_download)
        if (found := real_or_standin(self.card, self.source_choice, find)) is not None:
            return self._open_file(found, self.card, select=self.select)
        from lightning_fl.data.molecules.standin import make_standin

        card = self.card
        assert card.standin is not None  # real_or_standin
        names, units = [target.name for target in card.targets], [target.unit for target in card.targets]
        table = make_standin(card.standin, target_names=names, target_units=units)
        title = f"STAND-IN (computed molecules) for {card.title}"
        record = {"title": title, "file": None, "sha256": None, "verified": False, "rows": len(table.smiles)}
        return OpenedData({"train": table}, "stand-in", card.describe() | record)


class DrugOOD(_CardModule):
    """Ligand activities of DrugOOD (Ji et al. 2022, arXiv:2201.09637), which assays divide naturally.

    The file is the curators' JSON: ``split`` holds the parts, each a list of records with ``smiles``, ``reg_label``
    (pChEMBL value), ``assay_id`` and ``domain_id``. The name of the part becomes the column ``split``.

    Args:
        path: a DrugOOD file; ``None`` to look in ``data_root``, ``$LIGHTNING_FL_DATA`` and the cache.
        card: name or path of the card that describes the file.
        data_root: folder in which the card's file is looked for first.
        parts: parts to use, of ``train``, ``iid_val``, ``iid_test``, ``ood_val`` and ``ood_test``; ``None`` for all.
            They only select molecules; ``split`` divides them in each client.
        **kwargs: arguments of :class:`MoleculeDataModule`.
    """

    @checked
    def __init__(
        self,
        *,
        path: str | None = None,
        card: str = "drugood_ic50",
        data_root: str | None = None,
        parts: list[DrugOODPart] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if path is not None and data_root is not None:
            raise ConfigurationError(f"path={path!r} and data_root={data_root!r}: give only one of them.")
        if parts == []:
            raise ConfigurationError("parts=[]: name at least one part, or omit it to use all.")
        self._describe_by(load_card(card, MoleculeCard))
        if (form := self.card.format) != "drugood-json":
            raise ConfigurationError(f"card={card!r} describes a file of format {form}: use MoleculeNet.")
        self.path = path
        self.data_root = data_root
        self.parts = parts

    def _open_table(self, *, allow_download: bool) -> OpenedData:
        if self.path is None:
            found = find_file(self.card, data_root=self.data_root, allow_download=allow_download)
            return self._open_file(found, self.card, parts=self.parts)
        path = existing_file(self.path)
        digest = file_sha256(path)
        card = replace(self.card, name=path.stem, title=f"DrugOOD file {path.name}")
        found = FoundFile(path, digest, digest in card.file.sha256, "path")
        return self._open_file(found, card, parts=self.parts)


def _with_columns(card: MoleculeCard, smiles: str | None, targets: list[str] | None) -> MoleculeCard:
    if targets == []:
        raise ConfigurationError("target_columns=[]: name at least one column to predict, or omit it.")
    known = {target.name: target for target in card.targets}
    chosen = (
        card.targets if targets is None else tuple(known.get(name, CardTarget(name, "not given")) for name in targets)
    )
    # a stand-in has only the card's own columns
    standin = card.standin if chosen == card.targets and smiles in (None, card.smiles) else None
    return replace(card, smiles=smiles or card.smiles, targets=chosen, standin=standin)
