"""Federated data modules of molecules, from a card (MoleculeNet, DrugOOD) or from the user's table."""

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from torch.utils.data import DataLoader, Subset

from lightning_fl.core.errors import ConfigurationError
from lightning_fl.core.validation import Positive, checked
from lightning_fl.data.cards.catalogue import CardTarget, MoleculeCard, load_card
from lightning_fl.data.cards.lookup import FoundFile, Source, cache_folder, file_sha256, find_file, real_or_standin
from lightning_fl.data.module import Split
from lightning_fl.data.molecules.chemprop import chemprop_loader, require_chemprop
from lightning_fl.data.molecules.descriptors import FeatureName, distinct_features
from lightning_fl.data.molecules.duplicates import DuplicateRows, Duplicates
from lightning_fl.data.molecules.identity import Identity
from lightning_fl.data.molecules.table import (
    DrugOODPart,
    Invalid,
    MoleculeTable,
    TargetTransform,
    Transform,
    read_table,
)
from lightning_fl.data.partition import GroupBy, Partitioner
from lightning_fl.data.shared import OpenedData, SharedDataModule
from lightning_fl.data.unlabelled import NewSamples, Reading, Unlabelled
from lightning_fl.files.user_file import existing_file

if TYPE_CHECKING:
    from lightning_fl.data.molecules.dataset import MoleculeDataset
    from lightning_fl.data.molecules.featurizer import MoleculeCodes

__all__ = ["DrugOOD", "MoleculeCSV", "MoleculeDataModule", "MoleculeNet"]

#: Library of the clients' graphs.
Graphs = Literal["pyg", "chemprop"]


@dataclass(frozen=True)
class _OpenedTable:
    """Molecules with ``source`` of :class:`~lightning_fl.data.shared.OpenedData` and a record for the run."""

    table: MoleculeTable
    source: str
    record: dict[str, Any]


