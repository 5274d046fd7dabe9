"""Find the images that a card describes: the user's folders, then the cache, then torchvision's download.

A folder may hold the card's ``.npz`` file, the files of torchvision's data set in torchvision's own layout, or the
folder in which the data set is published; the former go first. This module imports neither torch nor torchvision until
something is downloaded.
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
    """Images that are there.

    Attributes:
        layout: ``"npz"`` for a file, ``"torchvision"`` for a folder in torchvision's layout, ``"leaf"`` and
            ``"class-folders"`` for one as published, ``"scikit-learn"`` for the digits that scikit-learn brings along.
        path: the file or folder; ``None`` for scikit-learn's.
        sha256: name of every file (relative to the folder) to its sum; empty for a folder as published.
        verified: the file's sum is one that the card accepts, or the files came from torchvision's checked download.
        origin: ``"data_root"``, ``"LIGHTNING_FL_DATA"``, ``"cache"``, ``"download"``, ``"path"`` or ``"scikit-learn"``.
        listing: the files of a folder as published.
    """

    layout: Literal["npz", "torchvision", "leaf", "class-folders", "scikit-learn"]
    path: Path | None
    sha256: dict[str, str]
    verified: bool
    origin: str
    listing: FolderListing | None = None

    @property
    def place(self) -> str:
        """Where they are, in words."""
        if self.path is None:
            return "scikit-learn"
        if self.listing is not None:
            return f"{self.path} ({self.listing.num_files:,} files)"
        return str(self.path) if self.layout == "npz" else f"{self.path} ({', '.join(self.sha256)})"

    @property
    def sums(self) -> str:
        """The sums, in words."""
        if self.listing is not None:
            return f"{self.listing.sha256} (of names and sizes)"
        return ", ".join(self.sha256.values())

    def record(self) -> dict[str, Any]:
        """Files and sums for a run's record."""
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
    """The folder of the cache that holds torchvision's data sets, each in its own layout."""
    return cache_folder() / "datasets" / "torchvision"


def find_images(card: ImageCard, *, data_root: str | Path | None = None, allow_download: bool = True) -> FoundImages:
    """Look in ``data_root``, in ``$LIGHTNING_FL_DATA``, in the cache, then let torchvision download.

    Args:
        card: the data set.
        data_root: folder to look in first; must exist.
        allow_download: download what is nowhere (unless ``$LIGHTNING_FL_OFFLINE``), into the cache.

    Raises:
        ConfigurationError: ``data_root`` is not a folder.
        DataError: the images are nowhere and cannot be downloaded. The message says where they were looked for, what
            failed, and where to put which file. Or the folder in which they are published is not complete.
    """
    if card.file is None:
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
    words = [card.file.name]
    if card.torchvision is not None:
        words.append(f"(or {card.torchvision.files[0]} and its like, as torchvision keeps them)")
    if card.folder is not None:
        words.append(f"(or {card.folder.description})")
    mend = f"Put {card.file.name} in {own}, or name its folder in data_root or LIGHTNING_FL_DATA"
    if card.folder is not None:
        mend += f"; the folder {card.folder.names[0]} may lie in any of these too"
    raise DataError(f"{' '.join(words)} of data set {card.name} was not found in {looked}; {failure}. {mend}.")


def _holds(root: Path, data: TorchvisionData) -> bool:
    return all((root / name).is_file() for name in data.files)


def _in_layout(root: Path, data: TorchvisionData, origin: str, *, verified: bool) -> FoundImages:
    sums = {name: file_sha256(root / name) for name in data.files}
    return FoundImages("torchvision", root, sums, verified, origin)


def _fetch(card: ImageCard, *, allow_download: bool) -> str | None:
    """Let torchvision download the data set; what went wrong, or ``None``."""
    if card.torchvision is None:
        return f"torchvision does not have it (its card, {card.path}, says where it comes from)"
    if not allow_download:
        return "it is not downloaded here (prepare_data() does that, once per machine)"
    if is_offline():
        return "downloads are switched off by LIGHTNING_FL_OFFLINE"
    rank_zero_info(f"Downloading {card.title} with torchvision to {torchvision_cache()}")
    try:
        _download(card.torchvision)
    except DataError as error:
        return str(error).rstrip(".")
    return None


def _download(data: TorchvisionData) -> None:
    """Download into a folder of its own, and only what is complete and has torchvision's sums goes to its place.

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
            shutil.rmtree(part, ignore_errors=True)  # torchvision takes a cut-off file for a whole one
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
            f"{data.dataset} is being downloaded by another process for more than {_DEADLINE_SECONDS:g} s: wait for it,"
            f" or remove {root / data.dataset}.lock if there is none."
        ) from None
    except OSError as error:
        raise DataError(
            f"cannot write {root} ({error}): free the disk, or set LIGHTNING_FL_CACHE to a folder that can be written."
        ) from error


def _move(path: Path, destination: Path) -> None:
    if destination.is_dir():  # of another part of the same data set
        shutil.rmtree(destination)
    os.replace(path, destination)


def _within_deadline(data: TorchvisionData, folder: Path) -> None:
    """Run torchvision's download in a thread of its own: it sets no limits, and cannot be told to stop."""
    failures: list[Exception] = []

    def transfer() -> None:
        import torchvision

        try:
            for arguments in data.parts.values():
                getattr(torchvision.datasets, data.dataset)(folder, download=True, **arguments)
        except Exception as error:  # handed to the waiting thread, which raises it
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
