"""Cards by name, and search for their files: the user's folders, then the cache, then a download.

A card is a YAML file, found by name if the package ships it, by its path otherwise::

    >>> load_card("esol").title
    'ESOL (Delaney), aqueous solubility of organic molecules'

No card module imports torch or pandas, so that the command line lists cards quickly. A user's own file is used even if
its version is not the card's (with a warning); a download never is. (Pooch neither resumes a download nor limits its
time.)
"""

import hashlib
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar, overload

from filelock import FileLock

from lightning_fl.core.errors import ConfigurationError, DataError, did_you_mean
from lightning_fl.core.validation import checked
from lightning_fl.data.cards.card import Card, CardFile
from lightning_fl.data.cards.kinds import ImageCard, MoleculeCard, TableCard
from lightning_fl.files.user_file import package_folder
from lightning_fl.files.yaml import read_yaml

#: Choice between measured data and a stand-in.
Source = Literal["auto", "real", "standin"]

Found = TypeVar("Found")
KindOfCard = TypeVar("KindOfCard", bound=Card)
#: Kinds of cards by format.
_KINDS: dict[str, type[Card]] = {name: kind for kind in (MoleculeCard, ImageCard, TableCard) for name in kind.formats}

_SILENCE_SECONDS = 10.0
_DEADLINE_SECONDS = 600.0
_CHUNK_BYTES = 1 << 16


@dataclass(frozen=True)
class FoundFile:
    """A data file, its sum, whether the card accepts the sum (not if it knows none), and where it was found."""

    path: Path
    sha256: str
    verified: bool
    origin: str


def cache_folder() -> Path:
    """``$LIGHTNING_FL_CACHE``, else ``$XDG_CACHE_HOME/lightning-fl``, else ``~/.cache/lightning-fl``."""
    if own := os.environ.get("LIGHTNING_FL_CACHE"):
        return Path(own).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "lightning-fl"


def is_offline() -> bool:
    """Whether ``$LIGHTNING_FL_OFFLINE`` switches downloads off."""
    return os.environ.get("LIGHTNING_FL_OFFLINE", "").strip().lower() in ("1", "true", "yes", "on")


def file_sha256(path: Path) -> str:
    """The SHA-256 sum of a file, 64 hexadecimal digits."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


@checked
def real_or_standin(card: Card, source: Source, find: Callable[[], Found]) -> Found | None:
    """Find the data, or return ``None`` for the card's stand-in, with a warning; "auto" takes it after a DataError."""
    from lightning.fabric.utilities.rank_zero import rank_zero_warn  # late: listing cards must not wait for torch

    if source == "standin":
        if card.standin is None:
            raise ConfigurationError(f"source='standin': data set {card.name} has no stand-in; set source: real.")
        rank_zero_warn(_standin_warning(card))
        return None
    try:
        return find()
    except DataError as error:
        if source == "real" or card.standin is None:
            raise
        rank_zero_warn(f"{_standin_warning(card)} Set source to 'real' to make this an error. Reason: {error}")
        return None


def _standin_warning(card: Card) -> str:
    return f"STAND-IN DATA: {card.standin_title}. The run's results say nothing about {card.title}."


def find_file(
    card: Card, file: CardFile | None = None, *, data_root: str | Path | None = None, allow_download: bool = True
) -> FoundFile:
    """Find a file of a card in ``data_root``, ``$LIGHTNING_FL_DATA`` or the cache, or download it."""
    file = file or card.file
    looked: list[str] = []
    for origin, folder in user_folders(data_root, file.name):
        if (found := file_in_folder(card, file, folder, origin)) is not None:
            return found
        looked.append(f"{folder} ({origin})")
    cached = dataset_cache(card) / file.name
    if cached.is_file():
        digest = file_sha256(cached)
        if not file.sha256 or digest in file.sha256:
            return FoundFile(cached, digest, digest in file.sha256, "cache")
        looked.append(f"{cached.parent} (the cache, whose {cached.name} is damaged: sha256 {digest})")
    else:
        looked.append(f"{cached.parent} (the cache)")
    failure = why_not_fetched(bool(file.addresses), card, allow_download) or _fetch(file, cached)
    if not failure:
        return FoundFile(cached, file_sha256(cached), True, "download")
    remedy = f"Put {file.name} in {cached.parent}, or name its folder in data_root or LIGHTNING_FL_DATA."
    raise DataError(f"{file.name} of data set {card.name} was not found in {', '.join(looked)}; {failure}. {remedy}")


def user_folders(data_root: str | Path | None, name: str) -> list[tuple[str, Path]]:
    """The user's folders with their origins: ``data_root``, which must exist, then ``$LIGHTNING_FL_DATA``."""
    if data_root is not None and not Path(data_root).expanduser().is_dir():
        raise ConfigurationError(f"data_root={str(data_root)!r} is not a folder: name the one that holds {name}.")
    folders = [("data_root", data_root), ("LIGHTNING_FL_DATA", os.environ.get("LIGHTNING_FL_DATA"))]
    return [(origin, Path(folder).expanduser()) for origin, folder in folders if folder]