class MoleculeDataModule(SharedDataModule):
    """Molecules of one table, partitioned among clients and split inside each client.

    ``prepare_data`` (once per machine) downloads the file where necessary and fills the cache of features; ``setup``
    reads them. Subclasses open the table.

    Args:
        invalid: ``"refuse"`` SMILES that RDKit cannot read with an error, or ``"skip"`` them with a warning.
        graphs: ``"pyg"`` for PyG's, with the features of :mod:`lightning_fl.data.molecules.featurizer`;
            ``"chemprop"`` for chemprop's data set, features and batches, for its modules (docs/chemprop.md).
        identity: criterion by which molecules are the same: canonical ``"smiles"``, or ``"inchikey_no_stereo"``, the
            first block of the InChIKey, which stereoisomers share.
        duplicates: treatment of several rows of one molecule, after counting them: only ``"report"`` them; keep a
            client's rows of one molecule ``"together"`` in one split; or merge them before the partition (where a
            column names the clients, within each client): ``"merge_mean"`` for values, ``"merge_majority"`` for classes
            (missing where several are as frequent), ``"merge_refuse"`` where all must be equal. To keep molecules of
            several clients in the same split use the division ``HashDivision``.
        features: descriptors of every molecule besides its graph, in ``descriptors`` [G, F] of batches: ``"rdkit"``,
            RDKit's two-dimensional descriptors, and ``"morgan"``, counts of Morgan environments of radius 2, folded to
            2,048. A :class:`~lightning_fl.models.molecule.MoleculeModel` uses them without further settings.
        **kwargs: ``partitioner``, ``split``, ``split_seed``, ``division``, ``folds``, ``fold``, ``stratified``,
            ``train_shares``, ``batch_size``, ``eval_batch_size``, ``shuffle`` and ``drop_last`` of
            :class:`~lightning_fl.data.shared.SharedDataModule`.

    Raises:
        DataError: from ``prepare_data`` and ``setup``: the data are missing or damaged, a client gets no molecule, or
            rows cannot be merged.
    """

    sample_noun = "molecule"
    #: Column of SMILES.
    smiles_column: str = "smiles"
    #: Whether targets may be bounds.
    censored: bool = False
    #: Target column -> transform of its values.
    transforms: Mapping[str, TargetTransform] = MappingProxyType({})

    @checked
    def __init__(
        self,
        *,
        invalid: Invalid = "refuse",
        graphs: Graphs = "pyg",
        identity: Identity = "smiles",
        duplicates: Duplicates = "report",
        features: list[FeatureName] | None = None,
        **kwargs: Any,
    ) -> None:
        # Not at the top: RDKit and PyG load slowly, and every run imports this class. Not later: forked processes
        # should share them.
        import lightning_fl.data.molecules.dataset  # noqa: F401

        super().__init__(**kwargs)
        if graphs == "chemprop":
            require_chemprop()
        self._duplicate_rows = DuplicateRows(identity, duplicates, self.partitioner, self.division)
        self._copies_together = duplicates == "together"
        self.identity: Identity = identity
        self.duplicates: Duplicates = duplicates
        self.features = distinct_features(features or [])
        if self.features and graphs == "chemprop":
            raise ConfigurationError(
                f"features={self.features}: only with graphs='pyg'; chemprop's modules have extra descriptors of their"
                " own."
            )
        self.invalid = invalid
        self.graphs: Graphs = graphs
        self._loaders: dict[tuple[int, Split], DataLoader] = {}

    @abstractmethod
    def _open_table(self, *, allow_download: bool) -> _OpenedTable:
        """Find and read the table."""

    def _open(self, *, allow_download: bool) -> OpenedData:
        opened = self._open_table(allow_download=allow_download)
        dataset = self._dataset_of(self._duplicate_rows.merge(opened.table, cache_folder() / "molecules"))
        record = opened.record | {"molecules": len(dataset)} | ({"features": self.features} if self.features else {})
        return OpenedData({"train": dataset}, opened.source, record)

    def _dataset_of(self, table: MoleculeTable) -> "MoleculeDataset":
        from lightning_fl.data.molecules.dataset import MoleculeDataset

        cache = cache_folder() / "molecules"
        return MoleculeDataset(table, invalid=self.invalid, cache=cache, features=self.features)

    def _identities(self) -> list[str]:
        return self._duplicate_rows.identities(self.dataset)

    def setup(self, stage: str | None = None) -> None:
        """Read and partition the molecules and report duplicates. Further calls change nothing."""
        super().setup(stage)
        self._duplicate_rows.report(self.dataset, self._shares)

    def client_data(self, client: int, split: Split) -> Subset | DataLoader | None:
        """Return a view of the shared data set, or a chemprop loader; ``None`` where there is nothing."""
        data = super().client_data(client, split)
        if self.graphs == "pyg" or not isinstance(data, Subset):
            return data
        if (client, split) not in self._loaders:
            training = split == "train"
            self._loaders[client, split] = chemprop_loader(
                self.dataset,
                data.indices,
                batch_size=self.batch_size if training else self.eval_batch_size,
                shuffle=training and self.shuffle,
                drop_last=training and self.drop_last,
                keep_single=not training,
            )
        return self._loaders[client, split]

    def newcomer_data(self, path: str, record: Mapping[str, Any]) -> "MoleculeDataset":
        """Read a table with the run's columns of SMILES and targets, in the same way as the run's."""
        if self.graphs == "chemprop":
            raise ConfigurationError(
                "graphs='chemprop': a new client's file can only be read with graphs='pyg'. Let the new client take"
                " part in a run."
            )
        table = read_table(
            existing_file(path),
            file_format="csv",
            smiles=self.smiles_column,
            targets=record["target_names"],
            units=record["target_units"],
            censored=self.censored,
            transforms=self.transforms,
        )
        return self._dataset_of(table)

    def unlabelled_data(self, source: NewSamples, record: Mapping[str, Any], reading: Reading) -> Iterator[Unlabelled]:
        """Read rows with a column of SMILES, or SMILES; unreadable ones get an explanation."""
        from lightning_fl.data.molecules.dataset import MoleculeDataset
        from lightning_fl.data.molecules.unlabelled import unlabelled_molecules

        def make(table: MoleculeTable, codes: "MoleculeCodes") -> Any:
            dataset = MoleculeDataset(table, codes=codes, features=self.features)
            if self.graphs == "pyg":
                return dataset
            return chemprop_loader(dataset, range(len(dataset)), batch_size=self.eval_batch_size)

        return unlabelled_molecules(source, record, reading, self.smiles_column, make)

    @property
    def dataset(self) -> "MoleculeDataset":
        """All molecules, after ``prepare_data`` or ``setup``."""
        from lightning_fl.data.molecules.dataset import MoleculeDataset

        dataset = self._data.datasets["train"]
        assert isinstance(dataset, MoleculeDataset)
        return dataset

    @property
    def target_names(self) -> list[str]:
        """Names of the T target columns."""
        return self.dataset.target_names

    @property
    def descriptor_dim(self) -> int:
        """Number F of descriptors per molecule; 0 without ``features``."""
        return self.dataset.descriptor_dim

    @property
    def target_units(self) -> list[str]:
        """Units of the T targets."""
        return self.dataset.target_units

    def describe(self) -> Mapping[str, Any]:
        """Return origin, file, sum, units, licence, partition and sizes, for the run's record."""
        return {
            **super().describe(),
            "target_names": self.target_names,
            "target_units": self.target_units,
            **self._duplicate_rows.describe(),
        }


