"""Federated data modules of molecules: their base class, and the one of the user's table."""

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from lightning.fabric.utilities.rank_zero import rank_zero_info
from torch.utils.data import DataLoader, Subset

from lightning_fl.core.errors import ConfigurationError, expect_extra
from lightning_fl.core.validation import Positive, checked_fields
from lightning_fl.data.cards.lookup import cache_folder, file_sha256
from lightning_fl.data.division import ColumnDivision, HashDivision, ListDivision
from lightning_fl.data.module import Split
from lightning_fl.data.molecules.descriptors import FeatureName, distinct_features
from lightning_fl.data.molecules.duplicates import (
    Duplicates,
    Identity,
    count_duplicates,
    duplicates_report,
    merge_duplicates,
    molecule_identities,
)
from lightning_fl.data.molecules.table import Invalid, MoleculeTable, TargetTransform, Transform, read_table
from lightning_fl.data.partition import FromFile, GroupBy, Partitioner
from lightning_fl.data.shared import OpenedData, SharedDataModule
from lightning_fl.data.unlabelled import NewSamples, Reading, Unlabelled
from lightning_fl.files.text_table import require_columns
from lightning_fl.files.user_file import existing_file

if TYPE_CHECKING:
    from lightning_fl.data.molecules.codes import Codes
    from lightning_fl.data.molecules.dataset import MoleculeDataset

#: Library of the clients' graphs.
Graphs = Literal["pyg", "chemprop"]


