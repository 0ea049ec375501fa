"""Task mappings: which worker computes which tasks, and in which order (Ding et al., Hidet, 2023).

A task is a point of a grid, such as the element (m, n) of a tile; a worker is a thread block, a warp or a
thread. Two mappings and their composition say the rest:

    spatial(4, 8)                # 32 workers, one task each: worker w has task (w // 8, w % 8)
    repeat(2, 4)                 # one worker, 8 tasks, one after another: (0, 0), (0, 1), ..., (1, 3)
    f * g                        # each task of f is a block of tasks that g shares out among its workers

Sizes that are known at run time alone are names, which `bind` replaces: `spatial("tiles_m", 1)`.
"""

from .drawing import draw
from .loops import Loops, loops
from .task_mapping import MappingError, TaskMapping, listed, parse, repeat, spatial

__all__ = ["Loops", "MappingError", "TaskMapping", "draw", "listed", "loops", "parse", "repeat", "spatial"]
