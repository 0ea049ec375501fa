"""Sealed sets: drawn by a commit, judged once, and never on what the database has seen."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from benchmarks.selection import sealed_sets
from kernel_selector.db import Database
from kernel_selector.db import records as stored
from kernel_selector.kernels.contract import Record, Status
from kernel_selector.kernels.measure.jobs import Job, read_jobs
from selector.selection.choice import Choice
from selector.training.verdicts import figures, pairs, unjudged, verdict
from tests.selector import replay

KNOWN = tuple(replay.problems(hidden=(32, 64, 128), batch=(1, 4), seq=(10,), mode=("training",)))
DRAWN = tuple(replay.problems(hidden=(48, 96), batch=(2,), seq=(10,), mode=("training", "inference")))
COMMIT, SINCE = "ab" * 20, replay.EPOCH + timedelta(days=400)


def later(records: list[Record]) -> list[Record]:
    """The records as of after the commit."""
    return [replace(one, measured_at=SINCE + timedelta(hours=1)) for one in records]


@pytest.fixture
def judge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The command, on records and what the database has besides KNOWN; the lines of its log."""
    monkeypatch.setattr(sealed_sets, "committed", lambda _: (COMMIT, SINCE))
    monkeypatch.setattr(sealed_sets, "drawn", lambda *_: [Job(one, ()) for one in DRAWN])

    def run(records: list[Record], besides: list[Record] | None = None) -> list[dict[str, Any]]:
        path, file = tmp_path / "measurements.sqlite", tmp_path / "records.jsonl"
        with Database.open(path, create=True) as database, database.write() as connection:
            stored.add(connection, [*replay.sweep(KNOWN), *(besides or [])])
        file.write_text("\n".join(one.to_json() for one in records))
        sealed_sets.main(["judge", str(file), "--database", str(path), "--results", str(tmp_path)])
        return [json.loads(line) for line in (tmp_path / "sealed_sets.jsonl").read_text().splitlines()]

    return run


def test_a_set_is_judged_once(judge: Any, tmp_path: Path) -> None:
    (line,) = judge(later(replay.sweep(DRAWN)))
    assert (line["drawn_by"], line["device"]) == (COMMIT, replay.HERE.name)
    assert (line["drawn"], line["measured"], line["all"]["problems"]) == 3 * (len(DRAWN),)
    assert line["all"]["gmean"] >= 1
    assert sum(one["problems"] for one in line["mode"].values()) == len(DRAWN)
    assert line["mode"].keys() == {"inference", "training"}
    assert (tmp_path / line["records"]).exists()
    with pytest.raises(SystemExit, match="is spent"):
        judge(later(replay.sweep(DRAWN)))


def test_a_choice_without_a_good_time_is_unjudged_and_said() -> None:
    failed = replay.failed(DRAWN[0], "hoisted", Status.INCORRECT)
    others = [one for one in replay.sweep(DRAWN[:1]) if one.implementation != "hoisted"]
    (contest,) = sealed_sets.contests([*others, failed], replay.HERE)
    none = verdict(contest, chosen())
    verdicts = [none, none._replace(slowdown=1.2)]
    assert none.slowdown is None
    assert none.loss >= none.slowest > 1
    assert figures(verdicts)["unjudged"] == 0.5
    assert figures(verdicts[:1]) == {"problems": 1, "unjudged": 1.0}
    assert unjudged(verdicts) == {"lstm.hoisted: incorrect": 1}
    assert pairs(verdicts) == [
        {
            "operator": "lstm",
            "chosen": "hoisted",
            "fastest": none.fastest,
            "problems": 1,
            "share": 1.0,
            "samples": 0,
        }
    ]


def chosen() -> Choice:
    """A choice by name."""
    device, problem = replay.HERE.to_dict(), {"operator": "lstm", **DRAWN[0].as_dict}
    known = {"implementation": "hoisted", "source": "model", "problem": problem, "device": device}
    nothing = dict.fromkeys(Choice.__dataclass_fields__)
    return Choice.from_dict({**nothing, "candidates": [], "caveats": [], "assumed": [], **known})


@pytest.mark.parametrize(
    ("records", "besides", "words"),
    [
        (later(replay.sweep(KNOWN[:1])), [], "not drawn by"),
        (replay.sweep(DRAWN), [], "measured before"),
        (later(replay.sweep(DRAWN)), later(replay.sweep(DRAWN[:2])), "measured 2 of these problems"),
        ([], [], "No records"),
    ],
    ids=["another commit's", "too early", "leaked", "nothing"],
)
def test_no_other_set_is_judged(
    judge: Any, records: list[Record], besides: list[Record], words: str, tmp_path: Path
) -> None:
    with pytest.raises(SystemExit, match=words):
        judge(records, besides)
    assert not (tmp_path / "sealed_sets.jsonl").exists()


def test_the_commit_draws_the_problems(tmp_path: Path) -> None:
    one, other = (sealed_sets.drawn(commit * 20, 2) for commit in ("ab", "cd"))
    assert one == sealed_sets.drawn("ab" * 20, 2)
    assert {job.problem for job in one} != {job.problem for job in other}
    assert any("torch_compile" in job.implementations for job in one)
    plan = tmp_path / "plan.jsonl"
    sealed_sets.main(["draw", "--out", str(plan), "--count", "1"])
    assert len(read_jobs(plan)) == len({job.problem.operator for job in one})
    with pytest.raises(SystemExit, match="no commit of this checkout"):
        sealed_sets.committed("nothing-by-this-name")