class MoleculeNet(MoleculeDataModule):
    """Molecules described by a card, such as ESOL, FreeSolv and Lipophilicity of MoleculeNet, or ChEMBL assays.

    Args:
        name: name of a card of the package (``lightning-fl datasets`` lists them), or path of another.
        source: ``"real"``: the file or an error. ``"auto"``: the file, else the card's stand-in with a warning, else an
            error. ``"standin"``: the stand-in.
        data_root: folder in which the file is looked for first, before ``$LIGHTNING_FL_DATA``, the cache and the
            download.
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
        self.card = _with_columns(load_card(name, MoleculeCard), smiles_column, target_columns)
        self.smiles_column = self.card.smiles
        self.censored = self.card.censored
        self.transforms = _transforms(self.card)
        column = self.card.select_column
        if column is not None and column not in (select or {}):
            raise ConfigurationError(
                f"name={name!r} holds several data sets: choose one with select, such as select: {{{column}: NAME}}."
            )
        self.select = select
        self.source_choice: Source = source
        self.data_root = data_root

    def _open_table(self, *, allow_download: bool) -> _OpenedTable:
        found = real_or_standin(
            self.card,
            self.source_choice,
            lambda: find_file(self.card, data_root=self.data_root, allow_download=allow_download),
        )
        return _open_standin(self.card) if found is None else _open_card(self.card, found, select=self.select)


class DrugOOD(MoleculeDataModule):
    """Ligand activities of DrugOOD (Ji et al. 2022, arXiv:2201.09637), which assays divide naturally.

    The file is the curators' JSON: ``split`` holds the parts, each a list of records with ``smiles``, ``reg_label``
    (pChEMBL value), ``assay_id`` and ``domain_id``. The name of the part becomes the column ``split``.

    Args:
        path: a DrugOOD file; ``None`` to look for the card's file in ``data_root``, ``$LIGHTNING_FL_DATA`` and the
            cache.
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
        self.card = load_card(card, MoleculeCard)
        if self.card.format != "drugood-json":
            raise ConfigurationError(
                f"card={card!r} describes a file of format {self.card.format}, not drugood-json: use MoleculeNet."
            )
        self.smiles_column = self.card.smiles
        self.censored = self.card.censored
        self.transforms = _transforms(self.card)
        self.path = path
        self.data_root = data_root
        self.parts = parts

    def _open_table(self, *, allow_download: bool) -> _OpenedTable:
        if self.path is None:
            found = find_file(self.card, data_root=self.data_root, allow_download=allow_download)
            return _open_card(self.card, found, parts=self.parts)
        path = existing_file(self.path)
        digest = file_sha256(path)
        card = replace(self.card, name=path.stem, title=f"DrugOOD file {path.name}")
        return _open_card(card, FoundFile(path, digest, digest in card.file.sha256, "path"), parts=self.parts)


