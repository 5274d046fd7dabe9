"""Cards: tables of molecules, labelled images, and tables with a class, or a time and an event, for every row."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self, get_args

from lightning_fl.core.errors import ConfigurationError, did_you_mean
from lightning_fl.core.validation import Count, Positive, check_fields
from lightning_fl.data.cards.card import Card, check_keys, check_names, check_paths, within

#: File format of molecules.
FileFormat = Literal["csv", "csv.gz", "drugood-json"]
#: Transform of a target: its logarithm or the negative of it, as in pIC50.
Transform = Literal["log10", "-log10"]


@dataclass(frozen=True)
class CardTarget:
    """A column to predict, its unit, and its transform: log10 or -log10 of ``factor`` times the values."""

    name: str
    unit: str
    transform: Transform | None = None
    factor: Positive = 1.0

    def __post_init__(self) -> None:
        check_fields(self)
        if self.factor != 1 and self.transform is None:
            raise ConfigurationError(f"factor={self.factor!r} has no effect without transform.")


@dataclass(frozen=True, kw_only=True)
class MoleculeCard(Card):
    """Card of a table of molecules."""

    task: Literal["regression", "classification"]
    format: FileFormat
    standin: Literal["esol", "bbbp", "tox21", "aqsoldb"] | None
    smiles: str = within("columns")
    #: Columns to predict; empty for all columns except ``not_targets``, which a card writes as
    #: ``targets: {all_but: [...], unit: ...}``.
    targets: tuple[CardTarget, ...] = within("columns")
    groups: tuple[str, ...] = within("columns")  #: columns that divide the rows naturally into clients
    rows: Count | None
    not_targets: tuple[str, ...] = within("columns", default=())  #: where ``targets`` is empty
    target_unit: str = within("columns", default="not given")  #: of all targets, where ``targets`` is empty
    split_column: str | None = within("columns", "split", default=None)  #: train, val and test of a published split
    select_column: str | None = within("columns", "select", default=None)  #: in a file of several data sets
    censored: bool = False  #: whether targets may be bounds, such as "> 99.5"

    content = "molecules"
    data_module = "MoleculeNet"
    formats = get_args(FileFormat)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.targets and self.target_unit == "not given":
            raise ConfigurationError("columns.targets is empty: name at least one column to predict.")
        if self.standin is not None and len(self.targets) != 1 and (self.standin != "tox21" or not self.targets):
            raise ConfigurationError(f"standin: {self.standin} does not have the card's targets; set it to null.")

    @classmethod
    def parse(cls, content: Mapping[str, Any], path: Path) -> Self:
        """Make a card from the content of its YAML, where ``targets`` may be all columns but some."""
        columns = content.get("columns")
        if isinstance(columns, Mapping) and isinstance(columns.get("targets"), Mapping):
            others = check_keys(columns["targets"], ("all_but", "unit"), f"card {path}, columns.targets")
            named = {"targets": [], "not_targets": others["all_but"], "target_unit": others["unit"]}
            content = {**content, "columns": {**columns, **named}}
        return super().parse(content, path)

    def details(self) -> dict[str, str]:
        others = dict.fromkeys((self.smiles, *self.required, *self.not_targets))
        return {
            "molecules": self.smiles,
            "targets": "; ".join(f"{target.name} [{target.unit}]" for target in self.targets)
            or f"all columns but {', '.join(others)} [{self.target_unit}]",
            "groups": ", ".join(self.groups) or "none",
            **({"split": self.split_column} if self.split_column else {}),
            **({"data sets": f"one value of {self.select_column}"} if self.select_column else {}),
        }

    @property
    def required(self) -> tuple[str, ...]:
        """Columns that must exist, besides SMILES and targets."""
        return tuple(dict.fromkeys(filter(None, (*self.groups, self.split_column, self.select_column))))


#: Format of the digits in scikit-learn, which have no file.
DIGITS_FORMAT = "scikit-learn-digits"
_ImageFormat = Literal["npz", "scikit-learn-digits"]

FolderLayout = Literal["leaf", "class-folders"]
#: Content of the folder of a part, by layout.
_CONTENTS: dict[FolderLayout, str] = {"leaf": "*.json", "class-folders": "CLASS/*.png"}

#: Data sets of torchvision that a card may name: images in memory, whose classes check the sums of what they unpickle.
_TorchvisionClass = Literal[
    "MNIST", "FashionMNIST", "KMNIST", "EMNIST", "QMNIST", "CIFAR10", "CIFAR100", "SVHN", "USPS", "STL10"
]


@dataclass(frozen=True)
class TorchvisionData:
    """A data set of torchvision."""

    dataset: _TorchvisionClass  #: class in ``torchvision.datasets``
    train: Mapping[str, Any]  #: its arguments for the training images
    test: Mapping[str, Any]  #: and for the test images
    files: tuple[str, ...]  #: by which torchvision's layout is recognised, relative to the folder given to the class
    first_label: Literal[0, 1] = 0  #: label of the first class (1 for EMNIST's letters)

    def __post_init__(self) -> None:
        check_fields(self)
        check_paths(self.files, "files")
        for part, arguments in self.parts.items():
            plain = all(isinstance(value, bool | int | str) for value in arguments.values())
            if {"root", "download"} & set(arguments) or not plain:  # folder and download are this package's
                rule = f"must be arguments of {self.dataset}, without root and download"
                raise ConfigurationError(f"{part}={arguments!r}: {rule}.")

    @property
    def parts(self) -> dict[str, Mapping[str, Any]]:
        return {"train": self.train, "test": self.test}


@dataclass(frozen=True)
class ImageFolder:
    """Folder in which a set of images is published."""

    layout: FolderLayout  #: JSON files of the LEAF benchmark, or a folder of PNG files for every class
    names: tuple[str, ...]  #: possible names, relative to the folder given by the user
    #: Possible divisions, tried in this order: "train", and "test" if separate -> folders whose images are joined.
    parts: tuple[Mapping[str, tuple[str, ...]], ...]

    def __post_init__(self) -> None:
        check_fields(self)
        check_paths(self.names, "names")
        if not self.parts:
            raise ConfigurationError("parts is empty: name the folders of the parts, such as train: [train].")
        for number, way in enumerate(self.parts):
            for part, paths in check_keys(way, ("train",), f"parts[{number}]", ("test",)).items():
                check_paths(paths, f"parts[{number}], {part}")

    @property
    def joins_parts(self) -> bool:
        return any(len(way["train"]) > 1 for way in self.parts)

    @property
    def description(self) -> str:
        ways = [[name for names in way.values() for name in names] for way in self.parts]
        content = ", or ".join(" and ".join(f"{name}/{_CONTENTS[self.layout]}" for name in way) for way in ways)
        return f"a folder {' or '.join(self.names)} with {content}"


@dataclass(frozen=True, kw_only=True)
class ImageCard(Card):
    """Card of images of one size with a class each; ``files`` has a ``.npz`` file in MedMNIST's layout, or none."""

    task: Literal["classification"]
    format: _ImageFormat
    standin: Literal["digits"] | None
    torchvision: TorchvisionData | None
    folder: ImageFolder | None = None
    channels: Literal[1, 3] = within("image")  #: 1 for grey, 3 for colours
    size: Count = within("image")  # noqa: RUF009 - height and width in pixels
    classes: tuple[str, ...]  #: names of the classes 0, 1, ...
    coarse_classes: tuple[str, ...] = ()  #: names of the superclasses, if there are any
    rows: Mapping[str, Count | None]

    content = "images"
    data_module = "ImageData"
    formats = get_args(_ImageFormat)
    standin_title = "scikit-learn's 8 x 8 digits, enlarged"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_names(self.classes, "classes")
        if self.coarse_classes:
            check_names(self.coarse_classes, "coarse_classes")
        if check_keys(self.rows, ("train", "test"), "rows")["train"] is None:
            raise ConfigurationError("rows.train: give the number of images for training.")
        if self.folder is not None and self.coarse_classes:
            raise ConfigurationError("folder: no layout has superclasses; omit coarse_classes.")
        if self.has_writers and self.channels != 1:
            raise ConfigurationError("folder: LEAF's JSON files hold grey images; set image.channels to 1.")

    def _file_counts(self) -> tuple[int, ...]:
        return (0,) if self.format == DIGITS_FORMAT else (1,)

    @property
    def has_writers(self) -> bool:
        return self.folder is not None and self.folder.layout == "leaf"

    @property
    def can_be_fetched(self) -> bool:
        return self.torchvision is not None

    def details(self) -> dict[str, str]:
        names = list(self.classes) if len(self.classes) <= 10 else [*self.classes[:9], "..."]
        counts = " and ".join(f"{count:,} for {part}" for part, count in self.rows.items() if count is not None)
        colours = "grey" if self.channels == 1 else "colour"
        return {
            **({} if self.folder is None else {"folder": f"or {self.folder.description}"}),
            "images": f"{counts}, {self.size} x {self.size} pixels, {colours}",
            "classes": f"{len(self.classes)}: {', '.join(names)}"
            + (f"; {len(self.coarse_classes)} superclasses" if self.coarse_classes else ""),
        }


