"""``lightning-fl datasets``: list data sets, download them, check their files."""

import textwrap

from lightning_fl.core.errors import DataError
from lightning_fl.data.cards.lookup import Card, ImageCard, available_cards, load_card


def datasets(name: str | None = None, *, fetch: bool = False, check: bool = False) -> int:
    """List cards or show one; fetch and check their files.

    Args:
        name: a data set, or the path of a card
        fetch: download missing files
        check: compare checksums of files with those of the cards; exit code 1 if one differs or the named data set is
            missing
    """
    cards = [load_card(name)] if name else [load_card(name) for name in available_cards()]
    if fetch or check:
        faults = [_is_fault(card, name is not None, fetch, check) for card in cards]
        return int(any(faults))
    if name:
        _show(cards[0])
        return 0
    width = max(len(card.name) for card in cards)
    for card in cards:
        rows = "rows unknown" if card.num_rows is None else f"{card.num_rows:,} rows"
        print(f"{card.name:{width}}  {card.title}")
        print(f"{'':{width}}  {card.task}, {rows}, licence: {card.licence}")
        print(f"{'':{width}}  {_whereabouts(card)}")
    return 0


def _show(card: Card) -> None:
    lines = {
        "name": card.name,
        "title": card.title,
        "task": card.task,
        "rows": "unknown" if card.num_rows is None else f"{card.num_rows:,}",
        "file": f"{', '.join(file.name for file in card.files)} ({card.format})" if card.files else "none",
        **card.details(),
        "licence": card.licence,
        "citation": card.citation,
        "note": card.note,
        "address": _address(card),
        "status": _whereabouts(card),
        "card": str(card.path),
    }
    for key, text in lines.items():
        print(textwrap.fill(text, 100, initial_indent=f"{key:10} ", subsequent_indent=" " * 11, break_long_words=False))


def _address(card: Card) -> str:
    if addresses := [address for file in card.files for address in file.addresses]:
        return ", ".join(addresses)
    if isinstance(card, ImageCard) and card.torchvision is not None:
        return f"those of torchvision.datasets.{card.torchvision.dataset}"
    return "none: to be fetched by hand" if card.files else "none needed"


def _find(card: Card, *, fetch: bool) -> tuple[str, str, list[str], bool]:
    """Find or download a data set: its place, the checksums of its files and of the card, and whether they agree."""
    from lightning_fl.data.cards.lookup import find_file
    from lightning_fl.data.images.sources import find_images

    accepted = [value for file in card.files for value in file.sha256]
    if isinstance(card, ImageCard):
        images = find_images(card, allow_download=fetch)
        # the card has sums of no other layout
        return images.place, images.sums, accepted if images.layout == "npz" else [], images.verified
    files = [find_file(card, file, allow_download=fetch) for file in card.files]
    place, sums = ", ".join(str(file.path) for file in files), ", ".join(file.sha256 for file in files)
    return place, sums, accepted, all(file.verified for file in files)


def _whereabouts(card: Card) -> str:
    try:
        place, _, accepted, verified = _find(card, fetch=False)
    except DataError:
        standin = "; a stand-in is available" if card.standin else ""
        fetch = f"lightning-fl datasets {card.name} --fetch" if card.can_be_fetched else "to be fetched by hand"
        return f"not found{standin}; {fetch}"
    return f"here: {place}" + (" (its sum is not one of the card's)" if accepted and not verified else "")


def _is_fault(card: Card, named: bool, fetch: bool, check: bool) -> bool:
    """Find or download a data set and report it; whether it is missing or, for ``check``, differs from its card."""
    try:
        place, sha256, accepted, verified = _find(card, fetch=fetch)
    except DataError as error:
        missed = named or (fetch and card.can_be_fetched)
        print(f"{card.name}: {error if missed else 'not found'}")
        return missed
    if verified:
        verdict = ", sha256 as in the card" if accepted else ", nothing to compare"
    elif accepted:
        verdict = f", sha256 {sha256} is not the card's {' or '.join(accepted)}"
    else:
        verdict = f", sha256 {sha256}; the card knows none to compare with"
    print(f"{card.name}: {place}{verdict if check else ''}")
    return check and bool(accepted) and not verified
