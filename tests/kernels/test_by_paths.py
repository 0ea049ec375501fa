"""What is answered by paths is what each implementation says when it is asked plainly, bit for bit."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from kernel_selector.kernels import by_paths, registry
from kernel_selector.kernels.asking import counts, counts_of, least, refusals
from kernel_selector.kernels.by_paths import Asked, ByPaths, Said
from kernel_selector.kernels.contract import Integer, InvalidHyperparameter, Problem
from kernel_selector.kernels.devices import known_device
from kernel_selector.kernels.mirrored import Mirror
from kernel_selector.kernels.tracing import MARK
from selector.problem_sets import random_problems
from selector.reading import Reading, rows_of

DRAWN, BATCH = 700, 175
DEVICES = [known_device(name) for name in ("h200", "t4")]


def problems_of(operator: str) -> list[Problem]:
    """Usual ones; and some with ones, odd sizes, and the largest that the operator takes."""
    known, draw = registry.operator(operator), random.Random(operator)
    drawn = random_problems(operator, "cuda", count=DRAWN, seed=11)
    sizes = [spec for spec in known.hyperparameters if isinstance(spec, Integer)]
    for problem in drawn[:200]:
        given = dict(problem.as_dict)
        for spec in draw.sample(sizes, min(2, len(sizes))):
            given[spec.name] = draw.choice((spec.minimum, 3, 123, 2**17 + 1, spec.maximum))
        try:
            drawn.append(known.problem(given))
        except InvalidHyperparameter:
            continue
    draw.shuffle(drawn)
    return drawn


def batches(operator: str) -> list[list[Reading]]:
    """So that the later ones are answered by paths that the earlier ones have left."""
    readings = [Reading.of(problem) for problem in problems_of(operator)]
    return [readings[start : start + BATCH] for start in range(0, len(readings), BATCH)]


def exactly(values: Sequence[Any]) -> list[tuple[type, Any]]:
    return [(type(value), value) for value in values]


@pytest.mark.parametrize("operator", registry.operators())
def test_everything_is_said_as_each_implementation_says_it(operator: str) -> None:
    known = registry.implementations(operator)
    for readings in batches(operator):
        rows = rows_of(readings)
        theirs = least(operator).of_each(rows, readings)
        for found, reading in zip(theirs, readings, strict=True):
            assert exactly(found[:-1]) == exactly(counts_of(registry.operator(operator).work(reading)))
        for name, item in known.items():
            for device in DEVICES:
                told = refusals(item, device).of_each(rows, readings)
                for (accepts, reason), reading in zip(told, readings, strict=True):
                    refusal = item.unsupported(reading, device)
                    assert accepts == (refusal is None)
                    assert reason in (None, refusal)
            mine = [
                index for index, reading in enumerate(readings) if not item.unsupported(reading, DEVICES[0])
            ]
            given = [rows[index] + theirs[index] for index in mine], [readings[index] for index in mine]
            for index, found in zip(mine, counts(item).of_each(*given), strict=True):
                assert exactly(found) == exactly(counts_of(item.work(readings[index]))), name


def of_lstm(function: Callable[[Any], Any], said: Callable[[Any], Said] = lambda found: (found,)) -> ByPaths:
    names = tuple(spec.name for spec in registry.operator("lstm").hyperparameters)
    return ByPaths(Asked("a test", function, names, said))


def lstms(count: int, **more: Any) -> list[Reading]:
    lstm = registry.operator("lstm")
    return [Reading.of(lstm.problem(hidden=8 + each, batch=3, **more)) for each in range(count)]


def asked_of(counting: list[int]) -> Callable[[Any], Any]:
    def function(problem: Any) -> Any:
        counting.append(1)
        return problem["hidden"] * 2 if problem["hidden"] < 1000 else problem["hidden"] + 0.5

    return function


def test_what_took_the_same_path_is_not_asked_again() -> None:
    calls: list[int] = []
    paths, readings = of_lstm(asked_of(calls)), lstms(by_paths.WORTH)
    paths.of_each(rows_of(readings), readings)
    before = len(calls)
    assert paths.of_each(rows_of(readings), readings) == [(2 * each["hidden"],) for each in readings]
    assert len(calls) == before
    (large,) = [Reading.of(registry.operator("lstm").problem(hidden=2000, batch=1))]
    assert paths.of_each(rows_of([large]), [large]) == [(2000.5,)]  # on no path
    assert len(calls) == before + 1


def test_few_problems_leave_no_paths() -> None:
    calls: list[int] = []
    paths, readings = of_lstm(asked_of(calls)), lstms(by_paths.WORTH - 1)
    paths.of_each(rows_of(readings), readings)
    assert len(calls) == len(readings)


def not_always_alike(_problem: Any, _said: list[int] = []) -> int:  # noqa: B006
    _said.append(1)
    return len(_said)


def keyed_by_size(problem: Any) -> int:
    return {size: size + 1 for size in range(200)}[problem["hidden"]]


def read_from_words(problem: Any) -> int:
    return int(f"{problem['hidden']}")


def told_by_words(problem: Any) -> bool:
    return f"{problem['hidden']}" == "9"


@pytest.mark.parametrize("function", [not_always_alike, keyed_by_size, read_from_words, told_by_words])
def test_what_cannot_be_traced_is_asked_plainly(
    function: Callable[[Any], int], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    paths, readings = of_lstm(function), lstms(by_paths.WORTH)
    rows = rows_of(readings)
    paths.of_each(rows, readings)
    found = paths.of_each(rows, readings)
    if function is not not_always_alike:
        assert found == [(function(each),) for each in readings]
    assert "asked problem by problem" in caplog.text


def told_by_identity(problem: Any) -> bool:
    return problem["bias"] is False


def test_whether_it_is_true_is_on_the_path() -> None:
    paths, readings = of_lstm(told_by_identity), lstms(by_paths.WORTH)
    paths.of_each(rows_of(readings), readings)
    others = lstms(3, bias=False)
    assert paths.of_each(rows_of(others), others) == [(True,)] * 3


def test_an_error_of_the_function_is_its_own() -> None:
    paths, readings = of_lstm(lambda problem: 10 // (problem["hidden"] - 200)), lstms(by_paths.WORTH)
    paths.of_each(rows_of(readings), readings)
    wrong = [Reading.of(registry.operator("lstm").problem(hidden=200, batch=1))]
    with pytest.raises(ZeroDivisionError):
        paths.of_each(rows_of(wrong), wrong)


def test_copies_stand_in_for_nothing_else() -> None:
    work = registry.implementation("lstm", "fused").work
    copy = Mirror().of(work)
    problem = registry.operator("lstm").problem(hidden=33, batch=4)
    assert copy is not work
    assert copy(problem) == work(problem)


def test_threads_may_ask_at_once() -> None:
    paths, readings = of_lstm(lambda problem: max(problem["hidden"], 40) % 7), lstms(200)
    rows, found = rows_of(readings), []
    threads = [threading.Thread(target=lambda: found.append(paths.of_each(rows, readings))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [[(max(each["hidden"], 40) % 7,) for each in readings]] * 8


def test_a_reason_with_numbers_of_the_problem_is_left_to_be_asked_for() -> None:
    def reason(problem: Any) -> str:
        return f"hidden={problem['hidden']} is too large" if problem["hidden"] > 40 else "it is too small"

    paths, readings = of_lstm(reason, lambda said: (None if MARK in said else said,)), lstms(by_paths.WORTH)
    paths.of_each(rows_of(readings), readings)
    found = [one for (one,) in paths.of_each(rows_of(readings), readings)]
    assert found == [None if each["hidden"] > 40 else "it is too small" for each in readings]
    assert {*found} == {None, "it is too small"}
