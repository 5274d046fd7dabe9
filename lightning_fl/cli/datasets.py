"""``lightning-fl datasets``: the data sets that cards describe, whether they are here, and fetching them."""

import textwrap
from collections.abc import Sequence

from jsonargparse import ArgumentParser, Namespace

from lightning_fl.data.cards import Card, available_cards, load_card
from lightning_fl.errors import DataError

__all__ = ["add_arguments", "run"]


def add_arguments(parser: ArgumentParser, command: str) -> None:
    """Add the command's arguments."""
    parser.add_argument("name", type=str | None, nargs="?", default=None, help="A data set, or the path of a card.")
    parser.add_argument("--fetch", action="store_true", help="Download what is not here.")
    parser.add_argument(
        "--check",
        action="store_true",
        help="Compare the files' sums with the cards'; exit code 1 if one differs or the one named is not here.",
    )


def run(command: str, config: Namespace, parser: ArgumentParser, arguments: Sequence[str]) -> int:
    """List cards or show one; fetch and check their files."""
    cards = [load_card(config.name)] if config.name else [load_card(name) for name in available_cards()]
    if config.fetch or config.check:
        faults = [_is_fault(card, config.name is not None, config.fetch, config.check) for card in cards]
        return int(any(faults))
    if config.name:
        _show(cards[0])
        return 0
    width = max(len(card.name) for card in cards)
    for card in cards:
        rows = "rows unknown" if card.rows is None else f"{card.rows:,} rows"
        print(f"{card.name:{width}}  {card.title}")
        print(f"{'':{width}}  {card.task}, {rows}, licence: {card.licence}")
        print(f"{'':{width}}  {_whereabouts(card)}")
    return 0


def _show(card: Card) -> None:
    lines = {
        "name": card.name,
        "title": card.title,
        "task": card.task,
        "rows": "unknown" if card.rows is None else f"{card.rows:,}",
        "file": f"{card.file.name} ({card.format})",
        "molecules": card.smiles,
        "targets": "; ".join(f"{target.name} [{target.unit}]" for target in card.targets),
        "groups": ", ".join(card.groups) or "none",
        "licence": card.licence,
        "citation": card.citation,
        "note": card.note,
        "address": ", ".join(card.file.addresses) or "none: to be fetched by hand",
        "found": _whereabouts(card),
        "card": str(card.path),
    }
    for key, text in lines.items():
        print(textwrap.fill(text, 100, initial_indent=f"{key:10} ", subsequent_indent=" " * 11, break_long_words=False))


def _whereabouts(card: Card) -> str:
    from lightning_fl.data.lookup import find_file

    try:
        found = find_file(card, allow_download=False)
    except DataError:
        return (
            "not here"
            + (", a stand-in is" if card.standin else "")
            + (f"; lightning-fl datasets {card.name} --fetch" if card.file.addresses else "; to be fetched by hand")
        )
    return f"here: {found.path}" + ("" if found.verified else " (its sum is not one of the card's)")


def _is_fault(card: Card, named: bool, fetch: bool, check: bool) -> bool:
    """Find or download one file and say so; whether it is missed or, for ``check``, not what the card describes."""
    from lightning_fl.data.lookup import find_file

    try:
        found = find_file(card, allow_download=fetch)
    except DataError as error:
        missed = named or (fetch and bool(card.file.addresses))
        print(f"{card.name}: {error if missed else 'not here'}")
        return missed
    verdict = ""
    if check and found.verified:
        verdict = ", sha256 as in the card"
    elif check and card.file.sha256:
        verdict = f", sha256 {found.sha256} is not the card's {' or '.join(card.file.sha256)}"
    elif check:
        verdict = f", sha256 {found.sha256}; the card knows none to compare with"
    print(f"{card.name}: {found.path}{verdict}")
    return check and bool(card.file.sha256) and not found.verified
