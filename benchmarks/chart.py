"""Line charts as an SVG file: panels side by side, a logarithmic axis upwards, labels along the other."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, floor, log10
from pathlib import Path

_WIDTH, _HEIGHT, _LEFT, _TOP, _BOTTOM = 420, 320, 60, 40, 90
_COLOURS = ("#1b6ca8", "#d1495b", "#2e8b57", "#8d5fb0", "#b8860b", "#555555")


@dataclass(frozen=True)
class Panel:
    """A chart of lines: a name and a value for each label. Values that are not above zero are left out."""

    title: str
    along: str
    labels: Sequence[str]
    lines: dict[str, Sequence[float]]


def write_svg(file: Path, panels: Sequence[Panel]) -> None:
    """Write all panels in one row."""
    drawn = [f'<g transform="translate({i * _WIDTH},0)">{_draw(panel)}</g>' for i, panel in enumerate(panels)]
    size = f'width="{_WIDTH * len(panels)}" height="{_HEIGHT}"'
    style = 'font-family="sans-serif" font-size="11"'
    white = '<rect width="100%" height="100%" fill="white"/>'
    file.write_text(f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}>{white}{"".join(drawn)}</svg>\n')


def _draw(panel: Panel) -> str:
    values = [value for line in panel.lines.values() for value in line if value > 0]
    low = floor(log10(min(values, default=1)))
    high = max(low + 1, ceil(log10(max(values, default=1))))
    width, bottom = _WIDTH - _LEFT - 20, _HEIGHT - _BOTTOM

    def across(position: int) -> float:
        return _LEFT + width * (position + 0.5) / len(panel.labels)

    def up(value: float) -> float:
        return bottom - (bottom - _TOP) * (log10(value) - low) / (high - low)

    parts = [_text(_LEFT + width / 2, 20, panel.title), _text(_LEFT + width / 2, bottom + 32, panel.along)]
    for power in range(low, high + 1):
        height = up(10.0**power)
        parts.append(f'<path d="M{_LEFT},{height:.1f}h{width}" stroke="#dddddd"/>')
        parts.append(_text(_LEFT - 6, height + 4, f"{10.0**power:g}", "end"))
    parts += [_text(across(i), bottom + 16, label) for i, label in enumerate(panel.labels)]
    for number, (name, line) in enumerate(panel.lines.items()):
        colour = _COLOURS[number % len(_COLOURS)]
        points = [f"{across(i):.1f},{up(value):.1f}" for i, value in enumerate(line) if value > 0]
        parts.append(f'<polyline points="{" ".join(points)}" fill="none" stroke="{colour}" stroke-width="2"/>')
        left, height = _LEFT + width * (number % 2) / 2, bottom + 48 + 14 * (number // 2)
        parts.append(f'<path d="M{left},{height}h16" stroke="{colour}" stroke-width="2"/>')
        parts.append(_text(left + 20, height + 4, name, "start"))
    return "".join(parts)


def _text(x: float, y: float, content: str, anchor: str = "middle") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(content)}</text>'
