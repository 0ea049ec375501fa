"""Golden answers: what is chosen on the shipped measurements before a change of the code, and after it.

    python -m tests.selector.golden make [operator ...] [models]   before: into build/golden.json.xz, minutes
    python -m tests.selector.golden check [operator ...] [models]  after, on the same machine

For each operator and shipped device 2,000 random questions: the digest of every hundred decisions (choice,
source, runner-up, exclusions), the chosen times of all, and 50 answers whole. Decisions must be equal, and
figures within 1e-9 of each other. Of each set 300 are asked again as one batch, which must give the same.
The part `models` has plans and frontiers of all published models, what their layers get on a GPU, and reports
of `optimize` (`tests/selector/golden_models.py`).
Answers of one machine are no measure for another: networks multiply in float32, which processors do in other
orders, and where two implementations are as fast as each other, that decides.
"""

from __future__ import annotations

import hashlib
import json
import lzma
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from math import isclose
from pathlib import Path
from typing import Any

from kernel_selector.db import records
from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import SelectorError
from selector import Selector
from selector.selection.choice import Choice
from selector.selection.query import Query
from selector.selection.shipped import CPU, unpacked
from selector.workloads.sampling import random_problems
from tests.selector import golden_models

FILE = Path(__file__).parents[2] / "build" / "golden.json.xz"
DEVICES = {"h200": "cuda", CPU: "cpu"}  # of the shipped measurements: name and kind
COUNT, WHOLE, BATCH, TOGETHER, SEED = 2000, 50, 300, 100, 36
CLOSE = 1e-9
FIGURES = ("time_ms", "memory_bytes", "margin")
INTERVALS = ("time_interval_ms", "memory_interval_bytes")

MODELS = "models"

Golden = dict[str, Any]
Compare = Callable[[Golden], list[str]]


def questions(selector: Selector, operator: str, device: str) -> list[Query]:
    """Random problems of an operator for a device; each seventh asks for little memory, each eleventh for a
    limit of it. The device is the measured one: by name it would be this machine, where that is alike.
    """
    with selector.database.read() as connection:
        measured = next(one for one in records.devices(connection) if device in one.key)
    found = []
    for number, problem in enumerate(random_problems(operator, DEVICES[device], count=COUNT, seed=SEED)):
        more: dict[str, Any] = {"objective": "memory"} if number % 7 == 3 else {}
        more |= {"memory": "64MiB"} if number % 11 == 5 else {}
        found.append(Query(operator=operator, hyperparameters=problem.as_dict, device=measured, **more))
    return found


def asked(selector: Selector, query: Query) -> Golden:
    """The answer to a question, or the error, as plain data without what names the database's state."""
    try:
        return plain(selector.answer(query))
    except SelectorError as error:
        return {"error": type(error).__name__}


def plain(choice: Choice) -> Golden:
    """An answer's decision and figures."""
    data = choice.to_dict()
    kept = ("implementation", "source", "runner_up", *FIGURES, *INTERVALS)
    columns = ("name", "source", "excluded", *(name for name in (*FIGURES, *INTERVALS) if name != "margin"))
    rows = sorted(([one[name] for name in columns] for one in data["candidates"]), key=lambda row: row[0])
    return {name: data[name] for name in kept} | {"candidates": rows}


def decision(answer: Golden) -> Golden:
    """What must stay equal to the letter."""
    if "error" in answer:
        return answer
    named = {name: answer[name] for name in ("implementation", "source", "runner_up")}
    return named | {"candidates": [row[:3] for row in answer["candidates"]]}


def digests(answers: Sequence[Golden]) -> list[str]:
    """Of the decisions, a hundred together."""
    texts = [json.dumps(decision(one), sort_keys=True) for one in answers]
    parts = [texts[start : start + TOGETHER] for start in range(0, len(texts), TOGETHER)]
    return [hashlib.sha256("\n".join(part).encode()).hexdigest()[:12] for part in parts]


