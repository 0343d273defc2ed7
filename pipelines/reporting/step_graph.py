"""Pictures of a run as inline SVG: bars, and the graph of its steps. Colours and type are the page's, by class.

The graph has one box for what is done once, one for an iteration and one for the end: side by side where there is room,
one below the other on a phone. An arrow that others imply is left out.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from textwrap import wrap

from markupsafe import Markup

from veilmeans.transforms.kmeans.steps import Step

_GAP, _LETTER, _LINE = 30, 6.2, 15
_HEAD, _PAD = 34, 14
"""Of a group: its heading, and the room below its last step."""
GROUPS = {"once": "once", "iteration": "every iteration", "end": "at the end"}


@dataclass(frozen=True)
class Frame:
    """How a group is drawn: the room for its steps, the margins beside them, and whether two may stand in a row."""

    inner: int
    margin: int
    pairs: bool

    @property
    def width(self) -> int:
        return self.inner + 2 * self.margin


_WIDE = {"once": Frame(206, 13, False), "iteration": Frame(404, 28, True), "end": Frame(206, 13, False)}
_NARROW = dict.fromkeys(GROUPS, Frame(320, 19, True))
_BETWEEN = 46
"""Groups side by side."""
_WIDEST = 270


@dataclass(frozen=True)
class Node:
    """A step at its place; `row` counts from the top of the picture, or of its group where they stand side by side."""

    step: Step
    lines: tuple[str, ...]
    x: float
    y: float
    width: float
    height: float
    row: int

    @property
    def middle(self) -> float:
        return self.x + self.width / 2


@dataclass(frozen=True)
class Group:
    """The steps that are done at one time, in a frame."""

    when: str
    x: float
    y: float
    width: float
    height: float
    nodes: tuple[Node, ...]


def draw_steps(steps: Sequence[Step], notes: Mapping[str, str], wide: bool) -> Markup:
    """The graph of a run's steps; `notes`: what is said about each of them, by its name."""
    groups = _side_by_side(steps, notes) if wide else _stacked(steps, notes)
    name = "wide" if wide else "narrow"
    width = max((group.x + group.width for group in groups), default=1) + 2
    height = max((group.y + group.height for group in groups), default=1) + 2
    nodes = {node.step.name: (group, node) for group in groups for node in group.nodes}
    arrows = [
        _arrow(nodes[before], nodes[after], wide, name)
        for before, after in direct(steps)
        if {before, after} <= {*nodes}
    ]
    told = "; ".join(f"{step.name}: {step.does}{_after(step)}" for step in steps)
    head = Markup(
        '<svg class="dag {name}" role="img" aria-labelledby="{name}-title {name}-desc" '
        'viewBox="-1 -1 {width} {height}" width="{width}" height="{height}">'
        '<title id="{name}-title">The steps of the run and what each waits for</title>'
        '<desc id="{name}-desc">{told}</desc><defs><marker id="{name}-tip" viewBox="0 0 8 8" refX="7" refY="4" '
        'markerWidth="7" markerHeight="7" orient="auto"><path class="tip" d="M0,0L8,4L0,8z"/></marker></defs>'
    ).format(name=name, width=f"{width:g}", height=f"{height:g}", told=told)
    parts = [_frame(group) for group in groups] + arrows + [_loop(group, name) for group in groups]
    parts += [_box(node) for group in groups for node in group.nodes]
    return Markup("{}{}</svg>").format(head, Markup("").join(parts))


def direct(steps: Sequence[Step]) -> list[tuple[str, str]]:
    """(before, after) for each arrow that no others imply."""
    above: dict[str, set[str]] = {}
    for step in steps:
        above[step.name] = {name for before in step.after for name in (before, *above.get(before, ()))}
    return [
        (before, step.name)
        for step in steps
        for before in step.after
        if not any(before in above.get(other, ()) for other in step.after)
    ]


def draw_bar(parts: Sequence[tuple[str, float]], whole: float, phase: str, told: str) -> Markup:
    """A bar of parts (their kind, and how much of `whole`), in the colour of a phase; each kind has a texture."""
    drawn, start = [], 0.0
    for kind, value in parts:
        share = 100 * value / whole if whole > 0 else 0.0
        place = Markup('x="{}%" width="{}%" height="100%"').format(f"{start:.2f}", f"{share:.2f}")
        drawn.append(Markup('<rect class="fill {}" {}/>').format(phase_class(phase), place))
        drawn.append(Markup('<rect class="texture {}" {}/>').format(kind, place))
        start += share
    bar = Markup('<svg class="bar" role="img" width="100%" height="14"><title>{}</title>{}</svg>')
    return bar.format(told, Markup("").join(drawn))


def phase_class(phase: str) -> str:
    return phase.lower() or "other"


def _after(step: Step) -> str:
    return f", after {' and '.join(step.after)}" if step.after else ""


def _layers(steps: Sequence[Step], pairs: bool) -> list[list[Step]]:
    """Steps of one group in rows: each below all that it waits for there; in one column, each in a row of its own."""
    if not pairs:
        return [[step] for step in steps]
    depth: dict[str, int] = {}
    for step in steps:
        depth[step.name] = max((depth[before] + 1 for before in step.after if before in depth), default=0)
    ordered = sorted(steps, key=lambda step: depth[step.name])
    return [list(layer) for _, layer in groupby(ordered, key=lambda step: depth[step.name])]


