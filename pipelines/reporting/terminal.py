"""The terminal that commands print to: text is shown as it is, whoever wrote it."""

from typing import Any

from rich.console import Console
from rich.text import Text

from veilmeans.schemas.errors import printable


class Terminal(Console):
    """A console on which no text is markup, and control characters are escaped: a name of a column may hold both."""

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str("\n".join(map(printable, text.split("\n"))), **options)
