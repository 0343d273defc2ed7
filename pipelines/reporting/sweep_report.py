"""The results of a sweep: a table on the terminal, and a page with a plot of the inertias, `sweep.html`.

The page is one self-contained file. It has what was opened to this party: without `reveal.inertia`, only costs.
"""

from collections.abc import Mapping, Sequence
from math import floor, log10
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup
from rich.table import Table

from veilmeans.io.files.atomic_files import read_json, write_text
from veilmeans.pipelines.planning.units import format_duration, format_size
from veilmeans.schemas.config import JobConfig
from veilmeans.schemas.errors import StorageError

Trainings = Sequence[Mapping[str, Any]]
_WIDTH, _HEIGHT, _LEFT, _BOTTOM = 640, 320, 64, 48  # of the plot, and of the room for the labels of its axes
_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{{ run }} at {{ party }}: veilmeans sweep</title>
<style>
:root { --ground: #f7f7f5; --ink: #1b1f24; --soft: #565e6a; --line: #dfe1e5; --mark: #2f6fb3; }
@media screen and (prefers-color-scheme: dark) {
  :root { --ground: #121519; --ink: #e7e9ec; --soft: #a6aeb9; --line: #333a42; --mark: #5f9fe0; }
}
body { margin: 0 auto; max-width: 720px; padding: 24px; background: var(--ground); color: var(--ink); }
body { font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; overflow-wrap: break-word; }
h1 { font-size: 1.6rem; line-height: 1.2; } h1 span, .soft { color: var(--soft); font-weight: 400; }
a { color: var(--mark); } svg { width: 100%; height: auto; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; width: 100%; font-size: .9rem; }
th, td { text-align: right; padding: 6px 12px 6px 0; border-bottom: 1px solid var(--line); white-space: nowrap; }
th:first-child, th:last-child, td:last-child { text-align: left; } td { font-variant-numeric: tabular-nums; }
svg text { fill: var(--soft); font: 13px system-ui, sans-serif; } .grid { stroke: var(--line); }
.curve { fill: none; stroke: var(--mark); stroke-width: 2; } .point { fill: var(--mark); }
</style>
</head>
<body>
<h1>{{ run }} <span>at {{ party }}: {{ trainings | length }} numbers of clusters</span></h1>
<p>{{ opened }}</p>
{{ plot }}
<div class="scroll"><table>
<thead><tr><th scope="col">clusters</th><th scope="col">inertia</th><th scope="col">iterations</th>
<th scope="col">time</th><th scope="col">sent</th><th scope="col">run</th></tr></thead>
<tbody>
{% for each in trainings %}
<tr><th scope="row">{{ each.clusters }}</th><td>{{ each.inertia }}</td><td>{{ each.iterations }}</td>
<td>{{ each.time }}</td><td>{{ each.sent }}</td><td><a href="../{{ each.run }}/report.html">{{ each.run }}</a></td></tr>
{% endfor %}
</tbody></table></div>
<p class="soft">Each training is a run with shares and a report of its own. All used one agreement and one triple store.
The inertia is the sum of squared distances to the centroids, in normalised units; it falls as clusters are added:
where it stops falling fast, more clusters explain little more.</p>
</body>
</html>
"""


def is_sweep(config: JobConfig) -> bool:
    """True if the configured run was a sweep, and has ended here."""
    return config.run_folder.sweep.exists()


def read_trainings(config: JobConfig) -> Trainings:
    """The trainings of a sweep that has ended here."""
    content = read_json(config.run_folder.sweep)
    if content is None:
        raise StorageError(f"the sweep {config.run!r} has not ended at {config.party}: run `veilmeans sweep` first")
    trainings: Trainings = content["trainings"]
    return trainings


def show_sweep(config: JobConfig) -> Table:
    """A table of the trainings."""
    columns = "clusters", "inertia", "iterations", "time", "sent", "run"
    table = Table(*columns, title=f"sweep {config.run!r}: results of {config.party}")
    for each in _cells(read_trainings(config)):
        table.add_row(*(str(each[name]) for name in columns))
    return table


def write_sweep_page(config: JobConfig) -> Path:
    """Write the page of a sweep."""
    page, trainings = config.run_folder.sweep_page, read_trainings(config)
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    who = config.required_kmeans.reveal.inertia
    opened = f"The inertia was opened to {', '.join(who)}." if who else "The inertia was opened to nobody."
    values = {"run": config.run, "party": config.party, "opened": opened, "trainings": _cells(trainings)}
    points = [(each["clusters"], each["inertia"]) for each in trainings if "inertia" in each]
    write_text(page, environment.from_string(_PAGE).render(values, plot=plot(points) if points else ""))
    return page


def _cells(trainings: Trainings) -> list[dict[str, Any]]:
    return [
        {
            **each,
            "inertia": f"{each['inertia']:,.6g}" if "inertia" in each else "not opened to us",
            "time": format_duration(each["seconds"]),
            "sent": format_size(each["bytes_sent"]),
        }
        for each in trainings
    ]


def plot(points: Sequence[tuple[int, float]]) -> Markup:
    """Draw the inertia by the number of clusters as SVG, from 0 upwards."""
    first, last, top = points[0][0], points[-1][0], _ceiling(max(value for _, value in points))
    places = [(k, value, *_place((k - first) / max(1, last - first), value / top)) for k, value in points]
    lines = [_grid_line(top * step / 4, step / 4) for step in range(5)]
    curve = Markup('<polyline class="curve" points="{}"/>').format(" ".join(f"{x:.1f},{y:.1f}" for *_, x, y in places))
    marks = [
        Markup('<circle class="point" cx="{}" cy="{}" r="4"><title>{}</title></circle>').format(
            f"{x:.1f}", f"{y:.1f}", f"{k} clusters: inertia {value:,.6g}"
        )
        for k, value, x, y in places
    ]
    every = max(1, -(-len(places) // 20))
    labels = [_text(x, _HEIGHT - _BOTTOM + 20, "middle", f"{k}") for k, _, x, _ in places[::every]]
    axes = [_text((_LEFT + _WIDTH) / 2, _HEIGHT - 6, "middle", "number of clusters"), _text(8, 14, "start", "inertia")]
    drawing = Markup('<svg role="img" viewBox="0 0 {} {}"><title>inertia by the number of clusters</title>{}</svg>')
    return drawing.format(_WIDTH, _HEIGHT, Markup("").join([*lines, curve, *marks, *labels, *axes]))


def _place(right: float, up: float) -> tuple[float, float]:
    """A point of the plot from fractions of its axes."""
    width, height = _WIDTH - _LEFT - 24, _HEIGHT - _BOTTOM - 28
    return _LEFT + 8 + right * width, _HEIGHT - _BOTTOM - up * height


def _grid_line(value: float, up: float) -> Markup:
    _, y = _place(0, up)
    line = Markup('<line class="grid" x1="{}" x2="{}" y1="{}" y2="{}"/>').format(_LEFT, _WIDTH, f"{y:.1f}", f"{y:.1f}")
    return line + _text(_LEFT - 8, y + 4, "end", f"{value:,.4g}")


def _text(x: float, y: float, anchor: str, text: str) -> Markup:
    return Markup('<text x="{}" y="{}" text-anchor="{}">{}</text>').format(f"{x:.1f}", f"{y:.1f}", anchor, text)


def _ceiling(value: float) -> float:
    """The next number above that is 1, 2, 4, 6 or 8 times a power of ten."""
    if value <= 0:
        return 1.0
    power = 10.0 ** floor(log10(value))
    return next(step * power for step in (1, 2, 4, 6, 8, 10) if value <= step * power)
