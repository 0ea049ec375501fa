"""What is read of a database after a change: what changed alone, and the same that reading it all gives."""

from __future__ import annotations

import random
import shutil
import time
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from threading import Event

import pytest

from kernel_selector.db import Database, audit, corrections, imported, records, submissions, tokens
from kernel_selector.db.submissions import Chosen
from kernel_selector.kernels.contract import Status
from selector import Selector
from selector.selection import selector as engine_module
from selector.selection.snapshot import Body
from tests.grids import thinned
from tests.selector import replay

NOW = datetime(2026, 5, 1, tzinfo=UTC)
PROBLEMS = list(replay.problems(hidden=(32, 64), batch=(1, 8), seq=(10,), layers=(1,)))
THERE = replace(replay.HERE, name="Another CPU", host="Another CPU", multiprocessors=16)
AUTHORS = (None, "t1", "t2", "u1", "u2")  # None: the owner
PAIRS = [("lstm", replay.HERE.key), ("lstm", THERE.key)]
pytestmark = pytest.mark.usefixtures("here")


@pytest.fixture
def database(tmp_path):
    """A database with tokens: those whose names begin with u are not trusted."""
    with Database.open(tmp_path / "measured.sqlite", create=True) as opened:
        with opened.write() as connection:
            for name in AUTHORS[1:]:
                made = tokens.StoredToken(
                    name=name, digest=name, scopes=("measure",), created_at=NOW, trusted=name[0] == "t"
                )
                tokens.add(connection, made)
        yield opened


def content(body):
    """All that answers rest on."""
    return (
        body.state,
        body.records,
        body.devices,
        {
            pair: (
                found.problems,
                dict(found.groups),
                found.settings.keys(),
                dict(found.failed),
                dict(found.left_out),
                dict(found.waiting),
                found.versions,
            )
            for pair, found in body._evidence.items()
            if pair in PAIRS
        },
    )


class Owner:
    """What may happen to a database, drawn by a generator."""

    def __init__(self, draw):
        self.draw, self.entries = draw, []

    def send(self, connection):
        """Some measurements, also such that others sent already, contradict others or failed."""
        author, device = self.draw.choice(AUTHORS), self.draw.choice((replay.HERE, THERE))
        batch = author and submissions.add(connection, author=author, received_at=NOW)
        found = [self.record(problem, device) for problem in self.draw.sample(PROBLEMS, 2)]
        records.add(connection, found, submission=batch)

    def record(self, problem, device):
        name = self.draw.choice(replay.ON_CPU[:3])
        if self.draw.random() < 0.2:
            made = replace(replay.failed(problem, name, Status.CRASHED), device=device)
        else:
            time_ms = self.draw.choice((1, 1, 1, 8)) * replay.true_time_ms(problem, name)
            made = replay.record(problem, name, device=device, time_ms=time_ms)
        return replace(made, measured_at=NOW + timedelta(minutes=self.draw.randrange(5)))

    def retract(self, connection):
        """All that one author sent."""
        number = self.entry(connection, audit.Action.RETRACT)
        found = corrections.sendings(connection, Chosen(author=self.draw.choice(AUTHORS[1:])))
        count = corrections.silenced(connection, found)
        corrections.retract(connection, found, entry=number, changed=count)
        if found:
            self.entries.append(number)

    def undo(self, connection):
        """One of the retractions."""
        if self.entries:
            number = self.entries.pop(self.draw.randrange(len(self.entries)))
            count = corrections.undoable(connection, number)
            undoing = self.entry(connection, audit.Action.UNDO)
            corrections.undo(connection, undone=number, entry=undoing, changed=count)

    def trust(self, connection):
        """Or distrust one author."""
        tokens.trust(connection, name=self.draw.choice(AUTHORS[1:]), trusted=self.draw.random() < 0.5)

    def entry(self, connection, action):
        return audit.add(connection, author="me", through="command", action=action, subject="x", reason="y")


@pytest.mark.parametrize("seed", thinned(range(12), lambda seed: [min(seed, 2)]))
def test_what_changed_is_all_that_reading_anew_would_find(database, seed):
    draw = random.Random(seed)
    owner = Owner(draw)
    body = Body(database, wanted=PAIRS)
    for _ in range(25):
        with database.write() as connection:
            for step in draw.choices((owner.send, owner.retract, owner.undo, owner.trust), (6, 2, 2, 1), k=2):
                step(connection)
        body = Body(database, wanted=PAIRS, earlier=body)
        assert content(body) == content(Body(database, wanted=PAIRS))


