"""Federated data module of one set of labelled images, from a card or from the user's ``.npz`` file."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Self

import torch
from lightning.fabric.utilities.rank_zero import rank_zero_warn
from torch.utils.data import Dataset, TensorDataset

from lightning_fl.core.errors import ConfigurationError, DataError, listed
from lightning_fl.core.seeding import generator
from lightning_fl.core.validation import Count, checked, checked_fields
from lightning_fl.data.cards.lookup import ImageCard, Source, file_sha256, load_card, real_or_standin
from lightning_fl.data.images.dataset import ImageDataset, read_npz
from lightning_fl.data.images.file import unlabelled_images
from lightning_fl.data.images.reader import ImageReader
from lightning_fl.data.images.sources import NpzImages, find_images
from lightning_fl.data.images.standin import MAX_CLASSES, digits_standin
from lightning_fl.data.images.transform import ImageTransform, TransformedImages, channel_statistics
from lightning_fl.data.module import SPLITS, Split
from lightning_fl.data.partition import apportion
from lightning_fl.data.partition.classes import stratified_parts
from lightning_fl.data.shared import ClientShares, OpenedData, SharedDataModule
from lightning_fl.data.shifts import Shift
from lightning_fl.data.unlabelled import NewSamples, Reading, Unlabelled
from lightning_fl.files.user_file import existing_file


@dataclass(frozen=True)
class ImageOrigin:
    """A set of images as named in a recipe: a card or its path, or (without a card) a user's ``.npz`` file."""

    name: str
    card: ImageCard | None
    source: Source
    data_root: str | None  #: the folder to look in first

    @classmethod
    def of(cls, name: str, *, source: Source = "real", data_root: str | None = None) -> Self:
        """Look up the name; refuse a file together with a stand-in or ``data_root``."""
        if not name.endswith(".npz"):
            return cls(name, load_card(name, ImageCard), source, data_root)
        if source == "standin":
            raise ConfigurationError(f"source='standin': {name} is a file, and only cards have stand-ins; use real.")
        if data_root is not None:
            raise ConfigurationError(f"name={name!r} is a file, so data_root={data_root!r} has no effect: omit it.")
        return cls(name, None, source, None)

    @property
    def short_name(self) -> str:
        return Path(self.name).stem if self.card is None else self.card.name

    def find(self, *, allow_download: bool) -> ImageReader:
        if self.card is not None:
            return find_images(self.card, data_root=self.data_root, allow_download=allow_download)
        path = existing_file(self.name, argument="")
        return NpzImages(path, "path", sha256={path.name: file_sha256(path)})

    def read(self, *, allow_download: bool, coarse_labels: bool = False) -> OpenedData:
        """Read the images, or make the card's stand-in, as ``source`` requires."""
        if self.card is None:
            return self.read_found(self.find(allow_download=allow_download), coarse_labels=coarse_labels)
        classes = self.card.coarse_classes if coarse_labels else self.card.classes
        card = self.card if len(classes) <= MAX_CLASSES else replace(self.card, standin=None)
        found = real_or_standin(card, self.source, lambda: self.find(allow_download=allow_download))
        if found is not None:
            return self.read_found(found, coarse_labels=coarse_labels)
        standin = digits_standin(list(classes), size=card.size, channels=card.channels, writers=card.has_writers)
        record = {"file": None, "sha256": None, "verified": False, "layout": "scikit-learn"}
        title = f"STAND-IN ({card.standin_title}) for {card.title}"
        return OpenedData({"train": standin}, "stand-in", card.describe() | {"title": title} | record)

    def read_found(self, found: ImageReader, *, coarse_labels: bool = False) -> OpenedData:
        own = {} if self.card is None else self.card.describe()
        parts = found.read(coarse_labels=coarse_labels)
        return OpenedData(parts, "user" if self.card is None else "measured", own | found.record())


