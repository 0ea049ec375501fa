"""What is read of a database after a change: what changed alone, and the same that reading it all gives."""

from __future__ import annotations

import random
import shutil
import time
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from threading import Event, Thread

import pytest

from kernel_selector.db import (
    Database,
    StoredModel,
    audit,
    corrections,
    imported,
    models,
    records,
    submissions,
    tokens,
)
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
    evidence = {
        pair: (
            found.problems,
            dict(found.groups),
            found.settings.keys(),
            dict(found.failed),
            dict(found.left_out),
            dict(found.waiting),
            found.rejected,
        )
        for pair, found in body._evidence.items()
        if pair in PAIRS
    }
    return body.state, body.records, body.devices, evidence, outcome(body, "lstm")


def outcome(body, operator):
    """Which cost model of an operator a body has, and why it does not use it."""
    body.predictor(operator)
    stored = body._models.get(operator)
    return (stored if isinstance(stored, StoredModel) else type(stored)), body.refused.get(operator)


class Owner:
    """What may happen to a database, drawn by a generator."""

    def __init__(self, draw):
        self.draw, self.entries, self.models = draw, [], 0

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

    def train(self, connection):
        """A cost model of one of two operators, which cannot be used."""
        self.models += 1
        values = {"schema": self.models, "manifest": {}, "evaluation": {}, "arrays": b"", "created_at": NOW}
        operator = self.draw.choice(("lstm", "gru"))
        models.add(connection, model=StoredModel(operator=operator, version=f"v{self.models}", **values))

    def release(self, connection):
        """A record of somebody that was set aside."""
        batch = submissions.add(connection, author=self.draw.choice(AUTHORS[1:]), received_at=NOW)
        found = self.record(self.draw.choice(PROBLEMS), replay.HERE)
        submissions.quarantine(connection, submission=batch, lines=[(found.to_json(), "odd")])
        for one in submissions.quarantined(connection, Chosen(batch=batch), limit=1):
            number = self.entry(connection, audit.Action.RELEASE)
            aside = corrections.Aside(id=one["id"], batch=batch, record=found)
            corrections.release(connection, [aside], entry=number)
            self.entries.append(number)

    def trust(self, connection):
        """Or distrust one author."""
        tokens.trust(connection, name=self.draw.choice(AUTHORS[1:]), trusted=self.draw.random() < 0.5)

    def entry(self, connection, action):
        return audit.add(connection, author="me", through="command", action=action, subject="x", reason="y")


STEPS = {Owner.send: 6, Owner.retract: 2, Owner.undo: 2, Owner.trust: 1, Owner.train: 1, Owner.release: 1}


@pytest.mark.parametrize("seed", thinned(range(12), lambda seed: [min(seed, 2)]))
def test_what_changed_is_all_that_reading_anew_would_find(database, seed):
    draw = random.Random(seed)
    owner = Owner(draw)
    body = Body(database, wanted=PAIRS)
    for _ in range(25):
        with database.write() as connection:
            for step in draw.choices(list(STEPS), STEPS.values(), k=2):
                step(owner, connection)
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


@pytest.fixture
def asked(database, monkeypatch):
    """A selector as services have it, over two measurements of a problem, that looks at each question."""
    monkeypatch.setattr(engine_module, "CHECK_S", 0.0)
    monkeypatch.setattr(engine_module, "BACK_OFF", 0)
    with database.write() as connection:
        records.add(connection, [replay.record(PROBLEMS[0], name) for name in ("torch_lstm", "hoisted")])
    with closing(Selector(database, shipped=False, background=True)) as opened:
        ask(opened)
        yield opened


def ask(selector):
    return selector.choose(**PROBLEMS[0].as_dict, device=replay.HERE)


def add_the_fastest(database):
    with database.write() as connection:
        records.add(connection, [replay.record(PROBLEMS[0], "recompute", time_ms=1e-3)])


