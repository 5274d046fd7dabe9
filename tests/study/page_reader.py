"""Reader of an HTML page: its texts, and what it would load."""

from html.parser import HTMLParser

VOID = {"meta", "img", "link", "br", "hr", "input"}


class Page(HTMLParser):
    """Texts, tooltips and labels of SVG pictures, ids, links and images of a page with balanced tags."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open, self.texts, self.links, self.images, self.tags = [], [], [], [], []
        self.pictures, self.tooltips, self.ids = [], [], []
        self.feed(text)
        self.close()
        assert self.open == [], f"not closed: {self.open}"

    def handle_starttag(self, tag, attributes):
        self.handle_startendtag(tag, attributes)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append(tag)
        if tag == "svg":
            self.pictures.append(dict(attributes)["aria-label"])
        for name, value in attributes:
            if name in ("src", "href", "srcset", "data", "action", "poster"):
                (self.images if tag == "img" else self.links).append(value)
            elif name == "id":
                self.ids.append(value)
            elif name == "xlink:href":
                assert value.startswith("#")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, text):
        is_tooltip = self.open[-1:] == ["title"] and "svg" in self.open
        (self.tooltips if is_tooltip else self.texts).append(text.strip())
