"""Search for the images of a card: the user's folders, then the cache, then torchvision's download.

A folder may hold the card's ``.npz`` file, torchvision's files in its own layout, or the published folder, in this
order of precedence. This module imports neither torch nor torchvision until something is downloaded.
"""

import os
import shutil
import socket
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from filelock import FileLock, Timeout

from lightning_fl.core.errors import DataError
from lightning_fl.data.cards.images import ImageCard, TorchvisionData
from lightning_fl.data.cards.lookup import (
    cache_folder,
    dataset_cache,
    file_in_folder,
    file_sha256,
    is_offline,
    rank_zero_info,
    user_folders,
)
from lightning_fl.data.images.listing import FolderListing, list_folder

__all__ = ["FoundImages", "find_images", "torchvision_cache"]

_SILENCE_SECONDS = 10.0
_DEADLINE_SECONDS = 900.0


@dataclass(frozen=True)
class FoundImages:
    """Images that were found.

    Attributes:
        layout: ``"npz"`` for a file, ``"torchvision"`` for a folder in torchvision's layout, ``"leaf"`` and
            ``"class-folders"`` for a published folder, ``"scikit-learn"`` for the digits in scikit-learn.
        path: the file or folder; ``None`` for scikit-learn's.
        sha256: name of every file (relative to the folder) -> its sum; empty for a published folder.
        verified: whether the card accepts the file's sum, or the files came from torchvision's checked download.
        origin: ``"data_root"``, ``"LIGHTNING_FL_DATA"``, ``"cache"``, ``"download"``, ``"path"`` or ``"scikit-learn"``.
        listing: files of a published folder.
    """

    layout: Literal["npz", "torchvision", "leaf", "class-folders", "scikit-learn"]
    path: Path | None
    sha256: dict[str, str]
    verified: bool
    origin: str
    listing: FolderListing | None = None

    @property
    def place(self) -> str:
        """Location of the images as text."""
        if self.path is None:
            return "scikit-learn"
        if self.listing is not None:
            return f"{self.path} ({self.listing.num_files:,} files)"
        return str(self.path) if self.layout == "npz" else f"{self.path} ({', '.join(self.sha256)})"

    @property
    def sums(self) -> str:
        """Sums as text."""
        if self.listing is not None:
            return f"{self.listing.sha256} (of names and sizes)"
        return ", ".join(self.sha256.values())

    def record(self) -> dict[str, Any]:
        """Return files and sums for a run's record."""
        if self.listing is not None:
            return {
                "file": self.listing.path.name,
                "sha256": None,
                "names_and_sizes_sha256": self.listing.sha256,
                "num_files": self.listing.num_files,
                "num_bytes": self.listing.num_bytes,
                "verified": self.verified,
                "layout": self.layout,
            }
        return {
            "file": None if self.path is None else ", ".join(self.sha256),
            "sha256": next(iter(self.sha256.values()), None) if len(self.sha256) < 2 else dict(self.sha256),
            "verified": self.verified,
            "layout": self.layout,
        }


def torchvision_cache() -> Path:
    """Return the folder of torchvision's data sets in the cache, each in its own layout."""
    return cache_folder() / "datasets" / "torchvision"


def find_images(card: ImageCard, *, data_root: str | Path | None = None, allow_download: bool = True) -> FoundImages:
    """Find images in ``data_root``, ``$LIGHTNING_FL_DATA`` or the cache, or let torchvision download them.

    Args:
        card: the data set.
        data_root: folder to look in first; must exist.
        allow_download: download missing images (unless ``$LIGHTNING_FL_OFFLINE``) into the cache.

    Raises:
        ConfigurationError: ``data_root`` is not a folder.
        DataError: the images are not found and cannot be downloaded, or the published folder is incomplete. The message
            names the folders searched, the failure, and where to put which file.
    """
    if not card.files:
        return FoundImages("scikit-learn", None, {}, True, "scikit-learn")
    own = dataset_cache(card)
    folders = [*user_folders(data_root, card.file.name), ("cache", own)]
    for origin, folder in folders:
        if (file := file_in_folder(card, card.file, folder, origin)) is not None:
            return FoundImages("npz", file.path, {file.path.name: file.sha256}, file.verified, origin)
        if card.torchvision is not None:
            root = torchvision_cache() if origin == "cache" else folder
            if _holds(root, card.torchvision):
                return _in_layout(root, card.torchvision, origin, verified=origin == "cache")
        if card.folder is not None and (listing := list_folder(card, folder)) is not None:
            return FoundImages(card.folder.layout, listing.path, {}, False, origin, listing)
    failure = _fetch(card, allow_download=allow_download)
    if failure is None:
        assert card.torchvision is not None
        return _in_layout(torchvision_cache(), card.torchvision, "download", verified=True)
    looked = ", ".join(f"{folder} ({'the cache' if origin == 'cache' else origin})" for origin, folder in folders)
    names = [card.file.name]
    if card.torchvision is not None:
        names.append(f"(or {card.torchvision.files[0]} etc. in torchvision's layout)")
    if card.folder is not None:
        names.append(f"(or {card.folder.description})")
    remedy = f"Put {card.file.name} in {own}, or name its folder in data_root or LIGHTNING_FL_DATA"
    if card.folder is not None:
        remedy += f"; the folder {card.folder.names[0]} may be in any of these too"
    raise DataError(f"{' '.join(names)} of data set {card.name} was not found in {looked}; {failure}. {remedy}.")


