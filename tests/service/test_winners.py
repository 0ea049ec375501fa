"""Which implementation wins where: by hand-made records whose winners are known."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Problem, Record, Status
from kernel_selector.service.pages.winners import MOST_VALUES, ComparedProblem, ComparedProblems, MapAxis
from selector import InvalidRequest
from selector.selection.evidence import Evidence
from tests.selector import replay

OPERATOR = registry.operator("lstm")
VERSIONS = {name: item.version for name, item in registry.implementations("lstm").items()}
SMALL, LARGE = (OPERATOR.problem(hidden=hidden, batch=8) for hidden in (64, 512))


def times(problem: Problem, **by_name: float) -> list[Record]:
    return [replay.record(problem, name, time_ms=time_ms) for name, time_ms in by_name.items()]


def compared(*records: Record) -> ComparedProblems:
    return ComparedProblems(Evidence(records, VERSIONS), OPERATOR)


def found(*records: Record) -> tuple[ComparedProblem, ...]:
    return compared(*records).found


def test_the_fastest_wins_and_its_gain_is_over_the_default() -> None:
    (one,) = found(*times(SMALL, torch_lstm=4.0, unfused=2.0, hoisted=8.0))
    assert (one.winner, one.speedup, one.current) == ("unfused", 2.0, True)
    (one,) = found(*times(SMALL, unfused=2.0, hoisted=8.0))
    assert (one.winner, one.speedup) == ("unfused", None)


def test_one_implementation_alone_wins_nothing() -> None:
    lost = replay.failed(SMALL, "unfused", Status.CRASHED)
    made = compared(*times(SMALL, torch_lstm=4.0), lost)
    assert (made.found, made.alone) == ((), 1)


def test_circumstances_are_not_mixed() -> None:
    other = replace(replay.HERE, host="another", name="Replay CPU 8")
    there = [replay.record(SMALL, name, time_ms=time, device=other) for name, time in (("unfused", 0.1),)]
    (one,) = found(*times(SMALL, torch_lstm=4.0, hoisted=3.0), *there)
    assert one.winner == "hoisted"  # unfused was measured elsewhere, against nothing


def test_of_equally_covered_circumstances_the_latest_count() -> None:
    late = replace(replay.HERE, host="another")
    again = [
        replace(
            replay.record(SMALL, name, time_ms=time, device=late),
            measured_at=replay.EPOCH + timedelta(days=99),
        )
        for name, time in (("torch_lstm", 1.0), ("hoisted", 2.0))
    ]
    (one,) = found(*again, *times(SMALL, torch_lstm=4.0, hoisted=3.0))
    assert one.winner == "torch_lstm"


def test_earlier_versions_count_where_there_is_nothing_else() -> None:
    old = [replace(one, implementation_version="old") for one in times(SMALL, torch_lstm=4.0, unfused=1.0)]
    (one,) = found(*old)
    assert (one.winner, one.current) == ("unfused", False)
    (one,) = found(*old, *times(SMALL, torch_lstm=4.0, hoisted=2.0))
    assert (one.winner, one.current) == ("hoisted", True)


def test_a_map_over_two_hyperparameters() -> None:
    inference = OPERATOR.problem(hidden=64, batch=8, mode="inference")
    records = (
        *times(SMALL, torch_lstm=4.0, unfused=1.0),
        *times(inference, torch_lstm=4.0, unfused=4.0 / 9.0),
        *times(LARGE, torch_lstm=4.0, unfused=8.0),
    )
    mine = compared(*records)
    made = mine.map("hidden", "batch", {})
    assert (made.x.labels, made.y.labels) == (("64", "512"), ("8",))
    cell = made.cells["8", "64"]
    assert (cell.winner, cell.wins, cell.problems) == ("unfused", 2, 2)
    assert cell.speedup == pytest.approx(6.0)
    assert made.cells["8", "512"].winner == "torch_lstm"
    assert made.ranking == (("unfused", 2), ("torch_lstm", 1))
    assert (made.problems, made.earlier) == (3, 0)
    training = mine.map("hidden", "batch", {"mode": "training"})
    assert training.cells["8", "64"].problems == 1


@pytest.mark.parametrize(
    ("x", "y", "only", "words"),
    [
        ("hiden", "batch", {}, "x='hiden': expected a hyperparameter. Did you mean 'hidden'"),
        ("hidden", "<b>", {}, "y='<b>'"),
        ("hidden", "hidden", {}, "expected two different"),
        ("hidden", "batch", {"nonesuch": "1"}, "only='nonesuch'"),
        ("hidden", "batch", {"mode": "trainin"}, "mode='trainin': expected a value that was measured"),
    ],
)
def test_what_was_not_measured_is_named(x: str, y: str, only: dict[str, str], words: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        compared(*times(SMALL, torch_lstm=4.0, unfused=1.0)).map(x, y, only)
    assert words in str(caught.value)


def test_few_values_stand_one_by_one_and_many_in_powers_of_two() -> None:
    assert MapAxis("hidden", (512, 64, 64)).labels == ("64", "512")
    assert MapAxis("dtype", ("float32", "bfloat16")).labels == ("bfloat16", "float32")
    assert MapAxis("bias", (True, False)).labels == ("false", "true")
    many = MapAxis("seq", range(MOST_VALUES + 2))
    assert many.labels == ("0", "1", "2 to 3", "4 to 7", "8 to 15")
    shares = MapAxis("dropout", (step / 64 for step in range(1, 33)))
    assert shares.labels[-2:] == ("0.25 to 0.5", "0.5 to 1")
    assert MapAxis("hidden", ()).labels == ()


def test_contests_are_made_once_for_the_same_evidence() -> None:
    evidence = Evidence(times(SMALL, torch_lstm=4.0, unfused=1.0), VERSIONS)
    assert ComparedProblems.of(evidence, OPERATOR) is ComparedProblems.of(evidence, OPERATOR)
