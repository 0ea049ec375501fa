"""Calls from a new question to its choice: python -m benchmarks.selection.choice_profile [lstm hidden=256]

Counts the calls of our own functions while `Selector.choose` answers about an H200 from the measurements that
come with this package, after another question has loaded them. `--tree` prints every call, indented by its
depth. Needs no GPU.
"""

from __future__ import annotations

import argparse
import sys
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any

from selector import Selector
from selector.selection.shipped import unpacked
from selector.workloads.sampling import typed

ROOT = Path(__file__).parents[2]
DEVICE = "h200"


def main() -> None:
    """Profile and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("operator", nargs="?", default="lstm")
    parser.add_argument(
        "hyperparameters", nargs="*", default=["hidden=256", "batch=32"], metavar="name=value"
    )
    parser.add_argument("--tree", action="store_true", help="every call, indented by its depth")
    given = parser.parse_args()
    asked = typed(given.operator, dict(word.split("=", 1) for word in given.hyperparameters))
    selector = Selector(unpacked(), shipped=False)
    selector.choose(given.operator, device=DEVICE, **{**asked, "batch": int(asked.get("batch", 1)) + 3})
    calls = profiled(lambda: selector.choose(given.operator, device=DEVICE, **asked))
    if given.tree:
        for depth, module, function in calls:
            print(f"{'  ' * depth}{module}:{function}")
    for words, mine in (
        ("in all", calls),
        ("in selector/", [call for call in calls if call[1].startswith("selector/")]),
    ):
        modules = [module for _, module, _ in mine]
        changes = sum(one != other for one, other in pairwise(modules))
        print(
            f"{words}: {len(mine)} calls of {len({call[1:] for call in mine})} functions in "
            f"{len(set(modules))} modules, {changes} changes of module"
        )


def profiled(task: Any) -> list[tuple[int, str, str]]:
    """The calls of our functions by a task, as depth, module and function, in their order."""
    calls: list[tuple[int, str, str]] = []
    depth = 0

    def note(frame: FrameType, event: str, _: object) -> None:
        nonlocal depth
        file = frame.f_code.co_filename
        if not file.startswith(str(ROOT)) or "/.venv/" in file or file == __file__:
            return
        if event == "call":
            calls.append((depth, str(Path(file).relative_to(ROOT)), frame.f_code.co_name))
            depth += 1
        elif event == "return":
            depth -= 1

    sys.setprofile(note)
    try:
        task()
    finally:
        sys.setprofile(None)
    return calls


if __name__ == "__main__":
    main()
