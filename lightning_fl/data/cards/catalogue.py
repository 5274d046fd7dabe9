"""Cards: what is known of a data set before it is opened (files, columns, units, licence, citation).

A card is a YAML file. Those that come with the package are found by name, any other by its path::

    >>> load_card("esol").title
    'ESOL (Delaney), aqueous solubility of organic molecules'

What a card says depends on what it describes, which its ``format`` tells: molecules
(:class:`~lightning_fl.data.cards.molecules.MoleculeCard`), images (:class:`~lightning_fl.data.cards.images.ImageCard`)
or a table (:class:`~lightning_fl.data.cards.tables.TableCard`). No card module imports torch or pandas, so that the
command line lists the cards at once.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

from lightning_fl.core.errors import ConfigurationError, did_you_mean
from lightning_fl.data.cards.card import Card
from lightning_fl.data.cards.fields import CardFile, read_choice
from lightning_fl.data.cards.images import ImageCard
from lightning_fl.data.cards.molecules import FORMATS, CardTarget, MoleculeCard
from lightning_fl.data.cards.tables import TableCard
from lightning_fl.files.package_folders import package_folder
from lightning_fl.files.yaml import read_yaml

__all__ = [
    "FORMATS",
    "Card",
    "CardFile",
    "CardTarget",
    "ImageCard",
    "MoleculeCard",
    "TableCard",
    "available_cards",
    "expect_kind",
    "load_card",
]

KindOfCard = TypeVar("KindOfCard", bound=Card)

#: The kinds of cards; a format belongs to one of them.
_KINDS: tuple[type[Card], ...] = (MoleculeCard, ImageCard, TableCard)


def available_cards() -> dict[str, Path]:
    """The cards that come with the package: name to path, sorted by name."""
    return {path.stem: path for path in sorted(package_folder("datasets", "cards").glob("*.yaml"))}


def load_card(name_or_path: str | Path) -> Card:
    """Read and check a card.

    Args:
        name_or_path: the name of a card that comes with the package, or the path of a ``.yaml`` file.

    Raises:
        ConfigurationError: no such card; not YAML; a key is unknown, missing or has a value that is not allowed.
    """
    text = str(name_or_path)
    path = Path(text).expanduser()
    if path.suffix not in (".yaml", ".yml"):
        cards = available_cards()
        if text not in cards:
            raise ConfigurationError(
                f"no card named {text!r}{did_you_mean(text, cards)}. There are {', '.join(cards)}; "
                "a card of your own is given by its path, ending in .yaml."
            )
        path = cards[text]
    elif not path.is_file():
        raise ConfigurationError(
            f"no card at {path}: give the path of a .yaml file, or one of {', '.join(available_cards())}."
        )
    try:
        content = read_yaml(path)
    except ConfigurationError as error:
        raise ConfigurationError(f"card {error}") from error
    kinds = {name: kind for kind in _KINDS for name in kind.formats}
    if not isinstance(content, Mapping) or "format" not in content:
        raise ConfigurationError(f"card {path}: missing key 'format', one of {', '.join(kinds)}.")
    return kinds[read_choice(content, "format", tuple(kinds), f"card {path}")].parse(content, path)


def expect_kind(card: Card, kind: type[KindOfCard]) -> KindOfCard:
    """The card, if it is of this kind."""
    if not isinstance(card, kind):
        raise ConfigurationError(
            f"card {card.name!r} describes {card.content}, not {kind.content}: use {card.data_module}, or choose"
            " another card."
        )
    return card