class MoleculeCSV(MoleculeDataModule):
    """Molecules of the user's table: CSV (or with semicolons, tabs, bars), packed or not, Parquet, Excel, SDF.

    Args:
        path: the file.
        target_columns: columns to predict; an empty cell is a missing value.
        target_units: their units, as text; ``None`` if they do not matter.
        smiles_column: column of SMILES.
        group_column: makes each value of this column a client of that name; instead of ``partitioner``.
        partitioner: assigns molecules to clients; instead of ``group_column``.
        censored: read cells such as ">5" and "<=0.1" as bounds, which are otherwise refused.
        target_transform: predict ``"log10"`` or ``"-log10"`` of ``target_factor`` times the values; ``target_units``
            are the units after it. ``"-log10"`` and 1e-6 make a pIC50 of an IC50 in µmol/L, and an upper bound of a
            lower one. ``None`` for the values of the file.
        target_factor: see ``target_transform``.
        **kwargs: arguments of :class:`MoleculeDataModule`.
    """

    @checked
    def __init__(
        self,
        *,
        path: str,
        target_columns: list[str],
        target_units: list[str] | None = None,
        smiles_column: str = "smiles",
        group_column: str | None = None,
        partitioner: Partitioner | None = None,
        censored: bool = False,
        target_transform: Transform | None = None,
        target_factor: Positive = 1.0,
        **kwargs: Any,
    ) -> None:
        if (group_column is None) == (partitioner is None):
            raise ConfigurationError(
                f"group_column={group_column!r} and partitioner={type(partitioner).__name__}: give exactly one of them."
                " To deal groups to fewer clients use partitioner GroupBy with num_clients."
            )
        super().__init__(partitioner=partitioner or GroupBy(column=str(group_column)), **kwargs)
        if not target_columns:
            raise ConfigurationError("target_columns=[]: name at least one column to predict.")
        if target_units is not None and len(target_units) != len(target_columns):
            raise ConfigurationError(
                f"target_units={target_units!r}: give one unit for each of the {len(target_columns)} target_columns."
            )
        if target_transform is None and target_factor != 1:
            raise ConfigurationError(f"target_factor={target_factor!r} has no effect without target_transform.")
        self.path = path
        self.target_columns = target_columns
        self.units = target_units or ["not given"] * len(target_columns)
        self.smiles_column = smiles_column
        self.group_column = group_column
        self.censored = censored
        self.target_transform = target_transform
        self.target_factor = target_factor
        if target_transform is not None:
            self.transforms = dict.fromkeys(target_columns, TargetTransform(target_transform, target_factor))

    def _open_table(self, *, allow_download: bool) -> _OpenedTable:
        path = existing_file(self.path)
        table = read_table(
            path,
            file_format="csv",
            smiles=self.smiles_column,
            targets=self.target_columns,
            units=self.units,
            required=[self.group_column] if self.group_column else [],
            censored=self.censored,
            transforms=self.transforms,
        )
        return _OpenedTable(table, "user", {"file": path.name, "sha256": file_sha256(path), "rows": len(table.smiles)})


def _with_columns(card: MoleculeCard, smiles: str | None, targets: list[str] | None) -> MoleculeCard:
    """Replace a card's columns by the user's."""
    if targets == []:
        raise ConfigurationError("target_columns=[]: name at least one column to predict, or omit it.")
    known = {target.name: target for target in card.targets}
    chosen = (
        card.targets if targets is None else tuple(known.get(name, CardTarget(name, "not given")) for name in targets)
    )
    # a stand-in has only the card's own columns
    standin = card.standin if chosen == card.targets and smiles in (None, card.smiles) else None
    return replace(card, smiles=smiles or card.smiles, targets=chosen, standin=standin)


def _open_card(
    card: MoleculeCard, found: FoundFile, parts: list[DrugOODPart] | None = None, select: dict[str, str] | None = None
) -> _OpenedTable:
    table = read_table(
        found.path,
        file_format=card.format,
        smiles=card.smiles,
        targets=[target.name for target in card.targets] or None,
        units=[target.unit for target in card.targets] or card.target_unit,
        required=card.required,
        parts=parts,
        not_targets=card.not_targets,
        select=select,
        censored=card.censored,
        transforms=_transforms(card),
    )
    record = {
        **card.describe(),
        "file": found.path.name,
        "sha256": found.sha256,
        "verified": found.verified,
        "rows": len(table.smiles),
    }
    chosen = {"parts": parts, "select": select}
    return _OpenedTable(table, "measured", record | {key: value for key, value in chosen.items() if value})


def _transforms(card: MoleculeCard) -> dict[str, TargetTransform]:
    return {
        target.name: TargetTransform(target.transform, target.factor)
        for target in card.targets
        if target.transform is not None
    }


def _open_standin(card: MoleculeCard) -> _OpenedTable:
    from lightning_fl.data.molecules.standin import make_standin

    assert card.standin is not None  # real_or_standin
    names, units = [target.name for target in card.targets], [target.unit for target in card.targets]
    table = make_standin(card.standin, target_names=names, target_units=units)
    record = card.describe() | {
        "title": f"STAND-IN (computed molecules) for {card.title}",
        "file": None,
        "sha256": None,
        "verified": False,
        "rows": len(table.smiles),
    }
    return _OpenedTable(table, "stand-in", record)
