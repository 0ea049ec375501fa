"""Code from a task mapping: loops of one worker and the coordinates of the task in the innermost one."""

from __future__ import annotations

from dataclasses import dataclass

from .task_mapping import MappingError, Part, Size, TaskMapping


@dataclass(frozen=True)
class Loops:
    """Loops of one worker as text: the same expressions are valid in Python, Triton and C.

    `loops` are (variable, extent), outermost first; `coordinates` the task's index along each axis, from
    the worker's number and these variables.
    """

    loops: tuple[tuple[str, str], ...]
    coordinates: tuple[str, ...]


def loops(mapping: TaskMapping, worker: str, *, variable: str = "step", divide: str = "//") -> Loops:
    """The loops of the worker whose number the expression `worker` has.

    `divide` is the language's whole-number division: "//" in Python and Triton, "/" in C. Loop variables
    are named `variable` with a number.
    """
    found: list[tuple[str, str]] = []
    sums: list[list[str]] = [[] for _ in mapping.parts[0].shape]
    for place, part in enumerate(mapping.parts):
        if part.kind == "listed":
            raise MappingError(f"{part}: a listed mapping has no loops, only a table.")
        inner = mapping.parts[place + 1 :]
        if part.kind == "spatial":
            outermost = not any(p.kind == "spatial" for p in mapping.parts[:place])
            number = _divided(
                worker, _product([s for p in inner if p.kind == "spatial" for s in p.shape]), divide
            )
            points = _points(part, number, outermost, divide)
        else:
            points = ["0"] * len(part.shape)
            for axis in part.order:
                if part.shape[axis] != 1:
                    name = f"{variable}{len(found)}"
                    found.append((name, str(part.shape[axis])))
                    points[axis] = name
        for axis, point in enumerate(points):
            block = _product([p.shape[axis] for p in inner])
            if point != "0":
                sums[axis].append(point if block == "1" else f"{_grouped(point)} * {_grouped(block)}")
    return Loops(tuple(found), tuple(" + ".join(terms) or "0" for terms in sums))


def _points(part: Part, number: str, outermost: bool, divide: str) -> list[str]:
    """The index along each axis of a spatial part's worker."""
    points = ["0"] * len(part.shape)
    wide = [axis for axis in part.order if part.shape[axis] != 1]
    for place, axis in enumerate(wide):
        point = _divided(number, _product([part.shape[faster] for faster in wide[place + 1 :]]), divide)
        # nothing counts further than the slowest axis of the outermost part
        points[axis] = point if outermost and place == 0 else f"{_grouped(point)} % {part.shape[axis]}"
    return points


def _divided(number: str, by: str, divide: str) -> str:
    return number if by == "1" else f"{_grouped(number)} {divide} {_grouped(by)}"


def _product(sizes: list[Size]) -> str:
    """Numbers multiplied, names kept: `8 * tiles_n`."""
    number, names = 1, []
    for size in sizes:
        if isinstance(size, str):
            names.append(size)
        else:
            number *= size
    return " * ".join(([str(number)] if number != 1 or not names else []) + names)


def _grouped(expression: str) -> str:
    return f"({expression})" if " " in expression else expression
