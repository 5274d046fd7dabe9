"""Image folders of separate clients, each opened only where the client lives."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils.data import Subset, TensorDataset

from lightning_fl.core.errors import ConfigurationError, DataError
from lightning_fl.core.validation import Count, Fraction, Seed, checked_fields
from lightning_fl.data.division.division import cut_splits
from lightning_fl.data.images.dataset import ImageDataset, read_npz
from lightning_fl.data.images.file import read_images, unlabelled_images, warn_of_unread_files
from lightning_fl.data.images.transform import TransformedImages
from lightning_fl.data.module import SPLIT_NAMES, SPLITS, Split
from lightning_fl.data.sizes import check_fractions
from lightning_fl.data.unlabelled import NewSamples, Reading, Unlabelled


@checked_fields
class ImageFolders(TransformedImages):
    """Clients with a folder of images each: ``root/SILO/CLASS/*.png``, or ``root/SILO/FILE.npz``.

    A silo's folder holds one folder per class, with image files of any size in any format that torchvision reads; or
    ``train``, ``val`` and ``test`` (also ``Training``, ``validation`` etc.), each with such folders; or one ``.npz``
    file in MedMNIST's layout (:func:`~lightning_fl.data.images.dataset.read_npz`). A split without data of its own is
    cut from the training images.

    Images are read on first access, in the process that hosts the client (client i in process ``i % world_size``). If
    ``silos`` and ``classes`` are given, a silo's folder need only exist where the silo lives.

    Args:
        root: folder of the silos.
        size: resize all images to ``size`` x ``size`` pixels.
        channels: 3 for colours, 1 for grey.
        silos: names of the silos, which are the clients' names; ``None`` for all folders in ``root``, sorted.
        classes: names of the classes; ``None`` for the names of all class folders of all silos, sorted. Required for
            ``.npz`` files, which hold only class numbers.
        split: shares of train, val and test inside a silo, with sum 1. A silo uses those of the splits that it has no
            data for, in proportion.
        split_seed: seed of the division; ``None`` for the run's seed.
        stratified: keep the proportions of the classes in the division as nearly as integers allow.
    """

    #: Client i lives in process ``i % world_size``, whatever its size.
    pinned = True

    root: str
    size: Count
    channels: Literal[1, 3] = 3
    silos: list[str] | None = None
    classes: list[str] | None = None
    split: tuple[Fraction, Fraction, Fraction] = (0.8, 0.1, 0.1)
    split_seed: Seed | None = None
    stratified: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_fractions(self.split)
        own = [0.5] if self.normalize else None
        self._transform_with(self.mean or own, self.std or own, self.channels)
        for name, values, least in (("silos", self.silos, 1), ("classes", self.classes, 2)):
            if values is not None and (len(values) < least or len(set(values)) < len(values)):
                raise ConfigurationError(f"{name}={values}: give at least {least}, all distinct, or omit it.")
        self._names, self._classes = self.silos, self.classes
        self._opened: dict[int, dict[Split, Subset]] = {}

    def setup(self, stage: str | None = None) -> None:
        if self._names is None:
            self._names = [path.name for path in _folders(Path(self.root).expanduser(), "root")]
            if not self._names:
                raise DataError(f"root={self.root!r} has no folders: it must have one folder per silo.")
        if self._classes is None:
            self._classes = sorted(set().union(*map(self._class_folders, self._names)))
            if len(self._classes) < 2:
                raise DataError(f"root={self.root!r}: there must be two class folders or more, not {self._classes}.")

    def _class_folders(self, silo: str) -> set[str]:
        folder, what = Path(self.root).expanduser() / silo, f"silo {silo}"
        names = {path.name for part in _parts(folder, what).values() for path in _folders(part, what)}
        if not names:
            remedy = "add a folder of images for every class, or name the classes of a .npz file in classes"
            raise DataError(f"{what}: {folder} has no class folders: {remedy}.")
        return names

    @property
    def num_clients(self) -> int:
        return len(self.client_names())

    def client_names(self) -> list[str]:
        if self._names is None:
            raise DataError("the silos are not known yet: call setup() first, or give silos.")
        return list(self._names)

    @property
    def class_names(self) -> list[str]:
        if self._classes is None:
            raise DataError("the classes are not known yet: call setup() first, or give classes.")
        return self._classes

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Channels, height and width."""
        return self.channels, self.size, self.size

    def client_data(self, client: int, split: Split) -> Subset | None:
        part = self._splits(client)[split]
        return part if len(part) else None

    def data_digests(self, client: int, stage: str) -> dict[Split, str]:
        return self._digests(client)

    def held_rows(self, client: int) -> Mapping[Split, Sequence[int]]:
        """Return the numbers of a silo's images in each part of its own, from 0 in the order of reading."""
        return {split: list(part.indices) for split, part in self._splits(client).items()}

    def held_source(self) -> Mapping[str, Any]:
        return {"numbering": "samples from 0 of a silo's part", "split_seed": self.seed_of(self.split_seed)}

    def _splits(self, client: int) -> dict[Split, Subset]:
        if client not in self._opened:
            parts = self._read(Path(self.root).expanduser() / self.client_names()[client])
            held = {split: part.tensors() for split, part in parts.items()}
            seed = self.seed_of(self.split_seed)
            labels = parts["train"].targets if self.stratified else None
            indices: dict[Split, Tensor] = {split: torch.arange(len(part)) for split, part in held.items()}
            indices |= cut_splits(indices["train"], self.split, seed, client, own=list(held), labels=labels)
            self._opened[client] = {
                split: Subset(held[split if split in held else "train"], of_split.tolist())
                for split, of_split in indices.items()
            }
        return self._opened[client]

    def newcomer_data(self, path: str, record: Mapping[str, Any]) -> TensorDataset:
        self._classes = record["classes"]
        parts = self._read(Path(path).expanduser())
        return ImageDataset.joined(list(parts.values()), place=f"silo {path}").tensors()

    def unlabelled_data(self, source: NewSamples, record: Mapping[str, Any], reading: Reading) -> Iterator[Unlabelled]:
        return unlabelled_images(source, reading, self.image_shape, size=self.size, channels=self.channels)

    def _read(self, folder: Path) -> dict[Split, ImageDataset]:
        what, files = f"silo {folder.name}", sorted(folder.glob("*.npz"))
        if not files:
            return {split: self._read_folder(part, what) for split, part in _parts(folder, what).items()}
        if len(files) > 1 or _folders(folder, what):
            raise DataError(f"{what}: {folder} has several .npz files, or folders too: keep one file or only folders.")
        read = read_npz(files[0], classes=self.class_names, place=f"{what}, {files[0].name}")
        return {split: part.converted(size=self.size, channels=self.channels) for split, part in read.items()}

    def _read_folder(self, folder: Path, what: str) -> ImageDataset:
        from torchvision.datasets.folder import IMG_EXTENSIONS, make_dataset

        numbers = {name: number for number, name in enumerate(self.class_names)}
        present = [path.name for path in _folders(folder, what)]
        if unknown := [name for name in present if name not in numbers]:
            folders = f"{', '.join(unknown)} that are not classes ({', '.join(numbers)})"
            raise DataError(f"{what}: {folder} has folders {folders}: rename them, or add them to classes.")
        # allow_empty: a silo may lack images of a class
        found = {name: numbers[name] for name in present}
        samples = make_dataset(folder, found, IMG_EXTENSIONS, allow_empty=True) if found else []
        files = [Path(path) for path, _ in samples]
        warn_of_unread_files(folder, files, what)
        if not files:
            endings = ", ".join(IMG_EXTENSIONS)
            raise DataError(f"{what}: no images in the class folders of {folder}: files must end in {endings}.")
        images = read_images(files, self.size, self.channels, what, resize=True)
        targets = torch.tensor([target for _, target in samples])
        return ImageDataset(images, targets, classes=self.class_names, place=what)

    def describe(self) -> Mapping[str, Any]:
        return {
            **super().describe(),
            "clients": self.client_names(),
            "classes": self.class_names,
            "image_shape": list(self.image_shape),
            "split": list(self.split),
            "stratified": self.stratified,
            "augment": list(self.augment or []),
        }


def _parts(folder: Path, what: str) -> dict[Split, Path]:
    """Folders of a silo's splits, whatever the case of their names; the silo's own folder for train without these."""
    folders = _folders(folder, what)
    named = [(SPLIT_NAMES.get(path.name.lower()), path) for path in folders]
    found = {split: path for split, path in named if split is not None}
    if not any(_folders(path, what) for path in found.values()):  # these are classes, whatever their names
        return {"train": folder}
    if "train" not in found or len(found) < len(folders):
        names = ", ".join(path.name for path in folders)
        needed = "train, and val and test if separate, each once with class folders; or only class folders"
        raise DataError(f"{what}: {folder} has the folders {names}, but must have {needed}.")
    return {split: found[split] for split in SPLITS if split in found}


def _folders(folder: Path, what: str) -> Sequence[Path]:
    if not folder.is_dir():
        raise DataError(f"{what}: {folder} is not a folder: check the path.")
    return sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