_TableFormat = Literal["c45", "table"]


@dataclass(frozen=True)
class DerivedColumn:
    """Column of two groups: ``label`` where another column has one of the values, else ``other``."""

    name: str
    column: str
    values: tuple[str, ...]
    label: str
    other: str


@dataclass(frozen=True, kw_only=True)
class TableCard(Card):
    """Card of a table of numbers and categories.

    The format ``c45`` has no header: values separated by commas, with or without blanks; a bar begins a comment; ``?``
    is a missing value; a row may end with a full stop. The format ``table`` has a header with all column names.
    ``files`` are that of the training data and, if separate, that of the test data.
    """

    task: Literal["classification", "survival"]
    format: _TableFormat
    standin: None
    columns: tuple[str, ...] = within("columns", "names")  #: all, in the files' order
    target: str = within("columns")  #: column to predict, perhaps a derived one; for survival the time
    event: str | None = within("columns", default=None)  #: for survival: 1 if observed, 0 if the time is censored
    classes: tuple[str, ...] = within("columns", default=())  #: values of the target for classes 0, 1, ...
    unused: tuple[str, ...] = within("columns", default=())  #: inputs only if the user names them
    categorical: tuple[str, ...] = within("columns")  #: columns that are not numbers, without the target
    derived: tuple[DerivedColumn, ...] = within("columns")  #: further columns for partitions
    rows: Mapping[str, Count | None]

    content = "a table"
    data_module = "TableData"
    formats = get_args(_TableFormat)
    may_be_gzipped = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.standin is not None:
            raise ConfigurationError(f"standin={self.standin!r}: must be null, as tables have no stand-ins.")
        rows = check_keys(self.rows, ("train", "test"), "rows")
        if rows["train"] is None or (rows["test"] is not None) != (len(self.files) == 2):
            raise ConfigurationError(f"rows={dict(rows)}: must have the rows of each of the {len(self.files)} files.")
        check_names(self.columns, "columns.names")
        if (self.task == "survival") == (self.event is None) or (self.event is not None and self.classes):
            raise ConfigurationError(f"columns, task {self.task}: give event for survival, classes for classification.")
        derived = [column.name for column in self.derived]
        if self.event is None:
            check_names(self.classes, "columns.classes")
            _check_known([self.target], {*self.columns, *derived}, "columns.target")
        else:
            _check_known([self.target], self.columns, "columns.target")
            _check_known([self.event], self.columns, "columns.event")
        _check_known(self.unused, self.columns, "columns.unused")
        _check_known(self.categorical, {*self.columns} - {self.target}, "columns.categorical")
        for number, column in enumerate(self.derived):
            if not column.values or column.name in self.columns:
                what = f"columns.derived[{number}]: name={column.name!r}, values={list(column.values)}"
                raise ConfigurationError(f"{what}: must be a name that no column has, and at least one value.")
            _check_known([column.column], self.columns, f"columns.derived[{number}], column")

    def _file_counts(self) -> tuple[int, ...]:
        return (1, 2)

    def details(self) -> dict[str, str]:
        inputs = [name for name in self.columns if name != self.target]
        groups = [f"{one.name} ({one.label}, {one.other}; from {one.column})" for one in self.derived]
        return {
            "columns": ", ".join(f"{name} (categories)" if name in self.categorical else name for name in inputs),
            "target": f"{self.target}: {', '.join(self.classes)}" if self.classes else f"{self.target}, {self.event}",
            "groups": ", ".join(groups) or "none",
        }


def _check_known(names: Collection[str], columns: Collection[str], where: str) -> None:
    for name in names:
        if name not in columns:
            raise ConfigurationError(f"{where}: there is no column {name!r}{did_you_mean(name, columns)} to use here.")
