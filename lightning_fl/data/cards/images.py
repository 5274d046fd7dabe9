"""Cards of labelled images."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lightning_fl.core.errors import ConfigurationError
from lightning_fl.data.cards.card import Card
from lightning_fl.data.cards.fields import (
    CardFile,
    read_choice,
    read_count,
    read_keys,
    read_list,
    read_only_file,
)
from lightning_fl.data.cards.folders import ImageFolder, is_relative, read_image_folder

__all__ = ["DIGITS_FORMAT", "ImageCard", "ImageFolder", "TorchvisionData"]

#: The format of the digits that scikit-learn brings along: no file.
DIGITS_FORMAT = "scikit-learn-digits"


#: What a card may have torchvision read: sets of images in memory, which check the sums of what they unpickle.
_OF_TORCHVISION = (
    *("MNIST", "FashionMNIST", "KMNIST", "EMNIST", "QMNIST"),
    *("CIFAR10", "CIFAR100", "SVHN", "USPS", "STL10"),
)


@dataclass(frozen=True)
class TorchvisionData:
    """How torchvision names a data set.

    Attributes:
        dataset: the class in ``torchvision.datasets``, one of a few.
        parts: for ``"train"`` and ``"test"`` the class's arguments.
        files: files, relative to the folder given to the class, by which data in torchvision's layout are recognised.
        first_label: the label of the first class (EMNIST's letters begin at 1).
    """

    dataset: str
    parts: Mapping[str, Mapping[str, Any]]
    files: tuple[str, ...]
    first_label: int


@dataclass(frozen=True, kw_only=True)
class ImageCard(Card):
    """Images of one size with a class each.

    Attributes:
        file: a ``.npz`` file in MedMNIST's layout; ``None`` for the digits that scikit-learn brings along.
        torchvision: where torchvision has it; ``None`` where it does not.
        folder: the folder in which it is published; ``None`` where it is not, or only as torchvision knows it.
        channels: 1 for grey, 3 for colours.
        size: height and width in pixels.
        classes: names of the classes 0, 1, ...
        coarse_classes: names of the superclasses, where there are any.
        rows: images for training and test; ``None`` for a part that does not exist.
    """

    file: CardFile | None
    torchvision: TorchvisionData | None
    folder: ImageFolder | None
    channels: int
    size: int
    classes: tuple[str, ...]
    coarse_classes: tuple[str, ...]
    rows: Mapping[str, int | None]

    content = "images"
    data_module = "ImageData"
    formats = ("npz", DIGITS_FORMAT)
    tasks = ("classification",)
    standins = ("digits",)
    standin_words = "scikit-learn's 8 x 8 digits, enlarged"
    own_keys = ("torchvision", "image", "classes", "rows")
    optional_keys = ("coarse_classes", "folder")

    @classmethod
    def _own_fields(cls, top: Mapping[str, Any], files: list[CardFile], where: str) -> dict[str, Any]:
        image = read_keys(top["image"], ("channels", "size"), f"{where}, image")
        if image["channels"] not in (1, 3):
            raise ConfigurationError(
                f"{where}, image.channels={image['channels']!r}: give 1 for grey images or 3 for colours."
            )
        rows = read_keys(top["rows"], ("train", "test"), f"{where}, rows")
        if top["format"] == DIGITS_FORMAT and files:
            raise ConfigurationError(f"{where}, files: format {DIGITS_FORMAT} has no file; give an empty list.")
        folder = read_image_folder(top["folder"], f"{where}, folder") if "folder" in top else None
        if folder is not None and "coarse_classes" in top:
            raise ConfigurationError(
                f"{where}, folder: none of the layouts has superclasses; leave coarse_classes out."
            )
        if folder is not None and folder.layout == "leaf" and image["channels"] != 1:
            raise ConfigurationError(f"{where}, folder: LEAF's JSON files hold grey images; set image.channels to 1.")
        return {
            "file": None if top["format"] == DIGITS_FORMAT else read_only_file(files, where),
            "torchvision": None if top["torchvision"] is None else _torchvision(top["torchvision"], where),
            "folder": folder,
            "channels": image["channels"],
            "size": read_count(image["size"], "size", f"{where}, image", "height and width in pixels"),
            "classes": _class_names(top["classes"], "classes", where),
            "coarse_classes": _class_names(top["coarse_classes"], "coarse_classes", where)
            if "coarse_classes" in top
            else (),
            "rows": {
                part: None
                if part == "test" and rows[part] is None
                else read_count(rows[part], part, f"{where}, rows", "the number of images")
                for part in ("train", "test")
            },
        }

    @property
    def files(self) -> tuple[CardFile, ...]:
        """The one file, if there is one."""
        return () if self.file is None else (self.file,)

    @property
    def num_rows(self) -> int | None:
        """Images in all."""
        return sum(count for count in self.rows.values() if count is not None)

    @property
    def has_writers(self) -> bool:
        """Whether the images have a column ``writer``."""
        return self.folder is not None and self.folder.layout == "leaf"

    @property
    def can_be_fetched(self) -> bool:
        """Whether torchvision downloads it."""
        return self.torchvision is not None

    def details(self) -> dict[str, str]:
        """Counts, size and classes."""
        names = list(self.classes) if len(self.classes) <= 10 else [*self.classes[:9], "..."]
        counts = " and ".join(f"{count:,} for {part}" for part, count in self.rows.items() if count is not None)
        colours = "grey" if self.channels == 1 else "colour"
        return {
            **({} if self.folder is None else {"folder": f"or {self.folder.in_words}"}),
            "images": f"{counts}, {self.size} x {self.size} pixels, {colours}",
            "classes": f"{len(self.classes)}: {', '.join(names)}"
            + (f"; {len(self.coarse_classes)} superclasses" if self.coarse_classes else ""),
        }


def _torchvision(content: object, where: str) -> TorchvisionData:
    at = f"{where}, torchvision"
    entry = read_keys(content, ("dataset", "train", "test", "files"), at, ("first_label",))
    files = tuple(map(str, read_list(entry["files"], f"{at}, files")))
    if not files or not all(map(is_relative, files)):
        raise ConfigurationError(
            f"{at}, files={list(files)}: name the files by which its layout is recognised, relative and without '..'."
        )
    for part in ("train", "test"):
        if not isinstance(entry[part], Mapping) or not _are_plain(entry[part]):
            raise ConfigurationError(
                f"{at}, {part}={entry[part]!r}: give the arguments of {entry['dataset']}, such as {{train: true}}."
            )
    first_label = entry.get("first_label", 0)
    if first_label not in (0, 1):
        raise ConfigurationError(f"{at}, first_label={first_label!r}: give 0 or 1.")
    parts = {part: dict(entry[part]) for part in ("train", "test")}
    return TorchvisionData(read_choice(entry, "dataset", _OF_TORCHVISION, at), parts, files, first_label)


def _are_plain(arguments: Mapping[Any, Any]) -> bool:
    """Whether arguments are numbers and texts that leave the place and the download to us."""
    return not {"root", "download"} & set(arguments) and all(
        isinstance(value, bool | int | str) for value in arguments.values()
    )


def _class_names(value: object, key: str, where: str) -> tuple[str, ...]:
    names = tuple(map(str, read_list(value, f"{where}, {key}")))
    if len(names) < 2 or len(set(names)) < len(names):
        raise ConfigurationError(f"{where}, {key}: give two or more names, all different.")
    return names
