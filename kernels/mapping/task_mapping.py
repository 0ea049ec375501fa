"""The language: spatial, repeat, listed, and their composition."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import NamedTuple

Size = int | str  # a name stands for a size that is known at run time
Task = tuple[int, ...]


class MappingError(ValueError):
    """A mapping that does not say for each task, once, who computes it; or one beyond a limit."""


class Part(NamedTuple):
    """One factor of a composition. `order` has the axes from the slowest to the fastest."""

    kind: str  # "spatial", "repeat" or "listed"
    shape: tuple[Size, ...]
    order: tuple[int, ...]
    table: tuple[tuple[Task, ...], ...] = ()  # of a listed part: each worker's tasks, in order

    def __str__(self) -> str:
        if self.kind == "listed":
            return f"listed({_tuple_text(self.shape)}, {self.table})"
        sizes = ", ".join(repr(size) for size in self.shape)
        plain = self.order == tuple(range(len(self.shape)))
        return f"{self.kind}({sizes})" if plain else f"{self.kind}({sizes}, order={_tuple_text(self.order)})"

    @property
    def workers(self) -> int:
        """Number of workers that share the tasks."""
        if self.kind == "listed":
            return len(self.table)
        return prod(whole(self.shape)) if self.kind == "spatial" else 1

    @property
    def tasks_per_worker(self) -> int:
        """Number of tasks of each worker."""
        if self.kind == "listed":
            return len(self.table[0])
        return prod(whole(self.shape)) if self.kind == "repeat" else 1

    def tasks(self, worker: int) -> list[Task]:
        """The tasks of one worker, in the order in which it computes them."""
        if self.kind == "listed":
            return list(self.table[worker])
        if self.kind == "spatial":
            return [self._point(worker)]
        return [self._point(step) for step in range(self.tasks_per_worker)]

    def _point(self, number: int) -> Task:
        """The task with this number when they are counted in `order`."""
        point = [0] * len(self.shape)
        sizes = whole(self.shape)
        for axis in reversed(self.order):
            number, point[axis] = divmod(number, sizes[axis])
        return tuple(point)


@dataclass(frozen=True)
class TaskMapping:
    """A composition of parts, outermost first; made by `spatial`, `repeat`, `listed`, `parse` and `*`.

    Each task of the grid `task_shape` belongs to exactly one worker, once: parts have this property by
    construction and composition keeps it. Composition is associative and does not commute. A mapping
    with named sizes has neither sizes nor tasks before `bind`.
    """

    parts: tuple[Part, ...]

    def __post_init__(self) -> None:
        if not self.parts:
            raise MappingError(
                "A task mapping of no parts: expected spatial(...), repeat(...) or listed(...)."
            )
        axes = {len(part.shape) for part in self.parts}
        if len(axes) > 1:
            words = " * ".join(str(part) for part in self.parts)
            raise MappingError(
                f"{words}: the parts have {sorted(axes)} axes, expected the same number in all."
            )

    def __mul__(self, inner: TaskMapping) -> TaskMapping:
        """Each task of this mapping becomes a block of tasks, which `inner` shares out among its workers."""
        if not isinstance(inner, TaskMapping):
            return NotImplemented
        return TaskMapping(self.parts + inner.parts)

    def __str__(self) -> str:
        return " * ".join(str(part) for part in self.parts)

    def __call__(self, worker: int) -> list[Task]:
        """The tasks of one worker, in the order in which it computes them. Raises IndexError."""
        if not 0 <= worker < self.workers:
            raise IndexError(f"worker {worker} of {self}: expected 0 to {self.workers - 1}")
        tasks: list[Task] = [(0,) * len(self.parts[0].shape)]
        rest = self.workers
        for part in self.parts:
            rest //= part.workers
            own, worker = divmod(worker, rest)
            inner, sizes = part.tasks(own), whole(part.shape)
            tasks = [
                tuple(t * size + i for t, size, i in zip(task, sizes, step, strict=True))
                for task in tasks
                for step in inner
            ]
        return tasks

    @property
    def names(self) -> tuple[str, ...]:
        """The named sizes, each once, in order of appearance."""
        found = [size for part in self.parts for size in part.shape if isinstance(size, str)]
        return tuple(dict.fromkeys(found))

    @cached_property
    def task_shape(self) -> tuple[int, ...]:
        """The grid of tasks: along each axis the product over the parts."""
        columns = zip(*(whole(part.shape) for part in self.parts), strict=True)
        return tuple(prod(column) for column in columns)

    @cached_property
    def workers(self) -> int:
        """Number of workers."""
        return prod(part.workers for part in self.parts)

    @cached_property
    def tasks_per_worker(self) -> int:
        """Number of tasks of each worker: all have equally many."""
        return prod(part.tasks_per_worker for part in self.parts)

    def bind(self, **sizes: int) -> TaskMapping:
        """The mapping with these named sizes replaced by numbers."""
        unknown = sizes.keys() - set(self.names)
        if unknown:
            raise MappingError(f"{self} has no size named {sorted(unknown)}; it has {list(self.names)}.")
        bound = (
            part._replace(shape=tuple(sizes.get(size, size) if isinstance(size, str) else size
                                      for size in part.shape))
            for part in self.parts
        )  # fmt: skip
        return TaskMapping(tuple(_checked(part) for part in bound))

    def require(
        self, *, tasks: Sequence[int] | None = None, workers: int | None = None, most_tasks: int | None = None
    ) -> TaskMapping:
        """The mapping itself, if it has exactly these tasks and workers and at most `most_tasks` a worker.

        Raises MappingError with the numbers.
        """
        if tasks is not None and self.task_shape != tuple(tasks):
            raise MappingError(
                f"{self} covers {list(self.task_shape)} tasks, expected exactly {list(tasks)}: "
                f"{prod(self.task_shape)} of {prod(tasks)}."
            )
        if workers is not None and self.workers != workers:
            raise MappingError(f"{self} takes {self.workers} workers, and there are {workers}.")
        if most_tasks is not None and self.tasks_per_worker > most_tasks:
            raise MappingError(
                f"{self} gives each worker {self.tasks_per_worker} tasks, it has room for {most_tasks}."
            )
        return self


def spatial(*shape: Size, order: Sequence[int] | None = None) -> TaskMapping:
    """A mapping with one worker for each task; counted with the last axis fastest, or in `order`."""
    return _of("spatial", shape, order)


def repeat(*shape: Size, order: Sequence[int] | None = None) -> TaskMapping:
    """One worker with all tasks, one after another; with the last axis fastest, or in `order`."""
    return _of("repeat", shape, order)


def listed(shape: Sequence[int], table: Sequence[Sequence[Task]]) -> TaskMapping:
    """A mapping written out: `table[w]` has the tasks of worker w, in order.

    Raises MappingError unless all workers have equally many tasks and each task of the grid is there once.
    """
    rows = tuple(tuple(tuple(task) for task in row) for row in table)
    tasks = [task for row in rows for task in row]
    wanted = prod(shape)
    outside = [t for t in tasks if len(t) != len(shape) or any(not 0 <= i < n for i, n in zip(t, shape))]  # noqa: B905
    if outside:
        raise MappingError(f"listed: task {outside[0]} is outside of the grid {list(shape)}.")
    if len(set(tasks)) < wanted or len(tasks) > wanted:
        raise MappingError(
            f"listed: {len(tasks)} tasks, {len(set(tasks))} of them different, do not cover the {wanted} "
            f"tasks of the grid {list(shape)} exactly once."
        )
    if len({len(row) for row in rows}) != 1:
        raise MappingError(
            f"listed: workers have {sorted({len(row) for row in rows})} tasks, expected as many each."
        )
    return TaskMapping((Part("listed", tuple(shape), tuple(range(len(shape))), rows),))


def parse(text: str) -> TaskMapping:
    """The mapping that `str` wrote. Raises MappingError for anything else."""
    try:
        return _parsed(ast.parse(text, mode="eval").body)
    except (SyntaxError, ValueError, TypeError, AttributeError) as error:
        if isinstance(error, MappingError):
            raise
        raise MappingError(
            f"{text!r} is no task mapping: expected such as 'spatial(4, 8) * repeat(2, 1)'."
        ) from None


def whole(shape: Sequence[Size]) -> tuple[int, ...]:
    """The sizes, all of them numbers. Raises MappingError for named ones."""
    named = [size for size in shape if isinstance(size, str)]
    if named:
        raise MappingError(f"sizes {named} are known at run time alone: bind them to numbers first.")
    return tuple(size for size in shape if isinstance(size, int))


def _of(kind: str, shape: tuple[Size, ...], order: Sequence[int] | None) -> TaskMapping:
    return TaskMapping((_checked(Part(kind, shape, tuple(range(len(shape)) if order is None else order))),))


def _checked(part: Part) -> Part:
    if not part.shape:
        raise MappingError(f"{part.kind}() has no axes: expected sizes, such as {part.kind}(4, 8).")
    for size in part.shape:
        named = isinstance(size, str) and size.isidentifier()
        if not named and (isinstance(size, bool) or not isinstance(size, int) or size < 1):
            raise MappingError(
                f"{part.kind}{part.shape}: size {size!r}, expected a whole number from 1 or a name."
            )
    if sorted(part.order) != list(range(len(part.shape))):
        raise MappingError(f"{part.kind}{part.shape}: order {part.order}, expected each axis once.")
    return part


def _parsed(node: ast.expr) -> TaskMapping:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        return _parsed(node.left) * _parsed(node.right)
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)):
        raise ValueError(ast.dump(node))
    known: dict[str, Callable[..., TaskMapping]] = {"spatial": spatial, "repeat": repeat, "listed": listed}
    make = known.get(node.func.id)
    if make is None:
        raise ValueError(node.func.id)
    arguments = [ast.literal_eval(argument) for argument in node.args]
    named = {str(word.arg): ast.literal_eval(word.value) for word in node.keywords}
    return make(*arguments, **named)


def _tuple_text(values: Sequence[Size]) -> str:
    return "(" + ", ".join(map(repr, values)) + ("," if len(values) == 1 else "") + ")"
