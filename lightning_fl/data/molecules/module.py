"""Federated data modules of molecules: from a card (MoleculeNet, DrugOOD) or from a CSV file of one's own."""

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, get_args

from torch.utils.data import DataLoader, Subset

from lightning_fl.data.cards.catalogue import CardTarget, MoleculeCard, expect_kind, load_card
from lightning_fl.data.cards.lookup import SOURCES, FoundFile, Source, cache_folder, file_sha256, resolve_source
from lightning_fl.data.module import Split
from lightning_fl.data.molecules.chemprop import chemprop_loader, expect_chemprop
from lightning_fl.data.molecules.table import DRUGOOD_PARTS, INVALID_POLICIES, Invalid, MoleculeTable, read_table
from lightning_fl.data.partition import GroupBy, Partitioner
from lightning_fl.data.shared import OpenedData, SharedDataModule
from lightning_fl.data.unlabelled import NewSamples, Reading, Unlabelled
from lightning_fl.errors import ConfigurationError
from lightning_fl.user_file import existing_file

if TYPE_CHECKING:
    from lightning_fl.data.molecules.dataset import MoleculeDataset
    from lightning_fl.data.molecules.featurizer import MoleculeCodes

__all__ = ["DrugOOD", "MoleculeCSV", "MoleculeDataModule", "MoleculeNet"]

#: Whose graphs clients get.
Graphs = Literal["pyg", "chemprop"]


@dataclass(frozen=True)
class _OpenedTable:
    """Molecules and where they come from: ``source`` for :attr:`FederatedDataModule.source`, ``record`` for the run."""

    table: MoleculeTable
    source: str
    record: dict[str, Any]


class MoleculeDataModule(SharedDataModule):
    """Molecules of one table, shared out among clients and then divided inside each client.

    ``prepare_data`` (once per machine) downloads where that is needed and fills the cache of features; ``setup`` reads
    them. A subclass says where the table comes from.

    Args:
        invalid: ``"refuse"`` SMILES that RDKit cannot read with an error, or ``"skip"`` them with a warning.
        graphs: ``"pyg"`` for PyG's, with the features of :mod:`lightning_fl.data.molecules.featurizer`;
            ``"chemprop"`` for chemprop's own data set, features and batches, for its modules (docs/chemprop.md).
        **kwargs: ``partitioner``, ``split``, ``split_seed``, ``stratified``, ``train_shares``, ``batch_size``,
            ``eval_batch_size``, ``shuffle`` and ``drop_last`` of :class:`~lightning_fl.data.shared.SharedDataModule`.

    Raises:
        ConfigurationError: from the constructor, if an argument is not allowed.
        DataError: from ``prepare_data`` and ``setup``, if the data are missing or damaged or a client gets no molecule.
    """

    sample_noun = "molecule"
    #: The column of SMILES.
    smiles_column: str = "smiles"

    def __init__(self, *, invalid: Invalid = "refuse", graphs: Graphs = "pyg", **kwargs: Any) -> None:
        # Not above, for RDKit and PyG are slow to load and this class is known by name to every run; and not later, so
        # that processes which are forked from this one share them.
        import lightning_fl.data.molecules.dataset  # noqa: F401

        super().__init__(**kwargs)
        if invalid not in INVALID_POLICIES:
            raise ConfigurationError(f"invalid={invalid!r}: expected one of {', '.join(INVALID_POLICIES)}.")
        if graphs not in get_args(Graphs):
            raise ConfigurationError(f"graphs={graphs!r}: expected one of {', '.join(get_args(Graphs))}.")
        if graphs == "chemprop":
            expect_chemprop()
        self.invalid = invalid
        self.graphs: Graphs = graphs
        self._loaders: dict[tuple[int, Split], DataLoader] = {}

    @abstractmethod
    def _open_table(self, *, allow_download: bool) -> _OpenedTable:
        """Find and read the table."""

    def _open(self, *, allow_download: bool) -> OpenedData:
        from lightning_fl.data.molecules.dataset import MoleculeDataset

        opened = self._open_table(allow_download=allow_download)
        dataset = MoleculeDataset(opened.table, invalid=self.invalid, cache=cache_folder() / "molecules")
        return OpenedData({"train": dataset}, opened.source, opened.record | {"molecules": len(dataset)})

    def client_data(self, client: int, split: Split) -> Subset | DataLoader | None:
        """A view of the data set that all clients share, or a chemprop loader; ``None`` where there is nothing."""
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
        """A CSV file with the run's columns of SMILES and targets."""
        if self.graphs == "chemprop":
            raise ConfigurationError(
                "graphs='chemprop': a new client's file is read for graphs='pyg' only. Let the new client take part in"
                " a run."
            )
        from lightning_fl.data.molecules.dataset import MoleculeDataset

        if not path.endswith((".csv", ".csv.gz")):
            raise ConfigurationError(f"{path!r}: expected a file of molecules that ends in .csv or .csv.gz.")
        table = read_table(
            existing_file(path),
            file_format="csv.gz" if path.endswith(".gz") else "csv",
            smiles=self.smiles_column,
            targets=record["target_names"],
            units=record["target_units"],
        )
        return MoleculeDataset(table, invalid=self.invalid, cache=cache_folder() / "molecules")

    def unlabelled_data(self, source: NewSamples, record: Mapping[str, Any], reading: Reading) -> Iterator[Unlabelled]:
        """Rows with a column of SMILES, or SMILES; of one that RDKit cannot read the reason is told."""
        from lightning_fl.data.molecules.dataset import MoleculeDataset
        from lightning_fl.data.molecules.unlabelled import unlabelled_molecules

        def make(table: MoleculeTable, codes: "MoleculeCodes") -> Any:
            dataset = MoleculeDataset(table, codes=codes)
            if self.graphs == "pyg":
                return dataset
            return chemprop_loader(dataset, range(len(dataset)), batch_size=self.eval_batch_size)

        return unlabelled_molecules(source, record, reading, self.smiles_column, make)

    @property
    def dataset(self) -> "MoleculeDataset":
        """All molecules, once ``prepare_data`` or ``setup`` has run."""
        from lightning_fl.data.molecules.dataset import MoleculeDataset

        dataset = self._data.datasets["train"]
        assert isinstance(dataset, MoleculeDataset)
        return dataset

    @property
    def target_names(self) -> list[str]:
        """The T columns to predict."""
        return self.dataset.target_names

    @property
    def target_units(self) -> list[str]:
        """Their units."""
        return self.dataset.target_units

    def describe(self) -> Mapping[str, Any]:
        """Origin, file, sum, units, licence, partition and sizes, for the run's record."""
        return {**super().describe(), "target_names": self.target_names, "target_units": self.target_units}


