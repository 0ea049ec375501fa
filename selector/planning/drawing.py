"""The frontier as a picture: SVG, from the standard library alone."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from xml.etree import ElementTree as Xml

from ..text.units import format_bytes
from .pareto import Point

WIDTH, HEIGHT = 720, 440
LEFT, RIGHT, TOP, BOTTOM = 80, 24, 48, 56
COLOURS = {"planned": "#0b6e4f", "the framework's own": "#9a3412"}
TICKS = 5


def draw(points: Sequence[Point], title: str) -> str:
    """Samples per second against the memory limit, on a logarithmic axis, planned and by default."""
    attributes = {"viewBox": f"0 0 {WIDTH} {HEIGHT}", "font-family": "sans-serif", "font-size": "13"}
    picture = Xml.Element("svg", {"xmlns": "http://www.w3.org/2000/svg", "role": "img", **attributes})
    Xml.SubElement(picture, "title").text = title
    Xml.SubElement(picture, "rect", width=str(WIDTH), height=str(HEIGHT), fill="white")
    _text(picture, WIDTH / 2, 24, title, anchor="middle", weight="bold")
    axes = _Axes(points)
    axes.draw(picture)
    curves = {
        "planned": [(point.limit_bytes, point.samples_per_s) for point in points],
        "the framework's own": [
            (point.limit_bytes, point.default_samples_per_s)
            for point in points
            if point.default_samples_per_s
        ],
    }
    for index, (name, curve) in enumerate(curves.items()):
        at = [(axes.x(size), axes.y(rate)) for size, rate in curve]
        _curve(picture, at, COLOURS[name])
        _text(picture, LEFT + 12, TOP + 16 + 18 * index, name, colour=COLOURS[name])
    return Xml.tostring(picture, encoding="unicode") + "\n"


class _Axes:
    """From bytes and samples per second to places in the picture."""

    def __init__(self, points: Sequence[Point]) -> None:
        self._low = math.log2(min(point.limit_bytes for point in points))
        self._high = max(math.log2(max(point.limit_bytes for point in points)), self._low + 1)
        self._limits = [point.limit_bytes for point in points]
        self._top = 1.1 * max(point.samples_per_s for point in points)

    def x(self, size: float) -> float:
        """Horizontal position of a number of bytes."""
        share = (math.log2(size) - self._low) / (self._high - self._low)
        return LEFT + share * (WIDTH - LEFT - RIGHT)

    def y(self, rate: float) -> float:
        """Vertical position of a throughput."""
        return HEIGHT - BOTTOM - rate / self._top * (HEIGHT - TOP - BOTTOM)

    def draw(self, picture: Xml.Element) -> None:
        """Lines and labels."""
        for index in range(TICKS + 1):
            rate = self._top * index / TICKS
            y = f"{self.y(rate):.1f}"
            Xml.SubElement(picture, "line", x1=str(LEFT), x2=str(WIDTH - RIGHT), y1=y, y2=y, stroke="#ddd")
            _text(picture, LEFT - 8, self.y(rate) + 4, f"{rate:.4g}", anchor="end")
        for limit in self._limits[:: max(1, len(self._limits) // 7)]:
            _text(picture, self.x(limit), HEIGHT - BOTTOM + 20, format_bytes(limit), anchor="middle")
        _text(picture, (LEFT + WIDTH) / 2, HEIGHT - 12, "memory limit", anchor="middle")
        _text(picture, LEFT - 60, TOP - 14, "samples/s")


def _curve(picture: Xml.Element, at: Iterable[tuple[float, float]], colour: str) -> None:
    places = [(f"{x:.1f}", f"{y:.1f}") for x, y in at]
    corners = " ".join(f"{x},{y}" for x, y in places)
    line = {"points": corners, "fill": "none", "stroke": colour, "stroke-width": "2"}
    Xml.SubElement(picture, "polyline", line)
    for x, y in places:
        Xml.SubElement(picture, "circle", cx=x, cy=y, r="3.5", fill=colour)


def _text(
    picture: Xml.Element,
    x: float,
    y: float,
    words: str,
    *,
    anchor: str = "start",
    weight: str = "normal",
    colour: str = "#222",
) -> None:
    place = {"x": f"{x:.1f}", "y": f"{y:.1f}"}
    style = {"text-anchor": anchor, "font-weight": weight, "fill": colour}
    Xml.SubElement(picture, "text", {**place, **style}).text = words
