"""Checks of a report page: well-formed, self-contained, and the tables in it."""

import re
from html.parser import HTMLParser


class PageParser(HTMLParser):
    """The elements, links and ids of a page; every element must be closed."""

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
    """Check that a page is well-formed and loads nothing."""
    parser = PageParser()
    parser.feed(page)
    parser.close()
    assert parser.open == []
    assert not parser.elements & {"script", "img", "link", "iframe", "object", "embed", "base", "form"}
    assert len(set(parser.ids)) == len(parser.ids)
    assert parser.links
    assert all(link.startswith("#") and link[1:] in parser.ids for link in parser.links)
    assert not re.search(r"@import|https?://|url\((?!#)", page)
    assert len(page.encode()) < 300_000


def footer(page: str) -> list[str]:
    """The totals below the table of steps."""
    line = re.search(r"<tfoot>(.*?)</tfoot>", page, re.DOTALL)
    assert line
    return re.findall(r'<td class="n">([^<]*)</td>', line[1])


def drawn_steps(page: str) -> list[str]:
    """The names of the steps in the graph."""
    return re.findall(r'<div class="step [^"]*"><b>([^<· ]+)', page)


def disclosure_rows(page: str) -> list[list[str]]:
    """Rows of the table of disclosures: what was opened, to whom, when and why."""
    section = re.search(r'<section id="result".*?</section>', page, re.DOTALL)
    assert section
    rows = re.findall(r'<tr role="row"><th role="rowheader".*?</tr>', section[0])
    return [re.findall(r"<t[hd] [^>]*>([^<]*)</t[hd]>", row) for row in rows if 'data-label="Reason"' in row]