class MoleculeNet(MoleculeDataModule):
    """Molecules described by a card, such as ESOL, FreeSolv and Lipophilicity of MoleculeNet, or ChEMBL assays.

    Args:
        name: name of a card that comes with the package (``lightning-fl datasets`` lists them), or path of another.
        source: ``"real"``: the file or an error. ``"auto"``: else the card's stand-in, if it has one, with a warning.
            ``"standin"``: the stand-in.
        data_root: folder in which the file is looked for first, before ``$LIGHTNING_FL_DATA``, the cache and the
            download.
        smiles_column: column of SMILES, if not the card's.
        target_columns: columns to predict, if not the card's.
        **kwargs: arguments of :class:`MoleculeDataModule`.

    Example:
        >>> from lightning_fl.data.partition import Scaffold
        >>> data = MoleculeNet(name="esol", source="standin", partitioner=Scaffold(num_clients=3), split_seed=1)
    """

    def __init__(
        self,
        *,
        name: str = "esol",
        source: Source = "auto",
        data_root: str | None = None,
        smiles_column: str | None = None,
        target_columns: list[str] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if source not in SOURCES:
            raise ConfigurationError(f"source={source!r}: expected one of {', '.join(SOURCES)}.")
        self.card = _with_columns(expect_kind(load_card(name), MoleculeCard), smiles_column, target_columns)
        self.smiles_column = self.card.smiles
        self.source_choice: Source = source
        self.data_root = data_root

    def _open_table(self, *, allow_download: bool) -> _OpenedTable:
        found = resolve_source(
            self.card, source=self.source_choice, data_root=self.data_root, allow_download=allow_download
        )
        return _open_standin(self.card) if found is None else _open_card(self.card, found)


class DrugOOD(MoleculeDataModule):
    """Ligand activities of DrugOOD (Ji et al. 2022, arXiv:2201.09637), naturally shared out by assay.

    The file is the curators' JSON: ``split`` holds the parts, each a list of records with ``smiles``, ``reg_label``
    (pChEMBL value), ``assay_id`` and ``domain_id``. The part's name is kept as the column ``split``.

    Args:
        path: a DrugOOD file; ``None`` to look for the card's file in ``data_root``, ``$LIGHTNING_FL_DATA`` and the
            cache.
        card: name or path of the card that describes the file.
        data_root: folder in which the card's file is looked for first.
        parts: the parts to use, of ``train``, ``iid_val``, ``iid_test``, ``ood_val`` and ``ood_test``; ``None`` for all
            of them. They only choose molecules: training and test molecules are divided by ``split``, in each client.
        **kwargs: arguments of :class:`MoleculeDataModule`.
    """

    def __init__(
        self,
        *,
        path: str | None = None,
        card: str = "drugood_ic50",
        data_root: str | None = None,
        parts: list[str] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if path is not None and data_root is not None:
            raise ConfigurationError(f"path={path!r} and data_root={data_root!r}: give one of them.")
        if parts is not None and (not parts or not set(parts) <= set(DRUGOOD_PARTS)):
            raise ConfigurationError(f"parts={parts!r}: name one or more of {', '.join(DRUGOOD_PARTS)}.")
        self.card = expect_kind(load_card(card), MoleculeCard)
        if self.card.format != "drugood-json":
            raise ConfigurationError(
                f"card={card!r} describes a file of format {self.card.format}, not drugood-json: use MoleculeNet."
            )
        self.smiles_column = self.card.smiles
        self.path = path
        self.data_root = data_root
        self.parts = parts

    def _open_table(self, *, allow_download: bool) -> _OpenedTable:
        if self.path is None:
            found = resolve_source(self.card, source="real", data_root=self.data_root, allow_download=allow_download)
            assert found is not None  # "real" finds the file or raises
            return _open_card(self.card, found, parts=self.parts)
        path = existing_file(self.path)
        digest = file_sha256(path)
        card = replace(self.card, name=path.stem, title=f"DrugOOD file {path.name}")
        return _open_card(card, FoundFile(path, digest, digest in card.file.sha256, "path"), parts=self.parts)


class MoleculeCSV(MoleculeDataModule):
    """Molecules of a CSV file of one's own (``.csv`` or ``.csv.gz``).

    Args:
        path: the file.
        target_columns: the columns to predict; an empty cell is a missing value.
        target_units: their units, as text; ``None`` if they do not matter.
        smiles_column: the column of SMILES.
        group_column: makes each value of this column a client, named after it; instead of ``partitioner``.
        partitioner: who gets which molecules; instead of ``group_column``.
        **kwargs: arguments of :class:`MoleculeDataModule`.
    """

    def __init__(
        self,
        *,
        path: str,
        target_columns: list[str],
        target_units: list[str] | None = None,
        smiles_column: str = "smiles",
        group_column: str | None = None,
        partitioner: Partitioner | None = None,
        **kwargs: Any,
    ) -> None:
        if (group_column is None) == (partitioner is None):
            raise ConfigurationError(
                f"group_column={group_column!r} and partitioner={type(partitioner).__name__}: give one of them. To "
                "deal groups to fewer clients use partitioner GroupBy with num_clients."
            )
        super().__init__(partitioner=partitioner or GroupBy(column=str(group_column)), **kwargs)
        if not path.endswith((".csv", ".csv.gz")):
            raise ConfigurationError(f"path={path!r}: expected a file that ends in .csv or .csv.gz.")
        if not target_columns:
            raise ConfigurationError("target_columns=[]: name at least one column to predict.")
        if target_units is not None and len(target_units) != len(target_columns):
            raise ConfigurationError(
                f"target_units={target_units!r}: give one for each of the {len(target_columns)} target_columns."
            )
        self.path = path
        self.target_columns = target_columns
        self.units = target_units or ["not given"] * len(target_columns)
        self.smiles_column = smiles_column
        self.group_column = group_column

    def _open_table(self, *, allow_download: bool) -> _OpenedTable:
        path = existing_file(self.path)
        table = read_table(
            path,
            file_format="csv.gz" if path.suffix == ".gz" else "csv",
            smiles=self.smiles_column,
            targets=self.target_columns,
            units=self.units,
            required=[self.group_column] if self.group_column else [],
        )
        return _OpenedTable(table, "user", {"file": path.name, "sha256": file_sha256(path), "rows": len(table.smiles)})


def _with_columns(card: MoleculeCard, smiles: str | None, targets: list[str] | None) -> MoleculeCard:
    """The card with the user's columns in place of its own."""
    if targets is not None and not targets:
        raise ConfigurationError("target_columns=[]: name at least one column to predict, or leave it out.")
    units = {target.name: target.unit for target in card.targets}
    chosen = (
        card.targets if targets is None else tuple(CardTarget(name, units.get(name, "not given")) for name in targets)
    )
    # a stand-in has the card's own columns only
    standin = card.standin if chosen == card.targets and smiles in (None, card.smiles) else None
    return replace(card, smiles=smiles or card.smiles, targets=chosen, standin=standin)


def _open_card(card: MoleculeCard, found: FoundFile, parts: list[str] | None = None) -> _OpenedTable:
    table = read_table(
        found.path,
        file_format=card.format,
        smiles=card.smiles,
        targets=[target.name for target in card.targets],
        units=[target.unit for target in card.targets],
        required=card.groups,
        parts=parts,
    )
    record = {
        **card.describe(),
        "file": found.path.name,
        "sha256": found.sha256,
        "verified": found.verified,
        "rows": len(table.smiles),
    }
    return _OpenedTable(table, "measured", record | ({"parts": parts} if parts else {}))


def _open_standin(card: MoleculeCard) -> _OpenedTable:
    from lightning_fl.data.molecules.standin import esol_standin

    (target,) = card.targets
    table = esol_standin(target_name=target.name, target_unit=target.unit)
    record = card.describe() | {
        "title": f"STAND-IN (computed molecules) for {card.title}",
        "file": None,
        "sha256": None,
        "verified": False,
        "rows": len(table.smiles),
    }
    return _OpenedTable(table, "stand-in", record)