def _holds(root: Path, data: TorchvisionData) -> bool:
    return all((root / name).is_file() for name in data.files)


def _in_layout(root: Path, data: TorchvisionData, origin: str, *, verified: bool) -> FoundImages:
    sums = {name: file_sha256(root / name) for name in data.files}
    return FoundImages("torchvision", root, sums, verified, origin)


def _fetch(card: ImageCard, *, allow_download: bool) -> str | None:
    """Let torchvision download the data set; return why it failed, or ``None``."""
    if card.torchvision is None:
        return f"torchvision does not have it (its card, {card.path}, describes where to get it)"
    if not allow_download:
        return "it is not downloaded here (prepare_data() does that, once per machine)"
    if is_offline():
        return "downloads are disabled by LIGHTNING_FL_OFFLINE"
    rank_zero_info(f"Downloading {card.title} with torchvision to {torchvision_cache()}")
    try:
        _download(card.torchvision)
    except DataError as error:
        return str(error).rstrip(".")
    return None


def _download(data: TorchvisionData) -> None:
    """Download into a temporary folder, and move only complete files with torchvision's sums into place.

    Raises:
        DataError: no connection, a silent or slow server, a wrong sum, or the cache cannot be written.
    """
    root = torchvision_cache()
    part = root / f"{data.dataset}.part"
    try:
        root.mkdir(parents=True, exist_ok=True)
        with FileLock(root / f"{data.dataset}.lock", timeout=_DEADLINE_SECONDS):
            if _holds(root, data):
                return  # another process was faster
            shutil.rmtree(part, ignore_errors=True)  # torchvision takes a truncated file for a complete one
            part.mkdir()
            try:
                _within_deadline(data, part)
                if not _holds(part, data):
                    raise DataError(f"torchvision's {data.dataset} did not bring {', '.join(data.files)}.")
                for path in sorted(part.iterdir()):
                    _move(path, root / path.name)
            finally:
                shutil.rmtree(part, ignore_errors=True)
    except Timeout:
        raise DataError(
            f"another process has been downloading {data.dataset} for more than {_DEADLINE_SECONDS:g} s: wait for it,"
            f" or remove {root / data.dataset}.lock if there is no such process."
        ) from None
    except OSError as error:
        raise DataError(
            f"cannot write {root} ({error}): free disk space, or set LIGHTNING_FL_CACHE to a writable folder."
        ) from error


def _move(path: Path, destination: Path) -> None:
    if destination.is_dir():  # of another part of the same data set
        shutil.rmtree(destination)
    os.replace(path, destination)


def _within_deadline(data: TorchvisionData, folder: Path) -> None:
    """Run torchvision's download in a thread of its own, as it has no time limits and cannot be stopped."""
    failures: list[Exception] = []

    def transfer() -> None:
        import torchvision

        try:
            for arguments in data.parts.values():
                getattr(torchvision.datasets, data.dataset)(folder, download=True, **arguments)
        except Exception as error:  # the waiting thread raises it
            failures.append(error)

    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(_SILENCE_SECONDS)
    try:
        thread = threading.Thread(target=transfer, name="lightning-fl-torchvision", daemon=True)
        thread.start()
        thread.join(_DEADLINE_SECONDS)
    finally:
        socket.setdefaulttimeout(before)
    if thread.is_alive():
        raise DataError(f"torchvision's download of {data.dataset} took more than {_DEADLINE_SECONDS:g} s.")
    if failures:
        words = " ".join(str(failures[0]).split())
        raise DataError(f"torchvision's download of {data.dataset} failed ({type(failures[0]).__name__}: {words}).")