def file_in_folder(card: Card, file: CardFile, folder: Path, origin: str) -> FoundFile | None:
    """Find a card's file in one of the user's folders; another version is used with a warning."""
    names = [file.name, f"{file.name}.gz"] if card.may_be_gzipped else [file.name]
    path = next((folder / name for name in names if (folder / name).is_file()), None)
    if path is None:
        return None
    found = FoundFile(path, digest := file_sha256(path), digest in file.sha256, origin)
    if file.sha256 and not found.verified:
        from lightning.fabric.utilities.rank_zero import rank_zero_warn  # late, as above

        sums = f"its sha256 is {digest}, the card accepts {' or '.join(file.sha256)}"
        rank_zero_warn(f"{path} is not the file that card {card.name} describes, but is used: {sums}.")
    return found


def dataset_cache(card: Card) -> Path:
    """The folder of a card's files in the cache."""
    return cache_folder() / "datasets" / card.name


def why_not_fetched(has_address: bool, card: Card, allow_download: bool) -> str:
    """Reason that nothing can be downloaded, as text; empty if it can."""
    if not has_address:
        return f"no download address is known (its card, {card.path}, describes where to get it)"
    if not allow_download:
        return "it is not downloaded here (prepare_data() does that, once per machine)"
    return "downloads are disabled by LIGHTNING_FL_OFFLINE" if is_offline() else ""


def _fetch(file: CardFile, destination: Path) -> str:
    """Download a card's file; return why it failed, or an empty text."""
    from lightning.fabric.utilities.rank_zero import rank_zero_info  # late, as above

    failures = []
    for address in file.addresses:
        rank_zero_info(f"Downloading {address} to {destination}")
        try:
            download(address, destination, file.sha256)
            return ""
        except DataError as error:
            failures.append(str(error).rstrip("."))
    return "; ".join(failures)


def download(address: str, destination: Path, sha256: tuple[str, ...]) -> None:
    """Download a file, check its sum, then move it into place (atomically).

    Received bytes are kept next to it, with ``.part`` appended to the name, and the next call continues from there.
    """
    import requests  # here, not above: few runs download
    import urllib3

    part, deadline = destination.with_name(f"{destination.name}.part"), time.monotonic() + _DEADLINE_SECONDS
    try:
        destination.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{destination}.lock"), part.open("ab") as file:
            # the sum is that of the plain bytes
            headers = {"Accept-Encoding": "identity", "Range": f"bytes={file.tell()}-"}
            with requests.get(address, headers=headers, stream=True, timeout=_SILENCE_SECONDS) as response:
                if response.status_code != 416:  # no further bytes: the file is complete, or another one
                    response.raise_for_status()
                    if response.status_code != 206:  # the whole file
                        file.truncate(0)
                    # read1 returns what has arrived: the deadline holds for a byte now and then too
                    while chunk := response.raw.read1(_CHUNK_BYTES, decode_content=False):
                        file.write(chunk)
                        if time.monotonic() > deadline:
                            raise DataError(f"{address} is too slow: {file.tell():,} bytes are kept; try again.")
            file.flush()
            if (digest := file_sha256(part)) not in sha256:
                part.unlink()
                sums = f"expected sha256 {' or '.join(sha256)}, got {digest}"
                raise DataError(f"{destination.name} from {address} is damaged or another version: {sums}. Try again.")
            os.replace(part, destination)
    except requests.HTTPError as error:
        raise DataError(f"{address} answered {error.response.status_code} {error.response.reason}.") from error
    except (requests.RequestException, urllib3.exceptions.HTTPError) as error:
        raise DataError(f"{address} cannot be reached, or was silent for too long ({type(error).__name__}).") from error
    except OSError as error:
        raise DataError(f"cannot write {destination} ({error}): free space, or change LIGHTNING_FL_CACHE.") from error


def available_cards() -> dict[str, Path]:
    """The cards of the package: name -> path, sorted by name."""
    return {path.stem: path for path in sorted(package_folder("datasets", "cards").glob("*.yaml"))}


@overload
def load_card(name_or_path: str | Path) -> Card: ...
@overload
def load_card(name_or_path: str | Path, kind: type[KindOfCard]) -> KindOfCard: ...
def load_card(name_or_path: str | Path, kind: type[Card] = Card) -> Card:
    """Read and check a card: the name of one of the package, or the path of a ``.yaml`` file; refuse another kind."""
    text = str(name_or_path)
    path = Path(text).expanduser()
    if path.suffix not in (".yaml", ".yml"):
        cards = available_cards()
        if text not in cards:
            names = f"{did_you_mean(text, cards)}. There are {', '.join(cards)}"
            raise ConfigurationError(f"no card named {text!r}{names}; give your own by its path, ending in .yaml.")
        path = cards[text]
    elif not path.is_file():
        raise ConfigurationError(f"no card at {path}: give a .yaml file, or one of {', '.join(available_cards())}.")
    try:
        content = read_yaml(path)
    except ConfigurationError as error:
        raise ConfigurationError(f"card {error}") from error
    if not isinstance(content, Mapping) or "format" not in content:
        raise ConfigurationError(f"card {path}: missing key 'format', one of {', '.join(_KINDS)}.")
    own_kind = _KINDS.get(str(content["format"]))
    if own_kind is None:
        raise ConfigurationError(f"card {path}, format={content['format']!r}: choose one of {', '.join(_KINDS)}.")
    card = own_kind.parse(content, path)
    if not isinstance(card, kind):
        raise ConfigurationError(f"card {card.name!r} describes {card.content}: use {card.data_module}.")
    return card
