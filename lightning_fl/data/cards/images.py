"""Cards of labelled images."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

from lightning_fl.core.errors import ConfigurationError
from lightning_fl.core.validation import Count, check_fields
from lightning_fl.data.cards.card import Card
from lightning_fl.data.cards.fields import (
    CardFile,
    read_keys,
    read_list,
    read_names,
    read_only_file,
    read_texts,
)
from lightning_fl.files.names import is_plain_name

__all__ = ["DIGITS_FORMAT", "FolderLayout", "ImageCard", "ImageFolder", "TorchvisionData"]

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
    """A data set of torchvision.

    Attributes:
        dataset: class in ``torchvision.datasets``.
        parts: arguments of the class for ``"train"`` and ``"test"``.
        files: files, relative to the folder given to the class, by which torchvision's layout is recognised.
        first_label: label of the first class (1 for EMNIST's letters).
    """

    dataset: _TorchvisionClass
    parts: Mapping[str, Mapping[str, Any]]
    files: tuple[str, ...]
    first_label: Literal[0, 1]


@dataclass(frozen=True)
class ImageFolder:
    """Folder in which a set of images is published.

    Attributes:
        layout: ``"leaf"`` for the JSON files of the LEAF benchmark, ``"class-folders"`` for a folder of PNG files for
            every class.
        names: possible names, relative to the folder given by the user.
        parts: possible divisions, tried in this order: "train", and "test" if separate -> folders whose images are
            joined.
    """

    layout: FolderLayout
    names: tuple[str, ...]
    parts: tuple[Mapping[str, tuple[str, ...]], ...]

    @property
    def pattern(self) -> str:
        """Pattern of the files in the folder."""
        ways = [[name for names in way.values() for name in names] for way in self.parts]
        return ", or ".join(" and ".join(f"{name}/{_CONTENTS[self.layout]}" for name in way) for way in ways)

    @property
    def joins_parts(self) -> bool:
        """Whether the training images are published in several parts."""
        return any(len(way["train"]) > 1 for way in self.parts)

    @property
    def description(self) -> str:
        """Names and content, for listings and messages."""
        return f"a folder {' or '.join(self.names)} with {self.pattern}"


@dataclass(frozen=True, kw_only=True)
class ImageCard(Card):
    """Card of images of one size with a class each.

    Attributes:
        file: a ``.npz`` file in MedMNIST's layout; ``None`` for the digits in scikit-learn.
        torchvision: the data set in torchvision; ``None`` if it has none.
        folder: folder in which the images are published; ``None`` if there is none besides torchvision's.
        channels: 1 for grey, 3 for colours.
        size: height and width in pixels.
        classes: names of the classes 0, 1, ...
        coarse_classes: names of the superclasses, if there are any.
        rows: images for training and test; ``None`` for a part that does not exist.
    """

    task: Literal["classification"]
    format: _ImageFormat
    standin: Literal["digits"] | None
    file: CardFile | None
    torchvision: TorchvisionData | None
    folder: ImageFolder | None
    channels: Literal[1, 3]
    size: Count
    classes: tuple[str, ...]
    coarse_classes: tuple[str, ...]
    rows: Mapping[str, Count | None]

    content = "images"
    data_module = "ImageData"
    formats = get_args(_ImageFormat)
    standin_title = "scikit-learn's 8 x 8 digits, enlarged"
    own_keys = ("torchvision", "image", "classes", "rows")
    optional_keys = ("coarse_classes", "folder")

    @classmethod
    def _own_fields(cls, top: Mapping[str, Any], files: list[CardFile], where: str) -> dict[str, Any]:
        image = read_keys(top["image"], ("channels", "size"), f"{where}, image")
        rows = read_keys(top["rows"], ("train", "test"), f"{where}, rows")
        if rows["train"] is None:
            raise ConfigurationError(f"{where}, rows.train: give the number of images for training.")
        has_file = top["format"] != DIGITS_FORMAT
        if files and not has_file:
            raise ConfigurationError(f"{where}, files: format {DIGITS_FORMAT} has no file; give an empty list.")
        folder = _read_folder(top["folder"], f"{where}, folder") if "folder" in top else None
        coarse = read_names(top["coarse_classes"], f"{where}, coarse_classes") if "coarse_classes" in top else ()
        if folder is not None and coarse:
            raise ConfigurationError(f"{where}, folder: no layout has superclasses; omit coarse_classes.")
        if folder is not None and folder.layout == "leaf" and image["channels"] != 1:
            raise ConfigurationError(f"{where}, folder: LEAF's JSON files hold grey images; set image.channels to 1.")
        return {
            "file": read_only_file(files, where) if has_file else None,
            "torchvision": None if top["torchvision"] is None else _read_torchvision(top["torchvision"], where),
            "folder": folder,
            "channels": image["channels"],
            "size": image["size"],
            "classes": read_names(top["classes"], f"{where}, classes"),
            "coarse_classes": coarse,
            "rows": {part: rows[part] for part in ("train", "test")},
        }

    @property
    def files(self) -> tuple[CardFile, ...]:
        """The one file, if there is one."""
        return () if self.file is None else (self.file,)

    @property
    def num_rows(self) -> int | None:
        """Number of images."""
        return sum(count for count in self.rows.values() if count is not None)

    @property
    def has_writers(self) -> bool:
        """Whether the images have a column ``writer``."""
        return self.folder is not None and self.folder.layout == "leaf"

    @property
    def can_be_fetched(self) -> bool:
        """Whether torchvision downloads the images."""
        return self.torchvision is not None

    def details(self) -> dict[str, str]:
        """Return counts, size and classes."""
        names = list(self.classes) if len(self.classes) <= 10 else [*self.classes[:9], "..."]
        counts = " and ".join(f"{count:,} for {part}" for part, count in self.rows.items() if count is not None)
        colours = "grey" if self.channels == 1 else "colour"
        return {
            **({} if self.folder is None else {"folder": f"or {self.folder.description}"}),
            "images": f"{counts}, {self.size} x {self.size} pixels, {colours}",
            "classes": f"{len(self.classes)}: {', '.join(names)}"
            + (f"; {len(self.coarse_classes)} superclasses" if self.coarse_classes else ""),
        }


def _read_torchvision(content: object, where: str) -> TorchvisionData:
    at = f"{where}, torchvision"
    entry = read_keys(content, ("dataset", "train", "test", "files"), at, ("first_label",))
    for part in ("train", "test"):
        if not isinstance(entry[part], Mapping) or not _are_plain(entry[part]):
            raise ConfigurationError(
                f"{at}, {part}={entry[part]!r}: must be arguments of {entry['dataset']}, such as {{train: true}}."
            )
    data = TorchvisionData(
        entry["dataset"],
        {part: dict(entry[part]) for part in ("train", "test")},
        _read_paths(entry["files"], f"{at}, files"),
        entry.get("first_label", 0),
    )
    check_fields(data, f"{at}, ")
    return data


def _are_plain(arguments: Mapping[Any, Any]) -> bool:
    """Whether arguments are numbers and texts, and leave the folder and the download to this package."""
    return not {"root", "download"} & set(arguments) and all(
        isinstance(value, bool | int | str) for value in arguments.values()
    )


def _read_folder(content: object, where: str) -> ImageFolder:
    entry = read_keys(content, ("layout", "names", "parts"), where)
    ways = read_list(entry["parts"], f"{where}, parts")
    if not ways:
        raise ConfigurationError(f"{where}, parts is empty: name the folders of the parts, such as train: [train].")
    folder = ImageFolder(
        layout=cast(FolderLayout, entry["layout"]),
        names=_read_paths(entry["names"], f"{where}, names"),
        parts=tuple(_read_parts(way, f"{where}, parts[{number}]") for number, way in enumerate(ways)),
    )
    check_fields(folder, f"{where}, ")
    return folder


def _read_parts(content: object, where: str) -> dict[str, tuple[str, ...]]:
    way = read_keys(content, ("train",), where, ("test",))
    return {part: _read_paths(way[part], f"{where}, {part}") for part in ("train", "test") if part in way}


def _read_paths(value: object, where: str) -> tuple[str, ...]:
    """Read one or more paths that stay below the folder to which they are joined."""
    paths = read_texts(value, where)
    if not paths or not all(is_plain_name(name) for path in paths for name in path.removesuffix("/").split("/")):
        raise ConfigurationError(f"{where}={value!r}: must be one or more paths, relative and without '..'.")
    return paths
