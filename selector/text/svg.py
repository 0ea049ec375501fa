"""Line plots as SVG text, legible on light and dark pages."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 640, 420
LEFT, RIGHT, TOP, BOTTOM = 70, 16, 40, 54  # margins
COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#8c564b")
STYLE = (
    "text{font:12px sans-serif;fill:#222}.title{font-size:14px;font-weight:bold}"
    ".grid{stroke:#ccc;stroke-width:.6}path{fill:none;stroke-width:1.8}"
)


@dataclass(frozen=True)
class Axis:
    """Axis from `low` to `high`, logarithmic when `log`; `ticks` are labelled."""

    label: str
    low: float
    high: float
    ticks: Sequence[float]
    log: bool = False

    def share(self, value: float) -> float:
        """Relative position of a value on the axis, from 0 to 1; values beyond an end lie on it."""
        if self.log:
            place = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            place = (value - self.low) / (self.high - self.low)
        return min(max(place, 0.0), 1.0)


@dataclass(frozen=True)
class Series:
    """Named points (x, y), joined by a line or not."""

    name: str
    points: Sequence[tuple[float, float]]
    joined: bool = True


def decades(label: str, values: Sequence[float]) -> Axis:
    """Logarithmic axis over positive values, with a tick at each power of ten."""
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    high = max(high, low + 1)
    return Axis(label, 10.0**low, 10.0**high, [10.0**power for power in range(low, high + 1)], log=True)


def plot(title: str, x: Axis, y: Axis, series: Sequence[Series]) -> str:
    """SVG document of a plot with two axes and some series; equal input gives equal text."""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">',
        f"<title>{escape(title)}</title><style>{STYLE}</style>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
        f'<text class="title" x="{LEFT}" y="22">{escape(title)}</text>',
        *_grid(x, y),
    ]
    for number, one in enumerate(series):
        colour = COLOURS[number % len(COLOURS)]
        places = [(_across(x, a), _up(y, b)) for a, b in one.points]
        parts += _line(places, colour) if one.joined else _dots(places, colour)
        parts += _legend(number, one.name, colour)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _across(axis: Axis, value: float) -> float:
    return LEFT + axis.share(value) * (WIDTH - LEFT - RIGHT)


def _up(axis: Axis, value: float) -> float:
    return HEIGHT - BOTTOM - axis.share(value) * (HEIGHT - TOP - BOTTOM)


def _grid(x: Axis, y: Axis) -> list[str]:
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    parts = []
    for tick in x.ticks:
        at = f"{_across(x, tick):.1f}"
        parts.append(f'<line class="grid" x1="{at}" x2="{at}" y1="{TOP}" y2="{bottom}"/>')
        parts.append(f'<text x="{at}" y="{bottom + 18}" text-anchor="middle">{tick:g}</text>')
    for tick in y.ticks:
        at = f"{_up(y, tick):.1f}"
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{right}" y1="{at}" y2="{at}"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{at}" dy="4" text-anchor="end">{tick:g}</text>')
    middle = (TOP + bottom) / 2
    turned = f'transform="rotate(-90 18 {middle})" text-anchor="middle"'
    parts.append(
        f'<text x="{(LEFT + right) / 2}" y="{HEIGHT - 14}" text-anchor="middle">{escape(x.label)}</text>'
    )
    parts.append(f'<text x="18" y="{middle}" {turned}>{escape(y.label)}</text>')
    return parts


def _line(places: Sequence[tuple[float, float]], colour: str) -> list[str]:
    path = "L".join(f"{a:.1f} {b:.1f}" for a, b in places)
    return [f'<path d="M{path}" stroke="{colour}"/>']


def _dots(places: Sequence[tuple[float, float]], colour: str) -> list[str]:
    return [f'<circle cx="{a:.1f}" cy="{b:.1f}" r="2" fill="{colour}" opacity=".45"/>' for a, b in places]


def _legend(number: int, name: str, colour: str) -> list[str]:
    x, y = WIDTH - RIGHT - 170, HEIGHT - BOTTOM - 12 - 18 * number
    return [
        f'<rect x="{x}" y="{y - 9}" width="10" height="10" fill="{colour}"/>',
        f'<text x="{x + 16}" y="{y}">{escape(name)}</text>',
    ]
