"""What every report page must be: well-formed, self-contained, with a footer."""

import re
from html.parser import HTMLParser


class Balance(HTMLParser):
    """Tags that are open, what is loaded from elsewhere, and ids."""

    VOID = ("meta", "col", "br", "img", "link", "input", "hr")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: set[str] = set()
        self.links: list[str] = []
        self.ids: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.add(tag)
        assert not [name for name, _ in attrs if name.startswith("on")], attrs
        self.links += [value or "" for name, value in attrs if name in ("src", "href", "xlink:href", "srcset", "data")]
        self.ids += [value or "" for name, value in attrs if name == "id"]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in self.VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag, f"</{tag}> in line {self.getpos()[0]}"


def check_page(page: str) -> None:
    """Well-formed, and complete in itself."""
    found = Balance()
    found.feed(page)
    found.close()
    assert found.open == []
    assert not found.elements & {"script", "img", "link", "iframe", "object", "embed", "base", "form"}
    assert len(set(found.ids)) == len(found.ids)
    assert found.links
    assert all(link.startswith("#") and link[1:] in found.ids for link in found.links)
    assert not re.search(r"@import|https?://|url\((?!#)", page)
    assert len(page.encode()) < 300_000


def footer(page: str) -> list[str]:
    line = re.search(r"<tfoot>(.*?)</tfoot>", page, re.DOTALL)
    assert line
    return re.findall(r'<td class="n">([^<]*)</td>', line[1])
