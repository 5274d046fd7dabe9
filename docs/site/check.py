"""Whether a built site is whole: links, pictures and anchors lead somewhere, and nothing is loaded from elsewhere."""

import re
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

__all__ = ["faults"]

_LOADED = {"img": "src", "script": "src", "source": "src", "iframe": "src"}
#: An address in a style sheet, in quotation marks or bare.
_OF_STYLES = re.compile(r"""(?:\burl\(|@import(?!\s*url\())\s*(?:"([^"]*)"|'([^']*)'|([^\s"')]+))""")


class _Page(HTMLParser):
    """The addresses and names of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what a tag is called, links to and loads."""
        given = {name: value or "" for name, value in attrs}
        self.names |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        if tag == "link" and given.get("rel") in ("stylesheet", "icon", "preload"):
            self.loads.append(given["href"])
        if tag in _LOADED and _LOADED[tag] in given:
            self.loads.append(given[_LOADED[tag]])


def faults(site: Path) -> Iterator[str]:
    """What is wrong with the pages of a folder, a line each."""
    pages = {path: _Page(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))}
    for path, page in pages.items():
        where = path.relative_to(site)
        for address in page.loads:
            if urlsplit(address).netloc:
                yield f"{where}: loads {address} from elsewhere"
        if where.name == "404.html":  # its addresses begin at the site's root
            continue
        for address in [*page.links, *page.loads]:
            parts = urlsplit(address)
            if parts.scheme or parts.netloc or address.startswith("data:"):
                continue
            target = path if not parts.path else (path.parent / unquote(parts.path)).resolve()
            if target.is_dir():
                target /= "index.html"
            if not target.is_file():
                yield f"{where}: {address} leads nowhere"
            elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].names:
                yield f"{where}: {address} has no such anchor"
    for path in sorted(site.rglob("*.css")):
        for found in _OF_STYLES.finditer(path.read_text(encoding="utf-8")):
            if urlsplit(address := "".join(found.groups(""))).netloc:
                yield f"{path.relative_to(site)}: loads {address} from elsewhere"


if __name__ == "__main__":
    found = list(faults(Path(sys.argv[1]).resolve()))
    print("\n".join(found) or "every link leads somewhere")
    sys.exit(bool(found))
