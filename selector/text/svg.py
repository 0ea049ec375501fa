"""Line plots as SVG text: documents of their own, and elements that a page's style sheet colours."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from html import escape

COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#8c564b")
MOST_TICKS = 7
STYLE = (
    "text{font:12px sans-serif;fill:#222}.title{font-size:14px;font-weight:bold}"
    ".grid{stroke:#ccc;stroke-width:.6}path{fill:none;stroke-width:1.8}"
)
MARKS = (  # around (0, 0), so that lines can be told apart without colours
    "M-3.5 0a3.5 3.5 0 1 0 7 0a3.5 3.5 0 1 0-7 0z",
    "M-3-3h6v6h-6z",
    "M0-4.5l4.5 7.5h-9z",
    "M0-4.8l4.8 4.8l-4.8 4.8l-4.8-4.8z",
    "M0 4.5l4.5-7.5h-9z",
    "M-1.4-4h2.8v2.6h2.6v2.8h-2.6v2.6h-2.8v-2.6h-2.6v-2.8h2.6z",
)


@dataclass(frozen=True)
class Axis:
    """Axis from `low` to `high`, logarithmic when `log`; `ticks` are labelled, by `texts` where given."""

    label: str
    low: float
    high: float
    ticks: Sequence[float]
    log: bool = False
    texts: Sequence[str] = ()

    def share(self, value: float) -> float:
        """Relative position of a value on the axis, from 0 to 1; values beyond an end lie on it."""
        if self.log:
            place = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            place = (value - self.low) / (self.high - self.low)
        return min(max(place, 0.0), 1.0)


@dataclass(frozen=True)
class Series:
    """Named points (x, y), joined by a line or not; on a `panel` a line breaks where y is not a number.

    `hollow` are the indexes of points whose marks a `panel` leaves unfilled.
    """

    name: str
    points: Sequence[tuple[float, float]]
    joined: bool = True
    hollow: Collection[int] = ()


@dataclass(frozen=True)
class Frame:
    """Size of a plot, and the margins around its axes."""

    width: int
    height: int
    left: int
    right: int
    top: int
    bottom: int

    def across(self, axis: Axis, value: float) -> float:
        """Place of a value on the horizontal axis."""
        return self.left + axis.share(value) * (self.width - self.left - self.right)

    def up(self, axis: Axis, value: float) -> float:
        """Place of a value on the vertical axis."""
        return self.height - self.bottom - axis.share(value) * (self.height - self.top - self.bottom)


DOCUMENT = Frame(640, 420, left=70, right=16, top=40, bottom=54)
PANEL = Frame(400, 284, left=66, right=16, top=12, bottom=50)  # legible on a phone


def decades(label: str, values: Sequence[float]) -> Axis:
    """Logarithmic axis over positive values, with a tick at each power of ten."""
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    high = max(high, low + 1)
    return Axis(label, 10.0**low, 10.0**high, [10.0**power for power in range(low, high + 1)], log=True)


def fitted(label: str, values: Sequence[float]) -> Axis:
    """Logarithmic axis around positive values, with ticks at 1, 2 and 5 times powers of ten, or at these."""
    low, high = min(values) / 1.15, max(values) * 1.15
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    steps = [digit * 10.0**power for power in powers for digit in (1, 2, 5)]
    inside = [step for step in steps if low <= step <= high]
    if len(inside) < 2:
        low, high = max(step for step in steps if step <= low), min(step for step in steps if step >= high)
        inside = [step for step in steps if low <= step <= high]
    if len(inside) > MOST_TICKS:
        inside = [step for step in inside if step in {10.0**power for power in powers}]
    return Axis(label, low, high, inside, log=True)


def plot(title: str, x: Axis, y: Axis, series: Sequence[Series]) -> str:
    """SVG document of a plot with two axes and some series; equal input gives equal text."""
    width, height = DOCUMENT.width, DOCUMENT.height
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">',
        f"<title>{escape(title)}</title><style>{STYLE}</style>",
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
        f'<text class="title" x="{DOCUMENT.left}" y="22">{escape(title)}</text>',
        *_grid(DOCUMENT, x, y),
    ]
    for number, one in enumerate(series):
        colour = COLOURS[number % len(COLOURS)]
        places = [(DOCUMENT.across(x, a), DOCUMENT.up(y, b)) for a, b in one.points]
        parts += _line(places, colour) if one.joined else _dots(places, colour)
        parts += _legend(number, one.name, colour)
    return "\n".join([*parts, "</svg>"]) + "\n"


def panel(
    name: str, title: str, description: str, axes: tuple[Axis, Axis], series: Sequence[Series], *, at: float
) -> str:
    """SVG element of a plot for an HTML page, which colours it by its classes: `s0`, `s1` and so on a line.

    Marks differ by line too. `name` begins its ids; `at` is where the horizontal axis has a line of its own.
    """
    x, y = axes
    here = f"{PANEL.across(x, at):.1f}"
    parts = [
        f'<svg class="plot" viewBox="0 0 {PANEL.width} {PANEL.height}" role="img" '
        f'aria-labelledby="{name}-title" aria-describedby="{name}-desc">',
        f'<title id="{name}-title">{escape(title)}</title>',
        f'<desc id="{name}-desc">{escape(description)}</desc>',
        *_grid(PANEL, x, y),
        f'<line class="at" x1="{here}" x2="{here}" y1="{PANEL.top}" y2="{PANEL.height - PANEL.bottom}"/>',
    ]
    for number, one in enumerate(series):
        parts += [f'<g class="{look(number)}">', *_marked(one, MARKS[number % len(MARKS)], x, y), "</g>"]
    return "\n".join([*parts, "</svg>"])


def key(number: int) -> str:
    """SVG element of a short piece of a panel's line with its mark, for a legend in HTML."""
    mark = f'<path class="mark" transform="translate(14 7)" d="{MARKS[number % len(MARKS)]}"/>'
    line = '<path class="line" d="M1 7L27 7"/>'
    drawn = f'<g class="{look(number)}">{line}{mark}</g>'
    return f'<svg class="key" viewBox="0 0 28 14" aria-hidden="true">{drawn}</svg>'


