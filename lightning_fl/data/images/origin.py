"""Sets of images by name (a card or a file), found and read: measured images or the stand-in."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from lightning_fl.core.errors import ConfigurationError
from lightning_fl.data.cards.catalogue import ImageCard, load_card
from lightning_fl.data.cards.lookup import Source, file_sha256, real_or_standin
from lightning_fl.data.images.reader import ImageReader
from lightning_fl.data.images.sources import NpzImages, find_images
from lightning_fl.data.images.standin import MAX_CLASSES, digits_standin
from lightning_fl.data.shared import OpenedData
from lightning_fl.files.user_file import existing_file


@dataclass(frozen=True)
class ImageOrigin:
    """A set of images as named in a recipe: a card or its path, or (without a card) a user's ``.npz`` file.

    ``source`` is that of :func:`~lightning_fl.data.cards.lookup.real_or_standin`, ``data_root`` the folder to look in
    first.
    """

    name: str
    card: ImageCard | None
    source: Source
    data_root: str | None

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

    def check_superclasses(self, coarse_labels: bool) -> None:
        if coarse_labels and self.card is not None and not self.card.coarse_classes:
            raise ConfigurationError(f"coarse_labels=True: data set {self.name} has no superclasses; omit it.")

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