def wait_for_the_fastest(selector):
    deadline = time.monotonic() + 60
    while (found := ask(selector)).implementation != "recompute":
        assert time.monotonic() < deadline
    return found


def test_a_question_does_not_wait_for_what_takes_long_to_read(database, asked, monkeypatch):
    monkeypatch.setattr(engine_module, "LOADING_S", 0.05)
    monkeypatch.setattr(engine_module, "SILENT_S", 0.0)  # a file is never silent
    before = ask(asked)
    reading, go_on = Event(), Event()
    newest = records.newest

    def slow(connection, **given):
        reading.set()
        assert go_on.wait(60)
        return newest(connection, **given)

    monkeypatch.setattr(records, "newest", slow)
    add_the_fastest(database)
    assert ask(asked) == before
    assert reading.wait(60)
    assert ask(asked) == before  # also while others read
    assert asked.database is database
    go_on.set()
    assert wait_for_the_fastest(asked).caveats == before.caveats


def test_an_error_of_another_kind_is_told_and_tried_again(database, asked, monkeypatch):
    before = ask(asked)
    newest = records.newest

    def broken(*_, **__):
        raise MemoryError("no more")

    monkeypatch.setattr(records, "newest", broken)
    add_the_fastest(database)
    found = ask(asked)
    assert found.implementation == before.implementation
    assert "cannot be read: MemoryError: no more." in found.caveats[-1]
    monkeypatch.setattr(records, "newest", newest)
    assert wait_for_the_fastest(asked).caveats == before.caveats


def test_it_looks_itself_where_no_thread_can_be_started(database, asked, monkeypatch):
    def refused(_):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(Thread, "start", refused)
    add_the_fastest(database)
    assert ask(asked).implementation == "recompute"


def test_a_look_that_begins_beside_the_end_opens_nothing(database, asked, monkeypatch):
    look, go_on = asked._look, Event()

    def late():
        assert go_on.wait(60)
        look()

    monkeypatch.setattr(asked, "_look", late)
    monkeypatch.setattr(engine_module, "LOADING_S", 0.0)
    add_the_fastest(database)
    before = ask(asked)
    asked.close()
    go_on.set()
    with asked._looking:  # once it has ended
        pass
    assert asked._open is None
    assert ask(asked) == before
    asked.reload()
    assert ask(asked).implementation == "recompute"


@pytest.fixture
def to_train(database, trained_file):
    """The database with measurements to learn from, and a cost model that was learned from them."""
    with Database.open(trained_file) as source, source.read() as connection:
        model, known = models.latest(connection, operator="lstm"), list(records.find(connection))
    with database.write() as connection:
        records.add(connection, known)
    return database, model


UNSEEN = {"hidden": 90, "batch": 20, "seq": 30, "device": replay.HERE}


@pytest.mark.parametrize("frozen", [False, True])
def test_a_model_that_was_trained_is_used(to_train, monkeypatch, frozen):
    monkeypatch.setattr(engine_module, "CHECK_S", 0.0)
    database, model = to_train
    with closing(Selector(database, shipped=False, frozen=frozen)) as selector:
        assert selector.choose(**UNSEEN).source != "model"
        with database.write() as connection:
            models.add(connection, model=model)
        if frozen:
            selector.reload()
        assert selector.choose(**UNSEEN).source == "model"


def test_an_earlier_model_is_used_as_long_as_the_latest_is_refused(to_train, monkeypatch):
    monkeypatch.setattr(engine_module, "CHECK_S", 0.0)
    database, model = to_train
    with database.write() as connection:
        models.add(connection, model=model)
        models.add(connection, model=replace(model, version="next", schema=10**6))
    with closing(Selector(database, shipped=False)) as selector:
        for _ in range(2):
            assert selector.choose(**UNSEEN).source == "model"
            assert "lstm" in selector.status()["refused"]
            with database.write() as connection:
                records.add(connection, [replay.record(PROBLEMS[0], "hoisted", device=THERE)])
