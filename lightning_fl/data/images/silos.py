"""Image folders that are separate already: one per client, opened only where the client lives."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Subset, TensorDataset

from lightning_fl.core.errors import ConfigurationError, DataError
from lightning_fl.core.seeding import run_seed
from lightning_fl.core.validation import check_counts, check_numbers
from lightning_fl.data.images.dataset import ImageDataset, check_geometry, read_npz, resize_images
from lightning_fl.data.images.file import read_image_file
from lightning_fl.data.images.listing import refuse_folders, say_left_out
from lightning_fl.data.images.transform import Augmentation, ImageTransform, check_transform, transform_batch
from lightning_fl.data.images.unlabelled import unlabelled_images
from lightning_fl.data.module import SPLIT_NAMES, SPLITS, FederatedDataModule, Split
from lightning_fl.data.partition.sizes import check_fractions
from lightning_fl.data.shared import cut_splits
from lightning_fl.data.unlabelled import NewSamples, Reading, Unlabelled

__all__ = ["ImageFolders"]


class ImageFolders(FederatedDataModule):
    """Clients with a folder of images each: ``root/SILO/CLASS/*.png``, or ``root/SILO/FILE.npz``.

    A silo's folder holds one folder per class, with image files in any format that torchvision reads and of any size;
    or ``train``, ``val`` and ``test`` (also ``Training``, ``validation`` and the like), each with such folders; or one
    ``.npz`` file in MedMNIST's layout (:func:`~lightning_fl.data.images.dataset.read_npz`). A split without data of its
    own is cut from the training images.

    Images are read when they are first asked for, in the process that hosts the client (client i in process
    ``i % world_size``). The other processes look at the names of folders only, and at nothing where ``silos`` and
    ``classes`` are given, so that a silo's folder need exist only where the silo lives.

    Args:
        root: the folder of the silos.
        size: all images are resized to ``size`` x ``size`` pixels.
        channels: 3 for colours, 1 for grey.
        silos: names of the silos, which are the clients' names; ``None`` for all folders in ``root``, sorted.
        classes: names of the classes; ``None`` for the names of all class folders of all silos, sorted. Needed if a
            silo is a ``.npz`` file, which holds numbers only: class i is the i-th of them.
        split: shares of train, val and test inside a silo, with sum 1. Of these, a silo uses those it has no data for,
            in proportion.
        split_seed: seed of the division; ``None`` for the run's seed.
        stratified: the division keeps the proportions of the classes as nearly as integers allow.
        normalize: subtract ``mean`` and divide by ``std``; otherwise values lie in 0..1.
        mean: of each channel of images from 0 to 1; ``None`` for 0.5, so that values lie in -1..1 whatever other silos
            hold.
        std: their standard deviation; ``None`` for 0.5.
        augment: changes drawn anew for every image of a training batch: ``"crop"`` and ``"flip"``.
        **kwargs: ``batch_size``, ``eval_batch_size``, ``shuffle`` and ``drop_last`` of
            :class:`~lightning_fl.data.module.FederatedDataModule`.

    Raises:
        DataError: from ``setup``, if there are no silos or classes; from ``client_data``, if a silo's images are
            missing, damaged or of an unknown class. Messages name the silo.
    """

    #: Client i lives in process ``i % world_size``, whatever its size.
    pinned: bool = True

    def __init__(
        self,
        *,
        root: str,
        size: int,
        channels: int = 3,
        silos: list[str] | None = None,
        classes: list[str] | None = None,
        split: tuple[float, float, float] = (0.8, 0.1, 0.1),
        split_seed: int | None = None,
        stratified: bool = False,
        normalize: bool = True,
        mean: list[float] | None = None,
        std: list[float] | None = None,
        augment: list[Augmentation] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_geometry(self, size, channels)
        check_numbers(self, split=split, at_least=0, at_most=1)
        check_fractions(split)
        check_counts(self, split_seed=split_seed, at_least=0, at_most=2**64 - 1)
        check_numbers(self, mean=mean, at_least=0)
        check_numbers(self, std=std, above=0)
        check_transform(augment or [], normalize, mean, std)
        if mean is not None and len(mean) not in (1, channels):
            raise ConfigurationError(f"mean={mean}: the images have {channels} channels, give one number for each.")
        for name, values, least in (("silos", silos, 1), ("classes", classes, 2)):
            if values is not None and (len(values) < least or len(set(values)) < len(values)):
                raise ConfigurationError(f"{name}={values}: give at least {least}, all different, or leave it out.")
        self.root = root
        self.size = size
        self.channels = channels
        self.silos = silos
        self.classes = classes
        self.split = split
        self.split_seed = split_seed
        self.stratified = stratified
        self.augment: list[Augmentation] = augment or []
        if normalize and mean is None:
            mean, std = [0.5], [0.5]
        self._transform = ImageTransform(mean, std, self.augment)
        self._names: list[str] | None = silos
        self._classes: list[str] | None = classes
        self._opened: dict[int, dict[Split, Subset]] = {}

    def setup(self, stage: str | None = None) -> None:
        """Agree on the silos and classes by the names of folders; no image is opened."""
        if self._names is None:
            self._names = sorted(path.name for path in _folders(Path(self.root).expanduser(), "root"))
            if not self._names:
                raise DataError(f"root={self.root!r} has no folders: give the folder that holds one folder per silo.")
        if self._classes is None:
            self._classes = sorted(set().union(*(self._class_folders(name) for name in self._names)))
            if len(self._classes) < 2:
                raise DataError(
                    f"root={self.root!r}: the silos' class folders are {self._classes}, but two classes are the least."
                )

    def _folder(self, silo: str) -> Path:
        return Path(self.root).expanduser() / silo

    def _class_folders(self, silo: str) -> set[str]:
        """The names of a silo's class folders."""
        folder = self._folder(silo)
        folders = _folders(folder, f"silo {silo}")
        if not folders and list(folder.glob("*.npz")):
            raise DataError(
                f"silo {silo} is a .npz file, whose classes cannot be known without opening it: name the classes 0, 1,"
                " ... with classes."
            )
        names = {path.name for part in _parts(folder, silo).values() for path in _folders(part, f"silo {silo}")}
        if not names:
            raise DataError(
                f"silo {silo}: {folder} has neither class folders nor a .npz file: give it folders of images, one per"
                " class, or leave it out of silos."
            )
        return names

    @property
    def num_clients(self) -> int:
        """Number of silos; where the folders tell, after ``setup``."""
        return len(self._known_names)

    @property
    def _known_names(self) -> list[str]:
        if self._names is None:
            raise DataError("the silos are not known yet: call setup() first, or name them with silos.")
        return self._names

    @property
    def class_names(self) -> list[str]:
        """The classes of all silos; where the folders tell, after ``setup``."""
        if self._classes is None:
            raise DataError("the classes are not known yet: call setup() first, or name them with classes.")
        return self._classes

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        return len(self.class_names)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Channels, height and width."""
        return self.channels, self.size, self.size

    def client_names(self) -> list[str]:
        """The silos' names."""
        return list(self._known_names)

    def client_data(self, client: int, split: Split) -> Subset | None:
        """A view of the silo's images, which are read once; ``None`` where it has none in this split."""
        if client not in self._opened:
            self._opened[client] = self._open(client)
        part = self._opened[client][split]
        return part if len(part) else None

    def data_digests(self, client: int, stage: str) -> dict[Split, str]:
        """Of all splits: a silo is read as a whole."""
        return self._digests(client)

    def held_rows(self, client: int) -> Mapping[Split, Sequence[int]]:
        """The numbers of a silo's images in the order in which its parts are read, from 0."""
        if client not in self._opened:
            self._opened[client] = self._open(client)
        return {split: list(part.indices) for split, part in self._opened[client].items()}

    def held_source(self) -> Mapping[str, Any]:
        """What these numbers are of; which splits have a part of their own differs between silos."""
        return {"numbering": "samples from 0 of a silo's part", "split_seed": self.split_seed}

    def _open(self, client: int) -> dict[Split, Subset]:
        """Read a silo and divide its images."""
        silo = self._known_names[client]
        parts = self._read(silo)
        held = {split: part.tensors() for split, part in parts.items()}
        seed = run_seed() if self.split_seed is None else self.split_seed
        labels = parts["train"].targets
        indices: dict[Split, Tensor] = {split: torch.arange(len(part)) for split, part in held.items()}
        indices |= cut_splits(
            indices["train"], self.split, seed, client, own=list(held), labels=labels if self.stratified else None
        )
        return {
            split: Subset(held[split if split in held else "train"], of_split.tolist())
            for split, of_split in indices.items()
        }

    def newcomer_data(self, path: str, record: Mapping[str, Any]) -> TensorDataset:
        """The folder of a further silo, all its parts together."""
        self._classes = record["classes"]
        # An absolute folder stays itself below any root.
        parts = self._read(str(Path(path).expanduser().absolute()))
        return ImageDataset.joined(list(parts.values()), place=f"silo {path}").tensors()

    def unlabelled_data(self, source: NewSamples, record: Mapping[str, Any], reading: Reading) -> Iterator[Unlabelled]:
        """A folder of images, or a ``.npz`` file."""
        return unlabelled_images(source, reading, self.image_shape, size=self.size, channels=self.channels)

    def _read(self, silo: str) -> dict[Split, ImageDataset]:
        folder = self._folder(silo)
        files = sorted(folder.glob("*.npz"))
        if files:
            if len(files) > 1 or _folders(folder, f"silo {silo}"):
                raise DataError(
                    f"silo {silo}: {folder} holds more than one .npz file: give one file, or class folders."
                )
            read = read_npz(files[0], classes=self.class_names, place=f"silo {silo}, {files[0].name}")
            return {split: part.converted(size=self.size, channels=self.channels) for split, part in read.items()}
        return {split: self._read_folder(part, silo) for split, part in _parts(folder, silo).items()}

    def _read_folder(self, folder: Path, silo: str) -> ImageDataset:
        """The images of the class folders in a folder."""
        from torchvision.datasets.folder import IMG_EXTENSIONS, make_dataset

        places = {name: number for number, name in enumerate(self.class_names)}
        present = [path.name for path in _folders(folder, f"silo {silo}")]
        unknown = [name for name in present if name not in places]
        if unknown:
            raise DataError(
                f"silo {silo}: {folder} has folders {', '.join(unknown)} that are none of the classes"
                f" {', '.join(places)}: rename them, or add them to classes."
            )
        # allow_empty: a silo may lack images of a class
        found = {name: places[name] for name in present}
        files = make_dataset(folder, found, IMG_EXTENSIONS, allow_empty=True) if found else []
        for name in found:
            refuse_folders(folder / name, IMG_EXTENSIONS, f"silo {silo}")
        say_left_out(folder, [Path(path) for path, _ in files], f"silo {silo}")
        if not files:
            raise DataError(
                f"silo {silo}: no images in the class folders of {folder}: expected files that end in"
                f" {', '.join(IMG_EXTENSIONS)}."
            )
        images = torch.stack([self._read_image(path, silo) for path, _ in files])
        targets = torch.tensor([target for _, target in files])
        return ImageDataset(images, targets, classes=self.class_names, place=f"silo {silo}")

    def _read_image(self, path: str, silo: str) -> Tensor:
        """One image in the common shape, bytes [C, size, size], upright as its camera noted."""
        image = read_image_file(path, self.channels, f"silo {silo}")
        return resize_images(image[None], self.size)[0]

    def on_after_batch_transfer(self, batch: list[Tensor], dataloader_idx: int) -> list[Tensor]:
        """Normalised floats from bytes; while training, augmented."""
        return transform_batch(self, self._transform, batch)

    def describe(self) -> Mapping[str, Any]:
        """Source, the silos' names and the images' shape; nothing is opened."""
        return {
            **super().describe(),
            "clients": self.client_names(),
            "classes": self.class_names,
            "image_shape": list(self.image_shape),
            "split": list(self.split),
            "stratified": self.stratified,
            "augment": list(self.augment),
        }


def _parts(folder: Path, silo: str) -> dict[Split, Path]:
    """The folders of a silo's splits, whatever their names' case; the silo's own for train where there are none."""
    folders = _folders(folder, f"silo {silo}")
    named = [(SPLIT_NAMES.get(path.name.lower()), path) for path in folders]
    found = {split: path for split, path in named if split is not None}
    if not any(_folders(path, f"silo {silo}") for path in found.values()):  # classes, whatever their names
        return {"train": folder}
    if "train" not in found or len(found) < len(folders):
        raise DataError(
            f"silo {silo}: {folder} has the folders {', '.join(path.name for path in folders)}: give it train, and val"
            " and test if they are separate, each once and with folders of classes; or folders of classes alone."
        )
    return {split: found[split] for split in SPLITS if split in found}


def _folders(folder: Path, what: str) -> Sequence[Path]:
    """The folders in a folder, but for hidden ones, sorted."""
    if not folder.is_dir():
        raise DataError(f"{what}: {folder} is not a folder: check the name, and where it lies.")
    return sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
