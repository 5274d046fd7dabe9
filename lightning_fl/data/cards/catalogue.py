"""Cards: descriptions of data sets (files, columns, units, licence, citation), available without opening the data.

A card is a YAML file, found by name if the package ships it, by its path otherwise::

    >>> load_card("esol").title
    'ESOL (Delaney), aqueous solubility of organic molecules'

Its ``format`` determines its kind: :class:`~lightning_fl.data.cards.molecules.MoleculeCard`,
:class:`~lightning_fl.data.cards.images.ImageCard` or :class:`~lightning_fl.data.cards.tables.TableCard`. No card module
imports torch or pandas, so that the command line lists cards quickly.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar, overload

from lightning_fl.core.errors import ConfigurationError, did_you_mean
from lightning_fl.data.cards.card import Card
from lightning_fl.data.cards.images import ImageCard
from lightning_fl.data.cards.molecules import MoleculeCard
from lightning_fl.data.cards.tables import TableCard
from lightning_fl.files.package_folders import package_folder
from lightning_fl.files.yaml import read_yaml

KindOfCard = TypeVar("KindOfCard", bound=Card)

#: Kinds of cards by format.
_KINDS: dict[str, type[Card]] = {name: kind for kind in (MoleculeCard, ImageCard, TableCard) for name in kind.formats}


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
            raise ConfigurationError(
                f"no card named {text!r}{did_you_mean(text, cards)}. There are {', '.join(cards)}; give a card of your"
                " own by its path, ending in .yaml."
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
    if not isinstance(content, Mapping) or "format" not in content:
        raise ConfigurationError(f"card {path}: missing key 'format', one of {', '.join(_KINDS)}.")
    own_kind = _KINDS.get(str(content["format"]))
    if own_kind is None:
        raise ConfigurationError(f"card {path}, format={content['format']!r}: choose one of {', '.join(_KINDS)}.")
    card = own_kind.parse(content, path)
    if not isinstance(card, kind):
        raise ConfigurationError(
            f"card {card.name!r} describes {card.content}, not {kind.content}: use {card.data_module}, or another card."
        )
    return card