def made(selector: Selector, operator: str, device: str) -> Golden:
    """The golden answers of an operator on a device. Raises AssertionError for a batch that differs."""
    queries = questions(selector, operator, device)
    answers = [asked(selector, query) for query in queries]
    together = selector.choose_each(queries[-BATCH:])
    batch = [
        {"error": type(one).__name__} if isinstance(one, SelectorError) else plain(one) for one in together
    ]
    unlike = [
        places for one, two in zip(batch, answers[-BATCH:], strict=True) if (places := differences(one, two))
    ]
    assert not unlike, (operator, device, unlike[0])
    times = [one.get("time_ms") for one in answers]
    return {"digests": digests(answers), "times_ms": times, "whole": answers[:WHOLE]}


def differences(one: Any, two: Any, place: str = "") -> list[str]:
    """Where two answers differ; numbers only by more than CLOSE."""
    if isinstance(one, dict) and isinstance(two, dict) and one.keys() == two.keys():
        return [found for name in one for found in differences(one[name], two[name], f"{place}.{name}")]
    if isinstance(one, (list, tuple)) and isinstance(two, (list, tuple)) and len(one) == len(two):
        pairs = enumerate(zip(one, two, strict=True))
        return [found for index, pair in pairs for found in differences(*pair, f"{place}[{index}]")]
    numbers = isinstance(one, (int, float)) and isinstance(two, (int, float))
    if one == two or (numbers and isclose(one, two, rel_tol=CLOSE)):
        return []
    return [f"{place}: {one} instead of {two}"]


def compared(selector: Selector, operator: str, device: str, golden: Golden) -> list[str]:
    """What differs from the golden answers of an operator on a device."""
    answers = [asked(selector, query) for query in questions(selector, operator, device)]
    found = differences(answers[:WHOLE], golden["whole"], f"{operator} on {device}: ")
    times = [one.get("time_ms") for one in answers]
    found += differences(times, golden["times_ms"], f"{operator} on {device}: times_ms")
    for number, (one, two) in enumerate(zip(digests(answers), golden["digests"], strict=True)):
        if one != two:
            found.append(
                f"{operator} on {device}: decisions {number * TOGETHER} to {(number + 1) * TOGETHER}"
            )
    return found


def read() -> Golden:
    """All golden answers, by operator and device."""
    found: Golden = json.loads(lzma.decompress(FILE.read_bytes()))
    return found


def opened() -> Selector:
    """A selector over the shipped measurements."""
    return Selector(unpacked(), frozen=True, shipped=False)


def cases(names: Sequence[str] = ()) -> Iterator[tuple[str, str]]:
    """Operators and devices."""
    return ((operator, device) for operator in names or registry.operators() for device in DEVICES)


def parts(selector: Selector, names: Sequence[str]) -> Iterator[tuple[str, Callable[[], Golden], Compare]]:
    """The key of each part, what gives it anew, and how it differs from the golden one."""
    for operator, device in cases([name for name in names if name != MODELS]) if names != [MODELS] else ():
        yield (
            f"{operator} {device}",
            partial(made, selector, operator, device),
            partial(compared, selector, operator, device),
        )
    for key, ask in golden_models.cases(selector) if not names or MODELS in names else ():
        yield key, ask, partial(_differing, key, ask)


def _differing(key: str, ask: Callable[[], Golden], golden: Golden) -> list[str]:
    """What differs from one golden answer about models."""
    return differences(json.loads(json.dumps(ask())), golden, f"{key}: ")


def main(arguments: Sequence[str]) -> int:
    """Make or check the golden answers; 1 where one differs."""
    what, *names = arguments or ["check"]
    golden, found = read() if FILE.exists() else {}, []
    if what == "check" and not golden:
        raise SystemExit(
            f"{FILE} is not there: make it before a change, by `python -m tests.selector.golden make`."
        )
    with golden_models.nothing_measured():
        for key, make, compare in parts(opened(), names):
            more: list[str] = []
            if what == "make":
                golden[key] = make()
            else:
                more = compare(golden[key])
            found += more
            print(key, *more[:3], sep="\n    ", flush=True)
    if what == "make":
        FILE.parent.mkdir(exist_ok=True)
        FILE.write_bytes(lzma.compress(json.dumps(golden, separators=(",", ":")).encode(), preset=9))
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
