"""A picture of a workflow, drawn by the server: plain SVG, coloured by the admin's style sheet.

Steps follow one another in columns; parallel nodes are in rows. Bounded: of many parallel nodes
only the first are drawn, and the rest are counted.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.text import Truncator
from django.utils.translation import gettext as _

from ..http.workflow_document import STEP_STATE, Tree
from ..models import Job, Workflow, WorkflowType
from ..spec.lifecycle import State
from ..store import clock
from . import display
from .words import word

WIDTH, HEIGHT, GAP = 168, 60, 28
ROWS, COLUMNS = 12, 60
DRAWN = ROWS * COLUMNS
"""Most nodes of a workflow that are drawn, from its first on."""
LETTERS = 22


@dataclass
class Box:
    """A node, or a placeholder for many."""

    column: int
    row: int
    title: str
    state: str
    url: str = ""
    note: str = ""
    time: str = ""
    """How long it waits, runs, or took."""


@dataclass
class Picture:
    boxes: list[Box] = field(default_factory=list)
    lines: list[tuple[Box, Box]] = field(default_factory=list)
    undone: list[tuple[Box, Box]] = field(default_factory=list)
    """A step, and below it the job that undoes it."""


@dataclass
class Part:
    """A piece of the picture: where lines enter and leave it, and how much room it takes."""

    entries: list[Box]
    exits: list[Box]
    columns: int
    rows: int


class Drawing:
    """Lays out a workflow and everything inside it."""

    def __init__(self, tree: Tree, site: str) -> None:
        self.tree = tree
        self.site = site
        self.picture = Picture()
        self.whole = self._part(tree.root, 0, 0)

    def _part(self, workflow: Workflow, column: int, row: int) -> Part:
        if workflow.is_sequence:
            return self._chain(workflow, column, row)
        if workflow.type == WorkflowType.DAG:
            return self._graph(workflow, column, row)
        part = self._side_by_side(workflow, column, row)
        return self._with_callbacks(workflow, part, column, row)

    def _node(self, workflow: Workflow, index: int, column: int, row: int) -> Part:
        node = self.tree.node(workflow, index)
        if isinstance(node, Workflow):
            return self._part(node, column, row)
        if node is None:
            step = workflow.steps[index] if index < len(workflow.steps) else {}
            state = "cancelled" if workflow.is_decided else "waiting"
            return self._box(Box(column, row, str(step.get("type", "")), state))
        return self._box(self._job(node, column, row))

    def _job(self, job: Job, column: int, row: int, note: str = "") -> Box:
        url = display.admin_url(self.site, "ojs_jobs_job", "change", job.pk)
        progress = self.tree.progress(job)
        if progress is not None and job.finished_at is None:
            note = f"{progress:.0%}"
        state = STEP_STATE.get(job.state, str(job.state))  # type: ignore[call-overload]
        return Box(column, row, job.type, state, url, note, _time_of(job))

    def _box(self, box: Box) -> Part:
        self.picture.boxes.append(box)
        return Part([box], [box], 1, 1)

    def _connect(self, before: Iterable[Box], after: Iterable[Box]) -> None:
        self.picture.lines += [(one, other) for one in before for other in after]

    def _chain(self, workflow: Workflow, column: int, row: int) -> Part:
        parts: list[Part] = []
        width = 0
        for index in range(min(workflow.size, COLUMNS)):
            part = self._node(workflow, index, column + width, row)
            if parts:
                self._connect(parts[-1].exits, part.entries)
            parts.append(part)
            self._add_compensation(workflow, index, part, column + width, row)
            width += part.columns
        if workflow.size > COLUMNS:
            rest = self._more(workflow.size - COLUMNS, column + width, row)
            self._connect(parts[-1].exits, rest.entries)
            parts.append(rest)
            width += 1
        return Part(parts[0].entries, parts[-1].exits, width, max(part.rows for part in parts))

    def _add_compensation(
        self, workflow: Workflow, index: int, part: Part, column: int, row: int
    ) -> None:
        """Draw the job that undoes a step below the step."""
        undo = (workflow.compensations or {}).get(str(index))
        if undo is None:
            return
        job = self.tree.called(workflow, str(index))
        at = (column, row + part.rows)
        if job is not None:
            box = self._job(job, *at)
        else:
            box = Box(*at, undo["type"], "not_fired" if workflow.is_terminal else "waiting")
        box.note = box.note or _("undoes it")
        self.picture.boxes.append(box)
        self.picture.undone.append((part.entries[-1], box))
        part.rows += 1

    def _more(self, count: int, column: int, row: int) -> Part:
        return self._box(Box(column, row, _("and %(count)d more") % {"count": count}, "more"))

    def _side_by_side(self, workflow: Workflow, column: int, row: int) -> Part:
        entries: list[Box] = []
        exits: list[Box] = []
        width = height = 0
        for index in range(min(workflow.size, ROWS)):
            part = self._node(workflow, index, column, row + height)
            entries += part.entries
            exits += part.exits
            width, height = max(width, part.columns), height + part.rows
        if workflow.size > ROWS:
            rest = self._more(workflow.size - ROWS, column, row + height)
            entries += rest.entries
            exits += rest.exits
            height += 1
        return Part(entries, exits, width, height)

    def _with_callbacks(self, workflow: Workflow, part: Part, column: int, row: int) -> Part:
        if not workflow.callbacks:
            return part
        boxes = []
        for place, (name, callback) in enumerate(workflow.callbacks.items()):
            job = self.tree.called(workflow, name)
            at = (column + part.columns, row + place)
            if job is not None:
                box = self._job(job, *at, note=name)
            else:
                box = Box(*at, callback["type"], "waiting", note=name)
            boxes += self._box(box).exits
        self._connect(part.exits, boxes)
        return Part(part.entries, boxes, part.columns + 1, max(part.rows, len(boxes)))

    def _graph(self, workflow: Workflow, column: int, row: int) -> Part:
        """Place each step one column after the last of its predecessors."""
        steps = workflow.steps[:DRAWN]
        index_of = {step["id"]: index for index, step in enumerate(steps)}
        level = _levels(steps, index_of)
        filled: dict[int, int] = {}
        boxes: dict[int, Box] = {}
        for index in sorted(range(len(steps)), key=lambda index: level[index]):
            at = level[index]
            if filled.get(at, 0) >= ROWS * 2:
                continue
            part = self._node(workflow, index, column + at, row + filled.get(at, 0))
            boxes[index] = part.exits[0]
            boxes[index].note = boxes[index].note or steps[index]["id"]
            filled[at] = filled.get(at, 0) + 1
        for index, box in boxes.items():
            before = (index_of.get(name) for name in steps[index]["depends_on"])
            self._connect([boxes[other] for other in before if other in boxes], [box])
        every = list(boxes.values())
        return Part(every, every, max(filled) + 1, max(filled.values()))


def _time_of(job: Job) -> str:
    """How long a job took, runs or waits, and which attempt it is if not the first."""
    parts = []
    if job.finished_at is not None and job.started_at is not None:
        span = display.lasted(job.finished_at - job.started_at)
        parts.append(_("took %(span)s") % {"span": span})
    elif job.state == State.ACTIVE and job.started_at is not None:
        span = display.lasted(clock.now() - job.started_at)
        parts.append(_("runs for %(span)s") % {"span": span})
    elif job.state == State.AVAILABLE and job.enqueued_at is not None:
        span = display.lasted(clock.now() - job.enqueued_at)
        parts.append(_("waits for %(span)s") % {"span": span})
    if job.attempt > 1:
        parts.append(_("attempt %(number)d") % {"number": job.attempt})
    return ", ".join(parts)


def _levels(steps: list[Any], index_of: dict[str, int]) -> list[int]:
    level = [0] * len(steps)
    # A graph without cycles settles in as many rounds as its longest path.
    for _round in range(len(steps)):
        changed = False
        for index, step in enumerate(steps):
            before = [index_of[name] for name in step["depends_on"] if name in index_of]
            at = max((level[other] + 1 for other in before), default=0)
            changed, level[index] = changed or at != level[index], at
        if not changed:
            break
    return level


def draw(tree: Tree, site: str) -> SafeString:
    """Return the picture as SVG; every box is a link to its job."""
    drawing = Drawing(tree, site)
    boxes, lines = drawing.picture.boxes, drawing.picture.lines
    columns = max(box.column for box in boxes) + 1
    rows = max(box.row for box in boxes) + 1
    width, height = columns * (WIDTH + GAP) + GAP, rows * (HEIGHT + GAP // 2) + GAP
    return format_html(
        '<div class="ojs-graph"><svg viewBox="0 0 {} {}" width="{}" height="{}" role="group" '
        'aria-label="{}">{}{}{}</svg></div>',
        width,
        height,
        width,
        height,
        _("The jobs of this workflow and what follows what"),
        format_html_join(
            "", '<path class="ojs-edge" d="{}"/>', ((_path(*line),) for line in lines)
        ),
        format_html_join(
            "",
            '<path class="ojs-edge ojs-edge-back" d="{}"/>',
            ((_down(*line),) for line in drawing.picture.undone),
        ),
        format_html_join("", "{}", ((_drawn(box),) for box in boxes)),
    )


def _corner(box: Box) -> tuple[int, int]:
    return GAP + box.column * (WIDTH + GAP), GAP // 2 + box.row * (HEIGHT + GAP // 2)


def _path(one: Box, other: Box) -> str:
    (x1, y1), (x2, y2) = _corner(one), _corner(other)
    x1, y1, y2 = x1 + WIDTH, y1 + HEIGHT // 2, y2 + HEIGHT // 2
    middle = (x1 + x2) // 2
    return f"M{x1} {y1} C{middle} {y1} {middle} {y2} {x2} {y2}"


def _down(one: Box, other: Box) -> str:
    (x, y1), (_x, y2) = _corner(one), _corner(other)
    return f"M{x + WIDTH // 2} {y1 + HEIGHT} V{y2}"


def _drawn(box: Box) -> SafeString:
    x, y = _corner(box)
    below = " · ".join(part for part in (box.note, word(box.state)) if part and part != "more")
    shape = format_html(
        '<g class="ojs-node ojs-node-{}"><title>{}</title>'
        '<rect x="{}" y="{}" width="{}" height="{}" rx="6"/>'
        '<text x="{}" y="{}">{}</text><text class="ojs-below" x="{}" y="{}">{}</text>'
        '<text class="ojs-below" x="{}" y="{}">{}</text></g>',
        box.state,
        f"{box.title} {below}",
        x,
        y,
        WIDTH,
        HEIGHT,
        x + 10,
        y + 19,
        Truncator(box.title).chars(LETTERS),
        x + 10,
        y + 35,
        Truncator(below).chars(LETTERS + 4),
        x + 10,
        y + 50,
        Truncator(box.time).chars(LETTERS + 4),
    )
    return format_html('<a href="{}">{}</a>', box.url, shape) if box.url else shape