@checked_fields
class MoleculeDataModule(SharedDataModule):
    """Molecules of one table, partitioned among clients and split inside each client.

    Args:
        invalid: ``"refuse"`` SMILES that RDKit cannot read with an error, or ``"skip"`` them with a warning.
        graphs: ``"pyg"`` for PyG's, with the features of :mod:`lightning_fl.data.molecules.featurizer`;
            ``"chemprop"`` for chemprop's data set, features and batches, for its modules (docs/chemprop.md).
        identity: criterion by which molecules are the same: canonical ``"smiles"``, or ``"inchikey_no_stereo"``, the
            first block of the InChIKey, which stereoisomers share.
        duplicates: treatment of several rows of one molecule, after counting them: only ``"report"`` them; keep a
            client's rows of one molecule ``"together"`` in one split; or merge them before the partition (where a
            column names the clients, within each client): ``"merge_mean"`` for values, ``"merge_majority"`` for classes
            (missing where several are as frequent), ``"merge_refuse"`` where all must be equal.
        features: descriptors of every molecule besides its graph, in ``descriptors`` [G, F] of batches: ``"rdkit"``,
            RDKit's two-dimensional descriptors, and ``"morgan"``, counts of environments of radius 2, folded to 2,048.
    """

    #: Column of SMILES.
    smiles_column = "smiles"
    #: Whether targets may be bounds.
    censored = False

    invalid: Invalid = "refuse"
    graphs: Graphs = "pyg"
    identity: Identity = "smiles"
    duplicates: Duplicates = "report"
    features: list[FeatureName] | None = None
    #: Target column -> transform of its values.
    transforms: Mapping[str, TargetTransform] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        # Not at the top: RDKit and PyG load slowly, and every run imports this class. Not later: forked processes
        # should share them.
        import lightning_fl.data.molecules.dataset  # noqa: F401

        super().__post_init__()
        if self.graphs == "chemprop":
            expect_extra("chemprop", "chemprop", "graphs='chemprop'")
        if self.duplicates.startswith("merge_") and isinstance(self.division, ListDivision):
            raise ConfigurationError(f"duplicates={self.duplicates!r} with ListDivision: use duplicates: together.")
        self._copies_together = self.duplicates == "together"
        self._merged_within: list[str] = []
        self._identity_of: dict[str, str] = {}
        self._duplicate_counts: dict[str, int] | None = None
        self._features = self.features = distinct_features(self.features or [])
        if self._features and self.graphs == "chemprop":
            raise ConfigurationError(f"features={self.features}: only with graphs='pyg'; chemprop has its own.")
        self._loaders: dict[tuple[int, Split], DataLoader] = {}

    @abstractmethod
    def _open_table(self, *, allow_download: bool) -> OpenedData:
        """Find and read the table, as the part "train"."""

    def _open(self, *, allow_download: bool) -> OpenedData:
        read = self._open_table(allow_download=allow_download)
        dataset = self._dataset_of(self._merged(read.datasets["train"]))
        own = {"molecules": len(dataset)} | ({"features": self._features} if self._features else {})
        return OpenedData({"train": dataset}, read.source, read.record | own)

    def _read(self, path: Path, **options: Any) -> MoleculeTable:
        options |= {"smiles": self.smiles_column, "censored": self.censored, "transforms": self.transforms}
        return read_table(path, **options)

    def _dataset_of(self, table: MoleculeTable) -> "MoleculeDataset":
        from lightning_fl.data.molecules.dataset import MoleculeDataset

        return MoleculeDataset(table, invalid=self.invalid, cache=cache_folder() / "molecules", features=self._features)

    def _identities(self) -> list[str]:
        return [self._identity_of[text] for text in self.dataset.smiles]

    def _merged(self, table: MoleculeTable) -> MoleculeTable:
        """Refuse missing columns of clients or parts, record the molecules' identities, merge copies if required."""
        readers: list[Any] = [by for by in (self.partitioner, self.division) if getattr(by, "column", None) is not None]
        # rows of different clients, or of different given splits, stay separate
        within = [by.column for by in readers if by is not self.division or isinstance(by, ColumnDivision)]
        if isinstance(self.partitioner, FromFile):
            within = self.partitioner.merged_within
        needed = [*within, *(by.column for by in readers)]
        require_columns(table.columns, needed, f"{table.place}, besides SMILES and targets,")
        identities = molecule_identities(table.smiles, self.identity, cache_folder() / "molecules")
        pairs = zip(table.smiles, identities, strict=True)
        self._identity_of = {text: name for text, name in pairs if name is not None}
        if not self.duplicates.startswith("merge_"):
            return table
        self._merged_within = within
        return merge_duplicates(table, identities, self.duplicates, within=within)

    def setup(self, stage: str | None = None) -> None:
        super().setup(stage)
        if self._duplicate_counts is None:
            self._duplicate_counts = count_duplicates(self._identities(), self._shares)
            hashed = isinstance(self.division, HashDivision)
            if report := duplicates_report(self._duplicate_counts, self.identity, hashed):
                rank_zero_info(report)

    def client_data(self, client: int, split: Split) -> Subset | DataLoader | None:
        data = super().client_data(client, split)
        if self.graphs == "pyg" or not isinstance(data, Subset):
            return data
        if (client, split) not in self._loaders:
            self._loaders[client, split] = chemprop_loader(
                self.dataset, data.indices, keep_single=split != "train", **self.loader_options(split)
            )
        return self._loaders[client, split]

    def newcomer_data(self, path: str, record: Mapping[str, Any]) -> "MoleculeDataset":
        if self.graphs == "chemprop":
            raise ConfigurationError("graphs='chemprop': a new client's file can only be read with graphs='pyg'.")
        targets, units = record["target_names"], record["target_units"]
        return self._dataset_of(self._read(existing_file(path), targets=targets, units=units, may_be_empty=True))

    def unlabelled_data(self, source: NewSamples, record: Mapping[str, Any], reading: Reading) -> Iterator[Unlabelled]:
        from lightning_fl.data.molecules.dataset import MoleculeDataset, unlabelled_molecules

        def make(table: MoleculeTable, codes: "Codes") -> Any:
            dataset = MoleculeDataset(table, codes=codes, features=self._features)
            if self.graphs == "pyg":
                return dataset
            return chemprop_loader(dataset, range(len(dataset)), batch_size=self.loader_options("test")["batch_size"])

        return unlabelled_molecules(source, record, reading, self.smiles_column, make)

    @property
    def dataset(self) -> "MoleculeDataset":
        """All molecules, after ``prepare_data`` or ``setup``."""
        return self._data.datasets["train"]

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

    def held_source(self) -> Mapping[str, Any]:
        return {**super().held_source(), "merged_within": self._merged_within}

    def describe(self) -> Mapping[str, Any]:
        record: dict[str, Any] = {"target_names": self.target_names, "target_units": self.target_units}
        if self._duplicate_counts is not None:
            record["duplicates"] = self._duplicate_counts
        if (self.identity, self.duplicates) != ("smiles", "report"):
            record["copies"] = {"identity": self.identity, "duplicates": self.duplicates}
        return {**super().describe(), **record}


