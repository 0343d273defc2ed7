"""What commands print: names of columns as they are, and nothing that a terminal would obey."""

from io import StringIO

import pytest
from rich.table import Table

from veilmeans.pipelines.reporting.terminal import Terminal


def printed(what: object) -> str:
    out = StringIO()
    Terminal(file=out, width=80).print(what)
    return out.getvalue()


@pytest.mark.parametrize("name", ["rate[/day]", "[eur]", "[red]loss[/red]", ":smile:"])
def test_names_that_look_like_markup_are_shown_as_they_are(name: str) -> None:
    table = Table("column", title=name, caption=name)
    table.add_row(name)
    assert printed(table).count(name) == 3
    assert printed(name) == f"{name}\n"


@pytest.mark.parametrize("escape", ["\x1b[2J", "\x1b]0;owned\x07", "\r", "\x9b2J", "\u202e"])
def test_a_terminal_sees_no_escape_sequence_of_a_name(escape: str) -> None:
    table = Table(f"column{escape}", title=escape)
    table.add_row(f"visits{escape}")
    for text in (printed(table), printed(f"one\ntwo{escape}")):
        assert all(line.isprintable() for line in text.split("\n"))
        assert len(text.split("\n")) > 2