def _group(
    when: str, steps: Sequence[Step], notes: Mapping[str, str], frame: Frame, x: float, y: float, row: int
) -> Group:
    nodes: list[Node] = []
    below = y + _HEAD
    for number, layer in enumerate(_layers(steps, frame.pairs)):
        width = min(_WIDEST, (frame.inner - 12 * (len(layer) - 1)) / len(layer))
        lines = [_lines(step, notes, width) for step in layer]
        height = 30 + _LINE * max(map(len, lines))
        left = x + frame.margin + (frame.inner - len(layer) * (width + 12) + 12) / 2
        for column, (step, text) in enumerate(zip(layer, lines, strict=True)):
            nodes.append(Node(step, text, left + column * (width + 12), below, width, height, row + number))
        below += height + _GAP
    return Group(when, x, y, frame.width, below - _GAP + _PAD - y, tuple(nodes))


def _lines(step: Step, notes: Mapping[str, str], width: float) -> tuple[str, ...]:
    room = int((width - 18) / _LETTER)
    return (*wrap(step.does, room), *wrap(notes.get(step.name, ""), room))


def _members(steps: Sequence[Step]) -> dict[str, list[Step]]:
    found = {when: [step for step in steps if step.when == when] for when in GROUPS}
    return {when: members for when, members in found.items() if members}


def _stacked(steps: Sequence[Step], notes: Mapping[str, str]) -> list[Group]:
    groups: list[Group] = []
    y, row = 0.0, 0
    for when, members in _members(steps).items():
        groups.append(_group(when, members, notes, _NARROW[when], 0, y, row))
        y += groups[-1].height + 24
        row = groups[-1].nodes[-1].row + 1
    return groups


def _side_by_side(steps: Sequence[Step], notes: Mapping[str, str]) -> list[Group]:
    """The end stands beside the last step of an iteration, what is done once beside the first."""
    members, groups, x = _members(steps), [], 0.0
    for when, each in members.items():
        groups.append(_group(when, each, notes, _WIDE[when], x, 0, 0))
        x += groups[-1].width + _BETWEEN
    height = max(group.height for group in groups) if groups else 0
    return [
        _group(group.when, members[group.when], notes, _WIDE[group.when], group.x, height - group.height, 0)
        if group.when == "end"
        else group
        for group in groups
    ]


def _frame(group: Group) -> Markup:
    box = Markup(
        '<rect class="group" x="{}" y="{}" width="{}" height="{}" rx="10"/><text class="when" x="{}" y="{}">{}</text>'
    )
    return box.format(
        _n(group.x),
        _n(group.y),
        _n(group.width),
        _n(group.height),
        _n(group.x + 14),
        _n(group.y + 21),
        GROUPS[group.when],
    )


def _box(node: Node) -> Markup:
    step = node.step
    text = [Markup('<text class="name" x="{}" y="{}">{}</text>').format(_n(node.x + 9), _n(node.y + 18), step.name)]
    if step.phase:
        place = _n(node.x + node.width - 9), _n(node.y + 18)
        text.append(Markup('<text class="phase" text-anchor="end" x="{}" y="{}">{}</text>').format(*place, step.phase))
    for number, line in enumerate(node.lines, 1):
        place = _n(node.x + 9), _n(node.y + 19 + number * _LINE)
        text.append(Markup('<text class="line" x="{}" y="{}">{}</text>').format(*place, line))
    box = Markup('<g class="step {}"><rect x="{}" y="{}" width="{}" height="{}" rx="7"/>{}</g>')
    corners = (_n(node.x), _n(node.y), _n(node.width), _n(node.height))
    return box.format(phase_class(step.phase), *corners, Markup("").join(text))


def _arrow(start: tuple[Group, Node], end: tuple[Group, Node], wide: bool, name: str) -> Markup:
    (group, before), (other, after) = start, end
    if wide and group is not other:
        x, y, to_x, to_y = before.x + before.width, before.y + before.height / 2, after.x, after.y + after.height / 2
        edge, middle = group.x + group.width, (group.x + group.width + other.x) / 2
        curve = f"C{middle:.1f},{y:.1f} {middle:.1f},{to_y:.1f} {other.x:.1f},{to_y:.1f}"
        path = f"M{x:.1f},{y:.1f}H{edge:.1f}{curve}H{to_x:.1f}"
    elif after.row - before.row == 1:
        y, half = before.y + before.height, (after.y - before.y - before.height) / 2
        x, to_x = before.middle, after.middle
        path = f"M{x:.1f},{y:.1f}C{x:.1f},{y + half:.1f} {to_x:.1f},{y + half:.1f} {to_x:.1f},{after.y:.1f}"
    else:
        margin, y, to_y = other.x + 10, before.y + before.height / 2, after.y + after.height / 2
        path = f"M{before.x:.1f},{y:.1f}H{margin:.1f}V{to_y:.1f}H{after.x:.1f}"
    return Markup('<path class="arrow" d="{}" marker-end="url(#{}-tip)"/>').format(path, name)


def _loop(group: Group, name: str) -> Markup:
    """From the end of an iteration to the next one's beginning."""
    if group.when != "iteration" or group.nodes[-1].step.name != "finish":
        return Markup("")
    first, last = group.nodes[0], group.nodes[-1]
    margin, y, to_y = group.x + group.width - 11, last.y + 16, first.y + 16
    path = f"M{last.x + last.width:.1f},{y:.1f}H{margin:.1f}V{to_y:.1f}H{first.x + first.width:.1f}"
    return Markup('<path class="arrow again" d="{}" marker-end="url(#{}-tip)"/>').format(path, name)


def _n(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