def test_what_has_not_changed_is_not_read(database, monkeypatch):
    with database.write() as connection:
        records.add(connection, [replay.record(one, "torch_lstm", device=replay.HERE) for one in PROBLEMS])
        records.add(connection, [replay.record(one, "torch_lstm", device=THERE) for one in PROBLEMS])
    body = Body(database, wanted=PAIRS)
    read = []
    newest = records.newest

    def noted(connection, **given):
        for found in newest(connection, **given):
            read.append((found.problem.key, found.device.key))
            yield found

    monkeypatch.setattr(records, "newest", noted)
    with database.write() as connection:
        records.add(connection, [replay.record(PROBLEMS[1], "hoisted", device=THERE)])
    later = Body(database, earlier=body)
    assert read == [(PROBLEMS[1].key, THERE.key)] * 2  # both implementations
    assert later._evidence[PAIRS[0]] is body._evidence[PAIRS[0]]
    assert later.loaded == body.loaded


@pytest.mark.parametrize("added", [0, 1, 2], ids=["fewer", "as many", "more"])
def test_an_older_copy_in_the_place_of_a_database_is_read_anew(database, tmp_path, added):
    path, copy = tmp_path / "measured.sqlite", tmp_path / "copy"
    with database.write() as connection:
        records.add(connection, [replay.record(PROBLEMS[0], "torch_lstm")])
    database.close()
    shutil.copy(path, copy)
    with database.write() as connection:
        records.add(connection, [replay.record(PROBLEMS[1], "torch_lstm")])
    body = Body(database, wanted=PAIRS)
    database.close()
    copy.replace(path)
    with Database.open(path) as restored:
        with restored.write() as connection:
            records.add(connection, [replay.record(one, "hoisted") for one in PROBLEMS[2 : 2 + added]])
        now = Body(restored, earlier=body)
        assert content(now) == content(Body(restored, wanted=PAIRS))
        assert PROBLEMS[1].key not in now.measurements(*PAIRS[0]).problems


def test_imported_operators_are_read_anew_where_something_was_imported(database):
    def load(operator, time_ms):
        row = imported.ImportedRow({"size": 1}, "a", "ok", time_ms, None)
        with database.write() as connection:
            imported.add(
                connection, operator=operator, device="card", rows=[row], source="x", imported_at=NOW
            )

    load("one", 1.0)
    load("other", 1.0)
    pairs = [("one", "card"), ("other", "card")]
    body = Body(database, wanted=pairs)
    load("one", 2.0)
    later = Body(database, earlier=body)
    assert later._evidence["other", "card"] is body._evidence["other", "card"]
    assert later.imported["other"] is body.imported["other"]
    assert later._evidence["one", "card"] is not body._evidence["one", "card"]
    assert later.imported["one"].rows == 2


def test_a_question_does_not_wait_for_what_takes_long_to_read(database, monkeypatch):
    monkeypatch.setattr(engine_module, "CHECK_S", 0.0)
    monkeypatch.setattr(engine_module, "BACK_OFF", 0)
    monkeypatch.setattr(engine_module, "LOADING_S", 0.05)
    question = {**PROBLEMS[0].as_dict, "device": replay.HERE}
    with database.write() as connection:
        records.add(connection, [replay.record(PROBLEMS[0], name) for name in ("torch_lstm", "hoisted")])
    reading, go_on = Event(), Event()
    newest = records.newest

    def slow(connection, **given):
        reading.set()
        assert go_on.wait(60)
        return newest(connection, **given)

    with closing(Selector(database, shipped=False)) as asked:
        before = asked.choose(**question)
        monkeypatch.setattr(records, "newest", slow)
        with database.write() as connection:
            records.add(connection, [replay.record(PROBLEMS[0], "recompute", time_ms=1e-3)])
        assert asked.choose(**question) == before
        assert reading.is_set()
        assert asked.choose(**question) == before  # also while others read
        assert asked.database is database
        go_on.set()
        deadline = time.monotonic() + 60
        while (found := asked.choose(**question)).implementation != "recompute":
            assert time.monotonic() < deadline
        assert found.caveats == before.caveats