def look(number: int) -> str:
    """Class of a panel's line."""
    return f"s{number % len(MARKS)}"


def _marked(one: Series, mark: str, x: Axis, y: Axis) -> Iterator[str]:
    """The line, broken where there is no y, and the marks on it."""
    path, pen = "", "M"
    for a, b in one.points:
        if math.isnan(b):
            pen = "M"
            continue
        path += f"{pen}{PANEL.across(x, a):.1f} {PANEL.up(y, b):.1f}"
        pen = "L"
    yield f'<path class="line" d="{path}"/>'
    for index, (a, b) in enumerate(one.points):
        if not math.isnan(b):
            kind = "hollow mark" if index in one.hollow else "mark"
            place = f"translate({PANEL.across(x, a):.1f} {PANEL.up(y, b):.1f})"
            yield f'<path class="{kind}" transform="{place}" d="{mark}"/>'


def _grid(frame: Frame, x: Axis, y: Axis) -> list[str]:
    left, right, top, bottom = frame.left, frame.width - frame.right, frame.top, frame.height - frame.bottom
    parts = []
    for tick, text in _labelled(x):
        at = f"{frame.across(x, tick):.1f}"
        parts.append(f'<line class="grid" x1="{at}" x2="{at}" y1="{top}" y2="{bottom}"/>')
        parts.append(f'<text x="{at}" y="{bottom + 18}" text-anchor="middle">{text}</text>')
    for tick, text in _labelled(y):
        at = f"{frame.up(y, tick):.1f}"
        parts.append(f'<line class="grid" x1="{left}" x2="{right}" y1="{at}" y2="{at}"/>')
        parts.append(f'<text x="{left - 8}" y="{at}" dy="4" text-anchor="end">{text}</text>')
    middle, below = (top + bottom) / 2, frame.height - 14
    turned = f'transform="rotate(-90 18 {middle})" text-anchor="middle"'
    parts.append(f'<text x="{(left + right) / 2}" y="{below}" text-anchor="middle">{escape(x.label)}</text>')
    parts.append(f'<text x="18" y="{middle}" {turned}>{escape(y.label)}</text>')
    return parts


def _labelled(axis: Axis) -> Iterator[tuple[float, str]]:
    texts = axis.texts or [f"{tick:g}" for tick in axis.ticks]
    return zip(axis.ticks, map(escape, texts), strict=True)


def _line(places: Sequence[tuple[float, float]], colour: str) -> list[str]:
    path = "L".join(f"{a:.1f} {b:.1f}" for a, b in places)
    return [f'<path d="M{path}" stroke="{colour}"/>']


def _dots(places: Sequence[tuple[float, float]], colour: str) -> list[str]:
    return [f'<circle cx="{a:.1f}" cy="{b:.1f}" r="2" fill="{colour}" opacity=".45"/>' for a, b in places]


def _legend(number: int, name: str, colour: str) -> list[str]:
    x = DOCUMENT.width - DOCUMENT.right - 170
    y = DOCUMENT.height - DOCUMENT.bottom - 12 - 18 * number
    return [
        f'<rect x="{x}" y="{y - 9}" width="10" height="10" fill="{colour}"/>',
        f'<text x="{x + 16}" y="{y}">{escape(name)}</text>',
    ]
