"""A user's own measurements and those that come with the package, looked up as one body of evidence."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kernel_selector.db import Database, records
from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Record, Status
from selector import Selector
from selector.cost_model.domain import UNSEEN_WIDTH
from selector.cost_model.estimate import Estimate, Tier
from selector.selection import knowledge
from selector.selection.answer import USED, USED_IN_PART
from selector.selection.evidence import Evidence
from selector.selection.joint_evidence import JointEvidence
from selector.selection.knowledge import ModelQuestion, best_predictions
from selector.selection.snapshot import Body
from tests.selector import replay

LSTM = registry.operator("lstm")
VERSIONS = {name: one.version for name, one in registry.implementations("lstm").items()}
PROBLEM = LSTM.problem(hidden=64, batch=8)
FARTHER = LSTM.problem(hidden=64, batch=9)  # near enough for a failure to concern it
ELSEWHERE = replace(replay.HERE, host="Another host")


def measured(name: str, time_ms: float, **more: Any) -> Record:
    return replay.record(more.pop("problem", PROBLEM), name, time_ms=time_ms, **more)


def joint(own: list[Record], shipped: list[Record]) -> JointEvidence:
    return JointEvidence(Evidence(own, VERSIONS), Evidence(shipped, VERSIONS, shipped=True))


def first(evidence: Evidence) -> Tier:
    return next(evidence.measured(PROBLEM, replay.HERE, replay.SOFTWARE))


def test_own_records_go_before_those_that_ship_and_both_are_there() -> None:
    own = [measured("torch_lstm", 2.0, device=ELSEWHERE)]
    shipped = [
        measured(name, 1.0, device=replace(ELSEWHERE, host="Theirs")) for name in ("torch_lstm", "hoisted")
    ]
    evidence = joint(own, shipped)
    mine, theirs = evidence.measured(PROBLEM, replay.HERE, replay.SOFTWARE)
    assert (set(mine.estimates), mine.shipped) == ({"torch_lstm"}, frozenset())
    assert set(theirs.estimates) == theirs.shipped == {"torch_lstm", "hoisted"}
    assert evidence.problems == {PROBLEM.key: PROBLEM}


def test_what_ships_of_this_very_machine_goes_before_ones_own_of_another() -> None:
    evidence = joint([measured("torch_lstm", 2.0, device=ELSEWHERE)], [measured("torch_lstm", 1.0)])
    assert first(evidence).shipped == {"torch_lstm"}


def test_of_the_same_circumstances_the_newer_record_counts() -> None:
    own = [measured("torch_lstm", 2.0), measured("hoisted", 3.0)]
    later = replace(measured("hoisted", 1.0), measured_at=own[1].measured_at + timedelta(days=1))
    found = first(joint(own, [later]))
    assert {name: one.time_ms for name, one in found.estimates.items()} == {"torch_lstm": 2.0, "hoisted": 1.0}
    assert found.shipped == {"hoisted"}


def test_what_ships_in_the_dtype_of_a_question_goes_before_ones_own_in_a_wider_one() -> None:
    """Float16 is asked for: one's own are in float32, and those that ship in bfloat16."""
    asked, wide, narrow = (LSTM.problem(hidden=64, batch=8, dtype=name) for name in ("fp16", "fp32", "bf16"))
    own, ships = measured("hoisted", 1.0, problem=wide), measured("hoisted", 2.0, problem=narrow)
    found = joint([own], [ships]).near(asked, replay.HERE, replay.SOFTWARE)
    assert found is not None
    assert found.shipped == {"hoisted"}
    alone = joint([own], []).near(asked, replay.HERE, replay.SOFTWARE)
    assert alone is not None
    assert alone.doublings >= UNSEEN_WIDTH > found.doublings > 0


def test_the_evidence_for_plans_is_that_of_both() -> None:
    evidence = joint([measured("torch_lstm", 2.0)], [measured("torch_lstm", 1.0, problem=FARTHER)])
    assert set(evidence.groups) == {PROBLEM.key, FARTHER.key}


def test_a_failure_that_ships_counts_until_ones_own_measurements_refute_it() -> None:
    failed = replay.failed(FARTHER, "hoisted", Status.CRASHED, "fell over")
    asked = PROBLEM, replay.HERE, "torch_lstm"
    excluded, _ = joint([measured("torch_lstm", 1.0)], [failed]).failures(*asked)
    assert "fell over" in excluded["hoisted"]
    again = replace(
        measured("hoisted", 1.0, problem=FARTHER), measured_at=failed.measured_at + timedelta(days=1)
    )
    assert joint([again], [failed]).failures(*asked) == ({}, {})


def test_a_cost_model_cannot_tell_apart_what_the_measurements_it_learned_from_cannot() -> None:
    evidence = joint([measured("torch_lstm", 1.0)], [measured("torch_lstm", 1.0, device=ELSEWHERE)])
    assert evidence.least_noise(replay.HERE, shipped=False) == 0.0
    assert evidence.least_noise(replay.HERE, shipped=True) > 0.0


ESTIMATE = Estimate(1.0, 0.9, 1.1, 100, 90, 110, 0.01, 0.01)