@checked_fields
class SharedImages(TransformedImages, SharedDataModule):
    """Images in memory, partitioned among clients."""

    #: Height and width in pixels, and channels, to which images are converted; ``None`` to keep theirs.
    size: int | None = field(default=None, init=False)
    channels: int | None = field(default=None, init=False)
    #: Whether to learn the superclasses.
    coarse_labels: bool = field(default=False, init=False)

    def _opened_images(
        self, parts: Mapping[Split, ImageDataset], basis: ImageDataset, source: str, record: Mapping[str, Any]
    ) -> OpenedData:
        """Check the parts and make their transform, from the mean and deviation of ``basis``; complete the record."""
        first = parts["train"]
        _check_parts(parts)
        mean, std = self.mean, self.std
        if self.normalize and (mean is None or std is None):
            mean, std = channel_statistics(self._converted(basis).images)
        self._transform_with(mean, std, first.images.shape[1])
        own = {
            "image_shape": list(first.images.shape[1:]),
            "classes": first.classes,
            "images": {split: len(part) for split, part in parts.items()},
            "normalization": {"mean": mean, "std": std},
            "augment": list(self.augment or []),
        }
        return OpenedData(dict(parts), source, {**record, **own})

    def newcomer_data(self, path: str, record: Mapping[str, Any]) -> TensorDataset:
        """Read all parts of a ``.npz`` file in MedMNIST's layout, in the run's shape and normalisation; no shifts."""
        if not path.endswith(".npz"):
            raise ConfigurationError(f"{path!r}: must be a file of images that ends in .npz, in MedMNIST's layout.")
        labels = "coarse_labels" if self.coarse_labels else "labels"
        parts = read_npz(existing_file(path), classes=record["classes"], labels=labels, place=path)
        images = ImageDataset.joined([self._converted(part) for part in parts.values()], place=path)
        shape, expected = list(images.images.shape[1:]), record["image_shape"]
        if shape != expected:
            raise DataError(f"{path}: images have the shape {shape}, those of the run {expected}: convert them.")
        self._transform = ImageTransform(**record["normalization"])
        return images.tensors()

    def _converted(self, part: ImageDataset) -> ImageDataset:
        return part.converted(size=self.size, channels=self.channels)

    def unlabelled_data(self, source: NewSamples, record: Mapping[str, Any], reading: Reading) -> Iterator[Unlabelled]:
        self._transform = ImageTransform(**record["normalization"])
        return unlabelled_images(source, reading, record["image_shape"], size=self.size, channels=self.channels)

    def _hold(self, datasets: Mapping[Split, ImageDataset], shares: ClientShares) -> Mapping[Split, Dataset]:
        return {split: dataset.tensors() for split, dataset in datasets.items()}

    @property
    def class_names(self) -> list[str]:
        return list(self._data.datasets["train"].classes)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Channels, height and width, after ``prepare_data`` or ``setup``."""
        channels, height, width = self._data.datasets["train"].images.shape[1:]
        return channels, height, width


def _check_parts(parts: Mapping[Split, ImageDataset]) -> None:
    """Refuse parts of another shape than the training images; warn of classes without training images."""
    first = parts["train"]
    for split, part in parts.items():
        shape, expected = list(part.images.shape[1:]), list(first.images.shape[1:])
        if shape != expected:
            shapes = f"the shape {shape} (channels, height, width), the train images {expected}"
            raise DataError(f"{part.place}: the {split} images have {shapes}: set size and channels.")
        if unseen := sorted(set(part.targets.unique().tolist()) - set(first.targets.unique().tolist())):
            classes = listed([part.classes[label] for label in unseen])
            what = f"the train images have none of the classes {classes}, so no client learns them"
            rank_zero_warn(f"{part.place}: {what}. Set pooled: true, or leave these images out.")


class ImageData(SharedImages):
    """Images described by a card, such as ``fashionmnist`` or ``cifar10``, or of the user's ``.npz`` file.

    Training and test images keep their parts: a client's test images come from the test part, with the classes that
    the client has in training, and its validation images are cut from its training images. With ``pooled`` the parts
    are joined first and ``split`` divides every client's images.

    Args:
        name: name of a card of the package (``lightning-fl datasets`` lists them), or path of another card (``.yaml``)
            or of a ``.npz`` file in MedMNIST's layout (:func:`~lightning_fl.data.images.dataset.read_npz`).
        source: ``"real"``: the card's images or an error. ``"auto"``: the images, else the stand-in with a warning.
            ``"standin"``: the stand-in.
        data_root: folder in which the images are looked for first, before ``$LIGHTNING_FL_DATA``, the cache and
            torchvision's download: the card's ``.npz`` file, torchvision's layout, or the published folder.
        size: resize to ``size`` x ``size`` pixels; ``None`` to keep theirs.
        channels: 1 for grey, 3 for colours; ``None`` to keep theirs.
        coarse_labels: learn the superclasses (of CIFAR-100) instead of the classes.
        pooled: join the parts.
        max_samples: number of images, drawn with ``split_seed`` in proportion to parts and classes; ``None`` for all.
        shifts: changes of a client's images and labels, applied once in ``setup``, in this order.
        **kwargs: arguments of :class:`SharedImages`.

    Example:
        >>> from lightning_fl.data.partition import Dirichlet
        >>> data = ImageData(name="fashionmnist", partitioner=Dirichlet(num_clients=10, alpha=0.5), augment=["flip"])
    """

    @checked
    def __init__(
        self,
        *,
        name: str = "fashionmnist",
        source: Source = "auto",
        data_root: str | None = None,
        size: Count | None = None,
        channels: Literal[1, 3] | None = None,
        coarse_labels: bool = False,
        pooled: bool = False,
        max_samples: Count | None = None,
        shifts: list[Shift] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.origin = origin = ImageOrigin.of(name, source=source, data_root=data_root)
        if coarse_labels and origin.card is not None and not origin.card.coarse_classes:
            raise ConfigurationError(f"coarse_labels=True: data set {name} has no superclasses; omit it.")
        self.size = size
        self.channels = channels
        self.coarse_labels = coarse_labels
        self.pooled = pooled
        self.max_samples = max_samples
        self.shifts = shifts or []

    def _open(self, *, allow_download: bool) -> OpenedData:
        read = self.origin.read(allow_download=allow_download, coarse_labels=self.coarse_labels)
        chosen = self._choose(read.datasets)
        parts = {split: self._converted(part) for split, part in chosen.items()}
        # with max_samples too, mean and deviation are constants of the data set
        basis = parts["train"] if chosen is read.datasets else read.datasets["train"]
        if self.pooled:
            parts = {"train": ImageDataset.joined(list(parts.values()), place=f"the images of {self.origin.name}")}
        own = {
            "coarse_labels": self.coarse_labels,
            "pooled": self.pooled,
            "max_samples": self.max_samples,
            "shifts": [shift.describe() for shift in self.shifts],
        }
        return self._opened_images(parts, basis, read.source, read.record | own)

    def _choose(self, parts: Mapping[Split, ImageDataset]) -> Mapping[Split, ImageDataset]:
        lengths = [len(part) for part in parts.values()]
        if self.max_samples is None or self.max_samples >= sum(lengths):
            return parts
        sizes = apportion(self.max_samples, lengths)
        if 0 in sizes:
            empty = list(parts)[sizes.index(0)]
            raise DataError(f"max_samples={self.max_samples} leaves no image for {empty}: increase it.")
        chosen: dict[Split, ImageDataset] = {}
        for (split, part), size in zip(parts.items(), sizes, strict=True):
            rng = generator(self.partition_seed, "max_samples", split)
            chosen[split] = part.select(stratified_parts(part.targets, [size], rng)[0])
        return chosen

    def _hold(self, datasets: Mapping[Split, ImageDataset], shares: ClientShares) -> Mapping[Split, Dataset]:
        if not self.shifts:
            return super()._hold(datasets, shares)
        num_classes = self.num_classes
        for shift in self.shifts:
            shift.check(len(shares), num_classes)
        held: dict[Split, TensorDataset] = {}
        for name, part in datasets.items():
            images, targets = part.images.clone(), part.targets.clone()
            for client, of_client in enumerate(shares):
                indices = torch.cat([of_client[split] for split in SPLITS if self._part_of(split) == name])
                for shift in self.shifts:
                    images[indices] = shift.images(client, images[indices], targets[indices])
                    targets[indices] = shift.labels(client, targets[indices], num_classes)
            held[name] = TensorDataset(images, targets)
        return held