@checked_fields
class MoleculeCSV(MoleculeDataModule):
    """Molecules of the user's table: CSV (or with semicolons, tabs, bars), packed or not, Parquet, Excel, SDF.

    Args:
        path: the file.
        target_columns: columns to predict; an empty cell is a missing value.
        target_units: their units, as text; ``None`` if they do not matter.
        smiles_column: column of SMILES, in any case; by default also "canonical_smiles", "isomeric_smiles" or "smi".
        group_column: makes each value of this column a client of that name; instead of ``partitioner``.
        partitioner: assigns molecules to clients; instead of ``group_column``.
        censored: read cells such as ">5" and "<=0.1" as bounds, which are otherwise refused. The model must be
            :class:`~lightning_fl.models.MoleculeModel`, or read ``batch.y_bound``.
        target_transform: predict ``"log10"`` or ``"-log10"`` of ``target_factor`` times the values; ``target_units``
            are the units after it. ``"-log10"`` and 1e-6 make a pIC50 of an IC50 in µmol/L, and an upper bound of a
            lower one. ``None`` for the values of the file.
        target_factor: see ``target_transform``.
    """

    path: str
    target_columns: list[str]
    target_units: list[str] | None = None  # type: ignore[assignment]  # until __post_init__
    smiles_column: str = "smiles"
    group_column: str | None = None
    partitioner: Partitioner | None = None  # type: ignore[assignment]  # until __post_init__
    censored: bool = False
    target_transform: Transform | None = None
    target_factor: Positive = 1.0

    def __post_init__(self) -> None:
        if (self.group_column is None) == (self.partitioner is None):
            given = f"group_column={self.group_column!r} and partitioner={type(self.partitioner).__name__}"
            remedy = "To deal groups to fewer clients use partitioner GroupBy with num_clients."
            raise ConfigurationError(f"{given}: give exactly one of them. {remedy}")
        self.partitioner = self.partitioner or GroupBy(column=str(self.group_column))
        super().__post_init__()
        units, transform, factor = self.target_units, self.target_transform, self.target_factor
        if not self.target_columns:
            raise ConfigurationError("target_columns=[]: name at least one column to predict.")
        if units is not None and len(units) != (count := len(self.target_columns)):
            raise ConfigurationError(f"target_units={units!r}: give one for each of {count} target_columns.")
        if transform is None and factor != 1:
            raise ConfigurationError(f"target_factor={factor!r} has no effect without target_transform.")
        self.target_units = units or ["not given"] * len(self.target_columns)
        if transform is not None:
            self.transforms = dict.fromkeys(self.target_columns, TargetTransform(transform, factor))

    def _open_table(self, *, allow_download: bool) -> OpenedData:
        path = existing_file(self.path)
        table = self._read(path, targets=self.target_columns, units=self.target_units)
        record = {"file": path.name, "sha256": file_sha256(path), "rows": len(table.smiles)}
        return OpenedData({"train": table}, "user", record)


def chemprop_loader(
    molecules: "MoleculeDataset",
    indices: Sequence[int],
    *,
    batch_size: int,
    shuffle: bool = False,
    drop_last: bool = False,
    keep_single: bool = True,
) -> DataLoader:
    """Make a loader of ``chemprop.data.TrainingBatch`` over some of the molecules, featurised once.

    ``keep_single`` keeps a last batch of one molecule, which batch normalisation cannot train on; an only batch stays.
    """
    from chemprop.data import MoleculeDatapoint, MoleculeDataset, build_dataloader

    smiles, targets = molecules.smiles, molecules.targets.numpy()
    bounds = molecules.bounds
    masks: list[dict[str, Any]] = [{}] * len(smiles)
    if bounds is not None:
        masks = [{"lt_mask": row < 0, "gt_mask": row > 0} for row in bounds.numpy()]
    points = [MoleculeDatapoint.from_smi(smiles[index], y=targets[index], **masks[index]) for index in indices]
    dataset = MoleculeDataset(points)
    dataset.cache = True
    drop_last = len(dataset) > batch_size and (drop_last or (not keep_single and len(dataset) % batch_size == 1))
    return build_dataloader(
        dataset, batch_size=batch_size, shuffle=shuffle, drop_last=drop_last, generator=torch.Generator()
    )