@pytest.mark.parametrize(
    ("own", "shipped", "counts"),
    [
        (0.0, 0.0, "own"),
        (2.0, 0.0, "shipped"),
        (2.0, 1.0, "shipped"),
        (1.0, 2.0, "own"),
        (1.0, 1.0, "own"),
        (None, 3.0, "shipped"),
        (3.0, None, "own"),
        (None, None, "own"),
    ],
    ids=str,
)
def test_the_cost_model_answers_that_has_seen_what_is_most_alike(own, shipped, counts) -> None:
    """Doublings outside of what it has seen; None where it abstains."""

    def predictor(version: str, doublings: float | None) -> Any:
        known = {} if doublings is None else {"hoisted": ESTIMATE}
        tier = Tier("model", known, doublings=doublings or 0.0)
        tiers = lambda problems, _, **__: [tier] * len(problems)  # noqa: E731
        return SimpleNamespace(version=version, learned=60, tiers=tiers, hosts=frozenset())

    asked = ModelQuestion(PROBLEM, ("hoisted",), replay.HERE, None, imported=False, least_noise=(0.0, 0.0))
    pair = [(predictor("own", own), False), (predictor("shipped", shipped), True)]
    known: Any = SimpleNamespace(devices=())
    found = best_predictions(known, pair, {7: asked})[7]
    assert found.model == counts
    assert found.shipped == (set(found.estimates) if counts == "shipped" else set())


@pytest.fixture
def ships(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    """What ships, made up: `ships(records)`."""
    opened: list[Database] = []

    def make(found: list[Record]) -> None:
        database = Database.open(tmp_path / f"shipped-{len(opened)}.sqlite", create=True)
        opened.append(database)
        with database.write() as connection:
            records.add(connection, records=found)
        monkeypatch.setattr(knowledge, "shipped_body", lambda: Body(database, shipped=True))

    yield make
    for database in opened:
        database.close()


def test_an_answer_says_which_figures_ship(selector_of, ships, sqlite_database) -> None:
    selector_of([measured("torch_lstm", 2.0, device=ELSEWHERE)])
    ships([measured("hoisted", 1.0), measured("torch_lstm", 3.0)])
    choice = Selector(sqlite_database, shipped=True).choose(hidden=64, batch=8)
    assert choice.implementation == "hoisted"
    assert USED in choice.caveats
    ships([measured("hoisted", 1.0, device=ELSEWHERE)])
    with sqlite_database.write() as connection:
        records.add(connection, [measured("torch_lstm", 2.0), measured("recompute", 2.5)])
    choice = Selector(sqlite_database, shipped=True).choose(hidden=64, batch=8)
    assert USED_IN_PART.format("hoisted") in choice.caveats
    assert USED not in choice.caveats
    alone = Selector(sqlite_database, shipped=False).choose(hidden=64, batch=8)
    assert (alone.implementation, alone.caveats) == ("torch_lstm", ())


def test_the_identity_of_answers_changes_with_either_body(selector_of, ships, sqlite_database) -> None:
    selector_of([measured("torch_lstm", 2.0)])
    seen = [Selector(sqlite_database, shipped=False).snapshot]
    ships([measured("hoisted", 1.0)])
    seen.append(Selector(sqlite_database, shipped=True).snapshot)
    ships([measured("hoisted", 1.0), measured("torch_lstm", 3.0)])
    seen.append(Selector(sqlite_database, shipped=True).snapshot)
    with sqlite_database.write() as connection:
        records.add(connection, [measured("hoisted", 2.0)])
    seen.append(Selector(sqlite_database, shipped=True).snapshot)
    assert len(set(seen)) == len(seen)
    assert Selector(sqlite_database, shipped=True).snapshot == seen[-1]


def test_devices_of_both_are_known_by_name(selector_of, ships, sqlite_database) -> None:
    selector_of([measured("torch_lstm", 2.0)])
    theirs = replace(replay.HERE, name="Their CPU 9", host="Their CPU 9")
    ships([measured("torch_lstm", 1.0, device=theirs), measured("torch_lstm", 1.0)])
    known = Selector(sqlite_database, shipped=True)
    assert [one["key"] for one in known.devices() if one["measured"]] == [replay.HERE.key, theirs.key]
    assert known.device("Their CPU 9").key == theirs.key


@pytest.mark.parametrize(
    ("host", "launch_us", "learned", "words"),
    [
        ("A", 5.0, "A", ""),
        ("B", 10.0, "A", "learned from host A, not B: times of launches go by those of this host."),
        ("B", None, "A", "learned from host A, not B."),
        ("", 5.0, "A", ""),
    ],
)
def test_a_cost_model_is_asked_about_a_gpu_in_a_host_that_it_has_learned(
    host, launch_us, learned, words
) -> None:
    """Whatever else was measured in the host at hand, of which the model of this operator knows nothing."""
    gpu = replace(replay.HERE, kind="cuda", name="NVIDIA H200", host="A", launch_us=5.0)
    here = replace(gpu, host=host, launch_us=launch_us)
    asked: list[Any] = []

    def tiers(problems: Any, _: Any, *, device: Any, **__: Any) -> list[Tier]:
        asked.append(device)
        return [Tier("model", {"hoisted": ESTIMATE})] * len(problems)

    predictor: Any = SimpleNamespace(version="1", learned=60, tiers=tiers, hosts=frozenset({"A"}))
    known: Any = SimpleNamespace(devices=(replace(gpu, host="B"), gpu))
    question = ModelQuestion(PROBLEM, ("hoisted",), here, None, imported=False, least_noise=(0.0, 0.0))
    (tier,) = best_predictions(known, [(predictor, False)], {0: question}).values()
    assert [one.host for one in asked] == [learned]
    assert tier.origin == (None if host == "A" else gpu)
    assert "".join(tier.caveats).endswith(words)
    assert bool(tier.caveats) == bool(words)
