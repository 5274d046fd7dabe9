"""Cards of labelled images."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from lightning_fl.core.errors import ConfigurationError
from lightning_fl.core.validation import Count, check_fields
from lightning_fl.data.cards.card import Card, check_keys, check_names, check_paths, within

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
        train, test: arguments of the class for the training and the test images.
        files: files, relative to the folder given to the class, by which torchvision's layout is recognised.
        first_label: label of the first class (1 for EMNIST's letters).
    """

    dataset: _TorchvisionClass
    train: Mapping[str, Any]
    test: Mapping[str, Any]
    files: tuple[str, ...]
    first_label: Literal[0, 1] = 0

    def __post_init__(self) -> None:
        check_fields(self)
        check_paths(self.files, "files")
        for part, arguments in self.parts.items():
            plain = all(isinstance(value, bool | int | str) for value in arguments.values())
            if {"root", "download"} & set(arguments) or not plain:  # folder and download are this package's
                raise ConfigurationError(
                    f"{part}={arguments!r}: must be arguments of {self.dataset}, such as {{train: true}}."
                )

    @property
    def parts(self) -> dict[str, Mapping[str, Any]]:
        return {"train": self.train, "test": self.test}


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
    """Card of images of one size with a class each.

    Attributes:
        files: a ``.npz`` file in MedMNIST's layout; none for the digits in scikit-learn.
        torchvision: the data set in torchvision; ``None`` if it has none.
        folder: folder in which the images are published; ``None`` if there is none besides torchvision's.
        channels: 1 for grey, 3 for colours.
        size: height and width in pixels.
        classes: names of the classes 0, 1, ...
        coarse_classes: names of the superclasses, if there are any.
    """

    task: Literal["classification"]
    format: _ImageFormat
    standin: Literal["digits"] | None
    torchvision: TorchvisionData | None
    folder: ImageFolder | None = None
    channels: Literal[1, 3] = within("image")
    size: Count = within("image")  # noqa: RUF009
    classes: tuple[str, ...]
    coarse_classes: tuple[str, ...] = ()
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
