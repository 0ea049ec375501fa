"""Task mappings as text drawings."""

from __future__ import annotations

from .task_mapping import MappingError, TaskMapping

MOST_TASKS = 4096


def draw(mapping: TaskMapping) -> str:
    """The grid of tasks, in each its worker, and after a dot which of the worker's tasks it is.

    A mapping of one axis is one row. Raises MappingError for more than two axes or 4096 tasks.
    """
    shape = mapping.task_shape
    if len(shape) > 2 or mapping.workers * mapping.tasks_per_worker > MOST_TASKS:
        raise MappingError(
            f"{mapping}: draws grids of one or two axes and {MOST_TASKS} tasks, not {list(shape)}."
        )
    cells = {
        task: f"{worker}.{place}" if mapping.tasks_per_worker > 1 else str(worker)
        for worker in range(mapping.workers)
        for place, task in enumerate(mapping(worker))
    }
    width = max(map(len, cells.values()))
    rows, columns = shape if len(shape) == 2 else (1, shape[0])
    lines = [
        " ".join(cells[(m, n) if len(shape) == 2 else (n,)].rjust(width) for n in range(columns))
        for m in range(rows)
    ]
    counts = f"{mapping.workers} workers, {mapping.tasks_per_worker} tasks each"
    return "\n".join([f"{mapping}: {counts}", *lines])
